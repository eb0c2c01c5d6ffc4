"""Canonical rounds of an engine tracelens has never heard of: the names of SCHEMA.md, durations in ms."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from .files import at, dumps, write_lines
from .simulator import Simulation


def rows(sim: Simulation, run_id: str, start: datetime) -> list[dict[str, Any]]:
    """One object a round, in the order of the steps. A baseline's rows have no draft time."""
    out: list[dict[str, Any]] = []
    for r in np.argsort(sim.step, kind="stable").tolist():
        index, step = int(sim.request[r]), int(sim.step[r])
        task = sim.tasks[int(sim.requests.task[index])]
        row: dict[str, Any] = {
            "record": "round",
            "ts": f"{at(start, int(sim.steps.start_us[step])):%Y-%m-%dT%H:%M:%S.%fZ}",
            "run_id": run_id,
            "engine": sim.site.engine,
            "request_id": f"{run_id}-{index:03d}",
            "round_index": int(sim.round_index[r]),
            "step_id": f"s{step}",
            "task_type": task.name,
            "temperature": task.temperature,
            "top_p": task.top_p,
            "batch_size": int(sim.steps.batch[step]),
            "context_len": int(sim.context_len[r]),
            "drafted": int(sim.drafted[r]),
            "accepted": int(sim.accepted[r]),
            "emitted": int(sim.emitted[r]),
        }
        if sim.k:
            row["draft_ms"] = int(sim.steps.draft_us[step]) / 1000
        row["target_ms"] = int(sim.steps.target_us[step]) / 1000
        row["sample_ms"] = int(sim.steps.sampler_us[step]) / 1000
        row["step_ms"] = int(sim.steps.step_us[step]) / 1000
        row["has_prefill"] = bool(sim.steps.prefills[step])
        out.append(row)
    return out


def write_run(sim: Simulation, path: Path, run_id: str, start: datetime) -> None:
    """A run record, then the rounds."""
    run: dict[str, Any] = {
        "record": "run",
        "run_id": run_id,
        "engine": sim.site.engine,
        "engine_version": "1.4.0",
        "model": sim.site.model,
        "tensor_parallel": 4,
        "role": "speculative" if sim.k else "baseline",
        "started": f"{start:%Y-%m-%dT%H:%M:%SZ}",
    }
    if sim.k:
        run |= {"draft_model": sim.site.draft_model, "method": sim.site.method, "num_speculative_tokens": sim.k}
    write_lines(path, (dumps(row) for row in [run, *rows(sim, run_id, start)]))
