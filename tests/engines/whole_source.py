"""Help for the tests of small readers: a file as the pipeline reads it, offered to every engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl

from tracelens.engines import load
from tracelens.engines.base import Context, Reject, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.ingest.read import read
from tracelens.lake.schema import table
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import discover

CONTEXT = Context("src", lambda frame: resolve(frame, tz=None, year=None, mtime=0.0))


def ingest(folder: Path, content: str | bytes, engine: str, name: str = "x.log") -> tuple[Tables, list[Reject]]:
    """The canonical rows of one file: only `engine` finds any, and every identity holds in them."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (0, 0))
    return ingest_file(path, engine)


def ingest_file(path: Path, engine: str) -> tuple[Tables, list[Reject]]:
    """The same of a file that is there."""
    files, _ = discover([str(path)])
    engines = load()
    reading = read(files[0], engines)
    (own,) = [e for e in engines if e.name == engine]
    others = {e.name for e in engines if reading.parsed[e.name].frames or reading.parsed[e.name].rejects}
    assert others <= {engine}
    parsed = reading.parsed[engine]
    tables = own.assemble(parsed.frames, CONTEXT) if parsed.frames else Tables()
    declared = {s.name for s in own.surfaces}
    assert set(parsed.frames) <= declared
    for table_name in ("rounds", "windows", "requests", "runs"):
        check(table_name, getattr(tables, table_name), declared)
    return tables, reading.rejects + parsed.rejects + tables.rejects


def check(name: str, frame: pl.DataFrame | None, surfaces: set[str]) -> None:
    """Columns are canonical, cells fit their types, and no identity is broken."""
    if frame is None:
        return
    types = table(name).polars_schema()
    own = frame.drop("run_key", "is_result", strict=False)
    assert set(own.columns) <= set(types), set(own.columns) - set(types)
    full = own.cast({c: types[c] for c in own.columns})
    full = full.with_columns(pl.lit(None, t).alias(c) for c, t in types.items() if c not in own.columns)
    faults = full.select(broken_identities(name, full).alias("fault"))["fault"].drop_nulls().to_list()
    assert faults == [], faults
    if name != "runs":
        assert set(frame["surface"]) <= surfaces
        assert frame["source_line"].null_count() == 0


def shown(frame: pl.DataFrame | None, *columns: str) -> list[tuple[Any, ...]]:
    """The columns' values, row by row; null for a column that is missing."""
    assert frame is not None
    return frame.with_columns(pl.lit(None).alias(c) for c in columns if c not in frame.columns).select(columns).rows()


def reasons(rejects: list[Reject]) -> list[str]:
    """What was refused, in words."""
    return [r.reason for r in rejects]
