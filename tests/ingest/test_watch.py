"""A lake that keeps up with its logs: whatever happens to the files, it is that of a fresh ingest of them."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import jsonl, log, response, run, start, table
from watches import add, clocks, look, pack, rows, same_as_fresh, watching

import tracelens.ingest.watcher as watcher_module
from tracelens.errors import InputError
from tracelens.ingest.options import Summary


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


# ---------------------------------------------------------------- one thing at a time


def test_growth_replaces_and_nothing_new_opens_no_file(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(logs / "a.log", start(), *clocks(3))
    watcher = watching(lake, logs)
    assert look(watcher).read == ("a.log",)
    add(logs / "a.log", *clocks(2, 13))
    assert look(watcher).changed
    assert len(table(lake, "windows")) == 5
    same_as_fresh(lake, logs)

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a file that did not change was opened")

    monkeypatch.setattr(watcher_module, "head_of", opened)
    monkeypatch.setattr(watcher_module, "content_of", opened)
    monkeypatch.setattr(watcher_module, "ingest", opened)
    found = look(watcher)
    assert (found.changed, found.read, found.held, found.files) == (False, (), (), 1)


def test_a_line_that_is_half_written(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    whole = log(*clocks(3))
    (logs / "a.log").write_text(whole[:-30])
    look(watcher)
    same_as_fresh(lake, logs)
    (logs / "a.log").write_text(whole)
    look(watcher)
    assert [r["accepted"] for r in table(lake, "windows")] == [100, 101, 102]
    same_as_fresh(lake, logs)


def test_rename_and_new_file(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log", *clocks(3))
    look(watcher)
    add(logs / "a.log", *clocks(2, 13))  # nobody has read these when the log is rotated
    (logs / "a.log").rename(logs / "a.log.1")
    add(logs / "a.log", *clocks(1, 14))
    look(watcher)
    assert len(table(lake, "windows")) == 6
    same_as_fresh(lake, logs)


def test_a_rename_alone_reads_nothing(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log", *clocks(3))
    look(watcher)
    (logs / "a.log").rename(logs / "a.log.1")
    monkeypatch.setattr(watcher_module, "ingest", None)
    assert not look(watcher).changed


def test_gzip_of_the_rotated_log(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log", *clocks(3))
    look(watcher)
    add(logs / "a.log", *clocks(2, 13))
    (logs / "a.log").rename(logs / "a.log.1")
    pack(logs / "a.log.1")
    add(logs / "a.log", *clocks(1, 14))
    assert set(look(watcher).read) == {"a.log", "a.log.1.gz"}
    assert len(table(lake, "windows")) == 6
    same_as_fresh(lake, logs)
    (logs / "a.log").rename(logs / "a.log.2")
    pack(logs / "a.log.2")
    assert not look(watcher).changed  # known by its content
    assert len(table(lake, "windows")) == 6


def test_copy_and_truncate(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log", *clocks(5))
    look(watcher)
    add(logs / "a.log", *clocks(2, 13))
    shutil.copyfile(logs / "a.log", logs / "a.log.1")
    os.truncate(logs / "a.log", 0)
    look(watcher)
    assert len(table(lake, "windows")) == 7
    add(logs / "a.log", *clocks(9, 14))  # and beyond its earlier size
    look(watcher)
    assert len(table(lake, "windows")) == 16
    same_as_fresh(lake, logs)


def test_a_copy_that_is_being_made_counts_once(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log", *clocks(5))
    look(watcher)
    whole = (logs / "a.log").read_bytes()
    (logs / "a.log.1").write_bytes(whole[: len(whole) // 2])
    look(watcher)
    assert len(table(lake, "windows")) == 5
    (logs / "a.log.1").write_bytes(whole)
    look(watcher)
    os.truncate(logs / "a.log", 0)
    look(watcher)
    assert len(table(lake, "windows")) == 5
    same_as_fresh(lake, logs)


@pytest.mark.parametrize("packed", [False, True])
def test_two_names_of_one_content_that_nobody_knows_yet(logs: Path, lake: Path, packed: bool) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log", *clocks(5))
    shutil.copyfile(logs / "a.log", logs / "b.log")
    if packed:
        pack(logs / "b.log")
    look(watcher)
    assert len(table(lake, "windows")) == 5
    same_as_fresh(lake, logs)


def test_a_part_that_someone_else_has_read_is_no_source(logs: Path, lake: Path) -> None:
    add(logs / "a.log", *clocks(5))
    run(lake, logs)
    whole = (logs / "a.log").read_bytes()
    (logs / "a.log").rename(logs.parent / "a.log")
    (logs / "copy.log").write_bytes(whole[: len(whole) // 2])
    run(lake, logs)
    assert len(table(lake, "windows")) > 5
    (logs / "copy.log").write_bytes(whole)
    assert look(watching(lake, logs)).changed
    assert len(table(lake, "windows")) == 5
    same_as_fresh(lake, logs)


def test_a_compressor_at_work_counts_once(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log.1", *clocks(400))
    look(watcher)
    packed = gzip.compress((logs / "a.log.1").read_bytes())
    for part in (0, 12, len(packed) // 2, len(packed) - 3):
        (logs / "a.log.1.gz").write_bytes(packed[:part])
        look(watcher)
        assert len(table(lake, "windows")) == 400, part
    (logs / "a.log.1.gz").write_bytes(packed)
    (logs / "a.log.1").unlink()
    look(watcher)
    assert len(table(lake, "windows")) == 400
    same_as_fresh(lake, logs)


def test_a_compressed_file_that_is_cut_is_read_when_nobody_goes_on_writing_it(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    packed = gzip.compress(log(*clocks(400)).encode())
    (logs / "b.log.gz").write_bytes(packed[: len(packed) // 2])
    first = look(watcher)
    assert [(h.name, h.why) for h in first.held] == [("b.log.gz", "compressed, and not whole yet")]
    assert not table(lake, "windows")
    assert look(watcher).held == ()
    same_as_fresh(lake, logs)
    (logs / "b.log.gz").write_bytes(packed)
    look(watcher)
    assert len(table(lake, "windows")) == 400
    same_as_fresh(lake, logs)
    # In a run of its own, as cron starts it, an old one is read at once.
    (logs / "b.log.gz").write_bytes(packed[: len(packed) // 2])
    os.utime(logs / "b.log.gz", (1e9, 1e9))
    assert look(watching(lake.parent / "later", logs)).held == ()


def test_truncation_without_a_copy_keeps_what_was_read(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    add(logs / "a.log", *clocks(5))
    look(watcher)
    gone = logs.parent / "gone"
    gone.mkdir()
    shutil.copyfile(logs / "a.log", gone / "a.log")
    os.truncate(logs / "a.log", 0)
    look(watcher)
    assert len(table(lake, "windows")) == 5
    add(logs / "a.log", *clocks(1, 14))
    look(watcher)
    fresh = lake.parent / "fresh"
    run(fresh, logs, gone)
    assert rows(lake, ["run_id"]) == rows(fresh, ["run_id"])  # another folder is another run


def test_new_files_folders_and_patterns(logs: Path, lake: Path) -> None:
    (logs / "deep").mkdir()
    add(logs / "a.log", *clocks(1))
    watcher = watching(lake, logs / "deep", logs / "*.log")
    assert look(watcher).files == 1
    add(logs / "b.log", *clocks(1, 13))
    (logs / "deep" / "more").mkdir()
    add(logs / "deep" / "more" / "c.txt", *clocks(1, 14))
    add(logs / "not.txt", *clocks(1, 15))
    assert look(watcher).files == 3
    assert len(table(lake, "windows")) == 3


@pytest.mark.parametrize("how", ["rename", "copy", "gzip at once", "copy to gzip", "twice"])
def test_a_log_named_alone_is_followed_through_its_rotation(logs: Path, lake: Path, how: str) -> None:
    other = logs / "a.log.9"
    add(other, *clocks(1, 20))  # was there before: not asked for
    path = logs / "a.log"
    add(path, *clocks(3))
    watcher = watching(lake, path, run="r")
    look(watcher)
    add(path, *clocks(2, 13))
    if "copy" in how:
        shutil.copyfile(path, logs / "a.log.1")
        os.truncate(path, 0)
    else:
        path.rename(logs / "a.log.1")
    if "gzip" in how:
        pack(logs / "a.log.1")
    add(path, *clocks(1, 14))
    look(watcher)
    assert len(table(lake, "windows")) == 6
    if how == "twice":
        add(path, *clocks(1, 15))
        (logs / "a.log.1").rename(logs / "a.log.2")
        path.rename(logs / "a.log.1")
        look(watcher)
        pack(logs / "a.log.2")
        add(path, *clocks(1, 16))
        look(watcher)
    mine = [p for p in logs.iterdir() if p != other]
    same_as_fresh(lake, *mine, run="r")


def test_a_log_that_is_away_for_a_moment(logs: Path, lake: Path) -> None:
    add(logs / "a.log", *clocks(2))
    watcher = watching(lake, logs / "a.log")
    look(watcher)
    (logs / "a.log").unlink()
    found = look(watcher)
    assert found.notes == ((str(logs / "a.log"), "is not there now"),)
    add(logs / "a.log", *clocks(2, 13))
    look(watcher)
    assert len(table(lake, "windows")) == 4


def test_json_logs_are_named_by_a_start_that_comes_later(logs: Path, lake: Path) -> None:
    watcher = watching(lake, logs)
    (logs / "responses.jsonl").write_text(jsonl(response("a"), response("b")))
    look(watcher)
    add(logs / "server.log", start(), *clocks(2))
    look(watcher)
    assert (
        len({r for (r,) in table(lake, "requests", "run_id")} | {r for (r,) in table(lake, "windows", "run_id")}) == 1
    )
    same_as_fresh(lake, logs)
    add(logs / "server.log", start("13:00:00", k=5), *clocks(2, 13))
    look(watcher)
    same_as_fresh(lake, logs)


def test_labels_that_come_later_reach_what_is_read(logs: Path, lake: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,task_type\na,code\n")
    (logs / "responses.jsonl").write_text(jsonl(response("a"), response("b")))
    watcher = watching(lake, logs, labels=labels)
    look(watcher)
    labels.write_text("request_id,task_type\na,code\nb,cha")
    os.utime(labels, (1e9, 1e9))
    labels.write_text("request_id,task_type\na,code\nb,chat\n")
    assert look(watcher).changed
    assert dict(table(lake, "requests", "request_id", "task_type")) == {"a": "code", "b": "chat"}
    same_as_fresh(lake, logs, labels=labels)
    labels.write_text("nothing of the kind\n")
    (logs / "more.jsonl").write_text(jsonl(response("c")))
    assert any(str(labels) == name for name, _ in look(watcher).notes)
    labels.write_text("request_id,task_type\na,code\nb,chat\nc,math\n")
    look(watcher)
    same_as_fresh(lake, logs, labels=labels)


def test_a_second_watch_reads_nothing_again(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(logs / "a.log", *clocks(3))
    (logs / "b.log.gz").write_bytes(gzip.compress(log(*clocks(2, 13)).encode()))
    look(watching(lake, logs))
    handed: list[str] = []
    real = watcher_module.ingest

    def ingest(paths: Sequence[str], *rest: Any) -> Summary:
        handed.extend(paths)
        return real(paths, *rest)

    monkeypatch.setattr(watcher_module, "ingest", ingest)
    assert not look(watching(lake, logs)).changed
    assert handed == []


def test_bad_arguments(logs: Path, lake: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ingest -"):
        watching(lake, "-")
    with pytest.raises(InputError, match="no such file"):
        look(watching(lake, logs / "nothing"))
    with pytest.raises(InputError, match="zone"):
        look(watching(lake, logs, tz="Mars/Base"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("mine")
    with pytest.raises(InputError, match="other files"):
        look(watching(tmp_path / "other", logs))
