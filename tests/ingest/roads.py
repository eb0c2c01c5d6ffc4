"""The same file by each of the three roads, and what each leaves in a lake."""

from __future__ import annotations

import json
import logging
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from tracelens.engines import load
from tracelens.ingest import fast, quick_ranges, ranges
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


class Inline:
    """Does in this process what others are asked for, with all that goes there and back."""

    killed = -1  # the number of the piece of work at which the process ends

    def __init__(self) -> None:
        self._done = 0

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._done == self.killed:
            future.set_exception(BrokenProcessPool("it was terminated abruptly"))
            return future
        self._done += 1
        try:
            future.set_result(pickle.loads(pickle.dumps(work(*pickle.loads(pickle.dumps(given))))))
        except fast.Unproved as why:
            future.set_exception(why)
        return future

    def close(self) -> None:
        pass


@contextmanager
def inline() -> Iterator[None]:
    """With `Inline` for other processes."""
    with (
        patch.object(ranges, "_pool", lambda processes, chosen: Inline()),
        patch.object(ranges, "_engines", list(ENGINES)),
        patch.object(quick_ranges, "_pool", lambda processes: Inline()),
    ):
        yield


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
    processes: int = 1,
    adopt: Mapping[str, str] | None = None,
    **options: Any,
) -> Outcome:
    """Stage a file; `quick` lets the fast roads try whatever its size, else they never do.

    Without `walked` the road that takes lines of one form apart does not try; `processes` may read it.
    """
    chosen = IngestOptions(**options)
    columns, constants = parse_sets(chosen.sets)
    file = discover([str(path)])[0][0]
    staging.mkdir(parents=True)
    job = Job(file, chosen, columns, (), {}, adopt or {}, staging, None, processes)
    before = fast.SMALLEST
    fast.SMALLEST = 0 if quick else 1 << 60
    try:
        with heard() as said, pytest.MonkeyPatch.context() as monkeypatch, inline():
            monkeypatch.setattr(ranges, "SMALLEST", 0)
            monkeypatch.setattr(ranges, "DENSE", 0)
            if not walked:
                monkeypatch.setattr("tracelens.ingest.quick.plan_of", lambda head, shape: None)
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


def agree(
    path: Path, folder: Path, *, walked: bool = True, processes: int = 1, **options: Any
) -> tuple[Outcome, Outcome]:
    """Stage a file by the quick roads and by the slow one; both must leave the same."""
    quick = take(path, folder / "quick", quick=True, walked=walked, processes=processes, **options)
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
