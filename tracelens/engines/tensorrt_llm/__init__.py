"""TensorRT-LLM, PyTorch and C++ backends, 2025-04 to 2026-09.

Iteration stats, `print_iter_log`, request metrics with their steps, responses, Prometheus metrics, `trtllm-bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import Assembly, Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.parted import Assembled, Frames
from tracelens.engines.tensorrt_llm import bench, log, metrics, perf, request_steps, steps
from tracelens.engines.units import BrokenError
from tracelens.engines.versions import Range, Versions

__all__ = ["ENGINE"]

_KEYS: tuple[bytes, ...] = (steps.STATS_KEY, *perf.KEYS)
# Before, one drafter or backend alone wrote it, and not the one that most servers have.
_ACCEPTANCE = ("draft_accept_ratio", "tau_verified")
RECORDS = (
    Surface(
        steps.STATS,
        "iteration stats (one step)",
        Versions(
            Range("0.9", seen="2026"),
            " (acceptance outside n-gram since ",
            Range("2025-12", form="{first}", of=_ACCEPTANCE),
            ": zeros of before are no counts)",
        ),
        ("draft_accept_ratio", "tau_verified", "rho", "step_ms", "running"),
        "enable_iter_perf_stats: true, and poll GET /metrics more often than every 1000 iterations",
    ),
    Surface(
        steps.LOG,
        "print_iter_log (one step)",
        Versions(Range("2025-04", seen="2026")),
        ("step_ms", "running"),
        "print_iter_log: true in the LLM API options",
    ),
    Surface(
        request_steps.STEPS,
        "steps of perf_metrics-*.jsonl (one step)",
        Versions(Range("2025-10", seen="2026")),
        ("step_ms", "running"),
        "return_perf_metrics: true and perf_metrics_output_dir: DIR",
    ),
    Surface(
        perf.PERF,
        "perf_metrics-*.jsonl (one request)",
        Versions(
            Range("2025-08", seen="2026"),
            " (acceptance on the PyTorch backend since ",
            Range("2026-07", form="{first}", of=_ACCEPTANCE),
            ")",
        ),
        ("draft_accept_ratio", "tau_verified", "ttft_ms"),
        "return_perf_metrics: true and perf_metrics_output_dir: DIR, or GET /perf_metrics",
    ),
    Surface(
        perf.RESPONSE,
        "responses with choices[].speculative_decoding",
        Versions("proposed ", Range("2026-09", form="{first}"), " (#19311)"),
        ("draft_accept_ratio", "hazard", "rollback_len", "near_k_request_share", "tau_committed"),
        "per_request_spec_decode_stats: true, and log the responses",
    ),
)
SURFACES = (*metrics.SURFACES, *bench.SURFACES, *RECORDS)
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    steps.STATS: steps.STATS_SCHEMA,
    perf.PERF: perf.SCHEMA,
    perf.RESPONSE: perf.SCHEMA,
    **{s.name: bench.schema(s.name) for s in bench.SURFACES},
}


class TensorRTLLM:
    """The TensorRT-LLM reader."""

    name = "tensorrt-llm"
    surfaces: Sequence[Surface] = SURFACES
    # The keys again: GET /metrics and /perf_metrics give an array a poll, and a log of polls has one a line.
    needles: Sequence[bytes] = (steps.LOG_NEEDLE, *_KEYS)
    json_keys: Sequence[bytes] = (*_KEYS, *bench.KEYS)
    metric_prefixes: Sequence[str] = metrics.PREFIXES

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Lines of `print_iter_log`, and arrays of records."""
        arrays = pl.col("text").str.contains(r"^\s*\[\s*\{")
        listed = []
        parsed = Parsed()
        for line, offset, text, stamp, stream in (
            frame.filter(arrays).select("line", "offset", "text", "stamp", "stream").iter_rows()
        ):
            try:
                values = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                parsed.rejects.append(Reject(line, "broken JSON", None, offset))
                continue
            listed += [JsonRecord(line, offset, stamp, stream, v) for v in values if isinstance(v, dict)]
        parsed.merge(self.records(listed))
        logged, rejects = steps.log_rows(frame.filter(~arrays))
        parsed.add(steps.LOG, logged)
        parsed.rejects.extend(rejects)
        parsed.claimed += logged.height
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Iterations, finished requests with their steps, and results of benchmarks."""
        parsed = Parsed()
        made: dict[str, list[dict[str, Any]]] = {}
        timed = []
        for entry in records:
            found = list(_rows(entry, parsed.rejects))
            parsed.claimed += bool(found)
            for surface, row in found:
                if isinstance(row, BrokenError):
                    parsed.rejects.append(Reject(entry.line, str(row), surface, entry.offset))
                    continue
                made.setdefault(surface, []).append(row)
                record = perf.record_of(entry.value) if surface == perf.PERF else None
                if record is not None:
                    timed.append((entry, record, perf.drafts(record, row)))
        for surface, listed in made.items():
            parsed.add(surface, rows.frame_of(listed, _SCHEMAS[surface]))
        parsed.add(request_steps.STEPS, request_steps.frame(timed))
        return parsed

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Prometheus samples; see `tracelens.engines.tensorrt_llm.metrics`."""
        return metrics.parse(frame)

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        return self.parts(context.resolve).rest(frames, context)

    def parts(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> Assembly:
        """What puts a source together whose iterations and requests come in parts."""
        return Assembled(log.Log(resolve), log.SURFACES, _others, _whole)


def _others(whole: Mapping[str, pl.DataFrame], context: Context) -> Iterator[Tables]:
    reported = rows.whole({s: [frame] for s, frame in whole.items()}, bench.SURFACES, context)
    if reported:
        yield bench.assemble(reported, context)
    if metrics.METRICS in whole:
        yield metrics.assemble(whole[metrics.METRICS], context)


def _whole(frames: Mapping[str, Sequence[pl.DataFrame]]) -> Frames:
    return {s: pl.concat(parts, how="diagonal_relaxed") for s, parts in frames.items() if parts}


def _rows(entry: JsonRecord, rejects: list[Reject]) -> Iterator[tuple[str, dict[str, Any] | BrokenError]]:
    value = entry.value
    surface = steps.STATS if steps.is_stats(value) else bench.surface_of(value)
    if surface is None:
        yield from perf.rows_of(entry, value)
        return
    try:
        if surface == steps.STATS:
            yield surface, steps.stats_row(entry, value)
        else:
            yield surface, bench.row(entry, surface, rejects) | rows.place(entry)
    except BrokenError as fault:
        yield surface, fault


ENGINE = TensorRTLLM()
