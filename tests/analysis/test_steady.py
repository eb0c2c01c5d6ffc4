"""Equal lakes give equal figures, to the last digit."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from lakes import Row, write_lake

from tracelens import api
from tracelens.analysis import selection
from tracelens.analysis.sql import ask, sql_of
from tracelens.lake.connection import connect

TIMES = 3  # with two threads every one of 20 answers was another
CLAIM = "alpha=.72,rho=.1,k=5"


def rounds() -> list[Row]:
    """Two runs of eight days (a file each), batches that share their steps, and a baseline."""
    rng = random.Random(7)
    found: list[Row] = []
    for day in range(8):
        for i in range(120):
            run, task = rng.choice(("k3", "k5")), rng.choice(("chat", "code", "math"))
            k, batch = int(run[1]), rng.choice((1, 3, 7))
            accepted = rng.randint(0, k)
            found.append({
                "ts": dt.datetime(2026, 5, 1 + day, 12) + dt.timedelta(seconds=i), "run_id": run, "task_type": task,
                "request_id": f"{run} {task} {rng.randrange(40)}", "round_index": i, "step_id": f"{day} {i // 3}",
                "step_share": 1 / batch, "batch_size": batch, "context_len": rng.randrange(2000), "drafted": k,
                "accepted": accepted, "emitted": accepted + 1, "draft_us": rng.randrange(3_001, 9_000),
                "target_us": rng.randrange(15_003, 22_000), "step_us": rng.randrange(25_007, 33_000),
                "num_speculative_tokens": k, "weight": rng.choice((1.0, 1.3)),
            })  # fmt: skip
            found.append({
                "ts": dt.datetime(2026, 5, 1 + day, 13), "run_id": "off", "task_type": task, "drafted": 0,
                "accepted": 0, "emitted": 1, "request_id": f"off {task} {rng.randrange(40)}", "round_index": i,
                "batch_size": batch, "step_us": rng.randrange(19_001, 23_000),
            })  # fmt: skip
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [{"run_id": "off", "role": "baseline"}]
    return write_lake(tmp_path_factory.mktemp("steady") / "lake", rounds=rounds(), runs=runs)


def test_a_report_is_the_same_every_time(folder: Path) -> None:
    lake = api.open_lake(folder)
    assert len({lake.report().to_json() for _ in range(TIMES)}) == 1


@pytest.mark.parametrize("command", ["gap", "sweep", "gate", "compare"])
@pytest.mark.long
def test_so_is_every_other_answer(command: str, folder: Path) -> None:
    lake = api.open_lake(folder)
    given: dict[str, Any] = {"gap": {"claim": CLAIM}, "compare": {"a": "k3", "b": "k5"}}.get(command, {})
    assert len({getattr(lake, command)(**given).to_json() for _ in range(2)}) == 1


def test_and_a_named_query(folder: Path) -> None:
    text = sql_of("near_k")
    assert len({str(list(ask(folder, text)[1])) for _ in range(TIMES)}) == 1


def test_a_large_lake_keeps_its_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, small in ((1920, True), (1919, False)):
        monkeypatch.setattr(selection, "SMALL", most)
        con = connect(folder, grouped=False)
        con.execute("set threads = 3")
        assert selection.steady(con) is small
        assert con.execute("select current_setting('threads')").fetchall() == [(1 if small else 3,)]
        con.close()
