"""A lake in a bucket: how it is written. What is read of it is mirror.py's.

Object stores have no rename, but a PUT of one object is there whole or not at all, and can be made to fail where there
is one. A commit uploads its files below `.staging/<commit>/`, then makes the next manifest (manifest.py): that is the
moment. After it the files are moved to their keys in the folders of the tables, where a bare DuckDB or Trino finds
them, and files that were replaced are moved away first: so such a reader finds no row twice, and nothing uncommitted.
One writer at a time holds the lease (lease.py). What keeps two of them from losing anything, however slow one is:

- A manifest follows the one that its writer read, or is refused.
- Who takes a lease over commits an empty manifest before he clears anything away: what the other had begun can't
  follow any more. Who read the lake after that finds by `Lease.check`, right before his commit, that he lost the lease.
- A listing whose objects are to be removed is followed by `Lease.check`: no other writer can have begun them.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake import lease as leases
from tracelens.lake.bucket import Bucket
from tracelens.lake.lease import PREFIX, Lease, LostLeaseError
from tracelens.lake.manifest import (
    COMMITS,
    RETIRED,
    Manifest,
    Object,
    commit_key,
    encode,
    newest,
    number_of,
    object_key,
    staged_key,
)
from tracelens.lake.mirror import Fetched, Mirror, MirrorReading
from tracelens.lake.schema import TABLES
from tracelens.lake.storage import Held, Writing

#: Seconds that replaced objects and old manifests are kept for whoever reads them.
KEEP = 3600.0
_MANIFESTS = 3


class Objects:
    """A lake in a bucket, see `Storage`; one a process and place, as it keeps what it has fetched.

    Args:
        root: place of the lake, a URL.

    Raises:
        InputError: the extra of tracelens is missing; no account or keys.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bucket = Bucket(root)
        self.mirror = Mirror(self.bucket)
        self._head: Manifest | None = None

    def head(self) -> Manifest:
        """The lake as of its last commit."""
        found = newest(self.bucket, self._head)
        self._head = found if found.number else None
        return found

    def is_lake(self) -> bool:
        """As `Storage`."""
        return _is_lake(self.head())

    def identity(self) -> Hashable | None:
        """As `Storage`."""
        head = self.head()
        return head.lake if _is_lake(head) else None

    def prepare(self, names: Iterable[str]) -> bool:
        """As `Storage`."""
        head = self.head()
        if not head.number and not _is_lake(head):
            ours = (f"{PREFIX}/", f"{COMMITS}/", f"{RETIRED}/")
            if any(not key.startswith(ours) for key in self.bucket.list()):
                raise InputError(
                    f"{self.root} holds other objects than a lake's; name an empty prefix of the bucket with --lake"
                )
            self._check_store()
            return False
        return not set(names) - set(head.files) and not self._staged()

    def _check_store(self) -> None:
        """Refuse a store that overwrites where it was told not to: two writers would lose each other's commits there.

        Raises:
            InputError: it does (stores of before 2024 pass over the condition in silence).
        """
        key = staged_key(f"probe-{uuid.uuid4().hex}", "probe")
        self.bucket.create(key, b"1")
        held = not self.bucket.create(key, b"2")
        self.bucket.delete(key)
        if not held:
            raise InputError(
                f"the store of {self.root} does not know writes that do not overwrite (If-None-Match): no lake can be "
                "written there; a newer version of it may, or make the lake in a folder and copy it into the bucket"
            )

    def lacking(self, names: Iterable[str]) -> list[str]:
        """As `Storage`."""
        there = self.head().files
        return [name for name in names if name not in there]

    @contextmanager
    def locked(self) -> Iterator[Writing]:
        """As `Storage`; what a crash has left is ended first, as every commit must follow a settled one."""
        lease = leases.acquire(self.bucket)
        try:
            head = self.head()
            if lease.taken_over:
                head = self._fence(head, lease)
            self._settle(head, lease)
            yield ObjectsWriting(self, lease, head)
        finally:
            lease.release()

    def _fence(self, head: Manifest, lease: Lease) -> Manifest:
        """Commit nothing, so that nothing can follow what the last holder of the lease has read."""
        while True:
            self._settle(head, lease, clear=False)
            empty = replace(head, number=head.number + 1, id=uuid.uuid4().hex, publish=frozenset(), retire=frozenset())
            if self.bucket.create(commit_key(empty.number), encode(empty)):
                return empty
            lease.check()
            head = self.head()  # he was quicker: his commit stands

    def _settle(self, head: Manifest, lease: Lease, *, clear: bool = True) -> None:
        """Move the objects of the last commit, and clear away those of commits that never were."""
        staged = self._staged()
        mine = [key for key in staged if key.startswith(staged_key(head.id, ""))] if head.id else []
        if mine:
            self.bucket.each(lambda key: self.bucket.move(key, f"{RETIRED}/{key}"), sorted(head.retire))
            self.bucket.each(lambda key: self.bucket.move(staged_key(head.id, key), key),
                             [key for key in head.publish if staged_key(head.id, key) in staged])  # fmt: skip
            done = {staged_key(head.id, key) for key in head.publish}
            self.bucket.each(self.bucket.delete, [key for key in mine if key not in done])
        dead = [key for key in staged if key not in mine] if clear else []
        if dead:
            lease.check()
            self.bucket.each(self.bucket.delete, dead)

    def _staged(self) -> list[str]:
        return [key for key in self.bucket.list(PREFIX) if not leases.is_lease(key)]

    def commit(
        self, lease: Lease, head: Manifest, folder: Path, names: Sequence[str], delete: Sequence[str]
    ) -> Manifest:
        """One commit behind `head`.

        Returns:
            The lake as of it.

        Raises:
            LostLeaseError: another writer came between; nothing was committed.
        """
        if not names and not delete:
            return head
        commit = uuid.uuid4().hex
        files = dict(head.files)
        gone = [old for name in {*delete, *names} if (old := files.pop(name, None)) is not None]
        new = {name: Object(object_key(name, commit), (folder / name).stat().st_size) for name in names}
        after = Manifest(head.number + 1, commit, head.lake or commit, {**files, **new},
                         frozenset(o.key for o in new.values()), frozenset(o.key for o in gone))  # fmt: skip
        self.bucket.each(lambda n: self.bucket.upload(staged_key(commit, new[n].key), folder / n), names)
        self.bucket.put(staged_key(commit, "commit"), b"")  # there until all is moved: who comes next goes on
        lease.check()
        if not self.bucket.create(commit_key(after.number), encode(after)) or self._is_void(after):
            raise LostLeaseError(f"another writer came between at {self.root}: nothing was written; run it again")
        self._head = after
        self._settle(after, lease, clear=False)
        with contextlib.suppress(InputError):  # tidying can wait
            self._tidy(after)
        return after

    def _is_void(self, after: Manifest) -> bool:
        """Whether a manifest took the place of one that others had followed already, and that was tidied away."""
        others = [n for n in map(number_of, self.bucket.list(COMMITS)) if n and n != after.number]
        void = bool(others) and min(others) > after.number
        if void:
            self.bucket.delete(commit_key(after.number))
        return void

    def _tidy(self, head: Manifest) -> None:
        """Remove manifests and replaced objects that nobody reads any more."""
        before = time.time() - KEEP
        kept = range(head.number - _MANIFESTS + 1, head.number + 1)
        old = [k for k, seen in self.bucket.list(COMMITS).items() if number_of(k) not in kept and seen.written < before]
        if head.retire or head.number % 16 == 0:
            old += [key for key, seen in self.bucket.list(RETIRED).items() if seen.written < before]
        self.bucket.each(self.bucket.delete, old)

    def staging(self) -> AbstractContextManager[Path]:
        """As `Storage`: a private folder of this machine."""
        return self.mirror.staging()

    @contextmanager
    def told(self) -> Iterator[None]:
        """As `Storage`: a full disk is that of this machine's temporary folder."""
        with self.mirror.told():
            yield

    def live(self, tables: Iterable[str]) -> Mapping[str, str]:
        """As `Storage`."""
        return Fetched(self.mirror, self.head(), tables)

    def lost(self) -> frozenset[str] | None:
        """As `Storage`; without a manifest the objects that are there are the lake."""
        head = self.head()
        if not head.number:
            return None
        there = {
            key: seen.size for below in (*TABLES, PREFIX, RETIRED) for key, seen in self.bucket.list(below).items()
        }
        return frozenset(
            n for n, o in head.files.items() if not any(there.get(k) == o.size for k in head.places(o.key))
        )

    def hold(self, tables: Iterable[str]) -> Held:
        """As `Storage`."""
        return MirrorReading(self.mirror, self.head(), tables)


class ObjectsWriting:
    """As `Writing`."""

    def __init__(self, objects: Objects, lease: Lease, head: Manifest) -> None:
        self._objects, self._lease, self._head = objects, lease, head

    def recover(self) -> None:
        """As `Writing`: `Objects.locked` has done it."""

    def commit(self, folder: Path, names: Sequence[str], delete: Sequence[str]) -> None:
        """As `Writing`."""
        self._head = self._objects.commit(self._lease, self._head, folder, names, delete)


def _is_lake(head: Manifest) -> bool:
    return any(name.startswith("sources/") for name in head.files)


@cache
def objects_of(root: Path) -> Objects:
    """The storage of a prefix of a bucket."""
    return Objects(root)
