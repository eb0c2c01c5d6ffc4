"""Speedups, each with its name and its convention (MODEL.md 4). rho is one draft token over one plain target step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb, expected_tokens

Floats = NDArray[np.float64]


def relative_token_time_article(alpha: DraftAcceptRatio, rho: ArrayLike, length: ArrayLike) -> Floats:
    """Time of a token over that of plain decoding, as the source article has it: (1 + rho K) / (alpha K).

    Drops the target's own token, so K = 1 can never win; K = 0 is plain decoding and gives 1; alpha = 0 gives inf.
    """
    ratio = _ratio(alpha)
    r, k = np.broadcast_arrays(np.asarray(rho, dtype=np.float64), np.asarray(length, dtype=np.float64))
    given = np.asarray(ratio * k, dtype=np.float64)
    time = np.divide(1.0 + r * k, given, out=np.full(given.shape, np.inf), where=given > 0)
    return np.where(k == 0, 1.0, time)


def speedup_article(alpha: DraftAcceptRatio, rho: ArrayLike, length: ArrayLike) -> Floats:
    """Compute alpha K / (1 + rho K), the inverse of `relative_token_time_article`: conservative (MODEL.md 4)."""
    return np.asarray(1.0 / relative_token_time_article(alpha, rho, length), dtype=np.float64)


def speedup_with_bonus(alpha: DraftAcceptRatio, rho: ArrayLike, length: ArrayLike) -> Floats:
    """Compute (1 + alpha K) / (1 + rho K): exact for alpha measured at this same K when verify costs a plain step."""
    r, k = np.asarray(rho, dtype=np.float64), np.asarray(length, dtype=np.float64)
    return np.asarray((1.0 + _ratio(alpha) * k) / (1.0 + r * k), dtype=np.float64)


def speedup_iid(prob: TokenAcceptProb, rho: ArrayLike, length: ArrayLike) -> Floats:
    """Compute E(p, K) / (1 + rho K) under i.i.d. acceptance.

    Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8.
    """
    r, k = np.asarray(rho, dtype=np.float64), np.asarray(length, dtype=np.float64)
    return np.asarray(expected_tokens(prob, k) / (1.0 + r * k), dtype=np.float64)


def operations_factor(prob: TokenAcceptProb, draft_share: ArrayLike, length: ArrayLike) -> Floats:
    """Arithmetic per token over plain decoding: (K c_hat + K + 1) / E(p, K); Leviathan et al. 2023, Theorem 3.11.

    Args:
        prob: token acceptance probability.
        draft_share: operations of one draft token over one target token (c_hat).
        length: draft length K.
    """
    c, k = np.asarray(draft_share, dtype=np.float64), np.asarray(length, dtype=np.float64)
    return np.asarray((k * c + k + 1.0) / expected_tokens(prob, k), dtype=np.float64)


def best_length(prob: TokenAcceptProb, rho: float, longest: int = 64) -> int:
    """Draft length in 0..longest with the greatest `speedup_iid`; the shortest of equals, 0 where nothing pays."""
    return int(np.argmax(speedup_iid(prob, rho, np.arange(longest + 1))))


def break_even_ratio(round_cost: float, mean_drafted: float) -> float | None:
    """Acceptance ratio at which a round pays for itself: (R - 1) / mean drafted (MODEL.md 9).

    None where nothing is drafted; above 1 no drafter can make it pay.
    """
    return (round_cost - 1.0) / mean_drafted if mean_drafted > 0 else None


def break_even_prob(rho: float, length: int) -> TokenAcceptProb | None:
    """Token acceptance probability at which `speedup_iid` is 1; None where even p = 1 does not pay."""
    if length < 1 or float(speedup_iid(TokenAcceptProb(1.0), rho, length)) < 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if float(speedup_iid(TokenAcceptProb(middle), rho, length)) < 1.0:
            low = middle
        else:
            high = middle
    return TokenAcceptProb(high)


def _ratio(alpha: DraftAcceptRatio) -> float:
    if not isinstance(alpha, DraftAcceptRatio):
        raise TypeError(f"this formula takes a DraftAcceptRatio, not {type(alpha).__name__}")
    return alpha.value
