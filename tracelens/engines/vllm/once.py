"""Lines that were printed once and stand in a log twice: two handlers, or a log that was copied into itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

_PRINTED = ("stream", "process", "inner", "hash")


def once(frame: pl.DataFrame, *also: str) -> pl.DataFrame:
    """Drop repeats of one printed line: same process, same own stamp, same text. Lines without a stamp are kept."""
    stamped = pl.col("inner").is_not_null()
    return frame.filter(~stamped | pl.struct(*_PRINTED, *also).is_first_distinct())


class Once:
    """The same over the parts of a log: 8 bytes of memory a line."""

    def __init__(self) -> None:
        # Digests in order, in arrays of falling lengths: few to look at, and cheap to join.
        self._seen: list[npt.NDArray[np.uint64]] = []

    def __call__(self, frame: pl.DataFrame, *also: str) -> pl.DataFrame:
        """The lines of the next part that no part has yet."""
        found = frame.select(pl.struct(*_PRINTED, *also).hash().alias("digest"), stamped=pl.col("inner").is_not_null())
        new = (found["digest"].is_first_distinct() | ~found["stamped"]).to_numpy().copy()
        digests, stamped = found["digest"].to_numpy(), found["stamped"].to_numpy()
        new &= ~stamped | ~self._has(digests)
        self._add(digests[new & stamped])
        return frame if new.all() else frame.filter(pl.Series(new))

    def _has(self, digests: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which digests were seen."""
        # Searched for in order, each is near the one before it: a third of the time.
        order = np.argsort(digests)
        ordered = digests[order]
        known = np.zeros(len(digests), np.bool_)
        for seen in self._seen:
            at = np.minimum(np.searchsorted(seen, ordered), len(seen) - 1)
            known[order] |= seen[at] == ordered
        return known

    def _add(self, digests: npt.NDArray[np.uint64]) -> None:
        if not len(digests):
            return
        joined = np.sort(digests)
        while self._seen and len(self._seen[-1]) <= len(joined):
            joined = np.sort(np.concatenate((self._seen.pop(), joined)), kind="stable")
        self._seen.append(joined)
