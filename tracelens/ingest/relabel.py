"""Labels for a lake that exists: rewritten files take the place of the old ones in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError
from tracelens.ingest.labels import LABEL_COLUMNS, Rule
from tracelens.ingest.redact import Redaction, redaction_in
from tracelens.lake import damage, journal, ledger, shared
from tracelens.lake.connection import connect
from tracelens.lake.parquet import COMPRESSION, LEVEL, ROW_GROUP, map_array
from tracelens.lake.schema import table
from tracelens.lake.store import Store, is_lake

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa

MEMORY = "512MB"
# Windows belong to no request.
_TABLES = ("rounds", "requests")


@dataclass(frozen=True, slots=True)
class Relabelled:
    """What `relabel` did; `rolled` is the last day whose rounds are rolled up: labels by request don't reach them."""

    rows: dict[str, int]
    files: int
    labels: int
    unmatched: int
    rolled: str | None = None


def relabel(root: Path, rows: pl.DataFrame | None, rules: Sequence[Rule]) -> Relabelled:
    """Fill columns of requests and rounds from labels by request key, and task types from rules where there is none.

    Args:
        root: the lake.
        rows: text columns and `_key` (the request key), one row a request, as `read_labels` gives them; or None.
        rules: in order; the first that fits gives the task type.

    Raises:
        InputError: there is no lake; a rule's pattern that only ingest understands.
    """
    if not is_lake(root):
        raise InputError(f"no lake at {root}: run `tracelens ingest PATH… --lake {root}` first")
    store = Store(root)
    columns = [c for c in LABEL_COLUMNS if rows is not None and c in rows.columns]
    changed = dict.fromkeys(_TABLES, 0)
    files = 0
    with damage.naming(root), store.transaction() as txn, txn.locked():
        # The lake's lock is held: nothing moves until the commit.
        with closing(connect(root, lock=False, held=False, grouped=False)) as con:
            con.execute(f"set memory_limit = '{MEMORY}'; set temp_directory = ''")
            _check(con, rules)
            redaction = redaction_in(root, ledger.read(root))
            if redaction is not None:
                _check_redacted(root, rules)
            if rows is not None:
                con.register("given", _arrow(_under_both_names(rows, redaction), columns))
                con.execute("create temp table label as select * from given")
            live = journal.live(root, _TABLES)
            for name, path in live.items():
                kind = name.partition("/")[0]
                n = _rewrite(con, txn.path(name), *_select(kind, path, rows, columns, rules))
                changed[kind] += n
                files += n > 0
            unmatched = _unmatched(con, rows)
        txn.commit(have_lock=True)
    if rows is None:
        return Relabelled(changed, files, 0, unmatched)
    return Relabelled(changed, files, rows.height, unmatched, _last_rolled(live))


def _last_rolled(names: Iterable[str]) -> str | None:
    """The last day of the files with rolled-up rounds, `2026-05-06`."""
    rolled = [name.split("/")[1].removeprefix("date=") for name in names if shared.head_of(name) == shared.ROLLED]
    return max(rolled, default=None)


def _under_both_names(rows: pl.DataFrame, redaction: Redaction | None) -> pl.DataFrame:
    """Labels with `_number`, each by the request's id and by its hash: a lake may hold both."""
    import polars as pl

    numbered = rows.with_columns(_number=pl.int_range(pl.len(), dtype=pl.Int64))
    if redaction is None:
        return numbered
    return pl.concat([numbered, numbered.with_columns(_key=redaction.series(numbered["_key"], are_keys=True))])


def _check_redacted(root: Path, rules: Sequence[Rule]) -> None:
    """Refuse rules that look at ids where there are none to look at."""
    blind = [rule.type for rule in rules if rule.request_id is not None]
    if blind:
        raise InputError(
            f"the rule for {blind[0]!r} looks at request ids, and those of the lake at {root} are redacted: give the "
            "labels by id in a file, or ingest again with --rules and --replace"
        )


def _rewrite(con: duckdb.DuckDBPyConnection, to: Path, statement: str, values: dict[str, Any]) -> int:
    """Write the rows of a file anew when labels change any of them; how many."""
    n = con.execute(f"select count(*) filter (_changed) from ({statement})", values).fetchone()
    if n is None or not n[0]:
        return 0
    target = str(to).replace("'", "''")
    con.execute(
        f"copy (select * exclude (_changed) from ({statement})) to '{target}' (format parquet, "
        f"compression {COMPRESSION}, compression_level {LEVEL}, row_group_size {ROW_GROUP})",
        values,
    )
    return int(n[0])


def _check(con: duckdb.DuckDBPyConnection, rules: Sequence[Rule]) -> None:
    """Refuse patterns that DuckDB does not know before anything is written: it has RE2, ingest has Rust's regex."""
    import duckdb

    for rule in rules:
        for pattern in (rule.request_id, rule.model):
            try:
                con.execute("select regexp_matches('', $1)", [pattern or ""])
            except duckdb.Error as error:
                raise InputError(
                    f"the rule for {rule.type!r} has a pattern that works at ingest only: {str(error).splitlines()[0]}"
                ) from error


def _fitting(column: str) -> pl.Expr:
    """A label as a value of its column; null where it is none: as at ingest, it must not break an identity."""
    import polars as pl

    kind = table("requests").polars_schema()[column]
    value = pl.col(column).cast(kind, strict=False)
    if not kind.is_numeric():
        return value
    high = {"top_p": 1.0, "temperature": 1e6}.get(column, float(2**31))
    return pl.when(value.is_between(0, high)).then(value)


def _arrow(rows: pl.DataFrame, columns: Sequence[str]) -> pa.Table:
    """The labels with canonical columns as they are and all others as one map."""
    import polars as pl
    import pyarrow as pa

    extras = [c for c in rows.columns if c not in ("_key", "_number") and c not in columns]
    pairs = [pl.struct(key=pl.lit(c), value=pl.col(c)) for c in extras]
    kind = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))
    listed = pl.concat_list(pairs).list.drop_nulls() if pairs else pl.lit([], kind)
    listed = listed.list.filter(pl.element().struct.field("value").is_not_null()) if pairs else listed
    frame = rows.select("_key", "_number", *(_fitting(c).alias(c) for c in columns), _extra=listed)
    arrow = frame.drop("_extra").to_arrow()
    kind_of_map = pa.map_(pa.string(), pa.string())
    return arrow.append_column("_extra", map_array(frame["_extra"].rechunk().to_arrow(), kind_of_map))


def _select(
    name: str, path: str, rows: pl.DataFrame | None, columns: Sequence[str], rules: Sequence[Rule]
) -> tuple[str, dict[str, Any]]:
    """A file's rows with labels, and `_changed`."""
    values: dict[str, Any] = {"path": path}
    new = {c: f"coalesce(l.{c}, t.{c})" for c in columns} if rows is not None else {}
    task = new.get("task_type", "t.task_type")
    cases = [_case(i, rule, values) for i, rule in enumerate(rules)]
    if cases:
        task = f"coalesce({task}, case {' '.join(cases)} end)"
    new["task_type"] = task
    if rows is not None:
        empty = "map([]::varchar[], []::varchar[])"
        merged = f"map_concat(coalesce(t.labels, {empty}), l._extra)"
        new["labels"] = f"if(l._extra is null or cardinality(l._extra) = 0, t.labels, {merged})"
    select = ", ".join(f"{new[c]} as {c}" if c in new else f"t.{c}" for c in table(name).names)
    moved = " or ".join(f"({sql}) is distinct from t.{c}" for c, sql in new.items())
    join = "left join label l on l._key = request_key(t.request_id)" if rows is not None else ""
    return (
        f"select {select}, ({moved}) as _changed from read_parquet($path, hive_partitioning = false) t {join}",
        values,
    )


def _case(number: int, rule: Rule, values: dict[str, Any]) -> str:
    tests = []
    for column in ("request_id", "model"):
        pattern = getattr(rule, column)
        if pattern is not None:
            values[f"{column}_{number}"] = pattern
            tests.append(f"regexp_matches(t.{column}, ${column}_{number})")
    if rule.temperature is not None:
        values |= {f"low_{number}": rule.temperature[0], f"high_{number}": rule.temperature[1]}
        tests.append(f"t.temperature between $low_{number} and $high_{number}")
    values[f"task_{number}"] = rule.type
    return f"when {' and '.join(tests)} then $task_{number}"


def _unmatched(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame | None) -> int:
    """Labels of which no request or round is in the lake."""
    if rows is None:
        return 0
    found = con.execute(
        "select count(*) from (select bool_or(_key in (select request_key(request_id) from requests "
        "where request_id is not null union select request_key(request_id) from rounds where request_id is not null)) "
        "as met from label group by _number) where not met"
    ).fetchone()
    return int(found[0]) if found else 0
