"""How far the queries over a lake are, and why nothing happens, for whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


#: From so many files of records on, a report takes longer to open them than to read them (benchmarks/README.md).
MANY_FILES = 2000


@dataclass(slots=True)
class Waiting:
    """The state of one answer, written by the thread that asks and read by the one that shows it.

    `planned` is how many queries there will be in about, `done` how many there were; `records` is how many records the
    lake has, once that is known.
    """

    planned: int = 0
    done: int = 0
    records: int | None = None
    con: duckdb.DuckDBPyConnection | None = None

    @property
    def share(self) -> float:
        """How much is done, 0 to 1: whole queries, and the part of the running one that DuckDB tells."""
        if not self.planned:
            return 0.0
        con, part = self.con, 0.0
        if con is not None:
            try:
                part = min(max(con.query_progress() / 100, 0.0), 1.0)
            except Exception:  # closed under our hands: the next one tells
                part = 0.0
        return min((self.done + part) / max(self.planned, self.done + 1), 1.0)


_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)
_current: ContextVar[Waiting | None] = ContextVar("waiting", default=None)


@contextmanager
def told() -> Iterator[Waiting]:
    """Within it the queries of this thread tell how far they are."""
    waiting = Waiting()
    token = _current.set(waiting)
    try:
        yield waiting
    finally:
        _current.reset(token)


@contextmanager
def noticed(listener: Callable[[str], None]) -> Iterator[None]:
    """Within it this thread's work tells why nothing happens; a program that imports tracelens hears nothing of it."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def notice(why: str) -> None:
    """Nothing happens for a while."""
    listener = _listener.get()
    if listener is not None:
        listener(why)


def opens(files: int) -> None:
    """An answer is to be had of so many files of records."""
    if files >= MANY_FILES:
        notice(f"the lake has {files:,} files, which take long to open: tracelens compact makes few of them")


def connected(con: duckdb.DuckDBPyConnection) -> None:
    """A connection whose queries somebody may wait for."""
    waiting = _current.get()
    if waiting is not None:
        waiting.con = con


def expect(queries: int) -> None:
    """About so many queries are still to come; whoever knows of most is believed."""
    waiting = _current.get()
    if waiting is not None:
        waiting.planned = max(waiting.planned, waiting.done + queries)


def step() -> None:
    """One query is done."""
    waiting = _current.get()
    if waiting is not None:
        waiting.done += 1


def holds(records: int) -> None:
    """The lake has so many records."""
    waiting = _current.get()
    if waiting is not None:
        waiting.records = records
