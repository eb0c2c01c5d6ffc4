"""Whole numbers behind vLLM's rounded interval figures.

A `SpecDecoding metrics` line prints Accepted and Drafted as integers, the mean acceptance length to two decimals and
one rate a position to three, but not the number of rounds they were divided by. Rounds and per-position counts are
recovered as the only integers that fit (formats: vLLM V1 lines, 0.8.5 to 0.33).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Candidates tried on either side of Drafted/K; a wider range has several solutions anyway and is `estimated`.
_REACH = 48
_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Recovered:
    """Rounds and per-position counts of N lines.

    Attributes:
        rounds: shape (N,); -1 where nothing fits.
        per_pos: shape (N, K); counts of rounds whose first i+1 drafts were accepted.
        exact: shape (N,); True where the printed figures allow this one solution only.
    """

    rounds: Ints
    per_pos: Ints
    exact: Bools


def recover(accepted: Ints, drafted: Ints, mean_drafts: Floats, rates: Floats, digits: int = 3) -> Recovered:
    """Find rounds n and counts c with c_i/n = rate_i, sum(c) = accepted, accepted/n = mean_drafts, n*K >= drafted.

    Args:
        accepted: shape (N,), tokens.
        drafted: shape (N,), tokens.
        mean_drafts: shape (N,), accepted drafts a round as printed (two decimals), without the target's own token.
        rates: shape (N, K), rates a position as printed (`digits` decimals).
        digits: decimals of `rates`.
    """
    lines, k = rates.shape
    half = 0.5 * 10.0**-digits + _EPS
    lowest = -(-drafted // k)  # every round drafts at most K tokens
    low, high = _round_range(accepted, drafted, mean_drafts, lowest)
    # Chains of fixed length draft exactly K a round; otherwise start from what the mean says.
    guess = np.rint(np.divide(accepted, mean_drafts, out=lowest.astype(float), where=mean_drafts > 0)).astype(np.int64)
    full = (lowest * k == drafted) & (lowest >= low) & (lowest <= high)
    start = np.where(full, lowest, np.clip(guess, low, high))
    best = np.full(lines, -1, dtype=np.int64)
    solutions = np.zeros(lines, dtype=np.int64)
    by_position = np.ascontiguousarray(rates.T)
    possible = low <= high
    down, up = (int(d[possible].max(initial=0)) for d in (start - low, high - start))
    for step in sorted(range(-min(_REACH, down), min(_REACH, up) + 1), key=abs):
        n = start + step
        # Only lines whose range still holds this candidate; ranges are a few rounds wide for most.
        at = np.flatnonzero((n >= low) & (n <= high) & (n > 0))
        if not at.size:
            continue
        fits = at[_feasible(n[at], accepted[at], by_position[:, at], half)]
        best[fits] = np.where(best[fits] < 0, n[fits], best[fits])
        solutions[fits] += 1
    exact = (solutions == 1) & (high - low <= _REACH)
    per_pos, unique = _counts(np.maximum(best, 0), accepted, by_position, half)
    return Recovered(best, per_pos, exact & unique & (best > 0))


def _round_range(accepted: Ints, drafted: Ints, mean: Floats, lowest: Ints) -> tuple[Ints, Ints]:
    """Rounds that the mean acceptance length (two decimals) and the drafted tokens allow."""
    half = 0.005 + _EPS
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.ceil(accepted / (mean + half) - _EPS)
        high = np.where(mean - half > 0, np.floor(accepted / np.maximum(mean - half, _EPS) + _EPS), np.inf)
    return (
        np.maximum(low.astype(np.int64), lowest),
        np.minimum(high, drafted.astype(float)).astype(np.int64),  # a round has at least one drafted token
    )


def _limits(n: Ints, rates: Floats, half: float) -> tuple[list[Floats], list[Floats]]:
    """Least and most counts by position for n rounds; `rates` has the shape (K, N): NumPy is quick at long vectors."""
    # Counts fall from position to position: a later one can't be higher than an earlier one may be.
    high = [np.minimum(np.floor(n * (rate + half) + _EPS), n) for rate in rates]
    for i in range(1, len(high)):
        np.minimum(high[i], high[i - 1], out=high[i])
    low = [np.maximum(np.ceil(n * (rate - half) - _EPS), 0) for rate in rates]
    for i in range(len(low) - 2, -1, -1):
        np.maximum(low[i], low[i + 1], out=low[i])
    return low, high


def _feasible(n: Ints, accepted: Ints, rates: Floats, half: float) -> Bools:
    low, high = _limits(n, rates, half)
    ok: Bools = (sum(low) <= accepted) & (accepted <= sum(high))
    for least, most in zip(low, high, strict=True):
        ok &= least <= most
    return ok


def _counts(n: Ints, accepted: Ints, rates: Floats, half: float) -> tuple[Ints, Bools]:
    """Counts nearest to n*rate that fall from left to right and add up to `accepted`; and whether no other do."""
    low, high = _limits(n, rates, half)
    counts = [np.clip(np.rint(n * rate), *limits) for rate, *limits in zip(rates, low, high, strict=True)]
    missing = accepted - sum(counts)
    for most, count in zip(high, counts, strict=True):  # lift from the left: stays non-increasing
        room = np.clip(missing, 0, most - count)
        np.add(count, room, out=count)
        missing -= room
    for least, count in zip(reversed(low), reversed(counts), strict=True):  # lower from the right
        room = np.clip(-missing, 0, count - least)
        np.subtract(count, room, out=count)
        missing += room
    free = sum(most > least for least, most in zip(low, high, strict=True))
    unique = (accepted == sum(low)) | (accepted == sum(high)) | (free <= 1)
    return np.stack(counts, axis=1).astype(np.int64), unique
