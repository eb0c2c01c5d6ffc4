"""TensorRT-LLM's iterations as canonical `windows`, one step a row, in one go or part by part.

What iteration stats and `print_iter_log` share is the clock. `prevDeviceStepTimeMS` (`prev_device_step_time`) of
iteration N is the device time of iteration N - 1, between two CUDA events; behind an iteration that scheduled nothing
it holds idle time. The host's own time of an iteration is the loop that prepared the next one; it stands in where the
device's is not logged. So the last iteration of each rank waits for the next part.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.engines.base import PartsError, Reject
from tracelens.engines.parted import LowestRank
from tracelens.engines.rows import Once
from tracelens.engines.tensorrt_llm.steps import LOG, STATS

# Iterations 0 to 4 of an executor are warm-up: their times are no step's.
WARM_UP = 5
_RANK = ("stream", "rank")


class Stats:
    """One window a recorded iteration."""

    def __init__(self) -> None:
        # Attention DP writes an iteration once a rank, with the times and specDecodingStats of rank 0 on each.
        told = pl.col("inner").is_not_null() | pl.col("rank").is_not_null()
        self._once = Once(printed=("stream", "inner", "iter", "latency_ms"), told=told)
        self._zeros = _Zeros()
        self._steps = _Steps()
        self._length = _Length()
        self._lost = _Lost()

    def windows(self, rows: pl.DataFrame | None, *, is_last: bool) -> pl.DataFrame | None:
        """Windows of the next iterations, but for the last one of each rank where others may follow.

        Args:
            rows: rows of `steps.STATS_SCHEMA` with `ts` and `ts_basis`, or None.
            is_last: whether these are the last.

        Raises:
            PartsError: what is known by now would have changed what was written.
        """
        if rows is not None:
            self._lost.see(rows)
            rows = self._once(rows.sort("line", "rank", maintain_order=True, nulls_last=False))
            rows = self._zeros.filled(rows)
            self._length.see(rows)
        timed = self._steps.of(rows, is_last=is_last)
        return None if timed is None else _stats_windows(timed, self._length.of(timed))

    def lost(self) -> list[Reject]:
        """What was dropped before it was polled; see `_Lost`."""
        return self._lost.rejects()


class Log:
    """One window a line of `print_iter_log`: time and load. Accepted tokens are not in it."""

    def __init__(self) -> None:
        self._ranks = LowestRank("stream")
        self._once = Once(printed=("stream", "hash"))
        self._steps = _Steps()

    def windows(self, rows: pl.DataFrame | None, *, is_last: bool) -> pl.DataFrame | None:
        """As `Stats.windows`, from what `steps.log_rows` gave."""
        if rows is not None:
            rows = self._once(self._ranks.of(rows)).sort("line", maintain_order=True)
        timed = self._steps.of(rows, is_last=is_last)
        return None if timed is None else _log_windows(timed)


class _Steps:
    """Times of steps: the last iteration of each rank waits for the one that logs its device time."""

    def __init__(self) -> None:
        self._held: pl.DataFrame | None = None  # the last two of each rank; `_done` are those that were given out

    def of(self, rows: pl.DataFrame | None, *, is_last: bool) -> pl.DataFrame | None:
        """The next iterations with `step_us`, in order."""
        parts = [] if rows is None else [rows.with_columns(_done=pl.lit(False))]
        parts = parts if self._held is None else [self._held, *parts]
        if not parts:
            return None
        timed = _with_step(pl.concat(parts, how="diagonal_relaxed"))
        from_end = pl.int_range(pl.len(), 0, -1).over(_RANK)
        waits = pl.lit(False) if is_last else from_end == 1
        held = timed.filter(from_end <= 2).drop("step_us")
        self._held = held.with_columns(_done=pl.int_range(pl.len(), 0, -1).over(_RANK) > 1)
        return timed.filter(~pl.col("_done") & ~waits).drop("_done")


def _with_step(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `step_us`: the device time that the next iteration logs for this one, else the host's; null where it is no
    decode step's: warm-up, prefill, nothing scheduled, idle time before it."""
    after = pl.col("iter").shift(-1).over(_RANK) == pl.col("iter") + 1
    device = pl.when(after).then(pl.col("device_ms").shift(-1).over(_RANK))
    follows = pl.col("iter").shift(1).over(_RANK) == pl.col("iter") - 1
    idle_before = follows & (pl.col("scheduled").shift(1).over(_RANK) == 0)
    # The host waits for work in its own loop, so idle time before an iteration is in its host time, not its device's.
    host = pl.when(~idle_before.fill_null(False)).then("host_ms")
    bare = (pl.col("context").fill_null(0) > 0) | (pl.col("scheduled") == 0) | (pl.col("iter") < WARM_UP)
    step = pl.when(~bare.fill_null(False)).then(pl.coalesce(device, host))
    return rows.with_columns(step_us=(pl.when(step > 0).then(step) * 1000).round().cast(pl.Int64, strict=False))


class _Zeros:
    """Zeros of `specDecodingStats` that may never have been filled.

    Before #9855 (2025-12) the PyTorch backend left them at zero, whatever was drafted, for all drafters but n-gram; and
    an n-gram drafter truly has iterations without a draft. So zeros mean "no draft" where another iteration of the
    process has drafts, or where any of them shows a build that fills them (`vouched`); else they say nothing.
    """

    def __init__(self) -> None:
        self._told: set[str | None] = set()
        self._silent: set[str | None] = set()

    def filled(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows, with zeros that say nothing as null.

        Raises:
            PartsError: zeros of a part before would have said something.
        """
        says = (pl.col("vouched") | (pl.col("drafted") > 0)).fill_null(False)
        self._told.update(rows.filter(says)["stream"].unique().to_list())
        if self._told & self._silent:
            raise PartsError("zeros that turn out to be counts")
        told = pl.col("stream").is_in(list(self._told), nulls_equal=True)
        empty = ((pl.col("drafted") == 0) & ~told).fill_null(False)
        self._silent.update(rows.filter(empty)["stream"].unique().to_list())
        names = ("drafted", "accepted", "rounds", "rounds_basis", "plain_steps")
        return rows.with_columns(pl.when(~empty).then(name).alias(name) for name in names)


class _Length:
    """K, where every iteration's drafts are a whole multiple of one length: a chain that never changes."""

    def __init__(self) -> None:
        self._lengths: set[float] = set()
        self._drafted: set[int] = set()
        self._given: int | None = None
        self._gave = False

    def see(self, rows: pl.DataFrame) -> None:
        """The next iterations."""
        each = rows.filter((pl.col("rounds") > 0) & (pl.col("drafted") > 0))
        self._lengths.update((each["drafted"] / each["rounds"]).unique().to_list())
        self._drafted.update(rows["drafted"].drop_nulls().unique().to_list())

    def of(self, rows: pl.DataFrame) -> int | None:
        """K of these iterations and of all so far; None where it is not one.

        Raises:
            PartsError: it was another one for iterations that have been written.
        """
        k = next(iter(self._lengths)) if len(self._lengths) == 1 else 0.0
        one = k >= 1 and k == int(k) and all(drafted % int(k) == 0 for drafted in self._drafted)
        found = int(k) if one else None
        if self._gave and found != self._given:
            raise PartsError("a draft length that changes")
        self._given = found
        self._gave = self._gave or bool((rows["drafted"] > 0).any())
        return found


class _Lost:
    """Gaps in the numbers of a stream (`statsSequence`): its records were dropped before they were read."""

    def __init__(self) -> None:
        self._last: dict[str | None, int] = {}
        self._gaps: dict[str | None, tuple[int, int, int]] = {}  # line and offset of the first, records dropped

    def see(self, rows: pl.DataFrame) -> None:
        """The next iterations."""
        numbered = rows.filter(pl.col("sequence").is_not_null()).sort("line", maintain_order=True)
        before = (
            pl.col("stream").replace_strict(self._last, default=None, return_dtype=pl.Int64) if self._last else None
        )
        last = pl.col("sequence").shift(1).over("stream")
        first = pl.int_range(pl.len()).over("stream") == 0
        gap = pl.col("sequence") - (last if before is None else pl.when(first).then(before).otherwise(last)) - 1
        found = numbered.with_columns(_gap=gap).filter(pl.col("_gap") > 0)
        found = found.group_by("stream", maintain_order=True).agg(
            pl.col("line", "offset").first(), pl.col("_gap").sum()
        )
        for stream, line, offset, more in found.iter_rows():
            at, place, so_far = self._gaps.get(stream, (line, offset, 0))
            self._gaps[stream] = (at, place, so_far + more)
        self._last |= dict(numbered.group_by("stream").agg(pl.col("sequence").last()).iter_rows())

    def rejects(self) -> list[Reject]:
        """One a stream with gaps."""
        return [
            Reject(line, f"{gap} iterations were dropped before they were polled: poll more often", STATS, offset)
            for line, offset, gap in self._gaps.values()
        ]


def _stats_windows(rows: pl.DataFrame, k: int | None) -> pl.DataFrame:
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


def _log_windows(rows: pl.DataFrame) -> pl.DataFrame:
    """`num_generation_tokens` are tokens fed to the target, requests x (1 + drafts), padded to the batch sizes of CUDA
    graphs: drafts can't be told from padding. As many tokens as requests can only be plain steps.
    """
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


def joined(parts: Sequence[pl.DataFrame | None]) -> pl.DataFrame | None:
    """Rows of all surfaces in the order of their lines; None where there are none."""
    some = [part for part in parts if part is not None and part.height]
    return pl.concat(some, how="diagonal").sort("source_line", maintain_order=True) if some else None
