"""The replay from the longest draft against the shorter ones that ran: simulated sites, and real engines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))
from sample_generator.parameters import RTP_SITE

from tracelens.analysis.answers import run_query
from tracelens.analysis.session import Question, opened
from tracelens.analysis.sweep import SweepEntry, SweepResult, sweep
from tracelens.analysis.sweep_trace import source
from tracelens.cli import run

SAMPLES = Path(__file__).parents[2] / "samples"
REAL = Path(__file__).parents[2].parent / "shared" / "real"


@dataclass(frozen=True, slots=True)
class Site:
    """Folders of logs by name of the run, and the worst error of tau_verified from the longest trace, by K."""

    folder: Path
    runs: Mapping[str, str]
    worst: Mapping[int, float]


SITES = {
    # In the simulator a draft gets worse along its positions, which the replay cannot know: a shorter K comes out low.
    "vllm-site": Site(SAMPLES / "vllm-site", {"k1": "k1", "k3": "k3", "k7": "k7"}, {1: 0.025, 3: 0.04}),
    "rtp-site": Site(SAMPLES / "rtp-site", {"k2": "k2", "k7": "k7", "baseline": "baseline"}, {2: 0.04}),
    "smol": Site(REAL / "llamacpp" / "runs", {f"k{k}": f"smol2-q4-k{k}" for k in (1, 2, 3, 7)},
                 {1: 0.005, 2: 0.005, 3: 0.001}),
    "tiny": Site(REAL / "llamacpp" / "runs", {f"k{k}": f"tiny-copy-k{k}" for k in (1, 3, 7)}, {1: 0.001, 3: 0.001}),
    "vllm": Site(REAL / "vllm" / "runs", {"k1": "B-trunc2-k1", "k3": "B-trunc2-k3-fix", "k7": "B-trunc2-k7"},
                 {1: 0.01, 3: 0.021}),
}  # fmt: skip


def ingested(site: Site, lake: Path) -> Path:
    if not site.folder.is_dir():
        pytest.skip("these logs are not here")
    for name, folder in site.runs.items():
        role = ["--role", "baseline"] if name == "baseline" else []
        assert run(["ingest", str(site.folder / folder), "--run", name, "--lake", str(lake), *role]) == 0
    return lake


@pytest.mark.parametrize("name", SITES)
def test_the_replay_meets_what_ran(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    site = SITES[name]
    lake = ingested(site, tmp_path / "lake")
    capsys.readouterr()
    with opened(lake, Question(by=("run_id",))) as session:
        lengths, domain = (run_query(session.con, query) for query in ("run_lengths", "replay_domain"))
        trace = source(lengths["k7",], domain["k7",]).trace
        ran = {str(s.key["run_id"]): s.figures["tau_verified"] for s in session.strata}
    assert trace is not None
    assert trace.k == 7
    walked = trace.at((7, *site.worst))
    for k, worst in {7: 1e-12, **site.worst}.items():
        replayed = float(walked.split(walked.totals(), k)[0][0])
        assert replayed == pytest.approx(ran[f"k{k}"], rel=worst), k
    if name == "rtp-site":
        check_cost(sweep(lake, Question(by=())))


def of(result: SweepResult, k: int, kind: str) -> SweepEntry:
    return next(e for e in result.total.entries if (e.k, e.source) == (k, kind))


def check_cost(result: SweepResult) -> None:
    """Fitted rounds meet those that ran within 1%; fixed and sloping part of a draft stand as planted."""
    for k in (2, 7):
        ran, replayed = of(result, k, "observed"), of(result, k, "replayed")
        for name in ("draft_ms", "target_ms", "round_ms"):
            assert getattr(replayed, name) == pytest.approx(getattr(ran, name), rel=0.01), (k, name)
        assert replayed.relative_token_time == pytest.approx(ran.relative_token_time, rel=0.04)
    first, last = (of(result, k, "replayed").draft_ms or 0.0 for k in (2, 7))
    slope = (last - first) / 5
    assert (first - 2 * slope) / slope == pytest.approx(RTP_SITE.draft_fixed / RTP_SITE.draft_token, rel=0.1)
