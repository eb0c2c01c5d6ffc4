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
from tracelens.engines.rows import frame_by_column
from tracelens.engines.units import INT32_MAX, finish_reason

KEYS: tuple[bytes, ...] = (b'"speculative_decoding"', b'"generation_time_ms"', b'"num_spec_steps"')

_WRAPPERS = (
    "response",
    "response_body",
    "responseBody",
    "body",
    "resp",
    "output",
    "result",
    "data",
    "payload",
    "json",
)
_MARKS = frozenset(("metrics", *_WRAPPERS))
_REQUESTS = ("request", "request_body", "requestBody", "params", "sampling_params", "req")
_TIMES = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms")
# Beyond, a double no longer holds every whole number; and a duration or an epoch is none.
_COUNT_LIMIT = 2**53
_MS_LIMIT = 10**12

_COUNTS = pl.List(pl.Int64)
_REQUEST_COLUMNS: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "request_id": pl.String, "task_type": pl.String, "model": pl.String, "temperature": pl.Float64,
    "top_p": pl.Float64, "num_speculative_tokens": pl.Int32, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64, "iterations": pl.Int64, "rounds": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64,
    "emitted": pl.Int64, "accepted_hist": _COUNTS, "ttft_us": pl.Int64, "decode_us": pl.Int64, "queue_us": pl.Int64,
    "tpot_us": pl.Float64, "tpot_basis": pl.String, "finish_reason": pl.String, "counts_basis": pl.String,
    "start_s": pl.Float64, "step_drafted": _COUNTS, "step_accepted": _COUNTS, "step_emitted": _COUNTS,
}  # fmt: skip
Object = Mapping[str, Any]


class BrokenError(ValueError):
    """A field is not what it should be, or an identity does not hold."""


@dataclass(slots=True)
class _Columns:
    rows: dict[str, list[Any]] = field(default_factory=lambda: {c: [] for c in _REQUEST_COLUMNS})

    def add(self, row: Object) -> None:
        for name, values in self.rows.items():
            values.append(row.get(name))


def parse(records: Sequence[JsonRecord]) -> Parsed:
    """Request rows (with their rounds still as lists) of the records that are vLLM responses."""
    parsed, columns = Parsed(), _Columns()
    for record in records:
        where = {"line": record.line, "offset": record.offset, "stamp": record.stamp, "stream": record.stream}
        for body, outer in bodies(record.value):
            parsed.claimed += 1
            try:
                columns.add({**_request(body, outer), **where})
            except BrokenError as error:
                parsed.rejects.append(Reject(record.line, str(error), "vllm.response", record.offset))
    parsed.add("vllm.response", frame_by_column(columns.rows, _REQUEST_COLUMNS))
    return parsed


def bodies(value: Object, outer: tuple[Object, ...] = ()) -> Iterator[tuple[Object, tuple[Object, ...]]]:
    """Response bodies inside a record, each with the objects around it (innermost first)."""
    if _MARKS.isdisjoint(value):
        return
    metrics = value.get("metrics")
    if isinstance(metrics, dict) and (
        isinstance(metrics.get("speculative_decoding"), dict) or any(k in metrics for k in _TIMES)
    ):
        yield value, outer
        return
    if len(outer) >= 4:
        return
    for key in _WRAPPERS:
        inner = value.get(key)
        if isinstance(inner, str):
            inner = _decoded(inner)
        for item in inner if isinstance(inner, list) else (inner,):
            if isinstance(item, dict):
                yield from bodies(item, (value, *outer))


def _decoded(text: str) -> list[Any]:
    """Objects in a text: a body that was encoded once more, or the events of a stream (`data: {…}`)."""
    text = text.strip()
    if text.startswith(("{", "[")):
        pieces = [text]
    elif text.startswith("data:"):
        pieces = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    else:
        return []
    found: list[Any] = []
    for piece in pieces:
        try:
            value = msgspec.json.decode(piece)
        except (msgspec.MsgspecError, RecursionError):
            continue
        found += value if isinstance(value, list) else [value]
    return found


def _whole(source: Object, key: str) -> int | None:
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenError(f"{key}: not a whole number")
    if not 0 <= value < _COUNT_LIMIT:  # NaN is in no range
        raise BrokenError(f"{key}: out of range")
    if value != int(value):
        raise BrokenError(f"{key}: not a whole number")
    return int(value)


def _us(source: Object, key: str) -> int | None:
    value = source.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MS_LIMIT:
        raise BrokenError(f"{key}: not a duration in ms")
    return math.floor(value * 1000 + 0.5)


def _first(key: str, kinds: type | tuple[type, ...], *places: Any) -> Any:
    for place in places:
        if isinstance(place, Mapping):
            value = place.get(key)
            if isinstance(value, kinds) and not isinstance(value, bool):
                return value
    return None


def _counts(steps: Object, key: str) -> list[int] | None:
    value = steps.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(v) is int and 0 <= v < INT32_MAX for v in value):
        raise BrokenError(f"{key}: not a list of counts")
    return value


def _request(body: Object, outer: tuple[Object, ...]) -> dict[str, Any]:
    metrics = body["metrics"]
    usage = _object(body, "usage")
    asked = [o.get(k) for o in (body, *outer) for k in _REQUESTS if isinstance(o.get(k), Mapping)]
    places = (*reversed(outer), body, *asked)
    row: dict[str, Any] = {
        "request_id": _id(_first("request_id", (str, int), *places) or _first("id", str, body, *reversed(outer))),
        "task_type": _first("task_type", str, *places),
        "model": _first("model", str, body, *outer, *asked),
        "temperature": _parameter("temperature", places),
        "top_p": _parameter("top_p", places),
        "prompt_tokens": _whole(usage, "prompt_tokens"),
        "output_tokens": _whole(usage, "completion_tokens"),
        "cached_tokens": _whole(_object(usage, "prompt_tokens_details"), "cached_tokens"),
        # vLLM's "first token" counts from the first scheduling on: the queue is apart.
        "ttft_us": _us(metrics, "time_to_first_token_ms"),
        "decode_us": _us(metrics, "generation_time_ms"),
        "queue_us": _us(metrics, "queue_time_ms"),
        "finish_reason": _finish(body, outer),
        **_when(places),
    }
    _tpot(row, metrics)
    if isinstance(metrics.get("speculative_decoding"), Mapping):
        row.update(_speculation(metrics["speculative_decoding"], row["output_tokens"]))
    return row


def _object(source: Object, key: str) -> Object:
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}


def _id(value: str | int | None) -> str | None:
    return str(value) if isinstance(value, str) or (value is not None and abs(value) < 10**40) else None


def _parameter(key: str, places: Sequence[Any]) -> float | None:
    value = _first(key, (int, float), *places)
    if value is not None and not 0 <= value < 1e6:
        raise BrokenError(f"{key}: out of range")
    return None if value is None else float(value)


def _finish(body: Object, outer: tuple[Object, ...]) -> str | None:
    choices = body.get("choices")
    places = [c for c in choices if isinstance(c, Mapping)] if isinstance(choices, list) else []
    reason = _first("finish_reason", str, *places, body, *outer)
    return finish_reason(reason)


def _when(places: Sequence[Any]) -> dict[str, Any]:
    """Arrival as seconds since the epoch, or a stamp of the record as text."""
    for key in ("t_send", "start_time", "arrival_time", "created"):
        value = _first(key, (int, float), *places)
        if value is not None and 1e9 < value < 1e10:
            return {"start_s": float(value)}
    for key in ("timestamp", "ts", "time", "@timestamp", "log_time"):
        stamp = _first(key, (str, int, float), *places)
        if isinstance(stamp, str) or (stamp is not None and abs(stamp) < 1e20):
            return {"inner": str(stamp)[:64]}
    return {}


def _tpot(row: dict[str, Any], metrics: Object) -> None:
    """TPOT = decode time / (output tokens - 1); the logged mean only where its parts are missing."""
    tokens, decode = row["output_tokens"], row["decode_us"]
    if tokens is not None and decode is not None:
        if tokens > 1:
            row["tpot_us"], row["tpot_basis"] = decode / (tokens - 1), "derived"
        return
    logged = _us(metrics, "mean_itl_ms")  # named after ITL, but it is decode time / (tokens - 1)
    if logged is not None:
        row["tpot_us"], row["tpot_basis"] = float(metrics["mean_itl_ms"]) * 1000, "logged"


def _speculation(spec: Object, output: int | None) -> dict[str, Any]:
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    rounds, drafted, accepted = (_whole(spec, name) for name in names)
    hist, k = _counts(spec, "acceptance_histogram"), _whole(spec, "num_spec_tokens")
    step_accepted, step_drafted = _counts(spec, "per_step_accepted"), _counts(spec, "per_step_drafted")
    checks = {
        "accepted <= drafted": accepted is None or drafted is None or accepted <= drafted,
        **_histogram_checks(hist, rounds, accepted),
        **_step_checks(step_accepted, step_drafted, rounds, drafted, accepted),
    }
    for identity, holds in checks.items():
        if not holds:
            raise BrokenError(f"{identity} does not hold")
    out: dict[str, Any] = {
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "accepted_hist": hist or None,
        "num_speculative_tokens": k if k is None or k <= INT32_MAX else None,
        "counts_basis": "logged",
    }
    if output is not None and output > 0 and rounds is not None and accepted is not None:
        # The first token is the prefill's. What the rounds do not explain came from plain steps between them.
        out["emitted"] = output - 1
        out["iterations"] = rounds + max(0, output - 1 - accepted - rounds)
    if step_accepted and step_drafted:
        emitted = emitted_by_round(step_accepted, out.get("emitted"))
        out |= {"step_drafted": step_drafted, "step_accepted": step_accepted, "step_emitted": emitted}
    return out


def _histogram_checks(hist: list[int] | None, rounds: int | None, accepted: int | None) -> dict[str, bool]:
    if not hist:
        return {}
    moment = sum(j * n for j, n in enumerate(hist))
    return {
        "sum(acceptance_histogram) = num_spec_steps": rounds is None or sum(hist) == rounds,
        "sum(j * acceptance_histogram[j]) = num_accepted_draft_tokens": accepted is None or moment == accepted,
    }


def _step_checks(
    step_accepted: list[int] | None,
    step_drafted: list[int] | None,
    rounds: int | None,
    drafted: int | None,
    accepted: int | None,
) -> dict[str, bool]:
    if step_accepted is None or step_drafted is None:
        return {}
    steps = len(step_accepted)
    return {
        "len(per_step_accepted) = len(per_step_drafted) = num_spec_steps": steps == len(step_drafted)
        and (rounds is None or steps == rounds),
        "per_step_accepted <= per_step_drafted": all(a <= d for a, d in zip(step_accepted, step_drafted, strict=False)),
        "sum(per_step_accepted) = num_accepted_draft_tokens": accepted is None or sum(step_accepted) == accepted,
        "sum(per_step_drafted) = num_draft_tokens": drafted is None or sum(step_drafted) == drafted,
    }
