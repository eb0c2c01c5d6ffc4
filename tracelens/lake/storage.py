"""What a lake lies on, behind one small interface: a folder (folder.py), or a prefix of a bucket (objects.py)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tracelens.lake.place import is_remote

if TYPE_CHECKING:
    import datetime as dt

    import duckdb


class Writing(Protocol):
    """The lake in the hands of one writer."""

    def recover(self) -> None:
        """End what a crash has left: finish what was committed, throw away what was not."""

    def commit(self, folder: Path, names: Sequence[str], delete: Sequence[str]) -> None:
        """Make the files `names` below `folder` part of the lake and take `delete` out of it, as one step."""


class Held(Protocol):
    """The files of a lake at one moment, until `release`."""

    #: Name in the lake -> path where the file can be read; what lies elsewhere comes when it is asked for.
    files: Mapping[str, str]

    def paths(self, table: str) -> list[str]:
        """What DuckDB reads a table from, in the order of the names in the lake."""

    def attach(self, con: duckdb.DuckDBPyConnection, ahead: Days | None) -> list[str]:
        """Let a connection read these files; the folders that it needs for that. `ahead`: days that it will read."""

    def release(self) -> None:
        """End the reading; a second time is none."""


#: The first and the last day (UTC), None for all before or after.
Days = tuple["dt.date | None", "dt.date | None"]


class Storage(Protocol):
    """A lake's place."""

    root: Path

    def is_lake(self) -> bool:
        """Whether a lake is there."""

    def identity(self) -> Hashable | None:
        """What tells the lake from another one at the same place; None where there is none."""

    def prepare(self, names: Iterable[str]) -> bool:
        """Make the place fit for a writer; whether nothing is left to do: no recovery, and all of `names` there.

        Raises:
            InputError: something else than a lake is there.
        """

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Those of some files that are not in the lake."""

    def locked(self) -> AbstractContextManager[Writing]:
        """Hold the lake alone: commits and recoveries happen one after the other, across processes."""

    def staging(self) -> AbstractContextManager[Path]:
        """A new folder of this machine for files on their way into the lake."""

    def told(self) -> AbstractContextManager[None]:
        """Within it errors of the place (a full disk, a server that is away) are told in words for people."""

    def live(self, tables: Iterable[str]) -> Mapping[str, str]:
        """The files as of the last commit: name in the lake -> path where it can be read."""

    def lost(self) -> frozenset[str] | None:
        """Names of files of the last commit that are gone; None where nobody but their rows can tell: a folder."""

    def hold(self, tables: Iterable[str]) -> Held:
        """The files as of the last commit, which stay readable until they are released."""


def storage_of(root: Path) -> Storage:
    """The storage of a lake's place.

    Raises:
        InputError: a bucket whose extra of tracelens is not installed.
    """
    if is_remote(root):
        from tracelens.lake.objects import objects_of

        return objects_of(root)
    from tracelens.lake.folder import Folder

    return Folder(root)
