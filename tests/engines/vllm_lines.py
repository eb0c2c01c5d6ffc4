"""vLLM's text as its releases print it (formats: vLLM, sections 1 to 5), and a source made of lines and records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.vllm import ENGINE
from tracelens.lake.schema import table
from tracelens.sources.clocks import resolve

LINES = dict.fromkeys(("text", "stamp", "stream", "process"), pl.String)
OLD = "INFO 05-06 12:00:{:02d} metrics.py:229] "
BRACKET = "INFO 05-06 12:00:{:02d} [metrics.py:489] "
API = "(APIServer pid=1) INFO 05-06 12:00:{:02d} [loggers.py:335] "
CORE = "(EngineCore_DP{} pid=9) INFO 05-06 12:00:{:02d} [core.py:349] "


def at(second: int, minute: int = 0) -> datetime:
    return datetime(2026, 5, 6, 12, minute, second)


def c_line(accepted: int, drafted: int, per_pos: Sequence[int], rounds: int, seconds: float = 10.0) -> str:
    """Form C (0.10.2 to 0.33) as vLLM computes it."""
    mal = 1 + accepted / rounds
    rates = ", ".join(f"{c / rounds:.3f}" for c in per_pos)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {mal:.2f}, "
        f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    )


def v0_line(k: int, matched: int, drafted: int, emitted: int, doubled: bool = False) -> str:
    word = " tokens" if doubled else ""
    return (
        "Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, "
        f"Number of speculative tokens: {k}, Number of accepted tokens: {matched}, "
        f"Number of draft tokens{word}: {drafted}, Number of emitted tokens{word}: {emitted}."
    )


def engine_line(engine: int, running: int = 3, waiting: int = 1, kv: float = 5.1, tput: float = 60.0) -> str:
    return (
        f"Engine {engine:03d}: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: {tput} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {kv}%, Prefix cache hit rate: 0.0%"
    )


def iteration(number: int, requests: int, tokens: int, ms: float, context: tuple[int, int] = (0, 0)) -> str:
    return (
        f"Iteration({number}): {context[0]} context requests, {context[1]} context tokens, {requests} generation "
        f"requests, {tokens} generation tokens, iteration elapsed time: {ms:.2f} ms"
    )


def parsed_lines(*texts: str, stream: str | None = None, process: str | None = None) -> Parsed:
    rows = [
        (i, 100 * i, text, None, stream, process)
        for i, text in enumerate(texts, 1)
        if any(needle.decode() in text for needle in ENGINE.needles)
    ]
    frame = pl.DataFrame(rows, schema={"line": pl.Int64, "offset": pl.Int64, **LINES}, orient="row")
    return ENGINE.lines(frame)


def ingest(*entries: Any, stream: str | None = None, stamp: str | None = None) -> tuple[Tables, list[Reject]]:
    """Text lines and records (dicts) as one source, each in a block of its own."""
    parsed = Parsed()
    for i, entry in enumerate(entries, 1):
        if isinstance(entry, dict):
            parsed.merge(ENGINE.records([JsonRecord(i, 100 * i, stamp, stream, entry)]))
        elif any(needle.decode() in entry for needle in ENGINE.needles):
            frame = pl.DataFrame(
                [(i, 100 * i, entry, stamp, stream, None)],
                schema={"line": pl.Int64, "offset": pl.Int64, **LINES},
                orient="row",
            )
            parsed.merge(ENGINE.lines(frame))
    tables = ENGINE.assemble(parsed.frames, Context("src", lambda f: resolve(f, tz="UTC", year=2026, mtime=None)))
    check(tables)
    return tables, parsed.rejects + tables.rejects


def check(tables: Tables) -> None:
    """Canonical columns of the right type, and every identity of SCHEMA.md."""
    for name in ("rounds", "windows", "requests", "runs"):
        frame = getattr(tables, name)
        if frame is None:
            continue
        types = table(name).polars_schema()
        own = {
            "run_key": pl.Int64(),
            "first_line": pl.Int64(),
            "stream": pl.String(),
            "start_key": pl.String(),
            "forced_acceptance": pl.Boolean(),
        }
        # The pipeline narrows whole numbers; that they fit is checked below, by casting.
        wide = {c: pl.Int64() if t == pl.Int32() else t for c, t in types.items()}
        wrong = {c: t for c, t in frame.schema.items() if t not in ((types | own).get(c), wide.get(c), pl.Null())}
        assert wrong == {}
        if name == "runs":
            continue
        full = frame.select(pl.col(c).cast(t) for c, t in types.items() if c in frame.columns)
        full = full.with_columns(pl.lit(None, t).alias(c) for c, t in types.items() if c not in frame.columns)
        assert broken_identities(name, full).drop_nulls().to_list() == []


def shown(frame: pl.DataFrame | None, *columns: str) -> list[tuple[Any, ...]]:
    assert frame is not None
    return frame.select(columns).rows()


def only(frame: pl.DataFrame | None) -> dict[str, Any]:
    """The single row, without what it does not know."""
    assert frame is not None
    assert frame.height == 1
    return {k: v for k, v in frame.to_dicts()[0].items() if v is not None}
