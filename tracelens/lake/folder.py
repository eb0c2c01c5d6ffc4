"""A lake in a folder: commits by a journal and renames, one writer by a file lock. See journal.py and snapshot.py."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from tracelens.errors import InputError
from tracelens.lake import disk, journal
from tracelens.lake.snapshot import LOCK, FolderReading
from tracelens.lake.storage import Held, Writing

try:
    import fcntl
except ImportError:  # Windows has no advisory locks of this kind; there one writer at a time is the user's care
    fcntl = None  # type: ignore[assignment]

_OWNER = "owner.lock"


class Folder:
    """A lake in a folder, see `Storage`; a writer keeps one of these, as it knows whether he holds the lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._holds_lock = False

    def is_lake(self) -> bool:
        """As `Storage`."""
        return (self.root / "sources").is_dir() and (self.root / "rounds").is_dir()

    def identity(self) -> Hashable | None:
        """As `Storage`."""
        try:
            found = (self.root / "sources").stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def prepare(self, names: Iterable[str]) -> bool:
        """As `Storage`; a look under the lock costs no more than one without."""
        root = self.root
        if root.exists() and not root.is_dir():
            raise InputError(f"{root} is not a folder; name another place with --lake")
        if root.is_dir() and not self.is_lake() and _is_foreign(root):
            raise InputError(f"{root} holds other files than a lake's; name an empty or a new folder with --lake")
        with self.told():
            (root / journal.STAGING).mkdir(parents=True, exist_ok=True)
        return False

    def lacking(self, names: Iterable[str]) -> list[str]:
        """As `Storage`."""
        return [name for name in names if not (self.root / name).exists()]

    @contextmanager
    def locked(self) -> Iterator[Writing]:
        """As `Storage`."""
        if self._holds_lock:
            yield _FolderWriting(self.root)
            return
        with (self.root / journal.STAGING / LOCK).open("w") as handle:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            self._holds_lock = True
            try:
                yield _FolderWriting(self.root)
            finally:
                self._holds_lock = False

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """As `Storage`: below the lake's staging area, so that a rename moves what is in it."""
        folder = self.root / journal.STAGING / uuid.uuid4().hex
        # Under the lock: a recovery of another process takes a folder without a locked owner for a dead one.
        with self.locked():
            folder.mkdir()
            owner = own(folder)
        with owner:
            try:
                yield folder
            finally:
                # A commit whose files are not moved yet leaves its journal: whoever comes next moves them.
                if not (folder / journal.JOURNAL).exists():
                    shutil.rmtree(folder, ignore_errors=True)

    def told(self) -> AbstractContextManager[None]:
        """As `Storage`."""
        return disk.told(self.root)

    def live(self, tables: Iterable[str]) -> Mapping[str, str]:
        """As `Storage`."""
        return journal.live(self.root, tables)

    def lost(self) -> frozenset[str] | None:
        """As `Storage`: the files that are there are the lake."""
        return None

    def hold(self, tables: Iterable[str]) -> Held:
        """As `Storage`."""
        return FolderReading(self.root, tables)


class _FolderWriting:
    """As `Writing`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def recover(self) -> None:
        """As `Writing`."""
        if (self._root / journal.STAGING).is_symlink():  # whatever lies behind it is not ours to clear away
            raise InputError(f"{self._root / journal.STAGING} is a link: a lake's own folder is to be there; remove it")
        (self._root / journal.STAGING / journal.READERS).touch()
        journal.settle(self._root)
        waiting = {j.folder for j in journal.pending(self._root)}
        sweep(self._root / journal.STAGING, spared=waiting)

    def commit(self, folder: Path, names: Sequence[str], delete: Sequence[str]) -> None:
        """As `Writing`."""
        journal.write(self._root, folder, names, delete)
        journal.settle(self._root, journal.PATIENCE)


def _is_foreign(root: Path) -> bool:
    """Whether a folder that is no lake yet holds anything of someone else's.

    The lock file tells our staging area: a lake whose first commit was interrupted may have little else.
    """
    staging = root / journal.STAGING
    if (staging / LOCK).exists():
        return False
    return any(p != staging or not p.is_dir() or any(p.iterdir()) for p in root.iterdir())


def own(folder: Path) -> TextIO:
    """Mark a folder as one that somebody works in, for as long as the file is open."""
    owner = (folder / _OWNER).open("w")
    if fcntl is not None:
        fcntl.flock(owner, fcntl.LOCK_EX)
    return owner


def sweep(place: Path, pattern: str = "*", spared: Iterable[Path] = ()) -> None:
    """Remove the folders of a place that nobody works in any more."""
    kept = set(spared)
    for folder in sorted(place.glob(pattern)):
        if folder.is_dir() and not folder.is_symlink() and folder not in kept and not _alive(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(folder: Path) -> bool:
    """Whether the process that works here still runs: it holds its lock as long as it lives."""
    if fcntl is None:
        return False
    try:
        with (folder / _OWNER).open("r+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
