"""Small logs of a server and its gateway, and what is in a lake after them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tracelens.ingest.options import IngestOptions, Summary
from tracelens.ingest.run import ingest
from tracelens.lake.schema import TABLES

PREFIX = "(APIServer pid={pid}) INFO 05-06 {clock} [loggers.py:335] "


def start(clock: str = "12:00:00", k: int = 3, pid: int = 1) -> str:
    config = {"method": "eagle3", "model": "/heads/e3", "num_speculative_tokens": k}
    return (
        PREFIX.format(pid=pid, clock=clock) + f"non-default args: {{'model': '/m/big', 'speculative_config': {config}}}"
    )


def interval(clock: str, accepted: int = 160, drafted: int = 300, pid: int = 1) -> str:
    return PREFIX.format(pid=pid, clock=clock) + (
        f"SpecDecoding metrics: Draft acceptance rate: 50.0%, Accepted: {accepted} tokens, Drafted: {drafted} tokens"
    )


def received(request: str, temperature: float = 0.7, clock: str = "12:00:01") -> str:
    return PREFIX.format(pid=1, clock=clock) + (
        f"Received request {request}: params: SamplingParams(n=1, temperature={temperature}, top_p=0.9), x: None."
    )


def response(request: str = "chatcmpl-sum.1", steps: tuple[int, ...] = (0, 3, 1), **more: Any) -> dict[str, Any]:
    spec = {
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": sum(steps),
        "num_draft_tokens": 3 * len(steps),
        "num_spec_tokens": 3,
        "acceptance_histogram": [steps.count(j) for j in range(4)],
        "per_step_accepted": list(steps),
        "per_step_drafted": [3] * len(steps),
    }
    metrics = {"time_to_first_token_ms": 20.0, "generation_time_ms": 100.0, "speculative_decoding": spec}
    usage = {"prompt_tokens": 9, "completion_tokens": 1 + sum(steps) + len(steps)}
    return {"id": request, "created": 1_778_068_800, "model": "big", "usage": usage, "metrics": metrics} | more


def log(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def jsonl(*records: Any) -> str:
    return "".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records)


def run(lake: Path, *paths: Path | str, **options: Any) -> Summary:
    """Ingest in this process, with the year of the small logs."""
    return ingest([str(p) for p in paths], lake, IngestOptions(**({"year": 2026, "jobs": 1} | options)))


def table(lake: Path, name: str, *columns: str) -> list[Any]:
    """Rows of a table in the order of source and line: dicts, or tuples of the columns asked for."""
    found: list[dict[str, Any]] = []
    for path in sorted((lake / name).rglob("*.parquet")):
        found += pq.ParquetFile(path).read().to_pylist()
    found.sort(key=lambda r: (r.get("source_line") or r.get("line") or 0, r.get("round_index") or 0))
    return [tuple(r[c] for c in columns) for r in found] if columns else found


def everything(lake: Path) -> dict[str, list[str]]:
    """Every row of every table as text, sorted, without what tells of the ingest itself."""
    volatile = {"ingested_at", "replaces", "also_named", "same_as"}
    return {
        name: sorted(repr({k: v for k, v in row.items() if k not in volatile}) for row in table(lake, name))
        for name in TABLES
    }


def stored(lake: Path) -> dict[str, bytes]:
    """Every file of the lake."""
    return {
        p.relative_to(lake).as_posix(): p.read_bytes()
        for p in lake.rglob("*")
        if p.is_file() and not p.is_relative_to(lake / ".staging")
    }
