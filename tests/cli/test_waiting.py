"""The bar of a long answer: on a terminal only, for long work only, and gone when the answer comes."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

import buckets
import pytest

from tracelens.cli import run, waiting
from tracelens.lake import lease, progress
from tracelens.lake.bucket import Bucket


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


@pytest.mark.parametrize("notice", [0.0, 60.0])
def test_a_wait_for_a_killed_writer_is_told_once_and_beside_the_answer(
    notice: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"ts":"2026-05-06T12:00:00Z","drafted":3,"accepted":1,"emitted":2}\n')
    with buckets.in_memory() as lake:
        ingest = ["ingest", str(tmp_path / "a.jsonl"), "--lake", str(lake), "--json"]
        assert run(ingest) == 0
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(lease, "NOTICE", notice)
        Bucket(lake).create(f"{lease.PREFIX}/lease-000000000099.json", b'{"owner": "killed"}')
        buckets.objects.objects_of.cache_clear()
        assert run([*ingest, "--replace"]) == 0
        out, err = capsys.readouterr()
    assert json.loads(out)["sources"] == 1
    told = "waiting for the lake at memory://bucket/lake: another writer holds it, or was killed"
    assert [line.startswith(told) for line in err.splitlines()] == ([True] if not notice else [])


def test_a_program_that_imports_tracelens_hears_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress.notice("why")
    assert capsys.readouterr() == ("", "")
