"""What a person or a program gets, byte for byte. TRACELENS_UPDATE_SNAPSHOTS=1 writes the files anew: read the diff."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from tracelens.reporters import reporter
from tracelens.reporters.terminal import TerminalReporter

from .fixture import by_two, nothing_measured, report

SNAPSHOTS = Path(__file__).parent / "snapshots"

CASES = {
    "report-80.txt": (report, TerminalReporter(80)),
    "report-160.txt": (report, TerminalReporter(160)),
    "report-40.txt": (report, TerminalReporter(40)),
    "report.md": (report, reporter("markdown")),
    "report.csv": (report, reporter("csv")),
    "report.json": (report, reporter("json")),
    "two-keys-80.txt": (by_two, TerminalReporter(80)),
    "two-keys-160.txt": (by_two, TerminalReporter(160)),
    "nothing-80.txt": (nothing_measured, TerminalReporter(80)),
    "nothing.md": (nothing_measured, reporter("markdown")),
    "nothing.json": (nothing_measured, reporter("json")),
}


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", CASES)
def test_snapshot(name: str) -> None:
    make, shown = CASES[name]
    out = io.StringIO()
    shown.render(make(), out)
    path = SNAPSHOTS / name
    if os.environ.get("TRACELENS_UPDATE_SNAPSHOTS"):
        path.write_text(out.getvalue(), encoding="utf-8", newline="")
    assert out.getvalue() == path.read_bytes().decode("utf-8")
