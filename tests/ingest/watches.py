"""Watches over small logs, and what is in their lakes."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ingest_logs import interval, log, run, table

from tracelens.ingest.options import IngestOptions
from tracelens.ingest.watch import Round, Stop, Watcher

FACTS = ("rounds", "requests", "windows")


class Time:
    """A clock that goes forward when someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def watching(lake: Path, *paths: Path | str, **options: Any) -> Watcher:
    time = Time()
    chosen = IngestOptions(**({"year": 2026} | options))
    return Watcher([str(p) for p in paths], lake, chosen, stop=Stop(time, time.sleep), clock=time)


def look(watcher: Watcher) -> Round:
    return watcher.round(everything=True)


def rows(lake: Path, ignoring: Sequence[str] = ()) -> dict[str, list[str]]:
    return {
        name: sorted(repr({k: v for k, v in row.items() if k not in ignoring}) for row in table(lake, name))
        for name in FACTS
    }


def same_as_fresh(lake: Path, *paths: Path, **options: Any) -> None:
    fresh = lake.parent / f"fresh-{random.random()}"
    run(fresh, *paths, **options)
    assert rows(lake) == rows(fresh)


def add(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write(log(*lines))


def pack(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


def clocks(n: int, hour: int = 12) -> list[str]:
    return [interval(f"{hour}:{i // 60:02d}:{i % 60:02d}", accepted=100 + i % 200) for i in range(n)]
