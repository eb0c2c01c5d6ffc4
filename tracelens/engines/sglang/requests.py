"""SGLang's finished requests: `request.finished` JSON, `Finish: obj=` text, the metrics export, and responses.

All of them carry `meta_info`, whose acceptance keys were renamed twice (0.4.4 to 0.5.23). Prompts, outputs and token
ids stand beside it and are never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracelens.engines.base import JsonRecord, Parsed, Reject
from tracelens.engines.rows import frame_of
from tracelens.engines.sglang import repr_text
from tracelens.engines.units import BrokenError, counts, finish_reason, finite, text, whole

LOG, EXPORT, RESPONSE = "sglang.request_log", "sglang.export", "sglang.response"
# `meta_info` without quotes: the text form prints it in single ones, and one needle serves both.
NEEDLES: tuple[bytes, ...] = (b"meta_info",)
KEYS: tuple[bytes, ...] = (b"meta_info", b'"spec_verify_ct"', b'"request_parameters"')

# 0.5.12+, 0.5.11, 0.5.6-0.5.10; the older ones stayed as aliases until 0.5.20.
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HIST = ("spec_correct_drafts_histogram", "spec_accept_histogram")
# Not logged by default: SGLANG_LOG_REQUEST_HEADERS names the headers that are.
_TASK_HEADERS = ("x-task-type", "x-tracelens-task-type", "task-type")
_WRAPPERS = (
    "sglext", "spec_tokens_details", "response", "response_body", "body", "out", "output", "result", "data", "choices",
)  # fmt: skip
_EPOCH = (1e9, 1e10)
_MOST = 2**40  # tokens of a request; times a depth they still fit 64 bits
# What stands before the object of a log line is the logger's own, and no text of a request: nothing in it is quoted.
_QUOTED = re.compile(r"['\"`]")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d++)?+)[^\[\]]*+\]")

SCHEMA: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "request_id": pl.String, "replica": pl.String, "task_type": pl.String,
    "temperature": pl.Float64, "top_p": pl.Float64,
    "prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "cached_tokens": pl.Int64, "iterations": pl.Int64,
    "rounds": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64, "emitted": pl.Int64,
    "accepted_hist": pl.List(pl.Int64),
    "counts_basis": pl.String, "ttft_us": pl.Int64, "decode_us": pl.Int64, "e2e_us": pl.Int64, "queue_us": pl.Int64,
    "tpot_us": pl.Float64, "tpot_basis": pl.String, "preemptions": pl.Int64, "finish_reason": pl.String,
    "error": pl.Boolean,
    "start_us": pl.Int64, "end_us": pl.Int64,
}  # fmt: skip

Found = tuple[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]  # surface, meta_info, parameters, around


def records(entries: Sequence[JsonRecord]) -> Parsed:
    """Request rows of the records that are SGLang's."""
    return _rows((e, e.value) for e in entries)


def lines(frame: pl.DataFrame) -> Parsed:
    """Request rows of text lines: a prefix and JSON, or the text form."""
    entries = []
    rejects = []
    for line, offset, content, stamp, stream in frame.select("line", "offset", "text", "stamp", "stream").iter_rows():
        try:
            found = _decoded(content)
        except BrokenError as fault:
            rejects.append(Reject(line, str(fault), LOG, offset))
            continue
        if found is not None:
            entries.append((JsonRecord(line, offset, stamp, stream, {}), found))
    parsed = _rows(iter(entries))
    parsed.rejects.extend(rejects)
    return parsed


def _decoded(content: str) -> Mapping[str, Any] | None:
    """A text line as the object it holds."""
    head, brace, _ = content.partition("{")
    finished = repr_text.finished(content)
    if finished is not None:
        return finished
    if not brace or _QUOTED.search(head):
        return None
    try:
        value = msgspec.json.decode(content[len(head) :])
    except (msgspec.DecodeError, RecursionError):
        if '"request.finished"' in content[:400]:
            raise BrokenError("broken JSON") from None
        return None
    if not isinstance(value, dict):
        return None
    stamp = _STAMP.search(head)
    return {"timestamp": stamp and stamp[1], **value}


def _rows(entries: Iterator[tuple[JsonRecord, Mapping[str, Any]]]) -> Parsed:
    parsed = Parsed()
    rows: dict[str, list[dict[str, Any]]] = {}
    for entry, value in entries:
        found = list(_finished(value))
        parsed.claimed += bool(found)
        for surface, meta, asked, around in found:
            try:
                row = _row(meta, asked, around)
            except BrokenError as fault:
                parsed.rejects.append(Reject(entry.line, str(fault), surface, entry.offset))
                continue
            row |= {"line": entry.line, "offset": entry.offset, "stamp": entry.stamp, "stream": entry.stream}
            rows.setdefault(surface, []).append(row)
    for surface, made in rows.items():
        parsed.add(surface, frame_of(made, SCHEMA))
    return parsed


def _finished(value: Mapping[str, Any]) -> Iterator[Found]:
    """The finished requests that a record tells of."""
    event = value.get("event")
    if event is not None:
        if event == "request.finished":
            asked = _dict(value.get("obj"))
            out = value.get("out")
            for one in out if isinstance(out, list) else [out]:
                if isinstance(one, dict) and isinstance(one.get("meta_info"), dict):
                    yield LOG, one["meta_info"], asked, value
    elif "request_parameters" in value and "prompt_tokens" in value:
        yield EXPORT, value, _parameters(value["request_parameters"]), value
    else:
        yield from ((RESPONSE, meta, _asked(value), value) for meta in _details(value, 4))


def _details(value: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """`meta_info` of a native response; `sglext.spec_tokens_details` of an OpenAI one (0.5.19+), with its usage."""
    meta = value.get("meta_info")
    if isinstance(meta, dict) and ("completion_tokens" in meta or "spec_verify_ct" in meta):
        yield meta
    elif "spec_verify_ct" in value:
        yield value
    elif depth:
        usage = value.get("usage")
        around = {k: v for k, v in _dict(usage).items() if k in ("prompt_tokens", "completion_tokens")}
        around |= {"id": value["id"]} if "id" in value else {}
        for key in _WRAPPERS:
            inner = value.get(key)
            for one in inner if isinstance(inner, list) else (inner,):
                if isinstance(one, dict):
                    yield from ({**around, **found} for found in _details(one, depth - 1))


def _asked(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((value[k] for k in ("request", "params", "obj") if isinstance(value.get(k), dict)), {})


def _parameters(value: Any) -> Mapping[str, Any]:
    """The export's request parameters: a JSON object in a string."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return {}
    return _dict(value)


def _row(meta: Mapping[str, Any], asked: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
    request_id = next((i for i in (meta.get("id"), around.get("rid"), asked.get("rid")) if i not in (None, "")), None)
    # A request of several prompts has a list of ids, which none of its answers has alone.
    known = isinstance(request_id, (str, int)) and not isinstance(request_id, bool)
    sampling = _dict(asked.get("sampling_params")) or asked
    rank = meta.get("dp_rank")
    row: dict[str, Any] = {
        "request_id": text(request_id, "id", is_id=True) if known else None,
        "replica": str(rank) if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None,
        "task_type": _task(around.get("headers"), asked),
        "temperature": _setting(sampling, "temperature", 1e6),
        "top_p": _setting(sampling, "top_p", 1),
        "prompt_tokens": _count(meta, "prompt_tokens"),
        "output_tokens": _count(meta, "completion_tokens"),
        "cached_tokens": _count(meta, "cached_tokens"),
        "preemptions": _count(meta, "num_retractions", "total_retractions"),
        "inner": _stamp(around.get("timestamp")),
        **_reason(meta.get("finish_reason")),
    }
    return row | _speculation(meta, row["output_tokens"]) | _times(meta, row["output_tokens"])


def _speculation(meta: Mapping[str, Any], output: int | None) -> dict[str, Any]:
    """Counts of the verify passes. The prefill gives the first output token, and no round does."""
    rounds, accepted, drafted = _count(meta, "spec_verify_ct"), _count(meta, *_ACCEPTED), _count(meta, *_DRAFTED)
    if rounds is None:
        return {}
    made = None if output is None else max(output - 1, 0)
    if rounds == 0:  # speculation is off, or the prefill's token was the only one
        if accepted or drafted:
            raise BrokenError("accepted or drafted tokens without a verify pass")
        return {"rounds": 0, "drafted": 0, "accepted": 0, "emitted": made, "iterations": made, "counts_basis": "logged"}
    out: dict[str, Any] = {"rounds": rounds, "drafted": drafted, "counts_basis": "logged"}
    if accepted is None and made is not None and made >= rounds:
        # 0.4.4-0.5.5 log the passes alone. A stop string cuts the last one, so this is the least that was accepted.
        accepted, out["counts_basis"] = made - rounds, "derived"
    hist = next((meta[k] for k in _HIST if meta.get(k)), None)
    out |= {"accepted": accepted, "accepted_hist": None if hist is None else counts(hist, "histogram")}
    if made is not None and accepted is not None:
        out |= {"emitted": made, "iterations": rounds + max(0, made - accepted - rounds)}
    return out


def _times(meta: Mapping[str, Any], output: int | None) -> dict[str, Any]:
    """Durations; the finest are there with --enable-metrics only. Everything is in seconds."""
    e2e, ttft = _us(meta, "e2e_latency"), _us(meta, "first_token_latency")
    out: dict[str, Any] = {"e2e_us": e2e, "ttft_us": ttft, "queue_us": _us(meta, "queue_time")}
    for name, key in (("start_us", "request_received_ts"), ("end_us", "request_finished_ts")):
        value = meta.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and _EPOCH[0] < value < _EPOCH[1]:
            out[name] = round(value * 1e6)
    if e2e is not None and ttft is not None:
        if ttft > e2e:
            raise BrokenError("first_token_latency <= e2e_latency does not hold")
        out["decode_us"] = e2e - ttft
        if output is not None and output > 1:
            out |= {"tpot_us": out["decode_us"] / (output - 1), "tpot_basis": "derived"}
    elif (rate := meta.get("decode_throughput")) is not None and output is not None and output > 1:
        # (n - 1) / (finish - first token): the inverse of TPOT.
        rate = finite(rate, "decode_throughput")
        if rate > 0 and (e2e is None or (output - 1) / rate * 1e6 <= e2e):
            out |= {"tpot_us": 1e6 / rate, "tpot_basis": "logged", "decode_us": round((output - 1) / rate * 1e6)}
    return out


def _count(meta: Mapping[str, Any], *names: str) -> int | None:
    return next((whole(meta[n], n, _MOST) for n in names if meta.get(n) is not None), None)


def _us(meta: Mapping[str, Any], name: str) -> int | None:
    value = meta.get(name)
    if value is None or (isinstance(value, float) and value != value):
        return None
    number = finite(value, name)
    if not 0 <= number < 1e9:
        raise BrokenError(f"{name}: no duration in s")
    return round(number * 1e6)


def _setting(source: Mapping[str, Any], name: str, high: float) -> float | None:
    """A sampling parameter, or None where it makes no sense: a record is good without it."""
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= high else None


def _reason(value: Any) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else value
    word = finish_reason(kind)
    return {} if word is None else {"finish_reason": word, "error": word == "abort"}


def _task(headers: Any, asked: Mapping[str, Any]) -> str | None:
    named = {k.lower(): v for k, v in headers.items() if isinstance(k, str)} if isinstance(headers, dict) else {}
    values = [*(named.get(k) for k in _TASK_HEADERS), _dict(asked.get("custom_labels")).get("task_type")]
    word = next((v for v in values if isinstance(v, str) and 0 < len(v) <= 64 and v.isprintable()), None)
    return None if word is None else text(word, "task_type")


def _stamp(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[0-9TtZz:. +\-]{10,40}", value) else None


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def requests(surface: str, frame: pl.DataFrame, source_id: str) -> pl.DataFrame:
    """Canonical requests.

    Args:
        surface: one of this module's.
        frame: rows of `SCHEMA` with `ts` (the stamp of the record, its end), `ts_basis`, `run_key`, and `steps`,
            `topk`, `nodes` as the run told.
        source_id: for requests without an id.
    """
    start, end = (pl.col(c).cast(pl.Datetime("us")) for c in ("start_us", "end_us"))
    e2e = pl.duration(microseconds="e2e_us")
    own = pl.coalesce(end, start + e2e)
    rows = frame.with_columns(
        ts_end=pl.coalesce(own, "ts"),
        ts_basis=pl.when(own.is_not_null()).then(pl.lit("absolute")).otherwise("ts_basis"),
    ).with_columns(ts_start=pl.coalesce(pl.col("ts_end") - e2e, start))
    each = pl.col("drafted") // pl.col("rounds")
    even = (pl.col("rounds") > 0) & (pl.col("drafted") == each * pl.col("rounds"))
    tree = pl.col("topk") > 1
    # What is counted as proposed are nodes. A round that accepted them all shows that they are a chain.
    chain = (each <= 6) | (pl.col("accepted_hist").list.len() - 1 == each)
    return rows.with_columns(
        num_speculative_tokens=pl.when(tree).then("steps").when(even & chain).then(each).cast(pl.Int32, strict=False),
        num_draft_nodes=pl.when(tree & even).then(each).cast(pl.Int32, strict=False),
        drafted=pl.when(tree & even).then(pl.col("rounds") * pl.col("steps")).otherwise("drafted"),
        ts_first_token=pl.when(pl.col("decode_us").is_not_null()).then(
            pl.col("ts_end") - pl.duration(microseconds="decode_us")
        ),
        request_id=pl.coalesce("request_id", pl.format("{}#{}", pl.lit(source_id), pl.col("line"))),
        source_line="line",
        surface=pl.lit(surface),
    ).select(
        "run_key", "stream", "ts_start", "ts_first_token", "ts_end", "ts_basis", "source_line", "surface",
        "num_speculative_tokens", "num_draft_nodes",
        *[c for c in SCHEMA if c not in ("line", "offset", "stamp", "inner", "stream", "start_us", "end_us")],
    )  # fmt: skip
