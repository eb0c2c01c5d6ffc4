"""vLLM's HTTP responses as a client or a gateway logs them: `metrics` and `metrics.speculative_decoding`.

From 0.25 (`--enable-per-request-metrics`) the body holds the request's times, from 0.29
(`--per-request-spec-decode-metrics summary|detailed`) its acceptance, round by round (vllm#48915).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl

from tracelens.engines.base import JsonRecord, Parsed, Reject, emitted_by_round

KEYS: tuple[bytes, ...] = (b'"speculative_decoding"', b'"generation_time_ms"', b'"num_spec_steps"')

_WRAPPERS = ("response", "response_body", "responseBody", "body", "resp", "output", "result", "data", "payload", "json")
_REQUESTS = ("request", "request_body", "requestBody", "params", "sampling_params", "req")
_TIMES = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms")

_REQUEST_COLUMNS: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "request_id": pl.String, "task_type": pl.String, "model": pl.String, "temperature": pl.Float64, "top_p": pl.Float64,
    "num_speculative_tokens": pl.Int32, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "cached_tokens": pl.Int64,
    "iterations": pl.Int64, "rounds": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64, "emitted": pl.Int64,
    "accepted_hist": pl.List(pl.Int64), "ttft_us": pl.Int64, "decode_us": pl.Int64, "queue_us": pl.Int64,
    "tpot_us": pl.Float64, "tpot_basis": pl.String, "finish_reason": pl.String, "error": pl.Boolean, "counts_basis": pl.String,
    "start_s": pl.Float64, "step_drafted": pl.List(pl.Int64), "step_accepted": pl.List(pl.Int64), "step_emitted": pl.List(pl.Int64),
}  # fmt: skip


class Broken(ValueError):
    """A field is not what it should be, or an identity does not hold."""


@dataclass(slots=True)
class _Columns:
    rows: dict[str, list[Any]] = field(default_factory=lambda: {c: [] for c in _REQUEST_COLUMNS})

    def add(self, row: Mapping[str, Any]) -> None:
        for name, values in self.rows.items():
            values.append(row.get(name))


def parse(records: Sequence[JsonRecord]) -> Parsed:
    """Request rows (with their rounds still as lists) of the records that are vLLM responses."""
    parsed, columns = Parsed(), _Columns()
    for record in records:
        for body, outer in bodies(record.value):
            try:
                row = _request(body, outer)
            except Broken as error:
                parsed.rejects.append(Reject(record.line, str(error), "vllm.response", record.offset))
                parsed.claimed += 1
                continue
            columns.add({**row, "line": record.line, "offset": record.offset, "stamp": record.stamp, "stream": record.stream})
            parsed.claimed += 1
    parsed.add("vllm.response", pl.DataFrame(columns.rows, schema=_REQUEST_COLUMNS))
    return parsed


def bodies(value: Mapping[str, Any], outer: tuple[Mapping[str, Any], ...] = ()) -> Iterator[tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...]]]:
    """Response bodies inside a record, each with the objects around it (innermost first)."""
    metrics = value.get("metrics")
    if isinstance(metrics, Mapping) and (isinstance(metrics.get("speculative_decoding"), Mapping) or any(k in metrics for k in _TIMES)):
        yield value, outer
        return
    if len(outer) >= 4:
        return
    for key in _WRAPPERS:
        inner = value.get(key)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            try:
                inner = msgspec.json.decode(inner)
            except msgspec.DecodeError:
                continue
        for item in inner if isinstance(inner, list) else (inner,):
            if isinstance(item, Mapping):
                yield from bodies(item, (value, *outer))


def _whole(source: Mapping[str, Any], key: str) -> int | None:
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise Broken(f"{key}: not a whole number")
    if not 0 <= value < 2**53:
        raise Broken(f"{key}: out of range")
    return int(value)


def _us(source: Mapping[str, Any], key: str) -> int | None:
    value = source.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise Broken(f"{key}: not a duration in ms")
    return round(value * 1000)


def _first(key: str, kinds: type | tuple[type, ...], *places: Any) -> Any:
    for place in places:
        if isinstance(place, Mapping):
            value = place.get(key)
            if isinstance(value, kinds) and not isinstance(value, bool):
                return value
    return None


def _counts(steps: Mapping[str, Any], key: str) -> list[int] | None:
    value = steps.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**31 for v in value):
        raise Broken(f"{key}: not a list of counts")
    return value


def _request(body: Mapping[str, Any], outer: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    metrics = body["metrics"]
    usage = body.get("usage") if isinstance(body.get("usage"), Mapping) else {}
    asked = [o.get(k) for o in (body, *outer) for k in _REQUESTS if isinstance(o.get(k), Mapping)]
    places = (*reversed(outer), body, *asked)
    row: dict[str, Any] = {
        "request_id": _first("request_id", (str, int), *places) or _first("id", str, body, *reversed(outer)),
        "task_type": _first("task_type", str, *places),
        "model": _first("model", str, body, *outer, *asked),
        "temperature": _first("temperature", (int, float), *places),
        "top_p": _first("top_p", (int, float), *places),
        "prompt_tokens": _whole(usage, "prompt_tokens"),
        "output_tokens": _whole(usage, "completion_tokens"),
        "cached_tokens": _whole(usage.get("prompt_tokens_details") or {}, "cached_tokens"),
        # vLLM's "first token" counts from the first scheduling on: the queue is apart.
        "ttft_us": _us(metrics, "time_to_first_token_ms"),
        "decode_us": _us(metrics, "generation_time_ms"),
        "queue_us": _us(metrics, "queue_time_ms"),
        "finish_reason": _finish(body, outer),
        **_when(body, places),
    }
    for key in ("temperature", "top_p"):
        if row[key] is not None and not (math.isfinite(row[key]) and 0 <= row[key] < 1e6):
            raise Broken(f"{key}: out of range")
    row["request_id"] = None if row["request_id"] is None else str(row["request_id"])
    _tpot(row, metrics)
    if isinstance(metrics.get("speculative_decoding"), Mapping):
        row.update(_speculation(metrics["speculative_decoding"], row["output_tokens"]))
    return row


def _finish(body: Mapping[str, Any], outer: tuple[Mapping[str, Any], ...]) -> str | None:
    choices = body.get("choices")
    places = [c for c in choices if isinstance(c, Mapping)] if isinstance(choices, list) else []
    reason = _first("finish_reason", str, *places, body, *outer)
    return reason[:32] if isinstance(reason, str) else None


def _when(body: Mapping[str, Any], places: tuple[Any, ...]) -> dict[str, Any]:
    """Arrival as seconds since the epoch, or a stamp of the record as text."""
    for key in ("t_send", "start_time", "arrival_time", "created"):
        value = _first(key, (int, float), *places)
        if value is not None and 1e9 < value < 1e10:
            return {"start_s": float(value)}
    for key in ("timestamp", "ts", "time", "@timestamp", "log_time"):
        text = _first(key, (str, int, float), *places)
        if text is not None:
            return {"inner": str(text)[:64]}
    return {}


def _tpot(row: dict[str, Any], metrics: Mapping[str, Any]) -> None:
    """TPOT = decode time / (output tokens - 1); the logged mean only where its parts are missing."""
    tokens, decode = row["output_tokens"], row["decode_us"]
    if tokens is not None and decode is not None:
        if tokens > 1:
            row["tpot_us"], row["tpot_basis"] = decode / (tokens - 1), "derived"
        return
    logged = _us(metrics, "mean_itl_ms")  # named after ITL, but it is decode time / (tokens - 1)
    if logged is not None:
        row["tpot_us"], row["tpot_basis"] = float(metrics["mean_itl_ms"]) * 1000, "logged"


def _speculation(spec: Mapping[str, Any], output: int | None) -> dict[str, Any]:
    rounds, drafted, accepted = (_whole(spec, k) for k in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"))
    hist, k = _counts(spec, "acceptance_histogram"), _whole(spec, "num_spec_tokens")
    step_accepted, step_drafted = _counts(spec, "per_step_accepted"), _counts(spec, "per_step_drafted")
    checks = {
        "accepted <= drafted": accepted is None or drafted is None or accepted <= drafted,
        "sum(acceptance_histogram) = num_spec_steps": not hist or rounds is None or sum(hist) == rounds,
        "sum(j * acceptance_histogram[j]) = num_accepted_draft_tokens": not hist
        or accepted is None
        or sum(j * n for j, n in enumerate(hist)) == accepted,
    }
    if step_accepted is not None and step_drafted is not None:
        checks |= {
            "len(per_step_accepted) = len(per_step_drafted) = num_spec_steps": len(step_accepted) == len(step_drafted)
            and (rounds is None or len(step_accepted) == rounds),
            "per_step_accepted <= per_step_drafted": all(a <= d for a, d in zip(step_accepted, step_drafted, strict=False)),
            "sum(per_step_accepted) = num_accepted_draft_tokens": accepted is None or sum(step_accepted) == accepted,
            "sum(per_step_drafted) = num_draft_tokens": drafted is None or sum(step_drafted) == drafted,
        }
    for identity, holds in checks.items():
        if not holds:
            raise Broken(f"{identity} does not hold")
    out: dict[str, Any] = {
        "rounds": rounds, "drafted": drafted, "accepted": accepted, "accepted_hist": hist or None,
        "num_speculative_tokens": k if k is None or k < 2**31 else None, "counts_basis": "logged",
    }  # fmt: skip
    if output is not None and output > 0 and rounds is not None and accepted is not None:
        # The first token is the prefill's. What the rounds do not explain came from plain steps between them.
        out["emitted"] = output - 1
        out["iterations"] = rounds + max(0, output - 1 - accepted - rounds)
    if step_accepted and step_drafted:
        out |= {"step_drafted": step_drafted, "step_accepted": step_accepted, "step_emitted": emitted_by_round(step_accepted, out.get("emitted"))}
    return out
