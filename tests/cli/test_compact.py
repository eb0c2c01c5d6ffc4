"""`tracelens compact`: what it says, with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run

Tool = Callable[..., tuple[int, str, str]]


def log(number: int) -> str:
    return "".join(
        f'{{"record":"round","ts":"2026-05-06T10:00:{i:02d}Z","request_id":"req-{number}","run_id":"r",'
        f'"round_index":{i},"drafted":3,"accepted":{i % 2},"emitted":{i % 2 + 1},"step_us":{9000 + i}}}\n'
        for i in range(40)
    )


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Run the command line in a folder that has a lake of three logs: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        Path(f"{number}.jsonl").write_text(log(number))
        assert run(["ingest", f"{number}.jsonl"]) == 0
    capsys.readouterr()

    def call(*args: str | Path) -> tuple[int, str, str]:
        code = run([str(a) for a in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_what_was_done(tool: Tool) -> None:
    code, out, err = tool("compact", "--before", "2026-05-07", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("lake: 9 files, ")
    assert out.endswith("would roll up 1 day before 2026-05-07, with 120 rounds\nwould merge 3 files into 1\n")
    code, out, err = tool("compact", "--before", "2026-05-07")
    assert (code, err) == (0, "")
    told = [line.split()[:3] for line in out.splitlines()]
    assert told[:2] == [["rounds", "3", "files,"], ["runs", "3", "files,"]]
    # Two lengths in each of three sources; nothing is left over of their times.
    assert "rolled up 1 day before 2026-05-07: 120 rounds are 6 rows now\n" in out
    nothing = "nothing to do: the files of lake are as large as they should be\n"
    assert tool("compact") == (0, nothing, "")
    none = "no day before 2026-05-07 has rounds to roll up\n"
    assert tool("compact", "--before", "2026-05-07") == (0, nothing + none, "")
    assert none in tool("compact", "--before", "2026-05-07", "--dry-run")[1]
    code, out, _ = tool("report", "--json")
    assert code == 0
    assert [w["code"] for w in json.loads(out)["warnings"]].count("rolled_up") == 1


def test_sql_that_counts_a_row_each_is_told_of_rolled_up_rounds(tool: Tool) -> None:
    rows, weighed = (f"select sum(drafted{how})::bigint as n from facts" for how in ("", " * weight"))
    before = [tool("query", sql, "--json") for sql in (rows, weighed)]
    assert before[0] == before[1]
    assert tool("compact", "--before", "2026-05-07")[0] == 0
    code, out, err = tool("query", rows, "--json")
    assert code == 0
    assert out != before[0][1]
    assert "a row stands for `weight` of them" in err
    assert tool("query", weighed, "--json") == before[1]
    assert [tool("query", quiet)[2] for quiet in ("sources", "from windows")] == ["", ""]


def test_json(tool: Tool) -> None:
    code, out, err = tool("compact", "--older-than", "1w", "--json", "--dry-run")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["after"] is None
    assert told["rolled_up"] | {"before_day": None} == {
        "before_day": None, "days": 1, "rounds": 120, "rows": None, "single": None
    }  # fmt: skip
    assert told["to_merge"] == {"files": 3, "into": 1}
    code, out, err = tool("compact", "--json")
    told = json.loads(out)
    assert (code, err, told["to_merge"]) == (0, "", None)
    assert [told[when]["rounds"]["files"] for when in ("before", "after")] == [3, 1]
    assert told["rolled_up"] == {"before_day": None, "days": 0, "rounds": 0, "rows": 0, "single": 0}


def test_a_file_that_keeps_a_day_single_is_named(tool: Tool) -> None:
    day = Path("lake/rounds/date=2026-05-06")
    (day / "mine.parquet").write_bytes(min(day.iterdir()).read_bytes())
    for more in ([], ["--dry-run"]):
        code, out, _ = tool("compact", "--before", "2026-05-07", *more)
        assert code == 0
        assert (
            "no day before 2026-05-07 has rounds to roll up\n1 day with files of another writer can't be rolled up: "
            "rounds/date=2026-05-06/mine.parquet; move them out of the lake\n"
        ) in out
    told = json.loads(tool("compact", "--before", "2026-05-07", "--json")[1])
    assert told["foreign_files"] == ["rounds/date=2026-05-06/mine.parquet"]


def test_a_filter_that_no_rolled_up_row_can_fit_is_told(tool: Tool) -> None:
    question = ("report", "--json", "--where", "request_id = 'req-1' and round_index = 0")
    assert tool("compact", "--before", "2026-05-07")[0] == 0
    [told] = [w for w in json.loads(tool(*question)[1])["warnings"] if w["code"] == "rolled_up_where"]
    assert told["text"].startswith("--where names request_id, round_index, which rolled-up rounds don't have any more")
    assert told["evidence"] == {"rounds": 120, "until": "2026-05-06"}


def test_a_label_that_comes_too_late_is_told(tool: Tool) -> None:
    Path("labels.csv").write_text("request_id,task_type\nreq-1,chat\n")
    assert tool("compact", "--before", "2026-05-07")[0] == 0
    code, out, _ = tool("label", "labels.csv")
    assert code == 0
    assert out.startswith("changed nothing in 0 files\n1 of 1 labelled id is not in the lake\n")
    assert "rounds of days up to 2026-05-06 are rolled up" in out
    assert json.loads(tool("label", "labels.csv", "--json")[1])["rolled_until"] == "2026-05-06"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--older-than", "30"], "write days or weeks, e.g. 30d or 4w"),
        (["--before", "yesterday"], "write a UTC date, e.g. 2026-11-01"),
        (["--before", "9999-01-01"], "only days that are over can be rolled up"),
        (["--before", "2026-05-07", "--older-than", "30d"], "give one of them"),
        (["--lake", "elsewhere"], "no lake at elsewhere"),
    ],
)
def test_what_cannot_be_done(tool: Tool, options: list[str], said: str) -> None:
    code, out, err = tool("compact", *options)
    assert (code, out) == (3, "")
    assert said in err
