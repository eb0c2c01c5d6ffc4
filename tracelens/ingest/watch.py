"""`watch`: when to look, and when to stop. What is done in a round is in watcher.py."""

from __future__ import annotations

from collections.abc import Callable

from tracelens.ingest.run import Progress
from tracelens.ingest.stop import Stop
from tracelens.ingest.watch_state import Held, Round
from tracelens.ingest.watcher import Watcher

__all__ = ["Held", "Round", "Stop", "Watcher", "follow"]


def follow(
    watcher: Watcher,
    shown: Callable[[Round], None],
    *,
    every: float,
    seconds: float | None = None,
    once: bool = False,
    progress: Progress | None = None,
) -> Round:
    """Round after round until the stop is asked for, the time is up or, with `once`, at once.

    A pause takes `every` seconds, and no less than it took to show the round before it: what is written and overwritten
    in that time is never seen. The last round of `once` and
    `seconds` reads everything that has changed; a stop does not wait for that.

    Returns:
        The last round.
    """
    clock, stop = watcher.clock, watcher.stop
    tries = 2  # a log that is rotated while the last round reads it
    end = None if seconds is None else clock() + seconds
    while True:
        last = once or (end is not None and clock() >= end)
        found = watcher.round(progress, everything=last)
        begun = clock()
        shown(found)
        if last and watcher.unsettled and not stop.asked and tries:
            tries -= 1
            continue
        if last or stop.asked:
            return found
        pause = max(every, clock() - begun)
        stop.wait(pause if end is None else max(min(pause, end - clock()), 0.0))
        if stop.asked:
            return found
        watcher.budget.waited(clock() - begun)
