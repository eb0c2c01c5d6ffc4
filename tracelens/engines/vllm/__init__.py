"""vLLM, 0.4.2 to 0.33: text logs (V0 and V1), logged responses, metrics, spans, profiler traces and bench results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Span, Surface, Tables, TraceAbout
from tracelens.engines.stacking import stacked
from tracelens.engines.vllm import (
    bench,
    forward_times,
    lines,
    metrics,
    otel,
    responses,
    small,
    startup,
    traces,
    windows,
)
from tracelens.engines.vllm.surfaces import SURFACES, TEXT


class VLLM:
    """The vLLM reader."""

    name = "vllm"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = (*lines.NEEDLES, *small.NEEDLES)
    json_keys: Sequence[bytes] = (*responses.KEYS, *bench.KEYS)
    metric_prefixes: Sequence[str] = metrics.PREFIXES
    trace_marks: Sequence[bytes] = traces.MARKS
    launch_marks: Sequence[bytes] = ()

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Text lines; see `tracelens.engines.vllm.lines` and `small`."""
        return lines.parse(frame, small.LINES)

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Bench results and logged responses; see the modules of these names."""
        parsed = bench.parse([r for r in records if bench.holds(r.value)])
        parsed.merge(responses.parse([r for r in records if not bench.holds(r.value)]))
        return parsed

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Prometheus samples; see `tracelens.engines.vllm.metrics`."""
        return metrics.parse(frame)

    def spans(self, spans: Sequence[Span]) -> Parsed:
        """OpenTelemetry spans; see `tracelens.engines.vllm.otel`."""
        return otel.parse(spans)

    def trace(self, events: pl.DataFrame, about: TraceAbout) -> Parsed:
        """Events of a profiler trace; see `tracelens.engines.vllm.traces`."""
        return traces.parse(events, about)

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        whole = {surface: pl.concat(parts, how="diagonal_relaxed") for surface, parts in frames.items() if parts}
        # The smaller lines are of the same log: their time and run follow from the lines around them.
        parts = [self._text({s.name: whole[s.name] for s in (*TEXT, *small.SURFACES) if s.name in whole}, context)]
        for module in (metrics, otel, traces, bench):
            own = {s.name: whole[s.name] for s in module.SURFACES if s.name in whole}
            if own:
                parts.append(module.assemble(own, context))
        return stacked(parts)

    def _text(self, whole: dict[str, pl.DataFrame], context: Context) -> Tables:
        responded = whole.pop("vllm.response", None)
        text = _timed(whole, context)
        starts = text.pop("vllm.start", None)
        runs = None if starts is None else startup.runs(windows.once(starts))
        text = {surface: _with_run(frame, runs) for surface, frame in text.items()}
        tables = Tables(runs=runs)
        tables.windows = _windows(text, runs, tables)
        requests = small.request_rows(text)
        if "vllm.request_line" in text:
            requests.append(windows.request_rows(windows.once(text["vllm.request_line"])))
        if responded is not None:
            if "in_log" in responded.columns:
                responded = responded.sort("line", maintain_order=True)
                own = _with_run(responded, runs)["run_key"]
                responded = responded.with_columns(run_key=pl.when(pl.col("in_log")).then(own).fill_null(0))
            rows, tables.rounds = responses.rows(responded, context)
            requests.append(rows)
        tables.requests = pl.concat(requests, how="diagonal") if requests else None
        return tables


def _timed(text: Mapping[str, pl.DataFrame], context: Context) -> dict[str, pl.DataFrame]:
    """Frames in file order with `ts` and `ts_basis`; the year of one line follows from its neighbours' of any kind."""
    if not text:
        return {}
    frames = {surface: _in_order(frame) for surface, frame in text.items()}
    numbers = {surface: number for number, surface in enumerate(frames)}
    stamps = pl.concat([
        f.select("line", "stamp", "inner", _surface=pl.lit(numbers[s], pl.Int32)) for s, f in frames.items()
    ])  # fmt: skip
    stamps = stamps.sort("line", maintain_order=True)
    times = context.resolve(stamps.select("stamp", "inner"))
    # Stable all the way: the times of a surface come in the order of its rows.
    return {s: f.hstack(times.filter(stamps["_surface"] == numbers[s])) for s, f in frames.items()}


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """In the order of lines, and marked so: later sorts have nothing to do."""
    if not frame["line"].is_sorted():
        frame = frame.sort("line", maintain_order=True)
    return frame.with_columns(pl.col("line").set_sorted())


def _with_run(frame: pl.DataFrame, runs: pl.DataFrame | None) -> pl.DataFrame:
    """Add `run_key` and the run's `method`: the latest start above the line, in the same stream."""
    if runs is None:
        return frame.with_columns(run_key=pl.lit(0, pl.Int64), method=pl.lit(None, pl.String))
    stream = pl.col("stream").fill_null("")
    starts = runs.select("run_key", "method", _line="first_line", _stream=stream).sort("_line")
    out = frame.with_columns(_stream=stream).join_asof(
        starts, left_on="line", right_on="_line", by="_stream", strategy="backward", check_sortedness=False
    )
    return out.drop("_stream", "_line", strict=False).with_columns(pl.col("run_key").fill_null(0))


def _windows(text: Mapping[str, pl.DataFrame], runs: pl.DataFrame | None, tables: Tables) -> pl.DataFrame | None:
    parts: list[pl.DataFrame] = []
    if "vllm.v1_line" in text:
        # Engines of one process may print the same figures in the same second: they differ by their replica.
        lines = windows.with_replica(text["vllm.v1_line"], text.get("vllm.engine_line"))
        parts.append(windows.v1_windows(windows.once(lines, "replica"), tables))
    if "vllm.v0_line" in text:
        nothing = pl.DataFrame(schema={"run_key": pl.Int64, "started": pl.Datetime("us")})
        started = nothing if runs is None else runs.select("run_key", "started")
        parts.append(windows.v0_windows(windows.once(text["vllm.v0_line"]), started, tables))
    for surface, build in (
        ("vllm.stage_times", windows.stage_windows),
        ("vllm.engine_line", windows.engine_windows),
        ("vllm.iteration_line", windows.iteration_windows),
    ):
        if surface in text:
            parts.append(build(windows.once(text[surface])))
    if small.BATCHSIZE in text:
        found = windows.once(text[small.BATCHSIZE])
        parts.append(forward_times.forward_windows(found, small.BATCHSIZE, runs, tables))
    return _by_line(parts) if parts else None


def _by_line(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Rows of all parts in the order of lines; a column at a time, so that a long log is not in memory twice more."""
    whole = pl.concat(parts, how="diagonal_relaxed")
    parts.clear()
    order = pl.arg_sort_by("source_line", maintain_order=True)
    places = whole.select(order).to_series()
    if places.is_sorted():
        return whole
    return pl.DataFrame([whole.drop_in_place(name).gather(places) for name in whole.columns])


ENGINE = VLLM()
