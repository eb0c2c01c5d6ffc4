"""What 'copy as SQL' gives runs in a bare DuckDB after views.sql, and says what the page says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tracelens.analysis.page import Page, page

from . import page_lake
from .page_lake import HOSTILE

QUERIES = Path(__file__).parents[2] / "queries"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_lake.lake(tmp_path_factory.mktemp("sql"))


@pytest.fixture
def bare(place: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """What a reader types before the copied text."""
    con = duckdb.connect()
    con.execute(f"set variable lake = '{place}'")
    con.execute((QUERIES / "views.sql").read_text(encoding="utf-8"))
    yield con
    con.close()


def test_copied_sql_runs_and_says_the_same(shown: Page, bare: duckdb.DuckDBPyConnection) -> None:
    sql = shown.statements
    cursor = bare.execute(sql.runnable(["heat_map"]))
    names = [column[0] for column in cursor.description or ()]
    values = {
        (row["batch_bucket"], row["context_bucket"]): row["relative_token_time"]
        for row in (dict(zip(names, found, strict=True)) for found in cursor.fetchall())
    }
    assert values == {(c.batch_bucket, c.context_bucket): pytest.approx(c.relative_token_time) for c in shown.heat}
    assert all(value is not None for value in values.values())
    # The selection stands now: every query runs on it.
    found = {name: bare.execute(query).fetchall() for name, query in sql.queries.items()}
    assert all(found.values())
    assert found["alpha"][-1][1] == pytest.approx(shown.report.total.figures["draft_accept_ratio"])
    assert len(found["over_time"]) == len(shown.times)


def test_sql_of_a_filter_with_quotes(place: Path, bare: duckdb.DuckDBPyConnection) -> None:
    quoted = HOSTILE.replace("'", "''")
    found = page(place, page_lake.asked(None, where=f"task_type = '{quoted}'"))
    rows = bare.execute(found.statements.runnable(["alpha"])).fetchall()
    assert rows[-1][1] == pytest.approx(found.report.total.figures["draft_accept_ratio"])
    assert quoted in found.statements.strata
