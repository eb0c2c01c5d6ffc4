"""The queries of the page in a bare DuckDB."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pytest
from bare import bare, rows
from lakes import write_lake

DAY = dt.datetime(2026, 11, 1, 10)


def _round(second: float, **more: Any) -> dict[str, Any]:
    base = {"run_id": "r", "ts": DAY + dt.timedelta(seconds=second), "request_id": f"q{second:g}", "drafted": 4,
            "accepted": 2, "emitted": 3, "num_speculative_tokens": 4, "draft_us": 8000, "target_us": 20_000,
            "step_us": 30_000}  # fmt: skip
    return base | more


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    early = [_round(0.2), _round(0.9, accepted=4, emitted=5), _round(1.4, has_prefill=True, step_us=90_000)]
    late = [_round(7200 + i, run_id="s", num_speculative_tokens=2, drafted=2, accepted=1, emitted=2, batch_size=3,
                   context_len=700)
            for i in range(200)]  # fmt: skip
    dateless = [_round(0, ts=None, run_id="t")]
    return bare(write_lake(tmp_path_factory.mktemp("page"), rounds=[*early, *late, *dateless]))


def test_over_time_by_run_and_setting(con: duckdb.DuckDBPyConnection) -> None:
    found = rows(con, "over_time")
    assert {row["run_id"] for row in found} == {"r", "s"}  # what has no time of day is left out
    assert len(found) <= 60
    assert sum(row["rounds"] for row in found) == 203
    first = found[0]
    assert first["started"] == DAY
    assert first["is_first"]
    assert [row["run_id"] for row in found if row["is_first"]] == ["r", "s"]
    assert first["draft_accept_ratio"] == pytest.approx(8 / 12)
    assert first["step_ms"] == pytest.approx(30.0)  # the step with prefill is no mean of decoding
    assert first["rho_verify"] == pytest.approx(0.1)
    assert first["rho"] is None  # no prices in a bare DuckDB


@pytest.mark.parametrize(("most", "width"), [(1000, 1), (60, 5), (3, 300), (1, 2_592_000)])
def test_over_time_takes_the_finest_width_that_fits(con: duckdb.DuckDBPyConnection, most: int, width: int) -> None:
    con.execute(f"set variable time_points = {most}")
    found = rows(con, "over_time")
    con.execute("reset variable time_points")
    assert {row["bucket_seconds"] for row in found} == {width}
    assert len(found) <= max(most, 2)  # two runs are two rows at any width


def test_heat_map_by_batch_and_context(con: duckdb.DuckDBPyConnection) -> None:
    (row,) = rows(con, "heat_map")  # rounds that log neither have no cell
    assert (row["batch_bucket"], row["context_bucket"]) == ("0003-0004", "< 0001k")
    assert row["rounds"] == 200
    assert row["draft_accept_ratio"] == pytest.approx(0.5)
    assert row["step_ms"] == pytest.approx(30.0)
    assert row["relative_token_time"] is None


def test_heat_map_over_the_plain_step(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "create or replace view prices as select distinct null::struct(task_type varchar) as stratum, true as is_total,"
        " traffic, engine, model, batch_bucket, context_bucket, 15.0 as price, null::double as tpot, 'value' as basis"
        " from unit_sums"
    )
    (row,) = rows(con, "heat_map")
    assert row["relative_token_time"] == pytest.approx(30 / 2 / 15)
    assert row["relative_token_time_basis"] == "step"
    late = rows(con, "over_time")[-1]
    assert late["rho"] == pytest.approx(4 / 15)
    assert late["verify_inflation"] == pytest.approx(20 / 15)
    assert late["overhead"] == pytest.approx((30 - 8 - 20) / 15)


def test_both_are_empty_where_nothing_is(tmp_path: Path) -> None:
    con = bare(write_lake(tmp_path))
    assert rows(con, "over_time") == []
    assert rows(con, "heat_map") == []
