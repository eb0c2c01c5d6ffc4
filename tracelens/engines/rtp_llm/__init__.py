"""RTP-LLM (alibaba/rtp-llm): access logs, engine.log at DEBUG, step JSON lines, kmonitor gauges, timelines.

Read from the sources at 4b8d39cd5 (2026-08-20) and v0.2.0 (d1e93ce12, 2025-10-31). What RTP-LLM calls accepted has the
target's own token in it, except `speculative_accepted_tokens_per_pos`; here `accepted` never has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from tracelens.engines.base import (
    Assembly,
    Context,
    JsonRecord,
    Parsed,
    PartsError,
    Reject,
    Surface,
    Tables,
    TraceAbout,
)
from tracelens.engines.rows import frame_of
from tracelens.engines.rtp_llm import access, debug, kmonitor, log, rounds, steps, timeline
from tracelens.engines.rtp_llm.runs import with_runs
from tracelens.engines.rtp_llm.surfaces import SURFACES
from tracelens.engines.units import BrokenError

__all__ = ["ENGINE"]


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
        from tracelens.engines.rtp_llm import plain  # its forms take a while to be declared

        parsed = Parsed()
        requests: dict[str, list[access.Row]] = {}
        step_rows: list[steps.Row] = []
        others = plain.take(records, parsed)
        for record in others:
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
            parsed.add(surface, frame_of(rows, access.SCHEMA))
        parsed.add(steps.SURFACE, frame_of(step_rows, steps.SCHEMA))
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        return self.parts(context.resolve).rest(frames, context)

    def parts(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> Assembly:
        """What puts a source together whose requests and steps come in parts."""
        return _Assembly(log.Records(resolve))


class _Assembly:
    """One source; see `tracelens.engines.base.Assembly`."""

    surfaces = log.SURFACES

    def __init__(self, records: log.Records) -> None:
        self._records = records

    def part(self, frames: Mapping[str, Sequence[pl.DataFrame]], source_id: str) -> Tables:
        return self._records.part({s: pl.concat(parts) for s, parts in frames.items() if parts}, source_id)

    def rest(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        if self._records.parted and frames.get(debug.CONFIG):
            raise PartsError("a configuration, which tells of the run of all records")
        tables = self._records.rest({s: pl.concat(frames[s]) for s in log.SURFACES if frames.get(s)}, context.source_id)
        rows, windows = [tables.rounds], [tables.windows]
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
        tables.rounds, tables.windows = log.joined(rows), log.joined(windows)
        return with_runs(tables, frames.get(debug.CONFIG, ()))


def _configured(frames: Mapping[str, Sequence[pl.DataFrame]]) -> int | None:
    """K, where all configuration dumps of the source agree on one."""
    found = {k for part in frames.get(debug.CONFIG, ()) for k in part["k"].drop_nulls().unique().to_list()}
    return found.pop() if len(found) == 1 else None


def _events(parts: Sequence[pl.DataFrame], context: Context) -> pl.DataFrame:
    """Events in file order with their stamps."""
    events = pl.concat(parts, how="diagonal").sort("line", maintain_order=True)
    return events.with_columns(context.resolve(events.select("stamp", "inner")).select("ts", "ts_basis"))


ENGINE = RtpLlmEngine()
