"""`tracelens gate`: GO, NO_GO or INCONCLUSIVE by class of traffic, with what would make it pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracelens.analysis import coverage
from tracelens.analysis.answers import Key
from tracelens.analysis.costs import Priced
from tracelens.analysis.results import Missing, Value, Warning
from tracelens.analysis.session import Question, Session, opened
from tracelens.errors import InputError
from tracelens.model.decision import (
    INCONCLUSIVE,
    LEAST_REQUESTS,
    Decision,
    by_interval,
    by_lower_bound,
    by_near_k,
    by_sample,
    worst,
)
from tracelens.model.speedup import break_even_ratio

#: What a session must answer beyond a report.
QUERIES = ("batches",)
#: A class is said to make the others pay from here on.
HEAVY_DRAG = 1.1
#: Padding and routing are spoken of from these shares on.
NOTABLE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Thresholds of the gate.

    `margin`: how far from 1 the whole interval of the relative token time must lie; `min_requests`: fewer decide
    nothing; `max_near_k`: the largest share of near-K rounds that is allowed, None for any.
    """

    margin: float = 0.02
    min_requests: int = LEAST_REQUESTS
    max_near_k: float | None = None


@dataclass(frozen=True, slots=True)
class GateStratum:
    """The decision on one class of traffic.

    `relative_token_time` is C by steps, or TPOT over the baseline's where no step is logged (`basis`: step, tpot,
    lower_bound or None). `break_even_alpha` is the draft_accept_ratio at which C would be 1 at the class's own cost;
    `alpha_distance` is draft_accept_ratio less that. `speedup_one_token_less`, `_more`: with one token a round less or
    more. `off_gain_ms`: engine time that plain decoding of the same tokens would save, negative where it would cost;
    `off_gain_share` its share of the class's engine time. `step_gain`: share of the steps it shares with other classes
    that would go if it ran elsewhere. `advice` says what follows in words.
    """

    key: Mapping[str, Value]
    decision: str
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    relative_token_time: float | None
    relative_token_time_low: float | None
    relative_token_time_high: float | None
    basis: str | None
    baseline_basis: str | None
    round_cost: float | None
    draft_accept_ratio: float | None
    break_even_alpha: float | None
    alpha_distance: float | None
    speedup_one_token_less: float | None
    speedup_one_token_more: float | None
    near_k_round_share: float | None
    verify_waste: float | None
    padding_waste: float | None
    drag: float | None
    off_gain_ms: float | None
    off_gain_share: float | None
    step_gain: float | None
    requests: int | None
    n_eff: float | None
    num_speculative_tokens: int | None
    control_runs: int | None
    control_spread: float | None


@dataclass(frozen=True, slots=True)
class GateResult:
    """The answer of `tracelens gate`. `decision` is over the strata, over the total where there are none."""

    by: tuple[str, ...]
    options: GateOptions
    strata: tuple[GateStratum, ...]
    total: GateStratum
    decision: str
    coverage: tuple[Missing, ...]
    warnings: tuple[Warning, ...]
    selection: Mapping[str, Any] = field(default_factory=dict)


def gate(lake: Path, question: Question, options: GateOptions | None = None) -> GateResult:
    """Decide for every stratum whether speculation pays.

    Raises:
        InputError: a threshold out of its range; no lake there, an unknown column or run, a `where` that does not fit.
    """
    options = options or GateOptions()
    _check(options)
    with opened(lake, question, QUERIES) as session:
        return gate_of(session, options)


def gate_of(session: Session, options: GateOptions) -> GateResult:
    """The same over a session that was opened with `QUERIES`."""
    found = [_stratum(session, key, options) for key in session.every_key()]
    strata, total = tuple(found[:-1]), found[-1]
    decision = worst(Decision(s.decision, ()) for s in strata or (total,)).name
    told = coverage.of_interest(session.missing(), _NEEDED) if session.engines else ()
    by = tuple(dict.fromkeys(session.question.by))
    selection = session.question.selection()
    return GateResult(by, options, strata, total, decision, told, session.warnings(), selection)


def _check(options: GateOptions) -> None:
    if not 0 <= options.margin < 1:
        raise InputError(f"--margin must lie in 0..1 (a share of the plain token time), not {options.margin}")
    if options.min_requests < 0:
        raise InputError(f"--min-requests must be 0 or more, not {options.min_requests}")
    if options.max_near_k is not None and not 0 <= options.max_near_k <= 1:
        raise InputError(f"--max-near-k is a share of the rounds, 0..1, not {options.max_near_k}")


_NEEDED = {"relative_token_time", "speedup_tpot", "break_even_alpha", "draft_accept_ratio", "near_k_round_share",
           "n_eff", "baseline_ms"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Time:
    """Relative token time with its interval, its basis, the basis of its baseline, and the cost of a round."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str | None = None
    baseline: str | None = None
    cost: float | None = None


def _stratum(session: Session, key: Key, options: GateOptions) -> GateStratum:
    stratum, batches, priced = session.stratum(key), session.answers.one("batches", key), session.priced(key)
    figures = stratum.figures
    time = _time(figures)
    decision = _decide(figures, time, options)
    if session.defined.forced and time.value is not None:
        decision = Decision(INCONCLUSIVE, ("its acceptance is simulated or forced and says nothing of a real drafter",))
    alpha, drafted = figures.get("draft_accept_ratio"), figures.get("mean_drafted")
    even = None if time.cost is None or drafted is None else break_even_ratio(time.cost, drafted)
    tau = figures.get("tau_committed")
    # Without a draft no token more or less can come of one.
    worth = tau if time.cost and figures.get("drafted") else None
    less, more = (None if worth is None or not time.cost else (worth + step) / time.cost for step in (-1, 1))
    off_ms, off_share = _off(batches, priced)
    found = GateStratum(
        key=stratum.key,
        decision=decision.name,
        reasons=decision.reasons,
        advice=(),
        relative_token_time=time.value,
        relative_token_time_low=time.low,
        relative_token_time_high=time.high,
        basis=time.basis,
        baseline_basis=time.baseline,
        round_cost=time.cost,
        draft_accept_ratio=alpha,
        break_even_alpha=even,
        alpha_distance=None if even is None or alpha is None else alpha - even,
        speedup_one_token_less=less,
        speedup_one_token_more=more,
        near_k_round_share=figures.get("near_k_round_share"),
        verify_waste=figures.get("verify_waste"),
        padding_waste=batches.get("padding_waste"),
        drag=batches.get("drag"),
        off_gain_ms=off_ms,
        off_gain_share=off_share,
        step_gain=batches.get("step_gain"),
        requests=_requests(figures, time),
        n_eff=figures.get("n_eff"),
        num_speculative_tokens=figures.get("num_speculative_tokens"),
        control_runs=figures.get("control_runs"),
        control_spread=figures.get("control_spread"),
    )
    return _with_advice(found)


def _time(figures: Mapping[str, Any]) -> _Time:
    """C by whole steps first; by TPOT where no step is logged; a lower bound last."""
    value, basis = figures.get("relative_token_time"), figures.get("relative_token_time_basis")
    low, high = figures.get("relative_token_time_low"), figures.get("relative_token_time_high")
    if value is not None and basis == "step":
        return _Time(value, low, high, "step", figures.get("baseline_basis"), figures.get("round_cost"))
    tpot = figures.get("speedup_tpot")
    if tpot:
        slow, fast, tau = (
            figures.get("speedup_tpot_low"),
            figures.get("speedup_tpot_high"),
            figures.get("tau_committed"),
        )
        return _Time(
            1.0 / tpot,
            1.0 / fast if fast else None,
            1.0 / slow if slow else None,
            "tpot",
            figures.get("baseline_tpot_basis"),
            # What a round cost follows from the tokens it gave and what a token took.
            None if tau is None else tau / tpot,
        )
    if value is not None:
        return _Time(value, None, None, basis, figures.get("baseline_basis"), None)
    return _Time()


def _decide(figures: Mapping[str, Any], time: _Time, options: GateOptions) -> Decision:
    if time.value is None:
        pays = Decision(INCONCLUSIVE, ("the relative token time cannot be had from these records",))
    elif time.basis == "lower_bound":
        pays = by_lower_bound(time.value, margin=options.margin)
    else:
        noise = figures.get("control_spread")
        pays = by_interval(time.value, time.low, time.high, margin=options.margin, noise=noise)
    few = by_sample(_requests(figures, time), figures.get("n_eff"), least=options.min_requests)
    if few is not None:
        # Too few requests decide nothing, whatever their interval says.
        return Decision(INCONCLUSIVE, (*few.reasons, *pays.reasons))
    checks = [pays]
    if options.max_near_k is not None:
        near = (figures.get(f"near_k_round_share{end}") for end in ("", "_low", "_high"))
        checks.append(by_near_k(*near, most=options.max_near_k))
    return worst(checks)


def _requests(figures: Mapping[str, Any], time: _Time) -> int | None:
    """Requests whose rounds are counted; where none are, and TPOT decides, those whose TPOT is logged one by one."""
    counted: int | None = figures.get("requests")
    if counted is None and time.basis == "tpot" and time.low is not None:
        return figures.get("tpot_requests")
    return counted


def _off(batches: Mapping[str, Any], priced: Priced) -> tuple[float | None, float | None]:
    """Engine time that plain decoding of the same tokens in the same batches would save, ms and share."""
    engine, tokens, plain = batches.get("engine_ms"), batches.get("plain_tokens"), priced.baseline
    if not engine or tokens is None or plain is None:
        return None, None
    saved = float(engine - tokens * plain)
    return saved, saved / float(engine)


def _with_advice(found: GateStratum) -> GateStratum:
    told = []
    if found.decision == "NO_GO" and found.off_gain_ms is not None and found.off_gain_ms > 0:
        told.append(
            f"switching speculation off for it would save about {found.off_gain_share:.0%} of its engine time "
            f"({found.off_gain_ms / 1000:,.1f} s of what is logged)"
        )
    even, alpha = found.break_even_alpha, found.draft_accept_ratio
    if even is not None and alpha is not None and found.decision != "GO" and (found.relative_token_time or 0) > 1:
        if even > 1:
            told.append("no acceptance can make it pay at this cost of a round: the cost must fall, or K")
        elif alpha < even:
            told.append(f"it would break even at α {even:.3f}; it has {alpha:.3f}")
        elif even >= 0:
            told.append(
                f"its α {alpha:.3f} is above the break-even {even:.3f}: what is accepted would pay, and is lost to "
                "cuts at stops"
            )
    if found.drag is not None and found.drag >= HEAVY_DRAG:
        gain = ""
        if found.step_gain is not None and found.step_gain > 0:
            gain = f"; steps it shares would be about {found.step_gain:.1%} shorter if it ran elsewhere"
        told.append(f"the other classes of its batches pay for it (drag {found.drag:.2f}){gain}")
    if found.padding_waste is not None and found.padding_waste >= NOTABLE_SHARE:
        told.append(f"an engine that pads to the longest draft computes {found.padding_waste:.0%} of positions in vain")
    return replace(found, advice=tuple(told))
