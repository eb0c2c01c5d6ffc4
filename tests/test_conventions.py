"""docs/conventions.md is what the simulation gives, and the bold figures are what tracelens makes of its rounds."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.report import report
from tracelens.analysis.session import Question
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest

DOCS = Path(__file__).parent.parent / "docs"
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the docs are beside the package, not in it")


@pytest.fixture(scope="module")
def conventions() -> Any:
    sys.path.insert(0, str(DOCS))
    try:
        import conventions as module
    finally:
        sys.path.remove(str(DOCS))
    return module


def test_the_page_shows_what_the_simulation_gives(conventions: Any) -> None:
    text = conventions.PAGE.read_text(encoding="utf-8")
    assert conventions.page(text) == text


def test_the_bold_figures_are_the_report_s(conventions: Any, tmp_path: Path) -> None:
    truth = conventions.simulate()
    start = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    with (tmp_path / "rounds.jsonl").open("w") as log:
        for i, (a, e, r) in enumerate(zip(truth.accepted, truth.emitted, truth.request, strict=True)):
            stamp = (start + dt.timedelta(milliseconds=i)).isoformat()
            row = {"ts": stamp, "request_id": f"request-{r}", "drafted": truth.k, "accepted": int(a), "emitted": int(e)}
            log.write(json.dumps(row) + "\n")
    ingest([str(tmp_path / "rounds.jsonl")], tmp_path / "lake", IngestOptions(jobs=1))
    figures = report(tmp_path / "lake", Question()).total.figures
    told = {name: value.strip("*") for engine, name, _, value in conventions.printed(truth) if "tracelens" in engine}
    names = ("draft_accept_ratio", "tau_verified", "tau_committed")
    assert {name: f"{figures[name]:.3f}" for name in names} == {
        name: next(v for key, v in told.items() if name in key) for name in names
    }
