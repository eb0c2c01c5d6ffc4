"""Journals that tracelens did not write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import InputError
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake import journal
from tracelens.lake.connection import connect
from tracelens.lake.forget import forget_named
from tracelens.lake.schema import is_in_a_table

ROUND = '{"record":"round","ts":"2026-05-06T12:00:00Z","drafted":3,"accepted":1}\n'
ACTS: list[Callable[[Path], Any]] = [
    connect,
    lambda lake: forget_named(lake, ["a.jsonl"]),
    lambda lake: ingest([str(lake.parent / "a.jsonl")], lake, IngestOptions(replace=True)),
]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text(ROUND)
    (tmp_path / "victim.parquet").write_text("x")
    ingest([str(tmp_path / "a.jsonl")], tmp_path / "lake", IngestOptions())
    return tmp_path / "lake"


def commit(lake: Path, told: str) -> None:
    folder = lake / journal.STAGING / "evil"
    folder.mkdir()
    (folder / "x.parquet").write_text("y")
    (folder / journal.JOURNAL).write_text(told)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("key", ["add", "delete"])
@pytest.mark.parametrize(
    "name", ["../victim.parquet", "rounds/../../victim.parquet", "{absolute}", "x.parquet", "", "rounds/"]
)
def test_no_file_outside_of_the_tables_is_touched(lake: Path, act: Callable[[Path], Any], key: str, name: str) -> None:
    victim = lake.parent / "victim.parquet"
    commit(lake, json.dumps({"number": 1, "add": [], "delete": [], key: [name.format(absolute=victim)]}))
    with pytest.raises(InputError, match="names a file outside of the lake's tables"):
        act(lake)
    assert victim.read_text() == "x"
    assert not (lake / "x.parquet").exists()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    "told", ["", '{"number":', "[]", "{}", '{"add": 1, "delete": []}', '{"number": "x", "add": [], "delete": []}']
)
def test_a_broken_journal_is_named(lake: Path, act: Callable[[Path], Any], told: str) -> None:
    commit(lake, told)
    with pytest.raises(
        InputError, match=r"evil.commit\.json can't be read \(\w+\): it is broken or not tracelens' own"
    ):
        act(lake)


def test_nothing_is_cleared_away_behind_a_link(lake: Path) -> None:
    behind = lake.parent / "behind"
    (behind / "kept").mkdir(parents=True)
    staging = lake / journal.STAGING
    for path in staging.iterdir():
        path.unlink()
    staging.rmdir()
    staging.symlink_to(behind)
    with pytest.raises(InputError, match="is a link"):
        forget_named(lake, ["a.jsonl"])
    assert (behind / "kept").is_dir()


def test_a_folder_that_is_a_link_holds_no_commit(lake: Path) -> None:
    behind = lake.parent / "behind"
    behind.mkdir()
    (behind / journal.JOURNAL).write_text(json.dumps({"number": 1, "add": [], "delete": ["rounds/empty.parquet"]}))
    (lake / journal.STAGING / "evil").symlink_to(behind)
    assert journal.pending(lake) == []


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("rounds/date=2026-05-06/0123-0.parquet", True),
        ("sources/x.parquet", True),
        ("rounds", False),
        ("others/x.parquet", False),
        ("/rounds/x.parquet", False),
        ("rounds//x.parquet", False),
        ("rounds/./x.parquet", False),
        ("rounds/..\\\\..\\\\x.parquet", False),
        ("rounds/x\0.parquet", False),
    ],
)
def test_names_in_a_table(name: str, is_one: bool) -> None:
    assert is_in_a_table(name) is is_one
