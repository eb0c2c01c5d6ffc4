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


@pytest.mark.parametrize("words", ["explain analyze", "explain", ""])
def test_no_statement_writes(place: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = place / "rounds" / "evil.parquet"
    assert run(["query", f"{words} copy (select 1 as a) to '{target}'".strip(), "--lake", str(place)]) == 3
    assert "only reads" in capsys.readouterr().err
    assert not target.exists()
