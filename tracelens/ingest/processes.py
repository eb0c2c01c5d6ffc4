"""What all processes that read logs have in common."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any, TypeVar

T = TypeVar("T")


def begin() -> None:
    """What a process does before it reads: Ctrl-C ends it at once, and only the first process says something.

    It ends with the first one, too, whatever that one died of.
    """
    from tracelens.cli import start_lean

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    first = parent_process()
    if first is not None:
        threading.Thread(target=_end_with, args=(first.sentinel,), name="tracelens-parent", daemon=True).start()
    start_lean()


def _end_with(first: int) -> None:
    wait([first])
    os._exit(1)


class Pool:
    """Processes that read ranges of one file; none is left behind, whatever ended the work.

    Args:
        processes: so many.
        start, given: what each does first.
    """

    def __init__(self, processes: int, start: Callable[..., None] = begin, given: tuple[Any, ...] = ()) -> None:
        self._executor = ProcessPoolExecutor(processes, get_context("spawn"), start, given)

    def submit(self, work: Callable[..., T], *given: Any) -> Future[T]:
        """Have one of them do some work."""
        with quiet_start():
            return self._executor.submit(work, *given)

    def close(self) -> None:
        """End them."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def quiet_start() -> Iterator[None]:
    """A process that is started within it hears of Ctrl-C when it has begun, and not while it is loaded; it has one
    thread of polars, whatever program it is started from: the processes share the cores.
    """
    with _one_thread():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Read when polars is loaded, which is before a process can be told anything."""
    name = "POLARS_MAX_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
