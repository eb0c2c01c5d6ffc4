"""How often a log that grows is worth reading again: reading takes at most half of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Until something was measured: what an engine's text log is read at, and what a commit costs however small it is.
_BYTES_PER_SECOND = 50e6
_SECONDS_A_ROUND = 0.2
# Below this a reading tells more of the commit than of the bytes.
_MEASURABLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Wait:
    """A source that has changed: its bytes as they lie on the disk, and for how many seconds it has been waiting."""

    bytes: int
    seconds: float


class Budget:
    """Seconds of reading that were earned by seconds of waiting.

    A grown log is read anew from its beginning, so a large one costs the same for one new line as for a million. Every
    second without reading earns a second of reading. Sources are taken cheapest first; one that waits gains rank with
    its waiting, and once it is first nobody overtakes it, so that none waits for ever.
    """

    def __init__(self) -> None:
        self.earned = 0.0
        self._rate = _BYTES_PER_SECOND

    def cost(self, size: int) -> float:
        """Seconds that a source of so many bytes is expected to take, the commit apart."""
        return size / self._rate

    def waited(self, seconds: float) -> None:
        """Seconds went by without reading."""
        self.earned += max(seconds, 0.0)

    def spent(self, seconds: float, size: int, *, owed: bool = True) -> None:
        """A reading of so many bytes took so long; more than was earned is a debt (unless not `owed`)."""
        if owed:
            self.earned -= seconds
        if size >= _MEASURABLE and seconds > 0:
            self._rate = (self._rate + size / seconds) / 2

    def settle(self) -> None:
        """Nothing waits: what was saved up is no licence to read the next growing log without a pause."""
        self.earned = min(self.earned, 0.0)

    def choose(self, waiting: Sequence[Wait]) -> list[int]:
        """Positions of the sources to read now, in the order given; the others wait."""

        def rank(i: int) -> float:
            return self.cost(waiting[i].bytes) / max(waiting[i].seconds, 1e-3)

        chosen: list[int] = []
        left = self.earned - _SECONDS_A_ROUND
        for i in sorted(range(len(waiting)), key=rank):
            left -= self.cost(waiting[i].bytes)
            if left < 0:
                break
            chosen.append(i)
        return sorted(chosen)

    def seconds_until(self, ahead: int) -> float:
        """Seconds of waiting until so many bytes are earned."""
        return max(self.cost(ahead) + _SECONDS_A_ROUND - self.earned, 0.0)
