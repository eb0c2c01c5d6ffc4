"""A watch goes on when a disk is full, ends when its lake is gone, and follows a log through many rotations."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from ingest_logs import run, table
from watches import add, clocks, look, pack, same_as_fresh, watching

from tracelens.errors import InputError
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake import journal, ledger, locks
from tracelens.lake.disk import DiskFullError
from tracelens.lake.snapshot import LOCK
from tracelens.lake.store import Store
from tracelens.sources import follow as follow_module


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def failing(error: OSError) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


FULL = OSError(28, "No space left on device")
STEPS = [(pq, "write_table"), (journal, "write"), (journal, "sync_file"), (Path, "mkdir"), (Path, "replace")]


@pytest.mark.parametrize(("owner", "name"), STEPS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_full_disk_is_told_and_tried_again(
    logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    add(logs / "a.log", *clocks(3))
    watcher = watching(lake, logs)
    look(watcher)
    add(logs / "a.log", *clocks(2, 13))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(FULL))
        for _ in range(3):
            found = look(watcher)
            assert (found.read, found.changed) == ((), False)
            [(where, why)] = found.notes
            assert where == str(lake)
            assert why == f"no room on its disk ({_mount(lake)}): nothing was read, the next look tries again"
    found = look(watcher)
    assert found.notes == ()
    assert len(table(lake, "windows")) == 5
    same_as_fresh(lake, logs)


def _mount(path: Path) -> Path:
    while not os.path.ismount(path):
        path = path.parent
    return path


def test_another_fault_of_the_disk_passes_too(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(logs / "a.log", *clocks(3))
    watcher = watching(lake, logs)
    look(watcher)
    add(logs / "a.log", *clocks(2, 13))
    with monkeypatch.context() as patch:
        patch.setattr(journal, "write", failing(OSError(5, "Input/output error")))
        assert look(watcher).notes == (
            (str(lake), "nothing was read, the next look tries again: [Errno 5] Input/output error"),
        )
    look(watcher)
    same_as_fresh(lake, logs)


def test_a_full_disk_at_the_first_look_is_an_error_that_names_lake_and_disk(
    logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(logs / "a.log", *clocks(3))
    monkeypatch.setattr(pq, "write_table", failing(FULL))
    with pytest.raises(DiskFullError) as told:
        look(watching(lake, logs))
    assert str(lake) in str(told.value)
    assert f"its disk ({_mount(lake)})" in str(told.value)
    assert "make room there, or name a lake on another disk with --lake" in str(told.value)
    assert told.value.exit_code == 3


def test_words_of_a_library_are_a_full_disk_too(lake: Path) -> None:
    with pytest.raises(DiskFullError), Store(lake).transaction():
        raise RuntimeError("IO Error: Could not write file: No space left on device")
    with pytest.raises(RuntimeError, match="something else"), Store(lake).transaction():
        raise RuntimeError("something else")


@pytest.mark.parametrize("how", ["removed", "emptied", "moved", "another one"])
def test_a_lake_that_is_taken_away_ends_the_watch(logs: Path, lake: Path, how: str) -> None:
    add(logs / "a.log", *clocks(3))
    watcher = watching(lake, logs)
    look(watcher)
    if how == "emptied":
        for path in lake.iterdir():
            shutil.rmtree(path)
    else:
        lake.rename(lake.parent / "elsewhere")
        if how == "removed":
            shutil.rmtree(lake.parent / "elsewhere")
        elif how == "another one":
            run(lake, logs)
    before = sorted(lake.rglob("*"))
    add(logs / "a.log", *clocks(2, 13))
    with pytest.raises(InputError, match=r"the lake at .* is gone: .*start the watch again"):
        look(watcher)
    assert sorted(lake.rglob("*")) == before  # nothing is made where it was, which may be a disk that is away


def test_a_lake_that_goes_in_the_middle_of_a_look(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(logs / "a.log", *clocks(3))
    watcher = watching(lake, logs)
    look(watcher)
    add(logs / "a.log", *clocks(2, 13))
    real = pq.write_table

    def write(*args: Any, **kwargs: Any) -> Any:
        shutil.rmtree(lake, ignore_errors=True)
        return real(*args, **kwargs)

    monkeypatch.setattr(pq, "write_table", write)
    with pytest.raises(InputError, match="is gone"):
        look(watcher)


# ---------------------------------------------------------------- another process in the same lake


def test_other_writers_and_readers_are_no_end(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two steps of a look another process commits: new files, and a log that has grown."""
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    other = logs.parent / "others"
    other.mkdir()
    add(logs / "a.log", *clocks(3))
    watcher = watching(lake, logs)
    look(watcher)
    count = [0]
    real = ledger._stamp

    def meddling(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(ledger, "_stamp", real)
        lock = locks.exclusive(lake / journal.STAGING / LOCK, 0.0)
        if lock is None:  # nobody can come between now
            monkeypatch.setattr(ledger, "_stamp", meddling)
            return real(*args, **kwargs)
        lock.release()
        count[0] += 1
        add(other / "b.log", *clocks(1, count[0]))
        ingest([str(other)], lake, IngestOptions(year=2026, jobs=1))
        if count[0] % 6:
            monkeypatch.setattr(ledger, "_stamp", meddling)
        return real(*args, **kwargs)

    for n in range(3):
        add(logs / "a.log", *clocks(2, 13 + n))
        monkeypatch.setattr(ledger, "_stamp", meddling)
        assert look(watcher).read == ("a.log",)
        monkeypatch.setattr(ledger, "_stamp", real)
    assert count[0] == 18
    ingest([str(other)], lake, IngestOptions(year=2026, jobs=1))
    same_as_fresh(lake, logs, other)


# ---------------------------------------------------------------- a log that is named alone


def rotate(path: Path, n: int) -> None:
    """As logrotate does it: the n rotated logs move on by one, the log becomes the first of them."""
    for i in range(n, 0, -1):
        path.with_name(f"{path.name}.{i}").rename(path.with_name(f"{path.name}.{i + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))


@pytest.mark.parametrize("packed", [False, True])
def test_several_rotations_between_two_looks(logs: Path, lake: Path, packed: bool) -> None:
    path = logs / "a.log"
    add(path, *clocks(3))
    watcher = watching(lake, path, run="r")
    look(watcher)
    for n in range(3):
        add(path, *clocks(2, 13 + 2 * n))
        rotate(path, n)
        add(path, *clocks(2, 14 + 2 * n))
    if packed:
        for n in (1, 2):
            stamp = (logs / f"a.log.{n}").stat().st_mtime_ns
            os.utime(pack(logs / f"a.log.{n}"), ns=(stamp, stamp))
    look(watcher)
    look(watcher)
    assert len(table(lake, "windows")) == 3 + 3 * 4
    same_as_fresh(lake, logs, run="r")


@pytest.mark.parametrize("name", ["a.log-20260506", "a-2026-05-06.log", "a.log.2026-05-06.1", "a.2026-05-06.log"])
def test_names_of_rotated_logs(logs: Path, lake: Path, name: str) -> None:
    path = logs / "a.log"
    add(path, *clocks(3))
    watcher = watching(lake, path, run="r")
    look(watcher)
    path.rename(logs / name)
    add(path, *clocks(2, 13))
    path.rename(logs / name.replace("6", "7"))
    add(path, *clocks(1, 14))
    look(watcher)
    assert len(table(lake, "windows")) == 6


def test_what_was_there_before_was_not_asked_for(logs: Path, lake: Path) -> None:
    """Nor is it when it moves on, or is compressed, at a rotation."""
    path = logs / "a.log"
    add(logs / "a.log.1", *clocks(4, 5))
    add(logs / "a.log.2", *clocks(4, 6))
    for n in (1, 2):
        os.utime(logs / f"a.log.{n}", (1e9, 1e9))
    add(path, *clocks(3))
    watcher = watching(lake, path, run="r")
    look(watcher)
    rotate(path, 2)
    add(path, *clocks(1, 13))
    os.utime(pack(logs / "a.log.3"), (1e9, 1e9))
    add(logs / "ab.log.1", *clocks(1, 7))
    add(logs / "a.logger", *clocks(1, 8))
    for _ in range(3):
        look(watcher)
    assert len(table(lake, "windows")) == 4


def test_a_rotated_log_that_is_nowhere_is_told(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "_TRIES", 3)
    path = logs / "a.log"
    add(path, *clocks(3))
    watcher = watching(lake, path)
    look(watcher)
    add(path.with_name("new"), *clocks(1, 13))  # before, so that it is another inode
    path.unlink()
    path.with_name("new").rename(path)
    notes = [note for _ in range(6) for note in look(watcher).notes]
    assert [n for n in notes if "missing" in n[1]] == [("a.log", follow_module._LOST)]
    assert len(table(lake, "windows")) == 4


def test_an_old_rotated_log_that_is_thrown_away_is_not_told(
    logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_TRIES", 2)
    path = logs / "a.log"
    add(path, *clocks(3))
    watcher = watching(lake, path)
    look(watcher)
    rotate(path, 0)
    add(path, *clocks(1, 13))
    look(watcher)
    (logs / "a.log.1").unlink()
    assert [note for _ in range(6) for note in look(watcher).notes] == []


@pytest.fixture(autouse=True)
def _no_lock_left(lake: Path) -> Iterator[None]:
    """A reading that nobody has ended would hold back the commits of others."""
    yield
    if (lake / ".staging").is_dir():
        assert not [p for p in (lake / ".staging").iterdir() if p.is_dir()]
