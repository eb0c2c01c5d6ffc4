"""What RTP-LLM writes, for `inspect` and for the advice of a report."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.engines.base import Surface
from tracelens.engines.rtp_llm import timeline
from tracelens.engines.versions import Range, Versions

_SETTINGS = ("temperature", "top_p", "task_type", "model")
_REQUEST = ("ttft", "tpot", "e2e")
_COUNTS = ("draft_accept_ratio", "token_accept_prob", "hazard", "rollback_len", "near_k_round_share")
_REQUEST_COUNTS = (*_COUNTS, "near_k_request_share", "tau_committed")

_ACCEPTED = Range("2026-08-20", form="{first}", of=_REQUEST_COUNTS)
_SPLIT_ENDS = "2026-03-15"
_PHASES = Range(last=_SPLIT_ENDS, form="{last}", of=("rho", "rho_verify", "overhead"))

# Advice takes the last that gives a figure: what says more of a step stands behind the gauges.
SURFACES: Sequence[Surface] = (
    Surface(
        "rtp.access",
        "access log (access*.log): one line a finished request",
        Versions("all; accepted tokens since ", _ACCEPTED, " (4b8d39cd5)"),
        (*_REQUEST_COUNTS, *_REQUEST, *_SETTINGS),
        "on by default; keep generate_config.aux_info true; private_request and batch endpoints are not logged",
    ),
    Surface(
        "rtp.query",
        "query log (query_access*.log): one line a request on arrival",
        "all",
        ("ts_start", *_SETTINGS),
        "on by default",
    ),
    Surface(
        "rtp.dash_sc",
        "gRPC access log (dash_sc_grpc_access*.log)",
        Versions("main since ", Range("2026-07-29", form="{first}"), " (137d87a1b); accepted tokens since ", _ACCEPTED),
        (*_REQUEST_COUNTS, *_REQUEST, "temperature", "top_p", "model"),
        "on by default with the dash_sc front end",
    ),
    Surface(
        "rtp.aux_info",
        "a saved response with its aux_info",
        Versions("all; accepted tokens since ", _ACCEPTED, " (4b8d39cd5)"),
        (*_REQUEST_COUNTS, *_REQUEST),
        "generate_config.aux_info: true, and save the response",
    ),
    Surface(
        "rtp.kmonitor",
        "kmonitor gauges with sums and counts (log sink in engine.log, flume bodies)",
        Versions("all; K since 2026-08-19; phase times up to ", _PHASES),
        ("draft_accept_ratio", "tau_committed", "rho", "rho_verify", "overhead", "step_ms"),
        "kmonitorEnableLogFileSink; MtpExecutor (2026-03 on) measures no phases: POST /start_profile for them",
    ),
    Surface(
        "rtp.kmonitor_gauges",
        "kmonitor gauges as Prometheus text: means without counts, so times alone",
        Versions("all; phase times up to ", _PHASES),
        ("rho_verify", "step_ms"),
        "kmonitorEnablePrometheusSink (its call is commented out on main: prefer kmonitorEnableLogFileSink)",
    ),
    Surface(
        "rtp.sp_engine_debug",
        "engine.log at DEBUG, speculative engine: times of every step, accepted tokens of every stream",
        Versions(
            Range("2025-01-09", _SPLIT_ENDS, form="{first} (6ac09b2fb) to {last} (c518bf872)"), ", v0.2.0 among them"
        ),
        (*_COUNTS, "rho", "rho_verify", "overhead", "tau_committed", "replay", "top_p"),
        'LOG_LEVEL=DEBUG, or POST /set_log_level {"log_level":"DEBUG"}',
    ),
    Surface(
        "rtp.mtp_debug",
        "engine.log at DEBUG, MtpExecutor: accepted tokens of every stream and round, no phase times",
        Versions("main since ", Range("2026-03-17", form="{first}"), "; request ids since 2026-08-10"),
        (*_COUNTS, "tau_committed", "step_ms", "context_len", "replay"),
        'LOG_LEVEL=DEBUG, or POST /set_log_level {"log_level":"DEBUG"}; phase times: POST /start_profile',
    ),
    Surface(
        "rtp.step_json",
        "step JSON lines with the names of RtpLLMSpeculativeEngineMetricsCollector",
        "any; RTP-LLM does not write them by itself",
        (*_COUNTS, "rho", "rho_verify", "overhead", "tau_committed", "replay"),
        "log the collector as one JSON object a step where it is reported",
    ),
    *timeline.SURFACES,
    Surface(
        "rtp.config_dump",
        "start-up dump in main_<rank>.log: type and gen_num_per_cycle",
        "all",
        ("method", "num_speculative_tokens"),
        "on by default; ingest main_<rank>.log with the other logs",
    ),
)
