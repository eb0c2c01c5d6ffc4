"""The figures of one stratum: what the queries counted, through the formulas of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.analysis.claim import Claim
from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb
from tracelens.model.intervals import (
    Estimate,
    Interval,
    RatioSums,
    positive_interval,
    ratio_interval,
    share_interval,
)
from tracelens.model.speedup import (
    break_even_ratio,
    relative_token_time_article,
    speedup_article,
    speedup_iid,
    speedup_with_bonus,
)

Row = Mapping[str, Any]
Figures = dict[str, Any]


def acceptance(alpha: Row, level: float) -> Figures:
    """Acceptance figures of one row of `alpha.sql`, with intervals by unit."""
    names = (
        "draft_accept_ratio", "token_accept_prob", "tau_verified", "tau_drafted", "tau_committed",
        "tau_committed_basis", "terminal_overcount", "tau_request_mean", "n_eff", "top_share", "mean_drafted",
    )  # fmt: skip
    out: Figures = {name: alpha.get(name) for name in names}
    for name in ("requests", "rounds", "plain_steps", "drafted", "accepted", "emitted"):
        out[name] = whole(alpha.get(name))
    if alpha.get("rolled_rounds"):
        out["rolled_rounds"] = whole(alpha["rolled_rounds"])
    out["grain"] = ", ".join(alpha.get("grains") or ()) or None
    shortest, longest = alpha.get("num_speculative_tokens_min"), alpha.get("num_speculative_tokens_max")
    out["num_speculative_tokens"] = shortest if shortest == longest else None
    out["num_speculative_tokens_min"], out["num_speculative_tokens_max"] = shortest, longest
    for name in ("draft_accept_ratio", "token_accept_prob"):
        sums = RatioSums.of(alpha.get(f"{name}_sums"))
        bound(out, name, share_interval(sums, level))
    # A round gives the target's own token at least, and K more at most.
    most = math.inf if longest is None else longest + 1.0
    for name, shift, least in (("tau_verified", 1.0, 1.0), ("tau_drafted", 0.0, 0.0), ("tau_committed", 0.0, 0.0)):
        sums = RatioSums.of(alpha.get(f"{name}_sums"))
        value = alpha.get(name) or 0.0
        bound(out, name, ratio_interval(sums, level, shift=shift, bounds=(least, max(most, value))))
        less, more = unseen_share(alpha, level, every_round=name == "tau_committed")
        if out[f"{name}_low"] is not None:
            out[f"{name}_low"] = max(min(out[f"{name}_low"], value * less), least)
            out[f"{name}_high"] = min(max(out[f"{name}_high"], value * more), max(most, value))
    committed, drafted = out["tau_committed"], out["mean_drafted"]
    out["verify_waste"] = None if committed is None or drafted is None else 1.0 - committed / (drafted + 1.0)
    return out


def unseen_share(alpha: Row, level: float, *, every_round: bool) -> tuple[float, float]:
    """By how much tau may be lower and higher, as factors, where all or no drafts were accepted.

    Requests that all have a share of 0 or 1 show no variance. What its exact bound allows (`share_interval`) counts for
    what stands on it, too: tau = 1 + alpha d, and what stops cut from it stays in proportion. 1 where the share is
    between, and its spread is seen.

    Args:
        alpha: a row of `alpha.sql`.
        level: level of the interval.
        every_round: over rounds without a draft, too.
    """
    share = alpha.get("draft_accept_ratio")
    interval = share_interval(RatioSums.of(alpha.get("draft_accept_ratio_sums")), level)
    drafted, rounds = alpha.get("drafted"), alpha.get("all_rounds" if every_round else "rounds")
    if share is None or interval is None or 0.0 < share < 1.0 or not drafted or not rounds:
        return 1.0, 1.0
    length = drafted / rounds
    low, tau, high = (1.0 + length * at for at in (interval.low, share, interval.high))
    return low / tau, high / tau


def positions(hazards: Sequence[Row], level: float) -> Figures:
    """`hazard` from position 1 and `survival` from position 0 of the rows of `hazards.sql`, with intervals."""
    out: Figures = dict.fromkeys(("hazard", "hazard_low", "hazard_high", "survival", "survival_low", "survival_high"))
    if not hazards:
        return out
    out["hazard"] = [row["hazard"] for row in hazards]
    shares = [share_interval(RatioSums.of(row["hazard_sums"]), level) for row in hazards]
    out["hazard_low"] = [None if share is None else share.low for share in shares]
    out["hazard_high"] = [None if share is None else share.high for share in shares]
    out["survival"] = [1.0, *(row["survival"] for row in hazards)]
    low: list[float | None] = [1.0]
    high: list[float | None] = [1.0]
    for row in hazards:
        interval = None
        if row["log_survival_var"] is not None and row["survival"]:
            interval = positive_interval(
                Estimate(row["survival"], max(row["log_survival_var"], 0.0), row["units"] - 1.0), level
            )
        low.append(None if interval is None else interval.low)
        high.append(None if interval is None else min(interval.high, 1.0))
    out["survival_low"], out["survival_high"] = low, high
    return out


def rollbacks(near: Row, lengths: Sequence[Row], level: float) -> Figures:
    """Near-K figures of `near_k.sql` and the histogram `rollback_len` {d: [rounds by rollback length]}."""
    names = (
        "near_k_round_share", "near_k_strict_share", "near_k_iid_share", "near_k_excess", "near_k_request_share",
        "near_k_draft_ms", "near_k_step_ms", "near_k_draft_share", "near_k_step_share", "rollback_request_share",
    )  # fmt: skip
    out: Figures = {name: near.get(name) for name in names}
    sums = RatioSums.of(near.get("near_k_round_share_sums"))
    bound(out, "near_k_round_share", share_interval(sums, level))
    histogram: dict[int, list[Any]] = {}
    for row in lengths:
        histogram.setdefault(int(row["drafted"]), []).append(whole(row["rounds"]))
    out["rollback_len"] = histogram or None
    return out


def theory(figures: Figures, claim: Claim | None) -> Figures:
    """The named speedups of MODEL.md 4, fed with what was measured; K is the configured one, else the mean draft."""
    out: Figures = dict.fromkeys(
        ("relative_token_time_article", "speedup_article", "speedup_with_bonus", "speedup_iid", "theory_length")
    )
    length, basis = figures.get("num_speculative_tokens"), "num_speculative_tokens"
    if length is None:
        drafted, rounds = figures.get("drafted"), figures.get("rounds")
        length, basis = (drafted / rounds if drafted and rounds else None), "mean_drafted"
    out["theory_length"], out["theory_length_basis"] = length, None if length is None else basis
    rho, alpha, prob = figures.get("rho"), figures.get("draft_accept_ratio"), figures.get("token_accept_prob")
    if rho is not None and length is not None:
        if alpha is not None:
            ratio = DraftAcceptRatio(alpha)
            out["relative_token_time_article"] = _finite(float(relative_token_time_article(ratio, rho, length)))
            out["speedup_article"] = float(speedup_article(ratio, rho, length))
            out["speedup_with_bonus"] = float(speedup_with_bonus(ratio, rho, length))
        if prob is not None:
            out["speedup_iid"] = float(speedup_iid(TokenAcceptProb(prob), rho, length))
    out["speedup_claimed"] = None if claim is None else claim.speedup
    cost, drafted_mean = figures.get("round_cost"), figures.get("mean_drafted")
    out["break_even_alpha"] = None if cost is None or drafted_mean is None else break_even_ratio(cost, drafted_mean)
    return out


def whole(value: float | None) -> float | int | None:
    """A weighted count as a whole number where it is one."""
    if value is None:
        return None
    return int(value) if float(value).is_integer() else float(value)


def bound(out: Figures, name: str, interval: Interval | None) -> None:
    """Put an interval beside its figure."""
    out[f"{name}_low"] = None if interval is None else interval.low
    out[f"{name}_high"] = None if interval is None else interval.high


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
