from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracelens.ingest import digest
from tracelens.ingest.digest import Digest
from tracelens.ingest.fast import Unproved
from tracelens.sources.discover import discover
from tracelens.sources.stream import BlockStream

LINE = b'{"record":"round","ts":"2026-05-06T12:00:00Z","drafted":3,"accepted":1}'


def test_it_is_the_digest_of_the_roads_that_read_blocks(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    # The line ends change behind what a piece holds, and within what other roads look at.
    path.write_bytes((LINE + b"\n") * 5000 + (LINE + b"\r\n") * 100)
    assert path.stat().st_size > digest._PIECE
    (file,) = discover([str(path)])[0]
    with BlockStream(file, checkpoints=[10]) as stream:
        assert len(list(stream)) == 1
    found = Digest.of(file, [10]).scan
    assert stream.text_sha256 is not None
    assert (found.sha256, found.text_sha256) == (stream.sha256, stream.text_sha256)
    assert (found.prefixes, found.bytes) == (stream.prefix_sha256, stream.bytes)


def test_a_file_may_grow_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LINE * 10)
    (file,) = discover([str(path)])[0]
    of = Digest.of(file, ())
    of.check(file, 10 * len(LINE))
    with pytest.raises(Unproved, match="changes"):
        of.check(file, 9 * len(LINE))
    with path.open("ab") as more:
        more.write(LINE)
    of.check(file, 10 * len(LINE))
    os.utime(path, (1, 1))
    of.check(file, 10 * len(LINE))


@pytest.mark.parametrize("lines", [9, 10, 11])
@pytest.mark.parametrize("how", ["in place", "by another file"])
def test_a_file_that_is_written_anew(how: str, lines: int, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LINE * 10)
    (file,) = discover([str(path)])[0]
    of = Digest.of(file, ())
    anew = tmp_path / "b.log" if how == "by another file" else path
    anew.write_bytes(LINE.replace(b"1}", b"2}") * lines)
    os.utime(anew, (1, 1))
    anew.replace(path)
    with pytest.raises(Unproved, match="changes"):
        of.check(file, 10 * len(LINE))


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LINE * 10)
    (file,) = discover([str(path)])[0]
    of = Digest.of(file, ())
    path.unlink()
    with pytest.raises(Unproved, match="changes"):
        of.check(file, 10 * len(LINE))
