"""`tracelens forget`: what it says, with which exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run

Tool = Callable[..., tuple[int, str, str]]
LINE = (
    '{{"record":"round","ts":"2026-05-06T10:00:{0:02d}Z","request_id":"q{1}","run_id":"r","round_index":{0},'
    '"drafted":3,"accepted":{2},"emitted":{3},"step_us":{4}}}\n'
)
AGAIN = "`tracelens ingest PATH… --lake lake` reads them again, and what was passed over as the same\n"


def log(first: int, last: int, extra: str = "") -> str:
    return "".join(LINE.format(i, i // 10, i % 3, i % 3 + 1, 9000 + i) for i in range(first, last)) + extra


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Run the command line in a folder that has a lake of a log, a copy of it and a part of it."""
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(log(0, 40))
    Path("b.jsonl").write_text(log(0, 40))
    Path("part.jsonl").write_text(log(20, 40, '{"record":"round","drafted":-1,"accepted":2}\n'))
    assert run(["ingest", "a.jsonl", "b.jsonl"]) == 0
    assert run(["ingest", "part.jsonl"]) == 0
    capsys.readouterr()

    def call(*args: str | Path) -> tuple[int, str, str]:
        code = run([str(a) for a in args])
        out, err = capsys.readouterr()
        return code, re.sub(r"\b[0-9a-f]{16}\b", "ID", out), re.sub(r"\b[0-9a-f]{16}\b", "ID", err)

    return call


def test_what_is_forgotten_and_what_follows_of_it(tool: Tool) -> None:
    said = "  ID  a.jsonl: 40 rounds, 1 run\n"
    same = "left out as the same as a.jsonl, and to be ingested again: b.jsonl\n"
    part = "lines 1-20 of part.jsonl were left out as records of a.jsonl: they "
    code, out, err = tool("forget", "a.jsonl", "--dry-run")
    assert (code, err) == (0, "")
    assert out == f"would forget 1 source of lake:\n{said}{part}would count as its own\n{same}nothing was written\n"
    code, out, err = tool("forget", "a.jsonl")
    assert (code, err) == (0, "")
    assert out == f"forgot 1 source of lake:\n{said}{part}count as its own now\n{same}{AGAIN}"
    rounds = ("query", "select count(*) as n from rounds", "--json")
    assert json.loads(tool(*rounds)[1]) == [{"n": 20}]
    assert tool("ingest", "a.jsonl")[0] == 0
    assert json.loads(tool(*rounds)[1]) == [{"n": 40}]
    code, out, _ = tool("forget", "a.jsonl", "part.jsonl")
    assert out == (
        "forgot 2 sources of lake:\n  ID  a.jsonl: 40 rounds, 1 run\n  ID  part.jsonl: 20 rounds, 1 run, 1 reject\n"
        f"in all: 60 rounds, 2 runs, 1 reject\n{AGAIN}"
    )


def test_missing(tool: Tool) -> None:
    assert tool("forget", "--missing") == (0, "nothing is missing in lake\n", "")
    for path in Path("lake/rounds/date=2026-05-06").iterdir():
        path.unlink()
    code, out, err = tool("forget", "--missing", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert {source["name"]: source["rows"] for source in told["sources"]} == {
        "a.jsonl": {"rounds": 40, "runs": 1}, "part.jsonl": {"rounds": 20, "runs": 1, "rejects": 1}
    }  # fmt: skip
    assert told["rows"] == {"rounds": 60, "runs": 2, "rejects": 1}
    assert (told["lost_files"], told["count_now"], told["dry_run"]) == ([], [], False)
    assert tool("report")[:2] == (0, "Nothing to report: the lake holds no records.\n")


def test_a_lake_that_is_not_whole_is_whole_again(tool: Tool) -> None:
    for path in Path("lake/runs").iterdir():
        path.unlink()
    code, _, err = tool("report")
    assert code == 3
    assert "not whole: no file in runs/" in err
    assert "`tracelens forget --missing`" in err
    assert tool("forget", "--missing")[0] == 0
    assert tool("report")[0] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "name the sources to forget (`tracelens query sources` lists them), or give --missing"),
        (["a.jsonl", "--missing"], "--missing chooses the sources itself"),
        (["c.jsonl"], "no source c.jsonl in the lake at lake: did you mean "),
        (["b.jsonl"], "b.jsonl is in the lake at lake as a.jsonl, whose copy it is: name that one (ID)"),
        (["a.jsonl", "--lake", "elsewhere"], "no lake at elsewhere"),
        (["--missing", "--lake", "elsewhere"], "no lake at elsewhere"),
    ],
)
def test_what_cannot_be_done(tool: Tool, options: list[str], said: str) -> None:
    code, out, err = tool("forget", *options)
    assert (code, out) == (3, "")
    assert said in err
    assert not Path("elsewhere").exists()
