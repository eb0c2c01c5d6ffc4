"""`tracelens gap`: why the observed speedup is not the planned one, cause by cause."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis import coverage, verdict
from tracelens.analysis.answers import Key
from tracelens.analysis.claim import Claim
from tracelens.analysis.ratios import MOST, Ratios, stratum_ratios
from tracelens.analysis.ratios import NAMES as RATIOS
from tracelens.analysis.ratios import QUERIES as QUERIES
from tracelens.analysis.results import BaselineTerm, GapResult, GapStratum, GapTerm, Stratum, Warning
from tracelens.analysis.session import Question, Session, opened
from tracelens.errors import InputError
from tracelens.executors import Executor
from tracelens.model.gap import NAMES, Gap, Observed, Term, decompose, log_mean
from tracelens.model.linear import gradient, interval

Floats = NDArray[np.float64]
Values = Mapping[str, float | None]

_COLUMNS = ("log", "points", "ms_per_token")
_FARTHEST = 700.0  # of a logarithm: beyond it lie no floats


def gap(lake: Path, question: Question, executor: Executor | None = None) -> GapResult:
    """Split the gap between the claimed and the observed speedup, by stratum and in total (MODEL.md 5).

    With an executor the rounds are read there.

    Raises:
        InputError: no claim; no lake there, an unknown column or run, a `where` that does not fit.
    """
    _claim(question)
    with opened(lake, question, QUERIES, executor) as session:
        return gap_of(session)


def gap_of(session: Session) -> GapResult:
    """The same over a session that was opened with `QUERIES`.

    Raises:
        InputError: its question has no claim.
    """
    claim = _claim(session.question)
    strata = tuple(_stratum(session, key, session.stratum(key), claim) for key in session.every_key())
    by = tuple(dict.fromkeys(session.question.by))
    told = tuple(session.missing()) if session.engines else ()
    warnings = (*_lengths_mixed(session, claim), *session.warnings())
    needed = coverage.of_interest(told, _NEEDED)
    selection = session.question.selection()
    return GapResult(by, claim.as_mapping(), strata[:-1], strata[-1], needed, warnings, selection)


def _claim(question: Question) -> Claim:
    if question.claim is None:
        raise InputError("gap needs what was planned: --claim alpha=.72,rho=.1,k=5 (or @FILE.json)")
    return question.claim


def _lengths_mixed(session: Session, claim: Claim) -> list[Warning]:
    low, high = (session.total.figures.get(f"num_speculative_tokens_{end}") for end in ("min", "max"))
    if low is None or low == high:
        return []
    text = f"runs with K {low:g} to {high:g} are pooled against a claim of K {claim.k}: choose one with --run"
    return [Warning("k_mixed", text, {"k_low": low, "k_high": high})]


# Figures that the terms and the two speedups hang on.
_NEEDED = {
    "draft_accept_ratio", "token_accept_prob", "tau_verified", "tau_drafted", "tau_committed", "rho",
    "verify_inflation", "round_cost", "speedup_step", "speedup_tpot", "draft_ms", "target_ms", "step_ms", "sample_ms",
    "rollback_ms", "repack_ms", "emit_lag_ms", "baseline_ms", "tpot_ms", "task_type", "temperature",
}  # fmt: skip


def _stratum(session: Session, key: Key, stratum: Stratum, claim: Claim) -> GapStratum:
    plan, priced = claim.plan, session.priced(key)
    ratios = stratum_ratios(session.answers, key, priced)
    lengths = _lengths(session, key)
    split = decompose(plan, _observed(ratios.values, lengths))
    terms = _terms(split, claim, ratios, lengths)
    low, high = _speedup_bounds(stratum, split)
    figures = dict(stratum.figures)
    found = GapStratum(
        key=stratum.key,
        speedup_claimed=split.speedup_claimed,
        speedup_observed=split.speedup_observed,
        speedup_observed_low=low,
        speedup_observed_high=high,
        speedup_observed_basis=split.basis,
        baseline_basis=figures.get("baseline_tpot_basis" if split.basis == "tpot" else "baseline_basis"),
        baseline_ms=split.plain_token_ms,
        token_ms=split.token_ms,
        token_claimed_ms=_claimed_ms(split, claim),
        baseline=_baseline_term(split, claim),
        terms=terms,
        unmeasured=split.unmeasured,
        figures=figures,
        verdict="",
    )
    return dataclasses.replace(found, verdict=verdict.sentence(found, claim))


def _lengths(session: Session, key: Key) -> dict[int, float]:
    """Rounds by draft length, over the rows that the baseline prices."""
    found: dict[int, float] = {}
    for row in session.answers.priced["rollback"].get(key, []):
        found[int(row["drafted"])] = found.get(int(row["drafted"]), 0.0) + float(row["rounds"] or 0.0)
    return found


def _observed(values: Values, lengths: Mapping[int, float]) -> Observed:
    taken = {field.name: values.get(field.name) for field in dataclasses.fields(Observed) if field.name in RATIOS}
    step, every, tau = (values.get(name) for name in ("step_ms", "every_step_ms", "tau_committed"))
    extra: dict[str, float] = {}
    if step is not None and every is not None and tau:
        extra["prefill_interference"] = (every - step) / tau
    lag = values.get("emit_lag_ms")
    if lag is not None and tau:
        extra["emit_lag"] = lag / tau
    return Observed(draft_lengths=tuple(lengths), length_weights=tuple(lengths.values()), extra_ms=extra, **taken)


def _claimed_ms(split: Gap, claim: Claim) -> float | None:
    """Planned time of a token: of the baseline it was planned against, else of the one that was measured."""
    plain = claim.baseline_ms if claim.baseline_ms is not None else split.plain_token_ms
    return None if plain is None or split.token_ms is None else plain / split.speedup_claimed


def _columns(split: Gap, claim: Claim) -> Floats:
    """ln of the factor, points of speedup and ms a token of every term by NAMES; rows of absent terms are 0."""
    table = np.zeros((len(NAMES), len(_COLUMNS)))
    planned = _claimed_ms(split, claim)
    for term in split.terms:
        points = ms = 0.0
        if split.speedup_observed is not None and split.token_ms is not None and planned is not None:
            points = log_mean(split.speedup_observed, split.speedup_claimed) * term.log
            ms = -log_mean(split.token_ms, planned) * term.log
        table[NAMES.index(term.name)] = term.log, points, ms
    return table


def _terms(split: Gap, claim: Claim, ratios: Ratios, lengths: Mapping[int, float]) -> tuple[GapTerm, ...]:
    known = ratios.known()
    table = _columns(split, claim)
    sources = ratios.part(known)
    slopes: Floats | None = None
    if sources and known:

        def columns(values: Floats) -> Floats:
            moved = {**ratios.values, **dict(zip(known, values.tolist(), strict=True))}
            return _columns(decompose(claim.plan, _observed(moved, lengths)), claim).ravel()

        start = np.array([ratios.values[name] for name in known], dtype=np.float64)
        most = [MOST.get(name, math.inf) for name in known]
        slopes = gradient(columns, start, most).reshape(len(NAMES), len(_COLUMNS), len(known))
    told = split.speedup_observed is not None
    found = []
    for term in split.terms:
        row = NAMES.index(term.name)
        bounds = {
            name: None if slopes is None else interval(float(table[row, i]), slopes[row, i], sources)
            for i, name in enumerate(_COLUMNS)
        }
        log, points, ms = (bounds[name] for name in _COLUMNS)
        planned, observed = _moved(term, split, claim, ratios.values)
        found.append(
            GapTerm(
                name=term.name,
                factor=math.exp(max(min(term.log, _FARTHEST), -_FARTHEST)),
                factor_low=None if log is None else math.exp(max(log.low, -_FARTHEST)),
                factor_high=None if log is None else math.exp(min(log.high, _FARTHEST)),
                points=float(table[row, 1]) if told else None,
                points_low=points.low if told and points else None,
                points_high=points.high if told and points else None,
                ms_per_token=float(table[row, 2]) if told else None,
                ms_per_token_low=ms.low if told and ms else None,
                ms_per_token_high=ms.high if told and ms else None,
                measured=term.measured,
                includes=term.includes,
                planned=planned,
                observed=observed,
            )
        )
    return tuple(found)


def _moved(term: Term, split: Gap, claim: Claim, values: Values) -> tuple[float | None, float | None]:
    """The quantity behind a term: as planned (or before the cause), and as observed."""
    if {"verify_inflation", "rho_drift"} <= set(term.includes):
        return (None if split.round_cost is None else claim.plan.cost), split.round_cost
    plain = values.get("plain_ms")

    def over(time: str) -> float | None:
        value = values.get(time)
        return None if value is None or not plain else value / plain

    # Emitted tokens over K hold the target's own: without it they are accepted over drafted ones.
    alpha = claim.alpha - 1.0 / claim.k if claim.form == "article_tokens" else claim.alpha
    acceptance = values.get("token_accept_prob" if claim.form == "iid" else "draft_accept_ratio")
    found: dict[str, tuple[float | None, float | None]] = {
        "alpha_shift": (alpha, acceptance),
        "k_shift": (float(claim.k), _draft_length(values)),
        "terminal_cuts": (values.get("tau_verified"), values.get("tau_drafted")),
        "plain_steps": (values.get("tau_drafted") or values.get("tau_verified"), values.get("tau_committed")),
        "verify_inflation": (1.0, over("target_ms")),
        "rho_drift": (claim.rho, over("draft_ms_per_token")),
        "sampling": (0.0, over("sample_ms")),
        "rollback": (0.0, over("rollback_ms")),
        "repack": (0.0, over("repack_ms")),
        "baseline_beyond_steps": (plain, values.get("plain_tpot_ms")),
    }
    return found.get(term.name, (None, None))


def _draft_length(values: Values) -> float | None:
    """Mean drafted tokens of the rounds that drafted; of all rounds where nobody knows which did."""
    drafted, share = values.get("mean_drafted"), values.get("drafting_share")
    return drafted / share if drafted is not None and share else drafted


def _speedup_bounds(stratum: Stratum, split: Gap) -> tuple[float | None, float | None]:
    if split.basis not in ("tpot", "step"):
        return None, None
    figures = stratum.figures
    return figures.get(f"speedup_{split.basis}_low"), figures.get(f"speedup_{split.basis}_high")


def _baseline_term(split: Gap, claim: Claim) -> BaselineTerm:
    planned = _claimed_ms(split, claim)
    if claim.baseline_ms is None or split.plain_token_ms is None or planned is None or split.token_ms is None:
        return BaselineTerm(1.0, 0.0, False)
    factor = claim.baseline_ms / split.plain_token_ms
    return BaselineTerm(factor, -log_mean(split.token_ms, planned) * math.log(factor), True)
