"""TensorRT-LLM's iterations and requests in parts: the same rows as in one go, whatever the cuts."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_parts import AUTUMN, in_one_go, parts_kept, same, through_autumn

from tests.engines.test_tensorrt_llm import logged, perf, stats
from tests.engines.test_tensorrt_llm_steps import spec


class Log:
    """What a server with two ranks says."""

    def __init__(self, begin: datetime = datetime(2026, 8, 20, 20, 40)) -> None:
        self.now = begin
        self.lines: list[str] = []
        self.number = 3  # warm-up at first

    def iteration(self, number: int, **more: Any) -> dict[str, Any]:
        """An iteration of a chain of three drafts, or of none where nothing drafts in it."""
        self.number += 1
        rounds = number % 5
        stamp = {"timestamp": f"{self.now:%m-%d-%Y %H:%M:%S.%f}"} if number % 7 else {}
        rank = {"attentionDpRank": number % 2} if number % 4 == 0 else {}
        times = {"hostStepTimeMS": 9.0 + number} if number % 6 else {}
        device = {"prevDeviceStepTimeMS": 8.0 + number / 4} if number % 3 == 1 else {}
        idle = {"inflightBatchingStats": {"numScheduledRequests": 0}} if number % 5 == 0 else {}
        numbered = {"statsSequence": self.number} if number % 2 else {}
        own = {"specDecodingStats": spec(3 * rounds, rounds, rounds, 2.5), **idle, **times, **device}
        return stats(self.number, **own, **stamp, **rank, **numbered, **more)

    def request(self, number: int) -> dict[str, Any]:
        """A finished request that shares its last steps with others."""
        began = [float(self.number - i) for i in range(number % 4)]
        steps = [{"forward_start_time": b, "gpu_forward_time": 5.0 + b, "gpu_sample_time": 0.5} for b in began]
        chunks = [{"forward_start_time": b, "gpu_forward_time": 40.0} for b in began[:1]] if number % 5 == 0 else []
        drafts = {"total_accepted_draft_tokens": number, "total_draft_tokens": 30} if number % 3 else None
        record = perf(drafts) | {"time_breakdown_metrics": {"step_metrics": steps, "ctx_chunk_metrics": chunks}}
        return record | {"request_id": number if number % 4 else None}

    def act(self, kind: int, number: int) -> None:
        """One thing of many that a server says."""
        match kind:
            case 0 | 1 | 2:
                self.lines.append(json.dumps(self.iteration(number)))
            case 3:
                self.now += timedelta(seconds=number)
            case 4:
                self.lines.append(json.dumps([self.iteration(n) for n in range(number % 4)]))
            case 5:
                self.lines.append(json.dumps(self.request(number)))
            case 6:
                spent = {"total_accepted_draft_tokens": 5, "total_draft_tokens": 12, "num_spec_steps": 4}
                named = {"id": f"cmpl-{number}"} if number % 3 else {}
                self.lines.append(json.dumps({**named, "choices": [{"speculative_decoding": spent}]}))
            case 7:
                self.lines += self.lines[-number:]  # a log that was copied into itself
            case 8:
                self.number += 1
                idle = 0 if number % 5 == 0 else 4
                self.lines.append(logged(self.number, idle, 7.0, f"{6 + number / 4}ms", rank=number % 2))
            case 9:
                self.number += number  # iterations that nobody polled
            case 10:
                self.lines.append('{"iterLatencyMS": 9, "iter": 1, "specDecodingStats": {"numDraftTokens": -1}}')


ACTS = st.lists(st.tuples(st.integers(0, 10), st.integers(1, 20)), min_size=1, max_size=30)


@settings(max_examples=60)
@given(ACTS, st.integers(1, 12), st.none() | st.integers(1, 8000))
def test_rows_do_not_depend_on_the_parts(acts: list[tuple[int, int]], part: int, size: int | None) -> None:
    log = Log()
    for kind, number in acts:
        log.act(kind, number)
    same(log.lines, part, block=3000, range_=size)


@settings(max_examples=30)
@given(ACTS, st.integers(1, 12))
def test_nor_do_times(acts: list[tuple[int, int]], part: int) -> None:
    log = Log(AUTUMN)
    through_autumn(log, acts)
    same(log.lines, part, block=3000, tz="Europe/Berlin")


def long_log(first: int = 1) -> Log:
    log = Log()
    for number in range(first, first + 200):
        log.act((0, 5, 8, 6)[number % 4] if number % 8 else 4, number % 20 + 1)
        log.now += timedelta(seconds=1)
    return log


@pytest.mark.parametrize("size", [None, 3000])
def test_records_are_written_while_they_are_read(size: int | None) -> None:
    with parts_kept() as taken:
        assert not in_one_go(same(long_log().lines, 10, block=1000, range_=size))
    assert len(taken) > 5
    assert sum(one.get("windows", 0) for one in taken) > 50
    assert sum(one.get("requests", 0) for one in taken) > 50


def test_a_repeat_of_a_record_that_names_no_rank() -> None:
    first, again = stats(4, hostStepTimeMS=23.0), stats(4, 0, 0, 0, attentionDpRank=0)
    between = [stats(n, timestamp=f"08-20-2026 20:00:{n}") for n in range(10, 40)]
    same([json.dumps(first), *map(json.dumps, between), json.dumps([again])], 10, block=1000)


def silent(number: int) -> dict[str, Any]:
    """An iteration as of before #9855, whose zeros may never have been filled."""
    return stats(number, specDecodingStats=spec(0, 0, 0, 0.0), timestamp=f"08-20-2026 20:{number // 60}:{number % 60}")


@pytest.mark.parametrize(
    ("before", "late"),
    [
        ([silent(n) for n in range(60)], stats(70)),  # zeros that turn out to be counts
        ([stats(n, 12, 6, 4, timestamp=f"08-20-2026 20:00:{n}") for n in range(10, 60)], stats(70, 20, 6, 4)),
        ([logged(n, 4, 7.0, "6.0ms", rank=1) for n in range(60)], logged(70, 4, 7.0, "6.0ms", rank=0)),
    ],
)
def test_what_all_records_tell_together_is_told_late(before: list[Any], late: Any) -> None:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in (*before, late)]
    with parts_kept() as taken:
        assert in_one_go(same(lines, 10, block=3000))
    assert taken  # some part was written before
