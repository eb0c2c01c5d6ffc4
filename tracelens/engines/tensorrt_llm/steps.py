"""TensorRT-LLM's iterations as they are logged: iteration stats (JSON) and lines of `print_iter_log`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracelens.engines.base import JsonRecord, Reject
from tracelens.engines.units import BrokenError, finite, whole

STATS, LOG = "trtllm.iteration_stats", "trtllm.iter_log"
STATS_KEY = b'"iterLatencyMS"'
LOG_NEEDLE = b", global_rank = "

STATS_SCHEMA: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "iter": pl.Int64, "rank": pl.Int64, "sequence": pl.Int64, "latency_ms": pl.Float64, "host_ms": pl.Float64,
    "device_ms": pl.Float64, "forward_ms": pl.Float64, "draft_ms": pl.Float64, "scheduled": pl.Int64,
    "context": pl.Int64, "generation": pl.Int64, "running": pl.Int64, "waiting": pl.Int64, "prompt_tokens": pl.Int64,
    "usage": pl.Float64, "drafted": pl.Int64, "accepted": pl.Int64, "rounds": pl.Int64, "rounds_basis": pl.String,
    "plain_steps": pl.Int64, "vouched": pl.Boolean,
}  # fmt: skip

# Keys of an iteration that are younger than #9855 (2025-12; 2026-04, #14127 of 2026-05, and later): `specDecodingStats`
# beside them is filled for every drafter.
_YOUNGER = ("hostStepTimeMS", "prevDeviceStepTimeMS", "schedulerMode", "gpuForwardTimeMS", "statsSequence")
_YOUNGER_BATCH = ("numCtxKvTokens", "numGenKvTokens")

# Four forms since spring 2025: `elapsed_time` became `host_step_time` and `prev_device_step_time`, fields came and
# moved, `:` became ` = `. So each key is looked up alone.
_HEAD = r"""^[^'"`{]*?\biter = (?P<iter>\d{1,15}), global_rank = (?P<rank>\d{1,9}),"""
_N = r"(\d{1,9}(?:\.\d+)?)"
_LOG_KEYS = {
    "scheduled": (r"\bnum_scheduled_requests(?: =|:) (\d{1,9})\b", pl.Int64),
    "host_ms": (rf"\bhost_step_time = {_N}ms", pl.Float64),
    "elapsed_s": (rf"\belapsed_time = {_N}s", pl.Float64),
    "device_ms": (rf"\bprev_device_step_time = {_N}ms", pl.Float64),
    "usage": (rf"\bkv_cache_util = {_N}\b", pl.Float64),
    "context": (r"'num_ctx_requests': (\d{1,9})\b", pl.Int64),
    "prompt_tokens": (r"'num_ctx_tokens': (\d{1,9})\b", pl.Int64),
    # Once printed as tensor(256).
    "fed": (r"'num_generation_tokens': (?:tensor\()?(\d{1,9})\b", pl.Int64),
}
_STAMP = r"\btimestamp = (\d\d-\d\d-\d{4} \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"


def is_stats(value: Mapping[str, Any]) -> bool:
    """Whether a record is an iteration's; rows of `requestStats` alone are not."""
    return "iterLatencyMS" in value and ("inflightBatchingStats" in value or "specDecodingStats" in value)


def stats_row(entry: JsonRecord, value: Mapping[str, Any]) -> dict[str, Any]:
    """One iteration.

    Raises:
        BrokenError: a field is not what it should be, or an identity does not hold.
    """
    batch, cache = _dict(value, "inflightBatchingStats"), _dict(value, "kvCacheStats")
    row: dict[str, Any] = {
        "line": entry.line, "offset": entry.offset, "stamp": entry.stamp, "stream": entry.stream,
        "inner": iso(value.get("timestamp")),
        "iter": _count(value, "iter"),
        "rank": _count(value, "attentionDpRank"),
        "sequence": _count(value, "statsSequence"),
        "latency_ms": _ms(value, "iterLatencyMS"),
        "host_ms": _ms(value, "hostStepTimeMS"),
        "device_ms": _ms(value, "prevDeviceStepTimeMS"),
        "forward_ms": _ms(value, "gpuForwardTimeMS"),
        "scheduled": _count(batch, "numScheduledRequests"),
        "context": _count(batch, "numContextRequests"),
        "generation": _count(batch, "numGenRequests"),
        "prompt_tokens": _count(batch, "numCtxTokens"),
        "running": _count(value, "numActiveRequests"),
        "waiting": _count(value, "numQueuedRequests"),
    }  # fmt: skip
    row["running"] = row["scheduled"] if row["running"] is None else row["running"]
    used, most = _count(cache, "usedNumBlocks"), _count(cache, "maxNumBlocks")
    row["usage"] = used / most if used is not None and most and used <= most else None
    if row["host_ms"] is None and value.get("schedulerMode") == "non_overlap":
        # Under the overlap scheduler (the default; told since TensorRT-LLM#14127) this spans about two iterations.
        row["host_ms"] = row["latency_ms"]
    younger = any(key in value for key in _YOUNGER) or any(key in batch for key in _YOUNGER_BATCH)
    # #9855 also wrote `null` where nothing drafts.
    row["vouched"] = younger or ("specDecodingStats" in value and value["specDecodingStats"] is None)
    return row | _speculation(value, row["generation"])


def _speculation(value: Mapping[str, Any], generation: int | None) -> dict[str, Any]:
    spec = value.get("specDecodingStats")
    if not isinstance(spec, dict):
        # `null` since #9855 (2025-12): nothing drafts. A record without the key does not say.
        if "specDecodingStats" not in value or spec is not None or generation is None:
            return {}
        return {"drafted": 0, "accepted": 0, "rounds": 0, "rounds_basis": "logged", "plain_steps": generation}
    drafted, accepted = _count(spec, "numDraftTokens"), _count(spec, "numAcceptedTokens")
    rounds, basis = _count(spec, "numRequestsWithDraftTokens"), "logged"
    if drafted is not None and accepted is not None and accepted > drafted:
        raise BrokenError("numAcceptedTokens <= numDraftTokens does not hold")
    length = spec.get("acceptanceLength")
    if rounds is None and accepted and isinstance(length, (int, float)) and 1 < length < 1e6:
        # acceptanceLength = (accepted + requests) / requests, unrounded.
        requests = accepted / (length - 1)
        if abs(requests - round(requests)) < 1e-3 * requests and (generation is None or round(requests) <= generation):
            rounds, basis = round(requests), "derived"
    if drafted and rounds is not None and not 0 < rounds <= drafted:
        rounds = None  # says that nobody drafted, or more requests than tokens
    draft_ms = _ms(spec, "iterLatencyMS")
    plain = None if rounds is None or generation is None or rounds > generation else generation - rounds
    return {
        "drafted": drafted, "accepted": accepted, "rounds": rounds, "plain_steps": plain,
        "rounds_basis": None if rounds is None else basis,
        # Measured for two-model drafters alone: 0.0 in one-model modes (MTP, EAGLE3). With speculation switched off at
        # run time the last value was repeated (#9855 review).
        "draft_ms": draft_ms if draft_ms and drafted else None,
    }  # fmt: skip


def iso(value: Any) -> str | None:
    """`08-23-2026 10:00:00.123456`, month first, as the stamps that the clock reads."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    parts = value[:10].split("-")
    return f"{parts[2]}-{parts[0]}-{parts[1]}{value[10:]}" if len(parts) == 3 and len(parts[2]) == 4 else value


def log_rows(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Reject]]:
    """Lines of `print_iter_log`: `iter`, `rank` and the keys above."""
    text = pl.col("text")
    heads = frame.with_columns(text.str.extract_groups(_HEAD).alias("_h")).unnest("_h")
    heads = heads.filter(pl.col("iter").is_not_null())
    stamp = text.str.extract(_STAMP, 1)
    dated = stamp.str.replace(r"^(\d\d)-(\d\d)-(\d{4})", "${3}-${1}-${2}")
    rows = heads.select(
        "line", "offset", "stamp", "stream",
        pl.col("iter", "rank").cast(pl.Int64, strict=False),
        *(text.str.extract(pattern, 1).cast(kind, strict=False).alias(n) for n, (pattern, kind) in _LOG_KEYS.items()),
        inner=dated,
        hash=text.hash(),
    )  # fmt: skip
    timed = pl.any_horizontal(pl.col("host_ms", "elapsed_s", "fed").is_not_null())
    cut = rows.filter(~timed)
    rejects = [Reject(n, "incomplete line: no step time", LOG, o) for n, o in cut.select("line", "offset").iter_rows()]
    good = rows.filter(timed).with_columns(host_ms=pl.coalesce("host_ms", pl.col("elapsed_s") * 1000)).drop("elapsed_s")
    return good, rejects


def _dict(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _count(source: Mapping[str, Any], name: str) -> int | None:
    return None if source.get(name) is None else whole(source[name], name, 2**53)


def _ms(source: Mapping[str, Any], name: str) -> float | None:
    """A duration in ms; NaN, negative and absurd values are not measured."""
    if source.get(name) is None:
        return None
    number = finite(source[name], name)
    return number if 0 <= number < 1e9 else None
