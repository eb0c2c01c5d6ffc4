"""`compare` over a tiny lake: words, formats, exit codes."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tracelens.analysis.asked import word
from tracelens.cli import run
from tracelens.lake.schema import table


@pytest.fixture(scope="module")
def two_runs(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny lake and a copy of its run a day later that accepts more."""
    place = tmp_path_factory.mktemp("two") / "lake"
    shutil.copytree(lake, place)
    rows = pq.read_table(next((lake / "windows" / "date=2026-05-01").glob("*.parquet"))).to_pylist()
    for row in rows:
        row |= {"run_id": "run-b", "source_id": "t", "ts_end": row["ts_end"].replace(day=2)}
        if row["accepted"] is not None:
            row |= {"accepted": 190, "accepted_per_pos": [90, 60, 40]}
        row.pop("date", None)
    folder = place / "windows" / "date=2026-05-02"
    folder.mkdir()
    schema = table("windows").arrow_schema()
    pq.write_table(type(schema.empty_table()).from_pylist(rows, schema=schema), folder / "t-0.parquet")
    return place


def test_json(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "run-a", "run-b", "--lake", str(two_runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema_version"] == 1
    assert (told["a"]["text"], told["b"]["kind"]) == ("run-a", "run")
    assert told["total"]["a"]["draft_accept_ratio"] == pytest.approx(480 / 900)
    assert told["total"]["change"]["draft_accept_ratio"]["value"] == pytest.approx(90 / 900)
    assert told["total"]["change"]["rho"]["value"] is None
    assert len(told["strata"]) == 3
    assert told["mix_effect"]["draft_accept_ratio"]["mix"] == pytest.approx(0.0)


@pytest.mark.parametrize("name", ["table", "markdown"])
@pytest.mark.long
def test_formats(name: str, two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["2026-05-01..2026-05-01", "2026-05-02.."] if name == "table" else ["run-a", "run-b"]
    assert run(["compare", *words, "--lake", str(two_runs), "--format", name]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "0.533" in told


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["run-a", "nonsense"], "names nothing in this lake"),
        (["run-a", "2026-05-99.."], "is no time"),
        (["run-a", ".."], "a period needs at least one end"),
        (["run-a", "run-b", "--by", "nonsense"], "cannot group by nonsense"),
        (["run-a", "run-b", "--format", "html"], "--format html"),
        (["run-a"], "Missing argument"),
    ],
)
def test_refused(args: list[str], told: str, two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *args, "--lake", str(two_runs)]) == 3
    streams = capsys.readouterr()
    assert told in streams.err
    assert streams.out == ""


def test_words() -> None:
    day = datetime(2026, 5, 1, tzinfo=UTC)
    assert word("run1+run2").period is None
    assert word("2026-05-01..2026-05-01").period == (day, day.replace(day=2)), "a date as an end means its end"
    assert word("..2026-05-01T10:00").period == (None, day.replace(hour=10))
    assert word("2026-05-01 .. ").period == (day, None)
    assert (word("..").period, word("a..b").period) == (None, None)
    assert "is no time" in word("a..b").why_not
