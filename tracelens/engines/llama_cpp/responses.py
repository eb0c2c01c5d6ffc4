"""What clients save of llama-server: responses with `timings`, streams of them, and GET /slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import polars as pl

from tracelens.engines import units
from tracelens.engines.base import JsonRecord, Parsed, Reject
from tracelens.engines.llama_cpp.blocks import after_first, timed
from tracelens.engines.llama_cpp.startup import leaf
from tracelens.engines.llama_cpp.surfaces import SLOTS, TIMINGS
from tracelens.engines.rows import frame_of
from tracelens.engines.units import BrokenError

KEYS: tuple[bytes, ...] = (b'"predicted_ms"', b'"is_processing"')

_WRAPPERS = ("response", "response_body", "body", "resp", "output", "result", "data", "payload", "json")
_SETTINGS = ("generation_settings", "params", "request", "request_body")
_SCHEMA: Mapping[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "closes": pl.Boolean, "id": pl.String, "request_id": pl.String, "task_type": pl.String, "model": pl.String,
    "temperature": pl.Float64, "top_p": pl.Float64, "prompt_n": pl.Int64, "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64, "output_tokens": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64,
    "rounds": pl.Int64, "emitted": pl.Int64, "ttft_us": pl.Int64, "decode_us": pl.Int64, "finish_reason": pl.String,
    "counts_basis": pl.String,
}  # fmt: skip
_SLOT_SCHEMA: Mapping[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String, "slot": pl.Int64,
    "running": pl.Int64, "method": pl.String, "held": pl.Int64, "room": pl.Int64,
}  # fmt: skip


def parse(records: Sequence[JsonRecord]) -> Parsed:
    """Rows of the records that are llama.cpp's; `claimed` counts those taken."""
    parsed = Parsed()
    rows: dict[str, list[dict[str, Any]]] = {TIMINGS: [], SLOTS: []}
    for record in records:
        found = _body(record.value)
        surface = TIMINGS if found is not None else SLOTS if _is_slot(record.value) else None
        if surface is None:
            continue
        parsed.claimed += 1
        at = {"line": record.line, "offset": record.offset, "stamp": record.stamp, "stream": record.stream}
        try:
            row = _request(*found) if found is not None else _slot(record.value)
        except BrokenError as fault:
            parsed.rejects.append(Reject(record.line, str(fault), surface, record.offset))
            continue
        rows[surface].append(row | at)
    for surface, schema in ((TIMINGS, _SCHEMA), (SLOTS, _SLOT_SCHEMA)):
        parsed.add(surface, frame_of(rows[surface], schema))
    return parsed


def _body(value: Mapping[str, Any], depth: int = 0) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]] | None:
    """(timings, the objects around it, innermost first), or None where there are none."""
    if _is_timings(value):
        return value, ()
    timings = value.get("timings")
    if isinstance(timings, Mapping) and _is_timings(timings):
        return timings, (value,)
    for key in _WRAPPERS if depth < 3 else ():
        inner = value.get(key)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            try:
                inner = msgspec.json.decode(inner)
            except (msgspec.DecodeError, RecursionError):
                continue
        if isinstance(inner, Mapping) and (found := _body(inner, depth + 1)) is not None:
            return found[0], (*found[1], value)
    return None


def _is_timings(value: Mapping[str, Any]) -> bool:
    return "predicted_ms" in value and "predicted_n" in value


def _is_slot(value: Mapping[str, Any]) -> bool:
    return "is_processing" in value and "id_task" in value


def _places(outer: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for place in outer:
        yield place
        yield from (place[key] for key in _SETTINGS if isinstance(place.get(key), Mapping))


def _first(name: str, kind: type, outer: Sequence[Mapping[str, Any]]) -> Any:
    found = (place.get(name) for place in _places(outer))
    return next((v for v in found if isinstance(v, kind) or (kind is float and type(v) is int)), None)


def _optional(timings: Mapping[str, Any], name: str) -> int | None:
    return None if timings.get(name) is None else units.whole(timings[name], name)


def _ms(timings: Mapping[str, Any], name: str) -> float | None:
    """Milliseconds, where they are a number: JSON writers print NaN of an empty prompt as null."""
    if timings.get(name) is None:
        return None
    units.duration(timings[name], name, 1000)
    return float(timings[name])


def _request(timings: Mapping[str, Any], outer: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    prompt_n, cached, output = (_optional(timings, name) for name in ("prompt_n", "cache_n", "predicted_n"))
    drafted, accepted = _optional(timings, "draft_n"), _optional(timings, "draft_n_accepted")
    prompt_ms, output_ms = _ms(timings, "prompt_ms"), _ms(timings, "predicted_ms")
    row = timed(prompt_n, prompt_ms, output, output_ms)
    choices = _first("choices", list, outer) or []
    reasons = [c.get("finish_reason") for c in choices if isinstance(c, Mapping)]
    deltas = any("delta" in c for c in choices if isinstance(c, Mapping))
    reason = next((r for r in reasons if isinstance(r, str)), None) or _first("stop_type", str, outer)
    model = _text(_first("model", str, outer))
    row |= {"task_type": _text(_first("task_type", str, outer)), "model": model and leaf(model)}
    temperature, top_p = (_first(c, float, outer) for c in ("temperature", "top_p"))
    return row | {
        # 0.9490000009 in a response is a float32.
        "temperature": None if temperature is None else round(units.finite(temperature, "temperature"), 6),
        "top_p": None if top_p is None else round(units.finite(top_p, "top_p"), 6),
        "prompt_n": prompt_n,
        "prompt_tokens": None if cached is None or prompt_n is None else prompt_n + cached,
        "cached_tokens": cached,
        "drafted": drafted,
        "accepted": accepted,
        # mlx-vlm took the object over and added its rounds.
        "rounds": _optional(timings, "draft_rounds") if drafted is not None else None,
        # Both are left out where nothing was drafted: that is not told from a server without speculation.
        "emitted": after_first(output) if drafted is not None else None,
        "counts_basis": "logged" if drafted is not None else None,
        "finish_reason": units.finish_reason(reason),
        "inner": _created(timings, outer),
        "id": _text(_first("id", str, outer)),
        # A chunk of a stream says `stop: false`, or has deltas and no reason yet.
        "closes": reason not in (None, "none") or (_first("stop", bool, outer) is not False and not deltas),
    }  # fmt: skip


def _created(timings: Mapping[str, Any], outer: Sequence[Mapping[str, Any]]) -> str | None:
    """When an OpenAI body, or the last chunk of a stream, was made: the end of its request, to the second.

    llama-server takes the time when it writes the object (`std::time(0)` in `to_json_oaicompat*`, server-task.cpp),
    where OpenAI and vLLM give the start. What mlx-vlm, which took `timings` over, means by it is not known.
    """
    created = outer[0].get("created") if outer else None
    ours = isinstance(created, int) and 10**9 < created < 10**10 and not timings.keys() & {"draft_kind", "draft_rounds"}
    return str(created) if ours else None


def _text(value: object) -> str | None:
    return None if value is None else units.text(value, "text")[:200]


def _slot(value: Mapping[str, Any]) -> dict[str, Any]:
    params = value.get("params")
    types = params.get("speculative.types") if isinstance(params, Mapping) else None
    names = [n for n in types.split(",") if n != "none"] if isinstance(types, str) else []
    return {
        "slot": units.whole(value["id"], "id") if "id" in value else None,
        "running": int(units.boolean(value["is_processing"], "is_processing")),
        "method": _text(",".join(names)) if names else None,
        "held": _optional(value, "n_prompt_tokens"),
        "room": _optional(value, "n_ctx"),
    }


def slot_windows(slots: pl.DataFrame) -> pl.DataFrame:
    """One window a snapshot: how many slots work, and how much of their contexts is taken.

    A snapshot tells neither acceptance nor a time; its task numbers are on no response, so it names no request.
    """
    opens = (pl.col("slot") <= pl.col("slot").shift(1).over("stream")).fill_null(True)
    slots = slots.sort("line", maintain_order=True).with_columns(
        _snapshot=opens.cast(pl.Int64).cum_sum().over("stream")
    )
    usage = pl.col("held").sum() / pl.col("room").sum()
    known = (pl.col("held").null_count() == 0) & (pl.col("room").null_count() == 0) & (pl.col("room").sum() > 0)
    rows = slots.group_by("stream", "_snapshot", maintain_order=True).agg(
        pl.col("line", "stamp", "inner").first(),
        pl.col("running").sum(),
        pl.col("method").drop_nulls().first(),
        kv_cache_usage=pl.when(known & (usage <= 1)).then(usage),
    )
    return rows.with_columns(surface=pl.lit(SLOTS)).drop("_snapshot")


def requests(chunks: pl.DataFrame) -> pl.DataFrame:
    """One row a request: its last record, and with `timings_per_token` its rounds.

    Chunks of one stream share the figures of their prompt, and count up.
    """
    open_: dict[Any, list[dict[str, Any]]] = {}
    done: list[list[dict[str, Any]]] = []
    for row in chunks.sort("line", maintain_order=True).iter_rows(named=True):
        key = (row["stream"], row["id"], row["prompt_n"], row["ttft_us"])
        so_far = open_.setdefault(key, [])
        if so_far and (so_far[-1]["closes"] or (row["output_tokens"] or 0) < (so_far[-1]["output_tokens"] or 0)):
            done.append(so_far)
            so_far = open_[key] = []
        so_far.append(row)
    rows = [group[-1] | _rounds(group) for group in (*done, *open_.values())]
    rows.sort(key=lambda row: int(row["line"]))
    schema = {**_SCHEMA, "accepted_hist": pl.List(pl.Int64)}
    return frame_of(rows, schema)


def _rounds(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rounds by accepted length, where every step of a stream can be told from its neighbours.

    All tokens of a step are sent with the same times and counts, and a step gives its accepted drafts and one token of
    the target. Text that was held back (part of a character or of a stop string) moves tokens to a later chunk and
    may put two rounds into one: then nothing is said.
    """
    steps: dict[tuple[int, int, int], int] = {}
    for row in group:
        if row["decode_us"] is None or row["output_tokens"] is None:
            return {}
        steps[row["decode_us"], row["drafted"] or 0, row["accepted"] or 0] = row["output_tokens"]
    states = [(n, drafted, accepted) for (_, drafted, accepted), n in steps.items()]
    if len(states) < 2 or states[0] != (1, 0, 0):
        return {}
    hist: dict[int, int] = {}
    for i, (last, now) in enumerate(pairwise(states), 2):
        tokens, drafted, accepted = (b - a for a, b in zip(last, now, strict=True))
        cut = i == len(states) and 0 < tokens <= accepted  # max_tokens or a stop inside the last round
        if not 0 <= accepted <= drafted or (tokens != accepted + 1 and not cut):
            return {}
        if drafted:
            hist[accepted] = hist.get(accepted, 0) + 1
    if not hist or max(hist) > 4096:
        return {}
    lengths = [hist.get(j, 0) for j in range(max(hist) + 1)]
    return {"rounds": sum(lengths), "accepted_hist": lengths, "counts_basis": "exact"}
