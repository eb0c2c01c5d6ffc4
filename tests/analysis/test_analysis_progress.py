"""The plan behind the bar of a long answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from lakes import write_lake

from tracelens.analysis.page import page
from tracelens.analysis.report import report
from tracelens.analysis.session import Question
from tracelens.lake import progress

ROUNDS = [
    {"request_id": f"r{i % 40}", "round_index": i // 40, "drafted": 4, "accepted": i % 5, "emitted": i % 5 + 1}
    for i in range(400)
]


@pytest.mark.long
def test_answers_take_about_as_many_queries_as_they_plan(tmp_path: Path) -> None:
    write_lake(tmp_path, rounds=ROUNDS)
    for answer in (report, page):
        with progress.told() as waiting:
            answer(tmp_path, Question())
        assert waiting.records == 400
        assert 0.5 < waiting.done / waiting.planned < 1.3
