"""What a lake holds, in a form that can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tracelens.lake.schema import TABLES

# Differ from run to run, or tell of the order in which files came.
VOLATILE = {"ingested_at", "replaces"}


def files(lake: Path) -> set[str]:
    """All data files of the lake, without what is being staged."""
    return {
        p.relative_to(lake).as_posix()
        for p in lake.rglob("*")
        if p.is_file() and not p.is_relative_to(lake / ".staging")
    }


def contents(lake: Path) -> dict[str, bytes]:
    return {name: (lake / name).read_bytes() for name in files(lake)}


def rows(lake: Path) -> dict[str, list[str]]:
    """Every row of every table as text, sorted."""
    found: dict[str, list[str]] = {}
    for table in TABLES:
        cells: list[dict[str, Any]] = []
        for path in sorted((lake / table).rglob("*.parquet")):
            cells += pq.ParquetFile(path).read().to_pylist()
        found[table] = sorted(repr({k: v for k, v in c.items() if k not in VOLATILE}) for c in cells)
    return found


def staged(lake: Path) -> list[str]:
    """Transactions that nobody has cleared away."""
    return sorted(p.name for p in (lake / ".staging").iterdir() if p.is_dir())
