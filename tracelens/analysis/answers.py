"""Runs the queries of a report over the view `strata`, and over the part of it that a baseline can price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from tracelens.analysis.results import Value
from tracelens.analysis.selection import Defined, keep, keep_units, narrow
from tracelens.lake import progress
from tracelens.lake.connection import answered, kept
from tracelens.resources import room

if TYPE_CHECKING:
    import duckdb

Key = tuple[Value, ...] | None
Rows = Mapping[Key, list[dict[str, Any]]]

PRICES = (
    "create or replace view prices as select stratum, stratum is null as is_total, p.traffic, p.engine, p.model,"
    " p.batch_bucket, p.context_bucket, p.price, p.tpot, p.basis from kept_baseline, unnest(prices) as u(p)"
)


# Rows whose engine and model have a baseline; rows of runs with times.
_PRICED = (
    "(engine, coalesce(model, '')) in"
    " (select engine, coalesce(model, '') from kept_prices where is_total and {} is not null)"
)
_TIMED = "run_id in (select run_id from kept_unit_sums where w > 0)"


@dataclass(frozen=True, slots=True)
class Answers:
    """Rows of every query, by key of the stratum; the key None is the total.

    `priced` holds alpha and rho over the rows whose engine and model have a baseline (and whose run has step times,
    where some of the stratum have), `priced_tpot` holds speedup over those with a baseline TPOT; the same rows where
    all have one.
    """

    rows: Mapping[str, Rows]
    priced: Mapping[str, Rows]
    priced_tpot: Mapping[str, Rows]

    def one(self, query: str, key: Key) -> dict[str, Any]:
        """The only row of a stratum; empty where the query has none."""
        return _first(self.rows[query], key)

    def all(self, query: str, key: Key) -> list[dict[str, Any]]:
        """All rows of a stratum, in order."""
        return self.rows[query].get(key, [])

    def one_priced(self, query: str, key: Key, *, tpot: bool = False) -> dict[str, Any]:
        """The row over what a baseline prices; `speedup`, and with `tpot` any query, over what its TPOT prices."""
        return _first((self.priced_tpot if tpot or query == "speedup" else self.priced)[query], key)

    def strata(self) -> list[tuple[Value, ...]]:
        """Every stratum that any query knows, in order."""
        found = {key for rows in self.rows.values() for key in rows if key is not None}
        return sorted(found, key=lambda key: [(v is None, isinstance(v, str), v if v is not None else 0) for v in key])


def ask(con: duckdb.DuckDBPyConnection, defined: Defined, more: Sequence[str] = ()) -> Answers:
    """Run every query once, and again those that a baseline can price for a part of the rows only.

    `more` are queries beyond those of a report; they are answered over what the baselines price, too.
    """
    if "unit_sums" not in kept(con):
        keep_units(con, defined)
    if "round_shapes" not in kept(con):
        keep(con, "round_shapes")
    rows: dict[str, Rows] = {"baseline": _price(con)}
    for name in dict.fromkeys(("alpha", "hazards", "rollback", "near_k", "rho", "speedup", "control_noise", *more)):
        rows[name] = run_query(con, name)
    priced: dict[str, Rows] = {name: rows[name] for name in ("alpha", "rho", *more)}
    tpot: dict[str, Rows] = {name: rows[name] for name in ("speedup", *more)}
    condition: str | None = None
    if _is_partial(con, "price"):
        condition = _PRICED.format("price")
        narrow(con, defined, condition)
        priced = {name: run_query(con, name) for name in priced}
    if _some_runs_untimed(con):
        narrow(con, defined, _TIMED if condition is None else f"{condition} and {_TIMED}")
        # A stratum of which no run has times has what its logs tell without: a logged mean of draft times.
        apart = {name: run_query(con, name) for name in priced}
        timed = apart["alpha"].keys()
        priced = {n: {k: r for k, r in priced[n].items() if k not in timed} | {**rows} for n, rows in apart.items()}
    if _is_partial(con, "tpot"):
        narrow(con, defined, _PRICED.format("tpot"))
        tpot = {name: run_query(con, name) for name in tpot}
    narrow(con, defined, None)
    return Answers(rows, priced, tpot)


def run_query(con: duckdb.DuckDBPyConnection, name: str) -> Rows:
    """Run a query of `queries/` whose first column is `stratum`; rows by stratum, in the query's order."""
    found = _by_stratum(con, _text(name))
    progress.step()
    return found


def _price(con: duckdb.DuckDBPyConnection) -> Rows:
    answered(con, f"create or replace table kept_baseline as {_text('baseline')}")
    con.execute(PRICES)
    keep(con, "prices")
    return _by_stratum(con, "select * exclude (prices) from kept_baseline order by stratum is null, stratum")


def _is_partial(con: duckdb.DuckDBPyConnection, column: str) -> bool:
    """Whether some engine and model has such a baseline and another one has none."""
    row = con.execute(
        f"select count({column}) > 0 and count({column}) < count(*) from prices where is_total"
    ).fetchone()
    return bool(row and row[0])


def _some_runs_untimed(con: duckdb.DuckDBPyConnection) -> bool:
    row = con.execute(
        "select bool_or(timed) and bool_or(not timed)"
        " from (select coalesce(sum(w), 0) > 0 as timed from unit_sums group by run_id having sum(n_all) > 0)"
    ).fetchone()
    return bool(row and row[0])


def _text(name: str) -> str:
    return (room("queries") / f"{name}.sql").read_text(encoding="utf-8").rstrip().rstrip(";")


def _by_stratum(con: duckdb.DuckDBPyConnection, sql: str) -> Rows:
    names, rows = answered(con, sql)
    found: dict[Key, list[dict[str, Any]]] = {}
    for values in rows:
        row = dict(zip(names, values, strict=True))
        stratum = row.pop("stratum")
        key = None if stratum is None else tuple(_plain(v) for v in stratum.values())
        found.setdefault(key, []).append(row)
    return found


def _first(rows: Rows, key: Key) -> dict[str, Any]:
    found = rows.get(key, [])
    return found[0] if found else {}


def _plain(value: Any) -> Value:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
