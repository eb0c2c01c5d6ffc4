"""How many drafts survive: the two acceptance figures that must not be mixed, hazards, and the geometric law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DraftAcceptRatio:
    """Accepted over drafted tokens (alpha), what engines print. Falls with K, so no geometric formula may take it.

    Raises:
        ValueError: outside 0..1.
    """

    value: float

    def __post_init__(self) -> None:
        _check_share("draft_accept_ratio", self.value)


@dataclass(frozen=True, slots=True)
class TokenAcceptProb:
    """Probability that one draft token is accepted given that all before it were (p): what Leviathan's formulas take.

    Raises:
        ValueError: outside 0..1.
    """

    value: float

    def __post_init__(self) -> None:
        _check_share("token_accept_prob", self.value)


@dataclass(frozen=True, slots=True)
class Hazards:
    """Acceptance position by position; arrays of length max(drafted), the first element is position 1."""

    at_risk: Floats
    reached: Floats
    hazard: Floats
    survival: Floats


def draft_accept_ratio(accepted: float, drafted: float) -> DraftAcceptRatio | None:
    """Pool rounds: sum of accepted over sum of drafted tokens (MODEL.md 2); None when nothing was drafted."""
    return DraftAcceptRatio(accepted / drafted) if drafted > 0 else None


def token_accept_prob(accepted: float, rejections: float) -> TokenAcceptProb | None:
    """Estimate p by maximum likelihood: accepted / (accepted + rounds that ended in a rejection).

    The censored geometric law: a round with all drafts accepted tells of no failure (MODEL.md 2). None without data.
    """
    trials = accepted + rejections
    return TokenAcceptProb(accepted / trials) if trials > 0 else None


def hazards(accepted: ArrayLike, drafted: ArrayLike, weight: ArrayLike = 1.0) -> Hazards:
    """Kaplan-Meier over positions: right where draft lengths differ (MODEL.md 2).

    Args:
        accepted: accepted drafts of each round.
        drafted: draft length of each round, the same shape; rounds without a draft are ignored.
        weight: rounds each row stands for.

    Returns:
        hazard[j-1] = rounds with a >= j / rounds with a >= j-1 and d >= j; NaN where nobody was at risk.

    Raises:
        ValueError: some accepted > drafted or < 0.
    """
    a = np.asarray(accepted, dtype=np.int64)
    d = np.asarray(drafted, dtype=np.int64)
    w = np.broadcast_to(np.asarray(weight, dtype=np.float64), a.shape)
    if np.any(a > d) or np.any(a < 0):
        raise ValueError("0 <= accepted <= drafted does not hold")
    longest = int(d.max(initial=0))
    positions = np.arange(1, longest + 1)
    at_risk = np.array([w[(a >= j - 1) & (d >= j)].sum() for j in positions], dtype=np.float64)
    reached = np.array([w[a >= j].sum() for j in positions], dtype=np.float64)
    hazard = np.divide(reached, at_risk, out=np.full(longest, np.nan), where=at_risk > 0)
    return Hazards(at_risk, reached, hazard, np.cumprod(hazard))


def histogram_from_per_position(rounds: float, per_position: ArrayLike) -> Floats:
    """Rounds by accepted length from counts per position, exact where every round drafted len(per_position) tokens.

    #{a = j} = n (survival[j] - survival[j+1]) with survival[0] = 1 and survival[d+1] = 0 (MODEL.md 6).
    """
    reached = np.concatenate(([rounds], np.asarray(per_position, dtype=np.float64), [0.0]))
    return reached[:-1] - reached[1:]


def expected_tokens(prob: TokenAcceptProb, length: ArrayLike) -> Floats:
    """Tokens of a round under i.i.d. acceptance, the target's own included: E(p, k) = (1 - p^(k+1)) / (1 - p).

    Leviathan et al. 2023 (arXiv 2211.17192), equation 1. p = 1 gives k + 1.

    Raises:
        TypeError: fed with anything but a TokenAcceptProb.
    """
    if not isinstance(prob, TokenAcceptProb):
        raise TypeError(f"the geometric law takes a TokenAcceptProb, not {type(prob).__name__}")
    k = np.asarray(length, dtype=np.float64)
    p = prob.value
    if p >= 1.0:
        return k + 1.0
    return np.asarray((1.0 - np.power(p, k + 1.0)) / (1.0 - p), dtype=np.float64)


def prob_from_mean_accepted(mean_accepted: float, length: int) -> TokenAcceptProb:
    """Invert E(p, k) - 1 = mean accepted drafts per round, by bisection.

    Raises:
        ValueError: no p gives that mean: outside 0..length.
    """
    if not 0.0 <= mean_accepted <= length:
        raise ValueError(f"mean accepted {mean_accepted} is outside 0..{length}")
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if float(expected_tokens(TokenAcceptProb(middle), length)) - 1.0 < mean_accepted:
            low = middle
        else:
            high = middle
    return TokenAcceptProb((low + high) / 2.0)


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in 0..1, not {value}")
