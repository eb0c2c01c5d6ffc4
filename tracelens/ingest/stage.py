"""One source, read and written to the staging area of a transaction."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tracelens import logs
from tracelens.engines.base import Engine, Parsed
from tracelens.ingest import fast
from tracelens.ingest.digest import Digest
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import Staged
from tracelens.ingest.parts import InParts
from tracelens.ingest.ranges import is_dense, is_large, read_ranges
from tracelens.ingest.read import Reading, read, read_lines
from tracelens.ingest.refused import Refused
from tracelens.ingest.rows import Naming, run_rows_of
from tracelens.ingest.sift import BadLine, offsets, relevant, sift
from tracelens.ingest.write import Job, entry_of, naming_of, place_in, surface_of, write
from tracelens.lake.parquet import write_table
from tracelens.sources.clocks import Clock
from tracelens.sources.lines import LineFinder
from tracelens.sources.stream import BlockStream

log = logging.getLogger(__name__)
_TOLD = 20  # reasons of refusals that `-v` lists of one source


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
    if file.path is not None:
        ways = (job.processes, 1) if job.processes > 1 and is_large(file) and is_dense(file, engines) else (1,)
        for processes in ways:
            parts = _parts(job, engines, labels)
            try:
                return _read(job, engines, labels, progress, parts, processes)
            except fast.Unproved as why:
                logs.info(
                    log, "put together in one go" if processes == 1 else "read by one", source=file.name, because=why
                )
                parts.drop()
                progress = None  # these bytes were told
            finally:
                parts.close()
    return _read(job, engines, labels, progress)


def _parts(job: Job, engines: Sequence[Engine], labels: Labels) -> InParts:
    tz, year, mtime = job.options.tz, job.options.year, job.file.mtime
    return InParts(
        job.file,
        engines,
        checkpoints=job.checkpoints,
        known=job.known,
        naming=partial(naming_of, job),
        clock=partial(Clock, tz=tz, year=year, mtime=mtime),
        columns=job.columns,
        labels=labels,
        redaction=job.redaction,
        place=place_in(job.staging),
    )


def _read(
    job: Job,
    engines: Sequence[Engine],
    labels: Labels,
    progress: Callable[[int], None] | None,
    parts: InParts | None = None,
    processes: int = 1,
) -> Staged:
    file = job.file
    if parts is not None and processes > 1:
        reading = read_ranges(file, engines, job.options.engine, parts, processes, progress)
    else:
        reading = read(file, engines, checkpoints=job.checkpoints, progress=progress, parts=parts)
    if parts is not None:
        reading = parts.checked(reading)
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
    return write(job, reading, engines, labels, out, parts=parts)


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
    for processes in (job.processes, 1) if job.processes > 1 and is_large(file) else (1,):
        try:
            walked = _walked(job, head, shape, engines, labels, out, processes)
            if walked is not None:
                return walked
        except fast.Unproved as why:
            logs.info(log, "read by one" if processes > 1 else "decoded", source=file.name, because=why)
    try:
        return _clean(job, shape, out)
    except fast.Unproved as why:
        logs.info(log, "sifted", source=file.name, because=why)
    try:
        return _sifted(job, shape, engines, labels, out)
    except fast.Unproved as why:
        logs.info(log, "read line by line", source=file.name, because=why)
        return None


def _is_known(job: Job, sha256: str, out: Staged) -> bool:
    if sha256 in job.known:
        out.note = f"already in the lake (as {job.known[sha256]})"
    return sha256 in job.known


def _walked(
    job: Job, head: bytes, shape: fast.Shape, engines: Sequence[Engine], labels: Labels, out: Staged, processes: int
) -> Staged | None:
    """Lines of one form by the quickest road, the others one by one; None where the first lines are of no form."""
    from tracelens.ingest import quick, quick_ranges

    plan = quick.plan_of(head, shape)
    if plan is None:
        return None
    spans: list[tuple[int, int]] = []
    if processes > 1:
        digest, spans = quick_ranges.digest_of(job.file, job.checkpoints, processes)
    else:
        digest = Digest.of(job.file, job.checkpoints)
    found = digest.scan
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
        return _governed(naming_of(job, found.sha256), others, shape, all_alike=True)

    given = (job.columns, naming, job.staging, take, job.redaction)
    if processes > 1:
        written = quick_ranges.write(job.file, head, plan, digest, spans, *given, processes)
    else:
        written = quick.write(job.file, plan, digest, *given)
    slow += len(written.faults)
    logs.info(
        log,
        "lines one by one" if slow else "all by the fast road",
        source=job.file.name,
        lines=written.lines,
        slow=slow,
    )
    others.lines = written.lines
    others.rejects += written.problems
    return write(job, others, engines, labels, out, written)


def _clean(job: Job, shape: fast.Shape, out: Staged) -> Staged:
    """All lines by the fast road."""
    if not shape.uniform:
        raise fast.Unproved("lines of several forms")
    found = fast.scan(job.file, shape, job.checkpoints)
    if _is_known(job, found.sha256, out):
        return out
    naming = naming_of(job, found.sha256)
    written = fast.write(job.file, shape, found, job.columns, naming, job.staging, redaction=job.redaction)
    runs = run_rows_of(written.runs, naming, job.columns)
    write_table("runs", runs, place_in(job.staging), naming.source_id)
    rows = {written.table: written.rows, "runs": runs.height}
    logs.info(log, "all by the fast road", source=job.file.name, lines=found.lines)
    out.entry = entry_of(job, _reading_of(found, ()), {surface_of(written.table): written.rows}, rows, 0, 0)
    return out


def _reading_of(found: fast.Scan, engines: Sequence[Engine]) -> Reading:
    return Reading(
        found.sha256, found.bytes, found.lines, found.encoding, found.compression, (), False, found.prefixes,
        {e.name: Parsed(rejects=Refused()) for e in engines}, text_sha256=found.text_sha256,
    )  # fmt: skip


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
        naming = naming_of(job, found.sha256)
        with_step = _with_step(others) and shape.table == "rounds"
        naming = _governed(naming, others, shape)
        written = fast.write(
            job.file, shape, found, job.columns, naming, job.staging, sifted,
            counted=with_step, redaction=job.redaction,
        )  # fmt: skip
    logs.info(log, "lines one by one", source=job.file.name, lines=found.lines, slow=sifted.holes)
    reading = _reading_of(found, ())
    reading.parsed, reading.rejects = others.parsed, others.rejects
    written.faults.place(offsets(job.file, written.faults.lines()))
    write(job, reading, engines, labels, out, written)
    return out


def _governed(naming: Naming, others: Reading, shape: fast.Shape, *, all_alike: bool = False) -> Naming:
    """The naming of rows by the fast road: a run record speaks for the rows of its file that name no run.

    Args:
        naming: as the job says.
        others: what was read line by line, with the records of runs.
        shape: of the rows.
        all_alike: every row has the keys of the first ones.

    Raises:
        Unproved: several of them, so that the place of a row tells which; or one that has no name of its own.
    """
    import polars as pl

    starts = others.parsed["generic"].frames.get("generic.run", ())
    if not starts:
        return naming
    runs = pl.concat(starts, how="diagonal_relaxed")
    told = runs["engine"].drop_nulls().str.to_lowercase()
    if len(told) and not (all_alike and "engine" in shape.keys):
        if runs.height > 1 or "run_id" in shape.keys:
            raise fast.Unproved("rows of the engine that the record of their run names")
        naming = replace(naming, engine=told[0])
    if naming.run:
        return naming
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
