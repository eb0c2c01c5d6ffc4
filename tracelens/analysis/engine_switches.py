"""What each engine has to switch on for a quantity, and in which of its versions."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.engines.versions import Range, Switch, Way

CANONICAL = "write canonical JSON lines from a hook of your own (README: 'Any other engine')"

# vLLM. V0 and V1 lie beside each other up to 0.9.2, and do not write the same.
_STATS_ON = "keep log stats on (no `--disable-log-stats`)"
_VLLM_STATS = f"{_STATS_ON}; `VLLM_LOG_STATS_INTERVAL=1` makes the intervals short"
_COUNTED = (Way(Range(last="0.10.0"), _STATS_ON), Way(Range("0.10.1"), _VLLM_STATS))
_ROUNDS = "; rounds follow from what 0.8.5 and later print"
_POSITIONS = "; it prints positions by interval"
_DETAILED = (
    "`--enable-per-request-metrics --per-request-spec-decode-metrics detailed --enable-force-include-usage`, with "
    "responses logged at the gateway"
)
_FROM_DETAILED = f"from 0.29: {_DETAILED}"
_BY_REQUEST = Way(Range("0.29"), _DETAILED)
_RECORDED = Way(
    Range("0.11.1", era="v1"), "install tracelens beside vLLM and set `TRACELENS_RECORD=DIR` (docs/record.md)"
)
_SCRAPED = Way(Range("0.8.5", era="v1"), "keep what GET /metrics says every few seconds")
_V0_LINE = Way(Range("0.4.2", "0.9.2", era="v0"), f"{_STATS_ON}: the `Speculative metrics` lines have it")
_STAGES = Way(
    Range("0.5.4", "0.9.2", era="v0"),
    f"{_STATS_ON}: `SpecDecodeWorker stage times` have it, of one step in some seconds",
)
_RECORDER = (
    "no vLLM log holds it: install tracelens beside vLLM and set `TRACELENS_RECORD=DIR` (docs/record.md), or take"
)
_SCOPED = "a profiler trace: `VLLM_CUSTOM_SCOPES_FOR_PROFILING=1`"
_POSTED = "then POST /start_profile and /stop_profile; profiled steps are slower"
_TRACED = (
    Way(Range("0.10.2", "0.11.0"), f"take {_SCOPED} and `VLLM_TORCH_PROFILER_DIR=DIR`, {_POSTED}"),
    Way(Range("0.11.1", "0.12"), f"{_RECORDER} {_SCOPED} and `VLLM_TORCH_PROFILER_DIR=DIR`, {_POSTED}"),
    Way(Range("0.13", "0.28"), f"{_RECORDER} {_SCOPED} and `--profiler-config.profiler torch`, {_POSTED}"),
    Way(
        Range("0.29"),
        f"{_RECORDER} {_SCOPED} with `VLLM_USE_V2_MODEL_RUNNER=0` and `--profiler-config.profiler torch`, {_POSTED}",
    ),
)
_SPLIT = (
    "no vLLM log from 0.10 on holds it (V0 printed stage times up to 0.9.2): install tracelens beside vLLM and set "
    "`TRACELENS_RECORD=DIR` (docs/record.md), or take a profiler trace: "
    "`VLLM_CUSTOM_SCOPES_FOR_PROFILING=1` (from 0.10.2; from 0.29 with `VLLM_USE_V2_MODEL_RUNNER=0`) and "
    "`--profiler-config.profiler torch`, then POST /start_profile and /stop_profile; profiled steps are slower"
)
_FORWARDS = Way(
    Range("0.7", "0.10.1", era="v1"),
    "with a draft model (method draft_model), on a test machine: `VLLM_LOG_BATCHSIZE_INTERVAL=10` with "
    "`--enforce-eager`, one concurrency, long outputs; of other drafters nothing tells before 0.10.2",
)
_VLLM_TIMES = f"no vLLM log holds it; time it in a hook of your own and {CANONICAL}"
_ITERATIONS = (
    "`TRACELENS_RECORD=DIR` (docs/record.md), or `--enable-logging-iteration-details` with synchronous scheduling only "
    "(`--no-async-scheduling`)"
)
_TIMED = "`--enable-per-request-metrics`, with responses logged at the gateway"
_SPANS = "`--otlp-traces-endpoint`, and keep what the collector receives"
_BENCH = "`vllm bench serve --save-result --save-detailed`, which measures its own requests"

_VLLM: Mapping[str, str | Switch] = {
    "counts": Switch(_VLLM_STATS, *_COUNTED),
    "drafted": Switch(_VLLM_STATS, *_COUNTED),
    "rounds": Switch(
        _VLLM_STATS + _ROUNDS,
        Way(Range("0.8.5", "0.10.0", era="v1"), _STATS_ON),
        Way(Range("0.10.1"), _VLLM_STATS),
        _V0_LINE,
    ),
    "draft_lengths": Switch(
        _FROM_DETAILED,
        _BY_REQUEST,
        Way(Range("0.10.1"), _VLLM_STATS + _POSITIONS),
        Way(Range("0.8.5", era="v1"), _STATS_ON + _POSITIONS),
    ),
    "emitted": Switch(_FROM_DETAILED, _BY_REQUEST, _SCRAPED, _V0_LINE),
    "plain_steps": Switch(_FROM_DETAILED, _BY_REQUEST, _SCRAPED),
    "requests": Switch(_FROM_DETAILED, _BY_REQUEST, _RECORDED),
    "single_rounds": Switch(_FROM_DETAILED, _BY_REQUEST, _RECORDED),
    "draft_time": Switch(_SPLIT, *_TRACED, _STAGES, _FORWARDS),
    "target_time": Switch(_SPLIT, *_TRACED, _STAGES, _FORWARDS),
    "sample_time": Switch(_SPLIT, *_TRACED, _STAGES),
    "rollback_time": _VLLM_TIMES,
    "repack_time": _VLLM_TIMES,
    "step_time": Switch(
        _ITERATIONS, Way(Range("0.14"), _ITERATIONS), _RECORDED, Way(Range("0.8.3", era="v1"), _SCRAPED.text)
    ),
    "tpot": Switch(
        f"from 0.25: {_TIMED}",
        Way(Range("0.25"), _TIMED),
        Way(Range("0.10.2"), _SPANS),
        Way(Range("0.5", "0.9", era="v0"), _SPANS),
        Way(Range("0.4"), _BENCH),
    ),
    "temperature": Switch(
        "`--enable-log-requests` (on by default before 0.10.1)",
        Way(Range(last="0.10.0"), "keep request logging on (no `--disable-log-requests`)"),
        Way(Range("0.10.1"), "`--enable-log-requests`"),
    ),
}

# RTP-LLM: its versions are days of main.
_DEBUG = "set `LOG_LEVEL=DEBUG`: one line a stream and round in engine.log"
_SPLIT_BY_DEBUG = Way(Range("2025-01-09", "2026-03-15"), "`LOG_LEVEL=DEBUG` (engine.log)")
_TIMELINE = (
    "a timeline (`gen_timeline: true` in a request's generate_config, or POST /start_profile), ingested with the logs"
)
_BY_TIMELINE = Way(Range("2026-03-25"), _TIMELINE)
_PHASES = Switch(
    "builds until 2026-03-15 (v0.2.0): `LOG_LEVEL=DEBUG` (engine.log); later ones: a timeline (`gen_timeline: true` "
    "in a request's generate_config, or POST /start_profile), ingested with the logs",
    _BY_TIMELINE,
    _SPLIT_BY_DEBUG,
)
_REPAIR = Switch(f"builds from 2026-03-25: {_TIMELINE}", _BY_TIMELINE)
_DEBUGGED = (Way(Range("2026-03-17"), _DEBUG), Way(Range("2025-01-09", "2026-03-15"), _DEBUG))
_AUX = "keep access logs with aux_info"
_RTP_ACCESS = f"{_AUX}; those of builds from 2026-08-20 count accepted tokens"
_K = "; ingest main_<rank>.log with them (gen_num_per_cycle)"
_ACCEPTED = Range("2026-08-20")

_RTP_LLM: Mapping[str, str | Switch] = {
    **dict.fromkeys(
        ("counts", "rounds", "draft_lengths", "emitted", "requests"),
        Switch(_RTP_ACCESS, Way(_ACCEPTED, f"{_AUX}, which count accepted tokens"), *_DEBUGGED),
    ),
    "drafted": Switch(_RTP_ACCESS + _K, Way(_ACCEPTED, _AUX + _K), *_DEBUGGED),
    "single_rounds": Switch(_DEBUG, *_DEBUGGED),
    "step_share": Switch(_DEBUG, *_DEBUGGED),
    "draft_time": _PHASES,
    "target_time": _PHASES,
    "sample_time": _PHASES,
    "rollback_time": _REPAIR,
    "repack_time": _REPAIR,
    "step_time": Switch(_DEBUG, *_DEBUGGED),
    "tpot": "keep access logs with aux_info (cost_time, first_token_cost_time)",
    "temperature": "keep the query logs (query_access*.log)",
}

_LOGGED = "`--log-requests --log-requests-format json --log-requests-level 1`"
_AS_TEXT = "`--log-requests --log-requests-level 1`"
_EXPORTED = "`--export-metrics-to-file --export-metrics-to-file-dir DIR --enable-metrics`"
_REQUESTS = f"{_LOGGED} (histogram from 0.5.9), or from 0.5.6 {_EXPORTED}"
_REQUESTED = Way(Range("0.5.9"), f"{_LOGGED}, or {_EXPORTED}")
_BY_LENGTH = Switch(_REQUESTS, _REQUESTED)
_OF_REQUESTS = Switch(
    _REQUESTS,
    _REQUESTED,
    Way(Range("0.5.8"), f"{_LOGGED}, or {_EXPORTED}"),
    Way(Range("0.5.6"), f"{_AS_TEXT}, or {_EXPORTED}"),
    Way(Range("0.4.4"), _AS_TEXT),
)
_TIMER = "`--enable-metrics` with `SGLANG_ENABLE_METRICS_DEVICE_TIMER=1`, and keep the scrapes of GET /metrics"
_DEVICE = Switch(f"from 0.5.11: {_TIMER}", Way(Range("0.5.11"), _TIMER))
_LINES = "keep the `Decode batch` lines of the scheduler"

_SGLANG: Mapping[str, str | Switch] = {
    "counts": Switch(f"{_LINES} (0.4.2 and later print acceptance)", Way(Range("0.4.2"), _LINES)),
    "drafted": f"{_LINES}, and the start-up line with ServerArgs",
    **dict.fromkeys(("rounds", "emitted", "requests", "tpot", "temperature"), _OF_REQUESTS),
    "draft_lengths": _BY_LENGTH,
    "draft_time": _DEVICE,
    "target_time": _DEVICE,
    "step_time": Switch(
        "`--decode-log-interval 1` with `SGLANG_LOG_MS=1` (from 0.5.6)",
        Way(Range("0.5.6"), "`--decode-log-interval 1` with `SGLANG_LOG_MS=1`"),
        Way(Range("0.4.1", "0.5.5"), "`--decode-log-interval 1`"),
    ),
}

_LLAMA_DEFAULT = "keep the server log at its default level"
_LLAMA_TRACE = "set `LLAMA_TRACE=1`: one line a round"
_BY_ROUND = Switch(_LLAMA_TRACE, Way(Range("2025-12"), _LLAMA_TRACE))
_STATISTICS = "run the server with `-lv 4`: cumulative `statistics` lines with dur(b,g,a)"

_LLAMA_CPP: Mapping[str, str | Switch] = {
    "counts": _LLAMA_DEFAULT + " (`draft acceptance`)",
    "drafted": _LLAMA_DEFAULT + " (`draft acceptance`)",
    "rounds": _BY_ROUND,
    "draft_lengths": _BY_ROUND,
    "single_rounds": _BY_ROUND,
    "requests": _LLAMA_DEFAULT,
    "draft_time": Switch(_STATISTICS, Way(Range("2026-01"), _STATISTICS)),
    "tpot": _LLAMA_DEFAULT + " (`eval time`)",
    "temperature": Switch("run the server with `-lv 4`", Way(Range("2026"), "run the server with `-lv 4`")),
}

_STATS = "`enable_iter_perf_stats: true`, and save what GET /metrics returns"
_PERF = "`return_perf_metrics: true` with `perf_metrics_output_dir: DIR`"
_POLLED = Switch(_STATS, Way(Range("0.9"), _STATS))
_BY_FINISHED = Switch(_PERF, Way(Range("2025-08"), _PERF))

_TENSORRT_LLM: Mapping[str, str | Switch] = {
    **dict.fromkeys(("counts", "drafted", "rounds", "draft_time"), _POLLED),
    "step_time": Switch("`print_iter_log: true`", Way(Range("2025-04"), "`print_iter_log: true`")),
    "requests": _BY_FINISHED,
    "tpot": _BY_FINISHED,
}

SWITCH: Mapping[str, Mapping[str, str | Switch]] = {
    "vllm": _VLLM,
    "rtp-llm": _RTP_LLM,
    "sglang": _SGLANG,
    "llama.cpp": _LLAMA_CPP,
    "tensorrt-llm": _TENSORRT_LLM,
}
