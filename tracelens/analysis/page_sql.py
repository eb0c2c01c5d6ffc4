"""The SQL behind a page, for a reader who wants to run it: queries, and the views that they group by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.analysis import answers
from tracelens.analysis.matching import literal
from tracelens.resources import room

if TYPE_CHECKING:
    import duckdb

#: Every query that a chart or table of a page stands on.
QUERIES = (
    "alpha", "baseline", "heat_map", "hazards", "near_k", "over_time", "replay_domain", "rho", "rollback",
    "round_times", "run_lengths", "speedup", "top_requests",
)  # fmt: skip
# Views that a question defines, each after what it reads.
_VIEWS = ("selected", "strata", "every_baseline", "baseline_facts")
_VARIABLES = ("near_k_delta", "near_k_threshold", "baseline_ms", "baseline_run")
# Queries that compare with the plain step of every cell.
_PRICED = {"rho", "speedup", "over_time", "heat_map"}
_HOW = (
    "-- Run in DuckDB after these two lines:\n--   set variable lake = 'path/to/lake';\n--   .read queries/views.sql\n"
)


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL of one question: `strata` defines its selection, `prices` its plain steps, `queries` are by name."""

    strata: str
    prices: str
    queries: Mapping[str, str]

    def parts(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of the pieces that make these queries runnable after views.sql, in order."""
        return ("strata", *(("prices",) if _PRICED & set(names) else ()), *names)

    def pieces(self) -> dict[str, str]:
        """Every piece by name, each a text that ends its last statement."""
        return {"strata": self.strata, "prices": self.prices, **self.queries}

    def runnable(self, names: Sequence[str]) -> str:
        """These queries as one text that runs after views.sql."""
        found = self.pieces()
        return "\n".join(found[part] for part in self.parts(names))


def statements(con: duckdb.DuckDBPyConnection) -> Statements:
    """Take the SQL from a connection whose views are those of one question."""
    found = dict(con.execute("select view_name, sql from duckdb_views() where not internal").fetchall())
    views = [re.sub(r"^CREATE VIEW", "create or replace view", found[name]).rstrip("; \n") for name in _VIEWS]
    kept = ";\n".join([*_variables(con), *views])
    prices = f"create or replace table kept_baseline as\n{text('baseline')};\n{answers.PRICES};\n"
    return Statements(f"{_HOW}{kept};\n", prices, {name: f"{text(name)};\n" for name in QUERIES})


def text(name: str) -> str:
    """The text of a query of `queries/`, without the semicolon at its end."""
    return (room("queries") / f"{name}.sql").read_text(encoding="utf-8").rstrip().rstrip(";")


def _variables(con: duckdb.DuckDBPyConnection) -> list[str]:
    found = []
    for name in _VARIABLES:
        row = con.execute(f"select getvariable('{name}')").fetchone()
        value = row[0] if row else None
        sql = literal(value) if isinstance(value, str) else "null" if value is None else repr(value)
        found.append(f"set variable {name} = {sql}")
    return found
