"""The report: planted truth, the articles' worked examples, grains, filters, coverage and warnings."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lakes import write_lake

from tracelens.analysis.claim import parse_claim
from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.results import Missing, Report
from tracelens.errors import InputError

DAY = dt.datetime(2026, 11, 1, 10)
ALL = ReportOptions(by=())


def planted(
    p: float, seed: int, *, requests: int = 40, k: int = 5, task: str = "code", spread: float = 0.0
) -> list[dict[str, Any]]:
    """Rounds of requests of very different lengths; acceptance i.i.d. with p, or around p by request."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(requests):
        own = float(np.clip(p + spread * rng.normal(), 0.01, 0.99))
        for j, a in enumerate(np.minimum(rng.geometric(1 - own, 8 + rng.geometric(1 / 12)) - 1, k)):
            found.append(
                {"ts": DAY, "request_id": f"{task}-{i:04}", "task_type": task, "temperature": 0.0, "top_p": 1.0,
                 "round_index": j, "drafted": k, "accepted": int(a), "emitted": int(a) + 1}
            )  # fmt: skip
    return found


def gaps(found: Report) -> dict[str, Missing]:
    """What is missing, by figure: figures with one remedy stand together."""
    return {name: m for m in found.coverage for name in m.figure.split(", ")}


def total(lake: Path, options: ReportOptions = ALL) -> dict[str, Any]:
    return dict(report(lake, options).total.figures)


@pytest.mark.parametrize(("accepted", "token_ms", "speedup"), [(2, 17.667, 1.019), (3, 13.25, 1.358)])
def test_the_rtp_llm_example(tmp_path: Path, accepted: int, token_ms: float, speedup: float) -> None:
    """7 ms a draft token, 18 ms for the target, K = 5: 53 ms a round, 3 or 4 tokens with the target's own."""
    row = {"engine": "rtp-llm", "drafted": 5, "accepted": accepted, "emitted": accepted + 1, "draft_us": 35_000,
           "target_us": 18_000, "step_us": 53_000, "num_speculative_tokens": 5}  # fmt: skip
    found = total(write_lake(tmp_path, rounds=[{**row, "request_id": f"r{i}"} for i in range(4)]))
    assert found["step_ms"] == 53.0
    assert found["step_token_ms"] == pytest.approx(token_ms, abs=5e-4)
    assert found["speedup_step"] == pytest.approx(speedup, abs=5e-4)
    assert found["rho_verify"] == pytest.approx(7 / 18)
    assert (found["baseline_ms"], found["baseline_basis"]) == (18.0, "verify_pass")
    assert found["speedup_observed"] == found["speedup_step"]
    assert found["speedup_observed_basis"] == "step"


def article(tmp_path: Path, alpha: float, k: int, rho: float) -> dict[str, Any]:
    rows = []
    for i in range(10):
        rows += [
            {"request_id": f"r{i}-{j}", "drafted": k, "accepted": k if j < alpha * 10 else 0, "target_us": 20_000,
             "draft_us": round(rho * 20_000 * k), "num_speculative_tokens": k} for j in range(10)
        ]  # fmt: skip
    return total(write_lake(tmp_path, rounds=rows))


@pytest.mark.parametrize(
    ("alpha", "k", "time", "speed"), [(0.6, 1, 2.0, 0.5), (0.6, 4, 0.75, 4 / 3), (0.4, 4, 1.125, 8 / 9)]
)
def test_the_articles_worked_examples(tmp_path: Path, alpha: float, k: int, time: float, speed: float) -> None:
    found = article(tmp_path, alpha, k, 0.2)
    assert found["rho"] == pytest.approx(0.2)
    assert found["draft_accept_ratio"] == pytest.approx(alpha)
    assert found["relative_token_time_article"] == pytest.approx(time)
    assert found["speedup_article"] == pytest.approx(speed)
    assert found["speedup_with_bonus"] == pytest.approx((1 + alpha * k) / (1 + 0.2 * k))


def test_planted_iid_truth(tmp_path: Path) -> None:
    rows = planted(0.8, 1, requests=150) + planted(0.5, 2, requests=150, task="chat")
    found = report(write_lake(tmp_path, rounds=rows))
    assert [s.key for s in found.strata] == [{"task_type": "chat"}, {"task_type": "code"}]
    for stratum, p in zip(found.strata, (0.5, 0.8), strict=True):
        figures = stratum.figures
        assert figures["token_accept_prob_low"] <= p <= figures["token_accept_prob_high"]
        assert figures["hazard"] == pytest.approx([p] * 5, abs=0.08)
        assert figures["survival"][0] == 1.0
        assert len(figures["survival"]) == 6
        assert all(
            low <= s <= high
            for low, s, high in zip(figures["survival_low"], figures["survival"], figures["survival_high"], strict=True)
        )
        tau = (1 - p**6) / (1 - p)
        assert figures["tau_verified_low"] <= tau <= figures["tau_verified_high"]
        assert figures["near_k_excess"] == pytest.approx(0, abs=0.03)
        assert figures["tau_verified"] == pytest.approx(1 + sum(figures["survival"][1:]))
        assert sum(figures["rollback_len"][5]) == figures["rounds"]
    assert found.total.figures["drafted"] == sum(s.figures["drafted"] for s in found.strata)


@pytest.mark.long
def test_intervals_hold_the_truth_end_to_end(tmp_path: Path) -> None:
    """200 small runs in one lake, a stratum each: every one has its own interval of the same truth."""
    rows = []
    for seed in range(200):
        rows += [{**row, "run_id": f"run{seed}"} for row in planted(0.6, seed, requests=30, spread=0.1)]
    found = report(write_lake(tmp_path, rounds=rows), ReportOptions(by=("run_id",)))
    truths = total_truth()
    hits = [s.figures["draft_accept_ratio_low"] <= truths <= s.figures["draft_accept_ratio_high"] for s in found.strata]
    assert len(hits) == 200
    assert 0.92 <= np.mean(hits) <= 0.98


def total_truth() -> float:
    rng = np.random.default_rng(99)
    own = np.clip(0.6 + 0.1 * rng.normal(size=200_000), 0.01, 0.99)
    return float(np.mean((own - own**6) / (1 - own)) / 5)


MIXED = {
    "rounds": [{"request_id": "r1", "drafted": 4, "accepted": a, "emitted": a + 1} for a in (4, 2)],
    "requests": [
        {"request_id": "r1", "surface": "vllm.response", "rounds": 2, "drafted": 8, "accepted": 6, "emitted": 8}
    ],
    "windows": [{"surface": "vllm.v1_line", "rounds": 2, "drafted": 8, "accepted": 6}],
}


def test_grains_of_one_run_never_add(tmp_path: Path) -> None:
    found = report(write_lake(tmp_path, **MIXED), ALL)
    figures = found.total.figures
    assert [figures[n] for n in ("requests", "rounds", "drafted", "accepted", "emitted")] == [1, 2, 8, 6, 8]
    assert figures["grain"] == "round"
    assert "several_grains" in {w.code for w in found.warnings}


def test_plain_steps_count_for_the_speed_and_not_for_acceptance(tmp_path: Path) -> None:
    rows = [{"request_id": "r", "drafted": d, "accepted": a, "emitted": e} for d, a, e in
            ((4, 4, 3), (4, 1, 2), (0, 0, 1))]  # fmt: skip
    found = total(write_lake(tmp_path, rounds=rows))
    assert found["tau_verified"] == 3.5
    assert found["tau_drafted"] == 2.5
    assert found["terminal_overcount"] == 1.0
    assert found["tau_committed"] == 2.0
    assert found["tau_committed_basis"] == "emitted"
    assert (found["rounds"], found["plain_steps"]) == (2, 1)
    assert found["mean_drafted"] == pytest.approx(8 / 3)


def test_round_cost_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    rows = [
        {"request_id": f"r{i}", "drafted": 4, "accepted": i % 5, "emitted": i % 5 + 1, "draft_us": 20_000 + 10 * i,
         "target_us": 22_000, "sample_us": 500, "step_us": 45_000 + 20 * i} for i in range(40)
    ]  # fmt: skip
    found = total(write_lake(tmp_path, rounds=rows), ReportOptions(by=(), baseline=20.0))
    parts = found["verify_inflation"] + found["rho"] * found["mean_drafted"] + found["overhead"]
    assert found["round_cost"] == pytest.approx(parts, rel=1e-12)
    assert found["rho_round"] == pytest.approx(found["rho"] * found["mean_drafted"], rel=1e-12)
    assert found["relative_token_time"] == pytest.approx(found["round_cost"] / found["tau_committed"])
    assert found["speedup_step"] == pytest.approx(1 / found["relative_token_time"])
    assert found["baseline_basis"] == "value"
    assert found["unattributed_ms"] == pytest.approx(found["overhead"] * 20.0 - 0.5)
    for name in (
        "rho",
        "rho_verify",
        "rho_round",
        "verify_inflation",
        "round_cost",
        "relative_token_time",
        "speedup_step",
    ):
        assert found[f"{name}_low"] <= found[name] <= found[f"{name}_high"], name


def test_without_step_times_the_relative_time_is_a_lower_bound(tmp_path: Path) -> None:
    rows = [{"request_id": f"r{i}", "drafted": 4, "accepted": 2, "emitted": 3, "draft_us": 8_000, "target_us": 20_000}
            for i in range(4)]  # fmt: skip
    found = total(write_lake(tmp_path, rounds=rows))
    assert found["relative_token_time"] == pytest.approx(28 / 20 / 3)
    assert found["relative_token_time_basis"] == "lower_bound"
    assert found["speedup_step"] is None
    assert found["overhead"] is None


def test_tpot_against_a_baseline_run(tmp_path: Path) -> None:
    requests = [
        {"run_id": run, "request_id": f"{run}{i}", "output_tokens": 101, "decode_us": ms * 100_000 + 1000 * i}
        for run, ms in (("spec", 12), ("plain", 18)) for i in range(20)
    ]  # fmt: skip
    lake = write_lake(tmp_path, requests=requests, runs=[{"run_id": "plain", "role": "baseline"}])
    found = total(lake)
    assert found["tpot_requests"] == 20
    assert found["speedup_tpot"] == pytest.approx(1.5, abs=0.01)
    assert found["speedup_tpot_low"] < found["speedup_tpot"] < found["speedup_tpot_high"]
    assert (found["speedup_observed_basis"], found["baseline_basis"]) == ("tpot", "run_tpot")
    named = total(lake, ReportOptions(by=(), baseline="plain"))
    assert named["speedup_tpot"] == found["speedup_tpot"]


def test_rho_from_a_logged_mean(tmp_path: Path) -> None:
    windows = [
        {"surface": "vllm.v0_line", "rounds": 50, "drafted": 200, "accepted": 90, "emitted": 140, "v0_matched": 120},
        {"surface": "vllm.stage_times", "time_basis": "sample", "steps": 1, "draft_ms_per_token": 3.0,
         "target_us": 24_000},
    ]  # fmt: skip
    found = report(write_lake(tmp_path, windows=windows), ALL)
    assert found.total.figures["rho_verify"] == pytest.approx(0.125)
    assert found.total.figures["draft_cost_basis"] == "logged_mean"
    assert found.total.figures["draft_accept_ratio"] == pytest.approx(0.45)
    assert "v0_rates" in {w.code for w in found.warnings}


def test_claim_and_theory_length(tmp_path: Path) -> None:
    rows = [{"request_id": f"r{i}", "drafted": 2 + i % 3, "accepted": 1} for i in range(6)]
    found = report(write_lake(tmp_path, rounds=rows), ReportOptions(by=(), claim=parse_claim("alpha=.72,rho=.1,k=5")))
    assert found.total.figures["speedup_claimed"] == pytest.approx(2.4)
    assert found.claim is not None
    assert found.claim["k"] == 5
    assert (found.total.figures["theory_length"], found.total.figures["theory_length_basis"]) == (3.0, "mean_drafted")


def test_filters(tmp_path: Path) -> None:
    rows = [
        {"run_id": run, "ts": DAY + dt.timedelta(days=day), "request_id": f"{run}{day}", "drafted": 4, "accepted": day}
        for run in ("a", "b") for day in range(4)
    ]  # fmt: skip
    lake = write_lake(tmp_path, rounds=rows)
    assert total(lake, ReportOptions(by=(), runs=("a",)))["rounds"] == 4
    assert total(lake, ReportOptions(by=(), where="run_id = 'a' or accepted = 3 -- both"))["rounds"] == 5
    since = DAY + dt.timedelta(days=1)
    assert total(lake, ReportOptions(by=(), since=since))["rounds"] == 6
    assert total(lake, ReportOptions(by=(), since=since, until=since + dt.timedelta(days=1)))["rounds"] == 2
    aware = since.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert total(lake, ReportOptions(by=(), since=aware, until=aware + dt.timedelta(hours=1)))["rounds"] is None
    assert total(lake, ReportOptions(by=(), since=aware, until=aware + dt.timedelta(hours=3)))["rounds"] == 2
    by_day = report(lake, ReportOptions(by=("date", "run_id")))
    assert by_day.strata[0].key == {"date": "2026-11-01", "run_id": "a"}
    assert len(by_day.strata) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ReportOptions(by=("taks_type",)), "known columns: task_type"),
        (ReportOptions(by=("accepted; drop view facts",)), "cannot group by"),
        (ReportOptions(where="accepted >"), "no SQL expression"),
        (ReportOptions(where="nothing_such = 1"), "does not fit"),
        (ReportOptions(where="true) union all select 1 from facts where (true"), "one SQL expression"),
        (ReportOptions(where="1) from facts where (true"), "one SQL expression"),
        (ReportOptions(where="true, false"), "does not fit"),
        (ReportOptions(where="true); drop view facts; select (true"), "SQL expression"),
        (ReportOptions(runs=("nope",)), "no run nope"),
        (ReportOptions(baseline="nope"), "no run nope"),
        (ReportOptions(baseline=0.0), "above 0 ms"),
        (ReportOptions(level=1.0), "between 0 and 1"),
        (ReportOptions(near_k_delta=-1), "0 to 65536"),
        (ReportOptions(since=DAY, until=DAY), "not before"),
    ],
)
def test_usage_errors_say_what_to_do(tmp_path: Path, options: ReportOptions, message: str) -> None:
    lake = write_lake(tmp_path, rounds=[{"drafted": 4, "accepted": 1}])
    with pytest.raises(InputError, match=message):
        report(lake, options)


def test_no_lake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no lake"):
        report(tmp_path)


def test_an_empty_lake_gives_an_empty_report(tmp_path: Path) -> None:
    found = report(write_lake(tmp_path))
    assert found.strata == ()
    assert set(gaps(found)) >= {"draft_accept_ratio", "rho", "tpot_ms", "speedup_observed"}


def test_every_null_figure_is_named_with_the_switch_of_its_engine(tmp_path: Path) -> None:
    window = {"surface": "vllm.v1_line", "rounds": 10, "drafted": 40, "accepted": 12, "accepted_per_pos": [6, 3, 2, 1]}
    found = report(write_lake(tmp_path, windows=[window]), ALL)
    missing = gaps(found)
    from tracelens.analysis.coverage import NEEDS

    assert {n for n in NEEDS if found.total.figures[n] is None} == set(missing)
    assert "TRACELENS_RECORD" in missing["rho"].switch_on
    assert "draft" in missing["rho"].because
    assert "per-request-spec-decode-metrics" in missing["n_eff"].switch_on
    assert "--baseline" in missing["baseline_ms"].switch_on
    assert found.total.figures["token_accept_prob"] == pytest.approx(12 / (12 + 9))


def test_a_figure_that_some_strata_lack_is_named(tmp_path: Path) -> None:
    rows = [{"task_type": "a", "drafted": 4, "accepted": 1, "draft_us": 8000, "target_us": 9000},
            {"task_type": "b", "drafted": 4, "accepted": 1}]  # fmt: skip
    found = report(write_lake(tmp_path, rounds=rows))
    missing = gaps(found)
    assert "1 of 2 strata: task_type=b" in missing["rho_verify"].because


def test_forced_acceptance(tmp_path: Path) -> None:
    rows = [{"request_id": f"r{i}", "drafted": 4, "accepted": 4, "forced_acceptance": True} for i in range(3)]
    only = report(write_lake(tmp_path / "only", rounds=rows), ALL)
    assert only.total.figures["rounds"] == 3
    assert "every row" in next(w.text for w in only.warnings if w.code == "forced_acceptance")
    real = [{"request_id": "real", "drafted": 4, "accepted": 1}]
    both = report(write_lake(tmp_path / "both", rounds=rows + real), ALL)
    assert both.total.figures["rounds"] == 1
    assert "left out" in next(w.text for w in both.warnings if w.code == "forced_acceptance")


def test_records_that_contradict_each_other_are_counted_by_column(tmp_path: Path) -> None:
    requests = []
    for i in range(4):
        said = {"request_id": f"cmpl-r{i}-0", "surface": "vllm.request_line", "temperature": 0.7 if i else 0.2}
        gave = {"surface": "vllm.response", "drafted": 8, "accepted": 3, "rounds": 2, "temperature": 0.7}
        requests += [said, {**gave, "request_id": f"cmpl-r{i}", "output_tokens": 6}]
        span = {"surface": "vllm.otel_span", "output_tokens": 6 if i < 2 else 7, "temperature": 0.7}
        requests.append({**span, "request_id": f"cmpl-r{i}-0"})
    told = report(write_lake(tmp_path, requests=requests)).warnings
    one = next(w for w in told if w.code == "conflicting_records")
    assert one.evidence == {"requests": 3, "output_tokens": 2, "temperature": 1}
    assert "output_tokens (2), temperature (1)" in one.text


def test_a_runaway_request_is_named(tmp_path: Path) -> None:
    rows = [{"request_id": "loop", "drafted": 4, "accepted": 4}] * 50 + planted(0.5, 3, requests=5)
    found = report(write_lake(tmp_path, rounds=rows), ALL)
    assert found.total.figures["top_share"] > 0.2
    assert {"runaway_request", "few_requests"} <= {w.code for w in found.warnings}


def test_a_report_is_plain_data(tmp_path: Path) -> None:
    found = report(write_lake(tmp_path, rounds=planted(0.6, 5)), ReportOptions(by=("hour", "task_type")))
    assert found.strata[0].key == {"hour": "2026-11-01T10:00:00Z", "task_type": "code"}
    json.dumps(asdict(found), allow_nan=False)


@pytest.mark.parametrize("by", ["run_id", "task_type"])
def test_a_stratum_has_its_logged_mean_whatever_other_strata_have(tmp_path: Path, by: str) -> None:
    """Times of one run alone say nothing of another run's; in the total the runs with times are looked at."""
    counts = {"rounds": 400, "drafted": 1200, "accepted": 600, "emitted": 1000, "num_speculative_tokens": 3}
    timed = {"draft_us": 3000, "target_us": 15_000, "step_us": 20_000, "time_basis": "mean", "steps": 100}
    windows = [
        *({**counts, **timed, by: "a", "ts_end": DAY + dt.timedelta(minutes=i)} for i in range(4)),
        *({**counts, "draft_ms_per_token": 1.5, "run_id": "b", by: "b", "ts_end": DAY + dt.timedelta(minutes=i)}
          for i in range(4)),
    ]  # fmt: skip
    lake = write_lake(tmp_path, windows=windows)
    found = report(lake, ReportOptions(by=(by,), baseline=14.0))
    rho = {s.key[by]: s.figures["rho"] for s in found.strata}
    assert rho == {"a": pytest.approx(1 / 14), "b": pytest.approx(1.5 / 14)}
    assert found.total.figures["rho"] == pytest.approx(1 / 14)
    alone = report(lake, ReportOptions(by=(), runs=("b",), baseline=14.0)).total.figures
    (other,) = (s.figures for s in found.strata if s.key[by] == "b")
    for name in ("rho", "speedup_article", "draft_ms_per_token", "tau_verified", "draft_accept_ratio"):
        assert other[name] == alone[name]
