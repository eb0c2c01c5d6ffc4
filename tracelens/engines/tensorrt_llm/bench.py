"""Results of `trtllm-bench`: the report of a run (`--report_json`) and its requests (`--request_json`).

The report's acceptance is rebuilt, not counted (`tensorrt_llm/bench/dataclasses/reporting.py`): with `iterations` =
`decode_iteration` + 1 of each request it takes drafted = K x iterations and accepted = output tokens - iterations. The
iteration that is added is the prefill's, where nothing was drafted: so drafted is K too large a request, its acceptance
rate too low, and the acceptance length, output tokens over iterations, nearer to 1 the shorter the output. Its averages
are over requests (since 2026 weighted by iterations in part). None of these is taken. What is taken are the sums behind
two averages that are not weighted, and from them the counts without the prefill:

    iterations = requests x (mean output length - mean accepted)      K = mean drafted x requests / iterations
    rounds = iterations - requests      emitted = output tokens - requests      accepted = emitted - rounds

On the PyTorch backend `decode_iteration` itself counts the prefill's pass (`py_decoding_iter` is 1 when the first token
is there), on others it was written to start behind it; a report does not tell which. It shows where a request accepted
nothing: then the smallest accepted count is -1, and rounds are fewer by another one a request. All counts are marked as
estimated: that one, a last round that was cut, and a draft that was shorter than K are not in the report.

Drafters that copy (n-gram, suffix) draft less than K, and nothing in some steps: their acceptance is refused.

Times are the client's. `avg_tpot_ms` is a mean of the requests' means; what is taken is the decode time of all requests
together, requests x (mean latency - mean TTFT), which a streaming run tells.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import Context, JsonRecord, Reject, Surface, Tables
from tracelens.engines.tensorrt_llm.methods import drafts_always, short
from tracelens.engines.units import INT32_MAX, BrokenError, finite, nearest, text, whole
from tracelens.engines.versions import Range, Versions
from tracelens.engines.vllm.startup import leaf

REPORT, REQUEST = "trtllm.bench_report", "trtllm.bench_request"
SURFACES: tuple[Surface, ...] = (
    Surface(
        REPORT,
        "trtllm-bench (a run; acceptance rebuilt from its iterations)",
        Versions(Range("2025-03", seen="2026")),
        ("draft_accept_ratio", "tau_committed", "step_ms"),
        "trtllm-bench throughput --streaming --report_json FILE",
    ),
    Surface(
        REQUEST,
        "trtllm-bench (its requests)",
        Versions(Range("2025-03", seen="2026")),
        ("tpot_ms", "ttft_ms"),
        "trtllm-bench throughput --streaming --request_json FILE",
    ),
)
KEYS: Sequence[bytes] = (b'"system_output_throughput_tok_s"', b'"decode_iteration"')

_REPORT = frozenset({"engine", "request_info", "performance"})
_RECORD = frozenset({"decode_iteration", "start_timestamp", "end_timestamp"})
_COPIES = "acceptance rebuilt from the longest draft, of a drafter that often drafts less or nothing: refused"
_LONGEST_MS = 3.2e10  # a year
_MOST = 2**40
_EPS = 1e-6
_WORD = re.compile(r"[A-Za-z0-9][\w.+=-]{0,63}")

Object = Mapping[str, Any]

_RUN: Mapping[str, Any] = {
    "run_id": pl.String, "engine_version": pl.String, "model": pl.String, "method": pl.String,
    "num_speculative_tokens": pl.Int32, "role": pl.String, "tensor_parallel": pl.Int32, "max_num_seqs": pl.Int32,
    "config": pl.List(pl.Struct({"key": pl.String, "value": pl.String})),
}  # fmt: skip
_REPORT_SCHEMA: Mapping[str, Any] = {
    **rows.PLACE, **_RUN, "window_us": pl.Int64, "rounds": pl.Int64, "plain_steps": pl.Int64, "drafted": pl.Int64,
    "accepted": pl.Int64, "emitted": pl.Int64, "round_us": pl.Int64, "rounds_timed": pl.Int64,
    "running": pl.Int64, "generated_tokens": pl.Int64, "prompt_tokens": pl.Int64, "counts_basis": pl.String,
}  # fmt: skip
_REQUEST_SCHEMA: Mapping[str, Any] = {
    **rows.PLACE, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "passes": pl.Int64,
    "ttft_us": pl.Int64, "decode_us": pl.Int64, "e2e_us": pl.Int64, "error": pl.Boolean,
}  # fmt: skip


def surface_of(value: Object) -> str | None:
    """Which result a JSON object is, or None."""
    if value.keys() >= _REPORT and "system_output_throughput_tok_s" in _dict(value, "performance"):
        return REPORT
    return REQUEST if value.keys() >= _RECORD else None


def row(entry: JsonRecord, surface: str, rejects: list[Reject]) -> dict[str, Any]:
    """A report or a request as a row of `schema`.

    Raises:
        BrokenError: a field is not what it should be, or an identity does not hold.
    """
    if surface == REQUEST:
        return _request(entry.value)
    found, why = _report(entry.value)
    if why is not None:
        rejects.append(Reject(entry.line, why, REPORT, entry.offset))
    return found


def schema(surface: str) -> Mapping[str, Any]:
    """Columns of a surface's frame."""
    return _REPORT_SCHEMA if surface == REPORT else _REQUEST_SCHEMA


def assemble(whole_frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """A run and a window each report, a request each record.

    Args:
        whole_frames: frames of `SURFACES` with `ts` and `ts_basis`.
        context: of the source.
    """
    tables = Tables()
    if REPORT in whole_frames:
        found = whole_frames[REPORT]
        first = pl.col("run_id").is_first_distinct()
        again = found.filter(~first)["line"]
        tables.rejects += [Reject(line, "a result that is in this source already", REPORT) for line in again]
        found = found.filter(first).with_row_index("run_key", 1).with_columns(pl.col("run_key").cast(pl.Int64))
        tables.runs = found.select("run_key", *_RUN, is_result=True).with_columns(model=leaf(pl.col("model")))
        tables.windows = _windows(found)
    if REQUEST in whole_frames:
        tables.requests = _requests(whole_frames[REQUEST], context)
    return tables


def _windows(found: pl.DataFrame) -> pl.DataFrame:
    timed = pl.col("round_us").is_not_null()
    return found.select(
        "run_key", "ts_basis", "window_us", "rounds", "plain_steps", "drafted", "accepted", "emitted", "round_us",
        "rounds_timed", "running", "generated_tokens", "prompt_tokens", "counts_basis",
        surface=pl.lit(REPORT),
        source_line="line",
        ts_start=pl.col("ts") - pl.duration(microseconds="window_us"),
        ts_end="ts",
        rounds_basis=pl.when(pl.col("rounds").is_not_null()).then("counts_basis"),
        time_basis=pl.when(timed).then(pl.lit("sum")),
    )  # fmt: skip


def _requests(found: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Canonical requests. Their passes count the prefill's where a request has as many as tokens: none gave two."""
    counts_prefill = ((pl.col("passes") >= pl.col("output_tokens")) & (pl.col("output_tokens") > 0)).any()
    iterations = pl.col("passes") - counts_prefill.cast(pl.Int64)
    several = pl.col("decode_us").is_not_null() & (pl.col("output_tokens") > 1)
    return found.select(
        "ts_basis", "prompt_tokens", "output_tokens", "ttft_us", "decode_us", "e2e_us", "error",
        surface=pl.lit(REQUEST),
        source_line="line",
        # Its id is a number of the bench's own process, and on no other record.
        request_id=rows.unnamed(context),
        iterations=pl.when(iterations >= 0).then(iterations),
        tpot_us=pl.when(several).then(pl.col("decode_us") / (pl.col("output_tokens") - 1)),
        tpot_basis=pl.when(several).then(pl.lit("derived")),
        counts_basis=pl.when(iterations >= 0).then(pl.lit("estimated")),
    )  # fmt: skip


def _report(value: Object) -> tuple[dict[str, Any], str | None]:
    """The row, and why its acceptance is refused, where it is."""
    info, performance = value["request_info"], value["performance"]
    if not isinstance(info, dict):
        raise BrokenError("request_info: wrong type")
    n = whole(info.get("num_requests"), "num_requests", _MOST)
    made = _total(info, "avg_output_length", n)
    out: dict[str, Any] = {
        "generated_tokens": made,
        "prompt_tokens": _total(info, "avg_input_length", n),
        "window_us": None if (ms := _ms(performance, "total_latency_ms")) is None else round(ms * 1000),
        "running": _rounded(info, "avg_num_concurrent_requests"),
    }
    out |= _run(value)
    decoding = value.get("decoding_stats")
    counts, why = _counts(decoding, n, made) if isinstance(decoding, dict) else (_plain(n, made), None)
    out |= counts
    out["role"] = "speculative" if isinstance(decoding, dict) else "baseline"
    decode = _decode_us(value, n)
    steps = out.get("rounds") or out.get("plain_steps")
    if decode and steps:
        out |= {"round_us": decode, "rounds_timed": steps}
    out["run_id"] = _name(value)
    return out, why


def _plain(n: int, made: int | None) -> dict[str, Any]:
    """A run without speculation: a step a token behind each first one."""
    if made is None or made < n:
        return {}
    steps = made - n
    return {
        "rounds": 0, "drafted": 0, "accepted": 0, "plain_steps": steps, "emitted": steps, "counts_basis": "logged",
    }  # fmt: skip


def _counts(decoding: Object, n: int, made: int | None) -> tuple[dict[str, Any], str | None]:
    """Counts without the prefill's iteration; see the module."""
    out: dict[str, Any] = {"method": short(decoding.get("mode"))}
    if made is not None and made >= n:
        out |= {"emitted": made - n, "counts_basis": "estimated"}
    if not drafts_always(decoding.get("mode")):
        return out, _COPIES
    accepted, drafted = (_dict(decoding, f"num_{c}_tokens_percentiles") for c in ("accepted_draft", "draft"))
    mean, most = accepted.get("average"), drafted.get("average")
    if made is None or mean is None or most is None or not n:
        return out, None
    iterations = made - finite(mean, "num_accepted_draft_tokens") * n
    k = finite(most, "num_draft_tokens") * n / iterations if iterations > 0 else 0.0
    steps, length = nearest(iterations, "num_accepted_draft_tokens"), nearest(k, "num_draft_tokens")
    if abs(iterations - steps) > 1e-3 or abs(k - length) > _EPS * max(k, 1) or not 1 <= k < 2**31:
        raise BrokenError("the averages of drafted and accepted tokens do not fit the output tokens")
    least = accepted.get("minimum")
    passes = 2 if least is not None and finite(least, "minimum") == -1 else 1
    rounds = steps - passes * n
    gained = made - n - rounds
    if not 0 <= gained <= rounds * length:
        raise BrokenError("0 <= accepted <= drafted does not hold")
    out |= {"rounds": rounds, "accepted": gained, "drafted": rounds * length, "num_speculative_tokens": length}
    return out, None


def _decode_us(value: Object, n: int) -> int | None:
    """Time of all requests behind their first token."""
    latency = _ms(value["performance"], "avg_request_latency_ms")
    ttft = _ms(_dict(value, "streaming_metrics"), "avg_ttft_ms")
    return round(n * (latency - ttft) * 1000) if latency and ttft and latency >= ttft else None


def _run(value: Object) -> dict[str, Any]:
    """Columns of the run: of the model its name, and no path or host."""
    engine, world = _dict(value, "engine"), _dict(value, "world_info")
    model, version = engine.get("model"), engine.get("version")
    kept = {
        "backend": engine.get("backend"), "dtype": engine.get("dtype"), "quantization": engine.get("quantization"),
        "scheduling_policy": world.get("scheduling_policy"), "pp_size": world.get("pp_size"),
        "ep_size": world.get("ep_size"),
    }  # fmt: skip
    return {
        "model": text(model, "model") if isinstance(model, str) else None,
        "engine_version": version if isinstance(version, str) and _WORD.fullmatch(version) else None,
        "tensor_parallel": _small(world, "tp_size"),
        "max_num_seqs": _small(world, "max_batch_size"),
        "config": [{"key": k, "value": str(v)} for k, v in kept.items() if _is_setting(v)] or None,
    }


def _is_setting(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, str)) and bool(_WORD.fullmatch(str(value)))


def _request(record: Object) -> dict[str, Any]:
    """One request of `--request_json`: its text, which is in it, is not read."""
    made = next((record[c] for c in ("output_tokens", "num_total_output_tokens") if type(record.get(c)) is int), None)
    start, first, end = (
        whole(v, c) if (v := record.get(c, -1)) != -1 else None
        for c in ("start_timestamp", "first_token_timestamp", "end_timestamp")
    )
    out: dict[str, Any] = {
        "prompt_tokens": None if (p := record.get("num_input_tokens", -1)) == -1 else whole(p, "num_input_tokens"),
        "output_tokens": None if made is None else whole(made, "output_tokens"),
        "passes": whole(record["decode_iteration"], "decode_iteration", _MOST),
        "error": True if record.get("error_tokens") else None,
    }
    # Without streaming the first token has no time: it is -1, null, or the start itself.
    for name, a, b in (("ttft_us", start, first), ("decode_us", first, end), ("e2e_us", start, end)):
        if a is not None and b is not None and not (name != "e2e_us" and first in (start, 0)):
            if b < a:
                raise BrokenError("start <= first token <= end does not hold")
            out[name] = (b - a + 500) // 1000
    return out


def _dict(value: Object, name: str) -> Object:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _total(info: Object, name: str, n: int) -> int | None:
    """The whole number behind a mean over requests, or None where there is none."""
    if info.get(name) is None:
        return None
    total = finite(info[name], name) * n
    if not 0 <= total < _MOST or abs(total - round(total)) > _EPS * max(total, 1):
        raise BrokenError(f"{name}: no mean of whole numbers")
    return round(total)


def _ms(source: Object, name: str) -> float | None:
    if source.get(name) is None:
        return None
    ms = finite(source[name], name)
    if not 0 <= ms < _LONGEST_MS:
        raise BrokenError(f"{name}: out of range")
    return ms


def _rounded(source: Object, name: str) -> int | None:
    if source.get(name) is None:
        return None
    number = finite(source[name], name)
    return round(number) if 0 <= number < INT32_MAX else None


def _small(source: Object, name: str) -> int | None:
    return None if source.get(name) is None else whole(source[name], name, INT32_MAX)


def _name(value: Object) -> str:
    """A run's name from what it measured: the same when its file was copied."""
    told = [value.get(key) for key in ("request_info", "performance", "streaming_metrics", "decoding_stats")]
    digest = hashlib.sha256(repr(told).encode("utf-8", "replace")).hexdigest()
    return f"trtllm-bench-{digest[:8]}"
