"""What a watch remembers of its files from look to look, and what it tells of a look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracelens.sources.discover import SourceFile
from tracelens.sources.follow import Mark, mark_of

Note = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Held:
    """A source that has changed and is not read yet: its bytes on the disk, why, and in how many seconds it will be."""

    name: str
    bytes: int
    why: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One look at the files, and what came of it.

    `changed` says whether the lake is another one now; `held` is what keeps it from being that of a fresh ingest;
    `dropped` that a stop came before a reading was committed; `apart` how many seconds the look before it was begun
    earlier, None at the first.
    """

    files: int
    read: tuple[str, ...]
    changed: bool
    held: tuple[Held, ...]
    notes: tuple[Note, ...]
    seconds: float
    dropped: bool = False
    apart: float | None = None


@dataclass(slots=True)
class State:
    """What is known of a file: its first bytes, its mark when it was read, since when it has been another one.

    `cut` is its mark when it was found cut short. `source` is the source that it was when it was last read as one of
    its own, `path` and `was` its path and its first bytes then.
    """

    head: bytes = b""
    read: Mark | None = None
    since: float | None = None
    cut: Mark | None = None
    source: str | None = None
    path: Path | None = None
    was: bytes = b""


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed file, and its mark before it is read."""

    file: SourceFile
    mark: Mark

    def has_moved(self) -> bool:
        """Whether the file was rotated or truncated since its mark was taken: growing is no move."""
        now = mark_of(self.file.path)
        return now is None or now.file != self.mark.file or now.size < self.mark.size
