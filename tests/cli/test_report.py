"""`report` over a tiny lake, in every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tracelens.cli import run

from .lake import HOSTILE

pytest.importorskip("tracelens.analysis.report")


def test_json(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--by", "task_type", "--lake", str(lake), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema_version"] == 1
    assert told["by"] == ["task_type"]
    assert {row["key"]["task_type"] for row in told["strata"]} == {"code", "=1+1", HOSTILE}
    assert told["total"]["draft_accept_ratio"] == pytest.approx(480 / 900)
    assert told["total"]["tau_verified"] == pytest.approx(2.6)
    assert told["total"]["rho"] is None
    assert "rho" in told["coverage"]


@pytest.mark.parametrize("name", ["table", "csv", "markdown", "json"])
@pytest.mark.long
def test_hostile_labels(name: str, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--lake", str(lake), "--format", name]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    if name == "csv":
        assert any(row[1] == "'=1+1" for row in csv.reader(io.StringIO(told)))
    if name == "markdown":
        assert "<img" not in told


def test_claim_is_shown(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--lake", str(lake), "--claim", "alpha=.72,rho=.1,k=5"]) == 0
    assert "planned 2.40x" in capsys.readouterr().out


def test_filters(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["report", "--lake", str(lake), "--json"]
    assert run([*base, "--where", "task_type = 'code'", "--since", "2026-05-01", "--until", "2026-05-01"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["key"]["task_type"] for row in told["strata"]] == ["code"]
    assert run([*base, "--until", "2026-05-01T10:00:11Z"]) == 0
    assert len(json.loads(capsys.readouterr().out)["strata"]) == 1


def test_nothing_selected(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--lake", str(lake), "--where", "task_type = 'none'"]) == 0
    assert capsys.readouterr().out.startswith("Nothing to report")


def test_without_groups(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--lake", str(lake), "--by", ""]) == 0
    assert '""' not in capsys.readouterr().out


def test_file_by_its_name(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    assert run(["report", "--lake", str(lake), "-o", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("**")


@pytest.mark.parametrize(
    "args",
    [
        ["--by", "nonsense"],
        ["--where", "nonsense = 1"],
        ["--where", "1); DROP VIEW facts; --"],
        ["--run", "nonsense"],
        ["--claim", "alpha=2,rho=.1,k=5"],
        ["--claim", "nonsense"],
        ["--baseline", "nonsense"],
        ["--format", "nonsense"],
        ["--format", "html", "--json"],
        ["--chart", "nonsense", "-o", "x.png"],
        ["--chart", "sweep"],
        ["--chart", "waterfall", "-o", "x.png"],
        ["--open", "--json"],
        ["--open", "-o", "-"],
        ["--since", "nonsense"],
    ],
)
def test_refused(args: list[str], lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--lake", str(lake), *args]) == 3
    told = capsys.readouterr()
    assert told.err.startswith("Error: ")
    assert told.out == ""


def test_no_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--lake", str(tmp_path)]) == 3
    assert "no lake at" in capsys.readouterr().err
