"""The SQL behind a page, for a reader who wants to run it: queries, and the views that they group by."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens.analysis import answers
from tracelens.analysis.matching import literal
from tracelens.resources import room

if TYPE_CHECKING:
    import duckdb

    from tracelens.analysis.session import Question

#: Every query that a chart or table of a page stands on.
QUERIES = (
    "heat_map", "hazards", "outcome", "over_time", "replay_domain", "rollback", "round_times", "run_lengths",
    "top_requests",
)  # fmt: skip
# Views that a question defines, each after what it reads.
_VIEWS = ("selected", "strata", "every_baseline", "baseline_facts")
_VARIABLES = ("near_k_delta", "near_k_threshold", "baseline_ms", "baseline_run", "rounds_held")
# Queries that compare with the plain step of every cell.
_PRICED = {"outcome", "over_time", "heat_map"}
#: Charts whose numbers no query can give: what is computed from these rows, and the command that gives them.
_INPUTS = {
    "waterfall": (
        "gap",
        "the point estimates that the gap is split from. From them and the plan tracelens computes the factor of every"
        " cause, and its points of speedup by logarithmic means, with intervals.",
    ),
    "sweep": (
        "sweep",
        "round times by draft length, what can be replayed, and the runs of accepted drafts. From them tracelens walks"
        " the drafts again with every K, fits round times over it, and looks for the best K by bootstrap.",
    ),
}
_HOW = (
    "-- Run in DuckDB after these two lines:\n--   set variable lake = 'path/to/lake';\n--   .read queries/views.sql\n"
)


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL of one question: `strata` defines its selection, `prices` its plain steps, `queries` are by name.

    `inputs` are comments that stand first where a chart's numbers are computed from these rows and not by them.
    """

    strata: str
    prices: str
    queries: Mapping[str, str]
    inputs: Mapping[str, str]

    def parts(self, names: Sequence[str], chart: str = "") -> tuple[str, ...]:
        """Names of the pieces that make these queries runnable after views.sql, in order."""
        about = (f"inputs_{chart}",) if chart in self.inputs else ()
        return (*about, "strata", *(("prices",) if _PRICED & set(names) else ()), *names)

    def pieces(self) -> dict[str, str]:
        """Every piece by name, each a text that ends its last statement."""
        about = {f"inputs_{chart}": comment for chart, comment in self.inputs.items()}
        return {**about, "strata": self.strata, "prices": self.prices, **self.queries}

    def runnable(self, names: Sequence[str], chart: str = "") -> str:
        """These queries as one text that runs after views.sql; the last one gives the numbers of the chart."""
        found = self.pieces()
        return "\n".join(found[part] for part in self.parts(names, chart))


def statements(con: duckdb.DuckDBPyConnection, question: Question) -> Statements:
    """Take the SQL from a connection whose views are those of one question."""
    found = dict(con.execute("select view_name, sql from duckdb_views() where not internal").fetchall())
    views = [re.sub(r"^CREATE VIEW", "create or replace view", found[name]).rstrip("; \n") for name in _VIEWS]
    kept = ";\n".join([*_variables(con), *views])
    prices = f"create or replace table kept_baseline as\n{text('baseline')};\n{answers.PRICES};\n"
    queries = {name: f"{text(name)};\n" for name in QUERIES}
    return Statements(f"{_HOW}{kept};\n", prices, queries, {chart: _comment(chart, question) for chart in _INPUTS})


def _comment(chart: str, question: Question) -> str:
    name, what = _INPUTS[chart]
    lines = textwrap.wrap(f"These are inputs and not the numbers of the chart: {what} The numbers themselves:", 110)
    return "".join(f"-- {line}\n" for line in [*lines, f"  {command(name, question)}"])


def command(name: str, question: Question) -> str:
    """The command line, in one line, that answers the same question; the place of the lake is the reader's."""
    asked = question.selection()
    claim = {} if question.claim is None else question.claim.as_mapping()
    told = ",".join(f"{key}={value}" for key, value in claim.items() if value is not None)
    options: list[tuple[str, Any]] = [("--by", ",".join(question.by)), *(("--run", run) for run in asked["run"])]
    options += [(f"--{key}", asked[key]) for key in ("where", "since", "until", "baseline")]
    # Only a report and a gate have near-K figures; a gate has no claim.
    options += (
        [("--near-k", question.near_k_delta)] if name in ("report", "gate") and question.near_k_delta != 1 else []
    )
    options += [("--claim", told or None)] if name != "gate" else []
    words = [f"{option} {shlex.quote(str(value))}" for option, value in options if value not in (None, "")]
    # A line end in a filter would end a comment; SQL takes a blank for it.
    return re.sub(r"[\r\n]+", " ", " ".join(["tracelens", name, "--lake LAKE", *words]))


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
