"""Whether speculation pays: what the interval of the relative token time says, by steps and by TPOT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens.reporters import format as fmt

if TYPE_CHECKING:
    from tracelens.analysis.gate import GateStratum

Figures = Mapping[str, Any]

PAYS, LOSES, OPEN = "pays", "loses", "open"
#: What the gate decides where it says the same.
_DECISIONS = {PAYS: "GO", LOSES: "NO_GO", OPEN: "INCONCLUSIVE"}


@dataclass(frozen=True, slots=True)
class TokenTime:
    """Relative token time on one basis: `step`, `tpot`, or `lower_bound` where no whole step is logged."""

    value: float
    low: float | None
    high: float | None
    basis: str
    verdict: str


def token_times(figures: Figures) -> dict[str, TokenTime]:
    """Every relative token time that is known, by basis; steps first. That of TPOT is one over its speedup."""
    noise = _number(figures.get("control_spread"))
    found = []
    value = _number(figures.get("relative_token_time"))
    if value is not None:
        low, high = (_number(figures.get(f"relative_token_time_{end}")) for end in ("low", "high"))
        found.append((value, low, high, str(figures.get("relative_token_time_basis") or "step")))
    speedup = _number(figures.get("speedup_tpot"))
    if speedup is not None and speedup > 0:
        slow, fast = (_number(figures.get(f"speedup_tpot_{end}")) for end in ("low", "high"))
        found.append((1 / speedup, _over(fast), _over(slow), "tpot"))
    return {basis: TokenTime(v, low, high, basis, _say(v, low, high, basis, noise)) for v, low, high, basis in found}


def verdict(figures: Figures) -> str:
    """What the interval of the relative token time, or without it of the observed speedup, says.

    `pays`, `loses`, or `open` where it holds 1.0, is missing, is of a lower bound, or is as near to 1.0 as runs without
    speculation are to each other. A dash where neither is known.
    """
    times = token_times(figures)
    first = next((t for t in times.values() if _number(figures.get("relative_token_time")) is not None), None)
    if first is not None:
        return first.verdict
    observed = _number(figures.get("speedup_observed"))
    if observed is None or observed <= 0:
        return fmt.DASH if observed is None else OPEN
    slow, fast = (_number(figures.get(f"speedup_observed_{end}")) for end in ("low", "high"))
    return _say(1 / observed, _over(fast), _over(slow), "tpot", _number(figures.get("control_spread")))


def disagreement(figures: Figures) -> dict[str, str]:
    """The verdicts by steps and by TPOT, where both are known and differ; empty elsewhere.

    A TPOT without an interval says nothing.
    """
    times = token_times(figures)
    by_tpot = times.get("tpot")
    by_steps = times.get("step") or times.get("lower_bound")
    if by_tpot is None or by_steps is None or by_tpot.low is None or by_tpot.verdict == by_steps.verdict:
        return {}
    return {"step": by_steps.verdict, "tpot": by_tpot.verdict}


def gate_apart(found: str, gate: GateStratum, margin: float) -> tuple[str, str]:
    """What the gate decided and why, where that is not what `found` says; else two empty texts."""
    if gate.relative_token_time is None or _DECISIONS.get(found) == gate.decision:
        return "", ""
    low, high = gate.relative_token_time_low, gate.relative_token_time_high
    clear = (
        gate.basis == "lower_bound"
        or (found == PAYS and high is not None and high < 1 - margin)
        or (found == LOSES and low is not None and low > 1 + margin)
    )
    if clear or found == OPEN:
        return gate.decision, gate.reasons[0] if gate.reasons else ""
    few = [reason for reason in gate.reasons if not reason.startswith("relative token time")]
    return gate.decision, few[0] if few else f"within the {100 * margin:.3g} % margin"


def _say(value: float, low: float | None, high: float | None, basis: str, noise: float | None) -> str:
    if basis == "lower_bound":
        return LOSES if value > 1 else OPEN
    if noise is not None and value > 0 and max(value, 1 / value) <= 1 + noise:
        return OPEN
    if high is not None and high < 1:
        return PAYS
    return LOSES if low is not None and low > 1 else OPEN


def _number(value: Any) -> float | None:
    return float(value) if fmt.is_number(value) else None


def _over(value: float | None) -> float | None:
    return 1 / value if value is not None and value > 0 else None
