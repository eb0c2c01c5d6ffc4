"""SGLang, 0.4.1 to 0.5.23: batch lines of the scheduler, start-up lines, requests, metrics, spans and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from tracelens.engines.base import Assembly, Context, JsonRecord, Parsed, Span, Surface, Tables
from tracelens.engines.parted import Assembled, Frames, of_modules
from tracelens.engines.sglang import bench, info, lines, log, metrics, otel, requests
from tracelens.engines.sglang.surfaces import SURFACES

__all__ = ["ENGINE"]


class SGLang:
    """The SGLang reader."""

    name = "sglang"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = (*lines.NEEDLES, *requests.NEEDLES)
    json_keys: Sequence[bytes] = (*requests.KEYS, *bench.KEYS, *info.KEYS)
    metric_prefixes: Sequence[str] = metrics.PREFIXES

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Text lines: those of finished requests apart, as they may hold a user's text."""
        logged = pl.col("text").str.contains("meta_info", literal=True)
        parsed = Parsed()
        for part, parse in ((frame.filter(logged), requests.lines), (frame.filter(~logged), lines.parse)):
            if part.height:
                parsed.merge(parse(part))
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Results of benchmarks, answers of /server_info, and finished requests."""
        parsed = Parsed()
        kinds: tuple[list[JsonRecord], list[JsonRecord], list[JsonRecord]] = ([], [], [])
        for record in records:
            value = record.value
            kinds[0 if bench.surface_of(value) else 1 if info.holds(value) else 2].append(record)
        for part, parse in zip(kinds, (bench.parse, info.parse, requests.records), strict=True):
            if part:
                parsed.merge(parse(part))
        return parsed

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Prometheus samples; see `tracelens.engines.sglang.metrics`."""
        return metrics.parse(frame)

    def spans(self, spans: Sequence[Span]) -> Parsed:
        """OpenTelemetry spans; see `tracelens.engines.sglang.otel`."""
        return otel.parse(spans)

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        return self.parts(context.resolve).rest(frames, context)

    def parts(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> Assembly:
        """What puts a source together that comes in parts."""
        return Assembled(log.Log(resolve), log.SURFACES, of_modules(metrics, otel, bench, info), _whole)


def _whole(frames: Mapping[str, Sequence[pl.DataFrame]]) -> Frames:
    return {s: pl.concat(parts).sort("line", maintain_order=True) for s, parts in frames.items() if parts}


ENGINE = SGLang()
