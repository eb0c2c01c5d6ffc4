"""Alarms about times: TPOT from chunks, waits as steps, warm-up."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alarm_lakes import DAY, Rows, drawn, reported, rounds, said, timed_requests, windows
from lakes import write_lake

from tracelens.analysis.report import ReportOptions

HOUR = dt.timedelta(hours=1)


# ---------------------------------------------------------------- TPOT


def logged_tpot(tpot_ms: float, **columns: Any) -> Rows:
    """40 requests of 64 rounds of 30 ms and 160 output tokens, of which 159 took 1.92 s: 12.1 ms a token."""
    return [
        {"request_id": f"req-{i:04}", "surface": "generic.request", "ts_end": DAY + dt.timedelta(seconds=i),
         "output_tokens": 160, "tpot_us": 1000 * tpot_ms, "tpot_basis": "logged", **columns} for i in range(40)
    ]  # fmt: skip


def test_gaps_between_chunks_as_tpot(tmp_path: Path) -> None:
    spans: dict[str, dict[str, Any]] = {
        "e2e": {"e2e_us": 2_200_000, "ttft_us": 280_000},
        "stamps": {"ts_first_token": DAY - dt.timedelta(seconds=2), "ts_end": DAY},
    }
    for name, span in spans.items():
        found = said(write_lake(tmp_path / name, requests=logged_tpot(30.0, **span)))["itl_as_tpot"]
        assert found.evidence["beyond_their_time"] == 40
        assert found.evidence["ratio"] == pytest.approx(159 * 30 / (1920 if name == "e2e" else 3000))
        assert "output tokens - 1" in found.text
        assert "itl_as_tpot" not in said(write_lake(tmp_path / f"{name}-true", requests=logged_tpot(12.1, **span)))


def test_tpot_that_is_the_time_of_a_round(tmp_path: Path) -> None:
    """No other time of the request is logged: only its rounds tell."""
    steps = rounds(drawn(0.6, 1000), step_us=30_000)
    found = said(write_lake(tmp_path / "rounds", rounds=steps, requests=logged_tpot(30.0)))["itl_as_tpot"]
    assert found.evidence["step_ms"] == 30.0
    assert found.evidence["tau_committed"] > 1.5
    for name, acceptance, tpot in (("true", 0.6, 12.1), ("one token a round", 0.1, 30.0)):
        logged = rounds(drawn(acceptance, 1000), step_us=30_000)
        lake = write_lake(tmp_path / name, rounds=logged, requests=logged_tpot(tpot))
        assert "itl_as_tpot" not in said(lake), name


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("surface", ["vllm.trace", "vllm.trace_device", "rtp.timeline", "rtp.timeline_device"])
@pytest.mark.long
def test_times_of_a_profiler_are_named(tmp_path: Path, surface: str) -> None:
    profiled = [row | {"draft_us": 2000, "target_us": 5000} for row in steps(9.0, 10.0, surface, n=20)]
    found = said(write_lake(tmp_path / "profiled", windows=profiled))["profiled_times"]
    assert found.evidence["surface"] == surface
    assert found.evidence["steps"] == 20
    assert ("the host's share" in found.text) == (not surface.endswith("_device"))
    assert "profiled_times" not in said(write_lake(tmp_path / "logged", windows=steps(9.0, 10.0, n=20)))


def steps(ms: float, period_ms: float, surface: str = "vllm.iteration_line", n: int = 1500) -> Rows:
    """One window a step, every `period_ms`, each logged with `ms`; the stamps are whole seconds."""
    return [
        {"surface": surface, "source_line": i, "steps": 1, "time_basis": "sum", "step_us": round(1000 * ms),
         "running": 4, "ts_end": DAY + dt.timedelta(seconds=int(i * period_ms / 1000))} for i in range(n)
    ]  # fmt: skip


def test_waits_of_an_asynchronous_scheduler(tmp_path: Path) -> None:
    counts = windows(np.full(6, 100), "vllm.v1_line")
    found = said(write_lake(tmp_path / "async", windows=counts + steps(3, 40)))["async_steps"]
    assert found.evidence["busy_share"] == pytest.approx(3 / 40, rel=0.05)
    assert "--no-async-scheduling" in found.text
    assert "async_steps" not in said(write_lake(tmp_path / "sync", windows=counts + steps(33, 40)))
    # An engine that mostly waits for requests is no asynchronous one: no second is full.
    idle = steps(33, 4000, n=400)
    assert "async_steps" not in said(write_lake(tmp_path / "idle", windows=counts + idle))
    other = steps(3, 40, "generic.window")
    assert "async_steps" not in said(write_lake(tmp_path / "worker time", windows=counts + other))


def test_tpot_tells_of_short_steps_too(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, windows=steps(33, 4000, n=400))
    assert "async_steps" in said(lake, {"step_ms": 33.0, "tpot_ms": 40.0, "tau_committed": 2.5})
    assert "async_steps" not in said(lake, {"step_ms": 33.0, "tpot_ms": 16.0, "tau_committed": 2.5})


def test_steps_that_span_two(tmp_path: Path) -> None:
    found = said(write_lake(tmp_path / "overlap", windows=steps(60, 30, "trtllm.iteration_stats")))["steps_overlap"]
    assert found.evidence["busy_share"] == pytest.approx(2.0, rel=0.05)
    assert "steps_overlap" not in said(write_lake(tmp_path / "serial", windows=steps(29, 30, "trtllm.iteration_stats")))


# ---------------------------------------------------------------- warm-up


def warming(slow: int, factor: float, n: int = 4000, **columns: Any) -> Rows:
    """Rounds every 30 ms, two minutes of them; the first `slow` took `factor` as long."""
    rows = rounds(drawn(0.6, n), **columns)
    return [{**row, "step_us": round(30_000 * factor) if i < slow else 30_000} for i, row in enumerate(rows)]


def test_warm_up(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, rounds=warming(500, 3))
    found = reported(lake)["warm_up"]
    assert found.evidence["first_step_ms"] == 90.0
    assert found.evidence["rest_step_ms"] == 30.0
    assert found.evidence["effect_on_mean"] == pytest.approx(500 * 2 / 4000)
    since = found.text.split("--since ")[1].split(" ")[0]
    assert since == "2026-11-01T10:00:15Z"
    after = ReportOptions(by=(), since=dt.datetime.fromisoformat(since))
    assert "warm_up" not in reported(lake, after), "the way out leads out"


def test_what_is_no_warm_up(tmp_path: Path) -> None:
    rows = {
        "steady": warming(0, 1),
        "a little slower": warming(500, 1.4),
        "too short to matter": warming(15, 1.6),
        "half of the run": warming(2000, 3),
        "short run": warming(100, 3, n=800),
        "prefill": [{**row, "has_prefill": i < 500} for i, row in enumerate(warming(500, 3))],
        "larger batches": [{**row, "batch_size": 32 if i < 500 else 4} for i, row in enumerate(warming(500, 3))],
    }
    every = [{**row, "run_id": name} for name, part in rows.items() for row in part]
    assert "warm_up" not in said(write_lake(tmp_path, rounds=every))


def test_warm_up_by_tpot(tmp_path: Path) -> None:
    def lake(name: str, factor: float, n: int = 200) -> Path:
        slow = [{**row, "tpot_us": 11_000 * factor} if i < 10 else row for i, row in enumerate(timed_requests(n))]
        return write_lake(tmp_path / name, requests=slow)

    found = said(lake("slow", 4))["warm_up"]
    assert (found.evidence["first_tpot_ms"], found.evidence["rest_tpot_ms"]) == (44.0, 11.0)
    assert not [
        name for name, factor, n in (("even", 1, 200), ("few", 4, 60)) if "warm_up" in said(lake(name, factor, n))
    ]
