"""Canonical rows to Parquet: types from `schemas/`, one folder a UTC day, zstd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.lake.schema import DAY_OF, NO_DAY, table

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

# zstd 1-3 cost the same CPU here and 9 costs half as much again for 3% (MEASURED.md, writer choices); row groups of
# DuckDB's own size let it prune and parallelise.
COMPRESSION = "zstd"
LEVEL = 3
ROW_GROUP = 122_880
# zstd makes its tables anew for each of forty columns, and each dictionary is a page more: of so few rows a file takes
# 1.4 ms and not 3.6 to write, 1.1 and not 2.6 to read, and is no larger.
_QUICK, _FEW_ROWS = "snappy", 64
_RUNS = 1000
_OPEN = 8  # files of as many days


def write_empty(name: str, path: Path) -> None:
    """Write the zero-row file that keeps a table's path alive in a new lake."""
    import polars as pl

    write_arrow(to_arrow(name, pl.DataFrame()), path)


def write_table(name: str, frame: pl.DataFrame, place: Callable[[str], Path], stem: str) -> int:
    """Write rows of one canonical table.

    Args:
        name: canonical table.
        frame: any subset of its columns; missing ones become null, others are an error.
        place: gives the path to write for a path in the lake.
        stem: file name without suffix and number (the source).

    Returns:
        Rows written.
    """
    if not frame.height:
        return 0
    if name not in DAY_OF:
        write_arrow(to_arrow(name, frame), place(f"{name}/{stem}-0.parquet"))
        return frame.height
    for day, part in _by_day(frame, _days(name, frame)):
        write_arrow(to_arrow(name, part), place(_path(name, day, stem)))
    return frame.height


class DayWriters:
    """Files of one table, a day each, that are written piece by piece; rows of a day may come back to it.

    Args:
        name: canonical table with a day.
        place: gives the path to write for a path in the lake.
        stem: file name without suffix and number.
    """

    def __init__(self, name: str, place: Callable[[str], Path], stem: str) -> None:
        self._name, self._place, self._stem = name, place, stem
        self._open: dict[date | None, pq.ParquetWriter] = {}  # the day written last at the end
        self._files: Counter[date | None] = Counter()

    def write(self, frame: pl.DataFrame) -> None:
        """Write rows, as `write_table`."""
        for day, part in _by_day(frame, _days(self._name, frame)):
            writer = self._open.pop(day, None) or self._opened(day)
            self._open[day] = writer
            writer.write_table(to_arrow(self._name, part), row_group_size=ROW_GROUP)

    def close(self) -> None:
        """Finish all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _opened(self, day: date | None) -> pq.ParquetWriter:
        while len(self._open) >= _OPEN:
            self._open.pop(next(iter(self._open))).close()
        path = self._place(_path(self._name, day, self._stem, self._files[day]))
        self._files[day] += 1
        return rows_writer(path, table(self._name).arrow_schema())


def _days(name: str, frame: pl.DataFrame) -> pl.Series:
    import polars as pl

    column = DAY_OF[name]
    day = pl.col(column).dt.date() if column in frame.columns else pl.lit(None, pl.Date)
    return frame.with_columns(_day=day)["_day"]


def _path(name: str, day: date | None, stem: str, number: int = 0) -> str:
    return f"{name}/date={NO_DAY if day is None else day.isoformat()}/{stem}-{number}.parquet"


def _by_day(frame: pl.DataFrame, days: pl.Series) -> Iterator[tuple[date | None, pl.DataFrame]]:
    """The rows of each day, in their order: without a copy where a day's rows stand together, as in a log."""
    import polars as pl

    runs = days.rle().struct.unnest()
    if runs.height > _RUNS:
        parts = frame.with_columns(_day=days).partition_by("_day", as_dict=True, include_key=False, maintain_order=True)
        yield from ((value, part) for (value,), part in parts.items())
        return
    slices: dict[date | None, list[pl.DataFrame]] = {}
    start = 0
    for length, value in runs.select("len", "value").iter_rows():
        slices.setdefault(value, []).append(frame.slice(start, length))
        start += length
    for value, found in slices.items():
        yield value, pl.concat(found, rechunk=False)


def write_frames(name: str, frames: Iterable[pl.DataFrame], path: Path) -> int:
    """Write rows of a table without days, frame by frame; no file where there are none.

    Returns:
        Rows written.
    """
    import pyarrow.parquet as pq

    rows = 0
    writer = None
    try:
        for frame in frames:
            part = to_arrow(name, frame)
            writer = writer or pq.ParquetWriter(path, part.schema, compression=COMPRESSION, compression_level=LEVEL)
            writer.write_table(part, row_group_size=ROW_GROUP)
            rows += part.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def to_arrow(name: str, frame: pl.DataFrame) -> pa.Table:
    """Rows as an Arrow table with exactly the canonical columns and types.

    Raises:
        KeyError: a column that the table does not have.
    """
    import pyarrow as pa

    schema = table(name).arrow_schema()
    unknown = set(frame.columns) - set(schema.names)
    if unknown:
        raise KeyError(f"{name} has no column {', '.join(sorted(unknown))}")
    types = table(name).polars_schema()
    columns: list[pa.Array | pa.ChunkedArray] = []
    for field in schema:
        if field.name not in frame.columns or frame[field.name].null_count() == frame.height:
            columns.append(pa.nulls(frame.height, field.type))
            continue
        # Most are of their type already, and both casts cost more than a short column, of which a small file has forty.
        series = frame[field.name]
        series = series if series.dtype == types[field.name] else series.cast(types[field.name])
        column = series.rechunk().to_arrow()
        if pa.types.is_map(field.type):
            columns.append(map_array(column, field.type))
        else:
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def map_array(pairs: pa.Array, kind: pa.DataType) -> pa.Array:
    """A list of key/value structs as an Arrow map; a null list stays null."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    pairs = pairs.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    items = pairs.flatten()
    keys, values = items.field("key"), items.field("value")
    # Neither to_numpy() nor arrays from Python values: both import pandas wherever it is installed, which takes longer
    # than a small file.
    lengths = pl.Series(pairs.value_lengths()).fill_null(0)
    edges = np.zeros(len(pairs) + 1, np.int32)
    np.cumsum(lengths.to_numpy(), out=edges[1:])
    starts = pa.Array.from_buffers(pa.int32(), len(edges), [None, pa.py_buffer(edges)])
    mask = pairs.is_null()
    return pa.MapArray.from_arrays(starts, keys, values, type=kind, mask=mask if mask.true_count else None)


def arrow_writer(schema: pa.Schema, path: Path) -> pq.ParquetWriter:
    """A writer of one file in parts, as every file of a lake is written."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(
        path, schema, compression=COMPRESSION, compression_level=LEVEL, store_schema=True, use_dictionary=True
    )


def write_arrow(rows: pa.Table, path: Path) -> None:
    """Write an Arrow table with the canonical columns, as every file of a lake is written but for the smallest."""
    import pyarrow.parquet as pq

    small = rows.num_rows <= _FEW_ROWS
    codecs = {"compression": _QUICK} if small else _codecs(rows, LEVEL)
    pq.write_table(rows, path, row_group_size=ROW_GROUP, store_schema=True, use_dictionary=not small, **codecs)


def rows_writer(path: Path, schema: pa.Schema, first: pa.Table | None = None) -> pq.ParquetWriter:
    """A writer of facts in pieces, quick rather than small; columns may be dictionaries, which readers do not see.

    Args:
        path: the file.
        schema: of the rows.
        first: the first rows, where all others have values in the same columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rising = [f.name for f in schema if f.name == "source_line" or pa.types.is_timestamp(f.type)]
    coded = [f.name for f in schema if f.name not in rising]
    codecs = {"compression": COMPRESSION, "compression_level": 1} if first is None else _codecs(first, 1)
    encodings = dict.fromkeys(rising, "DELTA_BINARY_PACKED")
    return pq.ParquetWriter(path, schema, use_dictionary=coded, column_encoding=encodings, store_schema=False, **codecs)


def _codecs(rows: pa.Table, level: int) -> dict[str, Any]:
    """zstd for the columns that have values: of the others, half of most tables, a page is a few bytes, and to make the
    tables that zstd needs for it takes longer than to write it (9,000 windows: 8.6 ms and not 9.9, 200: 2.1 and 3.2).
    """
    filled = [path for f in rows.schema if rows[f.name].null_count < rows.num_rows for path in _leaves(f.name, f.type)]
    return {"compression": dict.fromkeys(filled, COMPRESSION), "compression_level": dict.fromkeys(filled, level)}


def _leaves(name: str, kind: pa.DataType) -> list[str]:
    """What Parquet calls the columns below one of ours."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        return [f"{name}.key_value.key", f"{name}.key_value.value"]
    return [f"{name}.list.element"] if pa.types.is_list(kind) else [name]


class Behind:
    """Writes rows in a thread of its own while the next ones are made: pyarrow holds no lock of Python meanwhile.

    One table waits at most, so that memory stays bounded.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tracelens-parquet")
        self._last: Future[None] | None = None

    def write(self, writer: pq.ParquetWriter, rows: pa.Table) -> None:
        """Write rows as one group, when those before are written.

        Raises:
            OSError: of this or of an earlier call, a full disk say.
        """
        self.wait()
        self._last = self._pool.submit(writer.write_table, rows, row_group_size=max(1, rows.num_rows))

    def wait(self) -> None:
        """Wait until all is written; raises as `write`."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """Let go of the thread; what it writes is written to its end, and what went wrong is not told any more."""
        self._pool.shutdown()


def statistics(footer: pq.FileMetaData, column: str) -> list[pq.Statistics | None]:
    """What the footer of a file says of a column, by row group; nothing where there is no such column."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    # Not by `footer.schema`: pyarrow (26) never frees a footer that was asked for it, 100 KB a file.
    names = [groups[0].column(i).path_in_schema for i in range(footer.num_columns)] if groups else []
    return [group.column(names.index(column)).statistics for group in groups] if column in names else []
