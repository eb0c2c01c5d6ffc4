"""Which rows a question is about, and how they are grouped: the view `strata` of a connection."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from tracelens.analysis import matching, partials
from tracelens.analysis.matching import Matching, literal, struct
from tracelens.analysis.similar import did_you_mean
from tracelens.errors import InputError
from tracelens.lake import progress
from tracelens.lake.connection import SPILL, answered, has_spill, keep_view, kept, label_no_rounds

if TYPE_CHECKING:
    import duckdb

    from tracelens.analysis.parts import Parts

# Columns of the view `facts` by which it makes sense to group.
GROUPS = (
    "task_type", "temperature_bucket", "temperature", "top_p", "model", "draft_model", "method",
    "num_speculative_tokens", "num_draft_nodes", "engine", "engine_version", "run_id", "replica", "batch_bucket",
    "context_bucket", "hour", "date", "forced_acceptance", "surface", "source_id", "grain",
)  # fmt: skip

# Rows of facts up to which they are kept in memory, some 100 bytes a row and set column.
SMALL = 500_000
#: Columns of single rounds: NULL where rounds are rolled up (`tracelens compact`).
GONE = frozenset({"request_id", "round_index", "step_id", "source_line"})
# Rounds whose sums by unit are made at once: some 250 MB where a unit has a hundred of them.
LOT = 12_000_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Grouping and filters, as the user gave them."""

    by: tuple[str, ...]
    where: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    runs: tuple[str, ...] = ()
    baseline_run: str | None = None
    label: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RolledOut:
    """Rounds that a filter leaves out as it names columns that rolled-up rows don't have, and the last day of them."""

    columns: tuple[str, ...]
    rounds: int
    until: str


@dataclass(frozen=True, slots=True)
class Defined:
    """How the view `strata` was made: the statement up to its conditions, and whether anything was filtered.

    `forced` says that it holds simulated or forced acceptance, because there is nothing else; `matching` how the runs
    without speculation were matched with it; `rolled_out` the rolled-up rounds that the user's filter can't fit.
    """

    head: str
    conditions: tuple[str, ...]
    filtered: bool
    forced: bool
    matching: Matching
    rolled_out: RolledOut | None = None


def groups_of(con: duckdb.DuckDBPyConnection, by: Sequence[str]) -> dict[str, str]:
    """Return the groups, as names and expressions over `facts`: columns, and keys of the labels in the selection.

    Raises:
        InputError: neither; the message lists both.
    """
    others = [name for name in by if name not in GROUPS]
    if others:
        known = label_keys(con)
        unknown = [name for name in others if name not in known]
        if unknown:
            labels = f"label keys: {', '.join(sorted(known)[:50])}" if known else "no labels in this selection"
            raise InputError(
                f"cannot group by {', '.join(unknown)}; {did_you_mean(unknown, {*GROUPS, *known})}"
                f"known columns: {', '.join(GROUPS)}; {labels}"
            )
    return {name: name if name in GROUPS else f"labels[{literal(name)}]" for name in by}


def label_keys(con: duckdb.DuckDBPyConnection, view: str = "selected") -> set[str]:
    """Keys of the labels that rows of a view carry."""
    keys = con.execute(f"select distinct unnest(map_keys(labels)) from {view} where labels is not null").fetchall()
    return {str(row[0]) for row in keys}


def keep_small_tables(con: duckdb.DuckDBPyConnection, parts: Parts | None = None) -> None:
    """Turn the small views that every query reads again into tables of the connection.

    `held` scans the rounds once instead of once a query. `request_traits` is left empty, and not joined, where every
    round knows its task and sampling itself. A small lake is read once and kept whole: planning
    the view again for every query would take longer than the queries. With `parts` executors scan the rounds.
    """
    small = steady(con)
    if "facts" in kept(con):  # a tiny lake: all of it is there
        return
    if parts is None:
        keep(con, "impossible")
    else:
        parts.keep_of_lake()
    found = con.execute("select count(*) from impossible").fetchone()
    con.execute("set variable all_possible = $1", [not (found and found[0])])
    keep(con, "met_again")
    found = con.execute("select exists(from met_again)").fetchone()
    if found and not found[0]:  # empty by its definition: the optimizer leaves out what it is joined with
        con.execute(
            "create or replace view met_again as select null::varchar as engine, null::varchar as join_key where false"
        )
    for name in ("held", "superseded", "run_traits"):
        if name not in kept(con):
            keep(con, name)
    gaps = con.execute(
        "select exists(from rounds where request_id is not null"
        " and (task_type is null or temperature is null or top_p is null))"
    ).fetchone()
    if gaps and gaps[0]:
        keep(con, "request_traits")
    else:
        keep(con, "request_traits", " where false")
        label_no_rounds(con)
    if small and parts is None:
        keep(con, "facts")


def steady(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the lake is small; then its questions are answered with one thread.

    Sums of doubles depend on the order of their parts, and several threads take the rows in another order each time.
    With one, equal lakes give equal figures to the last digit; on two cores it takes no longer. In a large lake the
    last digits may differ from run to run.
    """
    tables = ("rounds", "windows", "requests")
    counts = [con.execute(f"select count(*) from logged_{table}").fetchone() for table in tables]
    rounds, *others = (int(row[0]) if row else 0 for row in counts)
    con.execute("set variable rounds_held = $1", [rounds])  # samples of large lakes go by it (queries/views.sql)
    records = rounds + sum(others)
    progress.holds(records)
    if records <= SMALL:
        con.execute("set threads = 1")
    return records <= SMALL


def define_strata(con: duckdb.DuckDBPyConnection, selection: Selection) -> Defined:
    """Define the views `selected` (what the filters leave) and `strata` (of it, what speculates), grouped.

    Raises:
        InputError: unknown group, run, or a `where` that is no single expression over `facts`.
    """
    _check_runs(con, selection.runs)
    filters = filters_of(selection)
    out = None
    if selection.where is not None:
        _check_expression(con, selection.where)
        out = _rolled_out(con, selection.where, filters)
        filters.append(f"({selection.where}\n)")
    con_filter = f" where {' and '.join(filters)}" if filters else ""
    _define_selected(con, f"create or replace view selected as select * from facts{con_filter}", selection.where)
    conditions = ["role is distinct from 'baseline'"]
    if selection.baseline_run is not None:
        _check_runs(con, (selection.baseline_run,))
        matching.check_named(con, selection.baseline_run)
        conditions.append(f"run_id <> {literal(selection.baseline_run)}")
    groups = groups_of(con, selection.by)
    match = matching.define_baseline(con, groups, selection.where)
    head = (
        f"create or replace view strata as select {struct(groups)} as stratum,"
        f" {matching.traffic(groups, match)} as traffic, * from selected where "
    )
    real, every = ([*conditions, "not coalesce(forced_acceptance, false)"], conditions)
    con.execute(head + " and ".join(real))
    if not _any_counts(con):
        con.execute(head + " and ".join(every))
        if _any_counts(con):
            return Defined(head, tuple(every), bool(filters), True, match, out)
        con.execute(head + " and ".join(real))
    return Defined(head, tuple(real), bool(filters), False, match, out)


def _rolled_out(con: duckdb.DuckDBPyConnection, where: str, others: Sequence[str]) -> RolledOut | None:
    import duckdb

    names = tuple(sorted(matching.columns_of(con, where) & GONE))
    if not names:
        return None
    conditions = " and ".join(["rolled_requests is not null", f"({where}\n) is not true", *others])
    try:
        row = con.execute(f"select sum(weight)::bigint, max(date)::varchar from facts where {conditions}").fetchone()
    except duckdb.Error:  # the filter does not fit the columns, which is told where it is applied
        return None
    return RolledOut(names, int(row[0]), str(row[1])) if row and row[0] else None


def narrow(con: duckdb.DuckDBPyConnection, defined: Defined, condition: str | None) -> None:
    """Leave in `strata` and in what was kept of it only what meets a condition over engine, model and run_id."""
    con.execute(defined.head + " and ".join([*defined.conditions, *([condition] if condition else [])]))
    partials.narrow(con, condition)


def keep_units(con: duckdb.DuckDBPyConnection, defined: Defined) -> None:
    """Keep `unit_sums`; of a large lake day by day, so that the sums of a day alone must be in memory at once.

    A unit that goes on over midnight has a row for either day then, as it has one for every range of its context.
    """
    lots = _lots(con)
    if len(lots) < 2:
        keep(con, "unit_sums")
        return
    table = f"{SPILL}.lots_of_units" if has_spill(con) else "lots_of_units"
    for number, days in enumerate(lots):
        con.execute(defined.head + " and ".join([*defined.conditions, days]))
        answered(con, f"{f'insert into {table}' if number else f'create or replace table {table} as'} from unit_sums")
    con.execute(f"create or replace view kept_unit_sums as from {table}")
    con.execute("create or replace view unit_sums as from kept_unit_sums")
    con.execute(defined.head + " and ".join(defined.conditions))
    progress.step()


def _lots(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Conditions over `date` that part a lake into days, or several with no more than LOT rounds together."""
    counts = "select date, count(*) from logged_rounds where date is not null group by date order by date"
    ends: list[tuple[date, int]] = []  # the last day of every lot, and its rounds
    for day, rounds in con.execute(counts).fetchall():
        if ends and ends[-1][1] + rounds <= LOT:
            ends[-1] = (day, ends[-1][1] + rounds)
        else:
            ends.append((day, rounds))
    # The first and the last one are open: the other tables may have days that the rounds have not.
    inner = [day.isoformat() for day, _ in ends[:-1]]
    lows = ["date is not null", *(f"date > date '{day}'" for day in inner)]
    highs = [*(f" and date <= date '{day}'" for day in inner), ""]
    return [*(low + high for low, high in zip(lows, highs, strict=True)), "date is null"] if inner else []


def keep(con: duckdb.DuckDBPyConnection, name: str, condition: str = "") -> None:
    """Turn a view into a table of the connection, seen under the view's name."""
    keep_view(con, name, condition)
    progress.step()


def filters_of(selection: Selection) -> list[str]:
    """Conditions over `facts` that the selection sets, its `where` apart."""
    parts = []
    if selection.since is not None:
        since = utc(selection.since)
        parts.append(f"date >= date '{since:%Y-%m-%d}' and ts >= timestamp '{since:%Y-%m-%d %H:%M:%S.%f}'")
    if selection.until is not None:
        until = utc(selection.until)
        parts.append(f"date <= date '{until:%Y-%m-%d}' and ts < timestamp '{until:%Y-%m-%d %H:%M:%S.%f}'")
    if selection.runs:
        parts.append(f"run_id in ({', '.join(literal(run) for run in selection.runs)})")
    if selection.label is not None:
        name, value = selection.label
        parts.append(f"labels[{literal(name)}] = {literal(value)}")
    return parts


def utc(moment: datetime) -> datetime:
    """Return the moment in UTC without a zone, as the lake stores it; a moment without a zone is UTC."""
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _check_runs(con: duckdb.DuckDBPyConnection, runs: Sequence[str]) -> None:
    known = {row[0] for row in con.execute("select run_id from run_traits").fetchall()}
    missing = [run for run in runs if run not in known]
    if missing:
        some = ", ".join(sorted(known)[:20]) or "none"
        several = any("," in run and all(part.strip() in known for part in run.split(",")) for run in missing)
        way = "name every run by itself; " if several else did_you_mean(missing, known)
        raise InputError(f"no run {', '.join(missing)} in this lake; {way}runs: {some}")


def _check_expression(con: duckdb.DuckDBPyConnection, where: str) -> None:
    """Refuse anything that parses as more than one expression, such as a closing bracket and a second query."""
    answer = _parsed(con, f"select (\n{where}\n)")
    if answer.get("error"):
        reason = answer.get("error_message", "it cannot be parsed")
        raise InputError(f"--where {where!r} is no SQL expression: {reason}")
    statements: list[dict[str, Any]] = answer["statements"]
    node = statements[0]["node"]
    plain = (
        len(statements) == 1
        and node["type"] == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and node["from_table"]["type"] == "EMPTY"
        and not node["modifiers"]
        and not any(node[part] for part in ("where_clause", "group_expressions", "having", "qualify", "sample"))
        # What closes a bracket and opens it again (`false) or (true`) does not fit brackets of another kind.
        and not _parsed(con, f"select [\n{where}\n]").get("error")
    )
    if not plain:
        raise InputError(f"--where {where!r} must be one SQL expression over the columns of facts")


def _parsed(con: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    row = con.execute("select json_serialize_sql($1)", [sql]).fetchone()
    answer: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    return answer


def _define_selected(con: duckdb.DuckDBPyConnection, sql: str, where: str | None) -> None:
    """Define the view and read a first row, where the user's expression meets the columns and then the values."""
    import duckdb

    try:
        con.execute(sql)
        answered(con, "select exists(from selected where grain is not null)")
    except duckdb.Error as error:
        if where is None:
            raise
        raise InputError(f"--where {where!r} does not fit the columns of facts: {_reason(con, str(error))}") from error


def _reason(con: duckdb.DuckDBPyConnection, message: str) -> str:
    """What DuckDB says of an expression, its candidates too, without the picture of the statement; and our own hint."""
    said = " ".join(line for line in message.partition("\n\nLINE ")[0].splitlines() if line.strip())
    unknown = re.findall(r'column "([^"]+)" not found', said)
    columns = [str(row[0]) for row in con.execute("describe facts").fetchall()] if unknown else []
    hint = did_you_mean(unknown, columns).strip()
    return f"{said}; {hint}" if hint else said


def _any_counts(con: duckdb.DuckDBPyConnection) -> bool:
    row = con.execute(
        "select exists(from strata"
        " where coalesce(accepted, drafted, draft_us, target_us, tpot_us, decode_us) is not null)"
    ).fetchone()
    return bool(row and row[0])
