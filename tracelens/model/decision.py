"""GO, NO_GO or INCONCLUSIVE from an interval of the relative token time (MODEL.md 9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracelens.wording import noun

GO, NO_GO, INCONCLUSIVE = "GO", "NO_GO", "INCONCLUSIVE"

#: Below these an interval tells too little to decide on, whatever it says.
LEAST_REQUESTS = 30
LEAST_EFFECTIVE = 20.0


@dataclass(frozen=True, slots=True)
class Decision:
    """One of GO, NO_GO, INCONCLUSIVE, and why."""

    name: str
    reasons: tuple[str, ...]


def by_interval(
    value: float, low: float | None, high: float | None, *, margin: float = 0.02, noise: float | None = None
) -> Decision:
    """GO where C is surely below 1 - margin, NO_GO where it is surely above 1 + margin.

    Args:
        value: relative token time C.
        low: lower bound of its interval; None where it has none.
        high: upper bound.
        margin: how far from 1 the whole interval must lie.
        noise: what runs without speculation differ by among themselves (slowest over quickest - 1): against another
            of them C could lie on the other side of 1 as long as it is within that factor of it.
    """
    if low is None or high is None:
        return Decision(INCONCLUSIVE, (f"relative token time {value:.3f} has no interval",))
    told = f"relative token time {value:.3f} [{low:.3f}, {high:.3f}]"
    if noise is not None and value > 0 and max(value, 1.0 / value) <= 1.0 + noise:
        text = f"{told} is as near to 1 as runs without speculation are to each other: they differ by {noise:.1%}"
        return Decision(INCONCLUSIVE, (text,))
    if high < 1.0 - margin:
        return Decision(GO, (f"{told} lies below {1.0 - margin:g}",))
    if low > 1.0 + margin:
        return Decision(NO_GO, (f"{told} lies above {1.0 + margin:g}",))
    return Decision(INCONCLUSIVE, (f"{told} is not clear of {1.0 - margin:g} to {1.0 + margin:g}",))


def by_lower_bound(value: float, *, margin: float = 0.02) -> Decision:
    """What a C that is known from below alone can say: NO_GO, or nothing."""
    if value > 1.0 + margin:
        return Decision(NO_GO, (f"relative token time is at least {value:.3f}, above {1.0 + margin:g}",))
    return Decision(INCONCLUSIVE, (f"relative token time is known from below alone (at least {value:.3f})",))


def by_sample(requests: float | None, effective: float | None, *, least: int = LEAST_REQUESTS) -> Decision | None:
    """INCONCLUSIVE where requests are too few, or a few of them own the rounds; None where they suffice."""
    if requests is None:
        return Decision(INCONCLUSIVE, ("requests are not logged one by one, so nobody knows how many these are",))
    if requests < least:
        return Decision(INCONCLUSIVE, (f"{requests:g} {noun(requests, 'request')}, fewer than {least}",))
    if effective is not None and effective < LEAST_EFFECTIVE:
        text = f"{requests:g} requests, but a few long ones own most rounds: they are worth {effective:.1f} of equal "
        text += f"length, fewer than {LEAST_EFFECTIVE:g}"
        return Decision(INCONCLUSIVE, (text,))
    return None


def by_near_k(share: float | None, low: float | None, high: float | None, *, most: float) -> Decision:
    """Hold the share of near-K rounds against the most that is allowed."""
    if share is None:
        return Decision(INCONCLUSIVE, ("the share of near-K rounds cannot be had, so it cannot be checked",))
    told = f"near-K rounds {share:.1%}" + ("" if low is None or high is None else f" [{low:.1%}, {high:.1%}]")
    if (share if low is None else low) > most:
        return Decision(NO_GO, (f"{told} exceed {most:.1%}",))
    if (share if high is None else high) > most:
        return Decision(INCONCLUSIVE, (f"{told} are not clear of {most:.1%}",))
    return Decision(GO, (f"{told} are within {most:.1%}",))


def worst(decisions: Iterable[Decision]) -> Decision:
    """All of them together: NO_GO before INCONCLUSIVE before GO; the reasons of those that decide come first.

    Nothing to decide on is INCONCLUSIVE.
    """
    every = list(decisions)
    for name in (NO_GO, INCONCLUSIVE, GO):
        deciding = [d for d in every if d.name == name]
        if deciding:
            rest = [d for d in every if d.name != name]
            return Decision(name, tuple(reason for d in (*deciding, *rest) for reason in d.reasons))
    return Decision(INCONCLUSIVE, ("nothing to decide on",))
