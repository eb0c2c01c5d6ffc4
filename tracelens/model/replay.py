"""Another draft length from one trace: the accepted prefixes of every round, walked again with another K (MODEL.md 7).

A round with a draft says a ones, then a zero where a < d, or an unknown flag where a = d: nobody saw what the next
draft would have met. Behind the last round of a request there is no flag: nobody drafts for a request's last token. A
plain round is a flag of its own that ends what is before it. Walking with K counts ones up to K and moves on by one
more flag, which lies under the target's own token. Once the unknown flags are settled, the walk depends on the lengths
of the runs of ones alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ONE, _ZERO, _PLAIN = 1, 0, -1


@dataclass(frozen=True, slots=True)
class Runs:
    """Maximal runs of ones, one element each; a run is ended by a zero, or by a plain round or the request's end."""

    lengths: Ints
    ended_by_zero: Bools


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the walk gives for every run: rounds with a draft, and accepted drafts (target's own token not counted)."""

    rounds: Ints
    accepted: Ints


def run_lengths(request: ArrayLike, drafted: ArrayLike, accepted: ArrayLike, unknown_is_one: ArrayLike) -> Runs:
    """Turn rounds into runs of ones (MODEL.md 7).

    Args:
        request: a number of the request of each round; rows of one request are adjacent and in round order.
        drafted: draft length d of each round, 0 for a plain round, the same shape.
        accepted: accepted prefix a of each round.
        unknown_is_one: what becomes of the flag behind a fully accepted draft; ignored in other rounds.

    Raises:
        ValueError: 0 <= accepted <= drafted does not hold.
    """
    of = np.asarray(request, dtype=np.int64)
    d, a = np.asarray(drafted, dtype=np.int64), np.asarray(accepted, dtype=np.int64)
    if np.any(a > d) or np.any(a < 0):
        raise ValueError("0 <= accepted <= drafted does not hold")
    if of.size == 0:
        return Runs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))
    plain = d == 0
    last = np.ones(of.size, dtype=np.bool_)
    last[:-1] = of[1:] != of[:-1]
    full = ~plain & (a == d)
    joined = full & ~last & np.asarray(unknown_is_one, dtype=np.bool_)
    zero = ~plain & ~joined & ~(full & last)
    first = np.ones(of.size, dtype=np.bool_)
    first[1:] = (of[1:] != of[:-1]) | (zero | plain)[:-1]
    group = np.cumsum(first) - 1
    ones = np.bincount(group, a + joined).astype(np.int64)
    return Runs(ones, np.bincount(group, zero) > 0)


def replayed(runs: Runs, k: int) -> Replayed:
    """Walk runs of ones with draft length k, in closed form.

    Every k + 1 ones make one round of k accepted drafts (the last one lies under the target's own token). What is left
    makes one more round, which a zero always ends, even with nothing left; without a zero only what is left counts.

    Raises:
        ValueError: k < 1.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}")
    full, left = np.divmod(runs.lengths, k + 1)
    return Replayed(full + (runs.ended_by_zero | (left > 0)), runs.lengths - full)


def passes(tokens: ArrayLike, k: int) -> Ints:
    """Rounds of draft length k in which the rounds of a run would have committed its tokens: ceil(tokens / (k + 1)).

    Each round but the last one of a run commits k + 1. Where nothing was cut these are the rounds of `replayed`, but
    for the last token of a request, which takes a pass of its own where it comes after a full round.

    Raises:
        ValueError: k < 1.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}")
    return np.asarray(-(-np.asarray(tokens, dtype=np.int64) // (k + 1)), dtype=np.int64)


def walk(rounds: Iterable[tuple[int, int, bool]], k: int) -> tuple[int, int]:
    """Walk the rounds of one request flag by flag: the definition that `replayed` is held to by tests.

    Args:
        rounds: (drafted, accepted, what an unknown flag is) in round order.
        k: the draft length to walk with, 1 or more.

    Returns:
        rounds with a draft and accepted drafts.
    """
    of_request = list(rounds)
    flags: list[int] = []
    for number, (drafted, accepted, unknown_is_one) in enumerate(of_request, start=1):
        if drafted == 0:
            flags.append(_PLAIN)
        else:
            flags += [_ONE] * accepted
            if accepted < drafted:
                flags.append(_ZERO)
            elif number < len(of_request):
                flags.append(_ONE if unknown_is_one else _ZERO)
    place, count, total = 0, 0, 0
    while place < len(flags):
        if flags[place] == _PLAIN:
            place += 1
            continue
        found = 0
        while found < k and place + found < len(flags) and flags[place + found] == _ONE:
            found += 1
        place += found
        if place < len(flags) and flags[place] != _PLAIN:  # the flag under the target's own token
            place += 1
        count, total = count + 1, total + found
    return count, total
