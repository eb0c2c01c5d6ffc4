"""vLLM, 0.4.2 to 0.33: text logs (V0 and V1), logged responses, metrics, spans, profiler traces and bench results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from tracelens.engines.base import Assembly, Context, JsonRecord, Parsed, Span, Surface, Tables, TraceAbout
from tracelens.engines.parted import Assembled, Frames, of_modules
from tracelens.engines.vllm import bench, lines, log, metrics, otel, responses, small, traces
from tracelens.engines.vllm.surfaces import SURFACES


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
        return self.parts(context.resolve).rest(frames, context)

    def parts(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> Assembly:
        """What puts a source together that comes in parts."""
        return Assembled(log.Log(resolve), log.SURFACES, of_modules(metrics, otel, traces, bench), _whole)


def _whole(frames: Mapping[str, Sequence[pl.DataFrame]]) -> Frames:
    return {surface: pl.concat(parts, how="diagonal_relaxed") for surface, parts in frames.items() if parts}


ENGINE = VLLM()
