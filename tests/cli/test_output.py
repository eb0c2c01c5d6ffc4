"""Where -o writes: a whole file, through links and devices, and with the mode the file had."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

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
