"""Records of one kind, read column by column with strict types, and the identities over the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import polars as pl

from tracelens.engines.base import JsonRecord
from tracelens.engines.generic.rules import IDENTITIES, NOT_READ, stamp_columns, time_columns
from tracelens.engines.units import (
    INT32_MAX,
    INT64_MAX,
    BrokenError,
    boolean,
    counts,
    duration,
    finite,
    fits,
    text,
    whole,
)
from tracelens.lake.schema import Column, table

_EARLIEST_US = 1e15
_LATEST_US = 4.1e15  # the year 2099: later is no stamp of a log
_IDS = frozenset({"request_id", "step_id", "run_id", "replica", "process"})


def _epoch_us(value: Any, factor: float | None, key: str) -> float:
    number = finite(value, key)
    if number is None or number < 0:
        raise BrokenError(f"{key}: negative")
    if factor is None:
        factor = next((f for limit, f in ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0)) if number < limit), 1e-3)
    if number * factor > _LATEST_US:
        raise BrokenError(f"{key}: out of range")
    return number * factor


class Block:
    """The records of one kind of one block, read column by column."""

    def __init__(self, name: str, records: Sequence[JsonRecord]) -> None:
        self.table = name
        self.records = records
        self.faults: dict[int, str] = {}
        self.cells: dict[str, list[Any]] = {}
        self.keys = {key for record in records for key in record.value}

    def _values(self, key: str) -> list[Any]:
        return [record.value.get(key) for record in self.records]

    def _keep(self, column: str, values: list[Any]) -> None:
        """Of several spellings the first that a record gives wins."""
        have = self.cells.get(column)
        if have is not None:
            values = [new if old is None else old for old, new in zip(have, values, strict=True)]
        self.cells[column] = values

    def _take(self, column: str, values: list[Any], read: Callable[[Any], Any]) -> None:
        out: list[Any] = []
        for row, value in enumerate(values):
            try:
                out.append(None if value is None else read(value))
            except BrokenError as fault:
                out.append(None)
                self.faults.setdefault(row, str(fault))
        self._keep(column, out)

    def read(self) -> None:
        """Read every key of the block that names a column."""
        for key, (column, factor) in time_columns(self.table).items():
            if key in self.keys:
                as_float = table(self.table).polars_schema()[column] == pl.Float64()
                self._take(column, self._values(key), partial(duration, name=key, factor=factor, as_float=as_float))
        for key, (column, scale) in stamp_columns(self.table).items():
            if key in self.keys:
                self._stamps(column, key, scale)
        for spec in table(self.table).columns:
            if spec.name in self.keys and spec.name not in NOT_READ and spec.unit != "us":
                self._plain(spec)

    def _stamps(self, column: str, key: str, scale: float | None) -> None:
        values = self._values(key)
        words = [v if scale is None and isinstance(v, str) else None for v in values]
        self._take(f"{column}@text", words, partial(text, name=key))
        numbers = [v if word is None else None for v, word in zip(values, words, strict=True)]
        self._take(f"{column}@epoch", numbers, partial(_epoch_us, factor=scale, key=key))

    def _plain(self, spec: Column) -> None:
        name, values = spec.name, self._values(spec.name)
        if spec.arrow in ("int32", "int64"):
            high = INT32_MAX if spec.arrow == "int32" else INT64_MAX
            if fits(values, high):
                self._keep(name, values)
            else:
                self._take(name, values, partial(whole, name=name, high=high))
        elif spec.arrow == "double":
            self._take(name, values, partial(finite, name=name))
        elif spec.arrow == "bool":
            self._take(name, values, partial(boolean, name=name))
        elif spec.arrow == "string":
            self._take(name, values, partial(text, name=name, is_id=name in _IDS))
        elif spec.arrow == "list<int64>":
            self._take(name, values, partial(counts, name=name))

    def frame(self) -> pl.DataFrame:
        """All columns of the table, missing ones null, with `@text` and `@relative` of each stamp."""
        empty: list[Any] = [None] * len(self.records)
        series = [
            pl.Series("line", [r.line for r in self.records], dtype=pl.Int64),
            pl.Series("offset", [r.offset for r in self.records], dtype=pl.Int64),
            pl.Series("stamp", [r.stamp for r in self.records], dtype=pl.String),
        ]
        for name, dtype in table(self.table).polars_schema().items():
            if name in NOT_READ:
                continue
            if dtype == pl.Datetime("us"):
                series += self._stamp_series(name, self.cells.get(f"{name}@epoch", empty))
                series.append(pl.Series(f"{name}@text", self.cells.get(f"{name}@text", empty), dtype=pl.String))
            else:
                series.append(pl.Series(name, self.cells.get(name, empty), dtype=dtype))
        return pl.DataFrame(series)

    def _stamp_series(self, name: str, epoch: Sequence[float | None]) -> list[pl.Series]:
        absolute = [None if e is None or e < _EARLIEST_US else round(e) for e in epoch]
        relative = [e is not None and e < _EARLIEST_US for e in epoch]
        return [
            pl.Series(name, absolute, dtype=pl.Int64).cast(pl.Datetime("us")),
            pl.Series(f"{name}@relative", relative, dtype=pl.Boolean),
        ]


def _list_facts(name: str, frame: pl.DataFrame) -> list[pl.Expr]:
    """LIST_FACTS in polars; a figure too large for int64 becomes -1, which no identity takes for true."""

    def guarded(figure: pl.Expr, as_float: pl.Expr) -> pl.Expr:
        # A sum of int64 wraps silently in polars 2.1: the same sum in doubles tells when it would.
        return pl.when(as_float >= 2.0**62).then(pl.lit(-1, pl.Int64)).otherwise(figure)

    if name == "windows":
        c = pl.col("accepted_per_pos")
        # Neighbours subtracted as lists: list.diff() takes ten times as long.
        before = c.list.slice(0, pl.max_horizontal(c.list.len(), 1) - 1)
        falls = (c.list.slice(1) - before).list.max().fill_null(0) <= 0
        return [
            guarded(c.list.sum(), c.cast(pl.List(pl.Float64)).list.sum()).alias("accepted_per_pos_sum"),
            c.list.min().alias("accepted_per_pos_min"),
            c.list.max().alias("accepted_per_pos_max"),
            pl.when(c.is_not_null()).then(falls).alias("accepted_per_pos_falls"),
        ]
    if name == "requests":
        c = pl.col("accepted_hist")
        moment = pl.element() * pl.int_range(pl.len())
        doubles = c.cast(pl.List(pl.Float64))
        return [
            guarded(c.list.sum(), doubles.list.sum()).alias("accepted_hist_sum"),
            c.list.min().alias("accepted_hist_min"),
            guarded(c.list.eval(moment).list.sum(), doubles.list.eval(moment).list.sum()).alias("accepted_hist_moment"),
        ]
    return []


@cache
def _identities(name: str) -> tuple[Mapping[str, pl.Expr], pl.Expr]:
    """When a row breaks which identity of a table, and when any: made once, as a small file has few rows to check."""
    broken = {label: pl.sql_expr(expression).not_() for label, expression in IDENTITIES[name]}
    return broken, pl.any_horizontal(*broken.values()).fill_null(False)


def broken_identities(name: str, frame: pl.DataFrame) -> pl.Series:
    """The name of the first identity that each row breaks, or null.

    Args:
        name: canonical table.
        frame: rows with all columns of the table but `NOT_READ`.
    """
    frame = frame.with_columns(_list_facts(name, frame))
    broken, any_broken = _identities(name)
    # Nearly all rows keep all of them: truths are cheap, the names are looked up for the others only.
    bad = frame.select(any_broken).to_series()
    found = pl.Series("broken", [], pl.String).extend_constant(None, frame.height)
    if not bad.any():
        return found
    named = frame.filter(bad).select(pl.coalesce(pl.when(b).then(pl.lit(label)) for label, b in broken.items()))
    return found.scatter(bad.arg_true(), named.to_series())
