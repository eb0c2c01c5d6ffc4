"""Intervals of composite figures: first-order propagation from the ratios they are made of (MODEL.md 9).

A figure f of positive ratios q_1 … q_k has the variance g' S g, g its gradient to ln q and S the covariance of ln q
over independent units (Cochran, Sampling Techniques, 3rd ed., 6.3, for every pair of ratios). Sources of chance that
know nothing of each other (the run, the baseline run) add; freedom is by Welch and Satterthwaite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracelens.model.intervals import Interval, t_quantile

Floats = NDArray[np.float64]

#: Fewer effective units show no spread that could be believed: no interval.
FEWEST_UNITS = 1.5
_STEP = 1e-5  # in ln q: large against rounding, small against what bends a figure


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio shift + sum(y) / sum(x) over units; `y` and `x` have one element a unit, in the same order for all."""

    y: ArrayLike
    x: ArrayLike
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Source:
    """Covariance of ln q (k x k) from one source of chance, and its degrees of freedom.

    An infinite element says that the spread is there and not known: what hangs on it has no interval.
    """

    covariance: Floats
    freedom: float


def influence(ratio: Ratio | None, units: int) -> Floats:
    """What each unit adds to ln of the ratio, to first order: (y/Y - x/X) (Y/X) / (shift + Y/X); zeros without data."""
    if ratio is None:
        return np.zeros(units)
    y, x = np.asarray(ratio.y, dtype=np.float64), np.asarray(ratio.x, dtype=np.float64)
    above, below = float(y.sum()), float(x.sum())
    value = above / below if below else 0.0
    if not above or not below or not ratio.shift + value > 0:
        return np.zeros(units)
    return np.asarray((y / above - x / below) * (value / (ratio.shift + value)), dtype=np.float64)


def unit_source(ratios: Sequence[Ratio | None], sizes: ArrayLike) -> Source | None:
    """Covariance of ln of `ratios` over units: n/(n-1) Z'Z, n the effective number of units of these sizes.

    None below `FEWEST_UNITS`: what one unit shows has no spread.
    """
    size = np.asarray(sizes, dtype=np.float64)
    if not size.sum() > 0:
        return None
    units = float(size.sum() ** 2 / np.sum(size**2))
    if units < FEWEST_UNITS:
        return None
    z = np.stack([influence(ratio, size.size) for ratio in ratios], axis=1)
    return Source(units / (units - 1.0) * (z.T @ z), max(units - 1.0, 1.0))


def gradient(function: Callable[[Floats], Floats], values: ArrayLike, most: ArrayLike = math.inf) -> Floats:
    """Gradient of `function` (k positive values in, m figures out) to the logarithms of its values, m x k.

    By central differences; at `most`, the largest that a value can be, from below.
    """
    start = np.asarray(values, dtype=np.float64)
    limits = np.broadcast_to(np.asarray(most, dtype=np.float64), start.shape)
    columns = []
    for i in range(start.size):
        up, down = start.copy(), start.copy()
        down[i] *= math.exp(-_STEP)
        steps = 1.0
        if start[i] * math.exp(_STEP) <= limits[i]:
            up[i] *= math.exp(_STEP)
            steps = 2.0
        columns.append((function(up) - function(down)) / (steps * _STEP))
    return np.stack(columns, axis=-1) if columns else np.zeros((0, 0))


def interval(value: float, slope: ArrayLike, sources: Sequence[Source], level: float = 0.95) -> Interval | None:
    """Interval value +- t s from the gradient of a figure and its sources; None where it knows no spread."""
    spread = standard_error(slope, sources)
    if spread is None:
        return None
    half = t_quantile(level, spread[1]) * spread[0]
    return Interval(value - half, value + half)


def standard_error(slope: ArrayLike, sources: Sequence[Source]) -> tuple[float, float] | None:
    """Standard error of a figure with this gradient, and its degrees of freedom."""
    g = np.asarray(slope, dtype=np.float64)
    pairs = np.outer(g, g)
    if not sources or any(np.any(~np.isfinite(s.covariance) & (pairs != 0.0)) for s in sources):
        return None
    known = [(np.where(np.isfinite(s.covariance), s.covariance, 0.0), s.freedom) for s in sources]
    parts = [(max(float(g @ covariance @ g), 0.0), freedom) for covariance, freedom in known]
    total = math.fsum(variance for variance, _ in parts)
    weights = math.fsum(variance**2 / freedom for variance, freedom in parts)
    return math.sqrt(total), (total**2 / weights if weights > 0 else min(freedom for _, freedom in parts))
