"""Whole numbers behind printed means and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def rounds_of(accepted: int, drafted: int, mean: float | None, rates: Sequence[float]) -> int | None:
    """Rounds with a draft behind `mean len` = 1 + accepted / rounds (2 digits), or None where several fit.

    Rates per position (3 digits, over the same rounds) settle more. Nothing accepted fits any number of rounds.
    """
    if mean is None or not 0 < accepted <= drafted or not mean > 1.005:
        return None
    low = max(1, math.ceil(accepted / (mean - 1 + 0.0051)))
    high = min(drafted, math.floor(accepted / (mean - 1 - 0.0051)) if mean > 1.0051 else drafted)
    if high - low > 10_000:
        return None
    fitting = [n for n in range(low, high + 1) if f"{1 + accepted / n:.2f}" == f"{mean:.2f}"]
    if len(fitting) > 1 and rates:
        fitting = [n for n in fitting if positions(accepted, n, rates) is not None]
    return fitting[0] if len(fitting) == 1 else None


def positions(accepted: int, rounds: int, rates: Sequence[float]) -> list[int] | None:
    """Rounds that accepted position i, from rates of 3 digits: exact below 1000 rounds, else None.

    None too where no whole numbers print as these rates or where they do not add up to `accepted`.
    """
    if not 0 < rounds < 1000 or not all(0 <= rate <= 1 for rate in rates):
        return None
    counts = [round(rate * rounds) for rate in rates]
    if any(abs(c / rounds - rate) > 0.00051 for c, rate in zip(counts, rates, strict=True)) or sum(counts) != accepted:
        return None
    if any(b > a for a, b in pairwise([rounds, *counts])):
        return None
    return counts


def histogram(accepted: int, rounds: int | None, rates: Sequence[float]) -> list[int] | None:
    """Rounds by accepted length, from rates per position."""
    counts = positions(accepted, rounds, rates) if rounds and rates else None
    if counts is None or rounds is None:
        return None
    whole = [rounds, *counts, 0]
    return [a - b for a, b in pairwise(whole)]
