"""Records of RTP-LLM in bulk: what `plain` takes is what `access` and `steps` say of the same records."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracelens.engines.base import JsonRecord, Parsed
from tracelens.engines.rtp_llm import ENGINE, access, plain, steps

ACCESS: dict[str, Any] = {
    "request": {"request_json": {
        "model": "/models/target-72b", "temperature": 0.7, "top_p": 0.9, "source": "gateway",
        "generate_config": {"temperature": 0.2, "task_id": 7, "force_sp_accept": False},
        "extra_configs": {"top_p": 0.5, "task_id": "chat", "generate_config": {"temperature": 1, "task_id": "code"}},
        "extend_fields": {"task_type": "summarize", "task": "other"}, "messages": [],
    }},
    "response": {"exception": None, "responses": [{
        "choices": [{"index": 0, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 812, "completion_tokens": 15},
        "aux_info": {
            "cost_time": 425.949, "iter_count": 5, "input_len": 812, "output_len": 15, "first_token_cost_time": 212.4,
            "wait_time": 3.1, "reuse_len": 4, "speculative_draft_rounds": 4,
            "speculative_accepted_tokens_per_pos": [3, 3, 2, 1, 1],
        },
    }]},
    "id": 3536840114397185, "log_time": "2026-08-20 20:40:05.912",
}  # fmt: skip
STEP: dict[str, Any] = {
    "ts_us": 1787229605471000, "dp_rank": 0, "step_latency_us": 53412, "propose_step_latency_us": 35120,
    "score_step_latency_us": 17984, "speculative_sampler_latency_us": 308.5, "total_propose_token_num": 10,
    "total_accepted_token_num": 7, "total_stream_num": 2, "spec_steps": 5, "accept_lag_steps": 1,
    "generate_batch_size": 2, "streams": [
        {"request_id": 81423, "propose_token_num": 5, "accept_token_num": 3, "top_k": 1, "top_p": 1.0},
        {"request_id": "r-2", "propose_token_num": 5, "accept_token_num": 4, "top_p": 2},
        {"propose_token_num": 0, "accept_token_num": 1},
    ],
}  # fmt: skip


def records_of(values: Sequence[dict[str, Any]], a_line: int = 1) -> list[JsonRecord]:
    """Some records a line, as Loki's pushes hold them."""
    stamps = [None, "2026-08-20"]
    return [JsonRecord(3 * (i // a_line) + 1, 10 * i, stamps[i % 2], None, v) for i, v in enumerate(values)]


def one_by_one(records: Sequence[JsonRecord], parsed: Parsed) -> list[JsonRecord]:
    return list(records)


def both(values: Sequence[dict[str, Any]], a_line: int = 1) -> tuple[Parsed, Parsed]:
    """What is read in bulk, and one by one."""
    records = records_of(values, a_line)
    with patch.object(plain, "take", one_by_one):
        slow = ENGINE.records(records)
    return ENGINE.records(records), slow


def check(values: Sequence[dict[str, Any]], a_line: int = 1) -> None:
    quick, slow = both(values, a_line)
    assert quick.claimed == slow.claimed
    assert quick.rejects == slow.rejects
    assert quick.frames.keys() == slow.frames.keys()
    for surface, parts in slow.frames.items():
        found = pl.concat(quick.frames[surface]).sort("line", maintain_order=True)
        assert_frame_equal(found, pl.concat(parts), check_exact=True)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a record."""
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def changed(value: dict[str, Any], path: tuple[Any, ...], to: Any) -> dict[str, Any]:
    """The record with another value in a place, or without it."""
    value = copy.deepcopy(value)
    inner: Any = value
    for key in path[:-1]:
        inner = inner[key]
    if to is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return value


GONE = object()
_numbers = st.integers(-3, 12) | st.integers() | st.floats() | st.sampled_from([2**31 - 1, 2**31, 2**63, 10**400, 0.5])
_cells = st.one_of(
    st.just(GONE), st.none(), st.booleans(), _numbers, st.text(max_size=3), st.lists(st.integers(-1, 6), max_size=5),
    st.sampled_from(["", "stop", "STOP", "x" * 200, "/a/b/", "a\nb", "é", "\ud800", "a\ud800"]),
    st.sampled_from([{}, [], [{}], {"task_id": 3}]),
)  # fmt: skip


def variants(value: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    one = st.builds(changed, st.just(value), st.sampled_from(list(places(value))), _cells)
    more = st.sampled_from(
        [
            {"event": "rpc_completed", "component_role": "x"},
            {"streams": [1]},
            {"aux_info": {}},
            {"request": None},
            {"id": ""},
        ]
    )
    return one | one.flatmap(
        lambda first: st.builds(changed, st.just(first), st.sampled_from(list(places(first))), _cells)
    ) | st.builds(lambda some: value | some, more)  # fmt: skip


@pytest.mark.parametrize("value", [ACCESS, STEP], ids=["access", "step"])
def test_the_usual_form_is_read_in_bulk(value: dict[str, Any]) -> None:
    parsed = Parsed()
    assert plain.take(records_of([value] * 3), parsed) == []
    assert parsed.claimed == 3
    check([value] * 3)


@settings(max_examples=400, deadline=None)
@given(st.lists(variants(ACCESS) | variants(STEP), min_size=1, max_size=6), st.sampled_from([1, 1, 2, 3]))
@example([ACCESS | {"event": "rpc_completed", "component_role": "prefill"}], 1)
@example([STEP | {"event": "rpc_completed", "latency_total_ms": 1}], 1)
@example([STEP | ACCESS, STEP | {"aux_info": {"iter_count": 1, "input_len": 1, "output_len": 1}}], 1)
@example([changed(ACCESS, ("request", "request_json", "generate_config", "temperature"), -1)], 1)
@example([{**ACCESS, "request": {"request_json": {"temperature": t, "top_p": t}}} for t in (0, 1, 1e6, 1e7, -0.0)], 1)
@example([STEP | {"ts_us": 3}, STEP | {"streams": [STEP["streams"][0] | {"top_p": "x"}]}, STEP | {"ts_us": 4}], 3)
@example([changed(ACCESS, ("request", "request_json", "temperature"), "\ud800"), ACCESS], 1)
def test_any_records_are_read_as_one_by_one(values: list[dict[str, Any]], a_line: int) -> None:
    check(values, a_line)


@settings(max_examples=200, deadline=None)
@given(
    st.none() | st.integers(0, 6), st.none() | st.lists(st.integers(0, 6), max_size=5), st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 40), st.none() | st.integers(0, 40),
)  # fmt: skip
@example(3, [], None, None, None)
@example(None, [2, 1], 1, 3, None)
@example(2, [1, 2], 1, 3, None)
@example(0, [], 0, 0, 0)
@example(1, [2], 1, 1, 1)
def test_any_counts_are_read_as_one_by_one(
    rounds: int | None, per_pos: list[int] | None, passes: int | None, tokens: int | None, told: int | None
) -> None:
    value = copy.deepcopy(ACCESS)
    answer = value["response"]["responses"][0]
    answer["usage"]["completion_tokens"] = told
    answer["aux_info"] |= {
        "speculative_draft_rounds": rounds, "speculative_accepted_tokens_per_pos": per_pos, "iter_count": passes,
        "output_len": tokens,
    }  # fmt: skip
    check([value, ACCESS])


@settings(max_examples=200, deadline=None)
@given(*[st.none() | st.floats(0, 1e13) | st.integers(0, 10**13)] * 3)
def test_any_times_are_read_as_one_by_one(total: Any, first: Any, wait: Any) -> None:
    value = copy.deepcopy(ACCESS)
    value["response"]["responses"][0]["aux_info"] |= {
        "cost_time": total, "first_token_cost_time": first, "wait_time": wait,
    }  # fmt: skip
    check([value])


_phase = st.none() | st.sampled_from([0, 0.0, 0.4, 0.5, 1.5]) | st.integers(0, 10**16) | st.floats(0, 1e16)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=4), *[_phase] * 4,
    st.none() | st.integers(0, 4), st.sampled_from(["some", "all", "none", "wrong"]),
)  # fmt: skip
def test_any_steps_are_read_as_one_by_one(
    streams: list[tuple[int, int]], draft: Any, target: Any, sample: Any, step: Any, size: int | None, totals: str
) -> None:
    counted = [(p, a) for p, a in streams if p or totals != "some"]
    sums = [len(counted), sum(p for p, _ in counted), sum(a for _, a in counted) + (totals == "wrong")]
    names = ("total_stream_num", "total_propose_token_num", "total_accepted_token_num")
    value = STEP | dict(zip(names, [None] * 3 if totals == "none" else sums, strict=True))
    pairs = [{"request_id": i, "propose_token_num": p, "accept_token_num": a} for i, (p, a) in enumerate(streams)]
    value |= {
        "streams": pairs,
        "propose_step_latency_us": draft, "score_step_latency_us": target, "speculative_sampler_latency_us": sample,
        "step_latency_us": step, "generate_batch_size": size,
    }  # fmt: skip
    check([value, STEP, value])


@pytest.mark.parametrize("error", [OverflowError, UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates"), RecursionError])
def test_what_a_form_can_not_take_is_read_one_by_one(error: Any) -> None:
    records = records_of([ACCESS, STEP])
    with patch.object(plain.msgspec, "convert", side_effect=error):
        assert plain.take(records, Parsed()) == records


def test_what_is_refused_comes_in_the_order_of_lines() -> None:
    odd = changed(ACCESS, ("response", "responses", 0, "aux_info", "output_len"), -1)
    broken = changed(ACCESS, ("response", "responses", 0, "aux_info", "speculative_draft_rounds"), 1)
    check([broken, odd, STEP, broken, {"streams": 3, "step_latency_us": 1}, odd, ACCESS])
    quick, _ = both([broken, odd, ACCESS, broken])
    assert [reject.line for reject in quick.rejects] == [1, 4, 10]
    assert [f["line"].to_list() for f in quick.frames[access.ACCESS]] == [[7]]
    assert steps.SURFACE not in quick.frames
