"""The replay from the longest draft against the shorter ones that ran: simulated sites, and real engines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))
from sample_generator.parameters import RTP_SITE

from tracelens.analysis.answers import Rows, run_query
from tracelens.analysis.selection import Selection, define_strata, keep_small_tables
from tracelens.analysis.session import Question
from tracelens.analysis.sweep import SweepEntry, SweepResult, sweep
from tracelens.analysis.sweep_trace import source
from tracelens.cli import run
from tracelens.lake.connection import connect, define_grouping

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
    "vllm-site": Site(SAMPLES / "vllm-site", {"k3": "k3", "k7": "k7"}, {3: 0.04}),
    "rtp-site": Site(SAMPLES / "rtp-site", {"k2": "k2", "k7": "k7", "baseline": "baseline"}, {2: 0.04}),
    "smol": Site(REAL / "llamacpp" / "runs", {f"k{k}": f"smol2-q4-k{k}" for k in (1, 2, 7)},
                 {1: 0.01, 2: 0.01}),
    "tiny": Site(REAL / "llamacpp" / "runs", {f"k{k}": f"tiny-copy-k{k}" for k in (3, 7)}, {3: 0.001}),
    "vllm": Site(REAL / "vllm" / "runs", {"k3": "B-trunc2-k3-fix", "k7": "B-trunc2-k7"}, {3: 0.021}),
}  # fmt: skip


def ingest(name: str, lake: Path) -> None:
    """The runs of a site, as site/run; the one without speculation as a baseline."""
    site = SITES[name]
    for told, folder in site.runs.items():
        role = ["--role", "baseline"] if told == "baseline" else []
        assert run(["ingest", str(site.folder / folder), "--run", f"{name}/{told}", "--lake", str(lake), *role]) == 0


pytestmark = pytest.mark.long(first=False)  # a lake of five sites


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Rows]:
    """What the replay needs of every run, from one lake with all sites that are here."""
    lake = tmp_path_factory.mktemp("sites") / "lake"
    for name, site in SITES.items():
        if name != "rtp-site" and site.folder.is_dir():
            ingest(name, lake)
    con = connect(lake, grouped=False)
    keep_small_tables(con)
    define_grouping(con)
    define_strata(con, Selection(("run_id",)))
    found = {query: run_query(con, query) for query in ("alpha", "run_lengths", "replay_domain")}
    con.close()
    return found


@pytest.mark.parametrize("name", [name for name in SITES if name != "rtp-site"])
def test_the_replay_meets_what_ran(answers: Mapping[str, Rows], name: str) -> None:
    site = SITES[name]
    if not site.folder.is_dir():
        pytest.skip("these logs are not here")
    alpha, lengths, domain = answers.values()
    trace = source(lengths[f"{name}/k7",], domain[f"{name}/k7",]).trace
    assert trace is not None
    assert trace.k == 7
    walked = trace.at((7, *site.worst))
    for k, worst in {7: 1e-12, **site.worst}.items():
        replayed = float(walked.split(walked.totals(), k)[0][0])
        assert replayed == pytest.approx(alpha[f"{name}/k{k}",][0]["tau_verified"], rel=worst), k


def test_replay_and_cost_meet_what_ran(tmp_path: Path) -> None:
    ingest("rtp-site", tmp_path / "lake")
    result = sweep(tmp_path / "lake", Question(by=()))
    assert result.total.trace_k == 7
    for k, worst in {7: 1e-12, **SITES["rtp-site"].worst}.items():
        assert abs(of(result, k, "replayed").replay_error or 0.0) <= worst
    check_cost(result)


def of(result: SweepResult, k: int, kind: str) -> SweepEntry:
    return next(e for e in result.total.entries if (e.k, e.source) == (k, kind))


def check_cost(result: SweepResult) -> None:
    """Fitted rounds meet those that ran within 1%; fixed and sloping part of a draft stand as planted."""
    for k in (2, 7):
        ran, replayed = of(result, k, "observed"), of(result, k, "replayed")
        for name in ("draft_ms", "target_ms", "round_ms"):
            assert getattr(replayed, name) == pytest.approx(getattr(ran, name), rel=0.01), (k, name)
        assert replayed.relative_token_time == pytest.approx(ran.relative_token_time, rel=0.04)
        assert abs(replayed.time_error or 1.0) < 0.01
    first, last = (of(result, k, "replayed").draft_ms or 0.0 for k in (2, 7))
    slope = (last - first) / 5
    assert (first - 2 * slope) / slope == pytest.approx(RTP_SITE.draft_fixed / RTP_SITE.draft_token, rel=0.1)
