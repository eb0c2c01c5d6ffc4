"""TensorRT-LLM's iterations as canonical `windows`, one step a row: iteration stats (JSON) and `print_iter_log`.

What both share is the clock. `prevDeviceStepTimeMS` (`prev_device_step_time`) of iteration N is the device time of
iteration N - 1, between two CUDA events; behind an iteration that scheduled nothing it holds idle time. The host's
own time of an iteration is the loop that prepared the next one; it stands in where the device's is not logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines.base import JsonRecord, Reject
from tracelens.engines.units import BrokenError, finite, whole

STATS, LOG = "trtllm.iteration_stats", "trtllm.iter_log"
STATS_KEY = b'"iterLatencyMS"'
LOG_NEEDLE = b", global_rank = "

# Iterations 0 to 4 of an executor are warm-up: their times are no step's.
WARM_UP = 5

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


def _filled(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, with zeros of `specDecodingStats` that may never have been filled as null.

    Before #9855 (2025-12) the PyTorch backend left them at zero, whatever was drafted, for all drafters but n-gram; and
    an n-gram drafter truly has iterations without a draft. So zeros mean "no draft" where another iteration of the
    process has drafts, or where any of them shows a build that fills them (`vouched`); else they say nothing.
    """
    told = (pl.col("vouched") | (pl.col("drafted") > 0)).fill_null(False).any().over("stream")
    empty = (pl.col("drafted") == 0) & ~told
    names = ("drafted", "accepted", "rounds", "rounds_basis", "plain_steps")
    return rows.with_columns(pl.when(~empty.fill_null(False)).then(name).alias(name) for name in names)


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


def with_step(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Add `step_us`: the device time that the next iteration logs for this one, else the host's; null where it is no
    decode step's: warm-up, prefill, nothing scheduled, idle time before it."""
    after = pl.col("iter").shift(-1).over(by) == pl.col("iter") + 1
    device = pl.when(after).then(pl.col("device_ms").shift(-1).over(by))
    follows = pl.col("iter").shift(1).over(by) == pl.col("iter") - 1
    idle_before = follows & (pl.col("scheduled").shift(1).over(by) == 0)
    # The host waits for work in its own loop, so idle time before an iteration is in its host time, not its device's.
    host = pl.when(~idle_before.fill_null(False)).then("host_ms")
    bare = (pl.col("context").fill_null(0) > 0) | (pl.col("scheduled") == 0) | (pl.col("iter") < WARM_UP)
    step = pl.when(~bare.fill_null(False)).then(pl.coalesce(device, host))
    return rows.with_columns(step_us=(pl.when(step > 0).then(step) * 1000).round().cast(pl.Int64, strict=False))


def lost(rows: pl.DataFrame) -> list[Reject]:
    """One reject a stream whose numbers have gaps (`statsSequence`): its records were dropped before they were read."""
    numbered = rows.filter(pl.col("sequence").is_not_null()).sort("line", maintain_order=True)
    gap = pl.col("sequence").diff().over("stream", mapping_strategy="group_to_rows") - 1
    found = numbered.with_columns(_gap=gap).filter(pl.col("_gap") > 0)
    found = found.group_by("stream", maintain_order=True).agg(pl.col("line", "offset").first(), pl.col("_gap").sum())
    return [
        Reject(line, f"{gap} iterations were dropped before they were polled: poll more often", STATS, offset)
        for line, offset, gap in found.select("line", "offset", "_gap").iter_rows()
    ]


def stats_windows(rows: pl.DataFrame) -> pl.DataFrame:
    """One window a recorded iteration."""
    # Under attention DP one iteration is written once a rank, with rank 0's times and its specDecodingStats on each.
    key = pl.struct("stream", "inner", "iter", "latency_ms")
    rows = rows.sort("line", "rank", maintain_order=True, nulls_last=False)
    same = pl.col("inner").is_not_null() | pl.col("rank").is_not_null()
    rows = rows.filter(~same | key.is_first_distinct())
    rows = with_step(_filled(rows), ["stream", "rank"])
    each = rows.filter((pl.col("rounds") > 0) & (pl.col("drafted") > 0))
    lengths = (each["drafted"] / each["rounds"]).unique().to_list()
    odd = lengths and not (rows["drafted"].drop_nulls() % max(int(lengths[0]), 1) == 0).all()
    k = int(lengths[0]) if len(lengths) == 1 and lengths[0] == int(lengths[0]) and not odd else None
    mixed = (pl.col("context").fill_null(0) > 0) | (pl.col("iter") < WARM_UP).fill_null(False)
    # The record's own forward: the target's alone where nothing drafts, or where a draft model ran outside of it and
    # was timed; one-model drafters run inside of it. It belongs to this iteration, without the shift.
    alone = (pl.col("drafted") == 0) | pl.col("draft_ms").is_not_null()
    forward = pl.when(alone & (pl.col("scheduled") > 0) & (pl.col("forward_ms") > 0)).then("forward_ms")
    times = {
        name: pl.when(~mixed).then(ms * 1000).round().cast(pl.Int64, strict=False)
        for name, ms in (("draft_us", pl.col("draft_ms")), ("target_us", forward))
    }
    timed = pl.any_horizontal(pl.col("step_us", "draft_us", "target_us").is_not_null())
    return rows.with_columns(**times).select(
        "rounds", "rounds_basis", "plain_steps", "drafted", "accepted", "draft_us", "target_us", "step_us",
        "prompt_tokens", "running", "waiting", "ts_basis",
        source_line="line",
        surface=pl.lit(STATS),
        replica=pl.col("rank").cast(pl.String),
        ts_end="ts",
        steps=pl.lit(1, pl.Int64),
        counts_basis=pl.when(pl.col("drafted").is_not_null()).then(pl.lit("logged")),
        time_basis=pl.when(timed).then(pl.lit("sum")),
        num_speculative_tokens=pl.when(pl.col("drafted") > 0).then(pl.lit(k, pl.Int32)),
        kv_cache_usage="usage",
    )  # fmt: skip


def log_windows(rows: pl.DataFrame) -> pl.DataFrame:
    """One window a line: time and load. Accepted tokens are not in it.

    `num_generation_tokens` are tokens fed to the target, requests x (1 + drafts), padded to the batch sizes of CUDA
    graphs: drafts can't be told from padding. As many tokens as requests can only be plain steps.
    """
    rows = rows.filter(pl.col("rank") == pl.col("rank").min().over("stream"))
    rows = rows.filter(pl.col("inner").is_null() | pl.struct("stream", "hash").is_first_distinct())
    rows = with_step(rows.sort("line", maintain_order=True), ["stream", "rank"])
    plain = (pl.col("context") == 0) & (pl.col("scheduled") > 0) & (pl.col("fed") == pl.col("scheduled"))
    none = pl.when(plain).then(pl.lit(0, pl.Int64))
    return rows.select(
        "step_us", "prompt_tokens", "ts_basis",
        source_line="line",
        surface=pl.lit(LOG),
        ts_end="ts",
        steps=pl.lit(1, pl.Int64),
        rounds=none, drafted=none, accepted=none,
        plain_steps=pl.when(plain).then("scheduled"),
        rounds_basis=pl.when(plain).then(pl.lit("derived")),
        counts_basis=pl.when(plain).then(pl.lit("derived")),
        time_basis=pl.when(pl.col("step_us").is_not_null()).then(pl.lit("sum")),
        running="scheduled",
        kv_cache_usage=pl.when(pl.col("usage") <= 1).then("usage"),
    )  # fmt: skip


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
