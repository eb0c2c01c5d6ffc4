"""What SGLang writes, for `inspect` and for the advice of a report."""

from __future__ import annotations

from tracelens.engines.base import Surface
from tracelens.engines.sglang import bench, info, lines, metrics, otel, requests

_REQUEST_FIGURES = (
    "draft_accept_ratio", "token_accept_prob", "hazard", "rollback_len", "near_k_round_share", "near_k_request_share",
    "tau_committed", "tpot_ms", "speedup_tpot", "temperature", "top_p",
)  # fmt: skip
TEXT = (
    Surface(
        lines.DECODE,
        "Decode batch (40 decode passes of one scheduler)",
        "0.4.1-0.5.23 (acceptance 0.4.2+)",
        ("tau_verified", "draft_accept_ratio", "step_ms", "running"),
        "on by default; --decode-log-interval 1 makes it a step; SGLANG_LOG_MS=1 (0.5.6+) and "
        "SGLANG_LOG_FORWARD_ITERS=1 (0.5.5+) make its times and passes exact",
    ),
    Surface(lines.PREFILL, "Prefill batch (one pass)", "0.4.1-0.5.23", ("prompt_tokens", "waiting"), "on by default"),
    Surface(
        requests.RESPONSE,
        "meta_info or spec_tokens_details of logged responses",
        "0.4.4-0.5.23",
        ("draft_accept_ratio", "hazard", "rollback_len"),
        "return_spec_tokens_details: true in the request (0.5.19+), and log the responses",
    ),
    Surface(
        requests.LOG,
        "finished requests in the log",
        "0.4.4-0.5.23 (histogram 0.5.9+)",
        _REQUEST_FIGURES,
        "--log-requests --log-requests-format json --log-requests-level 1 (no prompts); --enable-metrics adds TTFT",
    ),
    Surface(
        requests.EXPORT,
        "metrics export, one JSON object a request",
        "0.5.6-0.5.23 (histogram 0.5.9+)",
        _REQUEST_FIGURES,
        "--export-metrics-to-file --export-metrics-to-file-dir DIR --enable-metrics",
    ),
    Surface(
        lines.START,
        "server_args at the start",
        "0.4.1-0.5.23",
        ("method", "num_speculative_tokens"),
        "on by default",
    ),
    Surface(lines.ADAPTIVE, "changes of K", "0.5.11-0.5.23", ("num_speculative_tokens",), "--speculative-adaptive"),
    Surface(lines.SIMULATED, "SGLANG_SIMULATE_ACC_LEN", "0.4.6-0.5.23", ("forced_acceptance",), "set -x in the shell"),
)

# Advice takes the last that gives a figure: what current releases write in production stands behind the others.
SURFACES = (*bench.SURFACES, *info.SURFACES, *otel.SURFACES, *metrics.SURFACES, *TEXT)
