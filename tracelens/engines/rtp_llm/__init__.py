"""RTP-LLM (alibaba/rtp-llm): access logs, engine.log at DEBUG, step JSON lines, kmonitor gauges, timelines.

Read from the sources at 4b8d39cd5 (2026-08-20) and v0.2.0 (d1e93ce12, 2025-10-31). What RTP-LLM calls accepted has the
target's own token in it, except `speculative_accepted_tokens_per_pos`; here `accepted` never has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables, TraceAbout
from tracelens.engines.rtp_llm import access, debug, kmonitor, rounds, steps, timeline
from tracelens.engines.rtp_llm.runs import with_runs
from tracelens.engines.rtp_llm.surfaces import SURFACES
from tracelens.engines.units import BrokenError

__all__ = ["ENGINE"]

_REQUESTS = (access.ACCESS, access.QUERY, access.DASH, access.AUX)


class RtpLlmEngine:
    """Records of RTP-LLM."""

    name = "rtp-llm"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = (*debug.NEEDLES, *kmonitor.NEEDLES)
    json_keys: Sequence[bytes] = (b'"log_time"', b'"rpc_completed"', b'"aux_info"', b'"step_latency_us"')
    metric_prefixes: Sequence[str] = kmonitor.METRIC_PREFIXES
    trace_marks: Sequence[bytes] = timeline.MARKS
    launch_marks: Sequence[bytes] = timeline.LAUNCH_MARKS

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Events of engine.log, lines of the configuration dump, and gauges of kmonitor's log sink."""
        parsed = debug.lines(frame)
        parsed.merge(kmonitor.lines(frame))
        return parsed

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Gauges as Prometheus text; see `tracelens.engines.rtp_llm.kmonitor`."""
        return kmonitor.metrics(frame)

    def trace(self, events: pl.DataFrame, about: TraceAbout) -> Parsed:
        """Events of a timeline; see `tracelens.engines.rtp_llm.timeline`."""
        return timeline.parse(events, about)

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Request records and steps; a batch in which only some answers can be used gives those."""
        parsed = Parsed()
        requests: dict[str, list[access.Row]] = {}
        step_rows: list[steps.Row] = []
        for record in records:
            surface = access.surface_of(record.value)
            if surface is not None:
                parsed.claimed += 1
                for row in access.rows_of(surface, record):
                    if isinstance(row, BrokenError):
                        parsed.rejects.append(Reject(record.line, str(row), surface, record.offset))
                    else:
                        requests.setdefault(surface, []).append(row)
            elif steps.is_step(record.value):
                parsed.claimed += 1
                try:
                    step_rows.extend(steps.rows_of(record))
                except BrokenError as fault:
                    parsed.rejects.append(Reject(record.line, str(fault), steps.SURFACE, record.offset))
        for surface, rows in requests.items():
            parsed.add(surface, _frame(rows, access.SCHEMA))
        parsed.add(steps.SURFACE, _frame(step_rows, steps.SCHEMA))
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        tables = Tables()
        requests = [_requests(s, pl.concat(frames[s]).sort("line"), context) for s in _REQUESTS if frames.get(s)]
        rows: list[pl.DataFrame] = []
        windows: list[pl.DataFrame] = []
        if frames.get(steps.SURFACE):
            found = _stamped(pl.concat(frames[steps.SURFACE]).sort("line"), "ts", context)
            rows.append(steps.rounds_of(found))
            windows.append(steps.windows_of(found))
        if frames.get(debug.SP):
            some, alone = rounds.sp_rounds(_events(frames[debug.SP], context), tables.rejects)
            rows.append(some)
            windows.append(alone)
        if frames.get(debug.MTP):
            rows.append(rounds.mtp_rounds(_events(frames[debug.MTP], context), tables.rejects))
        if frames.get(kmonitor.SURFACE):
            found = pl.concat(frames[kmonitor.SURFACE], how="diagonal")
            windows.append(kmonitor.windows(found, _configured(frames), tables))
        if frames.get(kmonitor.GAUGES):
            samples = pl.concat(frames[kmonitor.GAUGES], how="diagonal").with_columns(inner=pl.lit(None, pl.String))
            windows.append(kmonitor.gauge_windows(_events([samples], context)))
        windows += timeline.windows(frames)
        tables.rounds, tables.windows, tables.requests = _joined(rows), _joined(windows), _joined(requests)
        return with_runs(tables, frames.get(debug.CONFIG, ()))


def _frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema)


def _joined(parts: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    parts = [part for part in parts if part.height]
    return pl.concat(parts, how="diagonal").with_columns(pl.lit("rtp-llm").alias("engine")) if parts else None


def _configured(frames: Mapping[str, Sequence[pl.DataFrame]]) -> int | None:
    """K, where all configuration dumps of the source agree on one."""
    found = {k for part in frames.get(debug.CONFIG, ()) for k in part["k"].drop_nulls().unique().to_list()}
    return found.pop() if len(found) == 1 else None


def _events(parts: Sequence[pl.DataFrame], context: Context) -> pl.DataFrame:
    """Events in file order with their stamps."""
    events = pl.concat(parts, how="diagonal").sort("line", maintain_order=True)
    return events.with_columns(context.resolve(events.select("stamp", "inner")).select("ts", "ts_basis"))


def _stamped(frame: pl.DataFrame, column: str, context: Context) -> pl.DataFrame:
    """The frame with `column` and `ts_basis`: an epoch of the record's own, else the resolved stamp."""
    if "inner" not in frame.columns:
        frame = frame.with_columns(pl.lit(None, pl.String).alias("inner"))
    found = context.resolve(frame.select("stamp", "inner"))
    basis = pl.when(pl.col(column).is_not_null()).then(pl.lit("absolute")).otherwise(pl.col("@basis"))
    frame = frame.with_columns(found["ts"].alias("@ts"), found["ts_basis"].alias("@basis"))
    return frame.with_columns(basis.alias("ts_basis"), pl.coalesce(column, "@ts").alias(column)).drop("@ts", "@basis")


def _requests(surface: str, frame: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Canonical requests of one surface. A query line is written at arrival, all others at the end."""
    frame = _stamped(frame, "ts_start" if surface == access.QUERY else "ts_end", context)
    unnamed = pl.format("{}#{}", pl.lit(context.source_id), pl.col("line"))
    keep = [name for name in access.SCHEMA if name not in ("line", "stamp", "inner", "stream", "request_id")]
    given = [name for name in keep if frame[name].null_count() < frame.height]
    return frame.select(
        pl.col("line").alias("source_line"),
        pl.lit(surface).alias("surface"),
        "ts_basis",
        pl.coalesce("request_id", unnamed).alias("request_id"),
        *given,
    )


ENGINE = RtpLlmEngine()
