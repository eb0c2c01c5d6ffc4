"""The example of the recorder: its report finds what was planted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracelens
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.recorders import Recorder

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))

import toy_loop


class ToyClock:
    """A device on which a pass takes what was planted, however busy the machine is."""

    basis = "device"

    def __init__(self) -> None:
        self.ms = 0.0

    def work(self, ms: float) -> None:
        self.ms += ms

    def mark(self) -> float:
        return self.ms

    def is_ready(self, mark: float) -> bool:
        return True

    def elapsed_us(self, start: float, end: float) -> int:
        return round((end - start) * 1000)

    def release(self, mark: float) -> None:
        pass


def test_the_report_finds_the_planted_truth(tmp_path: Path) -> None:
    clock = ToyClock()
    toy_loop.run(tmp_path / "records", work=clock.work, clock=clock)
    lake = tmp_path / "lake"
    assert ingest([str(tmp_path / "records")], lake, IngestOptions(jobs=1)).rejects == 0
    report = tracelens.open(lake).report(by="task_type", run="toy")
    strata = {row["task_type"]: row for row in report.to_polars().to_dicts() if row["row"] == "stratum"}
    for task, a in toy_loop.TASKS.items():
        found = strata[task]
        # 40 requests of one seed: 4 standard errors of the mean over some hundred rounds.
        assert found["draft_accept_ratio"] == pytest.approx(toy_loop.planted(a), abs=0.06)
        assert found["rho_verify"] == pytest.approx(toy_loop.DRAFT_MS / toy_loop.TARGET_MS, rel=1e-6)
    with connect(lake, keep=True) as db:
        # Every request is whole: one token before the rounds, all others in them.
        whole = "select min(n), max(n) from (select 1 + sum(emitted) as n from rounds group by run_id, request_id)"
        assert db.execute(whole).fetchone() == (48, 48)


def test_drawing_a_token_is_in_no_pass(tmp_path: Path) -> None:
    clock = ToyClock()

    class SlowDraws:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(3)

        def choice(self, *args: Any, **kwargs: Any) -> Any:
            clock.work(50.0)
            return self.rng.choice(*args, **kwargs)

        def random(self) -> float:
            return self.rng.random()

    with Recorder(tmp_path, clock=clock) as recorder:
        toy_loop.speculate(recorder, 2, 20, SlowDraws(), clock.work)  # type: ignore[arg-type]
    (path,) = tmp_path.glob("*.jsonl")
    rounds = [row for row in map(json.loads, path.read_text().splitlines()) if row["record"] == "round"]
    assert {(row["draft_us"], row["target_us"]) for row in rounds} == {(400, 1000)}


def test_matrix_work_takes_its_time() -> None:
    import time

    begun = time.perf_counter()
    toy_loop.matrix_work(3.0)
    assert time.perf_counter() - begun >= 0.003
