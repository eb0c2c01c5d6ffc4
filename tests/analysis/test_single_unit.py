"""One request alone has no spread to tell: its costs get no interval and so no verdict."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from lakes import write_lake

from tracelens.analysis.report import ReportOptions, report

DAY = dt.datetime(2026, 11, 1, 10)


def lake(folder: Path, requests: int) -> Path:
    rounds = [
        {"ts": DAY, "request_id": f"r{i}", "task_type": "t", "round_index": j, "drafted": 5, "accepted": j % 6,
         "emitted": j % 6 + 1, "draft_us": 8000, "target_us": 18_000, "step_us": 27_000 + 500 * ((i + j) % 7)}
        for i in range(requests)
        for j in range(30)
    ]  # fmt: skip
    return write_lake(folder, rounds=rounds)


@pytest.mark.parametrize(("requests", "known"), [(1, False), (4, True)])
def test_a_cost_needs_two_units(tmp_path: Path, requests: int, known: bool) -> None:
    figures = report(lake(tmp_path, requests), ReportOptions(baseline=20.0)).total.figures
    assert figures["relative_token_time"] == pytest.approx(28.5 / 20 / 3.5, rel=0.05)
    for name in ("relative_token_time", "round_cost", "speedup_step"):
        assert (figures[f"{name}_low"] is not None, figures[f"{name}_high"] is not None) == (known, known), name
