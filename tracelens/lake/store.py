"""The lake as files: staging, one atomic commit for many files, recovery after a crash.

A transaction writes its files below a folder of this machine, under the paths they will have in the lake. `commit`
makes them part of it at one moment: in a folder by a durable list of moves (folder.py, journal.py), in a bucket by one
conditional PUT (objects.py). Before it nothing of them is there, after it all is, whatever ends the process. The
ledger's rows come with it: so a source is there entirely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake.schema import DAY_OF, NO_DAY, TABLES
from tracelens.lake.storage import Writing, storage_of


def is_lake(path: Path) -> bool:
    """Whether a lake that tracelens made is at that place."""
    return storage_of(path).is_lake()


class Store:
    """A lake that can be written.

    Args:
        root: place of the lake; made, with one zero-row file a table, when it does not exist.

    Raises:
        InputError: the place holds something else, or can't be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._storage = storage_of(root)
        self._writing: Writing | None = None
        try:
            if self._storage.prepare(EMPTY.values()):
                return
            with self._storage.told(), self._locked():
                self._recover()
                if not self._storage.is_lake() or self._storage.lacking(EMPTY.values()):
                    self._initialise()
        except OSError as error:
            raise InputError(
                f"the lake at {root} can't be written: {error.strerror}; name another with --lake"
            ) from error

    def _initialise(self) -> None:
        """One zero-row file a table, so that a bare DuckDB finds every path of a new lake."""
        from tracelens.lake.parquet import write_empty

        lacking = set(self._storage.lacking(EMPTY.values()))
        with self.transaction() as txn:
            for table, name in EMPTY.items():
                if name in lacking:
                    write_empty(table, txn.path(name))
            txn.commit()

    @contextmanager
    def _locked(self) -> Iterator[Writing]:
        """Hold the lake's lock: commits and recoveries happen one after the other, across processes."""
        if self._writing is not None:
            yield self._writing
            return
        with self._storage.locked() as writing:
            self._writing = writing
            try:
                yield writing
            finally:
                self._writing = None

    def _recover(self) -> None:
        with self._locked() as writing:
            writing.recover()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A set of files that appear together at `commit`; without it nothing of them is left.

        Raises:
            DiskFullError: whatever failed, failed because the disk of the lake is full.
        """
        with self._storage.told(), self._storage.staging() as folder:
            # Arrow takes a relative path with a colon, `a:b/…`, for a URL.
            yield Transaction(self, folder.absolute())


#: A file without rows for each table: a lake has it from its first commit on.
EMPTY = {t: f"{t}/date={NO_DAY}/empty.parquet" if t in DAY_OF else f"{t}/empty.parquet" for t in TABLES}


class Transaction:
    """Files on their way into the lake; `folder` is where they lie until then, on this machine."""

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
        names = [
            p.relative_to(self.folder).as_posix()
            for p in sorted(self.folder.rglob("*"))
            if p.is_file() and p.parent != self.folder  # its own files are no part of the lake
        ]
        names.sort(key=lambda n: n.startswith("sources/"))  # the ledger last
        with self.store._locked() as writing:
            writing.commit(self.folder, names, delete)
