"""Which of several draft lengths is best, and how sure that is: a seeded bootstrap over units (MODEL.md 9)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

REPLICATES = 1000
SEED = 20_261_129


def resampled_sums(by_unit: ArrayLike, replicates: int = REPLICATES, seed: int = SEED) -> Floats | None:
    """Sum over units drawn with replacement (Efron 1979), all columns with the same draw.

    Args:
        by_unit: array (units, columns) of sums of each independent unit.
        replicates: number of draws.
        seed: of the generator.

    Returns:
        Array (replicates, columns); None below two units, which tell of no spread.
    """
    sums = np.asarray(by_unit, dtype=np.float64)
    units = sums.shape[0]
    if units < 2:
        return None
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(units, np.full(units, 1.0 / units), size=replicates)
    return np.asarray(weights @ sums, dtype=np.float64)


def log_normal(value: float, log_deviation: float, stream: int, replicates: int = REPLICATES) -> Floats:
    """Draws around `value` that have this standard deviation on the log scale; streams are independent."""
    rng = np.random.default_rng([SEED, stream])
    return np.asarray(value * np.exp(log_deviation * rng.standard_normal(replicates)), dtype=np.float64)


def quantiles(draws: ArrayLike, level: float = 0.95) -> tuple[float, float] | None:
    """Percentile interval of draws along the first axis; None where some draw is no number."""
    values = np.asarray(draws, dtype=np.float64)
    if not np.all(np.isfinite(values)):
        return None
    low, high = np.quantile(values, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def best_interval(ks: Sequence[int], draws: Sequence[ArrayLike], level: float = 0.95) -> tuple[int, int]:
    """Interval of the draft length with the least relative token time; always lengths that were compared.

    Args:
        ks: the draft lengths, 0 for off.
        draws: draws of the relative token time of each, arrays of one length.
        level: of the interval.
    """
    best = np.asarray(ks)[np.argmin(np.stack([np.asarray(d, dtype=np.float64) for d in draws]), axis=0)]
    low, high = np.quantile(best, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], method="inverted_cdf")
    return int(low), int(high)
