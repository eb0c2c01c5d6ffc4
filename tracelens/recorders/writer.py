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
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from tracelens.recorders.files import RotatingFile

_log = logging.getLogger("tracelens.recorders")

# What makes lines; a fault among them stands for one record that could not be made.
Encode = Callable[[], "str | Iterable[str | Exception] | None"]
_NOTE_S = 60.0


class Writer:
    """Writes what it is given, in order, some time later.

    Args:
        files: where lines go.
        limit: items that may wait.
        flush_s: seconds between two looks of the thread.
        idle: called in the thread at every look: gives lines that became due.

    Attributes:
        dropped: steps and requests that found the queue full.
    """

    def __init__(
        self,
        files: RotatingFile,
        limit: int,
        flush_s: float,
        idle: Callable[[bool], Iterable[str | Exception]] | None = None,
    ) -> None:
        self.files = files
        self.dropped = 0
        self._limit, self._flush_s, self._idle = limit, flush_s, idle
        self._has_failed = False
        self._has_dropped = False
        self._has_summed = False
        self._noted, self._noted_in, self._noted_at = (0, 0), 0, -_NOTE_S
        self._fresh()
        _LIVE.add(self)

    def put(self, encode: Encode, counts: int = 1) -> bool:
        """Take an item whose lines `encode` makes later; False when the queue is full.

        `counts`: steps or requests in it, for `dropped`; 0 for what only adds to one.
        """
        if len(self._queue) >= self._limit:
            with self._guard:
                self.dropped += counts
            return False
        self._queue.append(encode)
        if self._thread is None:
            self.begin()
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
                self._note(now=True)
                self.files.close()
            finally:
                self._lock.release()
        if (self.dropped or self.files.lost) and not self._has_summed:
            self._has_summed = True
            _log.warning(
                "tracelens: %d steps or requests were dropped (queue full), %d lines were lost (not writable)",
                self.dropped,
                self.files.lost,
            )

    def forked(self) -> None:
        """In a child: no thread came along, and what waits is the parent's to write."""
        self.dropped, self._noted, self._noted_in, self._noted_at = 0, (0, 0), 0, -_NOTE_S
        self._fresh()
        self.files.forked()

    def _fresh(self) -> None:
        self._queue: deque[Encode] = deque()
        # Entered again where a signal's handler, or the collector of garbage, closes a recorder in the midst of a look.
        self._lock = threading.RLock()
        self._guard = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def begin(self) -> None:
        """Start the thread, and see to it that the process ends with all written; once."""
        with self._guard:
            if self._thread is not None or self._is_closed:
                return
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

    def _note(self, now: bool = False) -> None:
        """Leave word of what is missing: in each new file, and within a minute of a change (a kill -9 leaves it there).

        No table of tracelens has a place for it.
        """
        counts, at = (self.dropped, self.files.lost), time.monotonic()
        is_new_file = self.files.opened != self._noted_in and counts != (0, 0)
        is_due = counts != self._noted and (now or at - self._noted_at >= _NOTE_S)
        line = f'{{"record":"recorder","dropped":{counts[0]},"lost":{counts[1]}}}'
        if (is_new_file or is_due) and self.files.note(line):
            self._noted, self._noted_in, self._noted_at = counts, self.files.opened, at

    def _drain(self, last: bool) -> None:
        lines: list[str] = []
        for _ in range(len(self._queue)):
            try:
                encode = self._queue.popleft()
            except IndexError:
                break
            self._make(encode, lines)
        if self._idle is not None:
            self._make(partial(self._idle, last), lines)
        self.files.write(lines)
        self._note()

    def _make(self, encode: Encode, lines: list[str]) -> None:
        """Add the lines of an item; what cannot be made is left out alone, and counted."""
        try:
            made = encode()
        except Exception as error:
            self._failed(error)
            return
        if isinstance(made, str):
            lines.append(made)
        elif made is not None:
            for line in made:
                if isinstance(line, Exception):
                    self._failed(line)
                else:
                    lines.append(line)

    def _failed(self, error: Exception) -> None:
        self.files.lost += 1
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


class Owner(Protocol):
    """What has steps that its writer does not know of yet."""

    def close(self) -> None:
        """Hand all over, and close the writer."""

    def forked(self) -> None:
        """Forget them: they are the parent's."""


_LIVE: weakref.WeakSet[Writer] = weakref.WeakSet()
_OWNERS: weakref.WeakSet[Owner] = weakref.WeakSet()
_ended_in: set[int] = set()


def own(owner: Owner) -> None:
    """Close it at the end of the process, before the writers, and tell it of a fork."""
    _OWNERS.add(owner)


def _close_all() -> None:
    for live in (*_OWNERS, *_LIVE):
        with contextlib.suppress(Exception):
            live.close()


def _forked() -> None:
    for live in (*_OWNERS, *_LIVE):
        with contextlib.suppress(Exception):
            live.forked()


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
