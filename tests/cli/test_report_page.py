"""`report` as a page and as pictures."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from tracelens.cli import run

PNG = b"\x89PNG\r\n\x1a\n"


def test_page_by_its_name(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert run(["report", "--lake", str(lake), "-o", str(path)]) == 0
    told = path.read_text(encoding="utf-8")
    assert told.startswith("<!doctype html>")
    assert told.rstrip().endswith("</html>")
    assert "<img src=x" not in told


def test_page_to_a_pipe(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--lake", str(lake), "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


@pytest.mark.parametrize(("name", "start"), [("alpha.png", PNG), ("alpha.svg", b"<svg")])
def test_picture_by_its_name(name: str, start: bytes, lake: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    assert run(["report", "--lake", str(lake), "--chart", "alpha", "-o", str(path)]) == 0
    assert path.read_bytes().startswith(start)


def test_picture_without_a_figure_says_why(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.png"
    assert run(["report", "--lake", str(lake), "--chart", "waterfall", "-o", str(path)]) == 3
    assert "--claim" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("chosen", ["png", "html"])
def test_nothing_long_or_binary_to_a_terminal(
    chosen: str, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(["report", "--lake", str(lake), "--format", chosen]) == 3
    told = capsys.readouterr()
    assert f"-o FILE.{chosen}" in told.err
    assert told.out == ""


@pytest.fixture
def browsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    def show(url: str) -> bool:
        seen.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", show)
    return seen


def test_open_a_temporary_page(
    lake: Path, tmp_path: Path, browsed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(["report", "--lake", str(lake), "--open"]) == 0
    (path,) = tmp_path.glob("tracelens-report-*.html")
    assert browsed == [path.as_uri()]
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(path) in capsys.readouterr().err


def test_open_the_users_file(lake: Path, tmp_path: Path, browsed: list[str]) -> None:
    path = tmp_path / "mine"
    assert run(["report", "--lake", str(lake), "--open", "-o", str(path)]) == 0
    assert browsed == [path.as_uri()]


def test_no_browser_is_said(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert run(["report", "--lake", str(lake), "--open", "-o", str(tmp_path / "a.html")]) == 0
    assert "open it yourself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"), [("x.pdf", "print the page"), ("x.XLSX", "-o FILE.csv"), ("x.yaml", ".json")]
)
def test_a_name_of_a_format_that_is_not_written_is_refused(
    name: str, hint: str, lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    for command in ("report", "gate"):
        assert run([command, "--lake", str(lake), "-o", str(path)]) == 3
        told = capsys.readouterr().err
        assert "is not written" in told
        assert hint in told
        assert not path.exists()


@pytest.mark.parametrize("name", ["x", "x.txt", "x.log", "2026.05.01"])
@pytest.mark.long
def test_other_names_are_text(name: str, lake: Path, tmp_path: Path) -> None:
    assert run(["report", "--lake", str(lake), "-o", str(tmp_path / name)]) == 0
    assert "Outcome" in (tmp_path / name).read_text(encoding="utf-8")


def test_a_format_that_is_named_goes_before_a_name(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    assert run(["report", "--lake", str(lake), "--format", "json", "-o", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("{")


def test_a_picture_says_what_it_is_of(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    assert run(["report", "--lake", str(lake), "--chart", "alpha", "--where", "1 = 1", "-o", str(path)]) == 0
    assert "Selected: where 1 = 1." in path.read_text(encoding="utf-8")
