"""Whether the total of a comparison moved because its classes did, or because the mix of traffic moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.answers import Key
from tracelens.analysis.results import label
from tracelens.analysis.session import Session
from tracelens.model.changes import mix_effect, mix_parts
from tracelens.model.intervals import RatioSums

# Strata that leave out more than this share of a total do not explain it.
_OPEN = 1e-6

Part = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mix:
    """The change of one figure in total: `total` = `mix` + `within`; None, and why, where it cannot be split.

    `weights` is what the total weighs its classes by. `driver` is `mix`, `strata` or `both` (the smaller part is at
    least half of the larger). `is_reversed` says that the classes moved one way and the total the other (Simpson).
    `shifted` is the class whose share did most of the mix, from `share_a` to `share_b` of the weights. Of the `classes`
    on both sides `along` moved as `within` did, `along_significant` of these by more than chance. `paradox` is a
    reversal of which something, the total or a class, is more than chance.
    """

    weights: str
    total: float | None = None
    mix: float | None = None
    within: float | None = None
    driver: str | None = None
    is_reversed: bool = False
    because: str | None = None
    shifted: str | None = None
    share_a: float | None = None
    share_b: float | None = None
    classes: int | None = None
    along: int | None = None
    along_significant: int | None = None
    paradox: bool = False


def mixes(a: Session, b: Session, changes: Mapping[str, float | None]) -> dict[str, Mix]:
    """Split the change of every figure whose total is a weighted mean of its classes.

    Args:
        a: the first side.
        b: the second side.
        changes: the change of every figure in total; None where the sides cannot be compared.
    """
    keys: list[Key] = list(dict.fromkeys([*a.answers.strata(), *b.answers.strata()])) if a.question.by else []
    return {name: _mix(name, weights, (a, b), keys, changes.get(name)) for name, weights in _WEIGHTS.items()}


def _mix(name: str, weights: str, sides: Sequence[Session], keys: Sequence[Key], change: float | None) -> Mix:
    if len(keys) < 2:
        return Mix(weights, because="there is one class of traffic: group by more with --by")
    if change is None:
        return Mix(weights, because="the totals cannot be compared")
    shares, values = [], []
    for side in sides:
        parts = [_PARTS[name](side, key) for key in keys]
        total = side.total.figures[name]
        pooled = sum(share * value for share, value in parts if share)
        if not math.isclose(pooled, total, rel_tol=_OPEN):
            return Mix(weights, because="some of it belongs to no class, so the classes do not add up to the total")
        shares.append([share for share, _ in parts])
        values.append([value for _, value in parts])
    if not any(one and other for one, other in zip(*shares, strict=True)):
        return Mix(weights, because="no class of traffic is on both sides")
    sums = (shares[0], values[0], shares[1], values[1])
    effect = mix_effect(*sums)
    small, large = sorted((abs(effect.mix), abs(effect.within)))
    larger = "mix" if abs(effect.mix) > abs(effect.within) else "strata"
    driver = None if large == 0 else "both" if small >= large / 2 else larger
    is_reversed = effect.total * effect.within < 0
    found = Mix(weights, effect.total, effect.mix, effect.within, driver, is_reversed)
    place = _shifted(shares[0], shares[1], mix_parts(*sums), effect.mix)
    if place is None:
        return found
    shifted = " / ".join(map(label, keys[place] or ()))
    return replace(found, shifted=shifted, share_a=shares[0][place], share_b=shares[1][place])


def _shifted(a: Sequence[float], b: Sequence[float], parts: NDArray[np.float64], mix: float) -> int | None:
    """Place of the class that did most of the mix; of one that grew rather than of one that shrank."""
    along = parts * math.copysign(1.0, mix)
    grown = np.where(np.asarray(b) > np.asarray(a), along, 0.0)
    places = [int(some.argmax()) for some in (grown, along) if mix and some.max() > 0]
    return places[0] if places else None


def _of_sums(query: str, name: str) -> Callable[[Session, Key], Part]:
    """Share of the denominator and ratio of a class, from the sums behind the interval."""

    def part(side: Session, key: Key) -> Part:
        own, whole = (RatioSums.of(side.answers.one(query, k).get(name)) for k in (key, None))
        if own is None or whole is None or not own.x:
            return 0.0, math.nan
        return own.x / whole.x, own.y / own.x

    return part


def _token_time(side: Session, key: Key) -> Part:
    """Weight of a class in C = T / (b tau): its share of what the committed tokens of the timed rounds cost plain.

    C of all = sum of t / (b tau N) and t of a class = C b tau N of that class, with N its timed rounds. The weights
    add up to 1 where all classes have one baseline, and to almost 1 where they do not.
    """
    own, whole = side.priced(key), side.priced(None)
    rounds, all_rounds = own.rho.get("step_rounds"), whole.rho.get("step_rounds")
    tau, all_tau = own.alpha.get("tau_committed"), whole.alpha.get("tau_committed")
    step, plain, all_plain = own.rho.get("step_ms"), own.baseline, whole.baseline
    if not (rounds and tau and step and plain and all_rounds and all_tau and all_plain):
        return 0.0, math.nan
    return plain * tau * rounds / (all_plain * all_tau * all_rounds), step / plain / tau


_WEIGHTS = {
    "draft_accept_ratio": "drafted tokens",
    "tau_committed": "rounds",
    "tpot_ms": "output tokens",
    "relative_token_time": "plain time of the committed tokens",
}
_PARTS: dict[str, Callable[[Session, Key], Part]] = {
    "draft_accept_ratio": _of_sums("alpha", "draft_accept_ratio_sums"),
    "tau_committed": _of_sums("alpha", "tau_committed_sums"),
    "tpot_ms": _of_sums("speedup", "tpot_sums"),
    "relative_token_time": _token_time,
}
