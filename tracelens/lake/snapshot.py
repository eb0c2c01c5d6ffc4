"""What a reader reads: the files of a lake at one moment, which stay where they are until he is done.

A reader holds `.staging/readers.lock` together with other readers. A commit that finds it held leaves the files where
they are; so a reader sees the lake before a commit or after it, and never a mixture. Where that file can't be held (no
locks on this disk, a lake without staging area, a writer that was stopped in the middle of its moves), the files are
listed until nothing moved meanwhile; a commit may then take one away while it is read, which is an error and no figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.lake import journal, locks
from tracelens.lake.schema import TABLES
from tracelens.lake.storage import Days, storage_of

if TYPE_CHECKING:
    import duckdb

LOCK = "lake.lock"
# Moves take milliseconds; a writer that takes longer hangs, and is not waited for. Seconds.
_PATIENCE = 3.0
_LOOKS = 100
_PAUSE = 0.02


class FolderReading:
    """A lake in a folder as of its last commit when the reading began, until `release`; see `storage.Held`.

    Args:
        root: folder of the lake.
        tables: tables whose files are wanted.

    Raises:
        InputError: the lake may not be read, or never holds still.
    """

    def __init__(self, root: Path, tables: Iterable[str] = TABLES) -> None:
        self._root = root
        self._lock = locks.shared(root / journal.STAGING / journal.READERS, _PATIENCE)
        try:
            self.files: Mapping[str, str] = _listed(root, tables) if self._lock is None else journal.live(root, tables)
        except OSError as error:
            self.release()
            raise InputError(f"the lake at {root} can't be read: {error.strerror}; check its permissions") from error
        except BaseException:
            self.release()
            raise

    def paths(self, table: str) -> list[str]:
        """Paths of the files of a table, in the order of their names in the lake."""
        return [path for name, path in sorted(self.files.items()) if name.startswith(f"{table}/")]

    def attach(self, con: duckdb.DuckDBPyConnection, ahead: Days | None = None) -> list[str]:
        """A connection reads the files as they lie there: the lake's folder is all that it needs."""
        return [str(self._root)]

    def release(self) -> None:
        """End the reading; commits that waited for it get their files moved."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
            _tidy(self._root)


class Reading:
    """A lake as of its last commit when the reading began, until `release`.

    Args:
        root: place of the lake.
        tables: tables whose files are wanted.

    Raises:
        InputError: the lake may not be read, or never holds still.
    """

    def __init__(self, root: Path, tables: Iterable[str] = TABLES) -> None:
        self._held = storage_of(root).hold(tables)
        self.files: Mapping[str, str] = self._held.files

    def of(self, table: str) -> list[str]:
        """Paths of the files of a table for DuckDB, in the order of their names in the lake."""
        return self._held.paths(table)

    def attach(self, con: duckdb.DuckDBPyConnection, ahead: Days | None = None) -> list[str]:
        """Let a connection read the files; the folders that it needs. `ahead`: days of which it will read all."""
        return self._held.attach(con, ahead)

    def release(self) -> None:
        """End the reading."""
        self._held.release()


@contextmanager
def reading(root: Path, tables: Iterable[str] = TABLES) -> Iterator[Reading]:
    """Read a lake as of its last commit.

    Raises:
        InputError: the lake may not be read, or never holds still.
    """
    held = Reading(root, tables)
    try:
        yield held
    finally:
        held.release()


def _listed(root: Path, tables: Iterable[str]) -> Mapping[str, str]:
    """The files, listed until no commit came between."""
    wanted = tuple(tables)
    for _ in range(_LOOKS):
        before = _stamp(root)
        found = journal.live(root, wanted)
        staged = (path for path in found.values() if f"/{journal.STAGING}/" in path)
        if _stamp(root) == before and all(map(os.path.exists, staged)):
            return found
        time.sleep(_PAUSE)
    raise InputError(f"the lake at {root} changes faster than it can be listed: try again")


def _stamp(root: Path) -> tuple[object, ...]:
    """What is another one after a commit: the times of two folders, and the commits on their way."""
    times = []
    for folder in (root / journal.STAGING, root / "sources"):
        try:
            times.append(folder.stat().st_mtime_ns)
        except FileNotFoundError:
            times.append(0)
    return (*times, *(j.folder.name for j in journal.pending(root)))


def _tidy(root: Path) -> None:
    """Move the files of commits that waited for a reader, where he may: a bare DuckDB sees them then."""
    with suppress(OSError):
        if not journal.pending(root):
            return
        lock = locks.exclusive(root / journal.STAGING / LOCK, 0.0)
        if lock is not None:
            try:
                journal.settle(root)
            finally:
                lock.release()
