"""vLLM's text log of one source: its lines' times and runs, then canonical rows, in one go or part by part.

A long log is put together in parts, so that the memory it takes does not grow with it. What a line says depends on the
lines above it in few ways, and `Log` keeps just these: the starts, the last line of each engine, what was printed
before, and the clock. Lines that need others below them, of which there are few, wait for the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import Context, Tables
from tracelens.engines.parted import Frames, LastOf, Lines, Runs
from tracelens.engines.vllm import forward_times, small, startup, windows
from tracelens.engines.vllm.response_rows import Responses
from tracelens.engines.vllm.surfaces import TEXT

_RESPONSE, _START, _REQUEST = "vllm.response", "vllm.start", "vllm.request_line"
_V1, _V0, _ENGINE = "vllm.v1_line", "vllm.v0_line", "vllm.engine_line"
_STAGE, _ITERATION = "vllm.stage_times", "vllm.iteration_line"
# One row a line, which needs no line below it.
_AT_ONCE = frozenset({_V1, _ENGINE, _STAGE, _ITERATION, _REQUEST})
SURFACES: Collection[str] = [*(s.name for s in (*TEXT, *small.SURFACES) if s.name != _RESPONSE), _RESPONSE]


class Log:
    """Takes the lines of a log, in order.

    Args:
        resolve: as `Context.resolve`, of a clock that goes on from part to part.
    """

    def __init__(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._lines = Lines(resolve)
        self._starts = Runs()
        self._once = {s: rows.Once("process", *(["replica"] if s == _V1 else [])) for s in _AT_ONCE}
        self._waiting: dict[str, list[pl.DataFrame]] = {}
        self._responses = Responses(resolve)
        self._near: pl.DataFrame | None = None  # the last lines that tell of an engine
        self._engines = LastOf("stream", "process", "engine")

    def part(self, whole: Frames, source_id: str) -> Tables:
        """The next lines.

        Args:
            whole: frame by surface.
            source_id: as in `Context`.

        Returns:
            Rows of the lines that need none below them, and the runs so far.

        Raises:
            PartsError: the rows are not what they would be if the log came in one go.
        """
        responded = whole.pop(_RESPONSE, None)
        answered, rounds = self._responses.part(responded, source_id, beside=bool(whole))
        text, last = self._taken(whole)
        runs = self._runs()
        text = {surface: _with_run(frame, runs) for surface, frame in text.items()}
        tables = Tables(runs=_told(runs), rounds=rounds)
        tables.windows = self._windows(text, runs, tables)
        tables.requests = self._requests(text) if answered is None else answered
        if _ENGINE in text:
            told = text[_ENGINE] if self._near is None else pl.concat([self._near, text[_ENGINE]], how="diagonal")
            self._near = told.filter(pl.col("line") > last - windows.NEAR_LINES)
        self._lines.last = last
        return tables

    def rest(self, whole: Frames, context: Context) -> Tables:
        """The last lines, and all that waited.

        Args:
            whole: frame by surface.
            context: of the source.

        Raises:
            PartsError: see `part`.
        """
        responded = whole.pop(_RESPONSE, None)
        text, _ = self._taken(whole)
        runs = self._runs()
        text |= {surface: pl.concat(parts, how="diagonal_relaxed") for surface, parts in self._waiting.items()}
        text.pop(_START, None)
        text = {surface: _with_run(frame, runs) for surface, frame in text.items()}
        tables = Tables(runs=_told(runs))
        tables.windows = self._windows(text, runs, tables)
        requests = small.request_rows(text)
        told = self._requests(text)
        if told is not None:
            requests.append(told)
        answered, tables.rounds = self._responses.rest(responded, context, partial(_with_run, runs=runs))
        requests += [] if answered is None else [answered]
        tables.requests = pl.concat(requests, how="diagonal") if requests else None
        return tables

    def _taken(self, whole: Mapping[str, pl.DataFrame]) -> tuple[Frames, int]:
        """The lines whose rows can be made at once, with their times, and the number of the last line; others wait."""
        text, last = self._lines.take(whole)
        for surface in text.keys() - _AT_ONCE:
            self._waiting.setdefault(surface, []).append(text.pop(surface))
        return text, last

    def _runs(self) -> pl.DataFrame | None:
        starts = self._waiting.get(_START)
        told = None if starts is None else rows.once(pl.concat(starts, how="diagonal_relaxed"), "process")
        return self._starts.told(None if told is None else startup.runs(told))

    def _windows(self, text: Frames, runs: pl.DataFrame | None, tables: Tables) -> pl.DataFrame | None:
        parts: list[pl.DataFrame] = []
        if _V1 in text:
            # Engines of one process may print the same figures in the same second: they differ by their replica.
            near = [frame for frame in (self._near, text.get(_ENGINE)) if frame is not None]
            lines = windows.with_replica(text[_V1], pl.concat(near, how="diagonal") if near else None)
            parts.append(windows.v1_windows(self._once[_V1](lines), tables))
        if _V0 in text:
            nothing = pl.DataFrame(schema={"run_key": pl.Int64, "started": pl.Datetime("us")})
            started = nothing if runs is None else runs.select("run_key", "started")
            parts.append(windows.v0_windows(rows.once(text[_V0], "process"), started, tables))
        if _STAGE in text:
            parts.append(windows.stage_windows(self._once[_STAGE](text[_STAGE])))
        if _ENGINE in text:
            lines = self._engines.before(self._once[_ENGINE](text[_ENGINE]))
            parts.append(windows.engine_windows(lines).filter(pl.col("source_line") > self._lines.last))
        if _ITERATION in text:
            parts.append(windows.iteration_windows(self._once[_ITERATION](text[_ITERATION])))
        if small.BATCHSIZE in text:
            found = rows.once(text[small.BATCHSIZE], "process")
            parts.append(forward_times.forward_windows(found, small.BATCHSIZE, runs, tables))
        return _by_line(parts) if parts else None

    def _requests(self, text: Frames) -> pl.DataFrame | None:
        return windows.request_rows(self._once[_REQUEST](text[_REQUEST])) if _REQUEST in text else None


def _told(runs: pl.DataFrame | None) -> pl.DataFrame | None:
    """The runs without what only their lines need."""
    return None if runs is None else runs.drop("is_async")


def _with_run(frame: pl.DataFrame, runs: pl.DataFrame | None) -> pl.DataFrame:
    """Add `run_key` and the run's `method` and `is_async`: the latest start above the line, in the same stream."""
    if runs is None:
        nothing = {"method": pl.lit(None, pl.String), "is_async": pl.lit(None, pl.Boolean)}
        return frame.with_columns(run_key=pl.lit(0, pl.Int64), **nothing)
    stream = pl.col("stream").fill_null("")
    starts = runs.select("run_key", "method", "is_async", _line="first_line", _stream=stream).sort("_line")
    out = frame.with_columns(_stream=stream).join_asof(
        starts, left_on="line", right_on="_line", by="_stream", strategy="backward", check_sortedness=False
    )
    return out.drop("_stream", "_line", strict=False).with_columns(pl.col("run_key").fill_null(0))


def _by_line(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Rows of all parts in the order of lines; a column at a time, so that a long log is not in memory twice more."""
    whole = pl.concat(parts, how="diagonal_relaxed")
    parts.clear()
    order = pl.arg_sort_by("source_line", maintain_order=True)
    places = whole.select(order).to_series()
    if places.is_sorted():
        return whole
    return pl.DataFrame([whole.drop_in_place(name).gather(places) for name in whole.columns])
