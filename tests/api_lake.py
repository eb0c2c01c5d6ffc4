"""A small lake with two runs that speculate and one that does not, for the tests of the Python API and of Parquet."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "analysis"))

from lakes import write_lake

DAY = dt.datetime(2026, 5, 1, 10)
HOSTILE = "<script>alert('x')</script>"
CLAIM = "alpha=.72,rho=.1,k=5"
#: Chance that one draft token is accepted, by class of traffic.
TASKS = {"chat": 0.55, "code": 0.85, HOSTILE: 0.7, None: 0.7}


def _speculating(run: str, k: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for task, chance in TASKS.items():
        for request in range(8):
            for j in range(6):
                accepted = int(min(rng.geometric(1 - chance) - 1, k))
                step = 2_000 * k + 11_000 + int(rng.integers(900))
                found.append(
                    {"run_id": run, "ts": DAY + dt.timedelta(minutes=request), "request_id": f"{run}-{task}-{request}",
                     "task_type": task, "round_index": j, "drafted": k, "accepted": accepted, "emitted": accepted + 1,
                     "num_speculative_tokens": k, "model": "m", "draft_us": 2_000 * k, "target_us": 10_500,
                     "step_us": step}
                )  # fmt: skip
    return found


def _plain() -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [
        {"run_id": "off", "ts": DAY, "request_id": f"off-{i}", "task_type": "code", "round_index": j, "drafted": 0,
         "accepted": 0, "emitted": 1, "step_us": 10_000 + int(rng.integers(400)), "model": "m"}
        for i in range(8) for j in range(5)
    ]  # fmt: skip


def make(folder: Path) -> Path:
    """Write the lake."""
    runs = [
        {"run_id": "k5", "role": "speculative", "num_speculative_tokens": 5, "method": "eagle3"},
        {"run_id": "k3", "role": "speculative", "num_speculative_tokens": 3, "method": "eagle3"},
        {"run_id": "off", "role": "baseline"},
    ]
    rounds = [*_speculating("k5", 5, 1), *_speculating("k3", 3, 2), *_plain()]
    return write_lake(folder, rounds=rounds, runs=runs)
