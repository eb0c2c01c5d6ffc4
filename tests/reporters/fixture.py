"""A report with invented figures: every name of the performance model is there, some cannot be had."""

from __future__ import annotations

from typing import Any

from tracelens.analysis.results import Missing, Report, Stratum, Warning

HOSTILE = '=1+1|<b>`[red]x[/red]`</b>\x1b[31m"\n\u202eok'


def figures(**changed: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "grain": "round",
        "requests": 1240,
        "rounds": 181_204,
        "plain_steps": 311,
        "num_speculative_tokens": 5,
        "draft_accept_ratio": 0.7194,
        "draft_accept_ratio_low": 0.7012,
        "draft_accept_ratio_high": 0.7377,
        "token_accept_prob": 0.8621,
        "token_accept_prob_low": 0.851,
        "token_accept_prob_high": 0.873,
        "hazard": [0.91, 0.88, 0.86, 0.83, 0.81],
        "survival": [1.0, 0.91, 0.8008, 0.6887, 0.5716, 0.463],
        "tau_verified": 4.597,
        "tau_drafted": 4.551,
        "tau_committed": 4.512,
        "terminal_overcount": 0.046,
        "tau_request_mean": 4.48,
        "n_eff": 812.4,
        "top_share": 0.021,
        "rho": 0.2814,
        "rho_verify": 0.2411,
        "rho_round": 1.402,
        "verify_inflation": 1.167,
        "overhead": 0.233,
        "round_cost": 2.802,
        "round_cost_low": 2.71,
        "round_cost_high": 2.89,
        "draft_ms": 29.9,
        "target_ms": 24.9,
        "step_ms": 59.8,
        "baseline_ms": 21.34,
        "baseline_basis": "run_step",
        "relative_token_time": 0.621,
        "relative_token_time_low": 0.6,
        "relative_token_time_high": 0.642,
        "relative_token_time_article": 0.669,
        "speedup_article": 1.495,
        "speedup_with_bonus": 1.911,
        "speedup_iid": 1.803,
        "speedup_claimed": 2.4,
        "speedup_step": 1.61,
        "speedup_tpot": 1.612,
        "speedup_observed": 1.612,
        "speedup_observed_low": 1.558,
        "speedup_observed_high": 1.667,
        "speedup_observed_basis": "tpot",
        "near_k_round_share": 0.142,
        "near_k_excess": 0.031,
        "near_k_request_share": 0.043,
        "near_k_saved_share": 0.23,
        "break_even_alpha": 0.354,
        "near_k_draft_ms": 612_340.0,
        "near_k_draft_share": 0.139,
        "near_k_step_ms": 1_204_000.0,
        "near_k_step_share": 0.141,
        "rollback_request_share": 0.968,
        "rollback_len": {5: [83_900, 21_300, 19_400, 18_700, 12_200, 25_704]},
        "verify_waste": 0.247,
        "padding_waste": None,
        "drag": 1.0,
    }
    return base | changed


def none_of(names: tuple[str, ...]) -> dict[str, None]:
    return dict.fromkeys(names)


COST = tuple(
    n
    for n in figures()
    if n.startswith(("rho", "round_cost", "relative_token_time", "speedup_", "verify_inf", "overhead", "baseline"))
    or n in ("draft_ms", "target_ms", "step_ms")
)


def report() -> Report:
    return Report(
        by=("task_type",),
        strata=(
            Stratum(
                {"task_type": "code"},
                figures(
                    requests=410,
                    rounds=61_020,
                    draft_accept_ratio=0.812,
                    draft_accept_ratio_low=0.79,
                    draft_accept_ratio_high=0.834,
                    relative_token_time=0.541,
                    relative_token_time_low=0.52,
                    relative_token_time_high=0.562,
                    speedup_observed=1.848,
                    speedup_observed_low=1.78,
                    speedup_observed_high=1.92,
                ),
            ),
            Stratum(
                {"task_type": "creative writing"},
                figures(
                    requests=322,
                    rounds=70_400,
                    draft_accept_ratio=0.312,
                    draft_accept_ratio_low=0.29,
                    draft_accept_ratio_high=0.334,
                    tau_committed=2.56,
                    relative_token_time=1.094,
                    relative_token_time_low=1.05,
                    relative_token_time_high=1.139,
                    speedup_observed=0.914,
                    speedup_observed_low=0.88,
                    speedup_observed_high=0.95,
                    speedup_article=0.648,
                    speedup_with_bonus=1.064,
                    near_k_round_share=0.418,
                ),
            ),
            Stratum(
                {"task_type": HOSTILE},
                figures(
                    **none_of(COST),
                    **none_of(("draft_accept_ratio_low", "draft_accept_ratio_high")),
                    requests=4,
                    rounds=312,
                )
                | {"token_accept_prob": float("nan"), "near_k_draft_ms": float("inf")},
            ),
            Stratum({"task_type": None}, figures(requests=504, rounds=49_472, relative_token_time_high=1.02)),
        ),
        total=Stratum({}, figures()),
        coverage=(
            Missing("rollback_ms", "vLLM logs no KV repair time", "tracelens' vLLM plug-in (VLLM_PLUGINS=tracelens)"),
            Missing("padding_waste", "batch size is not in these records", "--disable-log-stats off"),
        ),
        warnings=(
            Warning("plain_baseline", "The baseline ran on smaller batches", {"batch": 4, "share": 0.31}),
            Warning("top_share", f"One request owns most rounds of {HOSTILE}", {"request": "\x1b]0;owned\x07"}),
        ),
        claim={"alpha": 0.72, "rho": 0.1, "k": 5, "form": "article"},
    )


def by_two() -> Report:
    """Two keys, several K in one stratum, a draft cost over the verify pass, counts of a big fleet."""
    big = figures(
        **none_of(("rho", "rho_round", "speedup_claimed", "near_k_request_share", "requests")),
        rounds=1_812_040_117,
        num_speculative_tokens=None,
        num_speculative_tokens_min=3,
        num_speculative_tokens_max=5,
        relative_token_time_basis="lower_bound",
        relative_token_time_low=None,
        relative_token_time_high=None,
        baseline_basis="verify_pass",
    )
    return Report(
        by=("task_type", "num_speculative_tokens"),
        strata=(
            Stratum({"task_type": "代码生成", "num_speculative_tokens": 5}, big | {"num_speculative_tokens": 5}),
            Stratum({"task_type": "chat", "num_speculative_tokens": None}, big),
        ),
        total=Stratum({}, big),
        coverage=(),
        warnings=(),
    )


def nothing_measured() -> Report:
    """Logs that hold no figure at all."""
    nothing = dict.fromkeys(figures())
    return Report(
        by=("task_type",),
        strata=(),
        total=Stratum({}, nothing),
        coverage=(Missing("draft_accept_ratio", "no record counts drafts", "speculation, with statistics on"),),
        warnings=(),
    )
