"""The wish to stop, which a signal brings at any time."""

from __future__ import annotations

import time
from collections.abc import Callable

# A stop waits so long for a reading to come to its commit; a longer one is dropped, as the logs are still there.
GRACE = 3.0
_SLICE = 0.1  # of a pause, seconds: how soon a stop is seen

Clock = Callable[[], float]


class Stop:
    """Asked for by a signal; looked at while waiting and reading."""

    def __init__(self, clock: Clock = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock, self._sleep = clock, sleep
        self._since: float | None = None

    @property
    def asked(self) -> bool:
        """Whether someone wants us to stop."""
        return self._since is not None

    def ask(self) -> None:
        """Stop after the running commit."""
        if self._since is None:
            self._since = self._clock()

    def overdue(self) -> bool:
        """Whether the stop was asked for so long ago that a reading is no longer worth waiting for."""
        return self._since is not None and self._clock() - self._since > GRACE

    def wait(self, seconds: float) -> None:
        """Wait, or until a stop is asked for. No lock is waited on: the signal may come while we hold it."""
        until = self._clock() + seconds
        while not self.asked and (left := until - self._clock()) > 0:
            self._sleep(min(left, _SLICE))
