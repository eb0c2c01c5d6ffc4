"""How much a change between two sides does to the time of a token, so that what matters is told before what does not.

The time of a token over a plain step is C = R / tau with R = v + rho d + o (MODEL.md 3 and 4). A change of one part
moves ln C by its share of R (or of the step T), a change of acceptance by what it does to the tokens of a round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tracelens.analysis.compared import Compared
from tracelens.model.acceptance import TokenAcceptProb, expected_tokens
from tracelens.model.gap import log_mean

# Proportional to the time of a token, or to its inverse.
_WHOLE = ("relative_token_time", "tpot_ms", "speedup_observed", "round_cost", "step_ms", "tau_verified",
          "tau_committed")  # fmt: skip
# Parts of a whole cost, each with that cost.
_PARTS = {"verify_inflation": "round_cost", "overhead": "round_cost", "draft_ms": "step_ms", "target_ms": "step_ms"}


def leverage(row: Compared, name: str) -> float | None:
    """|change of ln C| that the change of this figure makes by itself in its class; None where it cannot be told.

    0 for a figure that the time of a token does not hang on (the share of near-K rounds). Costs are weighed with the
    logarithmic mean of both sides (Vartia 1976), so that a change of this part alone gives ln of the ratio exactly.
    """
    if row.a is None or row.b is None:
        return None
    a, b = row.a, row.b
    if a.get(name) is None or b.get(name) is None:
        return None
    before, after = float(a[name]), float(b[name])
    if name in _WHOLE:
        return abs(math.log(after / before)) if before > 0 and after > 0 else None
    if name in _PARTS:
        return _share(after - before, a.get(_PARTS[name]), b.get(_PARTS[name]))
    length = _mean(a.get("mean_drafted"), b.get("mean_drafted"))
    if name == "rho":
        return None if length is None else _share((after - before) * length, a.get("round_cost"), b.get("round_cost"))
    if name == "rho_verify":
        verify = _mean(a.get("target_ms"), b.get("target_ms"))
        if verify is None or length is None:
            return None
        return _share((after - before) * length * verify, a.get("step_ms"), b.get("step_ms"))
    if name == "draft_accept_ratio":
        return None if length is None else abs(math.log((1 + after * length) / (1 + before * length)))
    if name == "token_accept_prob":
        return None if length is None else abs(math.log(_tokens(after, length) / _tokens(before, length)))
    return 0.0


def share_of_traffic(row: Compared, total: Compared) -> float:
    """Share of a class in all traffic, the mean of both sides: of the rounds, of the tokens where nobody counts these.

    1 where neither is known, and for all traffic itself.
    """
    pairs = [(row.a, total.a), (row.b, total.b)]
    shares = [share for part, whole in pairs if part and whole and (share := _of(part, whole)) is not None]
    return sum(shares) / len(shares) if shares else 1.0


def _of(part: Mapping[str, Any], whole: Mapping[str, Any]) -> float | None:
    for names in (("rounds", "plain_steps"), ("output_tokens",)):
        some, every = (sum(float(side.get(name) or 0) for name in names) for side in (part, whole))
        if every > 0:
            return some / every
    return None


def _share(change: float, before: float | None, after: float | None) -> float | None:
    if before is None or after is None or before <= 0 or after <= 0:
        return None
    return abs(change) / log_mean(before, after)


def _mean(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else (a + b) / 2


def _tokens(prob: float, length: float) -> float:
    return float(expected_tokens(TokenAcceptProb(prob), length))
