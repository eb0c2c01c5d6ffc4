"""Confidence intervals of ratios whose rounds are not independent: the unit is the request (MODEL.md 9)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatioSums:
    """What the interval of sum(y) / sum(x) needs, summed over m independent units."""

    m: float
    y: float
    x: float
    yy: float
    xy: float
    xx: float

    @classmethod
    def of(cls, sums: Mapping[str, float | None] | None) -> RatioSums | None:
        """Take the struct of the SQL macro `ratio_sums`; None where the ratio has no data."""
        if sums is None:
            return None
        values = [sums[name] for name in ("m", "y", "x", "yy", "xy", "xx")]
        if any(v is None for v in values):
            return None
        return cls(*(float(v) for v in values if v is not None))

    @classmethod
    def from_units(cls, y: ArrayLike, x: ArrayLike) -> RatioSums:
        """Sum over units given one by one; units with x = 0 do not count."""
        a, b = np.asarray(y, dtype=np.float64), np.asarray(x, dtype=np.float64)
        a, b = a[b > 0], b[b > 0]
        return cls(float(a.size), a.sum(), b.sum(), (a * a).sum(), (a * b).sum(), (b * b).sum())


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, its relative variance (variance of its logarithm, to first order) and degrees of freedom.

    A value that is given, not measured, has no variance and infinite degrees of freedom.
    """

    value: float
    relative_variance: float = 0.0
    freedom: float = math.inf


@dataclass(frozen=True, slots=True)
class Interval:
    """Two-sided interval of an estimate."""

    low: float
    high: float


def effective_units(sums: RatioSums) -> float:
    """(sum x)^2 / sum x^2: as many units of equal size tell as much (MODEL.md 2, n_eff)."""
    return sums.x**2 / sums.xx if sums.xx > 0 else sums.m


def ratio_variance(sums: RatioSums) -> float | None:
    """Variance of sum(y) / sum(x), linearised by unit: n_eff/(n_eff-1) sum (y - r x)^2 / (sum x)^2.

    Cochran, Sampling Techniques, 3rd ed., 6.3, with the effective number of units in place of their number m: the
    estimated r pulls the residuals of large units towards 0, so m/(m-1) is too small a correction where sizes differ
    (docs/calibration.md). None below two units or without a denominator.
    """
    if sums.m < 2 or sums.x == 0:
        return None
    r = sums.y / sums.x
    squares = max(sums.yy - 2.0 * r * sums.xy + r * r * sums.xx, 0.0)
    units = max(effective_units(sums), 1.0 + 1e-6)
    return units / (units - 1.0) * squares / sums.x**2


def ratio_freedom(sums: RatioSums) -> float:
    """Degrees of freedom of `ratio_variance`: n_eff - 1, at least 1; m - 1 for units of equal size."""
    return max(effective_units(sums) - 1.0, 1.0)


def ratio_estimate(sums: RatioSums | None) -> Estimate | None:
    """Turn a ratio into an estimate for composite figures; None where it is 0 or has no interval."""
    if sums is None:
        return None
    variance = ratio_variance(sums)
    if variance is None or sums.y == 0:
        return None
    value = sums.y / sums.x
    return Estimate(value, variance / value**2, ratio_freedom(sums))


def ratio_interval(
    sums: RatioSums | None, level: float = 0.95, *, shift: float = 0.0, bounds: tuple[float, float] | None = None
) -> Interval | None:
    """Interval of shift + sum(y) / sum(x) with Student's t and `ratio_freedom`, cut to `bounds`."""
    if sums is None:
        return None
    variance = ratio_variance(sums)
    if variance is None:
        return None
    value = shift + sums.y / sums.x
    half = t_quantile(level, ratio_freedom(sums)) * math.sqrt(variance)
    low, high = value - half, value + half
    return Interval(low, high) if bounds is None else Interval(max(low, bounds[0]), min(high, bounds[1]))


def share_interval(sums: RatioSums | None, level: float = 0.95) -> Interval | None:
    """Interval of a share (y counts some of x), on the scale of its log odds; never outside 0..1.

    A share of 0 or 1 has no odds: there it is the exact binomial bound of n_eff trials (Clopper and Pearson 1934).
    """
    if sums is None:
        return None
    variance = ratio_variance(sums)
    if variance is None:
        return None
    share, freedom = sums.y / sums.x, ratio_freedom(sums)
    if not 0.0 < share < 1.0:
        reach = 1.0 - ((1.0 - level) / 2.0) ** (1.0 / max(effective_units(sums), 1.0))
        return Interval(0.0, reach) if share <= 0.0 else Interval(1.0 - reach, 1.0)
    half = t_quantile(level, freedom) * math.sqrt(variance) / (share * (1.0 - share))
    odds, factor = share / (1.0 - share), math.exp(min(half, 700.0))
    low, high = odds / factor, odds * factor
    return Interval(low / (1.0 + low), 1.0 if math.isinf(high) else high / (1.0 + high))


def quotient(numerator: Estimate, denominator: Estimate) -> Estimate:
    """Divide two independent estimates: relative variances add (delta method), freedom by Welch and Satterthwaite.

    Raises:
        ZeroDivisionError: the denominator is 0.
    """
    variance = numerator.relative_variance + denominator.relative_variance
    return Estimate(numerator.value / denominator.value, variance, _freedom(numerator, denominator))


def inverse(estimate: Estimate) -> Estimate:
    """Invert: the relative variance stays.

    Raises:
        ZeroDivisionError: the value is 0.
    """
    return Estimate(1.0 / estimate.value, estimate.relative_variance, estimate.freedom)


def positive_interval(estimate: Estimate | None, level: float = 0.95) -> Interval | None:
    """Interval of a positive figure on the scale of its logarithm; None where the estimate knows no spread."""
    if estimate is None or not estimate.value > 0 or not estimate.freedom >= 1 or estimate.relative_variance < 0:
        return None
    if math.isinf(estimate.freedom) and estimate.relative_variance == 0:
        return None
    factor = math.exp(min(t_quantile(level, estimate.freedom) * math.sqrt(estimate.relative_variance), 700.0))
    return Interval(estimate.value / factor, estimate.value * factor)


def two_way_variance(y: ArrayLike, x: ArrayLike, unit: ArrayLike, step: ArrayLike) -> float | None:
    """Variance of sum(y) / sum(x) over rows that share a unit (request) or a step: V_unit + V_step - V_row.

    Cameron, Gelbach and Miller 2011, Robust inference with multiway clustering, equation 2.7. Never below V_unit,
    which the sum can fall under by chance. All four arrays have one element a row. None below two units.
    """
    a, b = np.asarray(y, dtype=np.float64), np.asarray(x, dtype=np.float64)
    if b.sum() == 0:
        return None
    z = (a - a.sum() / b.sum() * b) / b.sum()
    units = np.unique(np.asarray(unit), return_inverse=True)[1]
    steps = np.unique(np.asarray(step), return_inverse=True)[1]
    m = int(units.max(initial=-1)) + 1
    if m < 2:
        return None
    sizes = np.bincount(units, b)
    effective = max(float(sizes.sum() ** 2 / np.sum(sizes**2)), 1.0 + 1e-6)
    by_unit = effective / (effective - 1.0) * float(np.sum(np.bincount(units, z) ** 2))
    by_step = float(np.sum(np.bincount(steps, z) ** 2))
    return max(by_unit + by_step - float(np.sum(z**2)), by_unit)


def t_quantile(level: float, freedom: float) -> float:
    """Return the two-sided quantile of Student's t; of the normal law for infinite freedom."""
    from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped,unused-ignore]  # 40 ms: only when asked

    tail = 0.5 + level / 2.0
    return float(ndtri(tail) if math.isinf(freedom) else stdtrit(freedom, tail))


def _freedom(*parts: Estimate) -> float:
    total = sum(p.relative_variance for p in parts)
    if total == 0:
        return min(p.freedom for p in parts)
    weights = sum(p.relative_variance**2 / p.freedom for p in parts)
    return math.inf if weights == 0 else total**2 / weights
