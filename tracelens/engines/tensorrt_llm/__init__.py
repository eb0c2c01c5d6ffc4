"""TensorRT-LLM, PyTorch and C++ backends, 2025-04 to 2026-09: iteration stats, `print_iter_log`, request metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.tensorrt_llm import perf, steps
from tracelens.engines.units import BrokenError

__all__ = ["ENGINE"]

_KEYS: tuple[bytes, ...] = (steps.STATS_KEY, *perf.KEYS)
SURFACES = (
    Surface(
        steps.STATS,
        "iteration stats (one step)",
        "0.9-2026 (acceptance outside n-gram since 2025-12)",
        ("draft_accept_ratio", "tau_verified", "rho", "step_ms", "running"),
        "enable_iter_perf_stats: true, and poll GET /metrics more often than every 1000 iterations",
    ),
    Surface(
        steps.LOG,
        "print_iter_log (one step)",
        "2025-04-2026",
        ("step_ms", "running"),
        "print_iter_log: true in the LLM API options",
    ),
    Surface(
        perf.PERF,
        "perf_metrics-*.jsonl (one request)",
        "2025-08-2026 (acceptance on the PyTorch backend since 2026-07)",
        ("draft_accept_ratio", "tau_verified", "ttft_ms"),
        "return_perf_metrics: true and perf_metrics_output_dir: DIR, or GET /perf_metrics",
    ),
    Surface(
        perf.RESPONSE,
        "responses with choices[].speculative_decoding",
        "proposed 2026-09 (#19311)",
        ("draft_accept_ratio", "hazard", "rollback_len", "near_k_request_share", "tau_committed"),
        "per_request_spec_decode_stats: true, and log the responses",
    ),
)


class TensorRTLLM:
    """The TensorRT-LLM reader."""

    name = "tensorrt-llm"
    surfaces: Sequence[Surface] = SURFACES
    # The keys again: GET /metrics and /perf_metrics give an array a poll, and a log of polls has one a line.
    needles: Sequence[bytes] = (steps.LOG_NEEDLE, *_KEYS)
    json_keys: Sequence[bytes] = _KEYS

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
        rows, rejects = steps.log_rows(frame.filter(~arrays))
        parsed.add(steps.LOG, rows)
        parsed.rejects.extend(rejects)
        parsed.claimed += rows.height
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Iterations and finished requests."""
        parsed = Parsed()
        rows: dict[str, list[dict[str, Any]]] = {}
        for entry in records:
            found = list(_rows(entry))
            parsed.claimed += bool(found)
            for surface, row in found:
                if isinstance(row, BrokenError):
                    parsed.rejects.append(Reject(entry.line, str(row), surface, entry.offset))
                else:
                    rows.setdefault(surface, []).append(row)
        for surface, made in rows.items():
            schema = steps.STATS_SCHEMA if surface == steps.STATS else perf.SCHEMA
            parsed.add(surface, pl.DataFrame({c: [r.get(c) for r in made] for c in schema}, schema=schema))
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        tables = Tables()
        whole = {s: pl.concat(parts).sort("line", maintain_order=True) for s, parts in frames.items() if parts}
        for s, frame in whole.items():
            found = context.resolve(frame.select("stamp", "inner")).select("ts", "ts_basis")
            whole[s] = pl.concat([frame, found], how="horizontal")
        windows = [
            build(whole[s])
            for s, build in ((steps.STATS, steps.stats_windows), (steps.LOG, steps.log_windows))
            if s in whole
        ]
        requests = [perf.requests(s, whole[s], context.source_id) for s in (perf.PERF, perf.RESPONSE) if s in whole]
        tables.windows, tables.requests = _joined(windows), _joined(requests)
        return tables


def _rows(entry: JsonRecord) -> Iterator[tuple[str, dict[str, Any] | BrokenError]]:
    if not steps.is_stats(entry.value):
        yield from perf.rows_of(entry, entry.value)
        return
    try:
        yield steps.STATS, steps.stats_row(entry, entry.value)
    except BrokenError as fault:
        yield steps.STATS, fault


def _joined(parts: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    return pl.concat(parts, how="diagonal").sort("source_line", maintain_order=True) if parts else None


ENGINE = TensorRTLLM()
