"""Step JSON lines: one object an engine step, with the names of RTP-LLM's own collector.

RTP-LLM does not write this file by itself. A site adds one log call where `RtpLLMSpeculativeEngineMetricsCollector` is
reported, for example:

    {"ts_us":1787229605471000,"dp_rank":0,"step_latency_us":53412,"propose_step_latency_us":35120,
     "score_step_latency_us":17984,"speculative_sampler_latency_us":308,"total_propose_token_num":10,
     "total_accepted_token_num":7,"total_stream_num":2,"spec_steps":5,"generate_batch_size":2,
     "streams":[{"request_id":81423,"propose_token_num":5,"accept_token_num":3,"top_k":1,"top_p":1.0}]}

`accept_lag_steps` 1 says that the counts are those of the step before (main since 2026-08-10 stages them on the GPU).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracelens.engines.base import JsonRecord
from tracelens.engines.parted import LastOf
from tracelens.engines.units import INT32_MAX, BrokenError, duration, text, whole

SURFACE = "rtp.step_json"

Row = dict[str, Any]

# One row a stream of a step, or one a step where no streams are listed (`request_id` and `accept` NULL).
SCHEMA: dict[str, Any] = {
    "line": pl.Int64,
    "stamp": pl.String,
    "stream": pl.String,
    "at": pl.Datetime("us"),
    "replica": pl.String,
    "num_speculative_tokens": pl.Int32,
    "batch_size": pl.Int32,
    "lag": pl.Int64,
    "listed": pl.Boolean,
    "request_id": pl.String,
    "top_p": pl.Float64,
    "propose": pl.Int32,
    "accept": pl.Int32,
    "has_prefill": pl.Boolean,
    "rounds": pl.Int64,
    "drafted": pl.Int64,
    "emitted": pl.Int64,
    "draft_us": pl.Int64,
    "target_us": pl.Int64,
    "sample_us": pl.Int64,
    "step_us": pl.Int64,
}
TIMES = ("draft_us", "target_us", "sample_us", "step_us")

EPOCH_US = (1_000_000_000_000_000, 4_100_000_000_000_000)  # 2001 to 2099


def is_step(value: Mapping[str, Any]) -> bool:
    """Whether this is a step of the collector."""
    counted = "total_accepted_token_num" in value or isinstance(value.get("streams"), list)
    return "step_latency_us" in value and counted


def phase_times(value: Mapping[str, Any], drafts: bool) -> Row:
    """The phases of a step, with what nobody measured as None.

    MtpExecutor (main since 402c80393, 2025-12-25) reports the three latencies but assigns none of them: 0, 0, 0 beside
    a real step time is "not measured". No single pass takes 0 us either; only the draft phase of a step that drafted
    nothing does.
    """
    draft, target, sample = (
        _time(value, f"{name}_latency_us") for name in ("propose_step", "score_step", "speculative_sampler")
    )
    if not draft and not target and not sample:
        return {"draft_us": None, "target_us": None, "sample_us": None}
    return {
        "draft_us": draft if draft or not drafts else None,
        "target_us": target or None,
        "sample_us": sample or None,
    }


def rows_of(record: JsonRecord) -> list[Row]:
    """The rows of one step.

    Raises:
        BrokenError: a field that cannot be, or a broken identity.
    """
    value = record.value
    streams = value.get("streams")
    if streams is not None and not isinstance(streams, list):
        raise BrokenError("streams: wrong type")
    rounds, drafted, emitted = (
        _count(value, key) for key in ("total_stream_num", "total_propose_token_num", "total_accepted_token_num")
    )
    ts = value.get("ts_us")
    replica = value.get("dp_rank")
    base: Row = {
        "line": record.line,
        "stamp": record.stamp,
        "stream": record.stream,
        "at": ts if isinstance(ts, int) and EPOCH_US[0] <= ts <= EPOCH_US[1] else None,
        "replica": None if replica is None else text(replica, "dp_rank", is_id=True),
        "num_speculative_tokens": _count(value, "spec_steps"),
        "lag": _count(value, "accept_lag_steps") or 0,
        "listed": bool(streams),
        "step_us": _time(value, "step_latency_us"),
    }
    size = _count(value, "generate_batch_size")
    if not streams:
        base |= phase_times(value, drafts=bool(drafted))
        return [
            base
            | {"rounds": rounds, "drafted": drafted, "emitted": emitted}
            | _window_size(size, rounds, drafted, emitted)
        ]
    pairs = [_stream(each) for each in streams]
    check_totals(pairs, rounds, drafted, emitted)
    base |= phase_times(value, drafts=any(p["propose"] for p in pairs))
    base |= {"batch_size": size or len(pairs), "has_prefill": any(p["propose"] == 0 for p in pairs)}
    return [base | pair for pair in pairs]


def _window_size(size: int | None, rounds: int | None, drafted: int | None, emitted: int | None) -> Row:
    """The batch of a step without streams; its totals keep 0 <= emitted - streams <= drafted.

    Raises:
        BrokenError: they do not.
    """
    if (
        rounds is not None
        and emitted is not None
        and not 0 <= emitted - rounds <= (emitted if drafted is None else drafted)
    ):
        raise BrokenError("identity broken: streams <= total_accepted_token_num <= total_propose_token_num + streams")
    return {"batch_size": size}


def _stream(value: Any) -> Row:
    if not isinstance(value, dict):
        raise BrokenError("streams: wrong type")
    propose, accept = _count(value, "propose_token_num"), _count(value, "accept_token_num")
    if propose is None or accept is None:
        raise BrokenError("streams: propose_token_num or accept_token_num is missing")
    check_round(propose, accept)
    request_id, top_p = value.get("request_id"), value.get("top_p")
    number = isinstance(top_p, (int, float)) and not isinstance(top_p, bool) and 0 <= top_p <= 1
    return {
        "request_id": None if request_id is None else text(request_id, "request_id", is_id=True),
        "top_p": float(top_p) if number and top_p is not None else None,
        "propose": propose,
        "accept": accept,
    }


def check_round(propose: int, accept: int) -> None:
    """`accept_token_num` counts the target's own token: 1 to K + 1.

    Raises:
        BrokenError: it does not.
    """
    if not 1 <= accept <= propose + 1:
        raise BrokenError("identity broken: 1 <= accept_token_num <= propose_token_num + 1")


def check_totals(pairs: list[Row], rounds: int | None, drafted: int | None, emitted: int | None) -> None:
    """The totals leave out streams that proposed nothing; some builds count them."""
    for some in ([p for p in pairs if p["propose"]], pairs):
        sums = (len(some), sum(p["propose"] for p in some), sum(p["accept"] for p in some))
        if all(total in (None, found) for total, found in zip((rounds, drafted, emitted), sums, strict=True)):
            return
    raise BrokenError("identity broken: totals differ from the sum over streams")


def _count(value: Mapping[str, Any], key: str) -> int | None:
    return None if value.get(key) is None else whole(value[key], key, INT32_MAX)


def _time(value: Mapping[str, Any], key: str) -> int | None:
    return None if value.get(key) is None else int(duration(value[key], key, 1))


class Rounds:
    """Canonical rounds of the steps that list their streams, part by part."""

    def __init__(self) -> None:
        self._steps = LastOf("stream", "replica")
        self._counts: pl.DataFrame | None = None  # rounds of each request so far

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rounds of the next part; `ts` and `ts_basis` are there already."""
        frame = self._numbered(self._lagged(frame.filter("listed")))
        return frame.select(
            pl.col("line").alias("source_line"),
            pl.lit(SURFACE).alias("surface"),
            *("ts", "ts_basis", "replica", "num_speculative_tokens", "request_id", "top_p", "batch_size"),
            *("has_prefill", "round_index"),
            pl.col("line").cast(pl.String).alias("step_id"),
            (1.0 / pl.len().over("line")).alias("step_share"),
            pl.col("propose").alias("drafted"),
            (pl.col("accept") - 1).alias("accepted"),
            pl.col("accept").alias("emitted"),
            *TIMES,
            pl.lit("host").alias("timing_basis"),
        )

    def _lagged(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Give counts that lag one step the times of the step before, of the same rank; the first has none."""
        own = ["line", "stream", "replica", *TIMES]
        steps = self._steps.before(frame.unique("line", keep="first", maintain_order=True).select(own))
        if not (frame["lag"] == 1).any():
            return frame
        before = [pl.col(name).shift(1).over("stream", "replica").alias(f"{name}@before") for name in TIMES]
        frame = frame.join(steps.select("line", *before), on="line", how="left", maintain_order="left")
        return frame.with_columns(
            pl.when(pl.col("lag") == 1).then(pl.col(f"{name}@before")).otherwise(name).alias(name) for name in TIMES
        )

    def _numbered(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add `round_index`, by order: a step that is logged once has one line."""
        key = ["stream", "replica", "request_id"]
        frame = frame.with_columns(round_index=pl.int_range(pl.len(), dtype=pl.Int64).over(key))
        counts = frame.filter(pl.col("request_id").is_not_null()).group_by(key).agg(_done=pl.len().cast(pl.Int64))
        done = counts.clear() if self._counts is None else self._counts
        self._counts = pl.concat([done, counts]).group_by(key).agg(pl.col("_done").sum())
        frame = frame.join(done, on=key, how="left", nulls_equal=True, maintain_order="left")
        index = pl.col("round_index") + pl.col("_done").fill_null(0)
        return frame.with_columns(round_index=pl.when(pl.col("request_id").is_not_null()).then(index))


def windows_of(frame: pl.DataFrame) -> pl.DataFrame:
    """Canonical windows of the steps that do not. Counts and times of one step are sums over a window of one step."""
    return frame.filter(~pl.col("listed")).select(
        pl.col("line").alias("source_line"),
        pl.lit(SURFACE).alias("surface"),
        pl.col("ts").alias("ts_end"),
        *("ts_basis", "replica", "num_speculative_tokens", "rounds", "drafted", "emitted"),
        pl.col("step_us").alias("window_us"),
        pl.lit(1, pl.Int64).alias("steps"),
        (pl.col("emitted") - pl.col("rounds")).alias("accepted"),
        pl.lit("logged").alias("rounds_basis"),
        pl.lit("derived").alias("counts_basis"),
        *TIMES,
        pl.lit("sum").alias("time_basis"),
        pl.col("batch_size").cast(pl.Int64).alias("running"),
    )
