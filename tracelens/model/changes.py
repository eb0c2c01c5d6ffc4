"""What changed between two independent samples, whether it is more than chance, and what the mix has to do with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracelens.model.intervals import (
    RatioSums,
    effective_units,
    ratio_freedom,
    ratio_variance,
    t_quantile,
)

# Below this share of the values a spread is rounding: units that all show the same tell nothing about chance.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of one side with its variance (in the figure's unit, squared) and degrees of freedom.

    `scale_variance` is the relative variance of a baseline that the figure was divided by (or that was divided by it),
    with `scale_freedom`: two sides may share that baseline.
    """

    value: float
    variance: float
    freedom: float = math.inf
    scale_variance: float = 0.0
    scale_freedom: float = math.inf


@dataclass(frozen=True, slots=True)
class Difference:
    """B - A with its interval and two-sided p-value; `ratio` is B / A, None where A is 0."""

    value: float
    low: float
    high: float
    ratio: float | None
    p_value: float


@dataclass(frozen=True, slots=True)
class MixEffect:
    """The change of a weighted mean and its two parts, `total` = `mix` + `within`.

    `mix` is what the shares of the classes did, `within` what the classes themselves did.
    """

    total: float
    mix: float
    within: float


def ratio_spread(sums: RatioSums | None, *, shift: float = 0.0) -> Spread | None:
    """Spread of shift + sum(y) / sum(x), linearised by unit (`ratio_variance`); None below two units."""
    variance = None if sums is None else ratio_variance(sums)
    if sums is None or variance is None:
        return None
    return Spread(shift + sums.y / sums.x, variance, ratio_freedom(sums))


def share_spread(sums: RatioSums | None, level: float = 0.95) -> Spread | None:
    """Spread of a share (y counts some of x); None below two units.

    A share of 0 or 1 shows no variance. There the standard error is such that t of them reach as far as the exact
    binomial bound of n_eff trials at `level` (Clopper and Pearson 1934), as `intervals.share_interval` has it.
    """
    spread = ratio_spread(sums)
    if sums is None or spread is None or 0.0 < spread.value < 1.0:
        return spread
    reach = 1.0 - ((1.0 - level) / 2.0) ** (1.0 / max(effective_units(sums), 1.0))
    return Spread(spread.value, (reach / t_quantile(level, spread.freedom)) ** 2, spread.freedom)


def difference(a: Spread, b: Spread, level: float = 0.95, *, shared: float = 0.0) -> Difference | None:
    """B - A of two independent samples: variances add, freedom by Welch (1947) and Satterthwaite (1946).

    Args:
        a: the first side.
        b: the second side.
        level: level of the interval.
        shared: correlation (0 to 1) of the errors of the two baselines. One baseline measured once is on both sides
            with the same error: with 1 it only scales the difference (delta method), which widens the interval and
            leaves the test of no change as it is.

    None where no unit differs from another on either side, so that nothing says how large chance is.
    """
    value, middle = b.value - a.value, (a.value + b.value) / 2.0
    own = [(a.variance, a.freedom), (b.variance, b.freedom)]
    parts, null = ([*own, _scale(a, b, x, y, shared)] for x, y in ((a.value, b.value), (middle, middle)))
    error, null_error = (math.sqrt(sum(variance for variance, _ in some)) for some in (parts, null))
    least = _ROUNDING * max(abs(a.value), abs(b.value))
    if not math.isfinite(error) or min(error, null_error) <= least:
        return None
    half = t_quantile(level, welch_freedom(parts)) * error
    ratio = b.value / a.value if a.value != 0 else None
    # Without a change a shared baseline cannot make one: for the test its error is what both sides do not share.
    p_value = two_sided_p(value / null_error, welch_freedom(null))
    return Difference(value, value - half, value + half, ratio, p_value)


def _scale(a: Spread, b: Spread, value_a: float, value_b: float, shared: float) -> tuple[float, float]:
    """Variance that the baselines add to the difference of two values, and its freedom."""
    one, other = value_a * math.sqrt(a.scale_variance), value_b * math.sqrt(b.scale_variance)
    variance = max(one * one + other * other - 2.0 * shared * one * other, 0.0)
    return variance, min(a.scale_freedom, b.scale_freedom)


def welch_freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of independent variances, each with its own (Satterthwaite 1946), at least 1."""
    total = sum(variance for variance, _ in parts)
    weights = sum(variance**2 / freedom for variance, freedom in parts)
    return math.inf if weights == 0 else max(total**2 / weights, 1.0)


def two_sided_p(statistic: float, freedom: float) -> float:
    """Two-sided p-value of Student's t; of the normal law for infinite freedom."""
    from scipy.special import ndtr, stdtr  # type: ignore[import-untyped,unused-ignore]  # 40 ms: only when asked

    tail = -abs(statistic)
    return float(2.0 * (ndtr(tail) if math.isinf(freedom) else stdtr(freedom, tail)))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values of Holm (1979), in the given order: below 1 - level means significant after correction.

    Whatever the tests have to do with one another, the chance that any true null is called is at most 1 - level.

    Raises:
        ValueError: a value that is no probability.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError("p-values must lie between 0 and 1")
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted


def mix_effect(weight_a: ArrayLike, value_a: ArrayLike, weight_b: ArrayLike, value_b: ArrayLike) -> MixEffect:
    """Split the change of sum(weight x value) into mix and within, class by class (Kitagawa 1955, symmetric).

    mix = sum (wb - wa)(xa + xb)/2, within = sum (xb - xa)(wa + wb)/2: they add up to the change exactly. A class that
    one side lacks (weight 0, value NaN) changed its share and nothing else: it takes the other side's value.

    Args:
        weight_a: share of every class on side A, shape (classes,); they need not add up to 1.
        value_a: the figure of every class on side A, shape (classes,).
        weight_b: the same of side B.
        value_b: the same of side B.
    """
    wa, ya, wb, yb = _filled(weight_a, value_a, weight_b, value_b)
    mix = float(np.sum((wb - wa) * (ya + yb) / 2.0))
    within = float(np.sum((yb - ya) * (wa + wb) / 2.0))
    return MixEffect(float(np.sum(wb * yb) - np.sum(wa * ya)), mix, within)


def mix_parts(weight_a: ArrayLike, value_a: ArrayLike, weight_b: ArrayLike, value_b: ArrayLike) -> NDArray[np.float64]:
    """What the share of every class did to the mix, shape (classes,): (wb - wa)((xa + xb)/2 - m).

    m is the mean of the two totals. Any m gives the same sum, that of `mix_effect`, where the shares of both sides add
    up to the same; around the mean a class counts for how unlike the others it is. Arguments as for `mix_effect`.
    """
    wa, ya, wb, yb = _filled(weight_a, value_a, weight_b, value_b)
    weight = float(np.sum(wa + wb))
    middle = float(np.sum(wa * ya) + np.sum(wb * yb)) / weight if weight else 0.0
    return np.asarray((wb - wa) * ((ya + yb) / 2.0 - middle))


def _filled(
    weight_a: ArrayLike, value_a: ArrayLike, weight_b: ArrayLike, value_b: ArrayLike
) -> tuple[NDArray[np.float64], ...]:
    """Weights and values of both sides, where a class that one side lacks has the value of the other."""
    wa, xa, wb, xb = (np.asarray(v, dtype=np.float64) for v in (weight_a, value_a, weight_b, value_b))
    ya, yb = np.where(wa == 0, xb, xa), np.where(wb == 0, xa, xb)
    absent = (wa == 0) & (wb == 0)
    return wa, np.where(absent, 0.0, ya), wb, np.where(absent, 0.0, yb)
