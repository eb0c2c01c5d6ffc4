"""vLLM's logged responses as canonical requests and rounds, in one go or part by part."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from tracelens.engines.base import Context, PartsError
from tracelens.engines.vllm.startup import leaf

# Columns that a round shares with its request.
_SHARED = (
    "run_key", "request_id", "task_type", "model", "temperature", "top_p", "num_speculative_tokens", "source_line",
    "ts_basis",
)  # fmt: skip


class Responses:
    """The rows of the responses of a source, in one go or part by part.

    Those that a client or a gateway logged alone are whole by themselves. Beside the lines of a server, which tell of
    its starts, they wait for the end.

    Args:
        resolve: as `Context.resolve`, of a clock that goes on from part to part.
    """

    def __init__(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._resolve = resolve
        self._alone: bool | None = None  # not known yet
        self._waiting: list[pl.DataFrame] = []

    def part(
        self, frame: pl.DataFrame | None, source_id: str, *, beside: bool
    ) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
        """Request rows and rounds of the next responses.

        Args:
            frame: the responses.
            source_id: what those without an id are named after.
            beside: there are lines of a server beside them.

        Raises:
            PartsError: they were alone so far, and are no more.
        """
        if self._alone is None:
            self._alone = not beside and frame is not None and "in_log" not in frame.columns
        elif self._alone and (beside or (frame is not None and "in_log" in frame.columns)):
            raise PartsError("lines of a server behind responses that stood alone")
        if frame is None:
            return None, None
        if not self._alone:
            self._waiting.append(frame)
            return None, None
        return rows(_timed(frame, self._resolve), source_id)

    def rest(
        self, frame: pl.DataFrame | None, context: Context, with_run: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
        """The same of the last responses, and of all that waited; `with_run` adds the `run_key` of lines of a log."""
        own = [] if frame is None else [_timed(frame, self._resolve) if self._alone else frame]
        found = [part for part in (*self._waiting, *own) if part.height]
        if not found:
            return None, None
        whole = pl.concat(found, how="diagonal_relaxed")
        if not self._alone:
            if "in_log" in whole.columns:
                whole = whole.sort("line", maintain_order=True)
                key = pl.when(pl.col("in_log")).then(with_run(whole)["run_key"]).fill_null(0)
                whole = whole.with_columns(run_key=key)
            whole = _timed(whole, context.resolve)
        return rows(whole, context.source_id)


def _timed(frame: pl.DataFrame, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    return frame.with_columns(resolve(frame.select("stamp", "inner")))


def rows(frame: pl.DataFrame, source_id: str) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Request rows, and their rounds in order where the response lists them; `ts` and `ts_basis` are there already."""
    begun = pl.from_epoch((pl.col("start_s") * 1e6).round().cast(pl.Int64), time_unit="us")
    first = pl.col("queue_us").fill_null(0) + pl.col("ttft_us")
    out = frame.with_columns(
        model=leaf(pl.col("model")),
        ts_start=begun,
        e2e_us=first + pl.col("decode_us"),
        ts_first_token=begun + pl.duration(microseconds=first),
        request_id=pl.coalesce("request_id", pl.concat_str(pl.lit(source_id + "#"), "line")),
        source_line="line",
        surface=pl.lit("vllm.response"),
        # What a client logged does not tell of which start it is.
        run_key=pl.col("run_key") if "run_key" in frame.columns else pl.lit(0, pl.Int64),
    )
    out = out.with_columns(
        # The stamp of a logged response is its end; a stamp of the record itself tells the arrival. A logger's clock
        # that lags behind the arrival is no end.
        ts_end=pl.coalesce(
            pl.col("ts_start") + pl.duration(microseconds="e2e_us"),
            pl.max_horizontal("ts", "ts_first_token", "ts_start"),
        ),
        ts_basis=pl.when(pl.col("ts_start").is_not_null()).then(pl.lit("absolute")).otherwise("ts_basis"),
    )
    steps = out.filter(pl.col("step_drafted").list.len() > 0)
    rounds = None
    if steps.height:
        rounds = steps.select(
            *_SHARED,
            ts="ts_end",  # the response gives no time a step: the round's day is its request's
            surface="surface",
            drafted="step_drafted",
            accepted="step_accepted",
            emitted="step_emitted",
            round_index=pl.int_ranges(0, pl.col("step_drafted").list.len()),
        ).explode("drafted", "accepted", "emitted", "round_index")
    working = ("line", "offset", "stamp", "inner", "stream", "start_s", "ts", "step_drafted", "step_accepted")
    return out.drop(*working, "step_emitted", "in_log", strict=False), rounds
