"""llama-server's log in parts: the same rows as in one go, whatever the cuts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_parts import AUTUMN, in_one_go, parts_kept, same, through_autumn


@dataclass
class Task:
    number: int
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    plain: int = 0


class Log:
    """What a server with some slots says; each of its rounds is of all slots that work."""

    def __init__(
        self, slots: int = 2, begin: datetime = datetime(2026, 8, 20, 20, 40), child: str = "",
        lines: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.now = begin
        self.child = child
        self.lines: list[str] = [] if lines is None else lines
        self.slots: dict[int, Task | None] = {}
        self.drafter = "draft-simple"
        self.told = [0, 0, 0, 0]
        self.us = self.number = 0
        self.start(slots)

    def say(self, text: str, *more: str) -> None:
        self.us += 137
        clock = (
            f"{self.us // 60_000_000}.{self.us // 1_000_000 % 60:02}.{self.us // 1000 % 1000:03}.{self.us % 1000:03}"
        )
        for line in (f"{clock} I {text}", *more):
            self.lines.append(f"{self.now:%b %d %H:%M:%S} gpu llama-server[7]: {self.child}{line}")

    def start(self, slots: int) -> None:
        self.us, self.told, self.number = 0, [0, 0, 0, 0], 0
        self.say("cmn  common_param: common_params_print_info: build 11434 (abc) with GNU 12.2.0 for Linux")
        self.say("srv    load_model: loading model 'tiny-tgt.gguf'")
        self.say(f"spec common_specu: adding speculative implementation '{self.drafter}'")
        self.say("spec common_specu: - n_max=3, n_min=0, p_min=0.000000")
        self.slots = dict.fromkeys(range(slots))
        for slot in range(slots):
            self.say(f"slot   load_model: id  {slot} | task -1 | new slot, n_ctx = 1024")

    def launch(self, number: int) -> None:
        free = [slot for slot, task in self.slots.items() if task is None]
        if not free:
            return
        slot, self.number = free[number % len(free)], self.number + 1
        self.slots[slot] = Task(self.number)
        if number % 3:
            params = f"\ttop_k = 40, top_p = 0.950, xtc_threshold = 0.100, temp = 0.{number % 10}00"
            self.say(f"slot launch_slot_: id  {slot} | task -1 | sampler params: ", params)
        self.say(f"slot launch_slot_: id  {slot} | task {self.number} | processing task, is_child = 0")
        if number % 4:
            self.say(f"slot   operator(): id  {slot} | task {self.number} | cached n_tokens = {number}, memory_seq_rm")

    def step(self, number: int) -> None:
        """A step of the batch: a round of each slot, or a plain step."""
        for slot, task in self.slots.items():
            if task is None:
                continue
            if (number + slot) % 5 == 0:
                task.plain += 1
                continue
            drafted, accepted = 3, (number + slot) % 4
            head = f"slot update_slots: id  {slot} | task {task.number} | "
            self.say(f"{head}accepted {accepted:2}/{drafted:2} draft tokens")
            task.drafted, task.accepted, task.rounds = task.drafted + drafted, task.accepted + accepted, task.rounds + 1
            self.told = [a + b for a, b in zip(self.told, (drafted, accepted, 1, bool(accepted)), strict=True)]

    def end(self, number: int) -> None:
        busy = [(slot, task) for slot, task in self.slots.items() if task is not None]
        if not busy:
            return
        slot, task = busy[number % len(busy)]
        self.slots[slot] = None
        head = f"slot print_timing: id  {slot} | task {task.number} | "
        tokens = task.accepted + task.rounds + task.plain + 1
        released = f"slot      release: id  {slot} | task {task.number} | stop processing: n_tokens = {tokens + 9}"
        released += ", truncated = 0"
        if number % 9 == 4:  # cut context
            released = released.replace("truncated = 0", "truncated = 1")
        if number % 11 == 3:  # a build of before 2026
            released = released.replace("n_tokens", "n_past")
        if number % 7 == 5:  # cancelled; its number comes again when the server restarts
            self.say(released)
            return
        bare = number % 13 == 6  # a block in one call, with its header alone in the form of a slot's line
        if bare:
            self.say(released)
            self.say(head)
        own = "" if bare else head
        speed = "( 1.00 ms per token, 9.00 tokens per second)"
        self.say(f"{own}prompt eval time =  {self.us % 97}.50 ms /     9 tokens {speed}")
        self.say(f"{own}       eval time =  {self.us % 89}.25 ms /    {tokens} tokens {speed}")
        if task.drafted:
            self.say(f"{own}draft acceptance = 0.5 ( {task.accepted} accepted / {task.drafted} generated)")
        if number % 6:
            self.statistics(self.drafter, *self.told)
        if not bare and number % 17:
            self.say(released)
        if number % 4 == 0 and task.rounds:
            late = task.number if number % 8 else -1
            self.say(f"slot update_slots: id  {slot} | task {late} | accepted 2/3 draft tokens, new n_tokens = 24")

    def statistics(self, drafter: str, drafted: int, accepted: int, rounds: int, some: int) -> None:
        self.say(
            f"spec common_specu: statistics {drafter}: #calls(b,g,a) = 1 {rounds} {rounds}, #gen drafts = {rounds},"
            f" #acc drafts = {some}, #gen tokens = {drafted}, #acc tokens = {accepted},"
            f" dur(b,g,a) = 0.0, {rounds}.5, 0.1 ms"
        )

    def act(self, kind: int, number: int) -> None:
        """One thing of many that a server says."""
        match kind:
            case 0 | 1 | 2 | 4:
                self.step(number)
            case 3:
                self.now += timedelta(seconds=number)
            case 5 | 6:
                self.launch(number)
            case 7 | 8:
                self.end(number)
            case 9 if number < 4:
                self.start(len(self.slots))
            case 10 if number < 3:
                self.lines += self.lines[-20 * number :]  # a log that was copied into itself
            case 11:
                self.lines.append(f"slot update_slots: id  0 | task {number} | accepted 9/3 draft tokens")


ACTS = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 20)), min_size=1, max_size=40)


@settings(max_examples=25)
@given(ACTS, st.integers(1, 3), st.booleans(), st.integers(1, 12), st.none() | st.integers(1, 8000))
def test_rows_do_not_depend_on_the_parts(
    acts: list[tuple[int, int]], slots: int, routed: bool, part: int, size: int | None
) -> None:
    log = Log(slots, child="[52001] " if routed else "")
    other = Log(slots, child="[52002] ", lines=log.lines) if routed else log
    for i, (kind, number) in enumerate(acts):
        (log, other)[(i + number) % 2].act(kind, number)
    same(log.lines, part, block=3000, range_=size, year=2026)


@settings(max_examples=8)
@given(ACTS, st.integers(1, 12))
def test_nor_do_times(acts: list[tuple[int, int]], part: int) -> None:
    log = Log(begin=AUTUMN)
    through_autumn(log, acts)
    same(log.lines, part, block=3000, tz="Europe/Berlin", year=2026)


def served(log: Log, requests: int) -> Log:
    """A server that is idle now and then."""
    for number in range(1, requests + 1):
        log.launch(number)
        log.launch(number + 1)
        for step in range(4):
            log.step(number + step)
        log.end(number)
        log.step(number)
        log.end(number + 1)
        log.now += timedelta(seconds=number % 3)
    return log


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("size", [None, 3000])
def test_a_log_is_written_while_it_is_read(slots: int, size: int | None) -> None:
    with parts_kept() as taken:
        assert not in_one_go(same(served(Log(slots), 12).lines, 30, block=1000, range_=size, year=2026))
    assert len(taken) > 2
    for table in ("rounds", "windows", "requests"):
        assert sum(one.get(table, 0) for one in taken) > 5


def test_a_server_that_is_never_idle_waits_for_the_end() -> None:
    log = Log(2)
    log.launch(1)
    for number in range(1, 12):
        log.launch(number)
        log.step(number)
        if log.slots[1] is not None:
            log.slots[0], keep = None, log.slots[0]
            log.slots = {1: log.slots[1]}
            log.end(number)
            log.slots = {0: keep, 1: None}
    with parts_kept() as taken:
        assert not in_one_go(same(log.lines, 10, block=1000, year=2026))
    assert not any(one.get("rounds") for one in taken)


@pytest.mark.parametrize(
    "late",
    [
        "slot   load_model: id  1 | task -1 | new slot, n_ctx = 1024",
        "slot update_slots: id  0 | task 3 | accepted  1/ 3 draft tokens",
        "spec common_specu: - n_max=5, n_min=0, p_min=0.000000",
        "spec common_specu: statistics ngram-mod: #calls(b,g,a) = 1 3 3, #gen drafts = 3, #acc drafts = 1,"
        " #gen tokens = 9, #acc tokens = 2, dur(b,g,a) = 0.0, 3.5, 0.1 ms",
    ],
)
def test_what_all_lines_tell_together_is_told_late(late: str) -> None:
    log = served(Log(1), 5)
    log.say(late)
    with parts_kept() as taken:
        assert in_one_go(same(served(log, 2).lines, 10, block=1000, year=2026))
    assert any(one.get("rounds") for one in taken)


def test_settings_of_one_of_several_drafters_are_told_late() -> None:
    """The run has no K of its own then, so its row does not tell of them."""
    log = Log(1)
    adding = next(i for i, line in enumerate(log.lines) if "adding speculative" in line)
    log.lines.insert(adding, log.lines[adding].replace(log.drafter, "ngram-mod"))
    served(log, 5).say("spec common_specu: - n_max=5, n_min=0, p_min=0.000000")
    with parts_kept() as taken:
        assert in_one_go(same(served(log, 2).lines, 10, block=1000, year=2026))
    assert any(one.get("windows") for one in taken)
