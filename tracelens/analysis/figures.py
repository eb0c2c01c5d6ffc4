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
    inverse,
    positive_interval,
    quotient,
    ratio_estimate,
    ratio_interval,
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
    out["grain"] = ", ".join(alpha.get("grains") or ()) or None
    shortest, longest = alpha.get("num_speculative_tokens_min"), alpha.get("num_speculative_tokens_max")
    out["num_speculative_tokens"] = shortest if shortest == longest else None
    out["num_speculative_tokens_min"], out["num_speculative_tokens_max"] = shortest, longest
    for name in ("draft_accept_ratio", "token_accept_prob"):
        sums = RatioSums.of(alpha.get(f"{name}_sums"))
        _bound(out, name, ratio_interval(sums, level, bounds=(0.0, 1.0)))
    for name, shift in (("tau_verified", 1.0), ("tau_drafted", 0.0), ("tau_committed", 0.0)):
        sums = RatioSums.of(alpha.get(f"{name}_sums"))
        _bound(out, name, ratio_interval(sums, level, shift=shift, bounds=(0.0, math.inf)))
    committed, drafted = out["tau_committed"], out["mean_drafted"]
    out["verify_waste"] = None if committed is None or drafted is None else 1.0 - committed / (drafted + 1.0)
    return out


def positions(hazards: Sequence[Row], level: float) -> Figures:
    """`hazard` from position 1 and `survival` from position 0 of the rows of `hazards.sql`."""
    out: Figures = dict.fromkeys(("hazard", "survival", "survival_low", "survival_high"))
    if not hazards:
        return out
    out["hazard"] = [row["hazard"] for row in hazards]
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
    _bound(out, "near_k_round_share", ratio_interval(sums, level, bounds=(0.0, 1.0)))
    histogram: dict[int, list[Any]] = {}
    for row in lengths:
        histogram.setdefault(int(row["drafted"]), []).append(whole(row["rounds"]))
    out["rollback_len"] = histogram or None
    return out


def costs(rho: Row, base: Row, figures: Figures, level: float) -> Figures:
    """Draft cost, verify and round cost over the baseline (MODEL.md 3), from `rho.sql` and `baseline.sql`."""
    names = ("draft_ms", "target_ms", "step_ms", "sample_ms", "rollback_ms", "repack_ms", "emit_lag_ms")
    out: Figures = {name: rho.get(name) for name in (*names, "draft_ms_per_token", "prefill_step_ms")}
    out["draft_cost_basis"] = rho.get("draft_cost_basis")
    for name in ("baseline_ms", "baseline_basis", "baseline_matched_share"):
        out[name] = base.get(name)
    plain = _baseline(base)
    units = rho.get("units") or 0
    own = out["baseline_basis"] == "verify_pass"  # V is numerator and denominator at once: one joint variance
    per_token, mean_drafted = out["draft_ms_per_token"], figures.get("mean_drafted")
    draft = out["draft_ms"]
    if draft is None and per_token is not None and mean_drafted is not None:
        draft = per_token * mean_drafted
    _cost(out, "rho_verify", per_token, out["target_ms"], rho.get("rho_verify_relvar"), units, None, level)
    _cost(
        out,
        "rho",
        per_token,
        plain,
        rho.get("rho_verify_relvar" if own else "draft_per_token_relvar"),
        units,
        base,
        level,
    )
    _cost(out, "rho_round", draft, plain, rho.get("draft_target_relvar" if own else "draft_relvar"), units, base, level)
    _cost(
        out, "verify_inflation", out["target_ms"], plain, None if own else rho.get("target_relvar"), units, base, level
    )
    _cost(
        out,
        "round_cost",
        out["step_ms"],
        plain,
        rho.get("step_target_relvar" if own else "step_relvar"),
        units,
        base,
        level,
    )
    known = [out[name] for name in ("step_ms", "draft_ms", "target_ms")]
    out["unattributed_ms"] = out["overhead"] = None
    if all(v is not None for v in known):
        rest = known[0] - known[1] - known[2]
        out["overhead"] = rest / plain if plain else None
        out["unattributed_ms"] = rest - sum(out[n] or 0.0 for n in ("sample_ms", "rollback_ms", "repack_ms"))
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


def observed(rho: Row, base: Row, speed: Row, figures: Figures, level: float) -> Figures:
    """What speculation really gave: relative time per token, by steps and by TPOT (MODEL.md 4)."""
    out: Figures = {name: speed.get(name) for name in ("tpot_ms", "tpot_p50_ms", "tpot_p95_ms", "ttft_ms", "queue_ms")}
    out["tpot_requests"], out["output_tokens"] = whole(speed.get("tpot_requests")), whole(speed.get("output_tokens"))
    sums = RatioSums.of(speed.get("tpot_sums"))
    _bound(out, "tpot_ms", ratio_interval(sums, level, bounds=(0.0, math.inf)))
    out["baseline_tpot_ms"] = base.get("baseline_tpot_ms")

    token = _relative_token_time(rho, base, figures)
    out["relative_token_time"], out["relative_token_time_basis"] = token["value"], token["basis"]
    _bound(out, "relative_token_time", positive_interval(token["estimate"], level))
    step, committed = figures.get("step_ms"), figures.get("tau_committed")
    out["step_token_ms"] = step / committed if step is not None and committed else None
    out["speedup_step"] = 1.0 / token["value"] if token["value"] and token["basis"] == "step" else None
    _bound(out, "speedup_step", None)
    if token["estimate"] is not None:
        _bound(out, "speedup_step", positive_interval(inverse(token["estimate"]), level))

    out["speedup_tpot"], tpot = None, ratio_estimate(sums)
    _bound(out, "speedup_tpot", None)
    if out["baseline_tpot_ms"] and out["tpot_ms"]:
        out["speedup_tpot"] = out["baseline_tpot_ms"] / out["tpot_ms"]
        plain = _estimate(out["baseline_tpot_ms"], base.get("baseline_tpot_relvar"), base.get("baseline_tpot_units"),
                          given=base.get("baseline_tpot_basis") == "value")  # fmt: skip
        if plain is not None and tpot is not None:
            _bound(out, "speedup_tpot", positive_interval(quotient(plain, tpot), level))
    best = "tpot" if out["speedup_tpot"] is not None else "step" if out["speedup_step"] is not None else None
    out["speedup_observed_basis"] = best
    for end in ("", "_low", "_high"):
        out[f"speedup_observed{end}"] = None if best is None else out[f"speedup_{best}{end}"]
    out["near_k_saved_share"] = _saved_share(figures, token["value"])
    return out


def whole(value: float | None) -> float | int | None:
    """A weighted count as a whole number where it is one."""
    if value is None:
        return None
    return int(value) if float(value).is_integer() else float(value)


def _relative_token_time(rho: Row, base: Row, figures: Figures) -> dict[str, Any]:
    plain, committed = _baseline(base), figures.get("tau_committed")
    nothing = {"value": None, "basis": None, "estimate": None}
    if plain is None or not committed:
        return nothing
    if figures.get("step_ms") is not None:
        value = figures["step_ms"] / plain / committed
        own = base.get("baseline_basis") == "verify_pass"
        estimate = _joint(value, rho.get("token_target_relvar" if own else "token_relvar"), rho.get("units") or 0, base)
        return {"value": value, "basis": "step", "estimate": estimate}
    draft, target = figures.get("draft_ms"), figures.get("target_ms")
    if draft is None or target is None:
        return nothing
    # What nobody logged (scheduling, sampling, emission) is missing here, so the true figure is higher.
    parts = draft + target + sum(figures.get(name) or 0.0 for name in ("sample_ms", "rollback_ms", "repack_ms"))
    return {"value": parts / plain / committed, "basis": "lower_bound", "estimate": None}


def _saved_share(figures: Figures, token_time: float | None) -> float | None:
    """Step time of near-K rounds over the step time that speculation saved; None where it saved none."""
    near, share = figures.get("near_k_step_ms"), figures.get("near_k_step_share")
    if not near or not share or not token_time or token_time >= 1.0:
        return None
    saved = near / share * (1.0 / token_time - 1.0)
    return float(near / saved)


def _cost(
    out: Figures, name: str, time: float | None, plain: float | None, relvar: float | None, units: int,
    base: Row | None, level: float,
) -> None:  # fmt: skip
    out[name] = None if time is None or not plain else time / plain
    _bound(out, name, None)
    if out[name]:
        _bound(out, name, positive_interval(_joint(out[name], relvar, units, base), level))


def _joint(value: float, relvar: float | None, units: int, base: Row | None) -> Estimate | None:
    """Estimate of a cost over the baseline: their relative variances add, unless the baseline is the cost's own V."""
    cost = _estimate(value, relvar, units)
    if cost is None or base is None or base.get("baseline_basis") == "verify_pass":
        return cost
    plain = _estimate(1.0, base.get("baseline_relvar"), base.get("baseline_units"),
                      given=base.get("baseline_basis") == "value")  # fmt: skip
    return None if plain is None else quotient(cost, plain)


def _estimate(value: float, relvar: float | None, units: int | None, *, given: bool = False) -> Estimate | None:
    if given:
        return Estimate(value)
    if relvar is None or not math.isfinite(relvar) or not units or units < 2:
        return None
    return Estimate(value, max(relvar, 0.0), units - 1.0)


def _baseline(base: Row) -> float | None:
    value = base.get("baseline_ms")
    return value if value and value > 0 else None


def _bound(out: Figures, name: str, interval: Interval | None) -> None:
    out[f"{name}_low"] = None if interval is None else interval.low
    out[f"{name}_high"] = None if interval is None else interval.high


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
