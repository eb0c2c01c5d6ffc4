"""The truth of a run: what was planted, and what came out, exactly.

`realised` counts one run; `planted_values` is the same count over a run so large that it stands for the population.
Names and conventions are those of MODEL.md: request view, steps with prefill left out of the mean times.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache, lru_cache
from typing import Any

import numpy as np

from .parameters import CLAIM, CONCURRENCY, CONCURRENCY_BLOCK, TASKS, VLLM_SITE, Site
from .simulator import Bools, Simulation, simulate

POPULATION_REQUESTS = 12_000
POPULATION_SEED = 20_261_129
BATCH_EDGES = (2, 3, 5, 9, 17)
#: Figures that grow with the run: no population values.
SIZES = (
    *("requests", "rounds", "plain", "drafted", "accepted", "emitted", "output_tokens", "accepted_hist"),
    *("terminal_cut_tokens", "near_k_rounds", "rounds_without_prefill", "n_eff", "top_share", "steps"),
)


def realised(sim: Simulation, baseline: Simulation | None = None) -> dict[str, Any]:
    """Exact figures of a run, in total and by task; with a baseline run also rho, v, o and the speedups."""
    out: dict[str, Any] = {"total": _figures(sim, None, baseline), "by_task": {}}
    for i, task in enumerate(sim.tasks):
        out["by_task"][task.name] = _figures(sim, i, baseline)
    return out


@cache
def planted_values(
    k: int = 5, site: Site = VLLM_SITE, requests: int = POPULATION_REQUESTS, length_scale: float = 1.0
) -> dict[str, Any]:
    """Population values at draft length k, with neither runaway nor small-sample luck. Do not change the result."""
    baseline = _population(site, 0, requests, length_scale)
    sim = baseline if k == 0 else _population(site, k, requests, length_scale)
    values = realised(sim, None if k == 0 else baseline)
    for figures in (values["total"], *values["by_task"].values()):
        for name in SIZES:
            figures.pop(name, None)
    return values


@lru_cache(maxsize=2)
def _population(site: Site, k: int, requests: int, length_scale: float) -> Simulation:
    return simulate(POPULATION_SEED, k, requests, site=site, runaway=False, length_scale=length_scale)


def planted_parameters(site: Site) -> dict[str, Any]:
    """The parameters themselves, as they stand in `parameters.py`."""
    return {
        "claim": CLAIM,
        "tasks": {task.name: asdict(task) for task in TASKS},
        "site": asdict(site),
        "concurrency": {"plan": list(CONCURRENCY), "requests_per_entry": CONCURRENCY_BLOCK},
    }


def _ratio(a: float, b: float) -> float | None:
    return round(float(a) / float(b), 9) if b else None


def _figures(sim: Simulation, task: int | None, baseline: Simulation | None) -> dict[str, Any]:
    rows = np.ones(len(sim), dtype=bool) if task is None else sim.task == task
    mine = np.ones(len(sim.requests), dtype=bool) if task is None else sim.requests.task == task
    out = _counts(sim, rows, mine)
    clean = rows & ~sim.has_prefill
    times = {
        "mean_draft_ms": _mean_ms(sim.draft_us[clean]) if sim.k else None,
        "mean_target_ms": _mean_ms(sim.target_us[clean]),
        "mean_sample_ms": _mean_ms(sim.sampler_us[clean]),
        "mean_step_ms": _mean_ms(sim.step_us[clean]),
    }
    out |= times
    out["rounds_without_prefill"] = int(clean.sum())
    out["mean_batch"] = _ratio(sim.batch_size[rows].sum(), rows.sum())
    out["tpot_ms"] = _tpot_ms(sim, mine)
    tpots = sim.requests.decode_us[mine] / 1000 / (sim.requests.output_tokens[mine] - 1)
    out["tpot_request_mean_ms"] = round(float(tpots.mean()), 6)
    if baseline is not None:
        out |= _against(sim, task, clean, out, baseline)
    return out


def _counts(sim: Simulation, rows: Bools, mine: Bools) -> dict[str, Any]:
    d, a, e = sim.drafted[rows], sim.accepted[rows], sim.emitted[rows]
    n = int((d > 0).sum())
    rejected = int((a < d).sum())
    rollback = d - a
    near = int(((rollback >= d - 1) & (rollback > 0) & (d > 0)).sum())
    of_request = sim.requests.rounds[mine]
    return {
        "requests": int(mine.sum()),
        "rounds": n,
        "plain": int((d == 0).sum()),
        "drafted": int(d.sum()),
        "accepted": int(a.sum()),
        "emitted": int(e.sum()),
        "output_tokens": int(sim.requests.output_tokens[mine].sum()),
        "accepted_hist": np.bincount(a, minlength=sim.k + 1).tolist() if n else [],
        "terminal_cut_tokens": int((a + 1 - e).sum()),
        "draft_accept_ratio": _ratio(a.sum(), d.sum()),
        "token_accept_prob": _ratio(a.sum(), a.sum() + rejected),
        "tau_verified": _ratio(n + a[d > 0].sum(), n),
        "tau_drafted": _ratio(e[d > 0].sum(), n),
        "tau_committed": _ratio(e.sum(), len(e)),
        "near_k_rounds": near,
        "near_k_round_share": _ratio(near, n),
        "n_eff": _ratio(float(of_request.sum()) ** 2, float((of_request.astype(float) ** 2).sum())),
        "top_share": _ratio(of_request.max(), of_request.sum()),
        "steps": len(np.unique(sim.step[rows])),
    }


def _mean_ms(values: np.ndarray[Any, Any]) -> float | None:
    return round(float(values.sum()) / len(values) / 1000, 6) if len(values) else None


def _tpot_ms(sim: Simulation, mine: Bools) -> float | None:
    """Token-weighted: all decode time over all tokens after the first."""
    tokens = int((sim.requests.output_tokens[mine] - 1).sum())
    return round(float(sim.requests.decode_us[mine].sum()) / tokens / 1000, 6) if tokens else None


def _against(
    sim: Simulation, task: int | None, clean: Bools, out: dict[str, Any], baseline: Simulation
) -> dict[str, Any]:
    own = np.ones(len(baseline), dtype=bool) if task is None else baseline.task == task
    plain = own & ~baseline.has_prefill
    t_ar = float(baseline.step_us[plain].mean()) / 1000
    people = np.ones(len(baseline.requests), dtype=bool) if task is None else baseline.requests.task == task
    base_tpot = _tpot_ms(baseline, people)
    assert base_tpot is not None
    base_mean = (baseline.requests.decode_us[people] / 1000 / (baseline.requests.output_tokens[people] - 1)).mean()
    result = {
        "baseline_ms": round(t_ar, 6),
        "baseline_ms_same_batch": _same_batch(sim, clean, baseline, plain),
        "baseline_tpot_ms": base_tpot,
        "rho": _ratio(out["mean_draft_ms"], sim.k * t_ar),
        "verify_inflation": _ratio(out["mean_target_ms"], t_ar),
        "overhead": _ratio(out["mean_step_ms"] - out["mean_draft_ms"] - out["mean_target_ms"], t_ar),
        "round_cost": _ratio(out["mean_step_ms"], t_ar),
        "speedup_step": _ratio(out["tau_committed"] * t_ar, out["mean_step_ms"]),
        "speedup_observed": _ratio(base_tpot, out["tpot_ms"]),
        "speedup_request_mean": _ratio(base_mean, out["tpot_request_mean_ms"]),
    }
    return result


def _same_batch(sim: Simulation, clean: Bools, baseline: Simulation, plain: Bools) -> float | None:
    """Baseline step time with the batch buckets (1; 2; 3-4; 5-8) weighted as in the speculating run."""
    mine = np.digitize(sim.batch_size[clean], BATCH_EDGES)
    theirs = np.digitize(baseline.batch_size[plain], BATCH_EDGES)
    time = baseline.step_us[plain]
    weight, total = 0, 0.0
    for bucket in np.unique(mine):
        here = theirs == bucket
        if here.any():
            count = int((mine == bucket).sum())
            weight += count
            total += count * float(time[here].mean())
    return round(total / weight / 1000, 6) if weight else None
