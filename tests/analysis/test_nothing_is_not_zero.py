"""NULL is "not measured": lakes that lack a whole kind of record; strata and parts that only some queries know."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from lakes import write_lake

from tracelens.analysis.report import ReportOptions, report

DAY = dt.datetime(2026, 11, 1, 10)
ALL = ReportOptions(by=())
WINDOW = {"surface": "vllm.v1_line", "rounds": 10, "drafted": 40, "accepted": 12, "accepted_per_pos": [6, 3, 2, 1]}
TPOT = {"surface": "vllm.response", "output_tokens": 11, "decode_us": 170_000}
ROUND = {"drafted": 4, "accepted": 1, "emitted": 2, "step_us": 40_000, "draft_us": 8000, "target_us": 20_000}
BY_REQUEST = ("requests", "tau_request_mean", "n_eff", "top_share", "near_k_request_share", "rollback_request_share")
COUNTS = ("requests", "rounds", "plain_steps", "drafted", "accepted", "emitted", "tpot_requests", "output_tokens")


def figures(lake: Path, options: ReportOptions = ALL) -> dict[str, Any]:
    return dict(report(lake, options).total.figures)


def test_windows_know_no_requests(tmp_path: Path) -> None:
    found = figures(write_lake(tmp_path, windows=[WINDOW, WINDOW]))
    assert {found[name] for name in BY_REQUEST} == {None}
    assert (found["rounds"], found["drafted"], found["accepted"], found["grain"]) == (20, 80, 24, "window")
    assert {found[name] for name in ("plain_steps", "emitted", "tpot_requests", "output_tokens")} == {None}


def test_rounds_without_ids_know_no_requests(tmp_path: Path) -> None:
    rows = [{**ROUND, "request_id": None, "ts": DAY + dt.timedelta(minutes=i)} for i in range(5)]
    found = figures(write_lake(tmp_path, rounds=rows))
    assert {found[name] for name in BY_REQUEST} == {None}
    assert (found["rounds"], found["plain_steps"]) == (5, 0)
    assert found["draft_accept_ratio_low"] is not None


def test_requests_with_times_alone_count_no_rounds(tmp_path: Path) -> None:
    found = figures(write_lake(tmp_path, requests=[{**TPOT, "request_id": f"r{i}"} for i in range(3)]))
    assert (found["tpot_requests"], found["output_tokens"], found["tpot_ms"]) == (3, 33, 17.0)
    assert {found[n] for n in ("rounds", "plain_steps", "drafted", "accepted", "emitted", "requests")} == {None}


def test_a_true_zero_stays_zero(tmp_path: Path) -> None:
    found = figures(write_lake(tmp_path, rounds=[{**ROUND, "request_id": "r", "accepted": 0, "emitted": 1}] * 2))
    assert (found["accepted"], found["draft_accept_ratio"], found["plain_steps"], found["requests"]) == (0, 0.0, 0, 1)


@pytest.mark.parametrize("baseline_only", [False, True])
def test_an_empty_lake_and_one_of_a_baseline_know_nothing(tmp_path: Path, baseline_only: bool) -> None:
    plain = [{"run_id": "plain", "drafted": 0, "accepted": 0, "emitted": 1, "step_us": 16_000}] if baseline_only else []
    runs = [{"run_id": "plain", "role": "baseline"}] if baseline_only else []
    found = report(write_lake(tmp_path, rounds=plain, runs=runs), ReportOptions())
    assert found.strata == ()
    known = {name for name, value in found.total.figures.items() if value is not None}
    assert known <= {"baseline_ms", "baseline_basis", "baseline_tpot_ms"}
    assert {found.total.figures[name] for name in COUNTS} == {None}


def test_no_stratum_is_lost(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        windows=[{**WINDOW, "task_type": "interval", "run_id": "a"}],
        requests=[{**TPOT, "request_id": "r", "task_type": "timed", "run_id": "b"}],
        rounds=[{**ROUND, "task_type": "round", "run_id": "c"}, {**ROUND, "run_id": "d"}],
    )
    for by in (("task_type",), ("run_id",), ("task_type", "grain")):
        assert len(report(lake, ReportOptions(by=by)).strata) == 4, by
    tasks = [s.key["task_type"] for s in report(lake).strata]
    assert tasks == ["interval", "round", "timed", None]


def two_parts(tmp_path: Path, *, rounds_of_b: int) -> Path:
    """Engine a: 10 rounds of 40 ms, plain step 20 ms. Engine b: rounds of 300 ms and no baseline, no verify time."""
    speculative = [{**ROUND, "engine": "a", "model": "m", "run_id": "a", "request_id": f"a{i}"} for i in range(10)]
    other = {"drafted": 4, "accepted": 4, "emitted": 5, "step_us": 300_000, "engine": "b", "model": "m", "run_id": "b"}
    plain = {"engine": "a", "model": "m", "run_id": "p", "drafted": 0, "accepted": 0, "emitted": 1, "step_us": 20_000}
    return write_lake(
        tmp_path,
        rounds=[*speculative, *({**other, "request_id": f"b{i}"} for i in range(rounds_of_b)), plain, plain],
        runs=[{"run_id": "p", "role": "baseline"}],
    )


def test_what_has_no_baseline_of_its_own_is_not_compared(tmp_path: Path) -> None:
    found = report(two_parts(tmp_path, rounds_of_b=2), ALL)
    total = found.total.figures
    assert total["baseline_ms"] == 20.0
    assert total["baseline_matched_share"] == pytest.approx(10 / 12)
    assert total["relative_token_time"] == pytest.approx(40 / 20 / 2)
    assert total["round_cost"] == pytest.approx(2.0)
    assert total["step_ms"] == pytest.approx((10 * 40 + 2 * 300) / 12)
    assert "baseline_partial" in {w.code for w in found.warnings}


def test_below_the_stated_share_nothing_is_compared(tmp_path: Path) -> None:
    lake = two_parts(tmp_path, rounds_of_b=5)
    found = report(lake, ReportOptions(by=("engine",)))
    assert found.total.figures["relative_token_time"] is None
    assert found.total.figures["baseline_matched_share"] == pytest.approx(10 / 15)
    missing = {name: m for m in found.coverage for name in m.figure.split(", ")}
    assert "baseline of their own engine and model" in missing["relative_token_time"].because
    assert [s.figures["relative_token_time"] for s in found.strata] == [pytest.approx(1.0), None]


def test_engines_meet_their_own_baselines(tmp_path: Path) -> None:
    plain = {"drafted": 0, "accepted": 0, "emitted": 1, "model": "m"}
    rows = []
    for engine, step, base in (("a", 40_000, 20_000), ("b", 300_000, 100_000)):
        rows += [{**ROUND, "engine": engine, "model": "m", "run_id": engine, "step_us": step} for _ in range(3)]
        rows += [{**plain, "engine": engine, "run_id": f"p{engine}", "step_us": base}]
    runs = [{"run_id": run, "role": "baseline"} for run in ("pa", "pb")]
    found = report(write_lake(tmp_path, rounds=rows, runs=runs), ReportOptions(by=("engine",)))
    assert [s.figures["round_cost"] for s in found.strata] == [2.0, 3.0]
    assert found.total.figures["round_cost"] == pytest.approx(340 / 120)
    assert found.total.figures["baseline_basis"] == "run_step"
    assert "mixed_models" in {w.code for w in found.warnings}
    named = report(tmp_path, ReportOptions(by=("engine",), baseline="pa"))
    assert [s.figures["baseline_basis"] for s in named.strata] == ["run_step", "verify_pass"]


@pytest.mark.long
def test_warnings_speak_of_the_selection(tmp_path: Path) -> None:
    counted = [{"request_id": "r1", "run_id": "a", "drafted": 4, "accepted": a, "emitted": a + 1} for a in (4, 2)]
    request = {"request_id": "r1", "run_id": "a", "surface": "vllm.response", "rounds": 2, "drafted": 8, "accepted": 6}
    noisy = [{**TPOT, "request_id": f"p{i}", "run_id": f"p{i}", "decode_us": 170_000 * (i + 1), "engine": "sglang"}
             for i in range(2)]  # fmt: skip
    alone = {"request_id": "r2", "run_id": "b", "drafted": 4, "accepted": 1, "emitted": 2}
    lake = write_lake(
        tmp_path,
        rounds=[*counted, alone, {**alone, "run_id": "c", "forced_acceptance": True}],
        requests=[request, *noisy],
        windows=[{"run_id": "d", "rounds": 2, "drafted": 8, "accepted": 4, "v0_matched": 5}],
        runs=[{"run_id": f"p{i}", "role": "baseline"} for i in range(2)],
        rejects=[{"source_id": "elsewhere", "reason": "cut"}],
    )
    every = report(lake, ALL).warnings
    assert {"several_grains", "forced_acceptance", "v0_rates", "rejects"} <= {w.code for w in every}
    assert "baseline_noise" not in {w.code for w in every}, "another engine's baseline"
    text = next(w.text for w in every if w.code == "several_grains")
    assert text == (
        "run a counts its rounds in two records: test.rows (8 drafted tokens) was used, "
        "vllm.response (8 drafted tokens) was not added to it"
    )
    codes = {w.code for w in report(lake, ReportOptions(by=(), runs=("b",))).warnings}
    assert codes <= {"few_requests"}
    codes = {w.code for w in report(lake, ReportOptions(by=(), where="run_id = 'c'")).warnings}
    assert "forced_acceptance" in codes
    assert not codes & {"several_grains", "v0_rates", "rejects"}


def test_a_class_that_nothing_names_is_said(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, windows=[WINDOW])
    missing = {name: m for m in report(lake, ReportOptions(by=("temperature_bucket",))).coverage
               for name in m.figure.split(", ")}  # fmt: skip
    assert "--enable-log-requests" in missing["temperature_bucket"].switch_on


def test_steps_without_a_draft_that_nobody_counted(tmp_path: Path) -> None:
    """N-gram finds nothing in most steps, and interval lines do not count those: 3 tokens a round is no speed."""
    found = report(write_lake(tmp_path / "ngram", windows=[{**WINDOW, "method": "ngram"}]), ALL)
    assert (found.total.figures["tau_verified"], found.total.figures["tau_committed"]) == (2.2, None)
    missing = {name: m for m in found.coverage for name in m.figure.split(", ")}
    assert "steps without a draft" in missing["tau_committed"].because
    known = figures(write_lake(tmp_path / "known", windows=[{**WINDOW, "method": "ngram", "plain_steps": 30}]))
    assert known["tau_committed"] == pytest.approx(52 / 40)
    assert figures(write_lake(tmp_path / "eagle", windows=[{**WINDOW, "method": "eagle"}]))["tau_committed"] == 2.2
