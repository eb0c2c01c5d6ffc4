"""`ingest`: sources into a lake, each once, all or nothing."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tracelens import logs
from tracelens.engines.base import Engine
from tracelens.executors import Executor
from tracelens.ingest import copies, signals
from tracelens.ingest.labels import Labels, read_labels, read_rules
from tracelens.ingest.options import IngestOptions, Staged, Summary
from tracelens.ingest.processes import begin, quiet_start
from tracelens.ingest.redact import held, redaction_of
from tracelens.ingest.rows import parse_sets
from tracelens.ingest.spread import stage_spread
from tracelens.ingest.stage import stage
from tracelens.ingest.tally import Tally
from tracelens.ingest.write import GRID, Job
from tracelens.lake import damage, journal, ledger, shared
from tracelens.lake.place import check_shared
from tracelens.lake.schema import FACTS
from tracelens.lake.store import Store, Transaction
from tracelens.sources.discover import SourceFile, discover
from tracelens.sources.stream import BlockStream

__all__ = ["IngestOptions", "Progress", "Summary", "adoptable_runs", "ingest", "is_json_log"]

log = logging.getLogger(__name__)
# One commit for so many sources or bytes: a crash loses at most this much work.
_BATCH_SOURCES = 256
_BATCH_BYTES = 1 << 30
# With an executor: enough for all of its machines, a job is only as quick as its last source.
_SPREAD_SOURCES = 4096
_SPREAD_BYTES = 64 << 30
# Below this the start of worker processes costs more than it saves.
_PARALLEL_BYTES = 64 << 20
_TOGETHER = 8  # small files that a worker is given at once
_A_FILE = 1 << 20  # what a file costs beside its bytes, in bytes

# What `Naming.started` makes of a start without a date, behind the engine's name.
_NUMBERED = re.compile(r"\d+-[0-9a-f]{6}")

# An object, or an array of them; a stamp in brackets begins the lines of many a text log.
_JSON = re.compile(rb"\s*(?:\{|\[\s*(?:[{\[\]]|$))")

# Sources whose first bytes differ need no closer look.
_HEAD = 4096

Progress = Callable[[str, int], None]
# From a transaction, the ledger rows that come with its commit (each with its `_file`) and the sources that it leaves
# in the lake: those of them that it is to take out, too.
Amend = Callable[[Transaction, Sequence[dict[str, Any]], ledger.Ledger], Sequence[ledger.Entry]]


def ingest(
    paths: Sequence[str],
    lake: Path,
    options: IngestOptions,
    progress: Progress | None = None,
    amend: Amend | None = None,
    executor: Executor | None = None,
) -> Summary:
    """Normalise logs into the lake.

    Args:
        paths: files, folders, patterns, or `-`.
        lake: folder of the lake; made when it does not exist.
        options: see `IngestOptions`.
        progress: called with a source's name and the bytes read of it since the last call.
        amend: called before each commit, see `Amend`.
        executor: reads and stages the sources, each whole; commits are made here.

    Raises:
        InputError: a missing path, an unusable option or lake; with an executor a lake in a bucket.
    """
    from tracelens.engines import load

    if executor is not None:
        check_shared(lake)
    begun = time.monotonic()
    columns, constants = parse_sets(options.sets)
    tools = _Tools(load(options.engine), labels_of(options, constants))
    if options.tz is not None or options.year is not None:
        _check_clock(options)
    files, skipped = discover(paths)
    store = Store(lake)
    known = ledger.read(lake)
    redaction = redaction_of(lake, options, known)
    tally = Tally(skipped)
    ids = "kept" if redaction is None else redaction.mark
    logs.info(log, "ingest begins", files=len(files), known=len(known.entries), request_ids=ids)
    sizes = tuple(sorted({_HEAD, *GRID, *known.sizes(), *(f.size for f in files if f.size)}))
    most = (_BATCH_SOURCES, _BATCH_BYTES) if executor is None else (_SPREAD_SOURCES, _SPREAD_BYTES)
    if not options.replace:  # before anything else is asked of files of which nothing is wanted
        files = [f for f in files if not _same_as_before(f, known, tally)]
    with _workers(files, options, tools, store, executor, _named(known, options)) as run:
        for i, wave in enumerate(_waves(files)):
            # Responses and access logs tell of no start: they belong to the one run their folder's logs tell of. A text
            # log tells its runs itself, and must tell the same when it has grown.
            adopt = adoptable_runs(lake) if i and wave else {}
            for batch in _batches(wave, *most):
                with damage.naming(lake), store.transaction() as txn:
                    names = _named(known, options)
                    jobs = [
                        Job(f, options, columns, sizes, names, adopt.get(f.folder_key[:8], {}), txn.folder, redaction)
                        for f in batch
                        if options.replace or not _same_as_before(f, known, tally)
                    ]
                    _commit(txn, list(zip(jobs, run(jobs, progress), strict=True)), tally, options.replace, amend)
                known = ledger.read(lake)
    lying = len(journal.live(lake, FACTS)) if tally.sources else 0
    return replace(tally.summary(time.monotonic() - begun, held(known)), files=lying)


def _named(known: ledger.Ledger, options: IngestOptions) -> dict[str, str]:
    """Content that is not to be read again, and what it is called."""
    return {} if options.replace else {e.sha256: e.name for e in known.entries}


def adoptable_runs(lake: Path) -> dict[str, dict[str, str]]:
    """Folder -> engine -> run, where start-up lines of that folder's logs tell of exactly one run."""
    started: dict[tuple[str, str], set[str]] = {}
    for _, row in ledger.rows_of(lake, "runs", ["run_id", "scope", "engine", "started", "engine_version"]):
        told = row["started"] is not None or row["engine_version"] is not None
        # A start whose log has no dates (llama.cpp) goes by its number; results of benchmarks have other names.
        told = told or _NUMBERED.fullmatch(row["run_id"].removeprefix(f"{row['engine']}-")) is not None
        if told and row["scope"] and row["scope"] != row["run_id"]:
            folder = row["scope"].removeprefix(f"{row['engine']}-")
            started.setdefault((folder, row["engine"]), set()).add(row["run_id"])
    adopt: dict[str, dict[str, str]] = {}
    for (folder, engine), names in started.items():
        if len(names) == 1:
            adopt.setdefault(folder, {})[engine] = next(iter(names))
    return adopt


def labels_of(options: IngestOptions, constants: Mapping[str, str]) -> Labels:
    """The labels of an ingest: file, rules and constants."""
    rows = read_labels(options.labels) if options.labels else None
    return Labels(rows, read_rules(options.rules), constants)


def _check_clock(options: IngestOptions) -> None:
    """Refuse an unknown zone or year before anything is read."""
    import polars as pl

    from tracelens.sources.clocks import resolve

    frame = pl.DataFrame(
        {"stamp": ["2026-01-02 03:04:05"], "inner": [None]}, schema={"stamp": pl.String, "inner": pl.String}
    )
    resolve(frame, tz=options.tz, year=options.year, mtime=None)


def is_json_log(file: SourceFile) -> bool:
    """Whether a source holds JSON records, metrics or spans: such logs tell of no start of a server.

    A log in a JSON envelope (docker, JSON logging) is text, and does.
    """
    if file.path is None:
        return False
    with BlockStream(file, block_bytes=1 << 16, takes=signals.is_wanted) as stream:
        head = next(stream.pieces(), b"")
    if signals.reader_of(head) is not None:
        return True
    if _JSON.match(head) is None:
        return False
    import polars as pl

    from tracelens.sources.envelopes import peel

    lines = [line.decode("utf-8", "replace") for line in head.split(b"\n")[:20] if line.strip()]
    frame = pl.DataFrame({"line": range(len(lines)), "offset": [0] * len(lines), "text": lines})
    return not peel(frame.cast({"line": pl.Int64, "offset": pl.Int64}), [])["envelope"].is_not_null().any()


def _waves(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Text logs first, then JSON: the start-up lines of a folder name the run of its other logs."""
    json = [f for f in files if is_json_log(f)]
    chosen = {id(f) for f in json}
    yield [f for f in files if id(f) not in chosen]
    yield json


def _batches(files: Sequence[SourceFile], sources: int, size_of_all: int) -> Iterator[list[SourceFile]]:
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.size or 0
        if len(batch) >= sources or size >= size_of_all:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _same_as_before(file: SourceFile, known: ledger.Ledger, tally: Tally) -> bool:
    """A file of a known size is hashed first: at a gigabyte a second that is far cheaper than to read it again."""
    if not known.has_size(file.size):
        return False
    with BlockStream(file) as stream:
        for _ in stream:
            pass
        entry = known.by_sha256().get(stream.sha256)
    if entry is None or stream.compression != "none":
        return False
    tally.skip(file.name, f"already in the lake (as {entry.name})")
    return True


@dataclass(frozen=True, slots=True)
class _Tools:
    """What every job needs and no job changes."""

    engines: Sequence[Engine]
    labels: Labels
    names: Mapping[str, str] = field(default_factory=dict)  # of a worker: sources of the lake by their digests


Runner = Callable[[Sequence[Job], Progress | None], Iterator[Staged]]


@contextmanager
def _workers(
    files: Sequence[SourceFile], options: IngestOptions, tools: _Tools, store: Store, executor: Executor | None,
    names: Mapping[str, str],
) -> Iterator[Runner]:  # fmt: skip
    """How to stage the jobs of a batch: here, in worker processes where that pays, or by an executor.

    `names` are those of the lake's sources, by their digests, before anything was read.
    """
    if executor is not None:

        def elsewhere(batch: Sequence[Job], progress: Progress | None) -> Iterator[Staged]:
            yield from stage_spread(executor, store, options.engine, tools.labels, batch, progress)

        yield elsewhere
        return
    jobs = options.jobs or os.cpu_count() or 1
    total = sum((f.size or 0) + _A_FILE for f in files)
    if jobs == 1 or len(files) < 2 or total < _PARALLEL_BYTES or any(f.path is None for f in files):

        def here(batch: Sequence[Job], progress: Progress | None) -> Iterator[Staged]:
            for job in batch:
                told = None if progress is None else partial(progress, job.file.name)
                yield stage(replace(job, processes=jobs), tools.engines, tools.labels, told)

        yield here
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    start, workers = (options, tools.labels, names, logs.level()), min(jobs, len(files))
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, start) as pool:

        def there(batch: Sequence[Job], progress: Progress | None) -> Iterator[Staged]:
            # A job of a large lake is a megabyte of names, and half of what it takes to read a small file. A worker has
            # those that were there when it began, and the commit passes over what came since.
            bare = [replace(job, known={}) for job in batch]
            few = max(1, min(_TOGETHER, len(batch) // (4 * workers)))
            together = few if all((job.file.size or 0) < _A_FILE for job in batch) else 1
            with quiet_start():
                done = pool.map(_stage_in_worker, bare, chunksize=together)
            for job, staged in zip(batch, done, strict=True):
                if progress is not None:
                    progress(job.file.name, job.file.size or 0)
                yield staged

        yield there


_worker_tools: list[_Tools] = []  # set once, by the initialiser of a worker process; empty everywhere else


def _start_worker(options: IngestOptions, labels: Labels, names: Mapping[str, str], told: int | None) -> None:
    from tracelens.engines import load

    begin()
    if told is not None:
        logs.to_stderr(told)

    _worker_tools.append(_Tools(load(options.engine), labels, names))


def _stage_in_worker(job: Job) -> Staged:
    tools = _worker_tools[0]
    return stage(replace(job, known=tools.names), tools.engines, tools.labels)


def _commit(
    txn: Transaction, done: Sequence[tuple[Job, Staged]], tally: Tally, replace: bool, amend: Amend | None
) -> None:
    """Look at the ledger as it is now, drop what is there already, replace what has grown, and commit."""
    begun = time.monotonic()
    with txn.locked():
        known = ledger.read(txn.store.root)
        by_sha = {} if replace else {digest: e.name for digest, e in known.by_sha256().items()}
        rows: dict[str, dict[str, Any]] = {}
        replaced: dict[str, ledger.Entry] = {}
        for job, one in done:
            entry = one.entry
            sha = _known_as(entry, by_sha)
            if entry is None or sha is not None:
                why = one.note or f"already in the lake (as {by_sha[sha]})" if sha else one.note
                first = next((r for r in rows.values() if sha in (r["sha256"], r["text_sha256"])), None)
                if entry is not None and first is not None:
                    first["also_named"].append(one.name)
                if entry is not None and entry["sha256"] not in rows:
                    _drop(txn, entry["_files"])
                tally.skip(one.name, why or "")
                continue
            by_sha |= {digest: one.name for digest in (entry["sha256"], entry["text_sha256"]) if digest}
            rows[entry["sha256"]] = {**entry, "_file": job.file}
            # With `replace` an earlier reading of the same content is replaced like an earlier version of it.
            same = known.of_bytes(entry["sha256"])
            for old in {*known.grown_from(entry["_prefixes"]), *same}:
                replaced[old.source_id] = old
                if old not in same:
                    rows[entry["sha256"]]["replaces"].append(old.source_id)
            tally.take(one)
        _drop_beginnings(txn, rows, tally)
        if amend is not None:
            kept = ledger.Ledger(tuple(e for e in known.entries if e.source_id not in replaced))
            replaced |= {e.source_id: e for e in amend(txn, list(rows.values()), kept)}
        left = tuple(e for e in known.entries if e.source_id not in replaced)
        found = copies.find(txn.store.root, txn.folder, list(rows.values()), left)
        again = {e.source_id for e in replaced.values()}
        tally.beside_rolled(rows.values(), copies.unseen(txn.store.root, list(rows.values()), left), again)
        names = {e.source_id: e.name for e in left} | {r["source_id"]: r["name"] for r in rows.values()}
        for entry in rows.values():
            entry["same_as"] = found.get(entry["source_id"])
            tally.copied(entry, names)
        delete: list[str] = []
        if replaced:
            delete += shared.take_out(txn.store.root, tuple(replaced.values()), txn.path)
            for number, file in enumerate(sorted({e.file for e in replaced.values()})):
                path = txn.path(f"sources/{txn.folder.name}-{number}.parquet")
                ledger.rewrite_without(txn.store.root, file, tuple(replaced), path)
                delete.append(file)
        if rows:
            clean = [{k: v for k, v in r.items() if not k.startswith("_")} for r in rows.values()]
            ledger.write(clean, txn.path(f"sources/{txn.folder.name}.parquet"))
        txn.commit(delete=tuple(delete), have_lock=True)
    logs.info(log, "committed", sources=len(rows), replaced=len(replaced), seconds=time.monotonic() - begun)


def _known_as(entry: Mapping[str, Any] | None, known: Mapping[str, str]) -> str | None:
    """The digest by which a source is known: of its bytes, or of its text (other line ends, a BOM, UTF-16)."""
    return None if entry is None else next((d for d in (entry["sha256"], entry["text_sha256"]) if d in known), None)


def _drop_beginnings(txn: Transaction, rows: dict[str, dict[str, Any]], tally: Tally) -> None:
    """A source of this batch that is the beginning of another one of it (a copy taken earlier) adds nothing."""
    for sha, entry in list(rows.items()):
        longer = next((r for r in rows.values() if r is not entry and _begins_with(r, entry)), None)
        if longer is not None:
            _drop(txn, entry["_files"])
            del rows[sha]
            longer["replaces"].append(entry["source_id"])
            tally.untake(entry, f"the beginning of {longer['name']}")


def _begins_with(longer: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether a source starts with all of another; sizes of compressed files are known only now, so look again."""
    if longer["bytes"] <= entry["bytes"] or longer["_prefixes"].get(_HEAD) != entry["_prefixes"].get(_HEAD):
        return False
    known = longer["_prefixes"].get(entry["bytes"])
    if known is None and longer["_file"].path is not None:
        with BlockStream(longer["_file"], checkpoints=(entry["bytes"],)) as stream:
            for _ in stream:
                if entry["bytes"] in stream.prefix_sha256:
                    break
            known = stream.prefix_sha256.get(entry["bytes"])
    return bool(known == entry["sha256"])


def _drop(txn: Transaction, files: Sequence[str]) -> None:
    for name in files:
        (txn.folder / name).unlink(missing_ok=True)
