"""The same log in one go, in parts, and by several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from unittest.mock import patch

import pyarrow.parquet as pq
from roads import ENGINES, heard, inline

from tracelens.ingest import parts, ranges, read
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions, Staged
from tracelens.ingest.stage import stage
from tracelens.ingest.write import Job
from tracelens.lake.schema import TABLES
from tracelens.sources import stream
from tracelens.sources.discover import discover

Tables = dict[str, list[dict[str, Any]]]
# In Berlin it is three o'clock in half a minute, and then two again.
AUTUMN = datetime(2026, 10, 25, 2, 59, 30)


class Written(Protocol):
    """A log that is being made up: its lines, and what the clock shows."""

    now: datetime
    lines: list[str]

    def act(self, kind: int, number: int) -> None: ...


def through_autumn(log: Written, acts: Sequence[tuple[int, int]]) -> None:
    """Have a log say something while the clock falls back: a second of that hour may come twice."""
    for kind, number in acts:
        log.act(kind, number)
        if log.now >= AUTUMN + timedelta(seconds=30) and kind == 3 and number == 20:
            log.now -= timedelta(hours=1)


@contextmanager
def parts_kept() -> Iterator[list[dict[str, int]]]:
    """Rows by table of each part that is written before the end of a log is seen."""
    taken: list[dict[str, int]] = []
    kept = parts.InParts._keep

    def keep(self: parts.InParts, engine: str, made: Any, written: Any) -> None:
        taken.append({name: rows.height for name, rows in made.tables.items()})
        kept(self, engine, made, written)

    with patch.object(parts.InParts, "_keep", keep):
        yield taken


def staged(path: Path, folder: Path, part: int, **options: Any) -> tuple[Staged, Tables, list[str]]:
    """Stage a file in parts of so many records; what was staged, its rows, and what was said."""
    (file,) = discover([str(path)])[0]
    redaction, block, size = options.pop("redaction", None), options.pop("block", 12_000), options.pop("range_", None)
    part_bytes = options.pop("part_bytes", 1 << 40)
    folder.mkdir()
    job = Job(file, IngestOptions(**options), {}, (), {}, {}, folder, redaction, 1 if size is None else 2)
    with (
        patch.object(ranges, "SMALLEST", 0),
        patch.object(ranges, "DENSE", 0),
        patch.object(ranges, "RANGE", size),
        patch.object(ranges, "_STEP", 7),
        inline(),
        patch.object(parts, "PART", part),
        patch.object(parts, "PART_BYTES", part_bytes),
        patch.object(read, "_BLOCK", block),
        patch.object(read, "BATCH", 1),
        patch.object(stream, "_HEAD", 64),
        patch.dict(stream.BlockStream.__init__.__kwdefaults__, block_bytes=block),
        heard() as said,
    ):
        made = stage(job, ENGINES, Labels())
    tables = {
        name: [row for p in sorted((folder / name).rglob("*.parquet")) for row in pq.ParquetFile(p).read().to_pylist()]
        for name in TABLES
    }
    return (
        made,
        {
            name: sorted(rows, key=lambda r: (r.get("source_line") or r.get("line") or 0, repr(r)))
            for name, rows in tables.items()
        },
        said,
    )


def same(lines: Sequence[str] | bytes, part: int, modified: float | None = None, **options: Any) -> list[str]:
    """Whether both ways give the same rows, ledger and refusals; what was said on the way in parts."""
    with TemporaryDirectory() as place:
        path = Path(place) / "server.log"
        path.write_bytes(lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode())
        if modified is not None:
            os.utime(path, (modified, modified))
        one = {name: option for name, option in options.items() if name not in ("range_", "part_bytes")}
        whole, rows, _ = staged(path, Path(place) / "whole", 1 << 40, **one)
        made, found, said = staged(path, Path(place) / "parts", part, **options)
    assert found == rows
    own = {"ingested_at", "_files"}
    assert {k: v for k, v in (made.entry or {}).items() if k not in own} == {
        k: v for k, v in (whole.entry or {}).items() if k not in own
    }
    assert made.reasons == whole.reasons
    assert made.first_rejects == whole.first_rejects
    assert made.started_runs == whole.started_runs
    assert {e: h.all() for e, h in made.held.items()} == {e: h.all() for e, h in whole.held.items()}
    return said


def by_one(said: Sequence[str]) -> bool:
    return any("read by one" in line for line in said)


def in_one_go(said: Sequence[str]) -> bool:
    return any("put together in one go" in line for line in said)
