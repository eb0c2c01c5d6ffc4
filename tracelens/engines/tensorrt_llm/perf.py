"""TensorRT-LLM's finished requests: `perf_metrics-*.jsonl` (`GET /perf_metrics`) and responses with acceptance.

The steps that a record lists beside its request (`step_metrics`) are `tracelens.engines.tensorrt_llm.request_steps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from tracelens.engines.base import JsonRecord
from tracelens.engines.units import BrokenError, counts, finite, text, whole

PERF, RESPONSE = "trtllm.perf_metrics", "trtllm.response"
KEYS: tuple[bytes, ...] = (b'"timing_metrics"', b'"total_draft_tokens"')

# A chain of drafts is told by drafted = iterations x K only up to a length that is in use.
_LONGEST_CHAIN = 16
_TIMES = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")

SCHEMA: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "request_id": pl.String, "num_speculative_tokens": pl.Int32, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64,
    "iterations": pl.Int64, "rounds": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64, "emitted": pl.Int64,
    "accepted_hist": pl.List(pl.Int64), "counts_basis": pl.String, "target_us": pl.Int64, "ttft_us": pl.Int64,
    "decode_us": pl.Int64, "e2e_us": pl.Int64, "queue_us": pl.Int64, "tpot_us": pl.Float64, "tpot_basis": pl.String,
    "finish_reason": pl.String,
}  # fmt: skip


def rows_of(entry: JsonRecord, value: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any] | BrokenError]]:
    """(surface, row or what is wrong with it) of the requests in a record; none when it is not one of these."""
    found: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []
    record = record_of(value)
    if record is not None:
        found.append((PERF, record, value))
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) and not found else ():
        spec = choice.get("speculative_decoding") if isinstance(choice, dict) else None
        if isinstance(spec, dict) and "total_draft_tokens" in spec:
            found.append((RESPONSE, choice, value))
    for surface, record, around in found:
        try:
            row = _perf(record) if surface == PERF else _response(record, around, len(found))
            request_id = record.get("request_id", around.get("id"))
            row["request_id"] = None if request_id in (None, "") else text(request_id, "request_id", is_id=True)
        except BrokenError as fault:
            yield surface, fault
            continue
        yield surface, row | {"line": entry.line, "offset": entry.offset, "stamp": entry.stamp, "stream": entry.stream}


def record_of(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The record of a finished request, or None.

    Disaggregated serving wraps both servers' records; the decoding one has the rounds, on a clock of its own.
    """
    for record in (value, value.get("gen_perf_metrics"), value.get("ctx_perf_metrics")):
        if isinstance(record, dict) and isinstance(record.get("perf_metrics"), dict):
            return record
    return None


def _perf(record: Mapping[str, Any]) -> dict[str, Any]:
    metrics = record["perf_metrics"]
    timing = metrics.get("timing_metrics")
    row: dict[str, Any] = _timing(timing) if isinstance(timing, dict) else {}
    first, last = _count(metrics, "first_iter"), _count(metrics, "last_iter")
    if first is not None and last is not None and last >= first:
        row["iterations"] = last - first  # the first is the prefill, which gives the first token
    spec = metrics.get("speculative_decoding")
    # Zeros on the PyTorch backend before #17082 (2026-07): not measured. Later the block is there only with drafts.
    if isinstance(spec, dict) and spec.get("total_draft_tokens"):
        row |= _counts(spec)
        row |= _rounds(row)
    elif spec is None:
        row["target_us"] = _forward_us(record)
    return row


def drafts(record: Mapping[str, Any], row: Mapping[str, Any]) -> bool | None:
    """Whether the request drafted in each of its steps (true), in none (false), or is not known to (None)."""
    if row.get("rounds"):
        return True
    # Left out since #17082 where nothing was drafted; a block of zeros was written before it, whatever was drafted.
    return False if record["perf_metrics"].get("speculative_decoding") is None else None


def _rounds(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rounds, where the drafts are the same number in each iteration of the request: then no other number fits."""
    drafted, iterations = row["drafted"], row.get("iterations")
    if not iterations or drafted % iterations or not 1 <= drafted // iterations <= _LONGEST_CHAIN:
        return {}
    k = drafted // iterations
    return {"rounds": iterations, "num_speculative_tokens": k, "counts_basis": "derived"}


def _timing(timing: Mapping[str, Any]) -> dict[str, Any]:
    """Durations from stamps of one process (seconds, monotonic: their origin is not the calendar's)."""
    at = {name: finite(timing[name], name) for name in _TIMES if timing.get(name) is not None}
    out: dict[str, Any] = {}
    for name, start, end in (
        ("queue_us", "arrival_time", "first_scheduled_time"),
        ("ttft_us", "arrival_time", "first_token_time"),
        ("decode_us", "first_token_time", "last_token_time"),
        ("e2e_us", "arrival_time", "last_token_time"),
    ):
        if start in at and end in at and at[start] > 0 and at[end] > 0:  # 0.0 is a stamp that was never taken
            if not 0 <= at[end] - at[start] < 1e8:
                raise BrokenError(f"{start} <= {end} does not hold")
            out[name] = round((at[end] - at[start]) * 1e6)
    return out


def _forward_us(record: Mapping[str, Any]) -> int | None:
    """GPU time of the target's passes by `step_metrics`, of a request that drafted nothing.

    With drafts the same figure is draft and verify in one (one-model drafters run inside the forward), so it is
    neither; a block of zeros does not say that there were none. Host stamps of the steps have another origin than the
    request's and are not read.
    """
    steps = record.get("time_breakdown_metrics")
    steps = steps.get("step_metrics") if isinstance(steps, dict) else None
    if not isinstance(steps, list) or not steps or not all(isinstance(s, dict) for s in steps):
        return None
    times = [s.get("gpu_forward_time") for s in steps]
    if any(t is None for t in times):
        return None
    numbers = [finite(t, "gpu_forward_time") for t in times]
    return round(sum(numbers) * 1000) if all(0 <= n < 1e9 for n in numbers) else None


def _counts(spec: Mapping[str, Any]) -> dict[str, Any]:
    drafted, accepted = _count(spec, "total_draft_tokens"), _count(spec, "total_accepted_draft_tokens")
    if drafted is None or accepted is None or accepted > drafted:
        raise BrokenError("total_accepted_draft_tokens <= total_draft_tokens does not hold")
    return {"drafted": drafted, "accepted": accepted, "counts_basis": "logged"}


def _response(choice: Mapping[str, Any], body: Mapping[str, Any], choices: int) -> dict[str, Any]:
    """A choice of an OpenAI response with `per_request_spec_decode_stats` (proposed in #19311, 2026-09)."""
    spec = choice["speculative_decoding"]
    usage = body.get("usage")
    # usage is of all choices together
    usage = usage if isinstance(usage, dict) and choices == 1 else {}
    row = _counts(spec) | {
        "rounds": _count(spec, "num_spec_steps"),
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "output_tokens": _count(usage, "completion_tokens"),
    }
    k, hist = _count(spec, "num_spec_tokens"), spec.get("acceptance_histogram")
    row["num_speculative_tokens"] = k if k is None or k < 2**31 else None
    row["accepted_hist"] = counts(hist, "acceptance_histogram") if hist else None
    if row["output_tokens"] and row["rounds"] is not None:
        row["emitted"] = row["output_tokens"] - 1
        row["iterations"] = row["rounds"] + max(0, row["emitted"] - row["accepted"] - row["rounds"])
    reason = choice.get("finish_reason")
    row["finish_reason"] = reason if reason in ("stop", "length", "tool_calls", "content_filter") else None
    return row


def _count(source: Mapping[str, Any], name: str) -> int | None:
    return None if source.get(name) is None else whole(source[name], name, 2**53)


def requests(surface: str, frame: pl.DataFrame, source_id: str) -> pl.DataFrame:
    """Canonical requests of one surface, from rows of `SCHEMA` with `ts` and `ts_basis`."""
    keep = [c for c in SCHEMA if c not in ("line", "offset", "stamp", "inner", "stream", "request_id")]
    return frame.select(
        *keep,
        "ts_basis",
        ts_end="ts",
        source_line="line",
        surface=pl.lit(surface),
        request_id=pl.coalesce("request_id", pl.format("{}#{}", pl.lit(source_id), pl.col("line"))),
    )
