"""The objects below a prefix of a bucket, through fsspec's filesystem for that kind of bucket.

Only what every such store has is used: list, whole and ranged GET, PUT, PUT that does not overwrite (`If-None-Match: *`
and its like), copy within the store, DELETE. Keys are told relative to the prefix.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tracelens.lake.bucket_errors import told
from tracelens.lake.place import extra_of, url_of

T = TypeVar("T")

#: Requests at once.
STREAMS = 16
# Requests to a store that does not answer end; botocore's own patience is minutes.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"mode": "standard"}}},
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a listing tells of an object: its bytes, and when it was written (seconds since the epoch)."""

    size: int
    written: float


class Bucket:
    """Objects below a prefix.

    Args:
        root: place of the lake, a URL.

    Raises:
        InputError: the extra of tracelens that the scheme needs is not installed; no account or keys.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        url, options = url_of(root) or "", _OPTIONS.get(extra_of(root), {})
        with told(root):
            from fsspec.core import url_to_fs

            _hush()

            # Listings are asked for anew each time: others write, too.
            self._fs, base = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
            self._base = base.rstrip("/")
        self._pool = ThreadPoolExecutor(STREAMS, thread_name_prefix="tracelens-bucket")

    def list(self, below: str = "") -> dict[str, Seen]:
        """All objects whose keys begin with `below/`, by key."""
        with told(self.root):
            found = self._fs.find(self._at(below).rstrip("/"), detail=True)
        names = {name[len(self._base) :].lstrip("/"): info for name, info in found.items()}
        return {n: Seen(int(i["size"] or 0), _written(i)) for n, i in names.items() if n and i["type"] == "file"}

    def get(self, key: str) -> bytes:
        """An object's content.

        Raises:
            FileNotFoundError: there is none.
        """
        with told(self.root, passing=(FileNotFoundError,)):
            return bytes(self._fs.cat_file(self._at(key)))

    def tail(self, key: str, start: int, end: int) -> bytes:
        """The bytes of an object from `start` to before `end`.

        Raises:
            FileNotFoundError: there is none.
        """
        with told(self.root, passing=(FileNotFoundError,)):
            return bytes(self._fs.cat_file(self._at(key), start=start, end=end))

    def fetch(self, key: str, to: Path) -> None:
        """Copy an object to a file of this machine.

        Raises:
            FileNotFoundError: there is none.
        """
        with told(self.root, passing=(FileNotFoundError,)):
            self._fs.get_file(self._at(key), str(to))

    def create(self, key: str, content: bytes) -> bool:
        """Write an object if there is none of that key; whether it is ours now.

        `content` must differ from what anybody else would write there: a request that was sent twice, as its answer was
        lost, is told from another writer's by it.
        """
        with told(self.root):
            try:
                self._fs.pipe_file(self._at(key), content, mode="create")
            except Exception as error:
                there = self._there(key)
                if there is None and not isinstance(error, FileExistsError):
                    raise
                return there == content
            return True

    def put(self, key: str, content: bytes) -> None:
        """Write an object, whatever was there."""
        with told(self.root):
            self._fs.pipe_file(self._at(key), content)

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file of this machine."""
        with told(self.root):
            self._fs.put_file(str(path), self._at(key))

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the bucket.

        Raises:
            FileNotFoundError: there is none.
        """
        with told(self.root, passing=(FileNotFoundError,)):
            self._fs.cp_file(self._at(key), self._at(to))

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        with told(self.root), suppress(FileNotFoundError):
            self._fs.rm_file(self._at(key))

    def move(self, key: str, to: str) -> None:
        """Move an object, where it was not moved before; whoever looks finds it at one of the two at least."""
        with suppress(FileNotFoundError):
            self.copy(key, to)
            self.delete(key)

    def each(self, act: Callable[[T], object], items: Iterable[T]) -> None:
        """Do something for many objects, several at once; the first error is raised when all have ended."""
        running = [self._pool.submit(act, item) for item in items]
        errors = [error for one in running if (error := one.exception()) is not None]
        if errors:
            raise errors[0]

    def submit(self, act: Callable[..., T], *args: Any) -> Future[T]:
        """Begin something that goes on beside the caller."""
        return self._pool.submit(act, *args)

    def _there(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def _at(self, key: str) -> str:
        return f"{self._base}/{key}"


def _hush() -> None:
    """Keep tracebacks of the libraries, which may quote requests, from stderr where nobody set up logging."""
    for name in ("fsspec", "s3fs", "gcsfs", "adlfs", "aiobotocore", "botocore", "google", "azure", "asyncio"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def _written(info: dict[str, Any]) -> float:
    """When an object was written, by whatever name the library has for it."""
    names: Sequence[str] = ("LastModified", "mtime", "last_modified", "updated", "created")
    value = next((info[name] for name in names if info.get(name) is not None), 0.0)
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, dt.datetime) else float(value)
