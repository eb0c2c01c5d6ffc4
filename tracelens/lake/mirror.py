"""What is read of a lake in a bucket: objects that were fetched, in a private folder of this machine until the process
ends.

An object never changes, so it is fetched once a process. Small ones, and the ends of larger ones where Parquet keeps
its footers, come when a connection is opened, several at once; the rest of a file comes whole, at the first read of
its rows. So a partition that a query prunes costs its footer and no more. Files come whole because a row group of a
lake is about a megabyte: the columns that a query leaves out are too small pieces to be worth a request each.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.lake import disk
from tracelens.lake.bucket import Bucket
from tracelens.lake.manifest import Manifest, Object
from tracelens.lake.schema import FACTS

if TYPE_CHECKING:
    from typing import TextIO

    import duckdb

    from tracelens.lake.lakefs import LakeFiles
    from tracelens.lake.storage import Days

#: Bytes from the end of a file that are fetched for its footer, at least; footers of ours are under 1% of their file.
TAIL = 64 << 10
_TAIL_SHARE = 32
#: A lake up to this size is read once and kept (`connection.TINY`), bytes: it comes whole.
TINY = 1 << 20
_PREFIX = "tracelens-lake-"
_YOUNG = 60.0  # seconds in which a folder may have no owner yet
_LOOKS = 3


class Mirror:
    """The objects of a bucket on this machine; safe for several threads."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._guard = threading.Lock()
        self._folder: Path | None = None
        self._coming: dict[str, Future[str]] = {}
        self._tails: dict[str, tuple[int, bytes]] = {}
        self._readers = 0

    @property
    def folder(self) -> Path:
        """Where the objects lie, under their keys; nothing else is there."""
        return self._private() / "lake"

    def _private(self) -> Path:
        with self._guard:
            if self._folder is None:
                self._folder = _private_folder(self)
            return self._folder

    def path(self, head: Manifest, wanted: Object) -> str:
        """An object's file on this machine, fetched where it is not here yet."""
        return self.start(head, wanted).result()

    def start(self, head: Manifest, wanted: Object) -> Future[str]:
        """Begin to fetch an object."""
        folder = self.folder
        with self._guard:
            coming = self._coming.get(wanted.key)
            if coming is None or (coming.done() and (coming.cancelled() or coming.exception() is not None)):
                coming = self._coming[wanted.key] = self.bucket.submit(self._fetch, folder, head, wanted)
            return coming

    def has(self, wanted: Object) -> bool:
        """Whether an object is here."""
        coming = self._coming.get(wanted.key)
        return coming is not None and coming.done() and not coming.cancelled() and coming.exception() is None

    def _fetch(self, folder: Path, head: Manifest, wanted: Object) -> str:
        target = folder / wanted.key
        with self.told():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{uuid.uuid4().hex}.part")
            for key in head.places(wanted.key) * _LOOKS:
                with suppress(FileNotFoundError):
                    self.bucket.fetch(key, part)
                    if part.stat().st_size == wanted.size:
                        part.replace(target)
                        return str(target)
                    part.unlink()
        raise _gone(self.bucket.root, wanted.key)

    def tail(self, head: Manifest, wanted: Object) -> tuple[int, bytes]:
        """Where the end of an object begins that holds its footer, and its bytes."""
        found = self._tails.get(wanted.key)
        if found is None:
            start = max(0, wanted.size - max(TAIL, wanted.size // _TAIL_SHARE))
            found = self._tails[wanted.key] = (start, self._range(head, wanted, start))
        return found

    def _range(self, head: Manifest, wanted: Object, start: int) -> bytes:
        for key in head.places(wanted.key) * _LOOKS:
            with suppress(FileNotFoundError):
                found = self.bucket.tail(key, start, wanted.size)
                if len(found) == wanted.size - start:
                    return found
        raise _gone(self.bucket.root, wanted.key)

    @contextmanager
    def reading(self, head: Manifest) -> Iterator[None]:
        """Within it nothing that is here goes; before it, when nobody reads, what the lake does not hold any more."""
        with self._guard:
            self._readers += 1
            gone = set(self._coming) - {o.key for o in head.files.values()} if self._readers == 1 else set()
            gone = {key for key in gone if self._coming[key].done()}
            for key in gone:
                del self._coming[key]
                self._tails.pop(key, None)
        if gone:
            folder = self.folder
            for key in gone:
                (folder / key).unlink(missing_ok=True)
        try:
            yield
        finally:
            with self._guard:
                self._readers -= 1

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A new folder for files on their way into the lake."""
        folder = self._private() / "staging" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Within it a full disk is an error that names the temporary folder."""
        try:
            yield
        except disk.DiskFullError:
            raise
        except Exception as error:
            if not disk.is_full(error):
                raise
            raise disk.DiskFullError(Path(tempfile.gettempdir()), of=self.bucket.root, error=error) from error


class Fetched(Mapping[str, str]):
    """Files of a lake by their names; asked for by its name, one comes to this machine."""

    def __init__(self, mirror: Mirror, head: Manifest, tables: Iterable[str]) -> None:
        wanted = frozenset(tables)
        self._mirror, self._head = mirror, head
        self.objects = {n: o for n, o in head.files.items() if n.partition("/")[0] in wanted}

    def __getitem__(self, name: str) -> str:
        return self._mirror.path(self._head, self.objects[name])

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.objects))

    def __len__(self) -> int:
        return len(self.objects)

    def __contains__(self, name: object) -> bool:
        return name in self.objects

    def items(self) -> ItemsView[str, str]:
        """All of them, which come several at once."""
        self.fetch(self)
        return super().items()

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch some of the files, several at once."""
        coming = [self._mirror.start(self._head, self.objects[name]) for name in names]
        for one in coming:
            one.result()


class MirrorReading:
    """A lake in a bucket as of one commit, see `storage.Held`."""

    def __init__(self, mirror: Mirror, head: Manifest, tables: Iterable[str]) -> None:
        self._mirror, self._head = mirror, head
        self._held = ExitStack()
        self._held.enter_context(mirror.reading(head))
        self._files = Fetched(mirror, head, tables)
        self.files: Mapping[str, str] = self._files
        self._attached: LakeFiles | None = None

    def paths(self, table: str) -> list[str]:
        """What is here by its path, other files by names that the attached connection knows."""
        found = []
        for name in sorted(n for n in self._files if n.startswith(f"{table}/")):
            wanted = self._files.objects[name]
            if self._attached is None or self._mirror.has(wanted):
                found.append(self._files[name])
            else:
                found.append(self._attached.name(wanted))
        return found

    def attach(self, con: duckdb.DuckDBPyConnection, ahead: Days | None) -> list[str]:
        """Fetch what every query needs, and let the connection fetch the rest."""
        from tracelens.lake.lakefs import LakeFiles

        tiny = sum(wanted.size for wanted in self._files.objects.values()) <= TINY
        now: list[str] = []
        later: list[str] = []
        for name, wanted in self._files.objects.items():
            at_once = tiny or wanted.size <= TAIL or name.partition("/")[0] not in FACTS or _is_ahead(name, ahead)
            (now if at_once else later).append(name)
        ends = [self._mirror.bucket.submit(self._mirror.tail, self._head, self._files.objects[n]) for n in later]
        self._files.fetch(now)
        for one in ends:
            one.result()
        self._attached = LakeFiles(self._mirror, self._head, [self._files.objects[n] for n in later])
        con.register_filesystem(self._attached)
        return [str(self._mirror.folder), self._attached.root]

    def release(self) -> None:
        """Let what is here go, once the lake does not hold it any more."""
        self._held.close()


def _is_ahead(name: str, ahead: Days | None) -> bool:
    """Whether a file is of days that will be read; those without a day go with all others."""
    if ahead is None:
        return False
    first, last = ahead
    try:
        day = dt.date.fromisoformat(name.split("/")[1].removeprefix("date="))
    except (ValueError, IndexError):
        return first is None and last is None
    return (first is None or first <= day) and (last is None or day <= last)


def _gone(root: Path, key: str) -> InputError:
    return InputError(
        f"a file of the lake at {root} is not there any more, or not as it was written ({key}): it was replaced long "
        "ago while this went on, and then run the command again; or somebody else removed or changed it, and then put "
        f"it back from a copy, or run `tracelens forget --missing --lake {root}`, which takes out the sources that it "
        "held, and ingest their logs again"
    )


def _private_folder(owner: object) -> Path:
    """A folder that only this user can look into, gone with the process; those of killed processes go now."""
    from tracelens.lake.folder import own, sweep

    place = Path(tempfile.gettempdir())
    mine = getattr(os, "getuid", lambda: 0)()
    others = set()
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != mine or time.time() - found.st_mtime < _YOUNG:
                others.add(folder)
    sweep(place, f"{_PREFIX}*", others)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    handle = own(folder)
    (folder / "lake").mkdir()
    weakref.finalize(owner, _remove, folder, handle, os.getpid())
    return folder


def _remove(folder: Path, handle: TextIO, process: int) -> None:
    if os.getpid() == process:  # a fork has not made it
        shutil.rmtree(folder, ignore_errors=True)
    handle.close()
