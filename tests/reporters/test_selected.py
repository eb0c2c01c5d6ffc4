"""Every format says what was selected, and nothing that was not asked for."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from tracelens.analysis.page import Page
from tracelens.analysis.results import Report
from tracelens.analysis.session import Question
from tracelens.reporters import charts, selected
from tracelens.reporters.charts.whole import whole
from tracelens.reporters.views import view

from . import fixture, test_compare, test_sweep_snapshots, why_fixture
from .test_parquet import parquet

ASKED = Question(
    runs=("k5",), where="task_type = 'a'", since=dt.datetime(2026, 5, 1), until=dt.datetime(2026, 5, 2, 12, 30),
    baseline="off", near_k_delta=2,
)  # fmt: skip
LINE = (
    "Selected: run k5; where task_type = 'a'; from 2026-05-01 00:00 UTC; before 2026-05-02 12:30 UTC; baseline off; "
    "near-K: at most 2 kept."
)
ANSWERS: dict[str, Callable[[], Any]] = {
    "report": fixture.report, "gap": why_fixture.gap, "gate": why_fixture.gate,
    "sweep": test_sweep_snapshots.result, "compare": test_compare.comparison,
}  # fmt: skip


def text(command: str, chosen: str, question: Question) -> str:
    out = io.StringIO()
    answer = dataclasses.replace(ANSWERS[command](), selection=question.selection())
    view(command).render(answer, chosen, out, width=400)
    return out.getvalue()


def test_line() -> None:
    assert selected.line(ASKED.selection()) == LINE
    assert selected.line(Question().selection()) == selected.line({}) == ""
    assert selected.line(Question(baseline=21.5, runs=("a", "b")).selection()) == (
        "Selected: runs a, b; baseline 21.5 ms."
    )
    assert "\n" not in selected.line(Question(where="a =\n\x1b[31m1").selection())


@pytest.mark.parametrize("command", ANSWERS)
def test_every_text_says_it_once_below_the_answer(command: str) -> None:
    lines = text(command, "table", ASKED).splitlines()
    assert lines.count(LINE) == 1
    assert lines.index(LINE) <= 2
    assert "Selected" not in text(command, "table", Question())
    told = text(command, "markdown", ASKED)
    assert told.count("<sub>Selected: run k5; where task_type = 'a';") == 1
    assert "Selected" not in text(command, "markdown", Question())
    assert "Selected" not in text(command, "csv", ASKED)


@pytest.mark.parametrize("command", ANSWERS)
def test_json_and_parquet_hold_it(command: str) -> None:
    want = {"run": ["k5"], "where": "task_type = 'a'", "since": "2026-05-01T00:00:00Z",
            "until": "2026-05-02T12:30:00Z", "baseline": "off", "near_k": 2}  # fmt: skip
    document = json.loads(text(command, "json", ASKED))
    assert document["selection"] == want
    assert document["schema_version"] == 1
    answer = dataclasses.replace(ANSWERS[command](), selection=ASKED.selection())
    metadata = parquet(command, answer).schema.metadata
    assert json.loads(metadata[b"tracelens.answer"])["selection"] == want


def test_the_page_and_its_pictures_hold_it(shown: Page, written: str) -> None:
    assert "Selected: baseline off." in written
    spec = whole(charts.pick(shown, "alpha")).to_dict()
    first, second, *_ = spec["title"]["subtitle"]
    assert first == "k4 · vllm · m · 2026-05-01 10:00 to 10:13 UTC"
    assert second == "Selected: baseline off."
    alone = whole(charts.pick(shown.gate)).to_dict()
    assert "Selected: baseline off." in alone["title"]["subtitle"]


def test_an_answer_of_nothing_blames_what_was_given() -> None:
    from tracelens.reporters.answer import answer

    none = dataclasses.replace(fixture.nothing_measured(), selection=Question(where="a", runs=("x",)).selection())
    assert answer(none) == ["Nothing to report: no record with a figure meets --where and --run."]
    bare: Report = dataclasses.replace(none, selection={}, coverage=())
    assert answer(bare) == ["Nothing to report: these records hold no figure."]
