"""Finished requests: access and query logs, the dash_sc gRPC line, bare `aux_info` objects.

Read from alibaba/rtp-llm, main at 4b8d39cd5 (2026-08-20) and v0.2.0 (d1e93ce12). Records are told by their keys, never
by the file's name. Of a request only its settings are read: no prompt, text, token id, address or trace id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from tracelens.engines.base import JsonRecord
from tracelens.engines.rtp_llm.aux_info import accepted_of, plain_counts, times_of, tokens_of
from tracelens.engines.units import BrokenError, finish_reason, finite, text, whole

ACCESS = "rtp.access"
QUERY = "rtp.query"
DASH = "rtp.dash_sc"
AUX = "rtp.aux_info"

Row = dict[str, Any]

# A request row before its stamps are resolved; `inner` is the log's own stamp.
SCHEMA: dict[str, Any] = {
    "line": pl.Int64,
    "stamp": pl.String,
    "inner": pl.String,
    "stream": pl.String,
    "process": pl.String,
    "request_id": pl.String,
    "model": pl.String,
    "task_type": pl.String,
    "temperature": pl.Float64,
    "top_p": pl.Float64,
    "forced_acceptance": pl.Boolean,
    "num_speculative_tokens": pl.Int32,
    "ts_start": pl.Datetime("us"),
    "ts_first_token": pl.Datetime("us"),
    "ts_end": pl.Datetime("us"),
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "iterations": pl.Int64,
    "rounds": pl.Int64,
    "drafted": pl.Int64,
    "accepted": pl.Int64,
    "emitted": pl.Int64,
    "accepted_hist": pl.List(pl.Int64),
    "counts_basis": pl.String,
    "ttft_us": pl.Int64,
    "decode_us": pl.Int64,
    "e2e_us": pl.Int64,
    "queue_us": pl.Int64,
    "tpot_us": pl.Float64,
    "tpot_basis": pl.String,
    "finish_reason": pl.String,
    "error": pl.Boolean,
}

# What the gRPC front end counts itself, by the name aux_info has for it.
_DASH_LENGTHS = {
    "input_len": "input_token_len",
    "output_len": "output_token_len",
    "reuse_len": "prompt_cached_token_num",
}

# A label longer than this is no class of traffic but some text of the user's.
_LABEL_CHARS = 120
_EPOCH_MS = (1_000_000_000_000, 4_100_000_000_000)  # 2001 to 2099


def surface_of(value: Mapping[str, Any]) -> str | None:
    """Which kind of request record this is, or None."""
    if value.get("event") == "rpc_completed" and ("component_role" in value or "latency_total_ms" in value):
        return DASH
    if {"request", "response"} <= value.keys():
        response = _dict(value["response"])
        if not {"id", "log_time"} <= value.keys() and not isinstance(response.get("responses"), list | str):
            return None
        arrival = response.get("responses") == [] and response.get("exception") is None
        return QUERY if arrival else ACCESS
    aux = value.get("aux_info")
    # A response that was saved by itself. These three keys are together in no other engine's record.
    if isinstance(aux, dict) and {"iter_count", "input_len", "output_len"} <= aux.keys() and not _is_chunk(value):
        return AUX
    return None


def _is_chunk(value: Mapping[str, Any]) -> bool:
    """A piece of a stream that is not its last: its counters are those of the moment."""
    if value.get("object") == "chat.completion.chunk":
        return _ended(value) is None
    return value.get("finished") is False


def rows_of(surface: str, record: JsonRecord) -> Iterator[Row | BrokenError]:
    """The rows of one record; a batch has several, each good or broken by itself."""
    base: Row = {"line": record.line, "stamp": record.stamp, "stream": record.stream}
    try:
        if surface == DASH:
            yield base | _dash(record.value)
        elif surface == AUX:
            request_id = record.value.get("id", record.value.get("request_id"))
            named = text(request_id, "id", is_id=True) if _is_id(request_id) else None
            yield base | {"request_id": named} | _answer(record.value, record.value["aux_info"])
        else:
            yield from _access(surface, base, record.value)
    except BrokenError as fault:
        yield fault


def _access(surface: str, base: Row, value: Mapping[str, Any]) -> Iterator[Row | BrokenError]:
    """An access or query line (rtp-llm.md 2.1)."""
    request_id = value.get("id")
    named = None if request_id in (None, "") else text(request_id, "id", is_id=True)
    stamp = value.get("log_time")
    base = base | {"inner": stamp if isinstance(stamp, str) else None, "request_id": named}
    # The C++ api_server writes the request body and every response as JSON text inside the JSON.
    base |= settings(_dict(_decoded(_dict(value["request"]).get("request_json"))))
    if surface == QUERY:
        yield base
        return
    response = _dict(value["response"])
    failed = response.get("exception") is not None
    answers = list(_answers(response.get("responses"))) or [({}, None)]
    for i, (answer, aux) in enumerate(answers):
        suffix = f"-{i}" if len(answers) > 1 and named is not None else ""
        try:
            row = base | _answer(answer, aux, failed)
        except BrokenError as fault:
            yield fault
        else:
            yield row | {"request_id": named + suffix if named is not None else None}


def _answers(responses: Any) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """(answer, aux_info) of everything a response list holds: single, several sequences, batch."""
    responses = _decoded(responses)
    for item in responses if isinstance(responses, list) else [responses]:
        answer = _dict(_decoded(item))
        batch = answer.get("response_batch")
        aux = answer.get("aux_info")
        if isinstance(batch, list):
            yield from _answers(batch)
        elif isinstance(aux, list):  # num_return_sequences > 0
            yield from ((answer, each) for each in aux)
        elif answer or item:
            yield answer, aux


def _answer(answer: Mapping[str, Any], aux: Any, failed: bool = False) -> Row:
    """Counts and times of one answer.

    Raises:
        BrokenError: a field that cannot be, or a broken identity.
    """
    figures = aux if isinstance(aux, dict) else {}
    row = tokens_of(figures)
    usage = _dict(answer.get("usage"))
    for column, key in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        if row[column] is None and usage.get(key) is not None:
            row[column] = whole(usage[key], f"usage.{key}")
    row |= times_of(figures, row["output_tokens"])
    # What a failed request leaves (input_len, output_len, ...) is partial: no figure of its rounds holds.
    row |= {} if failed else _counts(figures, row)
    row["error"] = failed
    row["finish_reason"] = "error" if failed else finish_reason(_ended(answer))
    return row


def _counts(figures: Mapping[str, Any], row: Row) -> Row:
    found = accepted_of(figures)
    return found | plain_counts(row["output_tokens"], row["iterations"], found)


def _dash(value: Mapping[str, Any]) -> Row:
    """The gRPC front end's line (rtp-llm.md 2.4; since 2026-07-29, 137d87a1b; `aux_info` since 69aba52b6).

    Its own clock stands for what the client saw (TTFT, end to end); decode time and rounds are the engine's.
    A forwarder's line has no token fields, and gives only what it has.
    """
    failed = value.get("status") not in ("OK", None)
    own = {name: value.get(key) for name, key in _DASH_LENGTHS.items()}
    aux = {key: cell for key, cell in _dict(value.get("aux_info")).items() if cell is not None}
    row = _answer({}, own | aux, failed)
    config = _dict(value.get("generate_config"))
    row |= settings({"generate_config": config})
    row["request_id"] = text(value["request_id"], "request_id", is_id=True) if _is_id(value.get("request_id")) else None
    row["model"] = model_of(value.get("model_name"))
    row["process"] = label_of(value.get("component_role"))
    seen = {"cost_time": value.get("latency_total_ms"), "first_token_cost_time": value.get("latency_ttft_ms")}
    row |= {key: us for key, us in times_of(seen, None).items() if us is not None and key in ("e2e_us", "ttft_us")}
    tpot = value.get("latency_tpot_ms")
    if row["tpot_us"] is None and (logged := _number(tpot, 0, 1e12)) is not None:
        row |= {"tpot_us": logged * 1000.0, "tpot_basis": "logged"}
    row["ts_start"] = _epoch(value.get("request_enter_ts_epoch_ms"))
    row["ts_first_token"] = _epoch(value.get("first_token_ts_epoch_ms"))
    row["ts_end"] = _epoch(value.get("finished_ts_epoch_ms")) or _epoch(value.get("ts_epoch_ms"))
    row["inner"] = value["ts"] if isinstance(value.get("ts"), str) else None
    row["finish_reason"] = "error" if failed else finish_reason(value.get("finish_reason"))
    return row


def settings(request: Mapping[str, Any]) -> Row:
    """Model, task and sampling of a request. A setting that was not logged, or makes no sense, stays NULL."""
    extra = _dict(request.get("extra_configs"))
    places: list[Mapping[str, Any]] = [
        request,
        _dict(request.get("generate_config")),
        extra,
        _dict(extra.get("generate_config")),
    ]

    def first(key: str) -> Any:
        return next((place[key] for place in places if place.get(key) is not None), None)

    temperature, top_p = first("temperature"), first("top_p")
    forced = first("force_sp_accept")
    return {
        "model": model_of(request.get("model")),
        "task_type": _task_type(request, places),
        "temperature": _number(temperature, 0, 1e6),
        "top_p": _number(top_p, 0, 1),
        # Full acceptance is forced for performance tests: such a row is never mixed with real ones.
        "forced_acceptance": forced if isinstance(forced, bool) else None,
    }


def _task_type(request: Mapping[str, Any], places: list[Mapping[str, Any]]) -> str | None:
    """RTP-LLM has no such field; what carries it, in the order of rtp-llm.md 6.

    `extend_fields` is declared "only for logging"; `source` is a tag of the engine's own metrics. Ids of a chat or a
    trace are no class of traffic; `response_format` is a matter for the rules of tracelens.toml.
    """
    fields = _dict(request.get("extend_fields"))
    task_ids = [place.get("task_id") for place in places[1:]]
    for value in (fields.get("task_type"), fields.get("task"), *task_ids, request.get("source")):
        label = label_of(value)
        if label is not None:
            return label
    return None


def label_of(value: Any) -> str | None:
    """A short word as it was logged; anything longer, or on several lines, is not kept."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    word = str(value).strip()
    if not word or len(word) > _LABEL_CHARS or not word.isprintable():
        return None
    return word


def model_of(value: Any) -> str | None:
    """The model's name; of a path only its last part, as the others tell of hosts and users."""
    word = label_of(value)
    return word.rstrip("/").rsplit("/", 1)[-1] or None if word and word.startswith("/") else word


def _ended(answer: Mapping[str, Any]) -> str | None:
    """Why an answer ended, in whatever words; None where it has not."""
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return label_of(choices[0].get("finish_reason"))
    return None


def _epoch(value: Any) -> int | None:
    """Microseconds of an epoch in milliseconds; what lies outside this century is no stamp."""
    number = _number(value, *_EPOCH_MS)
    return None if number is None else round(number * 1000)


def _number(value: Any, low: float, high: float) -> float | None:
    """A number that makes sense, or None: for settings and stamps, without which a record is still good."""
    try:
        number = finite(value, "")
    except BrokenError:
        return None
    return number if low <= number <= high else None


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _decoded(value: Any) -> Any:
    """A value, or what it holds as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
