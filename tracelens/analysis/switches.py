"""What to switch on in an engine so that its logs hold a quantity: only what this version of tracelens reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

_BASELINE = (
    "run the same traffic without speculation and ingest it with `--role baseline`, or name one: `--baseline RUN|MS`"
)
_MATCHED = "ingest a baseline of every engine and model, or group by engine and model"
_ALIKE = "profile some steps of a run without speculation, too, and ingest that trace with `--role baseline`"
_CANONICAL = "write canonical JSON lines from a hook of your own (README: 'Any other engine')"
_SINGLE = (
    "ask of days that are not rolled up (`--since`), or bring the single rounds of a log back: `tracelens ingest "
    "--replace LOG`"
)
_DRAFTER = "look into the engine's start-up log: is the drafter loaded, and does it propose on this traffic?"
_LABELS = "name it by `--labels FILE`, `--set task_type=…` or rules in tracelens.toml at ingest"

_VLLM_STATS = "keep log stats on (no `--disable-log-stats`); `VLLM_LOG_STATS_INTERVAL=1` makes the intervals short"
_VLLM_DETAILED = (
    "from 0.29: `--enable-per-request-metrics --per-request-spec-decode-metrics detailed "
    "--enable-force-include-usage`, with responses logged at the gateway"
)
_VLLM_SPLIT = (
    "no vLLM log from 0.10 on holds it (V0 printed stage times up to 0.9.2): install tracelens beside vLLM and set "
    "`TRACELENS_RECORD=DIR` (docs/record.md), or take a profiler trace: "
    "`VLLM_CUSTOM_SCOPES_FOR_PROFILING=1` (from 0.10.2; from 0.29 with `VLLM_USE_V2_MODEL_RUNNER=0`) and "
    "`--profiler-config.profiler torch`, then POST /start_profile and /stop_profile; profiled steps are slower"
)
_VLLM_TIMES = "no vLLM log holds it; time it in a hook of your own and " + _CANONICAL
_RTP_PHASES = (
    "builds until 2026-03-15 (v0.2.0): `LOG_LEVEL=DEBUG` (engine.log); later ones: a timeline (`gen_timeline: true` "
    "in a request's generate_config, or POST /start_profile), ingested with the logs"
)
_RTP_TIMELINE = (
    "builds from 2026-03-25: a timeline (`gen_timeline: true` in a request's generate_config, or POST /start_profile), "
    "ingested with the logs"
)
_RTP_ROUNDS = "set `LOG_LEVEL=DEBUG`: one line a stream and round in engine.log"
_RTP_ACCESS = "keep access logs with aux_info; those of builds from 2026-08-20 count accepted tokens"
_SGLANG_REQUESTS = (
    "`--log-requests --log-requests-format json --log-requests-level 1` (histogram from 0.5.9), or from 0.5.6 "
    "`--export-metrics-to-file --export-metrics-to-file-dir DIR --enable-metrics`"
)
_SGLANG_PHASES = (
    "from 0.5.11: `--enable-metrics` with `SGLANG_ENABLE_METRICS_DEVICE_TIMER=1`, and keep the scrapes of GET /metrics"
)
_SGLANG_STEPS = "`--decode-log-interval 1` with `SGLANG_LOG_MS=1` (from 0.5.6)"
_LLAMA_DEFAULT = "keep the server log at its default level"
_LLAMA_TRACE = "set `LLAMA_TRACE=1`: one line a round"
_TRT_STATS = "`enable_iter_perf_stats: true`, and save what GET /metrics returns"
_TRT_PERF = "`return_perf_metrics: true` with `perf_metrics_output_dir: DIR`"

_SWITCH: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "counts": _VLLM_STATS,
        "drafted": _VLLM_STATS,
        "rounds": _VLLM_STATS + "; rounds follow from what 0.8.5 and later print",
        "draft_lengths": _VLLM_DETAILED,
        "emitted": _VLLM_DETAILED,
        "plain_steps": _VLLM_DETAILED,
        "requests": _VLLM_DETAILED,
        "single_rounds": _VLLM_DETAILED,
        "draft_time": _VLLM_SPLIT,
        "target_time": _VLLM_SPLIT,
        "sample_time": _VLLM_SPLIT,
        "rollback_time": _VLLM_TIMES,
        "repack_time": _VLLM_TIMES,
        "step_time": "`TRACELENS_RECORD=DIR` (docs/record.md), or `--enable-logging-iteration-details` with "
        "synchronous scheduling only (`--no-async-scheduling`)",
        "tpot": "from 0.25: `--enable-per-request-metrics`, with responses logged at the gateway",
        "temperature": "`--enable-log-requests` (on by default before 0.10.1)",
    },
    "rtp-llm": {
        "counts": _RTP_ACCESS,
        "drafted": _RTP_ACCESS + "; ingest main_<rank>.log with them (gen_num_per_cycle)",
        "rounds": _RTP_ACCESS,
        "draft_lengths": _RTP_ACCESS,
        "emitted": _RTP_ACCESS,
        "requests": _RTP_ACCESS,
        "single_rounds": _RTP_ROUNDS,
        "step_share": _RTP_ROUNDS,
        "draft_time": _RTP_PHASES,
        "target_time": _RTP_PHASES,
        "sample_time": _RTP_PHASES,
        "rollback_time": _RTP_TIMELINE,
        "repack_time": _RTP_TIMELINE,
        "step_time": _RTP_ROUNDS,
        "tpot": "keep access logs with aux_info (cost_time, first_token_cost_time)",
        "temperature": "keep the query logs (query_access*.log)",
    },
    "sglang": {
        "counts": "keep the `Decode batch` lines of the scheduler (0.4.2 and later print acceptance)",
        "drafted": "keep the `Decode batch` lines of the scheduler, and the start-up line with ServerArgs",
        "rounds": _SGLANG_REQUESTS,
        "draft_lengths": _SGLANG_REQUESTS,
        "emitted": _SGLANG_REQUESTS,
        "requests": _SGLANG_REQUESTS,
        "draft_time": _SGLANG_PHASES,
        "target_time": _SGLANG_PHASES,
        "tpot": _SGLANG_REQUESTS,
        "step_time": _SGLANG_STEPS,
        "temperature": _SGLANG_REQUESTS,
    },
    "llama.cpp": {
        "counts": _LLAMA_DEFAULT + " (`draft acceptance`)",
        "drafted": _LLAMA_DEFAULT + " (`draft acceptance`)",
        "rounds": _LLAMA_TRACE,
        "draft_lengths": _LLAMA_TRACE,
        "single_rounds": _LLAMA_TRACE,
        "requests": _LLAMA_DEFAULT,
        "draft_time": "run the server with `-lv 4`: cumulative `statistics` lines with dur(b,g,a)",
        "tpot": _LLAMA_DEFAULT + " (`eval time`)",
        "temperature": "run the server with `-lv 4`",
    },
    "tensorrt-llm": {
        "counts": _TRT_STATS,
        "drafted": _TRT_STATS,
        "rounds": _TRT_STATS,
        "draft_time": _TRT_STATS,
        "step_time": "`print_iter_log: true`",
        "requests": _TRT_PERF,
        "tpot": _TRT_PERF,
    },
}


# What a canonical record must hold, by need: the kind of record, and its fields in the order of the schema.
_FIELDS: Mapping[str, tuple[str, str]] = {
    "counts": ("round", '"drafted":…,"accepted":…,"emitted":…'),
    "drafted": ("round", '"drafted":…'),
    "draft_lengths": ("round", '"drafted":…,"accepted":…'),
    "rounds": ("round", '"drafted":…,"accepted":…'),
    "plain_steps": ("round", '"drafted":0,"accepted":0,"emitted":1'),
    "emitted": ("round", '"emitted":…'),
    "requests": ("round", '"request_id":…'),
    "single_rounds": ("round", '"request_id":…,"round_index":…,"drafted":…,"accepted":…'),
    "step_share": ("round", '"step_id":…'),
    "length": ("round", '"num_speculative_tokens":…'),
    "class_of_times": ("round", '"task_type":…,"step_ms":…'),
    "temperature": ("request", '"request_id":…,"temperature":…'),
    "tpot": ("request", '"request_id":…,"output_tokens":…,"decode_ms":…'),
    "draft_time": ("round", '"draft_ms":…'),
    "target_time": ("round", '"target_ms":…'),
    "step_time": ("round", '"step_ms":…'),
    "sample_time": ("round", '"sample_ms":…'),
    "rollback_time": ("round", '"rollback_ms":…'),
    "repack_time": ("round", '"repack_ms":…'),
    "emit_lag": ("round", '"emit_lag_ms":…'),
}
_OF_WHAT = {
    "plain_steps": "a plain decode step",
    "temperature": "a request (or a round)",
    "tpot": "a finished request",
}


def switch_on(needs: str | Sequence[str], engines: Collection[str], canonical: Collection[str] = ()) -> str:
    """What gives a quantity, or several that one reason tells of, in these engines.

    Args:
        needs: one quantity or several that have one answer in every engine that is not canonical.
        engines: all engines of the selection; those with one remedy are named together.
        canonical: those of them whose logs are canonical JSON lines already: for them, the fields to print.
    """
    needs = [needs] if isinstance(needs, str) else needs
    need = needs[0]
    if need in ("baseline", "baseline_tpot"):
        return _BASELINE
    if need in ("matched", "matched_tpot"):
        return _MATCHED
    if need in ("phases_alike", "steps_alike"):
        return _ALIKE
    if need == "task_type":
        return _LABELS
    if need == "single_requests":
        return _SINGLE
    needs = ["drafted" if need == "timed_drafts" else need for need in needs]
    need = needs[0]
    if need in ("nothing_drafted", "some_accepted"):
        return _DRAFTER
    texts: dict[str, list[str]] = {}
    for engine in sorted(engines):
        text = _printed(needs) if engine in canonical else _SWITCH.get(engine, {}).get(need, _CANONICAL)
        texts.setdefault(text, []).append(engine)
    if len(texts) <= 1:
        return next(iter(texts), _CANONICAL)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())


def _printed(needs: Sequence[str]) -> str:
    """The canonical record that holds these quantities."""
    kinds = [_FIELDS[need] for need in needs if need in _FIELDS]
    if not kinds:
        return _CANONICAL
    kind, fields = kinds[0][0], ",".join(fields for _, fields in kinds)
    return f'print {{"record":"{kind}",…,{fields}}} {_OF_WHAT.get(needs[0], f"a {kind}")}'
