"""The objects of a lake as a filesystem that DuckDB reads through: these files and no other, and nothing is written.

Needs fsspec, which a lake in a bucket needs anyway.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fsspec import AbstractFileSystem

from tracelens.errors import InputError
from tracelens.lake.manifest import Manifest, Object
from tracelens.lake.mirror import Mirror

PROTOCOL = "tracelens-lake"
#: What went wrong while DuckDB read: it tells of it with a traceback in an error of its own.
troubles: list[InputError] = []
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class LakeFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Some files of a lake as of one commit.

    Args:
        mirror: has or fetches them.
        head: the lake.
        files: what can be read.
    """

    protocol = PROTOCOL
    cachable = False
    root = f"{PROTOCOL}://"

    def __init__(self, mirror: Mirror, head: Manifest, files: Iterable[Object]) -> None:
        super().__init__()
        self._mirror, self._head = mirror, head
        self._files = {o.key: o for o in files}

    def name(self, wanted: Object) -> str:
        """The name of a file for DuckDB."""
        return f"{self.root}{wanted.key}"

    def _key(self, path: str) -> str:
        # DuckDB's patterns: what is special stands in brackets.
        return re.sub(r"\[([*?\[])\]", r"\1", path.removeprefix(self.root))

    def _wanted(self, path: str) -> Object:
        try:
            return self._files[self._key(path)]
        except KeyError:
            raise FileNotFoundError(path) from None

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size and kind of a file."""
        return {"name": path, "size": self._wanted(path).size, "type": "file"}

    def modified(self, path: str) -> datetime:
        """When a file was changed: never."""
        return _LONG_AGO

    def glob(self, path: str, **_: Any) -> list[str]:
        """The file of that name, without patterns; whether there is one, it is told when it is opened."""
        return [self.root + self._key(path)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> LakeFile:
        """Open a file for reading.

        Raises:
            PermissionError: for anything else.
        """
        if mode not in ("r", "rb"):
            raise PermissionError(f"{path}: a lake is only read")
        return LakeFile(self._mirror, self._head, self._wanted(path))


class LakeFile(io.RawIOBase):
    """A file of the lake: its end from memory, its rows from the mirror, which fetches them at the first read.

    DuckDB's threads share an open file, and seek and read in two calls: each has a position of its own.
    """

    def __init__(self, mirror: Mirror, head: Manifest, wanted: Object) -> None:
        super().__init__()
        self._mirror, self._head, self._wanted = mirror, head, wanted
        self._at: dict[int, int] = {}
        self._file: IO[bytes] | None = None
        self._guard = threading.Lock()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of this thread."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._wanted.size}[whence]
        self._at[threading.get_ident()] = base + offset
        return base + offset

    def tell(self) -> int:
        """The position of this thread."""
        return self._at.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        """Bytes at the position of this thread."""
        at = self.tell()
        end = self._wanted.size if size < 0 else min(at + size, self._wanted.size)
        found = self._bytes(at, end) if end > at else b""
        self._at[threading.get_ident()] = at + len(found)
        return found

    def _bytes(self, at: int, end: int) -> bytes:
        try:
            return self._found(at, end)
        except InputError as error:
            troubles.append(error)
            raise

    def _found(self, at: int, end: int) -> bytes:
        start, tail = self._mirror.tail(self._head, self._wanted)
        if at >= start:
            return tail[at - start : end - start]
        with self._guard:
            if self._file is None:
                self._file = Path(self._mirror.path(self._head, self._wanted)).open("rb")  # noqa: SIM115 - see close
            self._file.seek(at)
            return self._file.read(end - at)

    def close(self) -> None:
        """Close it; a second time is none."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()
