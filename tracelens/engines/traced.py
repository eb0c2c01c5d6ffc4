"""What readers of profiler traces share: usable events, and their place in the steps of a thread."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.engines.base import Reject, TraceAbout
from tracelens.engines.units import LONGEST_US

# Microseconds since 1970 of 2001 and 2099: torch up to 2.2 wrote such times and no base.
_EPOCH_US = (1e15, 4.1e15)
# Beyond it a double holds no whole microseconds.
_LATEST_US = 2.0**53
_WHOLE_DAY_US = 86_400_000_000


def complete(events: pl.DataFrame, surface: str) -> tuple[pl.DataFrame, list[Reject]]:
    """Events with a start and a duration, once each.

    Args:
        events: columns of `TraceReader.trace`, of one reader.
        surface: what the refused ones are counted under.
    """
    ranged = events.filter(pl.col("ph") == "X")
    timed = (
        pl.col("ts").is_not_null()
        & pl.col("dur").is_not_null()
        & (pl.col("ts").abs() < _LATEST_US)
        & pl.col("dur").is_between(0, _WHOLE_DAY_US)
    )
    bad = ranged.filter(~timed.fill_null(False))
    rejects = [Reject(number, "event without a start or a duration", surface) for number in bad["event"].to_list()]
    good = ranged.filter(timed.fill_null(False))
    return good.unique(["cat", "name", "pid", "tid", "ts", "dur"], keep="first", maintain_order=True), rejects


def stamps(column: str, about: TraceAbout, as_name: str) -> Sequence[pl.Expr]:
    """A start (us) as `as_name` (UTC, null where its day is not known) and `ts_basis`.

    The absolute time of an event is baseTimeNanoseconds + 1000 ts (Kineto, from torch 2.3).
    """
    base = about.base_ns
    micros = pl.col(column).round().cast(pl.Int64)
    if base is not None:
        micros = micros + base // 1000
    known = micros.is_between(int(_EPOCH_US[0]), int(_EPOCH_US[1]))
    return (
        pl.when(known).then(micros).cast(pl.Datetime("us")).alias(as_name),
        pl.when(known).then(pl.lit("absolute")).otherwise(pl.lit("relative")).alias("ts_basis"),
    )


def within(events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Events with the `step` they begin in; those before the first step are left out.

    Args:
        events: `ts` and whatever else, of one thread.
        steps: `step` and `ts` (where it begins), in order.
    """
    begins = steps.select("step", _begin="ts").sort("_begin")
    out = events.sort("ts", maintain_order=True).join_asof(
        begins, left_on="ts", right_on="_begin", strategy="backward", check_sortedness=False
    )
    return out.filter(pl.col("step").is_not_null()).drop("_begin")


def whole_us(expression: pl.Expr) -> pl.Expr:
    """Whole microseconds, half up; null beyond 31 years, which no step takes and no sum of them fits its type."""
    whole = (expression + 0.5).floor()
    return pl.when(whole.abs() <= LONGEST_US).then(whole).cast(pl.Int64, strict=False)
