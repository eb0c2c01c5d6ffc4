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
    a half-written line nothing may be appended. A file that got no line behind its head is taken away again, and older
    ones are deleted only for one that holds records.

    Args:
        folder: made where it is missing.
        stem: what the file's name starts with.
        head: first line of every file, without its end.
        rotate_bytes, rotate_s: a file is finished beyond either.
        keep: finished and open files of this process that stay on disk; older ones are deleted. 0 keeps all.

    Attributes:
        lost: lines that are not on the disk.
        paths: files that hold records, the newest last.
        opened: files opened so far.
    """

    def __init__(
        self, folder: Path, stem: str, head: Callable[[], str], rotate_bytes: int, rotate_s: float, keep: int
    ) -> None:
        self.folder, self.stem, self.head = folder, stem, head
        self.rotate_bytes, self.rotate_s, self.keep = rotate_bytes, rotate_s, keep
        self.lost = 0
        self.opened = 0
        self.paths: deque[Path] = deque()
        self._start = ""
        self._number = 0
        self._fd: int | None = None
        self._path: Path | None = None
        self._has_records = False
        self._size = 0
        self._opened_at = 0.0
        self._retry_at = 0.0
        self._has_told = False
        self._has_told_removed = False

    def write(self, lines: list[str]) -> None:
        """Append lines (without their ends); what cannot be written is counted in `lost`."""
        if lines:
            self.lost += len(lines) - self._write(lines)

    def note(self, line: str) -> bool:
        """Append a line that is not counted; whether it is in the file. No file is begun for it by size."""
        return self._write([line], may_rotate=False) == 1

    def close(self) -> None:
        """Finish the file; the next write opens another."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def forked(self) -> None:
        """In a child: the open file and its name are the parent's."""
        self.close()
        self.lost, self.opened, self.paths = 0, 0, deque()
        self._start, self._number, self._retry_at = "", 0, 0.0

    def _write(self, lines: list[str], may_rotate: bool = True) -> int:
        """How many of the lines are whole in the file."""
        now = time.monotonic()
        is_due = self._size >= self.rotate_bytes or now - self._opened_at >= self.rotate_s
        if may_rotate and is_due:
            self.close()
        self._look_for_it()
        if self._fd is None and (now < self._retry_at or not self._open(now)):
            return 0
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        before = self._size
        try:
            self._append(data)
        except OSError as error:
            whole = data.count(b"\n", 0, self._size - before)
            if whole:
                self._holds_records()
            self._failed(error, now)
            return whole
        self._holds_records()
        return len(lines)

    def _look_for_it(self) -> None:
        """What is written to a file that was removed is nowhere: start another."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            if os.fstat(self._fd).st_nlink > 0:
                return
            self.close()
            if self._path is not None and self._path in self.paths:
                self.paths.remove(self._path)
            if not self._has_told_removed:
                self._has_told_removed = True
                _log.warning("tracelens: the open file of records in %s was removed; another is begun", self.folder)

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
            self._path, self._has_records = path, False
            self._size, self._opened_at = 0, now
            self._append((self.head() + "\n").encode())
        except Exception as error:  # the disk's, or a head that cannot be made
            self._failed(error, now)
            return False
        self.opened += 1
        return True

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            view = view[written:]
            self._size += written

    def _holds_records(self) -> None:
        """The open file has records: it counts, and older ones may go for it."""
        if self._has_records or self._path is None:
            return
        self._has_records = True
        self.paths.append(self._path)
        while self.keep and len(self.paths) > self.keep:
            with contextlib.suppress(OSError):
                self.paths.popleft().unlink()

    def _failed(self, error: Exception, now: float) -> None:
        if self._fd is not None:
            self.close()
            if not self._has_records and self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()
                    self._number -= 1  # the name is free again
        self._retry_at = now + _RETRY_S
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "tracelens: records cannot be written to %s (%s); serving goes on, records are lost until it can",
                self.folder,
                getattr(error, "strerror", None) or type(error).__name__,
            )
