"""vLLM's logged responses in parts: the same rows as in one go, whatever the cuts."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_logs import interval
from log_parts import AUTUMN, in_one_go, parts_kept, same, through_autumn

RESPONSE: dict[str, Any] = {
    "model": "org/big",
    "choices": [{"index": 0, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 46, "completion_tokens": 11, "total_tokens": 57},
    "metrics": {
        "time_to_first_token_ms": 200.25, "generation_time_ms": 1000.5, "queue_time_ms": 0.5,
        "speculative_decoding": {
            "acceptance_histogram": [1, 2, 0, 1], "num_spec_steps": 4, "num_accepted_draft_tokens": 5,
            "num_draft_tokens": 12, "num_spec_tokens": 3, "per_step_accepted": [0, 1, 3, 1],
            "per_step_drafted": [3, 3, 3, 3],
        },
    },
}  # fmt: skip


class Log:
    """Responses as gateways log them, or a server among its own lines."""

    def __init__(self, begin: datetime = datetime(2026, 5, 6, 12)) -> None:
        self.now = begin
        self.lines: list[str] = []

    def response(self, number: int) -> dict[str, Any]:
        found = copy.deepcopy(RESPONSE)
        if number % 4:
            found["id"] = f"chatcmpl-{number}"
        if number % 3 == 0:
            del found["metrics"]["speculative_decoding"]["per_step_accepted"]
        if number % 5 == 0:
            found["metrics"]["speculative_decoding"]["num_draft_tokens"] = -1
        return found

    def act(self, kind: int, number: int) -> None:
        """One thing of many that such a log holds."""
        text = json.dumps(self.response(number))
        match kind:
            case 0:
                self.lines.append(text)
            case 1:
                self.lines.append(f"{self.now:%Y-%m-%d %H:%M:%S} | {text}")
            case 2:
                self.lines.append(f"{self.now:%b %d %H:%M:%S} gateway app[1]: {text}")
            case 3:
                self.now += timedelta(seconds=number)
            case 4:
                self.lines.append(
                    json.dumps({"time": f"{self.now:%Y-%m-%dT%H:%M:%S}", "response": self.response(number)})
                )
            case 5:
                self.lines += self.lines[-number:]  # a log that was copied into itself
            case 6:
                self.now += timedelta(days=20 * number)
            case 7:
                self.lines.append(f"INFO {self.now:%m-%d %H:%M:%S} [api.py:1] response_body={text}")
            case 8:
                self.lines.append(interval(f"{self.now:%H:%M:%S}"))


ALONE = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 20)), min_size=1, max_size=30)
MIXED = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 20)), min_size=1, max_size=30)


@settings(max_examples=60)
@given(ALONE | MIXED, st.integers(1, 12), st.none() | st.integers(1, 8000))
def test_rows_do_not_depend_on_the_parts(acts: list[tuple[int, int]], part: int, size: int | None) -> None:
    log = Log()
    for kind, number in acts:
        log.act(kind, number)
    same(log.lines, part, block=3000, range_=size)


@settings(max_examples=30)
@given(ALONE | MIXED, st.integers(1, 12))
def test_nor_do_times(acts: list[tuple[int, int]], part: int) -> None:
    log = Log(AUTUMN)
    through_autumn(log, [(kind if kind != 6 else 1, number) for kind, number in acts])
    same(log.lines, part, block=3000, tz="Europe/Berlin")


@pytest.mark.parametrize("begin", [datetime(2025, 12, 31, 23, 59, 30), AUTUMN])
def test_the_clock_goes_on_from_part_to_part(begin: datetime) -> None:
    """The year of a syslog line, and which of two hours it is, follow from the lines above; also in the last part."""
    log = Log(begin)
    for number in range(1, 119):
        log.act(2 if begin.year == 2025 else 1, number)
        log.now += timedelta(seconds=1)
        if number == 29 and begin == AUTUMN:
            log.now -= timedelta(hours=1)
    with parts_kept() as taken:
        assert not in_one_go(same(log.lines, 20, block=3000, tz="Europe/Berlin", year=2025))
    assert 50 < sum(one.get("requests", 0) for one in taken) < len(log.lines) - 4


@pytest.mark.parametrize("limit", [{"part": 10}, {"part": 1 << 40, "part_bytes": 3000}])
def test_responses_are_written_while_they_are_read(limit: dict[str, int]) -> None:
    log = Log()
    for number in range(1, 200):
        log.act((0, 1, 4)[number % 3], number)
        log.now += timedelta(seconds=1)
    with parts_kept() as taken:
        assert not in_one_go(same(log.lines, limit["part"], **{k: v for k, v in limit.items() if k != "part"}))
    assert len(taken) > 3
    assert sum(one.get("requests", 0) for one in taken) > 50
    assert sum(one.get("rounds", 0) for one in taken) > 100


@pytest.mark.parametrize("kind", [7, 8])
def test_a_server_that_speaks_behind_them(kind: int) -> None:
    log = Log()
    for number in range(1, 60):
        log.act(0, number)
    log.act(kind, 1)
    for number in range(1, 60):
        log.act(0, number)
    assert in_one_go(same(log.lines, 10, block=3000))


def test_responses_wait_where_a_server_speaks_first() -> None:
    log = Log()
    log.act(8, 1)
    for number in range(1, 60):
        log.act((0, 7, 8)[number % 3], number)
        log.now += timedelta(seconds=7)
    with parts_kept() as taken:
        assert not in_one_go(same(log.lines, 10, block=3000))
    assert sum(one.get("windows", 0) for one in taken) > 5
    assert not any("requests" in one for one in taken)
