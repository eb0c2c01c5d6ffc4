"""`sweep` over a tiny lake: options, formats, errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tracelens.cli import run

from .lake import HOSTILE


def test_json(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows alone: the geometric law beside the K that ran, marked; no time, and why."""
    assert run(["sweep", "--lake", str(lake), "--k", "1,3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema_version"], told["by"], told["k"]) == (1, ["task_type"], [1, 3])
    assert {row["key"]["task_type"] for row in told["strata"]} == {"code", "=1+1", HOSTILE}
    total = told["total"]
    assert [(e["k"], e["source"]) for e in total["ks"]] == [(1, "geometric"), (3, "observed")]
    assert total["ks"][1]["tau_verified"] == pytest.approx(2.6)
    assert total["ks"][0]["tau_verified"] == pytest.approx(1 + 480 / (480 + 210))
    assert (total["best_k"], total["ks"][1]["round_ms"], total["ks"][1]["relative_token_time"]) == (None, None, None)
    assert total["why"]
    assert any("histograms" in note for note in total["notes"])


def test_claim(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--lake", str(lake), "--k", "1", "--claim", "alpha=.7,rho=.1,k=3", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert {e["cost_basis"] for e in total["ks"]} == {"claim"}
    assert total["ks"][1]["relative_token_time"] == pytest.approx(1.3 / 2.6)
    assert total["best_k"] == 3


def test_nothing_is_selected(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, as the other commands have it; no list of what is missing."""
    nobody = ["sweep", "--lake", str(lake), "--where", "task_type = 'nobody'"]
    assert run([*nobody, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (warning,) = (w for w in told["warnings"] if w["code"] == "nothing_selected")
    assert warning["text"].startswith("Nothing to report: ")
    assert (told["strata"], told["total"]["ks"], told["coverage"]) == ([], [], [])
    assert (told["total"]["best_k"], told["total"]["why"]) == (None, warning["text"])
    assert run(nobody) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown == f"{warning['text']} Selected: where task_type = 'nobody'."


@pytest.mark.parametrize("name", ["table", "csv", "markdown"])
@pytest.mark.long
def test_hostile_labels(name: str, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--lake", str(lake), "--format", name]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    if name == "csv":
        rows = list(csv.DictReader(io.StringIO(told)))
        assert {row["task_type"] for row in rows if row["row"] == "stratum"} >= {"code", "'=1+1"}
        assert {row["source"] for row in rows} == {"geometric", "observed"}
    if name == "markdown":
        assert "<img" not in told


def test_output(lake: Path, tmp_path: Path) -> None:
    target = tmp_path / "sweep.md"
    assert run(["sweep", "--lake", str(lake), "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("**All traffic")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--k", "0,3"], "0 is outside 1..64"),
        (["--k", "65"], "65 is outside 1..64"),
        (["--k", "2.5"], "'2.5' is no draft length"),
        (["--k", "two"], "'two' is no draft length"),
        (["--k", "²"], "is no draft length"),
        (["--k", ","], "no draft length is given"),
        (["--by", "num_speculative_tokens"], "leave it out of --by"),
        (["--by", "colour"], "cannot group by colour"),
        (["--format", "html"], "--format html"),
        (["--run", "nobody"], "no run nobody"),
    ],
)
def test_errors(extra: list[str], words: str, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--lake", str(lake), *extra]) == 3
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""
