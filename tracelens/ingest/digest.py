"""The digest of a file that is read twice: its rows name it, and are written before its end is seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tracelens.ingest.fast import Scan, Unproved, figures
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream, count_ends

# What is only hashed stays in the processor's cache, and its memory is not given back and fetched.
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Digest:
    """A file as it was when it was read for its digest.

    Attributes:
        scan: the ledger's figures, without lines: these are counted by whoever reads the file for its records.
        look: device, inode, size and time of change of the file before it was read; None where it can't be looked at.
        above: lines that end before each of the places asked for.
    """

    scan: Scan
    look: tuple[int, ...] | None
    above: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, file: SourceFile, checkpoints: Sequence[int], limit: int | None = None, places: Sequence[int] = ()
    ) -> Digest:
        """Read a file through.

        Args:
            file: a file that can be read twice.
            checkpoints, limit: as `BlockStream`.
            places: rising numbers of bytes, where lines begin; for `above`.

        Raises:
            Unproved: it is no text in UTF-8.
        """
        before = _look(file)
        with BlockStream(file, checkpoints=checkpoints, limit=limit) as stream:
            pieces = stream.pieces()
            head = next(pieces, b"")  # as much of it as other roads look at for its line ends
            stream.read_by(_PIECE)
            above = _above(chain([head] if head else [], pieces), places)
            stream.end()
        return cls(figures(stream, broken=True), before, above)

    def check(self, file: SourceFile, size: int) -> None:
        """Whether what was read for its records, of `size` bytes, is what the digest is of.

        Raises:
            Unproved: the file is no more what it was.
        """
        now = _look(file)
        if size != self.scan.bytes or now is None or self.look is None or now[:2] != self.look[:2]:
            raise Unproved("a file that changes")
        # A log grows behind what is read of it. One that was written anew in its place does not begin as it did.
        if now != self.look and Digest.of(file, (), self.scan.bytes).scan.sha256 != self.scan.sha256:
            raise Unproved("a file that changes")


def _above(pieces: Iterator[bytes], places: Sequence[int]) -> tuple[int, ...]:
    """Lines that end before each place, of a text that comes in pieces; all of it is gone through."""
    above: list[int] = []
    left = deque(places)
    done = ends = 0
    for piece in pieces:
        start = 0
        while left and left[0] <= done + len(piece):
            end = left.popleft() - done
            ends += count_ends(memoryview(piece)[start:end])
            above.append(ends)
            start = end
        if left:
            ends += count_ends(memoryview(piece)[start:] if start else piece)
        done += len(piece)
    return tuple(above)


def _look(file: SourceFile) -> tuple[int, ...] | None:
    try:
        found = file.path.stat() if file.path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
