"""Small lakes for tests: rows given as dicts, written as Parquet by the canonical schemas."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracelens.lake.schema import DAY_OF, TABLES, table

Row = Mapping[str, Any]
NO_DAY = "date=__HIVE_DEFAULT_PARTITION__"
REQUIRED = {
    "run_id": "run",
    "engine": "vllm",
    "surface": "test.rows",
    "source_id": "src",
    "request_id": "req",
    "accepted": 0,
    "sha256": "00",
    "reason": "test",
}


def write_lake(folder: Path, **tables: Sequence[Row]) -> Path:
    """Write a lake: one zero-row file a table, and the rows given, each fact in the partition of its day."""
    for name in TABLES:
        schema = table(name).arrow_schema()
        place = folder / name / NO_DAY if name in DAY_OF else folder / name
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(schema.empty_table(), place / "empty.parquet")
        by_day: dict[str, list[Row]] = defaultdict(list)
        for line, row in enumerate(tables.get(name, ())):
            by_day[_day(name, row)].append(_filled(name, row, line))
        for day, rows in by_day.items():
            target = folder / name / day if name in DAY_OF else folder / name
            target.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), target / "rows.parquet")
    unknown = set(tables) - set(TABLES)
    assert not unknown, unknown
    return folder


def _day(name: str, row: Row) -> str:
    stamp = row.get(DAY_OF[name]) if name in DAY_OF else None
    return f"date={stamp:%Y-%m-%d}" if isinstance(stamp, dt.datetime) else NO_DAY


def _filled(name: str, row: Row, line: int) -> dict[str, Any]:
    columns = table(name).columns
    unknown = set(row) - {c.name for c in columns}
    assert not unknown, unknown
    filled = {c.name: row.get(c.name, REQUIRED.get(c.name) if c.required else None) for c in columns}
    if "source_line" in filled and filled["source_line"] is None:
        filled["source_line"] = line
    return filled
