"""Which figures a lake cannot give, why, and what to switch on in the engine that wrote it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tracelens.analysis.results import Missing, Stratum

# What each figure hangs on, the likeliest gap first.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "draft_accept_ratio": ("counts", "drafted"),
    "token_accept_prob": ("counts", "draft_lengths"),
    "hazard": ("counts", "draft_lengths"),
    "survival": ("counts", "draft_lengths"),
    "tau_verified": ("counts", "rounds"),
    "tau_drafted": ("counts", "emitted"),
    "tau_committed": ("counts", "rounds"),
    "terminal_overcount": ("counts", "emitted"),
    "tau_request_mean": ("counts", "requests"),
    "n_eff": ("counts", "requests"),
    "top_share": ("counts", "requests"),
    "rho": ("draft_time", "baseline"),
    "rho_verify": ("draft_time", "target_time"),
    "rho_round": ("draft_time", "baseline"),
    "verify_inflation": ("target_time", "baseline"),
    "overhead": ("draft_time", "target_time", "step_time", "baseline"),
    "round_cost": ("step_time", "baseline"),
    "baseline_ms": ("baseline",),
    "relative_token_time_article": ("draft_time", "baseline", "drafted", "length"),
    "speedup_article": ("draft_time", "baseline", "drafted", "length"),
    "speedup_with_bonus": ("draft_time", "baseline", "drafted", "length"),
    "speedup_iid": ("draft_time", "baseline", "draft_lengths", "length"),
    "relative_token_time": ("step_time", "baseline", "rounds"),
    "speedup_step": ("step_time", "baseline", "rounds"),
    "speedup_tpot": ("tpot", "baseline_tpot"),
    "speedup_observed": ("tpot", "baseline_tpot", "step_time", "baseline"),
    "tpot_ms": ("tpot",),
    "tpot_p50_ms": ("tpot",),
    "tpot_p95_ms": ("tpot",),
    "near_k_round_share": ("counts", "draft_lengths"),
    "near_k_request_share": ("counts", "draft_lengths", "requests"),
    "near_k_draft_ms": ("single_rounds", "draft_time", "step_share"),
    "near_k_step_ms": ("single_rounds", "step_time", "step_share"),
    "rollback_request_share": ("counts", "draft_lengths", "requests"),
    "rollback_len": ("counts", "draft_lengths"),
    "draft_ms": ("draft_time",),
    "target_ms": ("target_time",),
    "step_ms": ("step_time",),
    "sample_ms": ("sample_time",),
    "rollback_ms": ("rollback_time",),
    "repack_ms": ("repack_time",),
    "emit_lag_ms": ("emit_lag",),
    "verify_waste": ("counts", "drafted", "rounds"),
    "break_even_alpha": ("step_time", "baseline", "drafted"),
}

_BECAUSE = {
    "counts": "no record counts accepted drafts",
    "drafted": "no record counts drafted tokens",
    "draft_lengths": "no record tells rounds that kept every draft from rounds that lost one",
    "rounds": "no record counts rounds",
    "emitted": "no record counts committed tokens beside its rounds",
    "requests": "counts come by interval, not by request",
    "single_rounds": "counts come by request or interval, not by round",
    "step_share": "no record says how many requests shared a step",
    "draft_time": "no record holds the time of drafting",
    "target_time": "no record holds the time of the verify pass",
    "step_time": "no record holds the time of a whole step",
    "sample_time": "no record holds the time of rejection sampling",
    "rollback_time": "no record holds the time of KV repair after a rejection",
    "repack_time": "no record holds the time of candidate assembly and batch re-arrangement",
    "emit_lag": "no record says when accepted tokens were sent",
    "tpot": "no record holds the decode time of a request",
    "baseline": "nothing ran without speculation, and no step could stand in for it",
    "baseline_tpot": "no run without speculation has a TPOT",
    "length": "no record holds the draft length",
}

_BASELINE = (
    "run the same traffic without speculation and ingest it with `--role baseline`, or name one: `--baseline RUN|MS`"
)
_PLUGIN = "install the tracelens recorder in the engine, or hand in canonical JSON lines (engine `generic`)"
_VLLM_TIMES = (
    "none of vLLM's logs has it (from 0.10; V0 had stage times up to 0.9.2): "
    "take a torch profile or run the tracelens recorder (vLLM plug-in)"
)
_VLLM_ROUNDS = (
    "from 0.29: `--per-request-spec-decode-metrics detailed --enable-force-include-usage`, and keep responses"
)
_RTP_TIMES = (
    "RTP-LLM logs it up to 2026-03-15 (v0.2.0 inside) with LOG_LEVEL=DEBUG in engine.log "
    "(total_step_time, propose_time, score_time); later builds do not: take a timeline trace"
)
_SWITCH: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "counts": "keep log stats on (no `--disable-log-stats`): `SpecDecoding metrics` lines; or scrape /metrics",
        "drafted": "keep log stats on: `SpecDecoding metrics` lines; or scrape /metrics",
        "rounds": "vLLM 0.8.5 or later prints what rounds follow from; or scrape /metrics (spec_decode_num_drafts)",
        "draft_lengths": _VLLM_ROUNDS,
        "emitted": "from 0.25: `--enable-per-request-metrics`, from 0.29: " + _VLLM_ROUNDS[11:],
        "requests": _VLLM_ROUNDS,
        "single_rounds": _VLLM_ROUNDS,
        "step_share": "run the tracelens recorder (vLLM plug-in)",
        "draft_time": _VLLM_TIMES,
        "target_time": _VLLM_TIMES,
        "sample_time": _VLLM_TIMES,
        "rollback_time": _VLLM_TIMES,
        "repack_time": _VLLM_TIMES,
        "step_time": "scrape /metrics (inter_token_latency is the time of a round), or run the tracelens recorder",
        "tpot": "from 0.25: `--enable-per-request-metrics`; or ingest `vllm bench serve` results",
    },
    "rtp-llm": {
        "counts": "keep access logs of a build from 2026-08-20 (aux_info.speculative_draft_rounds), or LOG_LEVEL=DEBUG",
        "drafted": "keep access logs of a build from 2026-08-20 and engine settings (gen_num_per_cycle)",
        "rounds": "keep access logs of a build from 2026-08-20 (aux_info.speculative_draft_rounds)",
        "draft_lengths": "keep access logs of a build from 2026-08-20 (speculative_accepted_tokens_per_pos)",
        "emitted": "keep access logs with aux_info (output_len)",
        "requests": "keep access logs with aux_info",
        "single_rounds": "set LOG_LEVEL=DEBUG: one line a stream and round in engine.log",
        "step_share": "set LOG_LEVEL=DEBUG: one line a stream and round in engine.log",
        "draft_time": _RTP_TIMES,
        "target_time": _RTP_TIMES,
        "sample_time": _RTP_TIMES,
        "step_time": "set LOG_LEVEL=DEBUG: the period between rounds in engine.log",
        "tpot": "keep access logs with aux_info (cost_time, first_token_cost_time)",
    },
    "llama.cpp": {
        "counts": "keep the server log at its default level (`draft acceptance`)",
        "draft_lengths": "set LLAMA_TRACE=1: one line a round",
        "single_rounds": "set LLAMA_TRACE=1: one line a round",
        "requests": "keep the server log at its default level",
        "rounds": "set LLAMA_TRACE=1, or scrape /metrics (spec_decode_num_drafts_total)",
        "draft_time": "run the server with `-lv 4`: cumulative `statistics` lines with dur(b,g,a)",
        "tpot": "keep the server log at its default level (`eval time`)",
    },
}


def missing_figures(total: Stratum, strata: Sequence[Stratum], engines: Collection[str]) -> tuple[Missing, ...]:
    """Name every figure that is null in the total, and every one that only some strata lack."""
    held = _held(total.figures)
    found = []
    for figure, needs in NEEDS.items():
        if total.figures.get(figure) is None:
            need = next((n for n in needs if n not in held), needs[-1])
            found.append(Missing(figure, _reason(figure, need, total), _switch(need, engines)))
            continue
        lacking = [s for s in strata if s.figures.get(figure) is None]
        if lacking:
            names = "; ".join(_name(s) for s in lacking[:5]) + ("; …" if len(lacking) > 5 else "")
            need = next((n for n in needs if n not in _held(lacking[0].figures)), needs[-1])
            because = f"{_BECAUSE[need]} in {len(lacking)} of {len(strata)} strata: {names}"
            found.append(Missing(figure, because, _switch(need, engines)))
    return tuple(found)


def _reason(figure: str, need: str, total: Stratum) -> str:
    if figure == "speedup_step" and total.figures.get("relative_token_time_basis") == "lower_bound":
        return "no record holds the time of a whole step; relative_token_time is a lower bound from its parts"
    return _BECAUSE[need]


def _held(figures: Mapping[str, Any]) -> set[str]:
    """What the figures that are there prove to be logged."""
    proofs = {
        "counts": figures.get("accepted"),
        "drafted": figures.get("draft_accept_ratio"),
        "draft_lengths": figures.get("token_accept_prob"),
        "rounds": figures.get("tau_verified"),
        "emitted": figures.get("tau_drafted"),
        "requests": figures.get("requests") or None,
        "single_rounds": True if "round" in (figures.get("grain") or "") else None,
        "draft_time": figures.get("draft_ms_per_token"),
        "target_time": figures.get("target_ms"),
        "step_time": figures.get("step_ms"),
        "sample_time": figures.get("sample_ms"),
        "rollback_time": figures.get("rollback_ms"),
        "repack_time": figures.get("repack_ms"),
        "emit_lag": figures.get("emit_lag_ms"),
        "tpot": figures.get("tpot_ms"),
        "baseline": figures.get("baseline_ms"),
        "baseline_tpot": figures.get("baseline_tpot_ms"),
        "length": figures.get("theory_length"),
    }
    return {name for name, proof in proofs.items() if proof is not None}


def _switch(need: str, engines: Collection[str]) -> str:
    if need in ("baseline", "baseline_tpot"):
        return _BASELINE
    texts = [(engine, _SWITCH.get(engine, {}).get(need, _PLUGIN)) for engine in sorted(engines)]
    if len({text for _, text in texts}) <= 1:
        return texts[0][1] if texts else _PLUGIN
    return "; ".join(f"{engine}: {text}" for engine, text in texts)


def _name(stratum: Stratum) -> str:
    return ", ".join(f"{key}={'(none)' if value is None else value}" for key, value in stratum.key.items())
