"""A bounded queue and the thread behind it: the engine appends, the thread encodes and writes.

The engine's side is one `deque.append`; the thread looks every quarter of a second and is never woken, so that no step
pays for a switch. When the queue is full the item is dropped and counted: nothing waits.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable

from tracelens.recorders.files import RotatingFile

_log = logging.getLogger("tracelens.recorders")

Encode = Callable[[], "str | Iterable[str] | None"]


class Writer:
    """Writes what it is given, in order, some time later.

    Args:
        files: where lines go.
        limit: items that may wait.
        flush_s: seconds between two looks of the thread.
        idle: called in the thread at every look: gives lines that became due.
    """

    def __init__(
        self, files: RotatingFile, limit: int, flush_s: float, idle: Callable[[bool], list[str]] | None = None
    ) -> None:
        self.files = files
        self.dropped = 0
        self._limit, self._flush_s, self._idle = limit, flush_s, idle
        self._has_failed = False
        self._has_dropped = False
        self._has_summed = False
        self._noted = 0
        self._fresh()
        _LIVE.add(self)

    def put(self, encode: Encode) -> bool:
        """Take an item whose lines `encode` makes later; False when the queue is full."""
        if len(self._queue) >= self._limit:
            self.dropped += 1
            return False
        self._queue.append(encode)
        if self._thread is None and not self._is_closed:
            self._begin()
        return True

    def flush(self) -> None:
        """Write all that waits, now, in this thread."""
        with self._lock:
            self._drain(last=False)

    def close(self) -> None:
        """Write all that waits, and finish the file. Later items stay in the queue until it is full."""
        self._is_closed = True
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        if self._lock.acquire(timeout=5.0):
            try:
                self._drain(last=True)
                self._note_drops()
                self.files.close()
            finally:
                self._lock.release()
        if (self.dropped or self.files.lost) and not self._has_summed:
            self._has_summed = True
            _log.warning(
                "tracelens: %d steps were dropped (queue full), %d lines were lost (not writable)",
                self.dropped,
                self.files.lost,
            )

    def forked(self) -> None:
        """In a child: no thread came along, and what waits is the parent's to write."""
        self.dropped = self._noted = 0
        self._fresh()
        self.files.forked()

    def _fresh(self) -> None:
        self._queue: deque[Encode] = deque()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def _begin(self) -> None:
        thread = threading.Thread(target=_run, args=(weakref.ref(self), self._stop, self._flush_s), daemon=True)
        thread.name = "tracelens-recorder"
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            # No thread can be had (the interpreter ends): what waits is written at the exit.
            return
        _at_process_end()

    def look(self) -> None:
        """One look of the thread."""
        with self._lock:
            self._drain(last=False)
        if self.dropped and not self._has_dropped:
            self._has_dropped = True
            _log.warning("tracelens: the recorder's queue is full: steps are dropped and counted, serving goes on")

    def _note_drops(self) -> None:
        """Leave word of what is missing; no table of tracelens has a place for it."""
        if self.dropped != self._noted:
            self._noted = self.dropped
            self.files.write([f'{{"record":"recorder","dropped":{self.dropped},"lost":{self.files.lost}}}'])

    def _drain(self, last: bool) -> None:
        lines: list[str] = []
        for _ in range(len(self._queue)):
            try:
                made = self._queue.popleft()()
            except Exception as error:
                self._failed(error)
                continue
            if isinstance(made, str):
                lines.append(made)
            elif made is not None:
                lines.extend(made)
        if self._idle is not None:
            try:
                lines.extend(self._idle(last))
            except Exception as error:
                self._failed(error)
        self.files.write(lines)

    def _failed(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.warning("tracelens: a record could not be made (%s); it is left out", type(error).__name__)


def _run(writer: weakref.ref[Writer], stop: threading.Event, every: float) -> None:
    """The thread holds no recorder alive: one that is dropped without `close` ends its thread."""
    while not stop.wait(every):
        alive = writer()
        if alive is None:
            return
        with contextlib.suppress(Exception):
            alive.look()
        del alive


_LIVE: weakref.WeakSet[Writer] = weakref.WeakSet()
_ended_in: set[int] = set()


def _close_all() -> None:
    for writer in list(_LIVE):
        with contextlib.suppress(Exception):
            writer.close()


def _forked() -> None:
    for writer in list(_LIVE):
        with contextlib.suppress(Exception):
            writer.forked()


def _at_process_end() -> None:
    """A process of `multiprocessing` ends without `atexit`: it has finalizers of its own."""
    if os.getpid() in _ended_in:
        return
    _ended_in.add(os.getpid())
    with contextlib.suppress(Exception):
        from multiprocessing import util

        util.Finalize(None, _close_all, exitpriority=100)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
