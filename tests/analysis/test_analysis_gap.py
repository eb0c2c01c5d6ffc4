"""The gap: it closes on every sample, finds what was planted, and says what it cannot tell."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lakes import write_lake

from tracelens.analysis.claim import Claim, parse_claim
from tracelens.analysis.gap import gap
from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.results import GapResult, GapStratum
from tracelens.cli import run
from tracelens.errors import InputError

SAMPLES = Path(__file__).parents[2] / "samples"
DAY = dt.datetime(2026, 11, 1, 10)
CLAIM = parse_claim("alpha=.72,rho=.1,k=5")
CLAIMS = ("alpha=.72,rho=.1,k=5", "alpha=.72,rho=.1,k=5,form=bonus", "alpha=.9,rho=.1,k=5,form=iid,baseline_ms=20",
          "alpha=1.1,rho=0,k=3,form=article_tokens", "alpha=1,rho=3,k=16,form=iid")  # fmt: skip


def rounds(requests: int, seed: int, *, task: str = "code", plain_every: int = 0, **times: Any) -> list[dict[str, Any]]:
    """Rounds of K = 4 with cuts at the end of each request and, every so often, a plain step."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for i in range(requests):
        count = 6 + int(rng.integers(10))
        for j in range(count):
            drafted = 0 if plain_every and j % plain_every == 1 else int(rng.integers(1, 5))
            accepted = int(min(rng.geometric(0.35) - 1, drafted))
            emitted = max(1, accepted) if j == count - 1 else accepted + 1
            found.append(
                {"ts": DAY, "request_id": f"{task}-{i}", "task_type": task, "round_index": j, "drafted": drafted,
                 "accepted": accepted, "emitted": emitted, "num_speculative_tokens": 4, "model": "m", **times}
            )  # fmt: skip
    return found


def speculating(requests: int = 40, seed: int = 1, **more: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed + 100)
    found = rounds(requests, seed, run_id="spec", **more)
    for row in found:
        row["draft_us"] = 2_000 * row["drafted"] + int(rng.integers(200))
        row["target_us"] = 11_000 + 200 * row["drafted"] + int(rng.integers(500))
        # Phases that overlap: the step is shorter than their sum.
        row["step_us"] = row["draft_us"] + row["target_us"] - 900 + int(rng.integers(300))
    return found


def plain(requests: int = 30, step_us: int = 10_000, **more: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [
        {"run_id": "off", "request_id": f"p{i}", "round_index": j, "drafted": 0, "accepted": 0, "emitted": 1,
         "step_us": step_us + int(rng.integers(400)), "model": "m", "ts": DAY, "task_type": "code", **more}
        for i in range(requests) for j in range(5)
    ]  # fmt: skip


RUNS = [{"run_id": "spec", "role": "speculative"}, {"run_id": "off", "role": "baseline"}]


def every(found: GapResult) -> tuple[GapStratum, ...]:
    return (*found.strata, found.total)


def assert_closes(stratum: GapStratum) -> None:
    assert stratum.speedup_observed is not None
    assert stratum.token_ms is not None
    assert stratum.token_claimed_ms is not None
    ratio = stratum.speedup_observed / stratum.speedup_claimed
    assert math.prod(t.factor for t in stratum.terms) == pytest.approx(ratio, rel=1e-9)
    points = math.fsum(t.points for t in stratum.terms if t.points is not None)
    assert points == pytest.approx(stratum.speedup_observed - stratum.speedup_claimed, abs=1e-9)
    ms = math.fsum(t.ms_per_token for t in stratum.terms if t.ms_per_token is not None) + stratum.baseline.ms_per_token
    assert ms == pytest.approx(stratum.token_ms - stratum.token_claimed_ms, abs=1e-9)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged samples of three engines in one lake, each with its baseline."""
    lake = tmp_path_factory.mktemp("site")
    for name, arms in (("vllm-site", ("k5", "k2", "baseline")), ("rtp-site", ("k5", "baseline"))):
        for arm in arms:
            role = "baseline" if arm == "baseline" else "speculative"
            logs = [str(p) for p in (SAMPLES / name / arm).iterdir() if p.name != "truth.json"]
            labels = SAMPLES / name / "labels.csv"
            more = ["--labels", str(labels)] if labels.is_file() else []
            assert run(["ingest", *logs, "--lake", str(lake), "--run", f"{name[:3]}-{arm}", "--role", role, *more]) == 0
    assert run(["ingest", str(SAMPLES / "canonical"), "--lake", str(lake)]) == 0
    return lake


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.long
def test_it_closes_on_every_sample(site: Path, claim: str) -> None:
    found = gap(site, ReportOptions(by=("engine", "task_type"), claim=parse_claim(claim)))
    assert len(found.strata) >= 12
    for stratum in every(found):
        assert_closes(stratum)
        assert stratum.verdict.startswith("planned ")


def test_it_agrees_with_the_report(site: Path) -> None:
    options = ReportOptions(by=("task_type",), runs=("rtp-k5",), baseline="rtp-baseline", claim=CLAIM)
    told, found = report(site, options), gap(site, options)
    for row, stratum in zip((*told.strata, told.total), every(found), strict=True):
        for name in ("", "_low", "_high"):
            assert getattr(stratum, f"speedup_observed{name}") == pytest.approx(row.figures[f"speedup_observed{name}"])
        terms = {t.name: t for t in stratum.terms}
        assert terms["rho_drift"].observed == pytest.approx(row.figures["rho"])
        assert terms["verify_inflation"].observed == pytest.approx(row.figures["verify_inflation"])
        assert terms["alpha_shift"].observed == pytest.approx(row.figures["draft_accept_ratio"])
        parts = sum(row.figures[n] for n in ("round_cost",)) - 1.5
        assert math.log(1.5 / (1.5 + parts)) == pytest.approx(
            math.fsum(math.log(terms[n].factor) for n in ("verify_inflation", "rho_drift", "sampling"))
        )


def test_the_articles_story(site: Path) -> None:
    """Planned 2.40x, observed 1.6x: the verdict names draft cost and acceptance with what they were and became."""
    found = gap(site, ReportOptions(by=(), runs=("rtp-k5",), baseline="rtp-baseline", claim=CLAIM))
    assert "planned 2.40x, observed 1.6" in found.total.verdict
    assert "draft cost ρ 0.10 → 0.27 takes" in found.total.verdict
    assert "acceptance α 0.72 → 0.64 takes" in found.total.verdict
    assert "KV repair after rollbacks" in found.total.verdict  # not logged, and named


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.long
def test_plain_rounds_cuts_and_phases_that_overlap(tmp_path: Path, claim: str) -> None:
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*speculating(plain_every=4), *plain()])
    (stratum,) = gap(lake, ReportOptions(claim=parse_claim(claim))).strata
    assert_closes(stratum)
    factors = {t.name: t.factor for t in stratum.terms}
    assert factors["terminal_cuts"] < 1
    assert factors["plain_steps"] < 1
    assert factors["unattributed"] > 1  # the phases overlap
    assert stratum.speedup_observed_basis == "step"
    assert all(t.points_low is not None and t.points_low <= (t.points or 0) <= (t.points_high or 0)
               for t in stratum.terms if t.name != "convention")  # fmt: skip


def test_a_claim_of_another_baseline_has_one_more_term(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*speculating(), *plain()])
    claims = [dataclasses.replace(CLAIM, baseline_ms=ms) for ms in (None, 12.0)]
    without, planned = (gap(lake, ReportOptions(by=(), claim=claim)).total for claim in claims)
    assert_closes(without)
    assert_closes(planned)
    assert (without.baseline.factor, without.baseline.ms_per_token, without.baseline.measured) == (1.0, 0.0, False)
    assert planned.baseline_ms is not None
    assert planned.baseline.factor == pytest.approx(12.0 / planned.baseline_ms)
    assert planned.token_claimed_ms == pytest.approx(12.0 / 2.4)
    assert [t.factor for t in planned.terms] == pytest.approx([t.factor for t in without.terms])


def test_no_times_leaves_the_yield(tmp_path: Path) -> None:
    """vLLM's log lines: acceptance by interval, no time of a token."""
    found = gap(write_lake(tmp_path, rounds=rounds(40, 1)), ReportOptions(by=(), claim=CLAIM))
    assert found.total.speedup_observed is None
    assert {t.name for t in found.total.terms} == {
        "convention", "alpha_shift", "k_shift", "terminal_cuts", "plain_steps"}  # fmt: skip
    assert all(t.points is None and t.ms_per_token is None and t.factor > 0 for t in found.total.terms)
    assert all(t.factor_low is not None for t in found.total.terms)
    assert "cannot be told" in found.total.verdict
    assert set(found.total.unmeasured) == {"verify_inflation", "rho_drift", "sampling", "rollback", "repack"}
    assert any("step_ms" in m.figure for m in found.coverage)


def test_only_plain_rounds(tmp_path: Path) -> None:
    """A stratum that never drafted: that is the cause, and no other one is made up."""
    rows = [{**row, "drafted": 0, "accepted": 0, "emitted": 1} for row in rounds(40, 1, run_id="spec", step_us=10_500)]
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*rows, *plain()])
    (stratum,) = gap(lake, ReportOptions(claim=CLAIM)).strata
    assert_closes(stratum)
    assert {t.name for t in stratum.terms} == {"convention", "plain_steps", "unattributed"}
    assert "no round drafted a token" in stratum.verdict


def test_rounds_that_nobody_counted_are_not_none(tmp_path: Path) -> None:
    """Windows that count drafts and plain steps, and no rounds: unknown is not 0, so acceptance keeps its term."""
    windows = [{"run_id": "spec", "ts_end": DAY, "source_line": i, "plain_steps": 10, "drafted": 300, "accepted": 160}
               for i in range(30)]  # fmt: skip
    found = gap(write_lake(tmp_path, runs=RUNS, windows=windows), ReportOptions(by=(), claim=CLAIM)).total
    assert "alpha_shift" in {t.name for t in found.terms}
    assert "no round drafted" not in found.verdict


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*speculating(1), *plain()])
    (stratum,) = gap(lake, ReportOptions(claim=CLAIM)).strata
    assert_closes(stratum)
    assert all(t.points_low is None for t in stratum.terms)


def test_a_baseline_of_another_model_prices_nothing(tmp_path: Path) -> None:
    """Nothing but the engine's own verify pass is left to compare with, and it says so."""
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*speculating(), *plain(model="other")])
    found = gap(lake, ReportOptions(claim=CLAIM))
    assert found.total.baseline_basis in ("verify_extrapolated", "verify_pass")
    assert any(w.code.startswith("baseline_verify") for w in found.warnings)
    assert_closes(found.total)


def test_a_baseline_of_too_little_traffic_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Half of the rounds are of a model that has no baseline: less than four fifths match."""
    bare = {"draft_us": None, "target_us": None, "step_us": 14_000}
    other = [{**row, **bare, "model": "n", "request_id": f"n-{row['request_id']}"} for row in speculating(seed=3)]
    own = [{**row, **bare} for row in speculating()]
    found = gap(write_lake(tmp_path, runs=RUNS, rounds=[*own, *other, *plain()]), ReportOptions(claim=CLAIM))
    assert found.total.speedup_observed is None
    assert "below 80% nothing is compared" in found.total.verdict


def test_no_baseline_at_all_says_what_to_ingest(tmp_path: Path) -> None:
    rows = [{**row, "draft_us": None, "target_us": None} for row in speculating()]
    found = gap(write_lake(tmp_path, runs=RUNS, rounds=rows), ReportOptions(claim=CLAIM))
    assert found.total.speedup_observed is None
    assert "--role baseline" in found.total.verdict


def test_a_named_baseline_of_another_model_is_not_taken_in_silence(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*speculating(), *plain(model="other")])
    for named in (None, "off"):
        told = {w.code: w.text for w in gap(lake, ReportOptions(claim=CLAIM, baseline=named)).warnings}
        assert "of vllm other and m has none of its own" in told["baseline_other_model"]
    own = write_lake(tmp_path / "own", runs=RUNS, rounds=[*speculating(), *plain()])
    assert "baseline_other_model" not in {w.code for w in gap(own, ReportOptions(claim=CLAIM)).warnings}


def test_a_k_that_never_drafted_is_said(tmp_path: Path) -> None:
    rows = [{**row, "drafted": 0, "accepted": 0, "emitted": 1} for row in rounds(40, 1, run_id="spec", step_us=10_500)]
    found = report(write_lake(tmp_path, runs=RUNS, rounds=[*rows, *plain()]), ReportOptions())
    assert "never_drafted" in {w.code for w in found.warnings}
    because = {name: m.because for m in found.coverage for name in m.figure.split(", ")}
    assert because["draft_accept_ratio"] == "no round drafted a token"


def test_several_k_against_one_claim_are_said(tmp_path: Path) -> None:
    rows = [{**row, "num_speculative_tokens": 2 + i % 2} for i, row in enumerate(speculating())]
    found = gap(write_lake(tmp_path, runs=RUNS, rounds=[*rows, *plain()]), ReportOptions(claim=CLAIM))
    assert found.warnings[0].code == "k_mixed"


@pytest.mark.long
def test_everything_accepted_at_the_border_of_every_form(tmp_path: Path) -> None:
    """alpha = p = 1: nothing lies above, and the interval comes from below."""
    rows = [{**row, "accepted": row["drafted"], "emitted": row["drafted"] + 1} for row in speculating()]
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*rows, *plain()])
    for claim in CLAIMS:
        assert_closes(gap(lake, ReportOptions(by=(), claim=parse_claim(claim))).total)


def test_tpot_alone_tells_no_cost_of_a_round(tmp_path: Path) -> None:
    """Without counts nobody knows how many tokens a round gave, so nobody knows what it cost."""
    requests = [
        {"run_id": name, "request_id": f"{name}{i}", "ts_end": DAY, "output_tokens": 41, "decode_us": 40 * us + i}
        for name, us in (("spec", 6_000), ("off", 9_000)) for i in range(40)
    ]  # fmt: skip
    found = gap(write_lake(tmp_path, runs=RUNS, requests=requests), ReportOptions(by=(), claim=CLAIM)).total
    assert_closes(found)
    rest = next(t for t in found.terms if t.name == "unattributed")
    assert (rest.planned, rest.observed) == (None, None)
    assert "acceptance and the cost of a round together" in found.verdict
    assert len(found.unmeasured) == len(set(found.unmeasured))


def test_one_absurd_time_leaves_floats(tmp_path: Path) -> None:
    rows = speculating(3)
    rows[0]["draft_us"] = 3_600_000_000
    found = gap(write_lake(tmp_path, runs=RUNS, rounds=[*rows, *plain()]), ReportOptions(by=(), claim=CLAIM)).total
    values = [getattr(t, name) for t in found.terms for name in ("factor", "factor_low", "factor_high", "points")]
    assert all(value is None or math.isfinite(value) for value in values)


@pytest.mark.parametrize("claim", ["alpha=.5,rho=1e308,k=5", "alpha=1e-320,rho=.1,k=5", "alpha=.5,rho=.1,k=100000",
                                   "alpha=.5,rho=.1,k=5,baseline_ms=1e308"])  # fmt: skip
def test_a_claim_that_nobody_makes_is_refused(claim: str) -> None:
    with pytest.raises(InputError, match="claim: "):
        parse_claim(claim)


@pytest.mark.parametrize("where", ["false) or (true", "false] or [true", "true) --", "1=1; select 1"])
def test_where_cannot_leave_its_brackets(tmp_path: Path, where: str) -> None:
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*speculating(2), *plain(2)])
    with pytest.raises(InputError, match="--where"):
        report(lake, ReportOptions(by=(), runs=("spec",), where=where))


def test_an_empty_selection_and_no_claim(tmp_path: Path) -> None:
    lake = write_lake(tmp_path)
    found = gap(lake, ReportOptions(claim=CLAIM))
    assert found.total.speedup_observed is None
    assert [w.code for w in found.warnings] == ["nothing_selected"]
    with pytest.raises(InputError, match="--claim"):
        gap(lake, ReportOptions())


def test_two_baseline_runs_show_their_spread(tmp_path: Path) -> None:
    """Control noise: 10.2 against 11.2 ms, so a tenth of any speedup may be nothing."""
    other = [{**row, "run_id": "off-2"} for row in plain(step_us=11_000)]
    runs = [*RUNS, {"run_id": "off-2", "role": "baseline"}]
    lake = write_lake(tmp_path, runs=runs, rounds=[*speculating(), *plain(), *other])
    for named in (None, "off"):
        figures = gap(lake, ReportOptions(claim=CLAIM, baseline=named)).total.figures
        assert figures["control_runs"] == 2
        assert figures["control_spread"] == pytest.approx(11.2 / 10.2 - 1, abs=0.005)
    alone = write_lake(tmp_path / "one", runs=RUNS, rounds=[*speculating(), *plain()])
    assert report(alone, ReportOptions(claim=CLAIM)).total.figures["control_spread"] is None


@pytest.mark.parametrize(("form", "alpha"), [("article", 0.0), ("bonus", 1.2), ("iid", -0.1), ("article_tokens", 1.3)])
def test_a_claim_out_of_its_range_is_refused(form: str, alpha: float) -> None:
    with pytest.raises(InputError, match="alpha must lie above 0"):
        Claim(alpha, 0.1, 5, form)
