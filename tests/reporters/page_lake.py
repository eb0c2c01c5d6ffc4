"""A small lake for the page: a run that speculates, one that does not, batches and contexts, a hostile class."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "analysis"))

from lakes import write_lake

from tracelens.analysis.claim import parse_claim
from tracelens.analysis.page import Page, page
from tracelens.analysis.session import Question

DAY = dt.datetime(2026, 5, 1, 10)
HOSTILE = "<script>alert(1)</script>\"'<b onclick=x>"
K = 4
#: Chance that one draft token is accepted, by class of traffic.
TASKS = {"chat": 0.45, "code": 0.9, HOSTILE: 0.7}
CLAIM = "alpha=.8,rho=.1,k=4"


def _rounds(repeat: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    found = []
    for n, (task, chance) in enumerate(TASKS.items()):
        for request in range(14):
            for j in range(8 * repeat):
                accepted = int(min(rng.geometric(1 - chance) - 1, K))
                found.append(
                    {"run_id": "k4", "ts": DAY + dt.timedelta(minutes=request, seconds=j / repeat),
                     "request_id": f"{n}-{request}", "task_type": task, "round_index": j, "drafted": K,
                     "accepted": accepted, "emitted": accepted + 1, "num_speculative_tokens": K, "model": "m",
                     "step_id": f"{n}-{request}-{j}", "step_share": 1.0, "batch_size": 1 + request % 3,
                     "context_len": 300 + 400 * (request % 2), "draft_us": 12_000 + int(rng.integers(900)),
                     "target_us": 20_500 + int(rng.integers(900)), "step_us": 36_000 + int(rng.integers(900))}
                )  # fmt: skip
    return found


def _plain() -> list[dict[str, Any]]:
    rng = np.random.default_rng(6)
    return [
        {"run_id": "off", "ts": DAY - dt.timedelta(hours=1), "request_id": f"p{n}-{request}", "task_type": task,
         "round_index": j, "drafted": 0, "accepted": 0, "emitted": 1, "model": "m", "batch_size": 1 + request % 3,
         "step_id": f"p{n}-{request}-{j}", "step_share": 1.0, "context_len": 300 + 400 * (request % 2),
         "step_us": 20_000 + int(rng.integers(500))}
        for n, task in enumerate(TASKS) for request in range(12) for j in range(10)
    ]  # fmt: skip


def lake(folder: Path, repeat: int = 1) -> Path:
    """Write the lake; with `repeat` every request has that many times its rounds."""
    return write_lake(
        folder,
        rounds=[*_rounds(repeat), *_plain()],
        runs=[
            {"run_id": "k4", "role": "speculative", "num_speculative_tokens": K, "method": "eagle3", "model": "m"},
            {"run_id": "off", "role": "baseline", "model": "m"},
        ],
    )


def asked(claim: str | None = CLAIM, **changed: Any) -> Question:
    """The question of the page; `baseline` is the run without speculation."""
    told: dict[str, Any] = {"baseline": "off", "claim": None if claim is None else parse_claim(claim)}
    return Question(**(told | changed))


def make(folder: Path, *, repeat: int = 1, claim: str | None = CLAIM) -> Page:
    """The page of that lake."""
    return page(lake(folder, repeat), asked(claim))
