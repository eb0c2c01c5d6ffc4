"""One entry a K and source of a sweep, each with draws of its relative token time, and the best K among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.claim import Claim
from tracelens.analysis.sweep_costs import CLAIMED, OBSERVED, Cost, CostModel
from tracelens.analysis.sweep_trace import Trace
from tracelens.model.acceptance import TokenAcceptProb, expected_tokens
from tracelens.model.choice import REPLICATES, best_interval, log_normal, quantiles
from tracelens.model.intervals import t_quantile

Floats = NDArray[np.float64]

SOURCES = ("observed", "replayed", "geometric")
_COMMON_STREAM = 0


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """What one draft length gives: `source` is observed (it ran), replayed or geometric.

    `tau_verified` counts the target's own token, over rounds with a draft; `tau_committed` is over all rounds.
    `round_ms` is the mean over all request-rounds. `cost_basis` is observed, fitted, proportional or claim; None
    without a cost. `relative_token_time_basis` is step, lower_bound, tpot or claim. `replay_error` is
    replayed over observed tau_verified, less 1.
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
    rounds: int | float | None = None
    requests: int | float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry and draws of its relative token time; None where it has none or they tell of no spread."""

    entry: SweepEntry
    draws: Floats | None = None


@dataclass(frozen=True, slots=True)
class Best:
    """The best K and its interval; all None where nothing can be compared."""

    k: int | None = None
    low: int | None = None
    high: int | None = None
    relative_token_time: float | None = None


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
            made.append(_with_error(told, seen))
    return made


def best(made: Sequence[Candidate], level: float) -> Best:
    """Find the K of the least relative token time, 0 (off, 1 by definition) among them, with a bootstrap interval.

    An observed entry goes before a replayed one of the same K.
    """
    by_k: dict[int, Candidate] = {}
    for candidate in made:
        if candidate.entry.relative_token_time is not None:
            by_k.setdefault(candidate.entry.k, candidate)
    if not by_k:
        return Best()
    values = {0: 1.0} | {k: float(c.entry.relative_token_time or math.inf) for k, c in by_k.items()}
    draws = {0: np.ones(REPLICATES)} | {
        k: c.draws if c.draws is not None else np.full(REPLICATES, values[k]) for k, c in by_k.items()
    }
    chosen = min(values, key=lambda k: (values[k], k))
    spread = any(c.draws is not None for c in by_k.values())
    ks = sorted(values)
    low, high = best_interval(ks, [draws[k] for k in ks], level) if spread else (None, None)
    return Best(chosen, low, high, values[chosen])


def _observed(given: Entries, k: int) -> Candidate:
    figures = given.ran[k]
    time, basis, ends = figures.get("relative_token_time"), figures.get("relative_token_time_basis"), None
    if time is not None:
        ends = (figures.get("relative_token_time_low"), figures.get("relative_token_time_high"))
    elif figures.get("speedup_tpot"):
        time, basis = 1.0 / figures["speedup_tpot"], "tpot"
        ends = (_inverse(figures.get("speedup_tpot_high")), _inverse(figures.get("speedup_tpot_low")))
    cost_basis = None if time is None else OBSERVED
    committed = figures.get("tau_committed")
    if time is None and given.by_claim and given.claim is not None and committed:
        time, basis, cost_basis = (1.0 + given.claim.rho * k) / committed, CLAIMED, CLAIMED
        ends = _claimed_ends(given.claim, k, figures)
    low, high = ends if ends is not None else (None, None)
    draws = None
    if time is not None and low is not None and high is not None and low > 0:
        draws = log_normal(time, _log_deviation(low, high, given.level), k)
    draft, target, step = (figures.get(name) for name in ("draft_ms", "target_ms", "step_ms"))
    entry = SweepEntry(
        k, "observed",
        tau_verified=figures.get("tau_verified"), tau_verified_low=figures.get("tau_verified_low"),
        tau_verified_high=figures.get("tau_verified_high"), tau_committed=committed, draft_ms=draft, target_ms=target,
        rest_ms=None if draft is None or target is None or step is None else step - draft - target,
        round_ms=step, relative_token_time=time, relative_token_time_low=low, relative_token_time_high=high,
        relative_token_time_basis=basis, tpot_ms=figures.get("tpot_ms"),
        speedup_observed=figures.get("speedup_observed"), cost_basis=cost_basis, rounds=figures.get("rounds"),
        requests=figures.get("requests"),
    )  # fmt: skip
    return Candidate(entry, draws)


def _claimed_ends(claim: Claim, k: int, figures: Mapping[str, Any]) -> tuple[float | None, float | None]:
    low, high = figures.get("tau_committed_low"), figures.get("tau_committed_high")
    cost = 1.0 + claim.rho * k
    return (cost / high if high else None, cost / low if low else None)


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


def _time_draws(entry: SweepEntry, committed: Floats, common: Floats) -> Floats | None:
    if entry.relative_token_time is None or entry.tau_committed is None:
        return None
    scale = np.divide(entry.tau_committed, committed, out=np.full(committed.shape, np.inf), where=committed > 0)
    return np.asarray(entry.relative_token_time * scale * common, dtype=np.float64)


def _common_draws(given: Entries) -> Floats:
    """Draws of the spread that all replayed K share: that of the round's cost and of its baseline.

    Where only TPOT tells of a round it is that of the trace's own speedup, which is wider: it holds acceptance too.
    """
    figures, name = given.figures, "round_cost"
    if given.model is not None and given.model.unit == "tpot" and given.trace is not None:
        figures, name = given.ran.get(given.trace.k, {}), "speedup_tpot"
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    if given.by_claim or low is None or high is None or low <= 0:
        return np.ones(REPLICATES)
    return log_normal(1.0, _log_deviation(low, high, given.level), _COMMON_STREAM)


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
        extrapolated=k > (figures.get("num_speculative_tokens_max") or k),
    )  # fmt: skip
    return Candidate(_priced(given, entry, plain))


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


def _with_error(told: Candidate, seen: Candidate | None) -> Candidate:
    if seen is None or not seen.entry.tau_verified or told.entry.tau_verified is None:
        return told
    error = told.entry.tau_verified / seen.entry.tau_verified - 1.0
    return Candidate(replace(told.entry, replay_error=error), told.draws)


def _log_deviation(low: float, high: float, level: float) -> float:
    return math.log(high / low) / 2.0 / t_quantile(level, math.inf)


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None
