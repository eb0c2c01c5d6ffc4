"""SGLang's logs in parts: the same rows as in one go, whatever the cuts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_parts import AUTUMN, by_one, in_one_go, parts_kept, same, through_autumn

from tracelens.ingest.redact import Redaction

ARGS = (
    "server_args=ServerArgs(model_path='/m/big', tp_size=2, {interval}speculative_algorithm='EAGLE3', "
    "speculative_num_steps={k}, speculative_eagle_topk=1, speculative_num_draft_tokens=4, random_seed={seed})"
)


class Log:
    """Lines of some schedulers that write into one file."""

    def __init__(self, begin: datetime = datetime(2026, 5, 6, 12)) -> None:
        self.now = begin
        self.lines: list[str] = []
        self.passes = 0

    def say(self, message: str, ranks: str = "") -> None:
        self.lines.append(f"[{self.now:%Y-%m-%d %H:%M:%S}{ranks}] {message}")

    def decode(self, running: int, length: float | None = 2.5, ranks: str = " TP0", number: bool = False) -> None:
        self.passes += 40
        accept = "" if length is None else f"accept len: {length:.2f}, accept rate: {length / 4:.2f}, "
        self.say(
            f"Decode batch{f' [{self.passes}]' if number else ''}, #running-req: {running}, #token: 512, "
            f"token usage: 0.01, {accept}gen throughput (token/s): {40 * running * (length or 1) / 2:.2f}, "
            "#queue-req: 0",
            ranks,
        )

    def prefill(self, ranks: str = " TP0") -> None:
        self.say("Prefill batch, #new-seq: 1, #new-token: 64, token usage: 0.02, #running-req: 1, #queue-req: 0", ranks)

    def start(self, k: int = 3, interval: int | None = 40) -> None:
        told = "" if interval is None else f"decode_log_interval={interval}, "
        self.say(ARGS.format(k=k, interval=told, seed=len(self.lines)))

    def finish(self, number: int) -> None:
        rid = "" if number % 4 == 0 else f"'id': 'f-{number}', "
        self.say(
            f"Finish: obj=GenerateReqInput(sampling_params={{'temperature': 0.6}}), out={{'meta_info': {{{rid}"
            "'finish_reason': {'type': 'length', 'length': 17}, 'prompt_tokens': 12, 'completion_tokens': 17, "
            "'e2e_latency': 0.8, 'spec_verify_ct': 6}}"
        )

    def act(self, kind: int, number: int) -> None:
        """One thing of many that a server says."""
        ranks = (" TP0", " TP1", " DP0 TP0", " DP1 TP0", "")[number % 5]
        match kind:
            case 0 | 1 | 2:
                self.decode(1 + number % 3, 1 + number % 9 / 4, ranks)
            case 3:
                self.now += timedelta(seconds=number)
            case 4:
                self.prefill(ranks)
            case 5:
                self.decode(1 + number % 3, (None, 0.0)[number % 2], ranks)
            case 6:
                self.decode(number % 3, 2.5, ranks, number=True)
            case 7:
                self.lines += self.lines[-number:]  # printed twice, or copied into itself
            case 8:
                self.start(1 + number % 3, None if number % 2 else 40)
            case 9:
                self.lines += ["INFO: 200 OK"] * number
            case 10:
                self.say("Decode batch, #running-req: 4, #tok", ranks)
            case 11:
                self.finish(number)
            case 12:
                self.say(f"Adaptive spec params updated: steps 3 -> {1 + number % 4}", ranks)
            case 13:
                self.lines.append("+ export SGLANG_SIMULATE_ACC_LEN=2.5")


ACTS = st.lists(st.tuples(st.integers(0, 13), st.integers(1, 20)), min_size=1, max_size=30)


@settings(max_examples=60)
@given(ACTS, st.integers(1, 12), st.none() | st.integers(1, 4000), st.booleans())
def test_rows_do_not_depend_on_the_parts(acts: list[tuple[int, int]], part: int, size: int | None, shows: bool) -> None:
    log = Log()
    if shows:  # with all that a log tells of its servers late at its beginning
        log.start()
        for ranks in (" TP0", " TP1", " DP0 TP0", " DP1 TP0", ""):
            log.prefill(ranks)
            log.decode(1, 2.5, ranks)
    for kind, number in acts:
        log.act(kind, number)
    same(log.lines, part, block=1500, range_=size)


@settings(max_examples=40)
@given(ACTS, st.integers(1, 12))
def test_nor_do_times(acts: list[tuple[int, int]], part: int) -> None:
    log = Log(AUTUMN)
    through_autumn(log, acts)
    same(log.lines, part, block=1500, tz="Europe/Berlin")


def long_log(start: bool = True) -> Log:
    log = Log()
    if start:
        log.start()
    for number in range(300):
        if number % 10 == 0:
            log.prefill()
        log.decode(1 + number // 10 % 3, 2.5 + number % 7 / 4)
        log.now += timedelta(seconds=2)
        if number % 20 == 0:
            log.finish(number)
    return log


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("size", [None, 20_000])
def test_a_log_is_written_while_it_is_read(start: bool, size: int | None) -> None:
    log = long_log(start)
    with parts_kept() as taken:
        said = same(log.lines, 50, range_=size)
    assert not in_one_go(said)
    assert not by_one(said)
    assert len(taken) > 2
    assert sum(one["windows"] for one in taken) > 0.6 * 330


def test_ids_are_hashed_in_every_part() -> None:
    assert not in_one_go(same(long_log().lines, 10, redaction=Redaction(b"salt" * 8)))


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (lambda log: log.prefill(" DP1 TP0"), "prefills of a scheduler that had printed none"),
        (lambda log: log.decode(1, 2.5, " DP1 PP0"), "a lower rank"),
        (lambda log: log.decode(1, 4.9), "an accept length that the drafts so far can't give"),
    ],
)
def test_what_all_lines_tell_together_is_told_late(late: Any, why: str) -> None:
    log = long_log(start=False)
    for number in range(20):
        log.decode(2, 2.5, " DP1 TP3")
        log.now += timedelta(seconds=number)
    late(log)
    assert in_one_go(same(log.lines, 10)), why


def test_the_first_rates_of_a_server_are_told_late() -> None:
    log = Log()
    for number in range(80):
        log.decode(2, 0.0 if number < 60 else 2.25 + number % 2 / 4)
        log.now += timedelta(seconds=2)
    assert in_one_go(same(log.lines, 10, block=1500))


def test_lines_that_come_more_often_from_some_place_on() -> None:
    log = Log()
    for _ in range(40):
        log.decode(2, number=True)
        log.now += timedelta(seconds=2)
    log.passes -= 30
    log.decode(2, number=True)
    assert in_one_go(same(log.lines, 10, block=1500))
    told = Log()
    told.start(interval=40)
    assert not in_one_go(same(told.lines + log.lines, 10, block=1500))
