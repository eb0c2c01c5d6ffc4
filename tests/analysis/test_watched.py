"""What a watch sees between two commits."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pytest
from lakes import write_lake

import tracelens.analysis.watched as watched_module
from tracelens.analysis.session import Question
from tracelens.analysis.watched import Freshness, Watched, freshness, watched
from tracelens.errors import InputError

LAST = dt.datetime(2026, 5, 6, 12, 3, 10)
ROWS = {
    "rounds": [{"ts": LAST, "drafted": 5, "accepted": 3, "emitted": 4, "labels": {"team": "a"}}],
    "runs": [{"run_id": "run", "ended": LAST}, {"run_id": "old", "ended": LAST - dt.timedelta(days=1)}],
    "sources": [
        {"name": "a.log", "rejects": 2, "rows": {"rounds": 1, "runs": 1}},
        {"name": "b.log", "rejects": 1, "rows": {"windows": 4}},
        {"name": "c.log", "rows": {}},
    ],
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return write_lake(tmp_path / "lake", **ROWS)


def test_an_empty_lake(tmp_path: Path) -> None:
    lake = write_lake(tmp_path)
    assert freshness(lake) == Freshness()
    assert watched(lake, Question(by=("nonsense",))) == Watched(Freshness(), None, "no record yet")


def test_rows_and_rejects_come_from_the_ledger(lake: Path) -> None:
    assert freshness(lake) == Freshness(LAST, 3, 1, 4, 0, 3)


def test_a_question_that_never_fitted_is_an_error(lake: Path) -> None:
    with pytest.raises(InputError, match="nonsense"):
        watched(lake, Question(by=("nonsense",)))


def test_a_question_that_fits_no_more_is_told(lake: Path) -> None:
    seen = watched(lake, Question(by=("task_type",)))
    assert seen.report is not None
    assert seen.report.total.figures["accepted"] == 3
    again = watched(lake, Question(by=("nonsense",)), seen)
    assert again.report is None
    assert "nonsense" in again.problem
    assert watched(lake, Question(by=("nonsense",)), again) == again
    assert watched(lake, Question(), again).report is not None


@pytest.mark.long
def test_a_report_names_the_run_engine_and_model_that_it_is_of(tmp_path: Path) -> None:
    row = {"drafted": 5, "accepted": 3, "emitted": 4, "engine": "vllm", "model": "m"}
    rows = [{**row, "run_id": "a"}, {**row, "run_id": "b", "model": "n"}, {**row, "run_id": "off", "engine": "x"}]
    runs = [{"run_id": "off", "role": "baseline"}]
    lake = write_lake(tmp_path, rounds=rows, runs=runs, sources=[{"name": "a", "rows": {"rounds": 3}}])
    for where, setting in (
        (None, {"engine": "vllm"}),
        ("run_id = 'a'", {"run": "a", "engine": "vllm", "model": "m"}),
        ("false", {}),
    ):
        seen = watched(lake, Question(where=where)).report
        assert seen is not None
        assert seen.setting == setting


def test_a_file_that_another_process_replaces_is_no_end(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise duckdb.IOException("no such file")

    seen = watched(lake, Question())
    monkeypatch.setattr(watched_module, "report", gone)
    assert "another process" in watched(lake, Question(), seen).problem
    with pytest.raises(duckdb.IOException):
        watched(lake, Question())
