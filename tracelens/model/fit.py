"""How the time of a draft phase or a verify pass grows with the draft length: fixed + slope * d (MODEL.md 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

#: Least share of the rounds that must have another draft length than the commonest: the cut drafts at the end of a
#: request are no sample of shorter drafts.
LEAST_OTHER = 0.05


@dataclass(frozen=True, slots=True)
class Line:
    """A time in ms as a line over the draft length, through the mean of what was measured."""

    mean_length: float
    mean_ms: float
    slope_ms: float

    def at(self, length: ArrayLike) -> Floats:
        """Time at a draft length, ms."""
        return np.asarray(
            self.mean_ms + self.slope_ms * (np.asarray(length, dtype=np.float64) - self.mean_length), dtype=np.float64
        )


def lengths_vary(length: ArrayLike, rounds: ArrayLike) -> bool:
    """Whether draft lengths differ enough to tell a slope: more than `LEAST_OTHER` of the rounds off the commonest."""
    d, n = np.asarray(length, dtype=np.float64), np.asarray(rounds, dtype=np.float64)
    if n.sum() <= 0:
        return False
    by_length = np.bincount(np.unique(d, return_inverse=True)[1], n)
    return bool(1.0 - by_length.max() / n.sum() > LEAST_OTHER)


def fit_line(group: ArrayLike, length: ArrayLike, rounds: ArrayLike, total_ms: ArrayLike) -> Line | None:
    """Fit time over draft length by least squares within groups, each with its own level.

    Ordinary least squares of single rounds with a fixed effect a group (the within estimator: Wooldridge, Econometric
    Analysis of Cross Section and Panel Data, 10.5), from sums. Batches of different size come with different times and,
    across runs, with different draft lengths: only what differs inside a group tells of the draft length. One group for
    all is the plain fit.

    Args:
        group: group of each cell.
        length: draft length of each cell.
        rounds: rounds in each cell.
        total_ms: sum of their times.

    Returns:
        The line through the mean over all groups; None where lengths do not vary inside any group.
    """
    g = np.unique(np.asarray(group), return_inverse=True)[1]
    d, n, y = (np.asarray(x, dtype=np.float64) for x in (length, rounds, total_ms))
    if n.sum() <= 0:
        return None
    in_group = np.bincount(g, n)
    centred = d - (np.bincount(g, n * d) / np.maximum(in_group, 1e-300))[g]
    spread = float(np.sum(n * centred**2))
    if spread <= 1e-9 * n.sum():
        return None
    slope = float(np.sum(centred * y)) / spread
    return Line(float(np.sum(n * d) / n.sum()), float(y.sum() / n.sum()), slope)
