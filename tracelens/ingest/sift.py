"""A file of canonical JSON lines that is not clean: its good lines for the fast road, the others one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.engines.generic import rules
from tracelens.ingest.typed import decoder
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import Block, BlockStream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tracelens.ingest.fast import Scan, Shape
    from tracelens.sources.lines import LineFinder


# Stands where a line was taken out, so that rows and lines stay as many.
HOLE = {"record": " "}


@dataclass(frozen=True, slots=True)
class Sifted:
    """The file that `sift` wrote, and how many of its lines are holes."""

    path: Path
    holes: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not, or may not be, a clean record of the file's kind."""

    line: int
    offset: int
    data: bytes


def sift(
    file: SourceFile,
    shape: Shape,
    target: Path,
    take: Callable[[Sequence[BadLine]], None],
    *,
    checkpoints: Sequence[int] = (),
    without: Collection[str] = (),
) -> tuple[Scan, Sifted]:
    """Copy the records that the strict type takes, a hole in the place of every other line; hand those lines on.

    The records are written anew from what was decoded: without escapes, doubles of keys and odd spaces, of which
    DuckDB might make something else.

    Args:
        file: the file.
        shape: what its first lines say.
        target: where to write the copy.
        take: called with the lines taken out, block by block.
        checkpoints: sizes (bytes) at which the digest of the beginning is wanted.
        without: keys that make a line one to be taken out.

    Raises:
        Unproved: see `figures`.
    """
    import msgspec

    from tracelens.ingest.fast import figures

    decode = decoder(shape, closed=False, without=without)
    encode = msgspec.json.Encoder().encode_lines
    holes = 0
    with BlockStream(file, checkpoints=checkpoints) as stream, target.open("wb") as out:
        for block in stream:
            records = _whole(decode, block.data)
            if records is not None and all(_is_of_kind(r, shape) for r in records):
                out.write(encode(records))
                continue
            lines = block.data.split(b"\n")
            if not lines[-1]:
                lines.pop()
            mixed = [_one(decode, line, shape) for line in lines]
            bad = [i for i, record in enumerate(mixed) if record is HOLE]
            take([b for b in _bad_lines(block.line, block.offset, lines, bad) if b.data.strip()])
            holes += len(bad)
            out.write(encode(mixed))
    return figures(stream), Sifted(target, holes)


def stray_return(data: bytes) -> bool:
    """Whether a carriage return stands elsewhere than at the end of a line: what a terminal shows is no more the line.

    JSON takes it for a space, the slow road for the return of a progress bar (sources/envelopes.py).
    """
    return b"\r" in data and data.count(b"\r") != data.count(b"\r\n") + data.endswith(b"\r")


def _whole(decode: Any, data: bytes) -> list[Any] | None:
    """The records of a block, one from each line; None where any line is none."""
    import msgspec

    if stray_return(data):
        return None
    try:
        records: list[Any] = decode.decode_lines(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    # Every line ends a record and begins one: neither can happen inside a record.
    ends = data.count(b"}\n{") + data.count(b"}\r\n{")
    return records if len(records) == ends + 1 and data.count(b"\n") in (ends, ends + 1) else None


def _one(decode: Any, line: bytes, shape: Shape) -> Any:
    """The record of a line, or HOLE."""
    import msgspec

    if b"\r" in line[:-1]:
        return HOLE
    try:
        record = decode.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return HOLE  # whatever is wrong with it, the slow road says what
    return record if _is_of_kind(record, shape) else HOLE


def _is_of_kind(record: Any, shape: Shape) -> bool:
    """Whether a record that does not name its kind is of the file's, by the keys it has."""
    if shape.worded:
        return True
    import msgspec

    return rules.kind_of(msgspec.to_builtins(record)) == shape.table


def _bad_lines(first: int, offset: int, lines: Sequence[bytes], bad: Sequence[int]) -> list[BadLine]:
    found: list[BadLine] = []
    at, done = offset, 0
    for i in bad:
        at += sum(map(len, lines[done:i])) + (i - done)
        found.append(BadLine(first + i, at, lines[i]))
        done = i
    return found


def relevant(bad: Sequence[BadLine], finder: LineFinder) -> list[BadLine]:
    """The lines that `read` would look at too.

    Raises:
        Unproved: a line in an envelope: its stamp, and the parts it may have, are for the slow road.
    """
    from tracelens.ingest.fast import Unproved

    if not bad:
        return []
    # An object goes first because the finder looks at the first lines to learn whether quotes may be escaped.
    found = finder.find(Block(b"{}\n" + b"".join(b.data + b"\n" for b in bad), 0, 0))
    if finder.joined or found["envelope"].null_count() < found.height or finder.finish().height or finder.problems:
        raise Unproved("a line in an envelope")
    lines = found.select("line", "text").iter_rows()
    return [BadLine(bad[at - 1].line, bad[at - 1].offset, text.encode()) for at, text in lines]


def offsets(file: SourceFile, lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where lines begin; the file is read once more for it, unless there are none."""
    import numpy as np

    order = np.argsort(lines, kind="stable")
    wanted, places = lines[order], np.zeros(len(lines), np.int64)
    if not len(wanted):
        return places
    with BlockStream(file, figures=False) as stream:
        for block in stream:
            ends = np.flatnonzero(np.frombuffer(block.data, np.uint8) == 10)
            starts = np.concatenate(([0], ends + 1))
            first, last = np.searchsorted(wanted, [block.line, block.line + len(ends) + (block.data[-1:] != b"\n")])
            places[order[first:last]] = block.offset + starts[wanted[first:last] - block.line]
    return places
