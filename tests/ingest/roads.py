"""The same file by each of the three roads, and what each leaves in a lake."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tracelens.engines import load
from tracelens.ingest import fast
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions, Staged
from tracelens.ingest.rows import parse_sets
from tracelens.ingest.stage import stage
from tracelens.ingest.write import Job
from tracelens.lake.schema import TABLES
from tracelens.sources.discover import discover

ENGINES = load()
CLEAN, SIFTED, SLOW = "clean", "sifted", "slow"


@dataclass
class Outcome:
    """What the staging did: the road it took, and every table."""

    road: str
    why: list[str]
    tables: dict[str, list[dict[str, Any]]]
    staged: Staged

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.tables[name]


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def heard() -> Iterator[list[str]]:
    """What the staging says while it works."""
    logger, handler = logging.getLogger("tracelens.ingest.stage"), _Heard()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def road_of(said: list[str]) -> str:
    if any("by the fast road" in s for s in said):
        return CLEAN
    return SIFTED if any("lines one by one" in s for s in said) else SLOW


def take(
    path: Path,
    staging: Path,
    *,
    quick: bool,
    walked: bool = True,
    adopt: Mapping[str, str] | None = None,
    **options: Any,
) -> Outcome:
    """Stage a file; `quick` lets the fast roads try whatever its size, else they never do.

    Without `walked` the road that takes lines of one form apart does not try.
    """
    chosen = IngestOptions(**options)
    columns, constants = parse_sets(chosen.sets)
    file = discover([str(path)])[0][0]
    staging.mkdir(parents=True)
    job = Job(file, chosen, columns, (), {}, adopt or {}, staging)
    before = fast.SMALLEST
    fast.SMALLEST = 0 if quick else 1 << 60
    try:
        with heard() as said, pytest.MonkeyPatch.context() as patch:
            if not walked:
                patch.setattr("tracelens.ingest.quick.plan_of", lambda head, shape: None)
            staged = stage(job, ENGINES, Labels(None, (), constants))
    finally:
        fast.SMALLEST = before
    left = sorted(p.relative_to(staging).as_posix() for p in staging.rglob("*") if p.is_file())
    assert left == (staged.entry or {"_files": []})["_files"]  # nothing of another road, no scratch file
    return Outcome(road_of(said), said, {name: _table(staging, name) for name in TABLES}, staged)


def _table(lake: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted((lake / name).rglob("*.parquet")):
        folder = path.parent.name
        found = pq.ParquetFile(path).read().to_pylist()
        rows += [{k: _cell(v) for k, v in row.items()} | {"folder": folder} for row in found]
    return sorted(rows, key=lambda r: (r.get("source_line") or r.get("line") or 0, r.get("run_id") or "", repr(r)))


def _cell(value: Any) -> Any:
    """Cells that can be compared: maps in order, numbers of one type."""
    if isinstance(value, list):
        return sorted(value) if value and isinstance(value[0], tuple) else value
    assert not (isinstance(value, float) and math.isnan(value))
    return value


def agree(path: Path, folder: Path, *, walked: bool = True, **options: Any) -> tuple[Outcome, Outcome]:
    """Stage a file by the quick roads and by the slow one; both must leave the same."""
    quick = take(path, folder / "quick", quick=True, walked=walked, **options)
    slow = take(path, folder / "slow", quick=False, **options)
    assert slow.road == SLOW
    for name in TABLES:
        a, b = quick.rows(name), slow.rows(name)
        assert len(a) == len(b), (name, len(a), len(b), quick.road, quick.why, a[:3], b[:3])
        for one, other in zip(a, b, strict=True):
            differ = {k: (one[k], other[k]) for k in one if not _same(k, one[k], other[k])}
            assert not differ, (name, quick.road, differ, one)
    assert _ledger(quick.staged) == _ledger(slow.staged)
    for figure in ("reasons", "first_rejects", "started_runs", "note"):
        assert getattr(quick.staged, figure) == getattr(slow.staged, figure), (figure, quick.road)
    return quick, slow


def _ledger(staged: Staged) -> dict[str, Any]:
    own = {"ingested_at", "_files"}
    return {k: v for k, v in (staged.entry or {"note": staged.note}).items() if k not in own}


def _same(column: str, one: Any, other: Any) -> bool:
    # polars reads the `1.0` of rules.DERIVED as a decimal and divides with seven digits; DuckDB divides doubles.
    if column in ("step_share", "tpot_us") and None not in (one, other):
        return math.isclose(one, other, rel_tol=0, abs_tol=1e-6)
    return bool(one == other)


def lines(*records: Any) -> str:
    return "".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records)
