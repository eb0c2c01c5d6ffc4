"""When a watch looks, what it puts off, and how it stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_logs import table
from watches import Time, add, clocks, look, same_as_fresh, watching

from tracelens.ingest.budget import Budget, Wait
from tracelens.ingest.stop import GRACE
from tracelens.ingest.watch import Round, follow


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def test_reading_takes_at_most_half_of_the_time() -> None:
    budget, size, reading, waiting = Budget(), 600 << 20, 0.0, 0.0
    since = 0.0
    for _ in range(1000):
        budget.waited(5.0)
        waiting += 5.0
        since += 5.0
        if budget.choose([Wait(size, since)]):
            budget.spent(20.0, size)
            reading += 20.0
            since = 0.0
            budget.settle()
    assert 0.7 * waiting < reading <= waiting
    assert reading / 20.0 > 100


def test_a_small_log_does_not_wait_for_a_large_one_and_the_large_one_not_for_ever() -> None:
    budget = Budget()
    large, small, since = 10 << 30, 1 << 10, 0.0
    read_small = 0
    for _ in range(1000):
        budget.waited(1.0)
        since += 1.0
        chosen = budget.choose([Wait(large, since), Wait(small, 1.0)])
        read_small += 1 in chosen
        budget.spent(0.1, small)
        if 0 in chosen:
            break
    assert 0 in chosen
    assert budget.cost(large) < since < 2 * budget.cost(large)
    assert read_small > 100


def test_the_first_reading_is_no_debt_and_an_overrun_is_one() -> None:
    budget = Budget()
    budget.spent(1000.0, 1 << 30, owed=False)
    budget.settle()
    budget.waited(5.0)
    assert budget.choose([Wait(1 << 10, 5.0)]) == [0]
    budget.spent(65.0, 1 << 10)
    budget.settle()
    budget.waited(50.0)
    assert budget.choose([Wait(1 << 10, 50.0)]) == []
    assert budget.seconds_until(0) == pytest.approx(10.2)
    budget.waited(11.0)
    assert budget.choose([Wait(1 << 10, 61.0)]) == [0]


def test_what_is_held_is_told_and_read_in_the_end(logs: Path, lake: Path) -> None:
    add(logs / "a.log", *clocks(2))
    watcher = watching(lake, logs)
    watcher.round()
    add(logs / "a.log", *clocks(1, 13))
    held = watcher.round().held
    assert [(h.name, h.bytes) for h in held] == [("a.log", (logs / "a.log").stat().st_size)]
    assert held[0].seconds == pytest.approx(0.2, abs=0.01)
    assert len(table(lake, "windows")) == 2
    watcher.budget.waited(1.0)
    assert watcher.round().held == ()
    assert len(table(lake, "windows")) == 3


def test_follow_looks_every_so_often_and_reads_all_in_the_end(logs: Path, lake: Path) -> None:
    add(logs / "a.log", *clocks(1))
    watcher = watching(lake, logs)
    time = watcher.clock
    assert isinstance(time, Time)
    seen: list[tuple[float, int]] = []

    def shown(found: Round) -> None:
        seen.append((round(time.now, 3), len(table(lake, "windows"))))
        add(logs / "a.log", *clocks(1, 13 + len(seen)))
        if len(seen) == 2:
            time.now += 7  # a table that takes long: the pause takes as long

    follow(watcher, shown, every=5, seconds=30)
    assert seen == [(0.0, 1), (5.0, 2), (19.0, 3), (24.0, 4), (29.0, 5), (30.0, 6)]


def test_follow_once(logs: Path, lake: Path) -> None:
    add(logs / "a.log", *clocks(1))
    seen: list[Round] = []
    assert follow(watching(lake, logs), seen.append, every=5, once=True) is seen[0]
    assert len(seen) == 1


def test_a_stop_ends_the_pause(logs: Path, lake: Path) -> None:
    add(logs / "a.log", *clocks(1))
    watcher = watching(lake, logs)
    follow(watcher, lambda _: watcher.stop.ask(), every=1e9)
    assert len(table(lake, "windows")) == 1


@pytest.mark.parametrize(("after", "dropped"), [(GRACE / 2, False), (GRACE * 2, True)])
def test_a_stop_waits_for_a_short_reading_and_drops_a_long_one(
    logs: Path, lake: Path, after: float, dropped: bool
) -> None:
    add(logs / "a.log", *clocks(1))
    watcher = watching(lake, logs)
    time = watcher.clock
    assert isinstance(time, Time)
    look(watcher)
    add(logs / "a.log", *clocks(1, 13))
    told = [0]

    def progress(name: str, size: int) -> None:
        told[0] += 1
        watcher.stop.ask()
        time.now += after

    add(logs / "b.log", *clocks(1, 14))
    found = watcher.round(progress, everything=True)
    assert found.dropped == dropped
    assert told[0] == (1 if dropped else 2)
    assert len(table(lake, "windows")) == (1 if dropped else 3)
    again = watching(lake, logs)
    look(again)
    same_as_fresh(lake, logs)


def test_looks_say_how_far_apart_they_are(logs: Path, lake: Path) -> None:
    add(logs / "a.log", *clocks(1))
    watcher = watching(lake, logs)
    time = watcher.clock
    assert isinstance(time, Time)
    found: list[Round] = []

    def shown(one: Round) -> None:
        found.append(one)
        time.now += 3  # a table that takes long

    follow(watcher, shown, every=2, seconds=12)
    assert [one.apart for one in found] == [None, 6.0, 6.0]
