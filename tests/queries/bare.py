"""A bare DuckDB on a lake: the two lines that any user would type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb

QUERIES = Path(__file__).parents[2] / "queries"
DEAR = ("requests_joined", "held", "grain_choice", "facts")


def bare(lake: Path, *, kept: bool = True) -> duckdb.DuckDBPyConnection:
    """Set the lake's place, read views.sql; nothing else.

    Binding everything below `facts` anew for every view and query takes seconds: what is dear to bind becomes a table,
    unless `kept` is false.
    """
    con = duckdb.connect()
    con.execute(f"set variable lake = '{lake}'")
    for statement in con.extract_statements((QUERIES / "views.sql").read_text(encoding="utf-8")):
        con.execute(statement)
        found = re.search(r"^create or replace view (\w+) as$", statement.query, re.MULTILINE)
        if kept and found is not None and found[1] in DEAR:
            view = found[1]
            con.execute(f"create table kept_{view} as from {view}; create or replace view {view} as from kept_{view}")
    return con


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    """Rows of SQL, or of a query by name, as dicts."""
    text = sql if " " in sql else (QUERIES / f"{sql}.sql").read_text(encoding="utf-8")
    cursor = con.execute(text)
    names = [c[0] for c in cursor.description or ()]
    return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


def total(con: duckdb.DuckDBPyConnection, name: str) -> dict[str, Any]:
    """The row of a query that stands for all strata."""
    return next(row for row in rows(con, name) if row["stratum"] is None)
