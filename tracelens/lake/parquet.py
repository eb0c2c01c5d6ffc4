"""Canonical rows to Parquet: types from `schemas/`, one folder a UTC day, zstd."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

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


def write_empty(name: str, path: Path) -> None:
    """Write the zero-row file that keeps a table's path alive in a new lake."""
    import pyarrow as pa

    write_arrow(pa.Table.from_pylist([], schema=table(name).arrow_schema()), path)


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
    import polars as pl

    column = DAY_OF[name]
    day = pl.col(column).dt.date() if column in frame.columns else pl.lit(None, pl.Date)
    parts = frame.with_columns(_day=day).partition_by("_day", as_dict=True, include_key=False, maintain_order=True)
    for (value,), part in parts.items():
        folder = NO_DAY if value is None else value.isoformat()
        write_arrow(to_arrow(name, part), place(f"{name}/date={folder}/{stem}-0.parquet"))
    return frame.height


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
        if field.name not in frame.columns:
            columns.append(pa.nulls(frame.height, field.type))
            continue
        column = frame[field.name].cast(types[field.name]).rechunk().to_arrow()
        columns.append(map_array(column, field.type) if pa.types.is_map(field.type) else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def map_array(pairs: pa.Array, kind: pa.DataType) -> pa.Array:
    """A list of key/value structs as an Arrow map; a null list stays null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs = pairs.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    items = pairs.flatten()
    keys, values = items.field("key"), items.field("value")
    offsets = pa.array(pairs.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)).cast(pa.int32())
    ends = pc.cumulative_sum(offsets)
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    mask = pairs.is_null()
    return pa.MapArray.from_arrays(starts, keys, values, type=kind, mask=mask if mask.true_count else None)


def write_arrow(rows: pa.Table, path: Path) -> None:
    """Write an Arrow table with the canonical columns, as every file of a lake is written."""
    import pyarrow.parquet as pq

    pq.write_table(
        rows,
        path,
        compression=COMPRESSION,
        compression_level=LEVEL,
        row_group_size=ROW_GROUP,
        store_schema=True,
        use_dictionary=True,
    )


def rows_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of facts in pieces, quick rather than small; columns may be dictionaries, which readers do not see."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rising = [f.name for f in schema if f.name == "source_line" or pa.types.is_timestamp(f.type)]
    coded = [f.name for f in schema if f.name not in rising]
    return pq.ParquetWriter(
        path,
        schema,
        compression=COMPRESSION,
        compression_level=1,
        use_dictionary=coded,
        column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        store_schema=False,
    )
