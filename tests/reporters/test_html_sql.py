"""What 'copy as SQL' gives runs in a bare DuckDB after views.sql, and says what the page says."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracelens.analysis.page import Page, page
from tracelens.reporters import charts
from tracelens.reporters.charts.drawn import Drawn

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
    for statement in con.extract_statements((QUERIES / "views.sql").read_text(encoding="utf-8")):
        con.execute(statement)
        if "create or replace view facts as" in statement.query:  # binding it for every view takes seconds
            con.execute("create table kept_facts as from facts; create or replace view facts as from kept_facts")
    yield con
    con.close()


def last(con: duckdb.DuckDBPyConnection, text: str) -> list[dict[str, Any]]:
    """Rows of the only SELECT of a copied text, with the class in place of the stratum."""
    selects = [s for s in con.extract_statements(text) if s.type == duckdb.StatementType.SELECT]
    assert len(selects) == 1
    cursor = con.execute(text)
    names = [column[0] for column in cursor.description or ()]
    rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    for row in rows:
        stratum = row.pop("stratum", None)
        row["class"] = None if stratum is None else next(iter(stratum.values()))
    return rows


def sql_of(page: Page, name: str) -> str:
    drawn = charts.charts(page)[name]
    assert isinstance(drawn, Drawn)
    return page.statements.runnable(drawn.queries, name)


def strata_of(page: Page) -> dict[str | None, Any]:
    every = (*page.report.strata, page.report.total)
    return {str(s.key["task_type"]) if s.key else None: s.figures for s in every}


def by_class(page: Page, answer: Any) -> dict[str | None, Any]:
    return {str(s.key["task_type"]) if s.key else None: s for s in (*answer.strata, answer.total)}


@pytest.mark.parametrize("name", ["token-time", "alpha"])
def test_token_time_and_break_even(name: str, shown: Page, bare: duckdb.DuckDBPyConnection) -> None:
    rows, of_gate = last(bare, sql_of(shown, name)), by_class(shown, shown.gate)
    assert {row["class"] for row in rows} == set(of_gate)
    for row in rows:
        stratum = of_gate[row["class"]]
        assert row["relative_token_time"] == pytest.approx(stratum.relative_token_time, rel=1e-9)
        assert row["break_even_alpha"] == pytest.approx(stratum.break_even_alpha, rel=1e-9)
        assert row["draft_accept_ratio"] == pytest.approx(stratum.draft_accept_ratio, rel=1e-9)


def test_the_tables(shown: Page, bare: duckdb.DuckDBPyConnection) -> None:
    compared = 0
    for row in last(bare, shown.statements.runnable(["outcome"])):
        want = strata_of(shown)[row["class"]]
        for name in set(row) - {"class", "break_even_alpha", "relative_token_time_tpot"}:
            found = want[name]
            assert row[name] == (pytest.approx(found, rel=1e-9) if isinstance(found, float) else found), name
            compared += found is not None
    assert compared > 4 * 20


def test_positions_and_rollbacks(shown: Page, bare: duckdb.DuckDBPyConnection) -> None:
    figures = strata_of(shown)
    for name, first in (("hazard", 1), ("survival", 0)):
        rows = last(bare, sql_of(shown, name))
        for row in rows:
            assert row[name] == pytest.approx(figures[row["class"]][name][row["position"] - first])
    rows = last(bare, sql_of(shown, "rollback"))
    assert len(rows) == len(figures) * (page_lake.K + 1)
    for row in rows:
        assert row["rounds"] == figures[row["class"]]["rollback_len"][row["drafted"]][row["rollback_len"]]


def test_time_and_load(shown: Page, bare: duckdb.DuckDBPyConnection) -> None:
    rows = last(bare, sql_of(shown, "over-time"))
    assert [row["rho"] for row in rows] == [pytest.approx(m.rho) for m in shown.times]
    assert [row["verify_inflation"] for row in rows] == [pytest.approx(m.verify_inflation) for m in shown.times]
    rows = last(bare, sql_of(shown, "heat-map"))
    values = {(row["batch_bucket"], row["context_bucket"]): row["relative_token_time"] for row in rows}
    assert values == {(c.batch_bucket, c.context_bucket): pytest.approx(c.relative_token_time) for c in shown.heat}
    assert all(value is not None for value in values.values())
    rows = last(bare, shown.statements.runnable(["top_requests"]))
    assert [row["wasted_draft_ms"] for row in rows] == [pytest.approx(r.wasted_draft_ms) for r in shown.top]


@pytest.mark.parametrize("name", ["waterfall", "sweep"])
def test_inputs_say_that_they_are_inputs(name: str, shown: Page, bare: duckdb.DuckDBPyConnection) -> None:
    text = sql_of(shown, name)
    assert text.startswith("-- These are inputs and not the numbers of the chart")
    command = "gap" if name == "waterfall" else "sweep"
    line = next(line for line in text.splitlines() if f"tracelens {command} " in line)
    words = shlex.split(line.removeprefix("--"))
    assert words[:4] == ["tracelens", command, "--lake", "LAKE"]
    assert words[4:] == ["--by", "task_type", "--baseline", "off", "--claim",
                         "alpha=0.8,rho=0.1,k=4,form=article"]  # fmt: skip
    assert bare.execute(text).fetchall()


def test_the_inputs_of_a_waterfall_are_those_of_its_terms(shown: Page, bare: duckdb.DuckDBPyConnection) -> None:
    assert shown.gap is not None
    gaps = by_class(shown, shown.gap)
    for row in last(bare, sql_of(shown, "waterfall")):
        terms = {term.name: term for term in gaps[row["class"]].terms}
        assert row["rho"] == pytest.approx(terms["rho_drift"].observed)
        assert row["verify_inflation"] == pytest.approx(terms["verify_inflation"].observed)
        assert row["draft_accept_ratio"] == pytest.approx(terms["alpha_shift"].observed)
        assert row["speedup_observed"] == pytest.approx(gaps[row["class"]].speedup_observed)


def test_sql_of_a_filter_with_quotes(place: Path, bare: duckdb.DuckDBPyConnection) -> None:
    quoted = HOSTILE.replace("'", "''")
    found = page(place, page_lake.asked(None, where=f"task_type =\n'{quoted}' -- and\n"))
    (row, total) = last(bare, found.statements.runnable(["outcome"], "sweep"))
    assert row["draft_accept_ratio"] == pytest.approx(found.report.total.figures["draft_accept_ratio"])
    assert total["rounds"] == row["rounds"]
    assert quoted in found.statements.strata


def test_a_value_is_the_baseline_of_the_sql_too(place: Path, bare: duckdb.DuckDBPyConnection) -> None:
    found = page(place, page_lake.asked(None, baseline=25.0, by=("task_type",)))
    for row in last(bare, found.statements.runnable(["outcome"])):
        want = strata_of(found)[row["class"]]["relative_token_time"]
        assert row["relative_token_time"] == pytest.approx(want, rel=1e-9)
