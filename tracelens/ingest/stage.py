"""One source, read and written to the staging area of a transaction."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens import __version__
from tracelens.engines.base import Context, Engine, Reject
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions, Staged
from tracelens.ingest.read import Reading, read
from tracelens.ingest.rows import Naming, finish
from tracelens.lake.parquet import write_table
from tracelens.lake.schema import SCHEMA_VERSION, TABLES
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to stage one source."""

    file: SourceFile
    options: IngestOptions
    columns: Mapping[str, Any]
    checkpoints: tuple[int, ...]
    known: Mapping[str, str]
    adopt: Mapping[str, str]
    staging: Path


def place_in(staging: Path) -> Callable[[str], Path]:
    """A function from a path in the lake to the place where its file is staged."""

    def place(relative: str) -> Path:
        target = staging / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    return place


def stage(job: Job, engines: Sequence[Engine], labels: Labels, progress: Callable[[int], None] | None = None) -> Staged:
    """Read one source and write its rows below `job.staging`; the ledger row comes back, and is not written yet."""
    file = job.file
    reading = read(file, engines, checkpoints=job.checkpoints, progress=progress)
    out = Staged(file.name, file.folder_key, None)
    if reading.binary:
        out.note = "not text: skipped"
        return out
    if not reading.bytes:
        out.note = "; ".join(r.reason for r in reading.rejects) or "empty"
        return out
    if reading.sha256 in job.known:
        out.note = f"already in the lake (as {job.known[reading.sha256]})"
        return out
    return _write(job, reading, engines, labels, out)


def _write(job: Job, reading: Reading, engines: Sequence[Engine], labels: Labels, out: Staged) -> Staged:
    source_id = reading.sha256[:16]
    options = job.options
    naming = Naming(source_id, job.file.folder_key, options.run, options.role, job.adopt)
    context = Context(source_id, lambda frame: resolve(frame, tz=options.tz, year=options.year, mtime=job.file.mtime))
    place = place_in(job.staging)
    rejects = list(reading.rejects)
    surfaces: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    frames: dict[str, list[pl.DataFrame]] = {}
    for engine in engines:
        parsed = reading.parsed[engine.name]
        rejects += parsed.rejects
        if not parsed.frames:
            continue
        for surface, parts in parsed.frames.items():
            surfaces[surface] += sum(p.height for p in parts)
        made = finish(engine.name, engine.assemble(parsed.frames, context), naming, job.columns, labels)
        rejects += made.rejects
        if made.started_runs:
            out.started_runs[engine.name] = made.started_runs
        for name, frame in made.tables.items():
            frames.setdefault(name, []).append(frame)
    for name, parts in frames.items():
        import polars as pl

        rows[name] += write_table(name, pl.concat(parts, how="diagonal_relaxed"), place, source_id)
    rejects.sort(key=lambda r: r.line)
    if rejects:
        rows["rejects"] = write_table("rejects", _reject_rows(source_id, rejects), place, source_id)
    out.reasons = Counter(r.reason for r in rejects)
    out.first_rejects = [(r.line, r.reason) for r in rejects[:3]]
    out.entry = {
        "source_id": source_id,
        "name": job.file.name,
        "sha256": reading.sha256,
        "bytes": reading.bytes,
        "lines": reading.lines,
        "encoding": reading.encoding,
        "compression": reading.compression,
        "envelope": ", ".join(reading.envelopes) or None,
        "surfaces": dict(surfaces),
        "rows": {t: rows[t] for t in TABLES if rows[t]},
        "rejects": len(rejects),
        "unrecognised": max(0, reading.lines - reading.claimed),
        "ingested_at": dt.datetime.now(dt.UTC).replace(tzinfo=None),
        "tracelens_version": __version__,
        "schema_version": SCHEMA_VERSION,
        "also_named": [],
        "replaces": [],
        # Not columns of the ledger; taken off before it is written.
        "_prefixes": reading.prefixes,
        "_files": sorted(p.relative_to(job.staging).as_posix() for p in job.staging.rglob(f"{source_id}-*.parquet")),
    }
    return out


def _reject_rows(source_id: str, rejects: Sequence[Reject]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(
        {
            "source_id": [source_id] * len(rejects),
            "line": [r.line or None for r in rejects],
            "byte_offset": [r.offset for r in rejects],
            "surface": [r.surface for r in rejects],
            "reason": [r.reason[:200] for r in rejects],
            "excerpt": [r.excerpt for r in rejects],
        },
        schema={"source_id": pl.String, "line": pl.Int64, "byte_offset": pl.Int64, "surface": pl.String, "reason": pl.String, "excerpt": pl.String},
    )  # fmt: skip
