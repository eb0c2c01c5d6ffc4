"""The two queries of a comparison: step times with their variances, and the mix of traffic."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bare import bare, rows, total
from lakes import write_lake

from tracelens.model.intervals import two_way_variance


def traffic() -> list[dict[str, Any]]:
    """Requests of two classes in steps of three rows; the rest of a step is no fixed part of it."""
    rng = random.Random(4)
    found = []
    for i in range(30):
        for j in range(12):
            draft, verify = rng.randint(6000, 9000), rng.randint(18_000, 24_000)
            found.append(
                {"request_id": f"r{i:02}", "task_type": ("code", "chat")[i % 2], "step_id": f"{i // 3}-{j}",
                 "step_share": 1 / 3, "batch_size": 2 + 2 * (i % 2), "drafted": 4, "accepted": j % 5,
                 "draft_us": draft, "target_us": verify, "step_us": draft + verify + rng.randint(500, 4000)}
            )  # fmt: skip
    return found


def test_step_times_are_clustered_both_ways(tmp_path: Path) -> None:
    data = traffic()
    found = total(bare(write_lake(tmp_path, rounds=data)), "step_times")
    times = {name: np.array([row[f"{name}_us"] / 1000 for row in data]) for name in ("draft", "target", "step")}
    times["other"] = times["step"] - times["draft"] - times["target"]
    unit, step = ([row[name] for row in data] for name in ("request_id", "step_id"))
    for name, values in times.items():
        expected = two_way_variance(values, np.ones(values.size), unit, step)
        assert found[f"{name}_ms"] == pytest.approx(values.mean())
        assert found[f"{name}_var"] == pytest.approx(expected)
    assert found["units"] == pytest.approx(30)


def test_step_times_leave_prefill_out_and_know_what_is_missing(tmp_path: Path) -> None:
    data = [{**row, "target_us": None} for row in traffic()]
    prefill = {"request_id": "r00", "drafted": 4, "accepted": 0, "step_us": 10**9, "has_prefill": True}
    found = total(bare(write_lake(tmp_path, rounds=[*data, prefill])), "step_times")
    assert found["step_ms"] == pytest.approx(np.mean([row["step_us"] for row in data]) / 1000)
    assert (found["target_ms"], found["other_ms"], found["target_var"], found["other_var"]) == (None,) * 4
    assert found["step_var"] > 0


def test_the_mix_adds_up(tmp_path: Path) -> None:
    found = rows(bare(write_lake(tmp_path, rounds=traffic())), "mix")
    assert {row["batch_bucket"] for row in found} == {"0002", "0003-0004"}
    whole = [row["rounds"] for row in found if row["stratum"] is None]
    classes = [row["rounds"] for row in found if row["stratum"] is not None]
    assert sum(whole) == sum(classes) == 360
    assert all(row["price"] is None for row in found), "a bare DuckDB has no prices"
