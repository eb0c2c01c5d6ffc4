"""What llama.cpp writes, for `inspect` and the advice of a report."""

from __future__ import annotations

from tracelens.engines.base import Surface
from tracelens.engines.versions import Range, Versions

REQUEST, ROUND, DRAFTING = "llama.request_block", "llama.round_line", "llama.drafting"
STATISTICS, START, TASK = "llama.statistics", "llama.start", "llama.task"
EXAMPLE, TIMINGS, SLOTS, METRICS = "llama.example", "llama.timings", "llama.slots", "llama.metrics"


def _since(first: str) -> Range:
    return Range(first, form="{first} and later")


_REQUEST_FIGURES = ("draft_accept_ratio", "tpot_ms", "ttft_ms", "speedup_tpot")
_ROUND_FIGURES = (
    "draft_accept_ratio", "token_accept_prob", "hazard", "survival", "tau_verified", "tau_committed", "rollback_len",
    "near_k_round_share", "near_k_request_share", "step_ms", "replay",
)  # fmt: skip

SURFACES = (
    Surface(
        METRICS,
        "Prometheus counters of /metrics (between two scrapes; the first from the server's start)",
        Versions("acceptance ", _since("2026-08"), " (#26389)"),
        ("draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share", "running"),
        "--metrics: keep what /metrics says every few seconds (with a `date` line before each)",
    ),
    Surface(
        REQUEST,
        "Request block (`eval time`, `draft acceptance`)",
        Versions(_since("2024-11")),
        _REQUEST_FIGURES,
        "on by default (log level 3)",
    ),
    Surface(
        ROUND,
        "Round line (`accepted a/d draft tokens`)",
        Versions(_since("2025-12")),
        _ROUND_FIGURES,
        "LLAMA_TRACE=1 in the environment, or -v",
    ),
    Surface(
        DRAFTING,
        "Start and end of a draft",
        Versions(_since("2025-12")),
        ("draft_ms", "target_ms", "rho", "rho_verify"),
        "-v (debug; it also prints prompts and text)",
    ),
    Surface(
        STATISTICS,
        "Statistics line of a drafter (cumulative)",
        Versions(_since("2026-01")),
        ("draft_accept_ratio", "tau_verified", "draft_ms", "rho"),
        "-lv 4",
    ),
    Surface(
        TASK,
        "Life of a task (sampling parameters, cached tokens)",
        Versions(_since("2026")),
        ("temperature", "top_p"),
        "-lv 4",
    ),
    Surface(
        START,
        "start-up lines (build, model, drafter, K)",
        Versions(_since("2026")),
        ("model", "method", "num_speculative_tokens"),
        "on by default; K and the drafter's name with -lv 4",
    ),
    Surface(
        EXAMPLE,
        "llama-speculative's counts",
        Versions(_since("2023-08")),
        ("draft_accept_ratio", "tpot_ms"),
        "printed at the end of the example program",
    ),
    Surface(
        TIMINGS,
        "`timings` of an HTTP response",
        Versions(_since("2025-03"), " (draft_n)"),
        (*_REQUEST_FIGURES, "rollback_len"),
        "save the responses; timings_per_token tells the rounds",
    ),
    Surface(SLOTS, "GET /slots (load)", Versions(_since("2025")), ("running",), "--slots, and poll it"),
)
