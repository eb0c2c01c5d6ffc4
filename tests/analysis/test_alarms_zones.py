"""Alarms about clocks that disagree; and the good samples, which raise no alarm at all."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from alarm_lakes import DAY, Rows, drawn, reported, rounds, said, timed_requests, windows
from lakes import write_lake

from tracelens.cli import run

SAMPLES = Path(__file__).parents[2] / "samples"
HOUR = dt.timedelta(hours=1)


# ---------------------------------------------------------------- zones


def scoped(*runs: str) -> Rows:
    return [{"run_id": name, "engine": "vllm", "scope": "folder", "source_id": name} for name in runs]


@pytest.mark.parametrize(("apart", "hours"), [(8 * HOUR, 8.0), (-5.5 * HOUR, -5.5), (0 * HOUR, None),
                                              (0.1 * HOUR, None), (24 * HOUR, None)])  # fmt: skip
@pytest.mark.long
def test_rounds_and_requests_in_two_zones(tmp_path: Path, apart: dt.timedelta, hours: float | None) -> None:
    logged = rounds(drawn(0.6, 1000), source_id="log")
    asked = [
        {"request_id": f"req-{i:04}", "surface": "vllm.response", "source_id": "gateway", "output_tokens": 60,
         "ts_end": DAY + apart + dt.timedelta(milliseconds=750 * (i + 1))} for i in range(40)
    ]  # fmt: skip
    codes = said(write_lake(tmp_path, rounds=logged, requests=asked))
    assert ("time_zones" in codes) == (hours is not None)
    if hours is not None:
        found = codes["time_zones"]
        assert found.evidence["hours"] == abs(hours)
        ahead = "vllm.response" if hours > 0 else "test.rows"
        assert f"the clocks of {ahead} and" in found.text
        assert "--tz" in found.text


@pytest.mark.parametrize(("apart", "fires"), [(2 * HOUR, True), (0 * HOUR, False), (2.11 * HOUR, False)])
@pytest.mark.long
def test_periods_in_two_zones(tmp_path: Path, apart: dt.timedelta, fires: bool) -> None:
    """No id in common: both ends of the log and of the responses are apart by the same two hours."""
    lines = windows(np.full(30, 100), "vllm.v1_line", run_id="a")
    asked = [{**row, "ts_end": DAY + apart + dt.timedelta(seconds=7.4 * i), "run_id": "b"}
             for i, row in enumerate(timed_requests())]  # fmt: skip
    lake = write_lake(tmp_path / "one", windows=lines, requests=asked, runs=scoped("a", "b"))
    assert ("time_zones" in said(lake)) == fires
    named = [{**row, "scope": row["run_id"]} for row in scoped("a", "b")]
    lake = write_lake(tmp_path / "two", windows=lines, requests=asked, runs=named)
    assert "time_zones" not in said(lake), "two servers may run one after the other"


def test_a_log_without_a_zone_beside_one_with(tmp_path: Path) -> None:
    lines = windows(np.full(30, 100), "sglang.decode_line", ts_basis="zone_assumed")
    later = [{**row, "ts_end": row["ts_end"] + 3.3 * HOUR} for row in timed_requests(80, ts_basis="absolute")]
    found = said(write_lake(tmp_path / "apart", windows=lines, requests=later))["time_zones"]
    assert found.evidence == {"without_zone": 30, "with_zone": 80, "hours": 3.3}
    together = timed_requests(80, ts_basis="absolute")
    assert "time_zones" not in said(write_lake(tmp_path / "together", windows=lines, requests=together))
    unzoned = [{**row, "ts_basis": "zone_assumed"} for row in later]
    assert "time_zones" not in said(write_lake(tmp_path / "both without", windows=lines, requests=unzoned))


# ---------------------------------------------------------------- the good samples

OURS = {
    "acceptance_too_good", "acceptance_near_zero", "bonus_counted", "accepted_beyond_emitted",
    "rounds_differ_from_requests", "cumulative_windows", "counter_reset", "restarts", "ingested_twice", "itl_as_tpot",
    "async_steps", "steps_overlap", "time_zones", "warm_up",
}  # fmt: skip


@pytest.mark.parametrize("sample", ["canonical", "rtp-site/k5", "vllm-site/k5", "vllm-real/B-trunc2-k3-fix"])
@pytest.mark.long
def test_good_samples_raise_no_alarm(tmp_path: Path, sample: str) -> None:
    assert run(["ingest", str(SAMPLES / sample), "--lake", str(tmp_path / "lake")]) == 0
    assert not OURS & set(reported(tmp_path / "lake"))


def test_one_log_in_two_wrappings(tmp_path: Path) -> None:
    """A sample's server log as it is, and as docker keeps it: other bytes, the same windows."""
    packed = (SAMPLES / "vllm-real/B-trunc2-k1/server.log.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines(keepends=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/server.log").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "logs/docker.json").write_text(
        "".join(json.dumps({"log": line, "stream": "stdout"}) + "\n" for line in lines), encoding="utf-8"
    )
    assert run(["ingest", str(tmp_path / "logs"), "--run", "k1", "--lake", str(tmp_path / "lake")]) == 0
    found = said(tmp_path / "lake")
    assert "docker.json" in found["counted_once"].text
    assert "ingested_twice" not in found
