"""What was read of a source, written to the staging area of a transaction; its ledger row."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens import __version__
from tracelens.engines.base import Context, Engine, Tables
from tracelens.ingest import fast
from tracelens.ingest.guard import faults, guarded
from tracelens.ingest.holdings import Held, held_by
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions, Staged
from tracelens.ingest.parts import InParts
from tracelens.ingest.read import Reading
from tracelens.ingest.redact import Redaction
from tracelens.ingest.refused import Refused
from tracelens.ingest.rows import Finished, Naming, finish, told_of
from tracelens.lake.parquet import write_frames, write_table
from tracelens.lake.schema import DAY_OF, FACTS, OWN_FILES, TABLES
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile

if TYPE_CHECKING:
    import polars as pl

# Sizes at which the beginning of every source has a digest in the ledger, so that a shorter copy of it is known:
# 256 bytes to 1 TB, four an octave.
GRID = frozenset(int(256 * 2 ** (i / 4)) for i in range(4 * 32))


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to stage one source; `processes` may read it where it is large."""

    file: SourceFile
    options: IngestOptions
    columns: Mapping[str, Any]
    checkpoints: tuple[int, ...]
    known: Mapping[str, str]
    adopt: Mapping[str, str]
    staging: Path
    redaction: Redaction | None = None
    processes: int = 1


def place_in(staging: Path) -> Callable[[str], Path]:
    """A function from a path in the lake to the place where its file is staged."""

    def place(relative: str) -> Path:
        target = staging / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    return place


def naming_of(job: Job, sha256: str) -> Naming:
    """How the runs of a source with this digest are named."""
    return Naming(sha256[:16], job.file.folder_key, job.options.run, job.options.role, job.adopt)


def surface_of(name: str) -> str:
    """The surface of canonical records of a table."""
    return f"generic.{name.removesuffix('s')}"


def write(
    job: Job,
    reading: Reading,
    engines: Sequence[Engine],
    labels: Labels,
    out: Staged,
    written: fast.Written | None = None,
    parts: InParts | None = None,
) -> Staged:
    """Write what the engines found (and count what the fast road, or the parts of a log, have written already).

    Raises:
        Unproved: by `parts`.
    """
    import polars as pl

    source_id = reading.sha256[:16]
    naming = naming_of(job, reading.sha256)
    context = _context(job, source_id)
    place = place_in(job.staging)
    rejects = Refused(reading.rejects)
    reading.rejects.clear()
    surfaces: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    frames: dict[str, list[pl.DataFrame]] = {}
    claimed, stem = reading.claimed, source_id
    if written is not None:
        stem += "-x"  # beside the files that the fast road has written
        both = written.rows + len(written.faults)
        rejects += written.faults
        claimed += both
        rows[written.table] = written.rows
        surfaces[surface_of(written.table)] = both
    begun = None if parts is None else parts.written
    if begun is not None:
        surfaces += begun.surfaces
        out.held |= begun.held
    for engine in engines:
        parsed = reading.parsed[engine.name]
        rejects += parsed.rejects
        parsed.rejects.clear()
        for surface, found in parsed.frames.items():
            surfaces[surface] += sum(f.height for f in found)
        made = None if parts is None else parts.rest(engine.name, parsed.frames, context)
        if made is None:
            tables = Tables()
            with guarded(engine.name, rejects):
                if parsed.frames:
                    tables = engine.assemble(parsed.frames, context)
            told = {}
            if written is not None and engine.name == "generic":
                told[written.table] = [told_of(written.table, written.runs)]
            elif not parsed.frames:
                continue
            made = Finished({}, [], [])
            with guarded(engine.name, rejects):
                made = finish(engine.name, tables, naming, job.columns, labels, job.redaction, told)
        if written is None or engine.name != "generic":
            rounds, windows, requests = map(made.tables.get, FACTS)
            out.held.setdefault(engine.name, Held()).more(
                held_by(Tables(rounds, windows, requests, made.tables.get("runs")))
            )
        rejects += made.rejects
        out.remarks += made.remarks
        if made.started_runs:
            out.started_runs[engine.name] = made.started_runs
        for name, frame in made.tables.items():
            frames.setdefault(name, []).append(_own_rows(name, frame))
    for name, found in frames.items():
        frame = pl.concat(found, how="diagonal_relaxed")
        if parts is not None and begun is not None and name in DAY_OF:
            parts.write(name, frame)
        else:
            rows[name] += write_table(name, frame, place, stem)
    if parts is not None and begun is not None:
        parts.close()
        rejects += begun.rejects
        rows += begun.rows
    counts = rejects.counts()
    for (_, reason), count in counts.items():
        out.reasons[reason] += count
    out.faults = faults(out.reasons)
    out.first_rejects = rejects.first(3)
    if rejects:
        rows["rejects"] = write_frames("rejects", rejects.frames(source_id), place(f"rejects/{source_id}-0.parquet"))
    unread = sum(n for (of, _), n in counts.items() if of is None)  # no engine could claim these, and they are told
    counts_by_table = {t: rows[t] for t in TABLES if rows[t]}
    records = reading.lines if reading.elements is None else reading.elements
    out.entry = entry_of(job, reading, surfaces, counts_by_table, len(rejects), max(0, records - claimed - unread))
    return out


def _context(job: Job, source_id: str) -> Context:
    tz, year, mtime = job.options.tz, job.options.year, job.file.mtime
    return Context(source_id, lambda frame: resolve(frame, tz=tz, year=year, mtime=mtime))


def _own_rows(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Requests with a name each: without an id the place of the record is one (SCHEMA.md)."""
    import polars as pl

    if name != "requests":
        return frame
    place = pl.format("{}#{}", "source_id", "source_line")
    return frame.with_columns(request_id=pl.coalesce("request_id", place) if "request_id" in frame.columns else place)


def entry_of(
    job: Job, reading: Reading, surfaces: Mapping[str, int], rows: Mapping[str, int], rejects: int, unrecognised: int
) -> dict[str, Any]:
    """The ledger row of a source, and what its commit needs beside it (`_…`)."""
    source_id = reading.sha256[:16]
    return {
        "source_id": source_id,
        "name": job.file.name,
        "sha256": reading.sha256,
        "bytes": reading.bytes,
        "lines": reading.lines,
        "encoding": reading.encoding,
        "compression": reading.compression,
        "envelope": ", ".join(reading.envelopes) or None,
        "surfaces": dict(surfaces),
        "rows": dict(rows),
        "rejects": rejects,
        "unrecognised": unrecognised,
        "ingested_at": dt.datetime.now(dt.UTC).replace(tzinfo=None),
        "tracelens_version": __version__,
        "schema_version": OWN_FILES,
        "also_named": [],
        "replaces": [],
        "text_sha256": reading.text_sha256,
        "same_as": None,
        "prefixes": {str(n): digest[:16] for n, digest in reading.prefixes.items() if n in GRID},
        "request_ids": "kept" if job.redaction is None else job.redaction.mark,
        # Not columns of the ledger; taken off before it is written.
        "_prefixes": reading.prefixes,
        "_files": sorted(p.relative_to(job.staging).as_posix() for p in job.staging.rglob(f"{source_id}-*.parquet")),
    }
