"""The lake as files: staging, one atomic commit for many files, recovery after a crash.

A transaction writes its files below `.staging/<id>/`, under the paths they will have in the lake. `commit` writes the
list of moves (the journal) and makes it durable, then renames file after file. Whoever opens the lake next finds either
no journal (the staged files are thrown away) or a whole one (the renames are finished): so a source is there entirely
or not at all. The ledger's rows move last. Nothing is moved while somebody reads: see journal.py and snapshot.py.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake import disk, journal
from tracelens.lake.schema import DAY_OF, NO_DAY, TABLES
from tracelens.lake.snapshot import LOCK

try:
    import fcntl
except ImportError:  # Windows has no advisory locks of this kind; there one writer at a time is the user's care
    fcntl = None  # type: ignore[assignment]

_OWNER = "owner.lock"


def is_lake(path: Path) -> bool:
    """Whether the folder is a lake that tracelens made."""
    return (path / "sources").is_dir() and (path / "rounds").is_dir()


def _is_foreign(root: Path) -> bool:
    """Whether a folder that is no lake yet holds anything of someone else's.

    The lock file tells our staging area: a lake whose first commit was interrupted may have little else.
    """
    staging = root / journal.STAGING
    if (staging / LOCK).exists():
        return False
    return any(p != staging or not p.is_dir() or any(p.iterdir()) for p in root.iterdir())


class Store:
    """A lake that can be written.

    Args:
        root: folder of the lake; made, with one zero-row file a table, when it does not exist.

    Raises:
        InputError: the folder holds something else, or can't be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._holds_lock = False
        try:
            if root.exists() and not root.is_dir():
                raise InputError(f"{root} is not a folder; name another place with --lake")
            if root.is_dir() and not is_lake(root) and _is_foreign(root):
                raise InputError(f"{root} holds other files than a lake's; name an empty or a new folder with --lake")
            with disk.told(root):
                (root / journal.STAGING).mkdir(parents=True, exist_ok=True)
                with self._locked():
                    self._recover()
                    if not is_lake(root) or any(not self._empty_file(t).exists() for t in TABLES):
                        self._initialise()
        except OSError as error:
            raise InputError(
                f"the lake at {root} can't be written: {error.strerror}; name another with --lake"
            ) from error

    def _empty_file(self, table: str) -> Path:
        folder = self.root / table
        return (folder / f"date={NO_DAY}" if table in DAY_OF else folder) / "empty.parquet"

    def _initialise(self) -> None:
        """One zero-row file a table, so that a bare DuckDB finds every path of a new lake."""
        from tracelens.lake.parquet import write_empty

        with self.transaction() as txn:
            for table in TABLES:
                relative = self._empty_file(table).relative_to(self.root)
                if not (self.root / relative).exists():
                    write_empty(table, txn.path(relative.as_posix()))
            txn.commit()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lake's lock: commits and recoveries happen one after the other, across processes."""
        if self._holds_lock:
            yield
            return
        with (self.root / journal.STAGING / LOCK).open("w") as handle:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            self._holds_lock = True
            try:
                yield
            finally:
                self._holds_lock = False

    def _recover(self) -> None:
        (self.root / journal.STAGING / journal.READERS).touch()
        journal.settle(self.root)
        waiting = {j.folder for j in journal.pending(self.root)}
        for folder in sorted((self.root / journal.STAGING).iterdir()):
            if folder.is_dir() and folder not in waiting and not _alive(folder):
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A set of files that appear together at `commit`; without it nothing of them is left.

        Raises:
            DiskFullError: whatever failed, failed because the disk of the lake is full.
        """
        folder = self.root / journal.STAGING / uuid.uuid4().hex
        with disk.told(self.root), self._owned(folder):
            try:
                yield Transaction(self, folder)
            finally:
                # A commit whose files are not moved yet leaves its journal: whoever comes next moves them.
                if not (folder / journal.JOURNAL).exists():
                    shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _owned(self, folder: Path) -> Iterator[None]:
        """A new folder below the staging area, which others can tell from one that a crash has left."""
        # Under the lock: a recovery of another process takes a folder without a locked owner for a dead one.
        with self._locked():
            folder.mkdir()
            owner = (folder / _OWNER).open("w")
            if fcntl is not None:
                fcntl.flock(owner, fcntl.LOCK_EX)
        with owner:
            yield


class Transaction:
    """Files on their way into the lake."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def path(self, relative: str) -> Path:
        """Where to write the file that will lie at `relative` in the lake; its folder is made."""
        target = self.folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lake's lock, to look at the ledger and commit without another writer in between."""
        with self.store._locked():
            yield

    def commit(self, *, delete: tuple[str, ...] = (), have_lock: bool = False) -> None:
        """Make everything staged so far part of the lake, and take the files `delete` out of it, as one step."""
        if not have_lock:
            with self.locked():
                self.commit(delete=delete, have_lock=True)
            return
        names = [
            p.relative_to(self.folder).as_posix()
            for p in sorted(self.folder.rglob("*"))
            if p.is_file() and p.parent != self.folder  # its own files are no part of the lake
        ]
        names.sort(key=lambda n: n.startswith("sources/"))  # the ledger last
        journal.write(self.store.root, self.folder, names, delete)
        journal.settle(self.store.root, journal.PATIENCE)


def _alive(folder: Path) -> bool:
    """Whether the process that stages here still runs: it holds its lock as long as it lives."""
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
