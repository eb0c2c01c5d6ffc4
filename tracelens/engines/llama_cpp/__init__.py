"""llama.cpp: llama-server's log of all generations, the speculative examples, saved responses, /slots and /metrics.

Read from llama.cpp b11434 (2026-10), earlier forms from public threads (see the pull requests named beside them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import polars as pl

from tracelens.engines.base import Assembly, Context, JsonRecord, Parsed, Surface, Tables
from tracelens.engines.llama_cpp import examples, lines, log, metrics, responses, surfaces
from tracelens.engines.llama_cpp.request_rows import request_rows
from tracelens.engines.parted import Assembled, Frames

__all__ = ["ENGINE"]


class LlamaCpp:
    """The llama.cpp reader."""

    name = "llama.cpp"
    surfaces: Sequence[Surface] = surfaces.SURFACES
    needles: Sequence[bytes] = lines.NEEDLES
    json_keys: Sequence[bytes] = responses.KEYS
    metric_prefixes: Sequence[str] = metrics.PREFIXES

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Text lines; see `tracelens.engines.llama_cpp.lines`."""
        return lines.parse(frame)

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Responses, chunks of them, and slots; see `tracelens.engines.llama_cpp.responses`."""
        return responses.parse(records)

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Prometheus samples; see `tracelens.engines.llama_cpp.metrics`."""
        return metrics.parse(frame)

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        return self.parts(context.resolve).rest(frames, context)

    def parts(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> Assembly:
        """What puts a source together whose log comes in parts."""
        return Assembled(log.Log(resolve), log.SURFACES, _others, _whole)


def _whole(frames: Mapping[str, Sequence[pl.DataFrame]]) -> Frames:
    return {
        s: pl.concat(parts, how="diagonal").sort("line", maintain_order=True) for s, parts in frames.items() if parts
    }


def _others(whole: Mapping[str, pl.DataFrame], context: Context) -> Iterator[Tables]:
    yield _answered(whole, context)
    if surfaces.METRICS in whole:
        yield metrics.assemble(whole[surfaces.METRICS], context)


def _answered(whole: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """Rows of saved responses, of slots, and of what the example programs print at their end."""
    tables = Tables()
    if surfaces.SLOTS in whole:
        tables.windows = _snapshots(whole[surfaces.SLOTS], context)
    requests = []
    if surfaces.TIMINGS in whole:
        answered = responses.requests(whole[surfaces.TIMINGS])
        answered = answered.with_columns(context.resolve(answered.select("stamp", "inner")).select("ts", "ts_basis"))
        requests.append(request_rows(answered, surfaces.TIMINGS, context.source_id))
    if surfaces.EXAMPLE in whole:
        requests.append(examples.requests(whole[surfaces.EXAMPLE], context.source_id, tables.rejects))
    tables.requests = pl.concat(requests, how="diagonal") if requests else None
    return tables


def _snapshots(slots: pl.DataFrame, context: Context) -> pl.DataFrame:
    rows = responses.slot_windows(slots)
    stamps = context.resolve(rows.select("stamp", "inner"))
    rows = rows.with_columns(ts_end=stamps["ts"], ts_basis=stamps["ts_basis"], run_key=pl.lit(0, pl.Int64))
    return rows.rename({"line": "source_line"}).drop("stamp", "inner", "stream")


ENGINE = LlamaCpp()
