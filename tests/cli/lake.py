"""A tiny lake, written straight from the schemas."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracelens.lake.schema import FACTS, TABLES, table

HOSTILE = '<img src=x onerror="alert(1)">\x1b[31m|`=x'


def make(lake: Path) -> Path:
    """Make an empty lake with a few windows in it."""
    for name in TABLES:
        folder = lake / name / ("date=__HIVE_DEFAULT_PARTITION__" if name in FACTS else "")
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(name).arrow_schema().empty_table(), folder / "empty.parquet")
    counted = [_window(i, task) for i, task in enumerate(["code", "=1+1", HOSTILE])]
    windows = [*counted, *(_engine_line(window) for window in counted)]
    folder = lake / "windows" / "date=2026-05-01"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(windows, schema=table("windows").arrow_schema()), folder / "s-0.parquet")
    return lake


def _window(i: int, task: str) -> dict[str, Any]:
    return {
        "run_id": "run-a",
        "engine": "vllm",
        "surface": "vllm.v1_line",
        "source_id": "s",
        "source_line": i,
        "task_type": task,
        "num_speculative_tokens": 3,
        "ts_end": datetime(2026, 5, 1, 10, 0, 10 + i),
        "window_us": 10_000_000,
        "rounds": 100,
        "drafted": 300,
        "accepted": 160,
        "accepted_per_pos": [80, 50, 30],
        "labels": [("team", "a")],
    }


def _engine_line(window: dict[str, Any]) -> dict[str, Any]:
    """The line that vLLM prints beside its acceptance line: it counts no draft."""
    kept = ("run_id", "engine", "source_id", "task_type", "ts_end", "window_us")
    return {name: window[name] for name in kept} | {"surface": "vllm.engine_line", "running": 4, "source_line": 100}
