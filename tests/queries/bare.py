"""A bare DuckDB on a lake: the two lines that any user would type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

QUERIES = Path(__file__).parents[2] / "queries"


def bare(lake: Path) -> duckdb.DuckDBPyConnection:
    """Set the lake's place, read views.sql; nothing else."""
    con = duckdb.connect()
    con.execute(f"set variable lake = '{lake}'")
    con.execute((QUERIES / "views.sql").read_text(encoding="utf-8"))
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
