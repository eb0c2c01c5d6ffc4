"""Logs that are rotated while they are read, and a writer that does not wait for us."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import interval, log, table
from watches import add, clocks, look, pack, same_as_fresh, watching

import tracelens.ingest.watcher as watcher_module
from tracelens.ingest.options import Summary


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def meddling(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Do something just before the next ingest, and just after it (as if while it read)."""
    real = watcher_module.ingest
    left = [(before, after)]

    def ingest(*args: Any, **kwargs: Any) -> Summary:
        first, then = left.pop() if left else (lambda: None, lambda: None)
        first()
        found = real(*args, **kwargs)
        then()
        return found

    monkeypatch.setattr(watcher_module, "ingest", ingest)


def nothing() -> None:
    pass


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["rename", "copy"])
def test_a_rotation_while_it_is_read(
    logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, when: str, how: str
) -> None:
    path = logs / "a.log"
    add(path, *clocks(3))
    watcher = watching(lake, logs)
    look(watcher)
    add(path, *clocks(3, 13))

    def rotate() -> None:
        if how == "rename":
            path.rename(logs / "a.log.1")
        else:
            shutil.copyfile(path, logs / "a.log.1")
            os.truncate(path, 0)

    meddling(monkeypatch, *((rotate, nothing) if when == "before" else (nothing, rotate)))
    look(watcher)
    add(path, *clocks(1, 14))
    look(watcher)
    look(watcher)
    assert len(table(lake, "windows")) == 7
    same_as_fresh(lake, logs)


def test_the_old_beginning_with_the_middle_of_the_new_log_behind_it(
    logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = logs / "a.log"
    add(path, *clocks(6))
    old, new = log(*clocks(6)), log(*clocks(4, 14))
    watcher = watching(lake, logs)
    look(watcher)
    add(path, *clocks(1, 13))

    def mix() -> None:
        shutil.copyfile(path, logs / "a.log.1")
        path.write_text(old + new[len(new) // 2 :])  # what a reader sees that was at the end of `old` just then

    def rest() -> None:
        path.write_text(new)

    meddling(monkeypatch, mix, rest)
    look(watcher)
    look(watcher)
    assert len(table(lake, "windows")) == 11
    same_as_fresh(lake, logs)


def test_a_fault_of_the_reader_is_told(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(logs / "a.log", *clocks(1))

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(watcher_module, "ingest", broken)
    with pytest.raises(ValueError, match="a fault"):
        look(watching(lake, logs))


@pytest.mark.long
def test_a_writer_at_work(logs: Path, lake: Path) -> None:
    """Appends, rotates in every way, and compresses, while rounds go on; some files are gone when all is over."""
    kept = logs.parent / "kept"
    kept.mkdir()
    over, looked = threading.Event(), threading.Event()
    random_ = random.Random(7)

    def write() -> None:
        for n in range(40):
            if n % 10 == 9:  # a busy machine looks seldom
                looked.wait(60)
                looked.clear()
            path = logs / f"{'ab'[n % 2]}.log"
            text = log(*(interval(f"{n % 24:02d}:{n // 24:02d}:{i:02d}", accepted=n) for i in range(20)))
            for part in (text[:50], text[50:]):
                with path.open("a") as file:
                    file.write(part)
            how = random_.randrange(6)
            if how == 0:
                path.rename(logs / f"{path.name}.{n}")
            elif how == 1:
                shutil.copyfile(path, logs / f"{path.name}.{n}")
                os.truncate(path, 0)
            elif how == 2:
                path.rename(logs / f"{path.name}.{n}")
                pack(logs / f"{path.name}.{n}")
            over.wait(0.02)
        over.set()

    watcher = watching(lake, logs, run="r")
    writer = threading.Thread(target=write)
    writer.start()
    looks = 0
    while not over.is_set():
        look(watcher)
        looks += 1
        looked.set()
    writer.join()
    while look(watcher).changed or watcher.unsettled:
        pass
    assert looks > 3
    assert len(table(lake, "windows")) == 40 * 20
    same_as_fresh(lake, logs, run="r")
