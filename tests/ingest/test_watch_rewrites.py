"""Logs that are written anew in their place: no record counts twice, and none is lost without a word."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import jsonl, log, table
from watches import Time, add, clocks, look, same_as_fresh, watching

from tracelens.ingest.watch import Round, Watcher


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def later(watcher: Watcher) -> Round:
    """The next look, five seconds later."""
    assert isinstance(watcher.clock, Time)
    watcher.clock.now += 5
    return look(watcher)


def records(first: int, last: int, **more: Any) -> list[dict[str, Any]]:
    """Canonical rounds, six a request."""
    return [
        {
            "ts": f"2026-04-19T10:{i // 60:02d}:{i % 60:02d}.250Z", "engine": "acme", "run_id": "k5",
            "request_id": f"r{i // 6}", "round_index": i % 6, "step_id": str(i),
            "drafted": 5, "accepted": i % 6, "emitted": i % 6 + 1,
            "task_type": "x", "step_ms": 16.0,
        } | more
        for i in range(first, last)
    ]  # fmt: skip


BEFORE = jsonl(*records(0, 60))
ANEW = {
    "same size": BEFORE.replace('"x"', '"y"'),
    "longer": BEFORE[:-100].replace('"x"', '"y"') + "\n" + jsonl(*records(60, 80)),
    "cut to its beginning": jsonl(*records(0, 30)),
    "a line taken out": jsonl(*records(0, 20), *records(21, 60)),
    "another beginning": jsonl(*records(90, 95), *records(20, 60)),
    "lines put before": jsonl({"record": "note"}, *records(90, 95), *records(0, 60)),
}


@pytest.mark.parametrize("how", ANEW)
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.long
def test_what_was_read_gives_way_to_what_took_its_place(logs: Path, lake: Path, how: str, small: bool) -> None:
    """By the road for short logs, and by the one for long ones."""
    path = logs / "a.jsonl"
    times = 1 if small else 40
    path.write_text(BEFORE if small else jsonl(*records(1000, 1000 + 60 * times), *records(0, 60)))
    watcher = watching(lake, logs)
    look(watcher)
    path.write_text(ANEW[how])
    found = later(watcher)
    assert found.changed
    [(name, why)] = [note for note in found.notes if "anew" in note[1] or "end" in note[1]]
    assert name == "a.jsonl"
    if small:
        assert "the 60 rows that were read of it before gave way" in why
        same_as_fresh(lake, logs)
    path.write_text(ANEW[how] + jsonl(*records(200, 210)))  # and it goes on as any log
    assert later(watcher).notes == ()
    if small:
        same_as_fresh(lake, logs)


def test_a_text_log_that_is_edited(logs: Path, lake: Path) -> None:
    path = logs / "a.log"
    add(path, *clocks(50))
    watcher = watching(lake, logs)
    look(watcher)
    path.write_text(path.read_text().replace("Drafted: 300", "Drafted: 301"))
    assert "50 rows" in later(watcher).notes[0][1]
    assert [r["drafted"] for r in table(lake, "windows")] == [301] * 50
    same_as_fresh(lake, logs)


def test_a_log_that_keeps_its_end_loses_nothing_and_doubles_nothing(logs: Path, lake: Path) -> None:
    """What `tail -n 1000 a.log > t; cat t > a.log` leaves, as some cron jobs do it."""
    path = logs / "a.jsonl"
    path.write_text(BEFORE)
    watcher = watching(lake, logs)
    look(watcher)
    path.write_text(jsonl(*records(40, 65)))
    [(name, why)] = later(watcher).notes
    assert (name, why.split(":")[0]) == ("a.jsonl", "was cut to its end in its place")
    assert "the 40 rows of its lost beginning stay" in why
    assert numbers(lake) == list(range(65))
    path.write_text(jsonl(*records(40, 90)))
    assert later(watcher).notes == ()
    assert numbers(lake) == list(range(90))
    path.write_text(jsonl(*records(80, 95)))
    assert "40 rows of its lost beginning stay" in later(watcher).notes[0][1]
    assert numbers(lake) == list(range(95))
    told = {row["source_id"]: dict(row["rows"]) for row in table(lake, "sources")}
    held = [r["source_id"] for r in table(lake, "rounds")]
    assert {s: r["rounds"] for s, r in told.items()} == {s: held.count(s) for s in set(held)}
    assert len(told) == 3
    assert {r["source_id"] for r in table(lake, "runs")} == set(told)


def numbers(lake: Path) -> list[int]:
    return sorted(int(r["step_id"]) for r in table(lake, "rounds"))


def test_a_log_that_is_begun_anew_keeps_what_was_read_and_says_what_is_lost(logs: Path, lake: Path) -> None:
    path = logs / "a.jsonl"
    path.write_text(jsonl(*records(0, 30)))
    watcher = watching(lake, logs)
    look(watcher)
    for n in (30, 80):
        os.truncate(path, 0)
        path.write_text(jsonl(*records(n, n + 35)))
        [(name, why)] = later(watcher).notes
        assert name == "a.jsonl"
        assert "begun anew between two looks, 5.0 s apart" in why
        assert "lost" in why
    assert len(numbers(lake)) == 30 + 35 + 35
    os.truncate(path, 0)
    assert later(watcher).notes == ()
    path.write_text(jsonl(*records(200, 201)))
    assert "begun anew" in later(watcher).notes[0][1]
    assert len(numbers(lake)) == 101


def test_a_rotation_by_copy_is_no_loss_and_not_told(logs: Path, lake: Path) -> None:
    path = logs / "a.jsonl"
    path.write_text(jsonl(*records(0, 30)))
    watcher = watching(lake, logs)
    look(watcher)
    for n in range(1, 4):
        with path.open("a") as file:
            file.write(jsonl(*records(30 * n, 30 * n + 10)))
        shutil.copyfile(path, logs / f"a.jsonl.{n}")
        path.write_text(jsonl(*records(30 * n + 10, 30 * n + 30)))
        assert later(watcher).notes == ()
    assert numbers(lake) == list(range(120))
    same_as_fresh(lake, logs)


def test_a_copy_of_what_was_written_over_keeps_its_rows(logs: Path, lake: Path) -> None:
    """The rows belong to the copy as well, which nobody has touched."""
    path = logs / "a.jsonl"
    path.write_text(BEFORE)
    shutil.copyfile(path, logs / "b.jsonl")
    watcher = watching(lake, logs)
    look(watcher)
    path.write_text(jsonl(*records(0, 30, task_type="z")))
    later(watcher)
    same_as_fresh(lake, logs)


def test_a_copy_of_a_part_is_read_when_the_whole_goes(logs: Path, lake: Path) -> None:
    path = logs / "a.jsonl"
    path.write_text(BEFORE)
    (logs / "part.jsonl").write_text(jsonl(*records(0, 20)))
    watcher = watching(lake, logs)
    look(watcher)
    assert len(numbers(lake)) == 60
    path.write_text(jsonl(*records(90, 91), *records(20, 60, task_type="z")))
    later(watcher)
    later(watcher)
    assert numbers(lake) == [*range(60), 90]
    same_as_fresh(lake, logs)


def test_a_copy_of_a_part_is_no_source_while_the_whole_stays(logs: Path, lake: Path) -> None:
    """The log is begun anew, or keeps its end: what it was stays in the lake, and the copy adds nothing."""
    path = logs / "a.jsonl"
    path.write_text(BEFORE)
    (logs / "part.jsonl").write_text(jsonl(*records(0, 20)))
    watcher = watching(lake, logs)
    look(watcher)
    for n in (50, 80):
        path.write_text(jsonl(*records(n, n + 25)))
        later(watcher)
        later(watcher)
    assert numbers(lake) == [*range(75), *range(80, 105)]


def test_records_without_a_date_are_never_taken_for_the_same(logs: Path, lake: Path) -> None:
    """A server without time stamps begins anew with the same ids and words."""
    told = [{k: v for k, v in r.items() if k != "ts"} for r in records(0, 60)]
    path = logs / "a.jsonl"
    path.write_text(jsonl(*told))
    watcher = watching(lake, logs)
    look(watcher)
    path.write_text(jsonl(*told[:30]))
    assert "other records" in later(watcher).notes[0][1]
    assert len(numbers(lake)) == 90


def test_a_log_that_is_written_over_while_it_is_written(logs: Path, lake: Path) -> None:
    """A look in the middle of the writing sees a part of the new content."""
    path = logs / "a.jsonl"
    path.write_text(BEFORE)
    watcher = watching(lake, logs)
    look(watcher)
    new = ANEW["same size"]
    for part in (0, len(new) // 3 + 7, len(new)):
        path.write_text(new[:part])
        later(watcher)
    same_as_fresh(lake, logs)


def test_what_is_told_has_happened(logs: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails replaces nothing; the next one does."""
    path = logs / "a.jsonl"
    path.write_text(BEFORE)
    watcher = watching(lake, logs)
    look(watcher)
    path.write_text(ANEW["same size"])
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", _full)  # the journal of the commit
        notes = later(watcher).notes
    assert not any("anew" in why for _, why in notes)
    assert any("no room on its disk" in why for _, why in notes)
    assert {r["task_type"] for r in table(lake, "rounds")} == {"x"}
    assert "60 rows" in later(watcher).notes[0][1]
    same_as_fresh(lake, logs)


def _full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_only_the_last_line_is_longer(logs: Path, lake: Path) -> None:
    """Growth is no rewriting."""
    path = logs / "a.log"
    whole = log(*clocks(5))
    path.write_text(whole[:-20])
    watcher = watching(lake, logs)
    look(watcher)
    path.write_text(whole)
    assert later(watcher).notes == ()
    same_as_fresh(lake, logs)
