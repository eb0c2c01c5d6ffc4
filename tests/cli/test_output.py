"""Where -o writes: a whole file, through links and devices, and with the mode the file had."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.cli.options import moment, run_or_ms
from tracelens.cli.output import opened
from tracelens.errors import InputError


def write(path: Path, text: str) -> None:
    with opened(path) as out:
        out.write(text)


def test_a_link_stays_a_link_and_a_mode_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "real.md", tmp_path / "link.md"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write(link, "new")
    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("new", 0o600)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write, args=(pipe, "all of it"))
    writer.start()
    assert pipe.read_text() == "all of it"
    writer.join()
    assert pipe.is_fifo()


def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(InputError, match=f"^cannot write {one}: it is a link that leads to itself"):
        write(one, "x")
    assert (one.is_symlink(), other.is_symlink(), len(list(tmp_path.iterdir()))) == (True, True, 2)
    assert run(["schema", "-o", str(one)]) == 3


def test_a_link_to_what_is_not_there_yet(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new")
    write(link, "x")
    assert (link.is_symlink(), (tmp_path / "new").read_text()) == (True, "x")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Files can hold 4096 bytes and no more, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size", [5000, 100_000])
def test_a_full_disk_is_told_with_the_file(size: int, tmp_path: Path, full_disk: None) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(InputError, match=f"^cannot write {path}: File too large; give another place with -o"):
        write(path, "x" * size)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_bytes_on_a_full_disk_too(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(InputError, match=r"out\.parquet: File too large"), opened(tmp_path / "out.parquet") as out:
        out.buffer.write(b"x" * 100_000)  # type: ignore[attr-defined]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_device_and_stdout_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^cannot write /dev/full: No space left on device"):
        write(Path("/dev/full"), "x")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(InputError, match=r"^cannot write to stdout: No space left on device"):
            write(Path("-"), "x")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_an_error_of_what_is_read_is_not_one_of_what_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), opened(tmp_path / "out") as out:
        out.write((tmp_path / "missing").read_text())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        write(tmp_path, "x")


@pytest.mark.parametrize("text", ["inf", "nan", "1e400", "0", "-3", "1e-320"])
def test_a_baseline_that_is_no_time(text: str) -> None:
    with pytest.raises(InputError, match="not a time"):
        run_or_ms(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_moments_at_the_ends_of_time(text: str) -> None:
    with pytest.raises(InputError, match="outside the years 1 to 9999"):
        moment(text, "--since")


def test_the_last_day_has_no_end() -> None:
    with pytest.raises(InputError, match=r"^--until 9999-12-31: a date alone means the end of its day.* leave"):
        moment("9999-12-31", "--until")
    assert moment("9999-12-31", "--since") == datetime(9999, 12, 31, tzinfo=UTC)
    assert moment("9999-12-30", "--until") == datetime(9999, 12, 31, tzinfo=UTC)
