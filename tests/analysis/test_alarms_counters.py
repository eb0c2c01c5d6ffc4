"""Alarms about counters and copies: running totals, resets, restarts, records ingested twice."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pytest
from alarm_lakes import DAY, Rows, drawn, reported, rounds, said, timed_requests, windows
from lakes import write_lake

from tracelens.analysis.alarms import duplicates
from tracelens.analysis.report import ReportOptions
from tracelens.cli import run

# ---------------------------------------------------------------- counters


INTERVALS = np.random.default_rng(3).integers(50, 150, 30)


def test_running_totals(tmp_path: Path) -> None:
    found = said(write_lake(tmp_path, windows=windows(INTERVALS.cumsum())))["cumulative_windows"]
    assert found.evidence["windows"] == 30
    assert found.evidence["last_values"] == 4 * INTERVALS.sum()
    assert found.evidence["added_up"] == 4 * INTERVALS.cumsum().sum()
    assert "difference of two lines" in found.text


def test_running_totals_with_a_restart(tmp_path: Path) -> None:
    counts = np.concatenate([INTERVALS[:14].cumsum(), INTERVALS[14:].cumsum()])
    found = said(write_lake(tmp_path, windows=windows(counts)))["cumulative_windows"]
    assert "but for 1 restart, over" in found.text
    assert found.evidence["last_values"] == 4 * INTERVALS.sum()


def test_intervals_are_no_totals(tmp_path: Path) -> None:
    totals = INTERVALS.cumsum()
    silent = {
        "intervals": windows(INTERVALS),
        "short": windows(totals[:11]),
        "constant": windows(np.full(30, 100)),
        "read already": windows(totals, "vllm.v1_line"),
        "load driven up": [{**row, "running": 1 + i} for i, row in enumerate(windows(100 * (1 + np.arange(30))))],
    }
    every = [{**line, "run_id": name} for name, lines in silent.items() for line in lines]
    assert "cumulative_windows" not in said(write_lake(tmp_path, windows=every))


def test_interval_counts_never_look_cumulative(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = [row for i in range(300) for row in windows(rng.integers(1, 1000, 40), run_id=f"run{i}")]
    assert "cumulative_windows" not in said(write_lake(tmp_path, windows=rows))


V0 = (
    "INFO 10-16 19:{m:02}:{s:02} metrics.py:367] Speculative metrics: Draft acceptance rate: 0.500, System efficiency: "
    "0.500, Number of speculative tokens: 4, Number of accepted tokens: {a}, Number of draft tokens: {d}, Number of "
    "emitted tokens: {e}.\n"
)


def v0_log(path: Path, totals: list[int]) -> Path:
    path.write_text(
        "".join(V0.format(m=i // 12, s=5 * i % 60, a=2 * t, d=4 * t, e=3 * t) for i, t in enumerate(totals))
    )
    return path


def test_a_counter_that_fell_back(tmp_path: Path) -> None:
    """V0 counters are differenced by the reader: never cumulative, and a fall is told."""
    rising = [100 * (i + 1) for i in range(20)]
    assert run(["ingest", str(v0_log(tmp_path / "a.log", rising)), "--lake", str(tmp_path / "whole")]) == 0
    assert not {"counter_reset", "cumulative_windows", "restarts"} & set(said(tmp_path / "whole"))
    assert run(["ingest", str(v0_log(tmp_path / "b.log", rising + rising[:8])), "--lake", str(tmp_path / "fell")]) == 0
    found = said(tmp_path / "fell")["counter_reset"]
    assert found.evidence == {"resets": 1, "runs": 1, "drafted_in_them": 400}


def test_starts_that_are_pooled(tmp_path: Path) -> None:
    lines = [{**row, "run_id": f"vllm-{i % 2}"} for i, row in enumerate(windows(INTERVALS, "vllm.v1_line"))]
    started = [
        {"run_id": f"vllm-{i}", "engine": "vllm", "scope": "vllm-folder", "model": "m", "num_speculative_tokens": 4 - i,
         "started": DAY + dt.timedelta(minutes=3 * i)} for i in range(2)
    ]  # fmt: skip
    found = said(write_lake(tmp_path / "two", windows=lines, runs=started))["restarts"]
    assert found.evidence["starts"] == 2
    assert "other settings" in found.text
    named = [{**row, "scope": row["run_id"]} for row in started]
    assert "restarts" not in said(write_lake(tmp_path / "named", windows=lines, runs=named))
    at_once = [{**row, "started": DAY} for row in started]
    assert "restarts" not in said(write_lake(tmp_path / "at once", windows=lines, runs=at_once))


# ---------------------------------------------------------------- duplicates


def told(*names: str, **rows: int) -> Rows:
    return [{"source_id": name, "name": f"{name}.log", "sha256": name, "rows": list(rows.items())} for name in names]


def test_requests_ingested_twice(tmp_path: Path) -> None:
    again = timed_requests(source_id="b", run_id="other")
    lake = write_lake(tmp_path, requests=timed_requests(source_id="a") + again, sources=told("a", "b", requests=40))
    found = said(lake)["ingested_twice"]
    assert found.evidence == {"twice": 40, "of": 40}
    assert "a.log and b.log" in found.text


def test_requests_without_an_id_of_their_own(tmp_path: Path) -> None:
    def anonymous(source: str) -> Rows:
        return [{**row, "source_id": source, "source_line": i, "request_id": f"{source}#{i}"}
                for i, row in enumerate(timed_requests())]  # fmt: skip

    assert "ingested_twice" in said(write_lake(tmp_path / "same", requests=anonymous("a") + anonymous("b")))
    other = [{**row, "decode_us": row["decode_us"] + 7} for row in anonymous("b")]
    assert "ingested_twice" not in said(write_lake(tmp_path / "other", requests=anonymous("a") + other))


def test_the_same_ids_again_are_no_copies(tmp_path: Path) -> None:
    """A benchmark at temperature 0 runs twice: the same ids and tokens, another time. And a few retries."""
    later = [{**row, "source_id": "b", "run_id": "later", "ts_end": row["ts_end"] + dt.timedelta(hours=1),
              "decode_us": row["decode_us"] + 991} for row in timed_requests()]  # fmt: skip
    assert "ingested_twice" not in said(write_lake(tmp_path / "again", requests=timed_requests(source_id="a") + later))
    retries = timed_requests(source_id="a") + timed_requests(5, source_id="b", run_id="retry")
    assert "ingested_twice" not in said(write_lake(tmp_path / "few", requests=retries))


def test_windows_and_rounds_ingested_twice(tmp_path: Path) -> None:
    lines = windows(INTERVALS, "vllm.v1_line")
    both = [{**row, "source_id": source} for source in ("a", "b") for row in lines]
    assert said(write_lake(tmp_path / "w", windows=both))["ingested_twice"].evidence["twice"] == 30
    replicas = [*lines, *windows(INTERVALS[::-1], "vllm.v1_line", source_id="b", replica="1")]
    assert "ingested_twice" not in said(write_lake(tmp_path / "replicas", windows=replicas))
    logged = rounds(drawn(0.6, 1000))
    twice = [{**row, "source_id": source} for source in ("a", "b") for row in logged]
    ledger = told("a", "b", rounds=1000)
    found = said(write_lake(tmp_path / "r", rounds=twice, sources=ledger))["ingested_twice"]
    assert found.evidence == {"twice": 40, "of": 40}
    rotated = [{**row, "source_id": "a" if i < 490 else "b"} for i, row in enumerate(logged)]
    assert "ingested_twice" not in said(write_lake(tmp_path / "rotated", rounds=rotated, sources=ledger))


def test_records_that_one_source_holds_twice(tmp_path: Path) -> None:
    """A shipper sent its last lines again, or two logs were put together."""
    requests = [{**row, "source_line": i} for i, row in enumerate(timed_requests(source_id="a"))]
    again = [{**row, "source_line": 1000 + i} for i, row in enumerate(requests[:30])]
    found = said(write_lake(tmp_path / "q", requests=requests + again, sources=told("a", requests=70)))
    assert found["written_twice"].evidence == {"twice": 30, "of": 40}
    assert "a.log" in found["written_twice"].text
    logged = [{**row, "source_id": "a"} for row in rounds(drawn(0.6, 1000))]
    ledger = told("a", rounds=1000)
    found = said(write_lake(tmp_path / "r", rounds=logged + logged[:500], sources=ledger))
    assert found["written_twice"].evidence["of"] == 40
    assert found["written_twice"].evidence["twice"] >= 20
    assert "written_twice" not in said(write_lake(tmp_path / "once", rounds=logged, requests=requests, sources=ledger))


def test_of_many_requests_a_sample_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [{**row, "source_line": i} for i, row in enumerate(timed_requests(400, source_id="a"))]
    lake = write_lake(tmp_path, requests=requests + requests, sources=told("a", requests=800))
    whole = said(lake)["written_twice"].evidence
    assert whole["twice"] == whole["of"] > 300
    monkeypatch.setattr(duplicates, "COPIES_ABOVE", 200)
    found = said(lake)["written_twice"]
    assert "of a sample (1 in 3)" in found.text
    assert 40 < found.evidence["twice"] == found.evidence["of"] < 200


def test_and_of_many_that_two_sources_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [row for source in ("a", "b") for row in timed_requests(400, source_id=source)]
    lake = write_lake(tmp_path, requests=both, sources=told("a", "b", requests=400))
    whole = said(lake)["ingested_twice"].evidence
    assert whole["twice"] == whole["of"] > 300
    monkeypatch.setattr(duplicates, "COPIES_ABOVE", 200)
    found = said(lake)["ingested_twice"]
    assert "requests of a sample (1 in 3) are in the lake twice" in found.text
    assert 80 < found.evidence["twice"] == found.evidence["of"] < 180


def test_ids_that_are_used_again_are_not_written_twice(tmp_path: Path) -> None:
    later = dt.timedelta(hours=1)
    requests = timed_requests(source_id="a")
    other = [{**row, "ts_end": row["ts_end"] + later} for row in requests]
    assert "written_twice" not in said(write_lake(tmp_path / "q", requests=requests + other))
    logged = [{**row, "source_id": "a"} for row in rounds(drawn(0.6, 1000))]
    anew = [{**row, "ts": row["ts"] + later} for row in logged]
    assert "written_twice" not in said(write_lake(tmp_path / "r", rounds=logged + anew, sources=told("a", rounds=2000)))


def test_alarms_speak_of_the_selection(tmp_path: Path) -> None:
    good = rounds(drawn(0.6, 500), run_id="good")
    bad = [{**row, "request_id": f"z-{row['request_id']}"} for row in rounds(np.zeros(200), run_id="bad")]
    totals = windows(INTERVALS.cumsum(), run_id="sums")
    later = dt.timedelta(days=1)
    bad = [{**row, "ts": row["ts"] + later} for row in bad]
    totals = [{**row, "ts_end": row["ts_end"] + later} for row in totals]
    lake = write_lake(tmp_path, rounds=good + bad, windows=totals)
    ours = {"acceptance_near_zero", "cumulative_windows"}
    assert ours <= set(reported(lake))
    assert not ours & set(reported(lake, ReportOptions(by=(), runs=("good",))))
    assert not ours & set(reported(lake, ReportOptions(by=(), until=DAY + dt.timedelta(hours=1))))
    assert set(reported(lake, ReportOptions(by=(), where="grain = 'window'"))) & ours == {"cumulative_windows"}
