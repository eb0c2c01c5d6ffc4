"""Every class of traffic is compared with its own class without speculation."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lakes import Row, write_lake

from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.results import Report
from tracelens.errors import InputError
from tracelens.reporters.markdown import MarkdownReporter
from tracelens.reporters.terminal import TerminalReporter

BASELINE = [{"run_id": "off", "role": "baseline", "model": "m"}, {"run_id": "on", "model": "m"}]
CLASSES = ReportOptions(by=("task_type",))


def requests(run: str, task: str | None, ms: float, count: int, **more: Any) -> Iterable[Row]:
    """Requests of 101 tokens, so 100 times the TPOT, some noise by request."""
    for i in range(count):
        wave = 1 + 0.01 * (i % 5 - 2)
        yield {"run_id": run, "request_id": f"{run}-{task}-{i}", "task_type": task, "output_tokens": 101,
               "decode_us": round(ms * 100_000 * wave), "model": "m", **more}  # fmt: skip


def two_classes(folder: Path, **more: Any) -> Path:
    """Short 10 ms off, 10 ms on; long 40 ms off, 20 ms on; the mixes differ: 1 to 1 off, 1 to 3 on."""
    rows = [*requests("off", "short", 10, 20), *requests("off", "long", 40, 20),
            *requests("on", "short", 10, 10), *requests("on", "long", 20, 30)]  # fmt: skip
    return write_lake(folder, requests=[{**r, **more} for r in rows], runs=BASELINE)


def speedups(found: Report) -> dict[Any, float]:
    return {next(iter(s.key.values())): s.figures["speedup_tpot"] for s in found.strata}


def holds(figures: Mapping[str, Any], value: float) -> bool:
    return bool(figures["speedup_tpot_low"] <= value <= figures["speedup_tpot_high"])


def test_two_classes_meet_their_own_baseline(tmp_path: Path) -> None:
    found = report(two_classes(tmp_path), CLASSES)
    assert speedups(found) == {"short": pytest.approx(1.0), "long": pytest.approx(2.0)}
    for stratum, value in zip(found.strata, (2.0, 1.0), strict=True):
        assert holds(stratum.figures, value)
        assert stratum.figures["speedup_tpot_high"] < value * 1.05
        assert stratum.figures["baseline_tpot_class_share"] == 1.0
    total = found.total.figures
    assert total["baseline_tpot_ms"] == pytest.approx((10 * 10 + 30 * 40) / 40), "the mix of what speculated"
    assert total["tpot_ms"] == pytest.approx((10 * 10 + 30 * 20) / 40)
    assert total["speedup_tpot"] == pytest.approx(1300 / 700)
    assert not {w.code for w in found.warnings} & {"baseline_other_class", "baseline_where"}


@pytest.mark.parametrize("by", [(), ("run_id",), ("model",)])
def test_the_total_does_not_hang_on_the_grouping(tmp_path: Path, by: tuple[str, ...]) -> None:
    found = report(two_classes(tmp_path), ReportOptions(by=by))
    assert found.total.figures["speedup_tpot"] == pytest.approx(1300 / 700)


@pytest.mark.parametrize(("task", "value"), [("short", 1.0), ("long", 2.0)])
@pytest.mark.long
def test_a_filter_on_the_traffic_reaches_the_baseline(tmp_path: Path, task: str, value: float) -> None:
    for by in ((), ("run_id",), ("task_type",)):
        found = report(two_classes(tmp_path), ReportOptions(by=by, where=f"task_type='{task}'"))
        assert found.total.figures["speedup_tpot"] == pytest.approx(value), by
        assert "baseline_where" not in {w.code for w in found.warnings}
    found = report(tmp_path, ReportOptions(by=(), where=f"task_type='{task}' and run_id='on'"))
    assert found.total.figures["speedup_tpot"] == pytest.approx(value), "the class is matched all the same"
    assert "baseline_where" in {w.code for w in found.warnings}


def test_a_class_that_the_baseline_lacks_meets_the_whole(tmp_path: Path) -> None:
    rows = [*requests("off", "short", 10, 20), *requests("off", "long", 40, 20), *requests("on", "short", 10, 10),
            *requests("on", "new", 20, 10)]  # fmt: skip
    found = report(write_lake(tmp_path, requests=rows, runs=BASELINE), CLASSES)
    assert speedups(found) == {"new": pytest.approx(25 / 20), "short": pytest.approx(1.0)}
    assert [s.figures["baseline_tpot_class_share"] for s in found.strata] == [0.0, 1.0]
    assert found.total.figures["baseline_tpot_ms"] == pytest.approx((25 + 10) / 2)
    text = next(w.text for w in found.warnings if w.code == "baseline_other_class")
    assert "50% of the tokens (task_type=new)" in text


def test_a_baseline_without_classes_is_said(tmp_path: Path) -> None:
    rows = [*requests("off", None, 25, 20), *requests("on", "short", 10, 10), *requests("on", "long", 20, 10)]
    found = report(write_lake(tmp_path, requests=rows, runs=BASELINE), CLASSES)
    assert speedups(found) == {"short": pytest.approx(2.5), "long": pytest.approx(1.25)}
    assert "does not hold task_type" in next(w.text for w in found.warnings if w.code == "baseline_class_unknown")


def test_steps_meet_the_steps_of_their_class(tmp_path: Path) -> None:
    rows = []
    for task, off, on, count in (("short", 10, 20, 10), ("long", 40, 60, 30)):
        plain = {"run_id": "off", "drafted": 0, "accepted": 0, "emitted": 1, "step_us": off * 1000}
        spec = {"run_id": "on", "drafted": 4, "accepted": 2, "emitted": 3, "step_us": on * 1000, "draft_us": 4000,
                "target_us": 15_000}  # fmt: skip
        for i in range(20):
            rows.append({**plain, "task_type": task, "request_id": f"off-{task}-{i}", "model": "m"})
        for i in range(count):
            rows.append({**spec, "task_type": task, "request_id": f"on-{task}-{i}", "model": "m"})
    found = report(write_lake(tmp_path, rounds=rows, runs=BASELINE), CLASSES)
    assert [s.figures["round_cost"] for s in found.strata] == [pytest.approx(1.5), pytest.approx(2.0)]
    assert found.total.figures["baseline_ms"] == pytest.approx((10 * 10 + 30 * 40) / 40)
    assert found.total.figures["round_cost"] == pytest.approx(2000 / 1300)


def test_a_named_run_that_speculates_is_no_baseline(tmp_path: Path) -> None:
    rounds = [{"run_id": "k3", "drafted": 3, "accepted": 1}, {"run_id": "k7", "drafted": 7, "accepted": 1}]
    lake = write_lake(tmp_path, rounds=rounds, requests=list(requests("off", "a", 10, 3)), runs=BASELINE)
    with pytest.raises(InputError, match=r"k7: this run drafted 7 tokens.*name a run without speculation \(off\)"):
        report(lake, ReportOptions(runs=("k3",), baseline="k7"))


def test_labels_group_and_filter(tmp_path: Path) -> None:
    rows = [{**row, "labels": [("tenant", tenant)]}
            for tenant, off, on in (("acme", 10, 10), ("zeta", 40, 20))
            for row in (*requests("off", tenant, off, 9), *requests("on", tenant, on, 9))]  # fmt: skip
    rows = [{**row, "task_type": None} for row in rows]
    lake = write_lake(tmp_path, requests=rows, runs=BASELINE)
    found = report(lake, ReportOptions(by=("tenant",)))
    assert found.strata[0].key == {"tenant": "acme"}
    assert speedups(found) == {"acme": pytest.approx(1.0), "zeta": pytest.approx(2.0)}
    found = report(lake, ReportOptions(by=(), where="labels['tenant']='acme'"))
    assert found.total.figures["tpot_requests"] == 9
    assert found.total.figures["speedup_tpot"] == pytest.approx(1.0)
    told = r"cannot group by team; did you mean tenant\? known columns: task_type.*label keys: tenant"
    with pytest.raises(InputError, match=told):
        report(lake, ReportOptions(by=("team",)))


def test_step_times_without_a_class_are_the_totals(tmp_path: Path) -> None:
    counted = {"run_id": "on", "rounds": 10, "drafted": 40, "accepted": 20, "emitted": 30, "model": "m"}
    rows = [{**counted, "request_id": f"{task}{i}", "task_type": task} for task in ("a", "b") for i in range(5)]
    step = {"surface": "vllm.step", "steps": 1, "time_basis": "sum", "model": "m"}
    steps = [{**step, "run_id": run, "step_us": ms * 1000}
             for run, ms in (("on", 40), ("off", 20)) for _ in range(9)]  # fmt: skip
    found = report(write_lake(tmp_path, requests=rows, windows=steps, runs=BASELINE), CLASSES)
    assert [s.key["task_type"] for s in found.strata] == ["a", "b"]
    assert found.total.figures["step_ms"] == 40.0
    assert found.total.figures["relative_token_time"] == pytest.approx(40 / 20 / 3)
    assert "times_without_class" in {w.code for w in found.warnings}
    assert not {w.code for w in found.warnings} & {"baseline_other_class", "baseline_class_unknown"}
    told = " ".join(f"{m.because} {m.switch_on}" for m in found.coverage)
    assert "step times name no class" in told
    assert "1 of 3 strata" not in told
    assert "(none)" not in told


@pytest.mark.parametrize(("on", "off", "share"), [(8, 8, 1.0), (8, 64, 0.0), (8, None, None), (None, 8, None)])
@pytest.mark.long
def test_buckets_that_one_side_does_not_log_are_no_mismatch(
    tmp_path: Path, on: int | None, off: int | None, share: float | None
) -> None:
    spec = {"run_id": "on", "drafted": 4, "accepted": 2, "emitted": 3, "step_us": 40_000, "model": "m"}
    plain = {"run_id": "off", "drafted": 0, "accepted": 0, "emitted": 1, "step_us": 20_000, "model": "m"}
    rows = [{**spec, "batch_size": on, "request_id": "a"}, {**plain, "batch_size": off, "request_id": "b"}]
    found = report(write_lake(tmp_path, rounds=rows, runs=BASELINE), ReportOptions(by=()))
    assert found.total.figures["baseline_bucket_share"] == share
    assert ("baseline_unmatched" in {w.code for w in found.warnings}) == (share == 0.0)


def test_only_a_baseline_or_nothing_is_said_in_a_sentence(tmp_path: Path) -> None:
    lake = two_classes(tmp_path, ts_end=dt.datetime(2026, 11, 1, 10))
    only = report(lake, ReportOptions(runs=("off",)))
    assert only.strata == ()
    assert (
        only.warnings[0].text == "Nothing to compare: only runs without speculation are selected (off: TPOT 25.0 ms)."
    )
    none = report(lake, ReportOptions(since=dt.datetime(2027, 1, 1)))
    assert none.warnings[0].text.endswith(
        "the lake holds 2 runs with records from 2026-11-01 10:00 to 2026-11-01 10:00 UTC."
    )
    out = io.StringIO()
    for found in (only, none):
        TerminalReporter(80).render(found, out)
        MarkdownReporter().render(found, out)
    assert len(out.getvalue().splitlines()) <= 12
    assert "cannot tell" not in out.getvalue()


def test_the_interval_of_the_total_knows_that_classes_are_slow_on_both_sides(tmp_path: Path) -> None:
    """Mixes by chance, a model name for each of 150 seeds: the population's 50:50 gives 25 over 15 ms."""
    rng = np.random.default_rng(5)
    rows: list[Row] = []
    for seed in range(150):
        for run, short, long in (("off", 10, 40), ("on", 10, 20)):
            for i, is_long in enumerate(rng.random(40) < 0.5):
                ms = (long if is_long else short) * (1 + 0.05 * rng.normal())
                rows.append(
                    {"run_id": f"{run}{seed}", "request_id": f"{run}{seed}-{i}", "output_tokens": 101,
                     "task_type": "long" if is_long else "short", "decode_us": round(ms * 100_000),
                     "model": f"m{seed}"}
                )  # fmt: skip
    runs = [{"run_id": f"off{seed}", "role": "baseline"} for seed in range(150)]
    found = report(write_lake(tmp_path, requests=rows, runs=runs), ReportOptions(by=("model",)))
    # Of a stratum by model the classes are no part: task_type is matched where no other class of traffic is grouped by.
    assert 0.90 <= np.mean([holds(s.figures, 25 / 15) for s in found.strata]) <= 0.99


# ---------------------------------------------------------------- profiled steps


def profiled(ms: float, surface: str, run: str = "on", **columns: Any) -> list[dict[str, Any]]:
    """Twenty steps of one request each, K = 4, two of three tokens accepted."""
    return [{"run_id": run, "surface": surface, "steps": 1, "rounds": 1, "time_basis": "sum", "model": "m",
             "step_us": ms * 1000, **columns} for _ in range(20)]  # fmt: skip


PHASES = {"draft_us": 12_000, "target_us": 60_000}
COUNTED = {"run_id": "on", "rounds": 10, "drafted": 40, "accepted": 20, "emitted": 30, "model": "m"}


@pytest.mark.parametrize("plain", ["vllm.iteration_line", "vllm.trace", "named"])
@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.long
def test_times_of_a_profiler_meet_their_own_kind_alone(tmp_path: Path, plain: str, logged: bool) -> None:
    """Whatever the baseline is: a figure is of one kind of steps, or it is not there and the answer says why."""
    windows = [*profiled(90.0, "vllm.trace", **PHASES, drafted=4), *(profiled(45.0, "vllm.iteration_line") * logged)]
    if plain != "named":
        windows += profiled(30.0, plain, "off", rounds=0, plain_steps=1, drafted=0)
    requests = [{**COUNTED, "request_id": f"r{i}"} for i in range(5)]
    lake = write_lake(tmp_path, requests=requests, windows=windows, runs=BASELINE)
    found = report(lake, ReportOptions(by=(), baseline=30.0 if plain == "named" else None))
    total = found.total.figures
    because = {name: item.because for item in found.coverage for name in item.figure.split(", ")}
    assert total["rho_verify"] == pytest.approx(12 / 4 / 60)
    assert total["step_ms"] == (45.0 if logged else 90.0)
    assert total["unattributed_ms"] == (None if logged else pytest.approx(90 - 12 - 60))
    if plain == "vllm.trace" and not logged:
        assert total["rho"] == pytest.approx(3 / 30)
        assert total["verify_inflation"] == pytest.approx(2.0)
        assert total["relative_token_time"] == pytest.approx(90 / 30 / 3)
        return
    for name in ("rho", "rho_round", "verify_inflation", "overhead"):
        assert plain == "vllm.trace" or total[name] is None
        assert plain == "vllm.trace" or "profiler" in because[name]
    if logged and plain == "vllm.trace":  # phases and baseline are alike, the steps are not: what the phases leave open
        assert total["relative_token_time"] == pytest.approx((12 + 60) / 30 / 3)
        assert total["relative_token_time_basis"] == "lower_bound"
    else:
        assert total["relative_token_time"] == (pytest.approx(45 / 30 / 3) if logged else None)
    assert total["round_cost"] == (pytest.approx(45 / 30) if logged and plain != "vllm.trace" else None)
    assert total["overhead"] is None
    if not logged:
        assert "the steps are a profiler's" in because["relative_token_time"]


def test_a_mean_of_many_requests_is_no_request(tmp_path: Path) -> None:
    """What a benchmark prints in the end has the weight of its requests, and no place among percentiles."""
    mean = {"run_id": "on", "model": "m", "request_id": "bench", "weight": 30.0, "tpot_us": 20_000,
            "tpot_basis": "logged", "ttft_us": 400_000}  # fmt: skip
    plain = [*requests("off", None, 40, 10, ttft_us=100_000)]
    alone = report(write_lake(tmp_path / "mean", requests=[mean, *plain], runs=BASELINE), ReportOptions(by=()))
    total = alone.total.figures
    assert (total["tpot_ms"], total["tpot_requests"], total["ttft_ms"]) == (20.0, 30, 400.0)
    assert total["tpot_p50_ms"] is total["tpot_p95_ms"] is None
    (told,) = (w for w in alone.warnings if w.code == "mean_tpot")
    assert (told.evidence["run"], told.evidence["requests"]) == ("on", 30)
    assert total["speedup_tpot"] == pytest.approx(2.0)
    each = [*requests("on", None, 20, 10, ttft_us=200_000)]
    both = report(write_lake(tmp_path / "both", requests=[mean, *each, *plain], runs=BASELINE), ReportOptions(by=()))
    assert both.total.figures["tpot_requests"] == 40
    assert both.total.figures["tpot_p50_ms"] is None
    assert both.total.figures["ttft_ms"] == pytest.approx((30 * 400 + 10 * 200) / 40)
    sampled = [row | {"weight": 10.0} for row in requests("on", None, 20, 10)]
    drawn = report(write_lake(tmp_path / "drawn", requests=[*sampled, *plain], runs=BASELINE), ReportOptions(by=()))
    assert drawn.total.figures["tpot_requests"] == 10
    assert "mean_tpot" not in {w.code for w in drawn.warnings}, "sampled requests have their tokens"
    assert drawn.total.figures["tpot_p50_ms"] == pytest.approx(20.0, rel=0.02)


@pytest.mark.parametrize(("by_id", "listed", "counted"), [(12, 8, 12), (8, 8, 8), (4, 8, 12), (0, 8, 8)])
@pytest.mark.long
def test_times_without_ids_beside_the_servers_own(tmp_path: Path, by_id: int, listed: int, counted: int) -> None:
    """A benchmark's list may be of the requests that the server tells of: then it gives no second TPOT."""
    served = [*requests("on", None, 20, by_id)]
    bench = [{**row, "request_id": f"b#{i}.0", "source_id": "b", "source_line": i, "surface": "vllm.bench_request"}
             for i, row in enumerate(requests("on", None, 30, listed))]  # fmt: skip
    runs = [{"run_id": "on", "model": "m", "scope": "s"}]
    total = report(write_lake(tmp_path, requests=[*served, *bench], runs=runs), ReportOptions(by=())).total.figures
    assert total["tpot_requests"] == counted
    assert total["output_tokens"] == 101 * counted
    only = {12: 20.0, 8: 20.0, 0: 30.0}.get(by_id)
    assert only is None or total["tpot_ms"] == pytest.approx(only, rel=0.02)
