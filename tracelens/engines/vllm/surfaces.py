"""What vLLM writes, for `inspect` and for the advice of a report."""

from __future__ import annotations

from tracelens.engines.base import Surface
from tracelens.engines.vllm import bench, metrics, otel, small, traces

_LOG_STATS = (
    "on by default; VLLM_LOG_STATS_INTERVAL=1 (0.10.1+) gives near-step resolution; off with --disable-log-stats"
)
_STATS = "on by default; off with --disable-log-stats"
TEXT = (
    Surface(
        "vllm.v1_line",
        "SpecDecoding metrics (an interval of one engine)",
        "0.8.3-0.33",
        ("draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share"),
        _LOG_STATS,
    ),
    Surface(
        "vllm.v0_line",
        "Speculative metrics (cumulative)",
        "0.4.2-0.9.2",
        ("draft_accept_ratio", "tau_drafted"),
        _STATS,
    ),
    Surface(
        "vllm.stage_times",
        "SpecDecodeWorker stage times (one sampled step)",
        "0.5.4-0.9.2",
        ("rho_verify",),
        "on by default in these versions; 0.10 and later log no draft time: print canonical JSON lines from a plug-in "
        "of your own (README, 'Any other engine')",
    ),
    Surface("vllm.engine_line", "Engine line (load and throughput)", "0.4.2-0.33", ("running",), _LOG_STATS),
    Surface(
        "vllm.iteration_line",
        "Iteration(n) (one engine step)",
        "0.14-0.33",
        ("step_ms", "batch_size"),
        "--enable-logging-iteration-details; its time is a step's only with --no-async-scheduling",
    ),
    Surface(
        "vllm.request_line",
        "Received request (sampling parameters)",
        "0.4.2-0.33",
        ("temperature", "top_p"),
        "--enable-log-requests (by default before 0.10.1)",
    ),
    Surface(
        "vllm.start",
        "start-up lines (version, model, drafter, K)",
        "0.4.2-0.33",
        ("engine_version", "method", "num_speculative_tokens"),
        "on by default",
    ),
    Surface(
        "vllm.response",
        "HTTP responses with metrics",
        "0.25-0.33 (acceptance 0.29+)",
        (
            "draft_accept_ratio",
            "token_accept_prob",
            "hazard",
            "rollback_len",
            "near_k_request_share",
            "tau_committed",
            "tpot_ms",
            "speedup_tpot",
            "temperature",
        ),
        "--enable-per-request-metrics (0.25+) and --per-request-spec-decode-metrics detailed (0.29+), and log the "
        "responses at the gateway",
    ),
)

# Advice takes the last that gives a figure: the small ones are the last resort, so they stand before the others.
SURFACES = (*bench.SURFACES, *small.SURFACES, *metrics.SURFACES, *otel.SURFACES, *TEXT, *traces.SURFACES)
