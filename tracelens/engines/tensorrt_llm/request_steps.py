"""Steps listed in the records of finished requests (`time_breakdown_metrics`), as one window an engine step.

All requests of a batch carry the same entry (`PerfMetricsManager`): the moment at which its forward began tells which
are one step. GPU times are in ms, host stamps in seconds on a clock whose origin is another than that of the request's
own times: they order and name steps, and give no date. A step in which another request had a part of its prompt
(`ctx_chunk_metrics`) is no decode step; its time is left out.

The forward of a step is draft and verify in one where a one-model drafter runs inside of it. A batch is known from
those of its requests whose records are in the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import JsonRecord

STEPS = "trtllm.step_metrics"

SCHEMA: Mapping[str, Any] = {
    **rows.PLACE, "began": pl.Float64, "forward_ms": pl.Float64, "sample_ms": pl.Float64, "prefill": pl.Boolean,
    "drafts": pl.Boolean,
}  # fmt: skip
_LONGEST_MS = 1e9

Object = Mapping[str, Any]


def frame(found: Sequence[tuple[JsonRecord, Object, bool | None]]) -> pl.DataFrame:
    """The entries of records: `began` (s), times in ms (null where not measured), `prefill` for parts of a prompt.

    Args:
        found: (record, the object in it that has the lists, whether the request drafted in each of its steps: true,
            in none: false, not known: None).
    """
    made = [
        (*place, *entry, prefill, drafts)
        for record, around, drafts in found
        for place in [(record.line, record.offset, record.stamp, None, record.stream)]
        for prefill, name in ((False, "step_metrics"), (True, "ctx_chunk_metrics"))
        for entry in _entries(around, name)
    ]
    out = pl.DataFrame(made, schema=dict(SCHEMA), orient="row")
    return out.with_columns(
        pl.when(pl.col(c).is_between(0, _LONGEST_MS, closed="none")).then(c).alias(c)
        for c in ("forward_ms", "sample_ms")
    )


def _entries(around: Object, name: str) -> list[tuple[float | None, ...]]:
    """(began, forward, sample) of a list; an entry without its beginning belongs to no step."""
    lists = around.get("time_breakdown_metrics")
    entries = lists.get(name) if isinstance(lists, dict) else None
    if not isinstance(entries, list):
        return []
    keys = ("forward_start_time", "gpu_forward_time", "gpu_sample_time")
    found = [tuple(_number(e.get(k)) for k in keys) for e in entries if isinstance(e, dict)]
    return [entry for entry in found if entry[0] is not None]


def _number(value: object) -> float | None:
    return float(value) if type(value) is float or (type(value) is int and abs(value) < 2**53) else None


class Listed:
    """The steps of the requests so far. A step has a row a part, not one a request."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []

    def see(self, found: pl.DataFrame | None) -> None:
        """The next entries, rows of `SCHEMA`."""
        if found is not None and found.height:
            self._parts.append(_added_up(found.with_columns(
                n=(~pl.col("prefill")).cast(pl.Int64),
                # Null where a request does not tell.
                all_draft=pl.col("prefill") | pl.col("drafts"),
                none_drafts=pl.col("prefill") | ~pl.col("drafts"),
            )))  # fmt: skip

    def windows(self) -> pl.DataFrame | None:
        """One window a step."""
        return _windows(_added_up(pl.concat(self._parts))) if self._parts else None


def _added_up(entries: pl.DataFrame) -> pl.DataFrame:
    """One row a step; what was added up can be added up again."""
    return entries.group_by("stream", "began", maintain_order=True).agg(
        pl.col("line").min(),
        pl.col("forward_ms", "sample_ms").drop_nulls().first(),
        pl.col("n").sum(),
        pl.col("prefill").any(),
        pl.col("all_draft", "none_drafts").all(ignore_nulls=False),
    )


def _windows(each: pl.DataFrame) -> pl.DataFrame:
    each = each.filter(pl.col("n") > 0).sort("stream", "began", maintain_order=True)
    forward, sample = (
        pl.when(~pl.col("prefill")).then(pl.col(c) * 1000).round().cast(pl.Int64) for c in ("forward_ms", "sample_ms")
    )
    none, every = pl.col("none_drafts").fill_null(False), pl.col("all_draft").fill_null(False)
    rounds = pl.when(none).then(pl.lit(0, pl.Int64)).when(every).then("n")
    return each.select(
        source_line="line",
        surface=pl.lit(STEPS),
        steps=pl.lit(1, pl.Int64),
        rounds=rounds,
        plain_steps=pl.when(none).then("n").when(every).then(pl.lit(0, pl.Int64)),
        rounds_basis=pl.when(rounds.is_not_null()).then(pl.lit("derived")),
        step_us=forward + sample.fill_null(0),
        sample_us=sample,
        target_us=pl.when(none).then(forward),
        time_basis=pl.when(forward.is_not_null()).then(pl.lit("sum")),
        running="n",
        ts_basis=pl.lit("none"),
    )
