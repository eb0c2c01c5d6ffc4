"""RTP-LLM's records in parts: the same rows as in one go, whatever the cuts."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from log_parts import AUTUMN, in_one_go, parts_kept, same, through_autumn

DATA = Path(__file__).parents[1] / "data" / "rtp-llm"
ACCESS, QUERY, DASH = (
    json.loads((DATA / f"{name}.log").read_text(encoding="utf-8").splitlines()[0])
    for name in ("access_r0_s0", "query_access_r0_s0", "dash_sc_grpc_access_r0_s0")
)
DEBUG = (DATA / "engine_v0.2.0_debug.log").read_text(encoding="utf-8").splitlines()


class Log:
    """Records of some ranks that write into one file."""

    def __init__(self, begin: datetime = datetime(2026, 8, 20, 20, 40)) -> None:
        self.now = begin
        self.lines: list[str] = []

    def request(self, record: dict[str, Any], number: int) -> None:
        record = copy.deepcopy(record)
        if "log_time" in record:
            record["id"] = record["request"]["request_json"]["__request_id__"] = number
            record["log_time"] = f"{self.now:%Y-%m-%d %H:%M:%S}.100"
            if number % 4 == 0:
                del record["id"], record["request"]["request_json"]["__request_id__"]
        self.lines.append(json.dumps(record))

    def step(self, number: int) -> None:
        streams = [
            {"request_id": i, "propose_token_num": 3, "accept_token_num": 1 + (number + i) % 4}
            for i in range(number % 4)
        ]
        totals = {
            "total_propose_token_num": sum(s["propose_token_num"] for s in streams) or 6,
            "total_accepted_token_num": sum(s["accept_token_num"] for s in streams) or 3,
            "total_stream_num": len(streams) or 2,
        }
        times = {"step_latency_us": 9000 + number, "propose_step_latency_us": 4000 + number}
        times |= {"score_step_latency_us": 3000, "speculative_sampler_latency_us": 300}
        own = {"ts_us": int(self.now.timestamp() * 1e6)} if number % 3 else {}
        lag = {"accept_lag_steps": 1} if number % 5 == 0 else {}
        told = {"streams": streams} if streams else {}
        self.lines.append(json.dumps({**own, "dp_rank": number % 2, **times, **totals, **lag, **told}))

    def act(self, kind: int, number: int) -> None:
        """One thing of many that a server says."""
        match kind:
            case 0 | 1 | 2:
                self.step(number)
            case 3:
                self.now += timedelta(seconds=number)
            case 4:
                self.request(ACCESS, number)
            case 5:
                self.request(QUERY, number)
            case 6:
                self.request(DASH, number)
            case 7:
                self.lines += self.lines[-number:]  # a log that was copied into itself
            case 8:
                self.lines.append(DEBUG[number % len(DEBUG)])
            case 9:
                self.lines.append(f"gen_num_per_cycle: {number % 3}")
            case 10:
                self.lines.append('{"step_latency_us": 9, "streams": [{"request_id": 1, "accept_token_num": 9}]}')


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


def test_records_are_written_while_they_are_read() -> None:
    log = Log()
    for number in range(1, 200):
        log.act((0, 4, 5)[number % 3], number)
        log.now += timedelta(seconds=1)
    with parts_kept() as taken:
        assert not in_one_go(same(log.lines, 10))
    assert len(taken) > 5
    assert sum(one.get("rounds", 0) for one in taken) > 50
    assert sum(one.get("requests", 0) for one in taken) > 50


def test_a_configuration_below_records() -> None:
    log = Log()
    for number in range(1, 60):
        log.step(number)
    log.lines.append("gen_num_per_cycle: 4")
    assert in_one_go(same(log.lines, 10, block=3000))
