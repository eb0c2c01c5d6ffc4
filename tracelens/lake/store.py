"""The lake as files: staging, one atomic commit for many files, recovery after a crash.

A transaction writes its files below `.staging/<id>/`, under the paths they will have in the lake. `commit` writes the
list of moves (the journal) and makes it durable, then renames file after file. Whoever opens the lake next finds either
no journal (the staged files are thrown away) or a whole one (the renames are finished): so a source is there entirely
or not at all. The ledger's rows move last.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake.schema import DAY_OF, NO_DAY, TABLES

try:
    import fcntl
except ImportError:  # Windows has no advisory locks of this kind; there one writer at a time is the user's care
    fcntl = None  # type: ignore[assignment]

_STAGING = ".staging"
_JOURNAL = "commit.json"
_OWNER = "owner.lock"
_LOCK = "lake.lock"


def is_lake(path: Path) -> bool:
    """Whether the folder is a lake that tracelens made."""
    return (path / "sources").is_dir() and (path / "rounds").is_dir()


def _is_foreign(root: Path) -> bool:
    """Whether a folder that is no lake yet holds anything of someone else's.

    The lock file tells our staging area: a lake whose first commit was interrupted may have little else.
    """
    staging = root / _STAGING
    if (staging / _LOCK).exists():
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
            (root / _STAGING).mkdir(parents=True, exist_ok=True)
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
        with (self.root / _STAGING / _LOCK).open("w") as handle:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            self._holds_lock = True
            try:
                yield
            finally:
                self._holds_lock = False

    def _recover(self) -> None:
        for folder in sorted((self.root / _STAGING).iterdir()):
            if not folder.is_dir() or _alive(folder):
                continue
            journal = folder / _JOURNAL
            if journal.exists():
                self._finish(folder, json.loads(journal.read_text(encoding="utf-8")))
            shutil.rmtree(folder, ignore_errors=True)

    def _finish(self, folder: Path, journal: dict[str, list[str]]) -> None:
        """Carry out a journal; every step may have been done already."""
        folders: set[Path] = set()
        for name in journal["delete"]:
            with suppress(FileNotFoundError):
                (self.root / name).unlink()
                folders.add((self.root / name).parent)
        for name in journal["add"]:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            folders.add(target.parent)
            with suppress(FileNotFoundError):
                (folder / name).replace(target)
        for parent in folders:
            _sync_folder(parent)
        with suppress(FileNotFoundError):
            (folder / _JOURNAL).unlink()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A set of files that appear together at `commit`; without it nothing of them is left."""
        folder = self.root / _STAGING / uuid.uuid4().hex
        # Under the lock: a recovery of another process takes a folder without a locked owner for a dead one.
        with self._locked():
            folder.mkdir()
            owner = (folder / _OWNER).open("w")
            if fcntl is not None:
                fcntl.flock(owner, fcntl.LOCK_EX)
        with owner:
            try:
                yield Transaction(self, folder)
            finally:
                # A commit that failed half-way leaves its journal: whoever opens the lake next finishes it.
                if not (folder / _JOURNAL).exists():
                    shutil.rmtree(folder, ignore_errors=True)


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
            if p.is_file() and p.name not in (_OWNER, _JOURNAL)
        ]
        names.sort(key=lambda n: n.startswith("sources/"))  # the ledger last
        for name in names:
            _sync_file(self.folder / name)
        journal = {"add": names, "delete": [d for d in delete if d not in names]}
        pending = self.folder / f"{_JOURNAL}.part"
        pending.write_text(json.dumps(journal), encoding="utf-8")
        _sync_file(pending)
        pending.replace(self.folder / _JOURNAL)
        _sync_folder(self.folder)
        self.store._finish(self.folder, journal)


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


def _sync_file(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _sync_folder(path: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
