"""`tracelens label`: what it says, with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run

Tool = Callable[..., tuple[int, str, str]]
LOG = (
    '{"record":"request","request_id":"chatcmpl-a.1","output_tokens":5}\n'
    '{"record":"request","request_id":"b","output_tokens":5}\n'
    '{"record":"round","request_id":"a.1","drafted":3,"accepted":1}\n'
)


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Run the command line in a folder that has a lake: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(LOG)
    assert run(["ingest", "log.jsonl"]) == 0
    capsys.readouterr()

    def call(*args: str | Path) -> tuple[int, str, str]:
        code = run([str(a) for a in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_what_was_changed(tool: Tool) -> None:
    Path("labels.csv").write_text("request_id,task_type\na.1,chat\nelsewhere,x\n")
    told = "changed 1 round, 1 request in 2 files\n1 of 2 labelled ids is not in the lake\n"
    assert tool("label", "labels.csv") == (0, told, "")
    again = "changed nothing in 0 files\n1 of 2 labelled ids is not in the lake\n"
    assert tool("label", "labels.csv") == (0, again, "")


def test_json(tool: Tool) -> None:
    Path("labels.jsonl").write_text('{"request_id":"b","tenant":"t"}\n')
    code, out, err = tool("label", "labels.jsonl", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "rows": {"rounds": 0, "requests": 1}, "files": 1, "labels": 1, "unmatched": 0, "rolled_until": None
    }  # fmt: skip


def test_rules(tool: Tool) -> None:
    Path("tracelens.toml").write_text('[[task]]\ntype = "chat"\nrequest_id = "a"\n')
    assert tool("label", "tracelens.toml") == (0, "changed 1 round, 1 request in 2 files\n", "")
    code, out, _ = tool(
        "query", "select task_type, count(*) as n from requests group by all order by all", "--format", "json"
    )
    assert (code, json.loads(out)) == (0, [{"task_type": "chat", "n": 1}, {"task_type": None, "n": 1}])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.csv", None, "no such file"),
        ("labels.csv", "id,task_type\na,b\n", "no column request_id"),
        ("labels.csv", "request_id,task_type\na.1,b\nchatcmpl-a.1,c\n", "labelled twice"),
        ("labels.jsonl", "{broken\n", "can't be read"),
        ("labels.parquet", "no parquet", "can't be read"),
        ("tracelens.toml", "[[task]]\ntype = 5\n", "needs type"),
        ("tracelens.toml", '[[task]]\ntype = "x"\nmodel = "["\n', "not a regular expression"),
    ],
)
def test_what_is_wrong_is_told(name: str, text: str | None, said: str, tool: Tool) -> None:
    if text is not None:
        Path(name).write_text(text)
    code, out, err = tool("label", name)
    assert (code, out) == (3, "")
    assert said in err


def test_no_lake(tool: Tool) -> None:
    Path("labels.csv").write_text("request_id,task_type\na.1,chat\n")
    code, _, err = tool("label", "labels.csv", "--lake", "other")
    assert code == 3
    assert "no lake at other" in err
    assert not Path("other").exists()
