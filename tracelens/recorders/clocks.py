"""Clocks of a phase: the host's, and pairs of device events that are read once the device has passed them.

On a device that runs behind the host, a host clock measures how long a launch took, not how long the work did. An event
is recorded on the stream before and after the work; asking whether it is reached (`query`) does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """What a phase is timed with; a mark is whatever `mark` gives."""

    basis: str

    def mark(self) -> Any:
        """A moment now, or None where none can be taken."""

    def is_ready(self, mark: Any) -> bool:
        """Whether the moment has been reached; never waits."""

    def elapsed_us(self, start: Any, end: Any) -> int | None:
        """Microseconds from one mark to another, both reached."""

    def release(self, mark: Any) -> None:
        """The mark is not needed any more."""


class HostClock:
    """The host's monotonic clock: true where calls return when the work is done, as on a CPU."""

    basis = "host"

    def mark(self) -> int:
        """Nanoseconds."""
        return time.perf_counter_ns()

    def is_ready(self, mark: int) -> bool:
        """Always."""
        return True

    def elapsed_us(self, start: int, end: int) -> int:
        """Rounded to a microsecond."""
        return (end - start + 500) // 1000

    def release(self, mark: int) -> None:
        """Nothing is held."""


class DeviceClock:
    """Pairs of device events, reused once they were read.

    Args:
        new_event: makes an event with `record()`, `query()` and `elapsed_time(other)` in ms, such as
            `lambda: torch.cuda.Event(enable_timing=True)`.
        is_capturing: whether the stream is being captured into a graph: an event in a graph would break it, or be
            replayed with it, so that no mark is taken then.
    """

    basis = "device"

    def __init__(self, new_event: Callable[[], Any], is_capturing: Callable[[], bool] | None = None) -> None:
        self._new_event = new_event
        self._is_capturing = is_capturing
        self._free: list[Any] = []

    def mark(self) -> Any:
        """An event recorded on the current stream; None while a graph is captured."""
        if self._is_capturing is not None and self._is_capturing():
            return None
        try:
            event = self._free.pop()
        except IndexError:
            event = self._new_event()
        event.record()
        return event

    def is_ready(self, mark: Any) -> bool:
        """Whether the device has passed the event."""
        return bool(mark.query())

    def elapsed_us(self, start: Any, end: Any) -> int | None:
        """Device time between two events, in microseconds."""
        elapsed = float(start.elapsed_time(end)) * 1000.0
        return round(elapsed) if 0 <= elapsed < 1e15 else None

    def release(self, mark: Any) -> None:
        """The event may be recorded again."""
        if len(self._free) < 256:
            self._free.append(mark)


class Phases:
    """Marks around the phases of one step; a phase that runs twice counts twice.

    Attributes:
        marks: (name, start, end).
        is_broken: the clock has failed in this step: part of its times would be taken for all, so it has none.
    """

    __slots__ = ("clock", "is_broken", "marks")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_broken = False
        self.marks: list[tuple[str, Any, Any]] = []

    def add(self, name: str, start: Any, end: Any) -> None:
        """A phase that ran from one mark to another; left out where either could not be taken."""
        if start is not None and end is not None:
            self.marks.append((name, start, end))

    def are_ready(self) -> bool:
        """Whether all marks are reached; the last ones most often decide."""
        return all(self.clock.is_ready(end) for _, _, end in reversed(self.marks))

    def durations(self) -> dict[str, int]:
        """Microseconds by name; call it once, when all are ready: the marks are given back."""
        found: dict[str, int] = {}
        for name, start, end in self.marks:
            took = self.clock.elapsed_us(start, end)
            if took is not None:
                found[name] = found.get(name, 0) + took
        for _, start, end in self.marks:
            self.clock.release(start)
            self.clock.release(end)
        self.marks = []
        return found
