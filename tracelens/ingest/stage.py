"""One source, read and written to the staging area of a transaction."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens import __version__
from tracelens.engines.base import Context, Engine, Parsed, Reject
from tracelens.ingest import fast
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions, Staged
from tracelens.ingest.read import Reading, read, read_lines
from tracelens.ingest.rows import Naming, finish, run_rows_of
from tracelens.ingest.sift import sift
from tracelens.lake.parquet import write_table
from tracelens.lake.schema import SCHEMA_VERSION, TABLES
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger(__name__)


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
    quick = _fast(job, engines, labels)
    if quick is not None:
        return quick
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


def _fast(job: Job, engines: Sequence[Engine], labels: Labels) -> Staged | None:
    """The road for clean canonical JSON lines; None sends the file to the road that finds what is wrong where."""
    file, options = job.file, job.options
    plain = labels.rows is None and not labels.rules and not labels.constants
    if (
        file.path is None
        or (file.size or 0) < fast.SMALLEST
        or not plain
        or not any(e.name == "generic" for e in engines)
    ):
        return None
    with BlockStream(file, block_bytes=1 << 17) as stream:
        head = next((b.data for b in stream), b"")
    foreign = [k for e in engines if e.name != "generic" for k in e.json_keys]
    shape = fast.shape_of(head[: head.rfind(b"\n") + 1], options.tz, foreign)
    if shape is None:
        return None
    out = Staged(file.name, file.folder_key, None)
    try:
        found = fast.scan(file, shape, job.checkpoints)
        if found.sha256 in job.known:
            out.note = f"already in the lake (as {job.known[found.sha256]})"
            return out
        naming = Naming(found.sha256[:16], file.folder_key, options.run, options.role, job.adopt)
        return _fast_entry(job, found, _written(job, shape, found, naming), naming, out)
    except fast.Unproved as why:
        log.info("%s: sifted (%s)", file.name, why)
    try:
        return _sifted(job, shape, engines, labels, out)
    except fast.Unproved as why:
        log.info("%s: read line by line (%s)", file.name, why)
        return None


def _written(job: Job, shape: fast.Shape, found: fast.Scan, naming: Naming) -> fast.Written:
    try:
        return fast.write(job.file, shape, found, job.columns, naming, job.staging)
    except fast.NotUniform:
        shape = dataclasses.replace(shape, uniform=False)
        return fast.write(job.file, shape, fast.scan(job.file, shape, ()), job.columns, naming, job.staging)


def _fast_entry(job: Job, found: fast.Scan, written: fast.Written, naming: Naming, out: Staged) -> Staged:
    runs = run_rows_of(written.runs, naming, job.columns)
    write_table("runs", runs, place_in(job.staging), naming.source_id)
    surface = f"generic.{written.table.removesuffix('s')}"
    rows = {written.table: written.rows, "runs": runs.height}
    reading = Reading(
        found.sha256, found.bytes, found.lines, found.encoding, found.compression, (), False, found.prefixes
    )
    out.entry = _entry(job, reading, {surface: written.rows}, rows, 0, found.lines - written.rows)
    return out


def _sifted(job: Job, shape: fast.Shape, engines: Sequence[Engine], labels: Labels, out: Staged) -> Staged:
    """Good lines by the fast road, the others by the slow one, as one source."""
    shape = dataclasses.replace(shape, uniform=False)
    found = fast.scan(job.file, shape, job.checkpoints, sifted=True)
    naming = Naming(found.sha256[:16], job.file.folder_key, job.options.run, job.options.role, job.adopt)
    reading = Reading(
        found.sha256, found.bytes, found.lines, found.encoding, found.compression, (), False, found.prefixes,
        {e.name: Parsed() for e in engines},
    )  # fmt: skip
    copy = job.staging / f"{naming.source_id}.sifted"
    try:
        sifted = sift(job.file, shape, copy, lambda bad: read_lines(bad, engines, reading))
        written = fast.write(job.file, shape, found, job.columns, naming, job.staging, sifted)
    finally:
        copy.unlink(missing_ok=True)
    surface = f"generic.{written.table.removesuffix('s')}"
    reading.rejects += [Reject(line, f"identity broken: {why}", surface) for line, why in written.faults]
    _write(job, reading, engines, labels, out, written)
    return out


def _write(
    job: Job,
    reading: Reading,
    engines: Sequence[Engine],
    labels: Labels,
    out: Staged,
    written: fast.Written | None = None,
) -> Staged:
    """Write what the engines found (and count what the fast road has written already)."""
    source_id = reading.sha256[:16]
    options = job.options
    naming = Naming(source_id, job.file.folder_key, options.run, options.role, job.adopt)
    context = Context(source_id, lambda frame: resolve(frame, tz=options.tz, year=options.year, mtime=job.file.mtime))
    place = place_in(job.staging)
    rejects = list(reading.rejects)
    surfaces: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    frames: dict[str, list[pl.DataFrame]] = {}
    claimed, stem = reading.claimed, source_id
    if written is not None:
        stem += "-x"  # beside the files that the fast road has written
        claimed += written.rows + len(written.faults)
        rows[written.table] = surfaces[f"generic.{written.table.removesuffix('s')}"] = written.rows
        frames["runs"] = [run_rows_of(written.runs, naming, job.columns)]
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

        rows[name] += write_table(name, pl.concat(parts, how="diagonal_relaxed"), place, stem)
    rejects.sort(key=lambda r: r.line)
    if rejects:
        rows["rejects"] = write_table("rejects", _reject_rows(source_id, rejects), place, source_id)
    out.reasons = Counter(r.reason for r in rejects)
    out.first_rejects = [(r.line, r.reason) for r in rejects[:3]]
    counts = {t: rows[t] for t in TABLES if rows[t]}
    unread = sum(r.surface is None for r in rejects)  # no engine could claim these, and they are told already
    out.entry = _entry(job, reading, surfaces, counts, len(rejects), max(0, reading.lines - claimed - unread))
    return out


def _entry(
    job: Job, reading: Reading, surfaces: Mapping[str, int], rows: Mapping[str, int], rejects: int, unrecognised: int
) -> dict[str, Any]:
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
        "schema_version": SCHEMA_VERSION,
        "also_named": [],
        "replaces": [],
        # Not columns of the ledger; taken off before it is written.
        "_prefixes": reading.prefixes,
        "_files": sorted(p.relative_to(job.staging).as_posix() for p in job.staging.rglob(f"{source_id}-*.parquet")),
    }


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
