"""Logged HTTP responses: levels of detail, wrappings, and everything that a record should not be."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_lines import ingest, only, shown

from tracelens.engines.base import JsonRecord
from tracelens.engines.vllm import ENGINE, responses

START = 1_795_953_946
BODY: dict[str, Any] = {
    "id": "chatcmpl-sum.7f3a",
    "object": "chat.completion",
    "created": START,
    "model": "org/big",
    "choices": [{"index": 0, "message": {"content": "CANARY"}, "finish_reason": "length"}],
    "usage": {
        "prompt_tokens": 46,
        "completion_tokens": 11,
        "total_tokens": 57,
        "prompt_tokens_details": {"cached_tokens": 16},
    },
    "metrics": {
        "time_to_first_token_ms": 200.25,
        "generation_time_ms": 1000.5,
        "queue_time_ms": 0.5,
        "mean_itl_ms": 99.0,
        "tokens_per_second": 9.1,
        "speculative_decoding": {
            "mean_acceptance_length": 2.25,
            "draft_acceptance_rate": 0.4167,
            "acceptance_histogram": [1, 2, 0, 1],
            "num_spec_steps": 4,
            "num_accepted_draft_tokens": 5,
            "num_draft_tokens": 12,
            "num_spec_tokens": 3,
            "per_step_accepted": [0, 1, 3, 1],
            "per_step_drafted": [3, 3, 3, 3],
        },
    },
}
ROW = {
    "request_id": "chatcmpl-sum.7f3a", "model": "org/big", "num_speculative_tokens": 3, "prompt_tokens": 46,
    "output_tokens": 11, "cached_tokens": 16, "iterations": 5, "rounds": 4, "drafted": 12, "accepted": 5, "emitted": 10,
    "accepted_hist": [1, 2, 0, 1], "ttft_us": 200_250, "decode_us": 1_000_500, "queue_us": 500, "e2e_us": 1_201_250,
    "tpot_us": 100_050.0, "tpot_basis": "derived", "counts_basis": "logged", "finish_reason": "length",
    "ts_start": datetime.fromtimestamp(START, UTC).replace(tzinfo=None), "ts_basis": "absolute",
    "ts_first_token": datetime.fromtimestamp(START + 0.20075, UTC).replace(tzinfo=None),
    "ts_end": datetime.fromtimestamp(START + 1.20125, UTC).replace(tzinfo=None),
    "source_line": 1, "surface": "vllm.response", "run_key": 0,
}  # fmt: skip


def body(**changes: Any) -> dict[str, Any]:
    """The response, with other values at dotted places (`__` for a dot); `...` takes a field away."""
    out = copy.deepcopy(BODY)
    for path, value in changes.items():
        *way, last = path.split("__")
        place = out
        for step in way:
            place = place[step]
        if value is ...:
            place.pop(last)
        else:
            place[last] = value
    return out


def spec(**changes: Any) -> dict[str, Any]:
    return body(**{f"metrics__speculative_decoding__{k}": v for k, v in changes.items()})


def test_detailed() -> None:
    tables, rejects = ingest(BODY)
    assert (only(tables.requests), rejects) == (ROW, [])
    columns = ("round_index", "drafted", "accepted", "emitted", "request_id", "num_speculative_tokens", "ts")
    end = ROW["ts_end"]
    assert shown(tables.rounds, *columns) == [
        (0, 3, 0, 1, "chatcmpl-sum.7f3a", 3, end),
        (1, 3, 1, 2, "chatcmpl-sum.7f3a", 3, end),
        (2, 3, 3, 4, "chatcmpl-sum.7f3a", 3, end),
        (3, 3, 1, 2, "chatcmpl-sum.7f3a", 3, end),
    ]
    assert (tables.windows, tables.runs) == (None, None)


def test_summary_has_no_rounds() -> None:
    tables, rejects = ingest(spec(per_step_accepted=..., per_step_drafted=...))
    assert (only(tables.requests), tables.rounds, rejects) == (ROW, None, [])


def test_a_stop_inside_the_last_round_is_cut_there() -> None:
    tables, _ = ingest(body(usage__completion_tokens=9))
    assert shown(tables.rounds, "emitted") == [(1,), (2,), (4,), (1,)]  # 8 behind the first token
    assert only(tables.requests)["emitted"] == 8


def test_baseline_without_speculation() -> None:
    tables, rejects = ingest(body(metrics__speculative_decoding=None))
    gone = {"rounds", "drafted", "accepted", "emitted", "accepted_hist", "iterations", "counts_basis"}
    expected = {k: v for k, v in ROW.items() if k not in gone | {"num_speculative_tokens"}}
    assert (only(tables.requests), tables.rounds, rejects) == (expected, None, [])


def test_the_final_chunk_of_a_stream() -> None:
    chunk = body(choices=[], object="chat.completion.chunk")
    row = only(ingest(chunk)[0].requests)
    assert row == {k: v for k, v in ROW.items() if k != "finish_reason"}


def test_speculation_without_times() -> None:
    only_spec = {"speculative_decoding": BODY["metrics"]["speculative_decoding"]}
    row = only(ingest(body(metrics=only_spec))[0].requests)
    assert (row["rounds"], row["ts_start"], row["ts_end"]) == (4, ROW["ts_start"], ROW["ts_start"])
    assert not {"tpot_us", "e2e_us", "ts_first_token"} & set(row)


def test_partial_times_keep_their_request() -> None:
    row = only(ingest(body(metrics__time_to_first_token_ms=None))[0].requests)
    assert (row["decode_us"], row["tpot_us"], row["ts_end"]) == (1_000_500, 100_050.0, row["ts_start"])
    row = only(ingest(body(metrics__generation_time_ms=None, metrics__speculative_decoding=None))[0].requests)
    assert (row["tpot_us"], row["tpot_basis"]) == (99_000.0, "logged")
    assert row["ts_end"] == row["ts_first_token"]
    row = only(ingest(body(usage=None))[0].requests)
    assert (row["tpot_us"], row["tpot_basis"], row.get("output_tokens")) == (99_000.0, "logged", None)
    row = only(ingest(body(usage__completion_tokens=1))[0].requests)
    assert "tpot_us" not in row


def test_a_loggers_stamp_is_the_end_where_nothing_better_is_known() -> None:
    row = only(ingest(body(created=...), stamp="2026-05-06T12:00:00Z")[0].requests)
    assert (row["ts_end"], row["ts_basis"]) == (datetime(2026, 5, 6, 12), "absolute")
    assert not {"ts_start", "ts_first_token"} & set(row)
    early = only(ingest(body(metrics__time_to_first_token_ms=None), stamp="2026-05-06T12:00:00Z")[0].requests)
    assert early["ts_end"] == early["ts_start"]  # a clock that lags behind the arrival


WRAPS: dict[str, Any] = {
    "one": lambda b: {"response": b},
    "two": lambda b: {"data": {"body": b}},
    "three": lambda b: {"payload": {"result": {"response_body": b}}},
    "text": lambda b: {"responseBody": json.dumps(b)},
    "text in text": lambda b: {"payload": json.dumps({"response": json.dumps(b)})},
    "list": lambda b: {"output": [{"x": 1}, b]},
    "events": lambda b: {
        "body": f'data: {{"choices":[{{"text":"a"}}]}}\n\ndata: {json.dumps(b)}\n\ndata: [DONE]\n\n',
    },
}


@pytest.mark.parametrize("name", WRAPS)
def test_wrapped(name: str) -> None:
    request = {"temperature": 0.2, "top_p": 0.5, "prompt": "CANARY"}
    outer = WRAPS[name](BODY) | {"task_type": "sum", "request": request, "request_id": "7f3a"}
    tables, rejects = ingest(outer)
    expected = ROW | {"request_id": "7f3a", "task_type": "sum", "temperature": 0.2, "top_p": 0.5}
    assert (only(tables.requests), rejects) == (expected, [])
    assert "CANARY" not in str(tables.requests.to_dicts() if tables.requests is not None else "")
    assert shown(tables.rounds, "task_type", "temperature")[0] == ("sum", 0.2)


def test_a_model_is_named_without_its_folder() -> None:
    assert only(ingest(body(model="/data/secret/big-70b"))[0].requests)["model"] == "big-70b"


def test_a_request_without_an_id_is_its_line() -> None:
    assert only(ingest(body(id=...))[0].requests)["request_id"] == "src#1"
    assert only(ingest({"request_id": 17, "response": BODY})[0].requests)["request_id"] == "17"


BROKEN = {
    "accepted <= drafted": spec(num_draft_tokens=4, per_step_accepted=..., per_step_drafted=...),
    "sum(acceptance_histogram) = num_spec_steps": spec(acceptance_histogram=[2, 2, 0, 1]),
    "sum(j * acceptance_histogram[j]) = num_accepted_draft_tokens": spec(acceptance_histogram=[2, 0, 1, 1][::-1]),
    "len(per_step_accepted) = len(per_step_drafted) = num_spec_steps": spec(per_step_drafted=[3, 3, 3, 1, 2]),
    "per_step_accepted <= per_step_drafted": spec(per_step_drafted=[3, 0, 3, 6]),
    "sum(per_step_accepted) = num_accepted_draft_tokens": spec(per_step_accepted=[0, 1, 3, 2]),
    "sum(per_step_drafted) = num_draft_tokens": spec(per_step_drafted=[3, 3, 3, 2]),
}


@pytest.mark.parametrize("identity", BROKEN)
def test_a_broken_identity_is_refused_by_name(identity: str) -> None:
    tables, rejects = ingest(BROKEN[identity])
    assert [(r.reason, r.line, r.surface) for r in rejects] == [(f"{identity} does not hold", 1, "vllm.response")]
    assert (tables.requests, tables.rounds) == (None, None)


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), 2**53, 10**399, "4", True, [4], {"a": 1}])
@pytest.mark.parametrize("key", ["num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "num_spec_tokens"])
def test_wrong_counts_are_refused(key: str, value: Any) -> None:
    tables, rejects = ingest(spec(**{key: value}))
    assert tables.requests is None
    assert [r.reason.split(":")[0] for r in rejects] == [key]


@pytest.mark.parametrize("value", ["x", 3, [1.0], ["1"], [-1], [True], [2**31], {"0": 1}])
@pytest.mark.parametrize("key", ["acceptance_histogram", "per_step_accepted", "per_step_drafted"])
def test_wrong_lists_are_refused(key: str, value: Any) -> None:
    tables, rejects = ingest(spec(**{key: value}))
    assert tables.requests is None
    assert [r.reason for r in rejects] == [f"{key}: not a list of counts"]


@pytest.mark.parametrize("value", [-1, 10**12, float("inf"), 10**399, "1.0", True, [1]])
@pytest.mark.parametrize("key", ["time_to_first_token_ms", "generation_time_ms", "queue_time_ms"])
def test_wrong_times_are_refused(key: str, value: Any) -> None:
    tables, rejects = ingest(body(**{f"metrics__{key}": value}))
    assert tables.requests is None
    assert [r.reason for r in rejects] == [f"{key}: not a duration in ms"]


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), 10**399])
def test_a_temperature_that_is_none_is_refused(value: Any) -> None:
    _, rejects = ingest(body() | {"temperature": value})
    assert [r.reason for r in rejects] == ["temperature: out of range"]


@pytest.mark.parametrize("value", [None, [], "x", 3, [1], {"cached_tokens": None}])
def test_fields_that_are_no_objects_are_passed_over(value: Any) -> None:
    row = only(ingest(body(usage__prompt_tokens_details=value))[0].requests)
    assert "cached_tokens" not in row
    assert only(ingest(body(choices=value))[0].requests).get("finish_reason") is None
    assert only(ingest(body() | {"request": value, "timestamp": 10**399})[0].requests)["rounds"] == 4


def test_what_is_no_response_is_left_for_others() -> None:
    for value in ({"metrics": {"speculative_decoding": "x"}}, {"metrics": [1]}, {"num_spec_steps": 3}, {}):
        parsed = ENGINE.records([JsonRecord(1, 0, None, None, value)])
        assert (parsed.claimed, parsed.rejects, parsed.frames) == (0, [], {})


def test_deep_nesting_ends() -> None:
    deep: dict[str, Any] = BODY
    for _ in range(200):
        deep = {"response": deep}
    assert list(responses.bodies(deep)) == []
    assert list(responses.bodies({"body": "[" * 100_000 + "]" * 100_000})) == []


_LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)
_NAMES = ("metrics", "usage", "response", "body", "request", "choices", "prompt_tokens_details", "id", "created")
_NAMES += ("temperature", "timestamp", "request_id")
_VALUE = st.recursive(
    _LEAF,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    *_NAMES,
                    *BODY["metrics"],
                    *BODY["metrics"]["speculative_decoding"],
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["metrics", "response", "data", "usage", "id"]), _VALUE, max_size=4))
def test_no_json_crashes_the_reader(value: dict[str, Any]) -> None:
    ingest(value)


_PLACES = [("metrics",), ("usage",), *(("metrics", k) for k in BODY["metrics"]), *(("usage", k) for k in BODY["usage"])]
_PLACES += [("metrics", "speculative_decoding", k) for k in BODY["metrics"]["speculative_decoding"]]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_PLACES), _VALUE)
def test_no_value_in_a_good_record_crashes_the_reader_or_breaks_an_identity(way: tuple[str, ...], value: Any) -> None:
    tables, rejects = ingest(body(**{"__".join(way): value}))  # checks the identities
    assert rejects or tables.requests is not None or way == ("metrics",)
