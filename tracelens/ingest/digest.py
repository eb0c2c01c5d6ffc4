"""The digest of a file that is read twice: its rows name it, and are written before its end is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.ingest.fast import Scan, Unproved, figures
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

# What is only hashed stays in the processor's cache, and its memory is not given back and fetched.
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Digest:
    """A file as it was when it was read for its digest.

    Attributes:
        scan: the ledger's figures, without lines: these are counted by whoever reads the file for its records.
        look: size and time of change of the file before it was read; None where it can't be looked at.
    """

    scan: Scan
    look: tuple[int, int] | None

    @classmethod
    def of(cls, file: SourceFile, checkpoints: Sequence[int], limit: int | None = None) -> Digest:
        """Read a file through.

        Args:
            file: a file that can be read twice.
            checkpoints, limit: as `BlockStream`.

        Raises:
            Unproved: it is no text in UTF-8.
        """
        before = _look(file)
        with BlockStream(file, checkpoints=checkpoints, limit=limit) as stream:
            pieces = stream.pieces()
            next(pieces, b"")  # as much of it as other roads look at for its line ends
            stream.read_by(_PIECE)
            for _ in pieces:
                pass
            stream.end()
        return cls(figures(stream, broken=True), before)

    def check(self, file: SourceFile, size: int) -> None:
        """Whether what was read for its records, of `size` bytes, is what the digest is of.

        Raises:
            Unproved: the file is no more what it was.
        """
        # A log grows behind what is read of it; one that changed and did not grow was written anew.
        now = _look(file)
        is_same = now == self.look or (now is not None and now[0] > (file.size or 0))
        if size != self.scan.bytes or not is_same:
            raise Unproved("a file that changes")


def _look(file: SourceFile) -> tuple[int, int] | None:
    try:
        found = file.path.stat() if file.path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_size, found.st_mtime_ns)
