"""Samples of large lakes: what they leave out is left out before anything is made of it, and steps stay whole."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from lakes import Row, write_lake
from test_scale import as_large

from tracelens.analysis import selection
from tracelens.analysis.alarms import looked_at
from tracelens.lake import connection

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are beside the package, not in it"
)
SAMPLED = {
    "shared_steps": "from shared_steps",
    "round_samples": f"from ({looked_at.of_parts()['round_samples']})",
    **{name: (ROOT / f"queries/{name}.sql").read_text().rstrip().rstrip(";") for name in ("batches", "run_lengths")},
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.lakes import lake

    place = tmp_path_factory.mktemp("lakes") / "lake"
    assert lake(place, 20_000, days=3) > 20_000
    return place


@pytest.fixture(scope="module")
def large(lake: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        as_large(monkeypatch)
        opened = connection.connect(lake, keep=True)
        selection.keep_small_tables(opened)
        selection.define_strata(opened, selection.Selection(by=("task_type",)))
        opened.execute("create temp table chosen_runs as select distinct run_id from strata")
        looked_at.define(opened)
        yield opened
        opened.close()


@pytest.fixture
def con(large: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A lake of five million rounds, as it seems: of a million one in five is looked at."""
    large.execute("set variable rounds_held = 5000000")
    return large


@pytest.fixture
def rolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[duckdb.DuckDBPyConnection]:
    """Rolled-up rounds of requests without an id, a row a minute."""
    as_large(monkeypatch)
    rounds: list[Row] = [
        {"run_id": "r", "ts": dt.datetime(2026, 4, 1) + dt.timedelta(minutes=n), "drafted": 3, "accepted": 1,
         "step_us": 20_000, "step_share": 0.25, "batch_size": 4, "weight": 9.0, "rolled_requests": 2}
        for n in range(400)
    ]  # fmt: skip
    opened = connection.connect(write_lake(tmp_path / "lake", rounds=rounds, runs=[{"run_id": "r"}]), keep=True)
    selection.keep_small_tables(opened)
    selection.define_strata(opened, selection.Selection(by=()))
    yield opened
    opened.close()


def below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An operator of a plan and all that it reads."""
    yield node
    for child in node.get("children", []):
        yield from below(child)


def test_the_rate_is_that_of_the_lake(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_large(monkeypatch)
    with connection.connect(lake, keep=True) as con:
        assert con.execute("select one_in(1000)").fetchone() == (1,)  # a bare DuckDB looks at everything
        selection.keep_small_tables(con)
        found = con.execute("select one_in(1000), count(*) // 1000, count(*) from logged_rounds").fetchone()
        assert found is not None
        assert found[0] == found[1] >= 20


def test_rounds_that_know_their_task_are_not_joined_with_requests(con: duckdb.DuckDBPyConnection) -> None:
    rows = con.execute("explain (format json) select task_type, sum(drafted) from strata group by all").fetchall()
    plan = [node for root in json.loads(rows[-1][1]) for node in below(root)]
    read = [str(node["extra_info"]["Projections"]) for node in plan if node["name"].startswith("READ_PARQUET")]
    assert any("drafted" in columns for columns in read)
    assert not [columns for columns in read if "top_p" in columns or "request_id" in columns]


@pytest.mark.parametrize("name", SAMPLED)
def test_what_is_left_out_is_never_joined(con: duckdb.DuckDBPyConnection, name: str) -> None:
    rows = con.execute(f"explain (format json) {SAMPLED[name]}").fetchall()
    plan = [node for root in json.loads(rows[-1][1]) for node in below(root)]
    sampling = [node for node in plan if re.search(r"hash\(.*<= \d{18,}", str(node.get("extra_info")), re.DOTALL)]
    assert sampling
    for node in sampling:
        names = [child["name"].strip() for child in below(node)]
        assert any(found.startswith("READ_PARQUET") for found in names)
        assert not [found for found in names if "JOIN" in found]


def test_steps_stay_whole(con: duckdb.DuckDBPyConnection) -> None:
    steps = "select run_id, step_id, count(*), any_value(every) from shared_steps group by all"
    found = con.execute(steps).fetchall()
    con.execute("set variable rounds_held = null")
    every = {row[:3] for row in con.execute(steps).fetchall() if row[3] == 1}
    assert 0.15 < len(found) / len(every) < 0.25
    assert {row[:3] for row in found} <= every
    assert {row[3] for row in found} == {5}


def test_a_run_of_rolled_up_rounds_is_not_taken_as_a_whole(rolled: duckdb.DuckDBPyConnection) -> None:
    taken = "select count(*), count(distinct every) from shared_steps"
    assert rolled.execute(taken).fetchone() == (400, 1)
    rolled.execute("set variable rounds_held = 5000000")
    found = rolled.execute(taken).fetchone()
    assert found is not None
    assert 50 < found[0] < 110
