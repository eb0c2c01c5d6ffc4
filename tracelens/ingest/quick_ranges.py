"""A large file of canonical JSON lines by several processes: each takes the lines of some ranges to Parquet.

Lines of one form say what they say whatever stands around them, so that nothing is put together here but what the
ranges tell of their runs, and the lines that are of no form, which are read in their order by the first process. What a
line could change for those before it (a record that names their run) sends the file to one process.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.engines.base import Reject
from tracelens.ingest.digest import Digest
from tracelens.ingest.fast import Unproved, Written
from tracelens.ingest.laid import Laid, add_run
from tracelens.ingest.processes import Pool
from tracelens.ingest.quick import BLOCK, Plan, Waiting, blocks
from tracelens.ingest.ranges import spans_of
from tracelens.ingest.refused import Refused
from tracelens.ingest.sift import BadLine
from tracelens.sources.stream import Block, BlockStream

if TYPE_CHECKING:
    from tracelens.ingest.redact import Redaction
    from tracelens.ingest.rows import Naming
    from tracelens.sources.discover import SourceFile

# A range makes a file a day; a few for each process, so that none waits long for the last. The lines of other forms of
# a range are in memory at once: an eighth of it at most.
_RANGES = 3
_LARGEST = 512 << 20
_AHEAD = 1  # ranges beyond those that are worked at


@dataclass(frozen=True, slots=True)
class Task:
    """A range, and what all ranges of the file have in common: as `quick.write`; `above` lines end before it."""

    file: SourceFile
    plan: Plan
    span: tuple[int, int]
    above: int
    constants: Mapping[str, Any]
    naming: Naming
    folder: Path
    redaction: Redaction | None


@dataclass(frozen=True, slots=True)
class Range:
    """What a process has written below the folder of its task, and the lines that it leaves to the first one."""

    written: Written
    others: Sequence[BadLine]
    bytes: int


def digest_of(file: SourceFile, checkpoints: Sequence[int], processes: int) -> tuple[Digest, list[tuple[int, int]]]:
    """The digest, with the lines above each range, and the ranges; see `Digest.of`."""
    spans = list(spans_of(file, min(_LARGEST, -(-(file.size or 0) // (_RANGES * processes)))))
    return Digest.of(file, checkpoints, file.size, [start for start, _ in spans]), spans


def write(
    file: SourceFile,
    head: bytes,
    plan: Plan,
    digest: Digest,
    spans: Sequence[tuple[int, int]],
    constants: Mapping[str, Any],
    naming: Callable[[], Naming],
    staging: Path,
    take: Callable[[Sequence[BadLine]], int],
    redaction: Redaction | None,
    processes: int,
) -> Written:
    """Write the rows of a file below `staging` by some processes; as `quick.write`.

    Args:
        head: its first lines; a record that names the run of the rows stands there.
        spans: the ranges of `digest_of`.
        processes: so many.

    Raises:
        Unproved: the file is for one process.
    """
    head = head[: head.rfind(b"\n") + 1]
    first = _others(head, plan)
    take(first)
    named = naming()
    with tempfile.TemporaryDirectory(prefix="quick-", dir=staging) as folder:
        tasks = [
            Task(file, plan, span, above, constants, named, Path(folder, str(number)), redaction)
            for number, (span, above) in enumerate(zip(spans, digest.above, strict=True))
        ]
        with closing(_done(tasks, processes)) as ranges:
            written, size = _together(plan, ranges, take, first, head.count(b"\n"))
        digest.check(file, size)
        if naming() != named:
            raise Unproved("a record that names the run of rows")
        _move(tasks, staging)
    return written


def _done(tasks: Sequence[Task], processes: int) -> Generator[Range]:
    """What becomes of the tasks, in their order."""
    left = iter(tasks)
    try:
        with closing(_pool(processes)) as pool:
            waiting = deque(pool.submit(write_range, task) for task in islice(left, processes + _AHEAD))
            while waiting:
                yield waiting.popleft().result()
                waiting += [pool.submit(write_range, task) for task in islice(left, 1)]
    except BrokenExecutor as error:  # killed, for want of memory say
        raise Unproved("a process that reads has ended") from error


def _pool(processes: int) -> Pool:
    return Pool(processes)


def write_range(task: Task) -> Range:
    """In a process: the lines of one range.

    Raises:
        Unproved: the file is for another road.
    """
    others: list[BadLine] = []

    def keep(lines: Sequence[BadLine]) -> int:
        others.extend(lines)
        return len(others)

    task.folder.mkdir()
    waiting = Waiting(keep)
    stream = BlockStream(task.file, block_bytes=BLOCK, figures=False, span=task.span)
    stream.lines = task.above
    laid = Laid(task.plan.table, task.plan.ts_basis, task.constants, task.naming, task.folder, task.redaction)
    try:
        with stream:
            for block, cut, kept, columns in blocks(stream, task.plan, waiting):
                laid.add(columns, block.line + kept, block.offset + cut.starts[kept])
        waiting.hand_on()
        written = laid.finish(task.folder / "rows", stream.lines - task.above, tuple(stream.problems))
    finally:
        laid.close()
    return Range(written, others, stream.bytes)


def _others(head: bytes, plan: Plan) -> list[BadLine]:
    """The lines of the beginning that are of no form."""
    found: list[BadLine] = []

    def keep(lines: Sequence[BadLine]) -> int:
        found.extend(lines)
        return len(found)

    waiting = Waiting(keep)
    for _ in blocks([Block(head, 1, 0)], plan, waiting):
        pass
    waiting.hand_on()
    return found


def _together(
    plan: Plan,
    ranges: Iterable[Range],
    take: Callable[[Sequence[BadLine]], int],
    first: Sequence[BadLine],
    above: int,
) -> tuple[Written, int]:
    """What all ranges have written, and the bytes that they have read; the lines up to `above` were taken before."""
    again: list[BadLine] = []
    rows = lines = size = 0
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    faults = Refused()
    problems: list[Reject] = []
    for one in ranges:
        again += [line for line in one.others if line.line <= above]
        take([line for line in one.others if line.line > above])
        rows += one.written.rows
        lines += one.written.lines
        size += one.bytes
        faults.extend(one.written.faults)
        problems += one.written.problems
        for run in one.written.runs:
            add_run(runs, run)
    if not rows:
        raise Unproved("no lines of one form")
    if again != list(first):
        raise Unproved("lines that are of a form here and of none there")
    return Written(plan.table, rows, tuple(runs[key] for key in sorted(runs)), faults, lines, tuple(problems)), size


def _move(tasks: Sequence[Task], staging: Path) -> None:
    """From where the processes wrote to the paths of the lake, numbered by their ranges."""
    for number, task in enumerate(tasks):
        rows = task.folder / "rows"
        for path in sorted(rows.rglob("*.parquet")):
            target = staging / path.parent.relative_to(rows) / f"{task.naming.source_id}-{number}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
