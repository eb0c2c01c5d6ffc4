"""The ends of the intervals of a sweep's entries: both are known, or none (MODEL.md 9)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tracelens.analysis.sweep_costs import LOWER_BOUND
from tracelens.analysis.sweep_trace import FEWEST_UNITS
from tracelens.model.intervals import t_quantile

Ends = tuple[float | None, float | None]
NO_ENDS: Ends = (None, None)


def known_ends(ends: Ends, figures: Mapping[str, Any]) -> Ends:
    """Both ends of an interval above zero, or none; none below two independent units in effect."""
    low, high = ends
    units = figures.get("n_eff")
    if low is None or high is None or low <= 0 or (units is not None and units < FEWEST_UNITS):
        return NO_ENDS
    return low, high


def possible(k: int, figures: Mapping[str, Any], name: str) -> Ends:
    """The interval of a mean number of tokens a round, cut at what can be: 1 to 1 + K, and the mean itself.

    A mean below 1 (rounds whose tokens were all cut) has 0 as its least.
    """
    value, low, high = (figures.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or low is None or high is None:
        return NO_ENDS
    return min(value, max(low, 1.0 if value >= 1.0 else 0.0)), max(value, min(high, 1.0 + k))


def cost_ends(figures: Mapping[str, Any], unit: str) -> Ends:
    """An interval of the cost of a round over its baseline; of a lower bound that of verify, its largest part."""
    names = ("verify_inflation", "rho_round") if unit == LOWER_BOUND else ("round_cost",)
    ends = ((figures.get(f"{name}_low"), figures.get(f"{name}_high")) for name in names)
    return next((e for e in ends if e[0] is not None and e[1] is not None and e[0] > 0), NO_ENDS)


def spread_ends(time: float, k: int, figures: Mapping[str, Any], cost: Ends) -> Ends:
    """Both ends of a token time from the spread of tau_committed and of the cost; variances of logarithms add.

    None where one has none or tau_committed may be zero.
    """
    (low, high), (least, most) = possible(k, figures, "tau_committed"), cost
    value = figures.get("tau_committed")
    if not value or not low or not high or not least or not most:
        return NO_ENDS
    reach = math.log(most / least) / 2.0
    shorter, longer = math.hypot(math.log(high / value), reach), math.hypot(math.log(value / low), reach)
    return time * math.exp(-shorter), time * math.exp(longer)


def log_deviation(low: float, high: float, level: float) -> float:
    """Standard deviation of the logarithm of what has this interval."""
    return math.log(high / low) / 2.0 / t_quantile(level, math.inf)
