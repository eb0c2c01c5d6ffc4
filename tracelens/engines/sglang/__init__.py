"""SGLang, 0.4.1 to 0.5.23: batch lines of the scheduler, start-up lines, requests, metrics, spans and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Span, Surface, Tables
from tracelens.engines.sglang import bench, info, lines, metrics, otel, requests, runs, windows
from tracelens.engines.sglang.surfaces import SURFACES
from tracelens.engines.stacking import stacked

__all__ = ["ENGINE"]

_REQUESTS = (requests.LOG, requests.EXPORT, requests.RESPONSE)
_TEXT = (lines.DECODE, lines.PREFILL, lines.START, lines.ADAPTIVE, lines.SIMULATED, *_REQUESTS)


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
        whole = {s: pl.concat(parts).sort("line", maintain_order=True) for s, parts in frames.items() if parts}
        parts = [_text({s: whole[s] for s in _TEXT if s in whole}, context)]
        for module in (metrics, otel, bench, info):
            own = {s.name: whole[s.name] for s in module.SURFACES if s.name in whole}
            if own:
                parts.append(module.assemble(own, context))
        return stacked(parts)


def _text(whole: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """Rows of the log and of requests: their times and runs follow from the lines around them."""
    tables = Tables()
    whole = _stamped(whole, context)
    started = whole.get(lines.START)
    begun = runs.of(started, started["ts"]) if started is not None else pl.DataFrame(schema=runs.SCHEMA)
    held = runs.spans(whole[lines.SIMULATED], begun) if lines.SIMULATED in whole else []
    keyed = {s: runs.with_run(f, begun) for s, f in whole.items() if s not in (lines.START, lines.SIMULATED)}
    made = []
    prefills = keyed.get(lines.PREFILL)
    if lines.DECODE in keyed:
        made.append(windows.decode(keyed[lines.DECODE], prefills, keyed.get(lines.ADAPTIVE)))
    if prefills is not None:
        made.append(windows.prefill(prefills))
    tables.windows = _joined(made, held)
    asked = [requests.requests(s, keyed[s], context.source_id) for s in _REQUESTS if s in keyed]
    tables.requests = _joined(asked, held)
    if begun.height:
        under = [key for *_, key in held]
        tables.runs = begun.with_columns(
            forced_acceptance=pl.when(pl.col("run_key").is_in(under)).then(pl.lit(True)), config=runs.config()
        )
    return tables


def _joined(parts: Sequence[pl.DataFrame], held: list[tuple[str | None, int, int | None, int]]) -> pl.DataFrame | None:
    if not parts:
        return None
    rows = pl.concat(parts, how="diagonal").sort("source_line", maintain_order=True)
    return rows.with_columns(forced_acceptance=runs.forced(held, "source_line")).drop("stream")


def _stamped(whole: Mapping[str, pl.DataFrame], context: Context) -> dict[str, pl.DataFrame]:
    """All surfaces with `ts` and `ts_basis`, resolved together in file order."""
    if not whole:
        return {}
    parts = [
        f.select("line", "stamp", "inner", surface=pl.lit(s), row=pl.int_range(pl.len())) for s, f in whole.items()
    ]
    together = pl.concat(parts).sort("line", maintain_order=True)
    found = context.resolve(together.select("stamp", "inner")).select("ts", "ts_basis")
    resolved = pl.concat([together.select("surface", "row"), found], how="horizontal").sort("row", maintain_order=True)
    return {
        s: pl.concat([f, resolved.filter(pl.col("surface") == s).select("ts", "ts_basis")], how="horizontal")
        for s, f in whole.items()
    }


ENGINE = SGLang()
