"""A gap and a gate with invented figures: every kind of term, a hostile label, nothing measured."""

from __future__ import annotations

import math
from typing import Any

from tracelens.analysis.gate import GateOptions, GateResult, GateStratum
from tracelens.analysis.results import BaselineTerm, GapResult, GapStratum, GapTerm, Missing, Warning

from .fixture import HOSTILE

CLAIM = {"alpha": 0.72, "rho": 0.1, "k": 5, "form": "article", "baseline_ms": 20.0}


def _term(name: str, factor: float, measured: bool = True, **more: Any) -> GapTerm:
    points = 1.99 * math.log(factor)
    told: dict[str, Any] = {
        "factor_low": factor * 0.98, "factor_high": factor * 1.02, "points": points, "points_low": points - 0.04,
        "points_high": points + 0.04, "ms_per_token": -10.2 * math.log(factor), "ms_per_token_low": None,
        "ms_per_token_high": None,
    }  # fmt: skip
    return GapTerm(name=name, factor=factor, measured=measured, **(told | more))


def _gap(key: dict[str, Any], **changed: Any) -> GapStratum:
    base: dict[str, Any] = {
        "speedup_claimed": 2.4, "speedup_observed": 1.612, "speedup_observed_low": 1.558,
        "speedup_observed_high": 1.667, "speedup_observed_basis": "tpot", "baseline_basis": "run_tpot",
        "baseline_ms": 21.34, "token_ms": 13.24, "token_claimed_ms": 8.33,
        "baseline": BaselineTerm(0.937, 0.67, True), "unmeasured": ("rollback", "repack"),
        "figures": {"draft_accept_ratio": 0.61, "control_runs": 2, "control_spread": 0.043},
        "verdict": "planned 2.40x, observed 1.61x [1.56, 1.67]: draft cost ρ 0.10 → 0.28 takes 0.82; counting the "
        "target's own token, which the plan left out, gives 0.49. Not told apart in these logs: KV repair.",
        "terms": (
            _term("convention", 1.278, points_low=None, points_high=None),
            _term("alpha_shift", 0.9, planned=0.72, observed=0.61),
            _term("k_shift", 1.0),
            _term("terminal_cuts", 0.985, planned=4.14, observed=4.08),
            _term("verify_inflation", 0.925, planned=1.0, observed=1.15),
            _term("rho_drift", 0.655, planned=0.1, observed=0.28),
            _term("unattributed", 0.99, False, includes=("rollback", "repack")),
        ),
    }  # fmt: skip
    return GapStratum(key=key, **(base | changed))


def gap() -> GapResult:
    nothing: dict[str, Any] = {
        "speedup_observed": None, "speedup_observed_low": None, "speedup_observed_high": None,
        "speedup_observed_basis": None, "baseline_basis": None, "baseline_ms": None, "token_ms": None,
        "token_claimed_ms": None, "baseline": BaselineTerm(1.0, 0.0, False), "figures": {},
        "unmeasured": ("verify_inflation", "rho_drift"),
        "terms": (_term("convention", 1.278, points=None, points_low=None, points_high=None, ms_per_token=None),),
        "verdict": "planned 2.40x; the observed speedup cannot be told: no time of a token is in these logs.",
    }  # fmt: skip
    return GapResult(
        ("task_type",),
        CLAIM,
        (_gap({"task_type": "code"}), _gap({"task_type": HOSTILE}, **nothing)),
        _gap({}),
        (Missing("rollback_ms, repack_ms", "no record holds the time of KV repair", "write canonical JSON lines"),),
        (Warning("phases_overlap", "the phases overlap", {"overhead": -0.05}),),
    )


def gap_of_nothing() -> GapResult:
    found = gap()
    warning = Warning("nothing_selected", "Nothing to report: the lake holds no records.")
    return GapResult(("task_type",), CLAIM, (), found.strata[1], (), (warning,))


def _gate(key: dict[str, Any], **changed: Any) -> GateStratum:
    base: dict[str, Any] = {
        "decision": "GO", "reasons": ("relative token time 0.541 [0.520, 0.562] lies below 0.98",), "advice": (),
        "relative_token_time": 0.541, "relative_token_time_low": 0.52, "relative_token_time_high": 0.562,
        "basis": "step", "baseline_basis": "run_step", "round_cost": 2.44, "draft_accept_ratio": 0.812,
        "break_even_alpha": 0.288, "alpha_distance": 0.524, "speedup_one_token_less": 1.44,
        "speedup_one_token_more": 2.26, "near_k_round_share": 0.062, "verify_waste": 0.153, "padding_waste": 0.021,
        "drag": 0.82, "off_gain_ms": -812_000.0, "off_gain_share": -0.85, "step_gain": 0.021, "requests": 410,
        "n_eff": 301.2, "num_speculative_tokens": 5, "control_runs": None, "control_spread": None,
    }  # fmt: skip
    return GateStratum(key=key, **(base | changed))


def gate() -> GateResult:
    return GateResult(
        ("task_type",),
        GateOptions(max_near_k=0.5),
        (
            _gate({"task_type": "code"}),
            _gate(
                {"task_type": "creative writing"}, decision="NO_GO", basis="tpot", relative_token_time=1.094,
                relative_token_time_low=1.05, relative_token_time_high=1.139, draft_accept_ratio=0.312,
                break_even_alpha=1.04, drag=1.61, off_gain_ms=41_200.0, off_gain_share=0.086,
                reasons=("relative token time 1.094 [1.050, 1.139] lies above 1.02",),
                advice=("switching speculation off for it would save about 9% of its engine time",),
            ),
            _gate(
                {"task_type": HOSTILE}, decision="INCONCLUSIVE", requests=None, relative_token_time=None,
                relative_token_time_low=None, relative_token_time_high=None, basis=None, break_even_alpha=None,
                drag=None, off_gain_share=None, off_gain_ms=None, padding_waste=None, speedup_one_token_less=None,
                speedup_one_token_more=None, reasons=("requests are not logged one by one",),
            ),
        ),
        _gate({}, decision="GO", drag=None),
        "NO_GO",
        (),
        (Warning("few_requests", "4 requests", {"requests": 4}),),
    )  # fmt: skip
