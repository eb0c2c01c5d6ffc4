"""What vLLM writes, for `inspect` and for the advice of a report."""

from __future__ import annotations

from tracelens.engines.base import Surface
from tracelens.engines.versions import Range, Switch, Versions, Way
from tracelens.engines.vllm import bench, metrics, otel, small, traces
from tracelens.engines.vllm.releases import V0, V1, since, v1

_STATS = "on by default; off with --disable-log-stats"
_LOG_STATS = Switch(
    "on by default; VLLM_LOG_STATS_INTERVAL=1 (0.10.1+) gives near-step resolution; off with --disable-log-stats",
    Way(Range(last="0.10.0"), _STATS),
    Way(
        Range("0.10.1"),
        "on by default; VLLM_LOG_STATS_INTERVAL=1 gives near-step resolution; off with --disable-log-stats",
    ),
)
_RESPONSES = "and log the responses at the gateway"
_BY_POSITION = ("hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share")
_OF_RESPONSES = (
    "draft_accept_ratio", "token_accept_prob", "hazard", "rollback_len", "near_k_request_share", "tau_committed",
)  # fmt: skip
TEXT = (
    Surface(
        "vllm.v1_line",
        "SpecDecoding metrics (an interval of one engine)",
        # Two releases print no positions, without which there are neither rounds nor lengths.
        Versions(v1("0.8.3"), Range("0.8.5", form="", era=V1, of=_BY_POSITION)),
        ("draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share"),
        _LOG_STATS,
    ),
    Surface(
        "vllm.v0_line",
        "Speculative metrics (cumulative)",
        Versions(Range("0.4.2", "0.9.2", era=V0)),
        ("draft_accept_ratio", "tau_drafted"),
        _STATS,
    ),
    Surface(
        "vllm.stage_times",
        "SpecDecodeWorker stage times (one sampled step)",
        Versions(Range("0.5.4", "0.9.2", era=V0)),
        ("rho_verify",),
        Switch(
            "on by default in these versions; 0.10 and later log no draft time: print canonical JSON lines from a "
            "plug-in of your own (README, 'Any other engine')",
            Way(Range("0.5.4", "0.9.2"), _STATS),
        ),
    ),
    Surface(
        "vllm.engine_line", "Engine line (load and throughput)", Versions(since("0.4.2")), ("running",), _LOG_STATS
    ),
    Surface(
        "vllm.iteration_line",
        "Iteration(n) (one engine step)",
        Versions(v1("0.14")),
        ("step_ms", "batch_size"),
        "--enable-logging-iteration-details; its time is a step's only with --no-async-scheduling",
    ),
    Surface(
        "vllm.request_line",
        "Received request (sampling parameters)",
        Versions(since("0.4.2")),
        ("temperature", "top_p"),
        Switch(
            "--enable-log-requests (by default before 0.10.1)",
            Way(Range(last="0.10.0"), "on by default; off with --disable-log-requests"),
            Way(Range("0.10.1"), "--enable-log-requests"),
        ),
    ),
    Surface(
        "vllm.start",
        "start-up lines (version, model, drafter, K)",
        Versions(since("0.4.2")),
        ("engine_version", "method", "num_speculative_tokens"),
        "on by default",
    ),
    Surface(
        "vllm.response",
        "HTTP responses with metrics",
        Versions(v1("0.25"), " (acceptance ", Range("0.29", form="{first}+", of=_OF_RESPONSES), ")"),
        (*_OF_RESPONSES, "tpot_ms", "speedup_tpot", "temperature"),
        Switch(
            "--enable-per-request-metrics (0.25+) and --per-request-spec-decode-metrics detailed (0.29+), "
            f"{_RESPONSES}",
            Way(Range("0.25", "0.28"), f"--enable-per-request-metrics, {_RESPONSES}"),
            Way(
                Range("0.29"),
                f"--enable-per-request-metrics and --per-request-spec-decode-metrics detailed, {_RESPONSES}",
            ),
        ),
    ),
)

# Advice takes the last that gives a figure: the small ones are the last resort, so they stand before the others.
SURFACES = (*bench.SURFACES, *small.SURFACES, *metrics.SURFACES, *otel.SURFACES, *TEXT, *traces.SURFACES)
