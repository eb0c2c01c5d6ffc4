"""One entry a K and source of a sweep, each with draws of its relative token time, and the best K among them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.claim import Claim
from tracelens.analysis.sweep_costs import (
    CLAIMED,
    FITTED,
    LOWER_BOUND,
    OBSERVED,
    PROPORTIONAL,
    Cost,
    CostModel,
    logged_parts,
)
from tracelens.analysis.sweep_ends import NO_ENDS, Ends, cost_ends, known_ends, log_deviation, possible, spread_ends
from tracelens.analysis.sweep_trace import Trace
from tracelens.model.acceptance import TokenAcceptProb, expected_tokens
from tracelens.model.choice import REPLICATES, best_interval, log_normal, quantiles

Floats = NDArray[np.float64]

SOURCES = ("observed", "replayed", "geometric")
_COMMON_STREAM = 0


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """What one draft length gives: `source` is observed (it ran), replayed or geometric.

    `tau_verified` counts the target's own token, over rounds with a draft; `tau_committed` is over all rounds.
    `round_ms` is the mean over all request-rounds. `cost_basis` is observed, fitted, proportional or claim; None
    without a cost. `relative_token_time_basis` is step, lower_bound, tpot or claim. `extrapolated` is a K longer than
    the drafts that it is told from (what one request alone drafted does not count); it is never best. `replay_error` is
    replayed over observed tau_verified, less 1. `time_error` is the same of the round's time, of relative_token_time
    where no whole round was timed.
    """

    k: int
    source: str
    tau_verified: float | None = None
    tau_verified_low: float | None = None
    tau_verified_high: float | None = None
    tau_committed: float | None = None
    draft_ms: float | None = None
    target_ms: float | None = None
    rest_ms: float | None = None
    round_ms: float | None = None
    relative_token_time: float | None = None
    relative_token_time_low: float | None = None
    relative_token_time_high: float | None = None
    relative_token_time_basis: str | None = None
    tpot_ms: float | None = None
    speedup_observed: float | None = None
    cost_basis: str | None = None
    extrapolated: bool = False
    replay_error: float | None = None
    time_error: float | None = None
    rounds: int | float | None = None
    requests: int | float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry and draws of its relative token time; None where it has none or they tell of no spread."""

    entry: SweepEntry
    draws: Floats | None = None


@dataclass(frozen=True, slots=True)
class Best:
    """The best K and its interval; all None where nothing can be compared.

    `unspread` are the K compared of whose token time no spread is known. They cannot count as certain among the
    others, so the best K has no interval where there is one.
    """

    k: int | None = None
    low: int | None = None
    high: int | None = None
    relative_token_time: float | None = None
    unspread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entries:
    """What the entries of a stratum are made of: its figures, those of each K that ran, the trace, the cost."""

    figures: Mapping[str, Any]
    ran: Mapping[int, Mapping[str, Any]]
    ks: tuple[int, ...]
    trace: Trace | None
    model: CostModel | None
    baseline_ms: float | None
    claim: Claim | None
    level: float

    @property
    def by_claim(self) -> bool:
        """Whether cost must be assumed: nothing tells what a round costs against a plain step."""
        measured = self.model is not None and self.baseline_ms is not None
        ran = any(figures.get(n) for figures in self.ran.values() for n in ("relative_token_time", "speedup_tpot"))
        return self.claim is not None and not measured and not ran


def entries(given: Entries) -> list[Candidate]:
    """Make the entries in order of K, the observed one first."""
    observed = {k: _observed(given, k) for k in given.ks if k in given.ran}
    if given.trace is not None:
        other = _replayed(given, given.trace)
    else:
        # What ran needs no law beside it.
        other = {k: c for k in given.ks if k not in observed and (c := _geometric(given, k)) is not None}
    made = []
    for k in given.ks:
        seen, told = observed.get(k), other.get(k)
        if seen is not None:
            made.append(seen)
        if told is not None:
            made.append(_with_error(given, told, seen))
    return made


def compared(entries: Iterable[SweepEntry]) -> dict[int, SweepEntry]:
    """The entry of each K that is compared, by K: as it ran where it ran, never a K that is extrapolated.

    One that ran without times, or in so few requests that its token time has no interval, has its replayed or geometric
    entry in place of that: one lucky request must not win.
    """
    found: dict[int, SweepEntry] = {}
    for entry in sorted(entries, key=lambda e: (e.k, SOURCES.index(e.source))):
        if entry.relative_token_time is not None and not entry.extrapolated and not ran_too_little(entry):
            found.setdefault(entry.k, entry)
    return found


def ran_too_little(entry: SweepEntry) -> bool:
    """Whether a K has a token time as run, but too few requests to tell its interval."""
    timed = entry.source == "observed" and entry.relative_token_time is not None
    return timed and entry.relative_token_time_low is None


def best(made: Sequence[Candidate], level: float) -> Best:
    """Find the K of the least relative token time, 0 (off, 1 by definition) among them, with a bootstrap interval.

    Of each K the entry of `compared` counts.
    """
    taken = compared(c.entry for c in made)
    by_k = {c.entry.k: c for c in made if taken.get(c.entry.k) is c.entry}
    if not by_k:
        return Best()
    values = {0: 1.0} | {k: float(c.entry.relative_token_time or math.inf) for k, c in by_k.items()}
    draws = {0: np.ones(REPLICATES)} | {k: c.draws for k, c in by_k.items() if c.draws is not None}
    chosen = min(values, key=lambda k: (values[k], k))
    unspread = tuple(k for k in by_k if k not in draws)
    ks = sorted(draws)
    low, high = (None, None) if unspread else best_interval(ks, [draws[k] for k in ks], level)
    return Best(chosen, low, high, values[chosen], unspread)


def _observed(given: Entries, k: int) -> Candidate:
    figures = given.ran[k]
    time, basis, ends = figures.get("relative_token_time"), figures.get("relative_token_time_basis"), NO_ENDS
    if basis == LOWER_BOUND and time is not None:
        ends = spread_ends(time, k, figures, cost_ends(figures, LOWER_BOUND))
    elif time is not None:
        ends = (figures.get("relative_token_time_low"), figures.get("relative_token_time_high"))
    elif figures.get("speedup_tpot"):
        time, basis = 1.0 / figures["speedup_tpot"], "tpot"
        ends = (_inverse(figures.get("speedup_tpot_high")), _inverse(figures.get("speedup_tpot_low")))
    cost_basis = None if time is None else OBSERVED
    committed = figures.get("tau_committed")
    if time is None and given.by_claim and given.claim is not None and committed:
        time, basis, cost_basis = (1.0 + given.claim.rho * k) / committed, CLAIMED, CLAIMED
        ends = spread_ends(time, k, figures, (1.0, 1.0))
    low, high = known_ends(ends, figures)
    draws = None
    if time is not None and low is not None and high is not None:
        draws = log_normal(time, log_deviation(low, high, given.level), k)
    draft, target, step = (figures.get(name) for name in ("draft_ms", "target_ms", "step_ms"))
    rest = None if draft is None or target is None or step is None else step - draft - target
    if basis == LOWER_BOUND and draft is not None and target is not None:
        rest = logged_parts(figures)
        step = draft + target + (rest or 0.0)
    tau_low, tau_high = possible(k, figures, "tau_verified")
    entry = SweepEntry(
        k, "observed",
        tau_verified=figures.get("tau_verified"), tau_verified_low=tau_low, tau_verified_high=tau_high,
        tau_committed=committed, draft_ms=draft, target_ms=target,
        rest_ms=rest, round_ms=step,
        relative_token_time=time, relative_token_time_low=low, relative_token_time_high=high,
        relative_token_time_basis=basis, tpot_ms=figures.get("tpot_ms"),
        speedup_observed=figures.get("speedup_observed"), cost_basis=cost_basis, rounds=figures.get("rounds"),
        requests=figures.get("requests"),
    )  # fmt: skip
    return Candidate(entry, draws)


def _replayed(given: Entries, trace: Trace) -> dict[int, Candidate]:
    walked = trace.at(given.ks)
    totals, draws = walked.totals(), walked.draws()
    common = _common_draws(given)
    found = {}
    for k in given.ks:
        verified, committed, plain = (float(x[0]) for x in walked.split(totals, k))
        entry = SweepEntry(
            k, "replayed", tau_verified=verified, tau_committed=committed, extrapolated=k > trace.longest,
            rounds=trace.rounds, requests=trace.requests,
        )  # fmt: skip
        entry = _priced(given, entry, plain)
        if draws is None:
            found[k] = Candidate(entry)
            continue
        many = walked.split(draws, k)
        ends = quantiles(many[0], given.level)
        if ends is not None:
            entry = replace(entry, tau_verified_low=ends[0], tau_verified_high=ends[1])
        time = _time_draws(entry, many[1], common)
        ends = None if time is None else quantiles(time, given.level)
        if ends is not None:
            entry = replace(entry, relative_token_time_low=ends[0], relative_token_time_high=ends[1])
        found[k] = Candidate(entry, time)
    return found


def _time_draws(entry: SweepEntry, committed: Floats, common: Floats | None) -> Floats | None:
    if entry.relative_token_time is None or entry.tau_committed is None or common is None:
        return None
    scale = np.divide(entry.tau_committed, committed, out=np.full(committed.shape, np.inf), where=committed > 0)
    return np.asarray(entry.relative_token_time * scale * common, dtype=np.float64)


def _common_draws(given: Entries) -> Floats | None:
    """Draws of the spread that all replayed K share: that of the round's cost and of its baseline; None if unknown.

    Where only TPOT tells of a round it is that of the trace's own speedup, which is wider: it holds acceptance too.
    """
    if given.by_claim or given.model is None:
        return np.ones(REPLICATES)
    if given.model.unit == "tpot":
        figures = {} if given.trace is None else given.ran.get(given.trace.k, {})
        ends: Ends = (figures.get("speedup_tpot_low"), figures.get("speedup_tpot_high"))
    else:
        ends = cost_ends(given.figures, given.model.unit)
    low, high = ends
    if low is None or high is None or low <= 0:
        return None
    return log_normal(1.0, log_deviation(low, high, given.level), _COMMON_STREAM)


def _geometric(given: Entries, k: int) -> Candidate | None:
    """E(p, k) with p = token_accept_prob; the rounds that drafted give the same tokens at any K."""
    figures = given.figures
    prob, drafting = figures.get("token_accept_prob"), figures.get("rounds")
    if prob is None or not drafting:
        return None
    verified = float(expected_tokens(TokenAcceptProb(prob), k))
    ends = [figures.get(f"token_accept_prob_{end}") for end in ("low", "high")]
    low, high = (None if p is None else float(expected_tokens(TokenAcceptProb(p), k)) for p in ends)
    committed, before = figures.get("tau_committed"), figures.get("tau_drafted") or figures.get("tau_verified")
    plain = 0.0
    if committed and before:
        passes = drafting + (figures.get("plain_steps") or 0)
        others = passes - drafting
        needed = drafting * before / verified
        committed, plain = committed * passes / (needed + others), others / (needed + others)
    entry = SweepEntry(
        k, "geometric", tau_verified=verified, tau_verified_low=low, tau_verified_high=high, tau_committed=committed,
        rounds=drafting, requests=figures.get("requests"),
        extrapolated=k > _longest(given),
    )  # fmt: skip
    return Candidate(_priced(given, entry, plain))


def _longest(given: Entries) -> float:
    """The longest draft that is known of a stratum without a trace: the K it ran with, else what its counts show.

    A K that only one request ran with does not count beside others.
    """
    figures = given.figures
    well = [k for k, ran in given.ran.items() if ran.get("tau_verified_low") is not None]
    if well:
        return float(max(well))
    told = figures.get("num_speculative_tokens_max") or len(figures.get("hazard") or ()) or figures.get("mean_drafted")
    return float(told or 0.0)


def _priced(given: Entries, entry: SweepEntry, plain_share: float) -> SweepEntry:
    """Add cost and relative token time: what was fitted over the baseline, else what the claim assumes."""
    if not entry.tau_committed:
        return entry
    if given.by_claim and given.claim is not None:
        time = (1.0 + given.claim.rho * entry.k) / entry.tau_committed
        return replace(entry, relative_token_time=time, relative_token_time_basis=CLAIMED, cost_basis=CLAIMED)
    model = given.model
    cost: Cost | None = None if model is None else model.at(entry.k, plain_share)
    if model is None or cost is None:
        return entry
    token = cost.round_ms / entry.tau_committed
    priced = None if given.baseline_ms is None else token / given.baseline_ms
    return replace(
        entry, draft_ms=cost.draft_ms, target_ms=cost.target_ms, rest_ms=cost.rest_ms, round_ms=cost.round_ms,
        relative_token_time=priced, relative_token_time_basis=None if priced is None else model.unit,
        cost_basis=model.basis, tpot_ms=_tpot(given, model, token),
    )  # fmt: skip


def _tpot(given: Entries, model: CostModel, token_ms: float) -> float | None:
    """Token time by steps, and what TPOT has beyond the steps in the run of the trace (prefill of others, waits)."""
    if model.unit == "tpot":
        return token_ms
    figures = given.figures if given.trace is None else given.ran.get(given.trace.k, {})
    tpot, stepped = figures.get("tpot_ms"), figures.get("step_token_ms")
    if tpot is None or stepped is None or model.unit != "step":
        return None
    value = token_ms + tpot - stepped
    return float(value) if value > 0 else None


def _with_error(given: Entries, told: Candidate, seen: Candidate | None) -> Candidate:
    if seen is None:
        return told
    error = _off(told.entry.tau_verified, seen.entry.tau_verified)
    time_error = _time_error(given.model, told.entry, seen.entry)
    return Candidate(replace(told.entry, replay_error=error, time_error=time_error), told.draws)


def _time_error(model: CostModel | None, told: SweepEntry, ran: SweepEntry) -> float | None:
    """How far the line over K is off what ran: by the whole round, else by the token time on one basis."""
    if model is None or told.cost_basis not in (FITTED, PROPORTIONAL):
        return None
    if model.unit == "step" and ran.round_ms is not None and ran.relative_token_time_basis != LOWER_BOUND:
        return _off(told.round_ms, ran.round_ms)
    if told.relative_token_time_basis != ran.relative_token_time_basis:
        return None
    return _off(told.relative_token_time, ran.relative_token_time)


def _off(told: float | None, ran: float | None) -> float | None:
    return None if told is None or not ran else told / ran - 1.0


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None
