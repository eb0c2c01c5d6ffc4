"""Columns of a file's rows to Parquet, some thousand rows at a time: identities, what follows from them, runs, days.

pyarrow writes here rather than DuckDB: a column that is NULL, or the same in all rows, costs it next to nothing, and a
canonical table has twice as many columns as most logs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from tracelens.engines.generic import rules
from tracelens.ingest import names
from tracelens.ingest.fast import RUN_FACTS, Unproved, Written, broken_identity
from tracelens.ingest.fast_sql import names_in
from tracelens.ingest.refused import Refused
from tracelens.ingest.walk import Places, Same
from tracelens.lake.parquet import ROW_GROUP, Behind, rows_writer
from tracelens.lake.schema import DAY_OF, NO_DAY, table

if TYPE_CHECKING:
    from tracelens.engines.base import Reject
    from tracelens.ingest.redact import Redaction
    from tracelens.ingest.rows import Naming

_DAY_US = 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1)
_MOST_DAYS = 400  # each has an open file


class Laid:
    """Rows of one file on their way to the lake.

    Args:
        name: canonical table.
        ts_basis: of all rows with a stamp.
        constants: canonical columns set for all rows.
        naming: names the runs.
        folder: where to write.
        redaction: how ids are hashed; None keeps them.
    """

    def __init__(
        self, name: str, ts_basis: str, constants: Mapping[str, Any], naming: Naming, folder: Path,
        redaction: Redaction | None,
    ) -> None:  # fmt: skip
        self._name = name
        self._basis = ts_basis
        self._constants = {c: Same(v) for c, v in constants.items() if c in table(name).names}
        self._naming = naming
        self._folder = folder
        self._redaction = redaction
        self._parts: list[tuple[dict[str, Any], Places, Places]] = []
        self._rows = self._written = 0
        self._faults = Refused()
        self._runs: dict[tuple[str, str], dict[str, Any]] = {}
        self._coded: frozenset[str] | None = None  # columns written by their dictionary
        self._days: dict[int | None, list[pa.Table]] = {}
        self._writers: dict[int | None, Any] = {}
        self._behind = Behind()

    def add(self, columns: dict[str, Any], lines: Places, offsets: Places) -> None:
        """Rows of a block.

        Args:
            columns: canonical columns: `Same`, numpy or Arrow arrays; stamps are microseconds since 1970.
            lines: 1-based lines of the rows.
            offsets: where these begin.

        Raises:
            Unproved: the rows of a step would have to be counted, or rows of too many days.
        """
        if len(lines):
            self._parts.append((columns, lines, offsets))
            self._rows += len(lines)
        if self._rows >= ROW_GROUP:
            self._flush()

    def finish(self, staging: Path, lines: int, problems: tuple[Reject, ...]) -> Written:
        """Write what is left, and move the files to their places below `staging`.

        Args:
            staging: folder of the transaction.
            lines, problems: of the whole file, for `Written`.
        """
        self._flush()
        for day in list(self._days):
            self._write_day(day)
        self._behind.wait()
        for day, writer in self._writers.items():
            writer.close()
            name = NO_DAY if day is None else (_EPOCH + dt.timedelta(days=day)).date().isoformat()
            target = staging / self._name / f"date={name}" / f"{self._naming.source_id}-0.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            self._path(day).replace(target)
        runs = tuple(self._runs[key] for key in sorted(self._runs))
        return Written(self._name, self._written, runs, self._faults, lines, problems)

    def _flush(self) -> None:
        if not self._rows:
            return
        lines, offsets = (np.concatenate([p[i] for p in self._parts]) for i in (1, 2))
        columns = {c: _joined([(p[0][c], len(p[1])) for p in self._parts]) for c in self._parts[0][0]}
        self._parts, self._rows = [], 0
        columns |= self._constants
        frame = _frame(columns, lines)
        good = self._checked(frame, offsets)
        if good is not None:
            columns = {c: picked(v, good) for c, v in columns.items()}
            lines, frame = lines[good], frame.filter(good)
        if len(lines):
            columns |= _derived(self._name, columns, frame)
            columns |= self._own(columns, lines)
            self._see(columns, len(lines))
            self._lay(self._table(columns, len(lines)), columns.get(DAY_OF[self._name]))

    def _checked(self, frame: pl.DataFrame, offsets: Places) -> Any:
        """Which rows break no identity; None where none does."""
        known = set(frame.columns)
        every = {*table(self._name).names, *rules.LIST_FACTS.get(self._name, {})}
        # A rule over a column that no row has can't be broken.
        held = [
            (why, sql)
            for why, sql in rules.IDENTITIES[self._name]
            if names_in(sql) & every <= known or "is not null" in sql
        ]
        missing = {c for _, sql in held for c in names_in(sql) & every} - known
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias(c) for c in missing)
        good = frame.select(pl.all_horizontal(pl.sql_expr(sql).fill_null(True) for _, sql in held).alias("g"))["g"]
        if good.all() and len(good):
            return None
        mask = good.to_numpy() if len(good) == frame.height else np.repeat(good.to_numpy(), frame.height)
        why = [pl.when(pl.sql_expr(sql).not_()).then(pl.lit(label)) for label, sql in held]
        lost = frame.filter(~mask).select("line", pl.coalesce(why).alias("why"))
        for (line, label), offset in zip(lost.iter_rows(), offsets[~mask].tolist(), strict=True):
            self._faults.append(broken_identity(line, label, self._name, offset))
        return mask

    def _own(self, columns: Mapping[str, Any], lines: Places) -> dict[str, Any]:
        """Columns of the pipeline, and those that are not as the record has them."""
        naming = self._naming
        engine = columns.get("engine", Same(self._naming.engine or "generic"))
        engine = _mapped(engine, str.lower)
        run = columns.get("run_id")
        if naming.run or run is None:
            run = _mapped(engine, naming.before_start)
        stamped = DAY_OF[self._name] in columns
        own = {
            "run_id": run,
            "engine": engine,
            "surface": Same(f"generic.{self._name.removesuffix('s')}"),
            "source_id": Same(naming.source_id),
            "source_line": lines,
            "ts_basis": Same(self._basis if stamped else "none"),
        }
        for column in names.GENERIC:
            if column in columns:
                own[column] = _worded(column, columns[column])
        if self._redaction is not None:
            for column in self._redaction.columns(self._name) & set(columns):
                own[column] = _hashed(self._redaction, columns[column])
        if self._name == "requests" and "request_id" not in columns:
            own["request_id"] = pa.array([f"{naming.source_id}#{line}" for line in lines.tolist()])
        return own

    def _see(self, columns: Mapping[str, Any], rows: int) -> None:
        """What all rows of a run agree on."""
        facts = ["run_id", "engine", *RUN_FACTS]
        if all(isinstance(columns[c], Same) for c in ("run_id", "engine")):
            agreed = {c: _agreed(columns.get(c)) for c in RUN_FACTS}
            key = (columns["run_id"].value, columns["engine"].value)
            self._agree(key, agreed, _latest(columns.get(DAY_OF[self._name])))
            return
        cells = {c: columns[c] for c in (*facts, DAY_OF[self._name]) if c in columns}
        frame = _frame(cells, np.zeros(rows, np.int64), texts=True).rename({DAY_OF[self._name]: "ended"}, strict=False)
        given = [c for c in RUN_FACTS if c in frame.columns]
        ended = [pl.col("ended").max()] if "ended" in frame.columns else []
        same = [pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in given]
        for row in frame.group_by("run_id", "engine").agg(*ended, *same).iter_rows(named=True):
            key = (row["run_id"], row["engine"])
            self._agree(key, {c: row.get(c) for c in RUN_FACTS}, row.get("ended"))

    def _agree(self, key: tuple[str, str], agreed: Mapping[str, Any], ended: int | None) -> None:
        stamp = None if ended is None else _EPOCH + dt.timedelta(microseconds=ended)
        add_run(self._runs, {"run_id": key[0], "engine": key[1], "ended": stamp, **agreed})

    def _table(self, columns: Mapping[str, Any], rows: int) -> pa.Table:
        schema = table(self._name).arrow_schema()
        if self._coded is None:
            texts = {f.name for f in schema if f.type == pa.string()}
            self._coded = frozenset(c for c in texts if isinstance(columns.get(c), Same))
        arrays, fields = [], []
        for field in schema:
            array = _array(columns.get(field.name), field.type, rows, coded=field.name in self._coded)
            arrays.append(array)
            fields.append(field.with_type(array.type))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _lay(self, rows: pa.Table, stamps: Any) -> None:
        """Put rows to the others of their day, and write the days that have enough of them."""
        self._written += rows.num_rows
        if stamps is None or isinstance(stamps, Same):
            self._days.setdefault(None if stamps is None else stamps.value // _DAY_US, []).append(rows)
        else:
            days = stamps // _DAY_US
            own = [days[0]] if days[0] == days[-1] and (days == days[0]).all() else np.unique(days)
            for day in own:
                part = rows if len(own) == 1 else rows.filter(pa.array(days == day))
                self._days.setdefault(int(day), []).append(part)
        held = {day: sum(t.num_rows for t in tables) for day, tables in self._days.items()}
        full = sum(held.values()) > 2 * ROW_GROUP
        for day, count in held.items():
            if full or count >= ROW_GROUP:
                self._write_day(day)

    def _write_day(self, day: int | None) -> None:
        rows = pa.concat_tables(self._days.pop(day))
        if day not in self._writers:
            if len(self._writers) >= _MOST_DAYS:
                raise Unproved("rows of many days")
            self._writers[day] = rows_writer(self._path(day), rows.schema, rows)
        self._behind.write(self._writers[day], rows)

    def _path(self, day: int | None) -> Path:
        return self._folder / f"{day}.parquet"

    def close(self) -> None:
        """Close the files, written to their end or not."""
        self._behind.close()
        for writer in self._writers.values():
            writer.close()


def add_run(runs: dict[tuple[str, str], dict[str, Any]], run: Mapping[str, Any]) -> None:
    """Add what some rows of a run agree on to what others do."""
    seen = runs.setdefault((run["run_id"], run["engine"]), dict(run))
    seen["ended"] = max(filter(None, (seen["ended"], run["ended"])), default=None)
    for column in RUN_FACTS:
        seen[column] = run[column] if seen[column] == run[column] else None


def _joined(parts: Sequence[tuple[Any, int]]) -> Any:
    """Parts of a column as one."""
    first = parts[0][0]
    if all(isinstance(v, Same) and v.value == first.value for v, _ in parts):
        return first
    arrays = [_full(v, n) if isinstance(v, Same) else v for v, n in parts]
    if isinstance(arrays[0], pa.Array):
        return pa.concat_arrays(arrays)
    return np.concatenate(arrays)


def _full(same: Same, rows: int) -> Any:
    return pa.repeat(same.value, rows) if isinstance(same.value, str) else np.full(rows, same.value)


def picked(value: Any, good: Any) -> Any:
    """The cells of a column for which `good` is true."""
    if isinstance(value, Same):
        return value
    return value.filter(pa.array(good)) if isinstance(value, pa.Array) else value[good]


def _frame(columns: Mapping[str, Any], lines: Places, *, texts: bool = False) -> pl.DataFrame:
    """Columns for polars; texts that differ only where a rule looks at them."""
    frame = pl.DataFrame({"line": lines})
    series: list[pl.Expr | pl.Series] = []
    for name, value in columns.items():
        if isinstance(value, Same):
            series.append(pl.lit(value.value).alias(name))
        elif not isinstance(value, pa.Array) or texts or name in _RULED:
            series.append(pl.Series(name, value))
    return frame.with_columns(series)


# Columns that hold texts and stand in an identity.
_RULED = frozenset({"timing_basis", "rounds_basis", "counts_basis", "time_basis", "tpot_basis"})


def _derived(name: str, columns: Mapping[str, Any], frame: pl.DataFrame) -> dict[str, Any]:
    """DERIVED of the rules.

    Raises:
        Unproved: the rows of a step would have to be counted.
    """
    if name == "rounds":
        if "step_share" in columns or "batch_size" not in columns:
            return {}
        batch = columns["batch_size"]
        sizes = np.array([batch.value]) if isinstance(batch, Same) else batch
        if (sizes == 0).any():
            if "step_id" in columns:
                raise Unproved("a step without a batch size")
            shares = pl.Series(1.0 / np.where(sizes == 0, np.nan, sizes)).fill_nan(None).to_arrow()
            return {} if isinstance(batch, Same) else {"step_share": shares}
        shares = 1.0 / sizes
        return {"step_share": Same(float(shares[0])) if isinstance(batch, Same) else shares}
    if name != "requests":
        return {}
    missing = [c for c in ("decode_us", "output_tokens", "tpot_us") if c not in columns]
    frame = frame.with_columns(pl.lit(None, pl.Float64).alias(c) for c in missing)
    found = frame.select("line", *(pl.sql_expr(how).alias(c) for c, how in rules.DERIVED[name].items()))
    return {c: found[c].cast(table(name).polars_schema()[c]).to_arrow() for c in rules.DERIVED[name]}


def _mapped(value: Any, change: Any) -> Any:
    """A text column with each of its texts changed."""
    if isinstance(value, Same):
        return Same(change(value.value))
    coded = value.dictionary_encode()
    return pa.array([change(v) for v in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


def _worded(column: str, value: Any) -> Any:
    """None for all rows where the one value of all is no word."""
    if isinstance(value, Same):
        return value if names.word(pl.Series(column, [value.value])).item() is not None else None
    return names.word(pl.Series(column, value)).to_arrow().cast(pa.string())


def _hashed(redaction: Redaction, value: Any) -> Any:
    if isinstance(value, Same):
        return Same(redaction.series(pl.Series([value.value]))[0])
    return redaction.series(pl.Series(value)).to_arrow().cast(pa.string())


def _agreed(value: Any) -> Any:
    """The value of all rows; None where they differ."""
    if value is None or isinstance(value, Same):
        return None if value is None else value.value
    if isinstance(value, pa.Array):
        own = value.unique()
        return own[0].as_py() if len(own) == 1 else None
    return value[0].item() if (value == value[0]).all() else None


def _latest(stamps: Any) -> int | None:
    if stamps is None:
        return None
    return int(stamps.value if isinstance(stamps, Same) else stamps.max())


def _array(value: Any, kind: pa.DataType, rows: int, *, coded: bool) -> pa.Array:
    if value is None:
        return pa.nulls(rows, pa.dictionary(pa.int32(), kind) if coded else kind)
    if coded:
        if isinstance(value, Same):
            return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value.value]))
        return value.dictionary_encode()
    if isinstance(value, Same):
        value = _full(value, rows)
    array = value if isinstance(value, pa.Array) else pa.array(value)
    return array.cast(kind)
