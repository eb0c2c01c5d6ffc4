"""Which figures a lake cannot give, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracelens.analysis.costs import LEAST_MATCHED
from tracelens.analysis.results import Missing, Stratum, named
from tracelens.analysis.switches import switch_on
from tracelens.engines.versions import Build

# What each figure hangs on, the likeliest gap first.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "draft_accept_ratio": ("counts", "drafted"),
    "token_accept_prob": ("counts", "draft_lengths"),
    "hazard": ("counts", "draft_lengths"),
    "survival": ("counts", "draft_lengths"),
    "tau_verified": ("counts", "rounds"),
    "tau_drafted": ("counts", "emitted"),
    "tau_committed": ("counts", "rounds", "plain_steps"),
    "terminal_overcount": ("counts", "emitted"),
    "tau_request_mean": ("counts", "single_requests", "requests"),
    "n_eff": ("counts", "requests"),
    "top_share": ("counts", "requests"),
    "rho": ("draft_time", "timed_drafts", "baseline", "matched", "phases_alike"),
    "rho_verify": ("draft_time", "timed_drafts", "target_time"),
    "rho_round": ("draft_time", "baseline", "matched", "phases_alike"),
    "verify_inflation": ("target_time", "baseline", "matched", "phases_alike"),
    "overhead": ("draft_time", "target_time", "step_time", "baseline", "matched", "phases_alike", "steps_alike"),
    "round_cost": ("step_time", "baseline", "matched", "steps_alike"),
    "baseline_ms": ("baseline",),
    "relative_token_time_article": (
        "draft_time",
        "timed_drafts",
        "baseline",
        "matched",
        "drafted",
        "length",
        "some_accepted",
    ),
    "speedup_article": ("draft_time", "timed_drafts", "baseline", "matched", "drafted", "length"),
    "speedup_with_bonus": ("draft_time", "timed_drafts", "baseline", "matched", "drafted", "length"),
    "speedup_iid": ("draft_time", "timed_drafts", "baseline", "matched", "draft_lengths", "length"),
    "relative_token_time": ("step_time", "baseline", "matched", "rounds", "plain_steps", "steps_alike"),
    "speedup_step": ("step_time", "baseline", "matched", "rounds", "plain_steps", "steps_alike"),
    "speedup_tpot": ("tpot", "baseline_tpot", "matched_tpot"),
    "speedup_observed": ("tpot", "baseline_tpot", "matched_tpot"),
    "tpot_ms": ("tpot",),
    "tpot_p50_ms": ("tpot",),
    "tpot_p95_ms": ("tpot",),
    "near_k_round_share": ("counts", "draft_lengths"),
    "near_k_request_share": ("counts", "draft_lengths", "single_requests", "requests"),
    "near_k_draft_ms": ("single_rounds", "draft_lengths", "draft_time", "step_share"),
    "near_k_step_ms": ("single_rounds", "draft_lengths", "step_time", "step_share"),
    "rollback_request_share": ("counts", "draft_lengths", "single_requests", "requests"),
    "rollback_len": ("counts", "draft_lengths"),
    "draft_ms": ("draft_time",),
    "target_ms": ("target_time",),
    "step_ms": ("step_time",),
    "sample_ms": ("sample_time",),
    "rollback_ms": ("rollback_time",),
    "repack_ms": ("repack_time",),
    "emit_lag_ms": ("emit_lag",),
    "verify_waste": ("counts", "drafted", "rounds"),
    "break_even_alpha": ("step_time", "baseline", "matched", "drafted", "steps_alike"),
}

# What only rounds with a draft have.
_OF_DRAFTS = {"drafted", "draft_lengths", "rounds", "emitted", "draft_time", "single_rounds", "length"}

# Groupings that only a record or a label can give.
GROUPS: Mapping[str, str] = {
    "temperature": "temperature",
    "temperature_bucket": "temperature",
    "task_type": "task_type",
}

_TIMES = {
    "draft_time": "drafting",
    "target_time": "the verify pass",
    "step_time": "a whole step",
    "sample_time": "rejection sampling",
    "rollback_time": "KV repair after a rejection",
    "repack_time": "candidate assembly and batch re-arrangement",
}
_BECAUSE = {
    "counts": "no record counts accepted drafts",
    "drafted": "no record counts drafted tokens",
    "timed_drafts": "drafting was timed, but nothing says how many tokens were drafted in that time",
    "draft_lengths": "no record tells rounds that kept every draft from rounds that lost one",
    "rounds": "no record counts rounds",
    "nothing_drafted": "no round drafted a token",
    "some_accepted": "no draft token was accepted, and the formula divides by their share",
    "plain_steps": "no record counts the steps without a draft, and this drafter often has none",
    "emitted": "no record counts committed tokens beside its rounds",
    "requests": "no record that counts has a request id",
    "single_requests": "rounds are rolled up (`tracelens compact`), which keeps no single request of them",
    "single_rounds": "counts come by request or interval, not by round",
    "step_share": "no record says how many requests shared a step",
    "emit_lag": "no record says when accepted tokens were sent",
    "tpot": "no record holds the decode time of a request",
    "baseline": "nothing ran without speculation, and no step could stand in for it",
    "baseline_tpot": "no run without speculation has a TPOT",
    "matched": f"less than {LEAST_MATCHED:.0%} of the rounds have a baseline of their own engine and model",
    "matched_tpot": f"less than {LEAST_MATCHED:.0%} of the tokens have a baseline TPOT of their own engine and model",
    "length": "no record holds the draft length",
    "phases_alike": "draft and verify times are a profiler's, and the baseline was not profiled",
    "steps_alike": "the steps are a profiler's, and the baseline was not profiled",
    "class_of_times": "step times name no class, so that only the total has them",
    "temperature": "no record holds it",
    "task_type": "no record holds it",
}
_LOWER_BOUND = "no record holds the time of a whole step; relative_token_time is a lower bound from its parts"


def missing_figures(
    total: Stratum,
    strata: Sequence[Stratum],
    engines: Collection[str],
    *,
    canonical: Collection[str] = (),
    timed_apart: bool = False,
    builds: Mapping[str, Build] | None = None,
) -> tuple[Missing, ...]:
    """Name every figure that is null in the total, and every one that only some strata lack.

    Figures with one reason and one remedy stand together (`figure` lists them). `canonical`: engines whose logs are
    canonical JSON lines. `timed_apart`: step times of these strata are known for all of them together only. `builds`:
    the versions of engines, as for `switch_on`.
    """
    others = [engine for engine in engines if engine not in canonical]
    together: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for figure, need, where in _gaps(total, strata, timed_apart=timed_apart):
        is_bound = figure == "speedup_step" and total.figures.get("relative_token_time_basis") == "lower_bound"
        # All times that are missing are one reason.
        reason = _LOWER_BOUND if is_bound else "times" if need in _TIMES else need
        figures, needs = together.setdefault((where, reason, switch_on(need, others, builds=builds)), ([], []))
        figures.append(figure)
        if need not in needs:
            needs.append(need)
    return tuple(
        Missing(
            ", ".join(figures),
            _LOWER_BOUND if reason == _LOWER_BOUND else _reason(needs) + where,
            switch_on("step_time" if reason == _LOWER_BOUND else needs, engines, canonical, builds),
        )
        for (where, reason, _), (figures, needs) in together.items()
    )


def of_interest(missing: Sequence[Missing], names: Collection[str]) -> tuple[Missing, ...]:
    """What an analysis that shows these figures alone has to say of them."""
    kept = ((item, [n for n in item.figure.split(", ") if n in names]) for item in missing)
    return tuple(replace(item, figure=", ".join(figures)) for item, figures in kept if figures)


def _gaps(total: Stratum, strata: Sequence[Stratum], *, timed_apart: bool) -> Iterator[tuple[str, str, str]]:
    """Figure, what it lacks, and in which strata (empty: everywhere)."""
    for figure, needs in NEEDS.items():
        if total.figures.get(figure) is None:
            yield figure, _lacks(needs, total), ""
            continue
        apart: dict[str, list[Stratum]] = {}
        for stratum in strata:
            if stratum.figures.get(figure) is None:
                need = _lacks(needs, stratum)
                apart.setdefault("class_of_times" if timed_apart and need in _TIMES else need, []).append(stratum)
        for need, lacking in apart.items():
            names = "; ".join(_name(s) for s in lacking[:5]) + ("; …" if len(lacking) > 5 else "")
            yield figure, need, f" in {len(lacking)} of {len(strata)} strata: {names}"
    for group, need in GROUPS.items():
        if strata and all(group in s.key and s.key[group] is None for s in strata):
            yield group, need, ""


def _lacks(needs: Sequence[str], stratum: Stratum) -> str:
    if stratum.figures.get("drafted") == 0 and _OF_DRAFTS & set(needs):
        return "nothing_drafted"
    held = _held(stratum.figures)
    return next((need for need in needs if need not in held), needs[-1])


def _reason(needs: Sequence[str]) -> str:
    """One reason, for one need or for all times that are missing."""
    times = [_TIMES[need] for need in needs if need in _TIMES]
    return f"no record holds the time of {', '.join(times)}" if times else _BECAUSE[needs[0]]


def _held(figures: Mapping[str, Any]) -> set[str]:
    """What the figures that are there prove to be logged."""
    share, tpot_share = figures.get("baseline_matched_share"), figures.get("baseline_tpot_matched_share")
    profiled = figures.get("profiled_times") or ""
    proofs = {
        "counts": figures.get("accepted"),
        "drafted": figures.get("draft_accept_ratio"),
        "some_accepted": figures.get("accepted") or None,
        "draft_lengths": figures.get("token_accept_prob"),
        "rounds": figures.get("tau_verified"),
        "emitted": figures.get("tau_drafted"),
        "plain_steps": figures.get("tau_committed"),
        "requests": figures.get("requests"),
        "single_requests": None if figures.get("rolled_rounds") else True,
        "single_rounds": True if "round" in (figures.get("grain") or "") else None,
        "draft_time": next((v for n in ("draft_ms_per_token", "draft_ms") if (v := figures.get(n)) is not None), None),
        "timed_drafts": figures.get("draft_ms_per_token"),
        "target_time": figures.get("target_ms"),
        "step_time": figures.get("step_ms"),
        "sample_time": figures.get("sample_ms"),
        "rollback_time": figures.get("rollback_ms"),
        "repack_time": figures.get("repack_ms"),
        "emit_lag": figures.get("emit_lag_ms"),
        "tpot": figures.get("tpot_ms"),
        "baseline": figures.get("baseline_ms"),
        "baseline_tpot": figures.get("baseline_tpot_ms"),
        "matched": True if share is None or share >= LEAST_MATCHED else None,
        "matched_tpot": True if tpot_share is None or tpot_share >= LEAST_MATCHED else None,
        "length": figures.get("theory_length"),
        "phases_alike": None if "phases" in profiled else True,
        "steps_alike": None if "steps" in profiled else True,
    }
    return {name for name, proof in proofs.items() if proof is not None}


def _name(stratum: Stratum) -> str:
    return named(stratum.key)
