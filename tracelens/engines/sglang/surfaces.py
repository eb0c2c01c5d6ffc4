"""What SGLang writes, for `inspect` and for the advice of a report."""

from __future__ import annotations

from tracelens.engines.base import Surface
from tracelens.engines.sglang import bench, info, lines, metrics, otel, requests
from tracelens.engines.sglang.releases import since
from tracelens.engines.versions import Range, Switch, Versions, Way

_REQUEST_FIGURES = (
    "draft_accept_ratio", "token_accept_prob", "hazard", "rollback_len", "near_k_round_share", "near_k_request_share",
    "tau_committed", "tpot_ms", "speedup_tpot", "temperature", "top_p",
)  # fmt: skip
_BY_LENGTH = ("token_accept_prob", "hazard", "rollback_len", "near_k_round_share", "near_k_request_share")
_OF_LINES = ("tau_verified", "draft_accept_ratio")
_STEPWISE = "on by default; --decode-log-interval 1 makes it a step"
_AS_JSON = "--log-requests --log-requests-format json --log-requests-level 1 (no prompts); --enable-metrics adds TTFT"
TEXT = (
    Surface(
        lines.DECODE,
        "Decode batch (40 decode passes of one scheduler)",
        Versions(since("0.4.1"), " (acceptance ", Range("0.4.2", form="{first}+", of=_OF_LINES), ")"),
        (*_OF_LINES, "step_ms", "running"),
        Switch(
            f"{_STEPWISE}; SGLANG_LOG_MS=1 (0.5.6+) and SGLANG_LOG_FORWARD_ITERS=1 (0.5.5+) make its times and passes "
            "exact",
            Way(Range(last="0.5.4"), _STEPWISE),
            Way(Range("0.5.5", "0.5.5"), f"{_STEPWISE}; SGLANG_LOG_FORWARD_ITERS=1 makes its passes exact"),
            Way(
                Range("0.5.6"),
                f"{_STEPWISE}; SGLANG_LOG_MS=1 and SGLANG_LOG_FORWARD_ITERS=1 make its times and passes exact",
            ),
        ),
    ),
    Surface(
        lines.PREFILL,
        "Prefill batch (one pass)",
        Versions(since("0.4.1")),
        ("prompt_tokens", "waiting"),
        "on by default",
    ),
    Surface(
        requests.RESPONSE,
        "meta_info or spec_tokens_details of logged responses",
        Versions(since("0.4.4"), Range("0.5.9", form="", of=_BY_LENGTH)),
        ("draft_accept_ratio", "hazard", "rollback_len"),
        Switch(
            "return_spec_tokens_details: true in the request (0.5.19+), and log the responses",
            Way(Range(last="0.5.18"), "log the responses (meta_info)"),
            Way(Range("0.5.19"), "return_spec_tokens_details: true in the request, and log the responses"),
        ),
    ),
    Surface(
        requests.LOG,
        "finished requests in the log",
        Versions(since("0.4.4"), " (histogram ", Range("0.5.9", form="{first}+", of=_BY_LENGTH), ")"),
        _REQUEST_FIGURES,
        Switch(
            _AS_JSON,
            Way(Range(last="0.5.7"), "--log-requests --log-requests-level 1 (no prompts); --enable-metrics adds TTFT"),
            Way(Range("0.5.8"), _AS_JSON),
        ),
    ),
    Surface(
        requests.EXPORT,
        "metrics export, one JSON object a request",
        Versions(since("0.5.6"), " (histogram ", Range("0.5.9", form="{first}+", of=_BY_LENGTH), ")"),
        _REQUEST_FIGURES,
        "--export-metrics-to-file --export-metrics-to-file-dir DIR --enable-metrics",
    ),
    Surface(
        lines.START,
        "server_args at the start",
        Versions(since("0.4.1")),
        ("method", "num_speculative_tokens"),
        "on by default",
    ),
    Surface(
        lines.ADAPTIVE,
        "changes of K",
        Versions(since("0.5.11")),
        ("num_speculative_tokens",),
        "--speculative-adaptive",
    ),
    Surface(
        lines.SIMULATED,
        "SGLANG_SIMULATE_ACC_LEN",
        Versions(since("0.4.6")),
        ("forced_acceptance",),
        "set -x in the shell",
    ),
)

# Advice takes the last that gives a figure: what current releases write in production stands behind the others.
SURFACES = (*bench.SURFACES, *info.SURFACES, *otel.SURFACES, *metrics.SURFACES, *TEXT)
