"""Names of files come from anywhere: no answer of a command that tells them may drive a terminal or break its JSON."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import pytest

from tracelens.cli import run

# C0, C1, marks of direction, what hides, and a byte that is no UTF-8.
NAME = os.fsdecode("a\x1b[31m\x9b\x85\u202e\u061c\u00ad\u2066\U000e0041é".encode() + b"\xff.jsonl")
ROUND = {"record": "round", "engine": "acme", "run_id": "a", "request_id": "r", "round_index": 0, "drafted": 3,
         "accepted": 1, "emitted": 2}  # fmt: skip


def unsafe(text: str) -> list[str]:
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    try:
        path.write_text(json.dumps(ROUND) + "\n" + json.dumps(ROUND | {"accepted": 9}) + "\n")
    except OSError:
        pytest.skip("this file system takes no such names")
    return path


@pytest.mark.parametrize("command", ["inspect", "ingest", "watch"])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_hostile_name(command: str, as_json: bool, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if (command, as_json) == ("watch", True):
        pytest.skip("watch shows a screen")
    told = [] if command == "inspect" else ["--lake", str(log.parent / "lake")]
    once = ["--once"] if command == "watch" else []
    assert run([command, str(log), *told, *once, *(["--json"] if as_json else [])]) in (0, 1)
    out, err = capsys.readouterr()
    assert unsafe(out) == []
    assert unsafe(err) == []
    if as_json:
        answer = json.loads(out)
        if command == "inspect":
            assert Path(answer["sources"][0]["name"]).name == NAME.encode(errors="replace").decode()
    elif command == "inspect":
        assert "\\x1b[31m\\x9b\\x85\\u202e\\u061c" in out


def test_labels_of_a_hostile_name(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(log.parent / "lake")
    assert run(["ingest", str(log), "--lake", lake]) == 0
    labels = log.with_name("l\x9b\u202e.csv")
    labels.write_text("request_id,task_type\nr,x\u202e\n")
    capsys.readouterr()
    assert run(["label", str(labels), "--lake", lake, "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["rows"]["rounds"] == 1
    assert unsafe(out) == []
