"""The bar of a long answer: on a terminal only, for long work only, and gone when the answer comes."""

from __future__ import annotations

import io
import sys
import time

import pytest

from tracelens.cli import waiting
from tracelens.lake import progress


class Terminal(io.StringIO):
    """What rich takes for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 0.02)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def _work(seconds: float) -> None:
    progress.expect(4)
    progress.holds(1000)
    progress.step()
    progress.step()
    time.sleep(seconds)


def test_a_terminal_sees_share_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with waiting.waiting():
        _work(0.6)
    assert "reading the lake" in screen.getvalue()
    assert "50%" in screen.getvalue()
    assert "records/s" in screen.getvalue()


def test_a_quick_answer_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 30.0)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with waiting.waiting():
        _work(0.0)
    assert screen.getvalue() == ""


def test_a_pipe_sees_nothing_and_nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    with waiting.waiting():
        _work(0.2)
        assert progress._current.get() is None
    assert screen.getvalue() == ""


def test_an_error_passes_and_takes_the_bar_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError), waiting.waiting():
        _work(1 / 0)
    assert progress._current.get() is None
