"""Rotating files of JSON lines: one name a process, start and number; nothing here raises what a disk can do."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger("tracelens.recorders")
_RETRY_S = 5.0


class RotatingFile:
    """Appends whole lines to `<stem>-<pid>-<start>-<number>.jsonl`, a new number by size and by time.

    A file starts with `head()`, so that each can be read alone. When a write fails (disk full, folder gone, no
    permission) the lines are lost and counted, one line is logged, and a new file is tried a few seconds later: behind
    a half-written line nothing may be appended.

    Args:
        folder: made where it is missing.
        stem: what the file's name starts with.
        head: first line of every file, without its end.
        rotate_bytes, rotate_s: a file is finished beyond either.
        keep: finished and open files of this process that stay on disk; older ones are deleted. 0 keeps all.
    """

    def __init__(
        self, folder: Path, stem: str, head: Callable[[], str], rotate_bytes: int, rotate_s: float, keep: int
    ) -> None:
        self.folder, self.stem, self.head = folder, stem, head
        self.rotate_bytes, self.rotate_s, self.keep = rotate_bytes, rotate_s, keep
        self.lost = 0
        self.paths: deque[Path] = deque()
        self._start = ""
        self._number = 0
        self._fd: int | None = None
        self._size = 0
        self._opened = 0.0
        self._retry_at = 0.0
        self._has_told = False

    def write(self, lines: list[str]) -> None:
        """Append lines (without their ends); what cannot be written is counted in `lost`."""
        if not lines:
            return
        now = time.monotonic()
        if self._fd is not None and (self._size >= self.rotate_bytes or now - self._opened >= self.rotate_s):
            self.close()
        if self._fd is None and (now < self._retry_at or not self._open(now)):
            self.lost += len(lines)
            return
        try:
            self._append(("\n".join(lines) + "\n").encode("utf-8", "replace"))
        except OSError as error:
            self.lost += len(lines)
            self._failed(error, now)

    def close(self) -> None:
        """Finish the file; the next write opens another."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def forked(self) -> None:
        """In a child: the open file and its name are the parent's."""
        self.close()
        self.lost, self.paths = 0, deque()
        self._start, self._number, self._retry_at = "", 0, 0.0

    def _open(self, now: float) -> bool:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._start:
                # Containers that share a volume may all have the same process ids; the host's name itself is not
                # written anywhere.
                salt = hash((socket.gethostname(), time.time_ns())) & 0xFFFF
                self._start = f"{os.getpid()}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{salt:04x}"
            path = self.folder / f"{self.stem}-{self._start}-{self._number:04d}.jsonl"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            self._fd = os.open(path, flags, 0o640)
            self._number += 1
            self._size, self._opened = 0, now
            self.paths.append(path)
            self._append((self.head() + "\n").encode())
        except OSError as error:
            self._failed(error, now)
            return False
        self._drop_old()
        return True

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            view = view[written:]
            self._size += written

    def _failed(self, error: OSError, now: float) -> None:
        self.close()
        self._retry_at = now + _RETRY_S
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "tracelens: records cannot be written to %s (%s); serving goes on, records are lost until it can",
                self.folder,
                error.strerror or type(error).__name__,
            )

    def _drop_old(self) -> None:
        while self.keep and len(self.paths) > self.keep:
            with contextlib.suppress(OSError):
                self.paths.popleft().unlink()
