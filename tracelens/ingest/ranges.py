"""One large log by several processes: each reads ranges of it, and what they find is put together here in its order.

What is found in a range depends on no other one, but for messages that a container runtime wrote in parts, and for the
numbers of lines, which count from the range's first and are moved here. What the lines mean is made out of all ranges
in order (parts.py); where a log is of another kind, `Unproved` sends it to one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import closing
from io import RawIOBase

from tracelens.engines.base import Engine, Parsed
from tracelens.ingest import signals
from tracelens.ingest.fast import Unproved
from tracelens.ingest.parts import InParts
from tracelens.ingest.processes import Pool, begin
from tracelens.ingest.read import Reading, is_lines, read_span
from tracelens.ingest.refused import Refused
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

# Below this the start of the processes costs more than it saves.
SMALLEST = 1 << 30
RANGE = 64 << 20
# Of lines that are records.
DENSE = 0.005
_STEP = 1 << 20
_AHEAD = 2  # ranges a process that wait to be put together


def is_large(file: SourceFile) -> bool:
    """Whether a file is a large one of lines, plain and in UTF-8."""
    if file.path is None or (file.size or 0) < SMALLEST:
        return False
    with BlockStream(file, takes=signals.is_wanted) as stream:
        head = next(stream.pieces(), b"")
        plain = stream.compression == "none" and stream.encoding == "utf-8"
    return plain and not stream.binary and is_lines(head)


def is_dense(file: SourceFile, engines: Sequence[Engine]) -> bool:
    """Whether so much of a large log is records, by a look at three places, that several processes are done sooner.

    One finds a needle in a haystack as fast as it reads; several take half as much CPU again, and no less time.
    """
    rows = lines = 0
    for at in (0, (file.size or 0) // 2, (file.size or 0) - 2 * _STEP):
        span = next(spans_of(file, _STEP, at), None)
        if span is not None:
            start, end = span
            found = read_span(file, engines, (start, min(end, start + RANGE)))  # a line may be longer
            rows += sum(f.height for p in found.parsed.values() for frames in p.frames.values() for f in frames)
            lines += found.lines
    return rows >= DENSE * lines


def read_ranges(
    file: SourceFile,
    engines: Sequence[Engine],
    chosen: str,
    parts: InParts,
    processes: int,
    progress: Callable[[int], None] | None = None,
) -> Reading:
    """Read a log by some processes.

    Args:
        file: see `is_large`.
        engines: readers.
        chosen: the option that names them.
        parts: puts the lines together.
        processes: so many.
        progress: as `read`.

    Raises:
        Unproved: it is to be read by one process.
    """
    try:
        return _read_by(processes, file, engines, chosen, parts, progress)
    except BrokenExecutor as error:  # killed, for want of memory say
        raise Unproved("a process that reads has ended") from error


def _read_by(
    processes: int,
    file: SourceFile,
    engines: Sequence[Engine],
    chosen: str,
    parts: InParts,
    progress: Callable[[int], None] | None,
) -> Reading:
    whole = Reading("", 0, 0, "", "", (), False, {}, {e.name: Parsed(rejects=Refused()) for e in engines}, Refused())
    envelopes: set[str] = set()
    with closing(_pool(processes, chosen)) as pool:
        waiting = deque[Future[Reading]]()
        spans = spans_of(file, RANGE)
        for span in _some(spans, processes * _AHEAD):
            waiting.append(pool.submit(_read, file, span))
        scan = parts.begin(limit=file.size).digest.scan
        while waiting:
            found = waiting.popleft().result()
            for span in _some(spans, 1):
                waiting.append(pool.submit(_read, file, span))
            _add(whole, found, parts)
            envelopes.update(found.envelopes)
            parts.offer(whole.parsed)
            if progress is not None:
                progress(found.bytes)
    whole.sha256, whole.prefixes, whole.text_sha256 = scan.sha256, scan.prefixes, scan.text_sha256
    whole.encoding, whole.compression = scan.encoding, scan.compression
    whole.envelopes = tuple(sorted(envelopes))
    return whole


def _pool(processes: int, chosen: str) -> Pool:
    return Pool(processes, _start, (chosen,))


_engines: list[Engine] = []  # set once, when a process starts


def _start(chosen: str) -> None:
    from tracelens.engines import load

    begin()
    _engines[:] = load(chosen)


def _read(file: SourceFile, span: tuple[int, int]) -> Reading:
    return read_span(file, _engines, span)


def _some(spans: Iterator[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        span = next(spans, None)
        if span is not None:
            yield span


def spans_of(file: SourceFile, least: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges of so many bytes or a few more, that end behind a line end: first byte, and the one behind the last.

    Args:
        file: a plain log.
        least: bytes.
        first: they begin behind the first line end from here on.
    """
    assert file.path is not None
    size = file.size or 0
    with file.path.open("rb", buffering=0) as handle:
        start = _behind_a_line(handle, first) if first > 0 else 0
        while start < size:
            end = _behind_a_line(handle, start + least)
            yield start, min(end, size)
            start = end


def _behind_a_line(handle: RawIOBase, place: int) -> int:
    handle.seek(place)
    while piece := handle.read(_STEP):
        at = piece.find(b"\n")
        if at >= 0:
            return place + at + 1
        place += len(piece)
    return place


def _add(whole: Reading, found: Reading, parts: InParts) -> None:
    """Add what was found in the next range.

    Raises:
        Unproved: its meaning may depend on other ranges.
    """
    import polars as pl

    if found.parted:
        raise Unproved("messages in parts")
    if others := [e for e, p in found.parsed.items() if (p.frames or p.rejects) and e not in parts.engines]:
        raise Unproved(f"records of {', '.join(others)}")
    line = pl.col("line") + whole.lines
    for engine, parsed in found.parsed.items():
        parsed.frames = {s: [f.with_columns(line) for f in frames] for s, frames in parsed.frames.items()}
        parsed.rejects = _shifted(parsed.rejects, whole.lines)
        whole.parsed[engine].merge(parsed)
    whole.rejects.extend(_shifted(found.rejects, whole.lines))
    whole.lines += found.lines
    whole.bytes += found.bytes


def _shifted(rejects: Sequence[object], lines: int) -> Refused:
    assert isinstance(rejects, Refused)
    rejects.shift(lines)
    return rejects
