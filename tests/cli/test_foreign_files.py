"""A lake that somebody else has put something into, and statements that would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.lake.store import Store


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Store(tmp_path / "lake")
    return tmp_path / "lake"


@pytest.mark.parametrize("junk", [b"", b"PAR1 and then nothing", b"\x00" * 4096])
@pytest.mark.parametrize("table", ["rounds", "requests", "runs"])
def test_a_broken_file_is_named_and_is_no_fault(
    place: Path, table: str, junk: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / table / "evil.parquet").write_bytes(junk)
    for command in (["report", "--lake", str(place)], ["query", f"select * from {table}", "--lake", str(place)]):
        assert run(command) == 3
        assert "evil.parquet" in capsys.readouterr().err


@pytest.fixture
def logs(place: Path, tmp_path: Path) -> Path:
    """A lake of two logs of a day; gives a file of its rounds."""
    for number in (1, 2):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(
            f'{{"ts":"2026-05-06T12:00:{i:02d}Z","request_id":"{number}-{i}","drafted":3,"accepted":1,"emitted":2}}\n'
            for i in range(40)
        ))  # fmt: skip
        assert run(["ingest", str(path), "--lake", str(place)]) == 0
    return min((place / "rounds" / "date=2026-05-06").iterdir())


def test_a_broken_file_is_named_by_compact(logs: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut short, and with a page that is no page: DuckDB does not say of which file that one is."""
    whole = logs.read_bytes()
    pages = bytes(b ^ 0x5A for b in whole[4:400])
    for junk, commands in (
        (whole[:900], [["compact"], ["compact", "--dry-run"], ["compact", "--before", "2026-05-07"]]),
        (whole[:4] + pages + whole[400:], [["compact"], ["compact", "--before", "2026-05-07"], ["report"]]),
    ):
        logs.write_bytes(junk)
        for command in commands:
            capsys.readouterr()
            assert run([*command, "--lake", str(place)]) == 3
            told = capsys.readouterr().err
            assert str(logs) in told
            assert "move it away" in told
    logs.write_bytes(whole)
    assert run(["compact", "--lake", str(place)]) == 0


@pytest.mark.parametrize("folder", ["date=2026-99-99", "more"])
def test_a_folder_of_no_day_is_named(logs: Path, place: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "rounds" / folder).mkdir()
    (place / "rounds" / folder / "x.parquet").write_bytes(logs.read_bytes())
    for command in (["report"], ["compact", "--before", "2026-05-07"]):
        assert run([*command, "--lake", str(place)]) == 3
        told = capsys.readouterr().err
        assert "(date=YYYY-MM-DD); move it out of the lake" in told
        assert folder.removeprefix("date=") in told


@pytest.mark.parametrize("words", ["explain analyze", "explain", ""])
def test_no_statement_writes(place: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = place / "rounds" / "evil.parquet"
    assert run(["query", f"{words} copy (select 1 as a) to '{target}'".strip(), "--lake", str(place)]) == 3
    assert "only reads" in capsys.readouterr().err
    assert not target.exists()
