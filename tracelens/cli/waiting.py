"""What is seen on a terminal while a long answer is worked out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from tracelens.lake.progress import Waiting

#: Answers that come sooner show no bar.
PATIENCE_SECONDS = 1.5
_LOOK_SECONDS = 0.2


@contextmanager
def waiting() -> Iterator[None]:
    """A bar on stderr with rate and time left, for answers that take longer; nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from tracelens.lake import progress

    over = threading.Event()
    with progress.told() as state:
        shown = threading.Thread(target=_show, args=(state, over), daemon=True)
        shown.start()
        try:
            yield
        finally:
            over.set()
            shown.join()


@contextmanager
def noticed(say: Callable[[str], None]) -> Iterator[None]:
    """Within it the first wait for another writer is told, on a terminal or not: nobody takes it for a hang."""
    from tracelens.lake import progress

    told = False

    def once(why: str) -> None:
        nonlocal told
        if not told:
            told = True
            say(why)

    with progress.noticed(once):
        yield


def _show(state: Waiting, over: threading.Event) -> None:
    if over.wait(PATIENCE_SECONDS):
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*_columns(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the lake", total=1.0, rate="")
        while not over.wait(_LOOK_SECONDS):
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = _rate(state, elapsed + PATIENCE_SECONDS)
            bar.update(task, completed=max(state.share, bar.tasks[0].completed), rate=rate)


def _columns() -> tuple[ProgressColumn, ...]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )


def _rate(state: Waiting, seconds: float) -> str:
    """Records of the lake that one second gets through; empty while that is not known."""
    if not state.records or not state.share or seconds <= 0:
        return ""
    from tracelens.reporters.format import count

    return f"{count(state.records * state.share / seconds)} records/s"
