"""One source, read and written to the staging area of a transaction."""

from __future__ import annotations

import datetime as dt
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens import __version__, logs
from tracelens.engines.base import Context, Engine, Parsed, Tables
from tracelens.ingest import fast
from tracelens.ingest.guard import faults, guarded
from tracelens.ingest.holdings import held_by
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions, Staged
from tracelens.ingest.read import Reading, read, read_lines
from tracelens.ingest.redact import Redaction
from tracelens.ingest.refused import Refused
from tracelens.ingest.rows import Finished, Naming, finish, run_rows_of
from tracelens.ingest.sift import BadLine, offsets, relevant, sift
from tracelens.lake.parquet import write_frames, write_table
from tracelens.lake.schema import DAY_OF, FACTS, OWN_FILES, TABLES, table
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile
from tracelens.sources.lines import LineFinder
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger(__name__)
# Sizes at which the beginning of every source has a digest in the ledger, so that a shorter copy of it is known:
# 256 bytes to 1 TB, four an octave.
GRID = frozenset(int(256 * 2 ** (i / 4)) for i in range(4 * 32))
_TOLD = 20  # reasons of refusals that `-v` lists of one source
_WITNESS = 0  # no line of a file has this number


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
    redaction: Redaction | None = None


def place_in(staging: Path) -> Callable[[str], Path]:
    """A function from a path in the lake to the place where its file is staged."""

    def place(relative: str) -> Path:
        target = staging / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    return place


def stage(job: Job, engines: Sequence[Engine], labels: Labels, progress: Callable[[int], None] | None = None) -> Staged:
    """Read one source and write its rows below `job.staging`; the ledger row comes back, and is not written yet."""
    begun = time.monotonic()
    out = _staged(job, engines, labels, progress)
    told = {k: (out.entry or {}).get(k) for k in ("source_id", "bytes", "lines", "rejects", "unrecognised")}
    rows = {f"rows_{name}": n for name, n in (out.entry or {"rows": {}})["rows"].items()}
    fields = {k: v for k, v in (told | rows).items() if v is not None}
    note = {} if out.note is None else {"note": out.note}
    logs.info(log, "source read", source=job.file.name, **fields, **note, seconds=time.monotonic() - begun)
    for reason, count in out.reasons.most_common(_TOLD):
        logs.info(log, "records refused", source=job.file.name, because=reason, records=count)
    return out


def _staged(job: Job, engines: Sequence[Engine], labels: Labels, progress: Callable[[int], None] | None) -> Staged:
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
    """The roads for canonical JSON lines, clean or nearly so; None sends the file to the road for everything else."""
    file = job.file
    plain = labels.rows is None and not labels.rules and not labels.constants
    if file.path is None or (file.size or 0) < fast.SMALLEST or not plain:
        return None
    with BlockStream(file, block_bytes=1 << 17) as stream:
        head = next((b.data for b in stream), b"")
    foreign = [k for e in engines if e.name != "generic" for k in e.json_keys]
    shape = fast.shape_of(head[: head.rfind(b"\n") + 1], job.options.tz, foreign)
    if shape is None or set(job.columns) & set(shape.keys) or not any(e.name == "generic" for e in engines):
        return None
    out = Staged(file.name, file.folder_key, None)
    try:
        walked = _walked(job, head, shape, engines, labels, out)
        if walked is not None:
            return walked
    except fast.Unproved as why:
        logs.info(log, "decoded", source=file.name, because=why)
    try:
        return _clean(job, shape, out)
    except fast.Unproved as why:
        logs.info(log, "sifted", source=file.name, because=why)
    try:
        return _sifted(job, shape, engines, labels, out)
    except fast.Unproved as why:
        logs.info(log, "read line by line", source=file.name, because=why)
        return None


def _naming(job: Job, sha256: str) -> Naming:
    return Naming(sha256[:16], job.file.folder_key, job.options.run, job.options.role, job.adopt)


def _is_known(job: Job, sha256: str, out: Staged) -> bool:
    if sha256 in job.known:
        out.note = f"already in the lake (as {job.known[sha256]})"
    return sha256 in job.known


def _walked(
    job: Job, head: bytes, shape: fast.Shape, engines: Sequence[Engine], labels: Labels, out: Staged
) -> Staged | None:
    """Lines of one form by the quickest road, the others one by one; None where the first lines are of no form."""
    from tracelens.ingest import quick

    plan = quick.plan_of(head, shape)
    if plan is None:
        return None
    found = quick.scan(job.file, job.checkpoints)
    if _is_known(job, found.sha256, out):
        return out
    others = _reading_of(found, engines)
    finder = LineFinder([n for e in engines for n in (*e.needles, *e.json_keys)])
    slow = 0

    def take(bad: Sequence[BadLine]) -> int:
        nonlocal slow
        slow += len(bad)
        read_lines(relevant(bad, finder), engines, others)
        return sum(f.height for p in others.parsed.values() for frames in p.frames.values() for f in frames)

    def naming() -> Naming:
        if plan.table == "rounds":
            _with_step(others)
        return _governed(_naming(job, found.sha256), others)

    written = quick.write(job.file, plan, found, job.columns, naming, job.staging, take, job.redaction)
    slow += len(written.faults)
    logs.info(
        log, "lines one by one" if slow else "all by the fast road", source=job.file.name, lines=found.lines, slow=slow
    )
    others.rejects += found.problems
    return _write(job, others, engines, labels, out, written)


def _clean(job: Job, shape: fast.Shape, out: Staged) -> Staged:
    """All lines by the fast road."""
    if not shape.uniform:
        raise fast.Unproved("lines of several forms")
    found = fast.scan(job.file, shape, job.checkpoints)
    if _is_known(job, found.sha256, out):
        return out
    naming = _naming(job, found.sha256)
    written = fast.write(job.file, shape, found, job.columns, naming, job.staging, redaction=job.redaction)
    runs = run_rows_of(written.runs, naming, job.columns)
    write_table("runs", runs, place_in(job.staging), naming.source_id)
    rows = {written.table: written.rows, "runs": runs.height}
    logs.info(log, "all by the fast road", source=job.file.name, lines=found.lines)
    out.entry = _entry(job, _reading_of(found, ()), {_surface(written.table): written.rows}, rows, 0, 0)
    return out


def _reading_of(found: fast.Scan, engines: Sequence[Engine]) -> Reading:
    return Reading(
        found.sha256, found.bytes, found.lines, found.encoding, found.compression, (), False, found.prefixes,
        {e.name: Parsed(rejects=Refused()) for e in engines}, text_sha256=found.text_sha256,
    )  # fmt: skip


def _surface(name: str) -> str:
    return f"generic.{name.removesuffix('s')}"


def _sifted(job: Job, shape: fast.Shape, engines: Sequence[Engine], labels: Labels, out: Staged) -> Staged:
    """Good lines by the fast road, the others by the slow one, as one source."""
    others = Reading("", 0, 0, "", "", (), False, {}, {e.name: Parsed(rejects=Refused()) for e in engines})
    finder = LineFinder([n for e in engines for n in (*e.needles, *e.json_keys)])

    def take(bad: Sequence[BadLine]) -> None:
        read_lines(relevant(bad, finder), engines, others)

    foreign = {k.decode().strip('"') for e in engines if e.name != "generic" for k in e.json_keys}
    with tempfile.TemporaryDirectory(prefix="sifted-", dir=job.staging) as folder:
        found, sifted = sift(
            job.file, shape, Path(folder) / "lines.jsonl", take,
            checkpoints=job.checkpoints, without={*job.columns, *foreign},
        )  # fmt: skip
        if _is_known(job, found.sha256, out):
            return out
        naming = _naming(job, found.sha256)
        with_step = _with_step(others) and shape.table == "rounds"
        naming = _governed(naming, others)
        written = fast.write(
            job.file, shape, found, job.columns, naming, job.staging, sifted,
            counted=with_step, redaction=job.redaction,
        )  # fmt: skip
    logs.info(log, "lines one by one", source=job.file.name, lines=found.lines, slow=sifted.holes)
    reading = _reading_of(found, ())
    reading.parsed, reading.rejects = others.parsed, others.rejects
    written.faults.place(offsets(job.file, written.faults.lines()))
    _write(job, reading, engines, labels, out, written)
    return out


def _governed(naming: Naming, others: Reading) -> Naming:
    """The naming of rows by the fast road: a run record speaks for the rows of its file that name no run.

    Raises:
        Unproved: several of them, so that the place of a row tells which; or one that has no name of its own.
    """
    import polars as pl

    starts = others.parsed["generic"].frames.get("generic.run", ())
    if naming.run or not starts:
        return naming
    runs = pl.concat(starts, how="diagonal_relaxed")
    name = runs["run_id"][0] if "run_id" in runs.columns else None
    if runs.height > 1 or name is None:
        raise fast.Unproved("rows of the run that a record above them starts")
    return replace(naming, governs=name)


def _with_step(reading: Reading) -> bool:
    """Whether some round that was read line by line is one of a step: the rows of its step are then in two places.

    Raises:
        Unproved: its share of the step is to come from the number of the step's rows.
    """
    import polars as pl

    frames = reading.parsed["generic"].frames.get("generic.round", ())
    mine = [f.filter(pl.col("step_id").is_not_null()) for f in frames]
    if any((f["batch_size"].fill_null(0) == 0).any() for f in mine):
        raise fast.Unproved("a step in two places")
    return any(f.height for f in mine)


def _write(
    job: Job,
    reading: Reading,
    engines: Sequence[Engine],
    labels: Labels,
    out: Staged,
    written: fast.Written | None = None,
) -> Staged:
    """Write what the engines found (and count what the fast road has written already)."""
    import polars as pl

    source_id = reading.sha256[:16]
    naming = _naming(job, reading.sha256)
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
        surfaces[_surface(written.table)] = both
    for engine in engines:
        parsed = reading.parsed[engine.name]
        rejects += parsed.rejects
        parsed.rejects.clear()
        for surface, parts in parsed.frames.items():
            surfaces[surface] += sum(p.height for p in parts)
        tables = Tables()
        with guarded(engine.name, rejects):
            if parsed.frames:
                tables = engine.assemble(parsed.frames, context)
        if written is not None and engine.name == "generic":
            _add_witnesses(tables, written)
        elif not parsed.frames:
            continue
        made = Finished({}, [], [])
        with guarded(engine.name, rejects):
            made = finish(engine.name, tables, naming, job.columns, labels, job.redaction)
        if written is None or engine.name != "generic":
            rounds, windows, requests = map(made.tables.get, FACTS)
            out.held[engine.name] = held_by(Tables(rounds, windows, requests))
        rejects += made.rejects
        out.remarks += made.remarks
        if made.started_runs:
            out.started_runs[engine.name] = made.started_runs
        for name, frame in made.tables.items():
            frames.setdefault(name, []).append(_own_rows(name, frame))
    for name, parts in frames.items():
        rows[name] += write_table(name, pl.concat(parts, how="diagonal_relaxed"), place, stem)
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
    out.entry = _entry(job, reading, surfaces, counts_by_table, len(rejects), max(0, records - claimed - unread))
    return out


def _context(job: Job, source_id: str) -> Context:
    tz, year, mtime = job.options.tz, job.options.year, job.file.mtime
    return Context(source_id, lambda frame: resolve(frame, tz=tz, year=year, mtime=mtime))


def _own_rows(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows without witnesses; requests with a name each: without an id the place of the record is one (SCHEMA.md)."""
    import polars as pl

    if "source_line" in frame.columns:
        frame = frame.filter(pl.col("source_line").fill_null(-1) != _WITNESS)
    if name != "requests":
        return frame
    place = pl.format("{}#{}", "source_id", "source_line")
    return frame.with_columns(request_id=pl.coalesce("request_id", place) if "request_id" in frame.columns else place)


def _add_witnesses(tables: Tables, written: fast.Written) -> None:
    """One row for each run of the rows that are written already, so that `finish` sees what all rows agree on."""
    import polars as pl

    name, day = written.table, DAY_OF[written.table]
    types = table(name).polars_schema()
    rows = [{"source_line": _WITNESS, "accepted": 0, **run, day: run["ended"]} for run in written.runs]
    names = [c for c in types if any(c in row for row in rows)]
    witnesses = pl.DataFrame(rows, schema={c: types[c] for c in names})
    mine = getattr(tables, name)
    setattr(tables, name, witnesses if mine is None else pl.concat([mine, witnesses], how="diagonal_relaxed"))


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
