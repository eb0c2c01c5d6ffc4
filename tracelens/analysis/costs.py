"""What speculation costs and gives against plain decoding: the figures that need a baseline (MODEL.md 3 and 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens.analysis.figures import Figures, Row, bound, unseen_share, whole
from tracelens.model.intervals import (
    Estimate,
    RatioSums,
    inverse,
    positive_interval,
    quotient,
    ratio_estimate,
    ratio_interval,
)

#: Below this share of the rounds (or tokens) with a baseline of their own engine and model, nothing is compared.
LEAST_MATCHED = 0.8

_PHASES = ("draft_ms", "draft_ms_per_token", "target_ms")
# What lies between the phases was logged with the steps.
_STEPS = ("step_ms", "prefill_step_ms", "sample_ms", "rollback_ms", "repack_ms", "emit_lag_ms")

_FEWEST_UNITS = 1.5  # an effective number: two requests of very different length are fewer than two


@dataclass(frozen=True, slots=True)
class Priced:
    """A row of `baseline.sql`, and the rows of rho, alpha and speedup over what this baseline prices."""

    base: Row
    rho: Row
    alpha: Row
    speedup: Row

    @property
    def baseline(self) -> float | None:
        """The plain step, ms; None where it covers too little."""
        value, share = self.base.get("baseline_ms"), self.base.get("baseline_matched_share")
        return value if value and value > 0 and (share is None or share >= LEAST_MATCHED) else None

    @property
    def tpot(self) -> float | None:
        """TPOT without speculation, ms; None where it covers too little."""
        value, share = self.base.get("baseline_tpot_ms"), self.base.get("baseline_tpot_matched_share")
        return value if value and value > 0 and (share is None or share >= LEAST_MATCHED) else None


def comparable(rho: Row, base: Row) -> Row:
    """A row of `rho.sql` without the times that this baseline (a row of `baseline.sql`) cannot be compared with.

    A profiler slows the steps that it looks at: its times are compared with its own alone. The baseline of a verify
    pass is of the phases, that of plain steps of the steps, a named value of production.
    """
    phases, steps = bool(rho.get("phases_profiled")), bool(rho.get("steps_profiled"))
    basis = base.get("baseline_basis") or ""
    plain = phases if basis.startswith("verify") else steps if basis == "plain_steps" else bool(
        base.get("baseline_profiled"))  # fmt: skip
    apart = [*_PHASES] * (phases is not plain) + [*_STEPS] * (steps is not plain)
    return {**rho, **dict.fromkeys(apart)} if basis else rho


def costs(rho: Row, priced: Priced, figures: Figures, level: float) -> Figures:
    """Draft cost, verify and round cost over the baseline, from `rho.sql` and `baseline.sql`."""
    names = ("draft_ms", "target_ms", "step_ms", "sample_ms", "rollback_ms", "repack_ms", "emit_lag_ms")
    out: Figures = {name: rho.get(name) for name in (*names, "draft_ms_per_token", "prefill_step_ms")}
    out["draft_cost_basis"] = rho.get("draft_cost_basis")
    profiled = [name for name in ("phases", "steps") if rho.get(f"{name}_profiled")]
    out["profiled_times"] = ", ".join(profiled) or None
    for name in ("baseline_ms", "baseline_basis", "baseline_matched_share", "baseline_bucket_share",
                 "baseline_class_share"):  # fmt: skip
        out[name] = priced.base.get(name)
    _ratio(out, "rho_verify", out["draft_ms_per_token"], out["target_ms"],
           _estimate(1.0, rho.get("rho_verify_relvar"), rho.get("units")), level)  # fmt: skip
    plain, some = priced.baseline, priced.rho
    draft, drafted = some.get("draft_ms"), priced.alpha.get("mean_drafted")
    if draft is None and some.get("draft_ms_per_token") is not None and drafted is not None:
        draft = some["draft_ms_per_token"] * drafted
    times = {
        "rho": some.get("draft_ms_per_token"),
        "rho_round": draft,
        "verify_inflation": some.get("target_ms"),
        "round_cost": some.get("step_ms"),
    }
    for name, time in times.items():
        _ratio(out, name, time, plain, _against(priced, some.get(f"{name}_relvar")), level)
    if priced.base.get("baseline_basis") == "verify_pass":  # V over itself is 1 by construction
        bound(out, "verify_inflation", None)
    known = [out[name] for name in ("step_ms", "draft_ms", "target_ms")]
    out["unattributed_ms"] = out["overhead"] = None
    if all(v is not None for v in known) and len(profiled) != 1:
        rest = known[0] - known[1] - known[2]
        out["unattributed_ms"] = rest - sum(out[n] or 0.0 for n in ("sample_ms", "rollback_ms", "repack_ms"))
    if plain is not None and None not in (some.get("step_ms"), draft, some.get("target_ms")):
        out["overhead"] = (some["step_ms"] - draft - some["target_ms"]) / plain
    return out


def observed(speed: Row, priced: Priced, figures: Figures, level: float) -> Figures:
    """What speculation really gave: relative time per token, by steps and by TPOT."""
    out: Figures = {name: speed.get(name) for name in ("tpot_ms", "tpot_p50_ms", "tpot_p95_ms", "ttft_ms", "queue_ms")}
    out["tpot_requests"], out["output_tokens"] = whole(speed.get("tpot_requests")), whole(speed.get("output_tokens"))
    sums = RatioSums.of(speed.get("tpot_sums"))
    bound(out, "tpot_ms", ratio_interval(sums, level, bounds=(0.0, math.inf)))
    for name in ("baseline_tpot_ms", "baseline_tpot_basis", "baseline_tpot_matched_share", "baseline_tpot_class_share"):
        out[name] = priced.base.get(name)
    token = _relative_token_time(priced)
    out["relative_token_time"], out["relative_token_time_basis"] = token.value, token.basis
    bound(out, "relative_token_time", positive_interval(token.estimate, level))
    step, committed = figures.get("step_ms"), figures.get("tau_committed")
    out["step_token_ms"] = step / committed if step is not None and committed else None
    out["speedup_step"] = 1.0 / token.value if token.value and token.basis == "step" else None
    bound(out, "speedup_step", None if token.estimate is None else positive_interval(inverse(token.estimate), level))
    _widen(out, priced.alpha, level)
    _speedup_tpot(out, priced, level)
    best = "tpot" if out["speedup_tpot"] is not None else "step" if out["speedup_step"] is not None else None
    out["speedup_observed_basis"] = best
    for end in ("", "_low", "_high"):
        out[f"speedup_observed{end}"] = None if best is None else out[f"speedup_{best}{end}"]
    out["near_k_saved_share"] = _saved_share(figures, token.value)
    return out


@dataclass(frozen=True, slots=True)
class _Token:
    value: float | None = None
    basis: str | None = None
    estimate: Estimate | None = None


def _relative_token_time(priced: Priced) -> _Token:
    plain, rho, committed = priced.baseline, priced.rho, priced.alpha.get("tau_committed")
    if plain is None or not committed:
        return _Token()
    if rho.get("step_ms") is not None:
        value = rho["step_ms"] / plain / committed
        part = _against(priced, rho.get("token_relvar"))
        scaled = None if part is None else Estimate(value, part.relative_variance, part.freedom)
        return _Token(value, "step", scaled)
    if rho.get("draft_ms") is None or rho.get("target_ms") is None:
        return _Token()
    # What nobody logged (scheduling, sampling, emission) is missing here, so the true figure is higher.
    parts = sum(rho.get(name) or 0.0 for name in ("draft_ms", "target_ms", "sample_ms", "rollback_ms", "repack_ms"))
    return _Token(parts / plain / committed, "lower_bound")


def _widen(out: Figures, alpha: Row, level: float) -> None:
    """Let the intervals by steps hold what all or no drafts accepted leave unseen: C is over tau_committed."""
    less, more = unseen_share(alpha, level, every_round=True)
    if out["relative_token_time_low"] is not None:
        out["relative_token_time_low"] /= more
        out["relative_token_time_high"] /= less
    if out["speedup_step_low"] is not None:
        out["speedup_step_low"] *= less
        out["speedup_step_high"] *= more


def _speedup_tpot(out: Figures, priced: Priced, level: float) -> None:
    out["speedup_tpot"] = None
    bound(out, "speedup_tpot", None)
    base, plain, tpot = priced.base, priced.tpot, priced.speedup.get("tpot_ms")
    if plain is None or not tpot:
        return
    out["speedup_tpot"] = plain / tpot
    given = base.get("baseline_tpot_basis") == "value"
    first = _estimate(plain, base.get("baseline_tpot_relvar"), base.get("baseline_tpot_units"), given=given)
    # Against prices by class, so that what both sides share (slow classes) cancels; a named value is one price for all.
    name = "tpot_sums" if given else "priced_sums"
    ratio = ratio_estimate(RatioSums.of(priced.speedup.get(name)))
    second = None if ratio is None else Estimate(float(tpot), ratio.relative_variance, ratio.freedom)
    if first is not None and second is not None:
        bound(out, "speedup_tpot", positive_interval(quotient(first, second), level))


def _saved_share(figures: Figures, token_time: float | None) -> float | None:
    """Step time of near-K rounds over the step time that speculation saved; None where it saved none.

    The step time of all rounds is the near-K time over its share: as in near_k.sql, a step counts once.
    """
    near, share = figures.get("near_k_step_ms"), figures.get("near_k_step_share")
    if near is None or not token_time or token_time >= 1.0:
        return None
    if near == 0.0:
        return 0.0
    if not share:
        return None
    saved = near / share * (1.0 / token_time - 1.0)
    return float(near / saved)


def _ratio(
    out: Figures, name: str, time: float | None, plain: float | None, spread: Estimate | None, level: float
) -> None:
    out[name] = None if time is None or not plain else time / plain
    bound(out, name, None)
    if out[name] and spread is not None:
        estimate = Estimate(out[name], spread.relative_variance, spread.freedom)
        bound(out, name, positive_interval(estimate, level))


def _against(priced: Priced, relvar: float | None) -> Estimate | None:
    """Spread of a cost over the baseline: relative variances add, unless the baseline is the cost's own V."""
    base = priced.base
    cost = _estimate(1.0, relvar, priced.rho.get("units"))
    if cost is None or base.get("baseline_basis") == "verify_pass":
        return cost
    given = base.get("baseline_basis") == "value"
    plain = _estimate(1.0, base.get("baseline_relvar"), base.get("baseline_units"), given=given)
    return None if plain is None else quotient(cost, plain)


def _estimate(value: float, relvar: float | None, units: float | None, *, given: bool = False) -> Estimate | None:
    """Take `units`, the effective number of independent ones, less one as degrees of freedom, at least one."""
    if given:
        return Estimate(value)
    # What one request alone shows has no spread that it could tell: no interval, and no verdict.
    if relvar is None or not math.isfinite(relvar) or not units or units < _FEWEST_UNITS:
        return None
    return Estimate(value, max(relvar, 0.0), max(units - 1.0, 1.0))
