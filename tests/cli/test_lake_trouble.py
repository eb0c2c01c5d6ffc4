"""What the command line says of a lake that is half there, changes meanwhile or has no room: never to take it apart."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import buckets
import pyarrow.parquet as pq
import pytest

import tracelens
from tracelens.cli import _what_to_do, run
from tracelens.errors import InputError
from tracelens.lake import journal
from tracelens.lake.bucket import Bucket
from tracelens.lake.store import Store


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    Store(tmp_path / "lake")
    return tmp_path / "lake"


def test_half_a_lake(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(lake / "rounds")
    assert run(["report", "--lake", str(lake)]) == 3
    assert f"the lake at {lake} is not whole: no file in rounds/. Copy it again" in capsys.readouterr().err
    with pytest.raises(InputError, match="not whole"):
        tracelens.open(lake).report()


def test_a_file_that_goes_while_it_is_read(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where readers can't be registered; the lake is healthy."""
    real = journal.live

    def live(root: Path, tables: Iterable[str] = ()) -> dict[str, str]:
        return real(root, tables) | {"rounds/x.parquet": f"{root}/rounds/x.parquet"}

    monkeypatch.setattr(journal, "live", live)
    assert run(["query", "from rounds", "--lake", str(lake)]) == 3
    assert run(["report", "--lake", str(lake)]) == 3
    told = capsys.readouterr().err.splitlines()[-1]
    assert "another process took it away meanwhile; run the command again" in told
    assert "move" not in told


def test_a_relative_folder_with_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"ts":"2026-05-06T12:00:00Z","drafted":3,"accepted":1,"emitted":2}\n')
    assert run(["ingest", "a.jsonl", "--lake", "x:y"]) == 0
    assert run(["compact", "--before", "2026-05-07", "--lake", "x:y"]) == 0


def test_a_broken_object_is_named_and_not_to_be_moved_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest of a bucket names it: without it nothing of the lake could be read."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(
        f'{{"ts":"2026-05-06T12:00:{i:02d}Z","request_id":"{i}","drafted":3,"accepted":1,"emitted":2}}\n'
        for i in range(40)
    ))  # fmt: skip
    with buckets.in_memory() as place:
        assert run(["ingest", str(path), "--lake", str(place)]) == 0
        bucket = Bucket(place)
        [key] = bucket.list("rounds/date=2026-05-06")
        whole = bucket.get(key)
        bucket.put(key, whole[:4] + bytes(b ^ 0x5A for b in whole[4:400]) + whole[400:])
        capsys.readouterr()
        assert run(["compact", "--before", "2026-05-07", "--lake", str(place)]) == 3
        told = capsys.readouterr().err
        assert key in told
        assert "put it back from a copy" in told
        assert str(tempfile.gettempdir()) not in told


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "MB are free on its disk (/"),
        (errno.EDQUOT, "MB are free on its disk (/"),
        (errno.EFBIG, "a file is larger than this process may write (ulimit -f); raise the limit"),
    ],
)
def test_no_room(
    number: int, told: str, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "a.jsonl").write_text('{"ts":"2026-05-06T12:00:00Z","drafted":3,"accepted":1,"emitted":2}\n')

    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pq, "write_table", full)
    assert run(["ingest", str(tmp_path / "a.jsonl"), "--lake", str(lake)]) == 3
    said = capsys.readouterr().err
    assert f"no room for the lake at {lake}: " in said
    assert told in said


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('IO Error: Cannot open file "x.parquet": No such file or directory', "run the command again"),
        ('IO Error: Could not write file "x.parquet": No space left on device', "the disk is full"),
        ('IO Error: Async write failed: {"x":"Could not write file \\"x.parquet\\": File too large"}', "(ulimit -f)"),
        ("Invalid Input Error: No magic bytes found at end of file 'x.parquet'", "move it away"),
    ],
)
def test_advice(said: str, told: str) -> None:
    assert told in _what_to_do(said)


def test_a_file_that_the_system_does_not_give(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text("x\n")

    def away(*_: object, **__: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(pq, "ParquetFile", away)
    assert run(["ingest", str(tmp_path / "a.log"), "--lake", str(lake)]) == 3
    told = capsys.readouterr().err
    assert "can't be read: " in told
    assert "try again" in told
    assert "move" not in told
