"""SGLang: finished requests in JSON, text, export and responses. All examples are synthetic."""

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sglang import ingest, sample

COUNTS = ("request_id", "rounds", "drafted", "accepted", "emitted", "iterations", "counts_basis")


def rows(*entries: Any) -> list[dict[str, Any]]:
    tables, rejects = ingest(*entries)
    assert rejects == []
    return [] if tables.requests is None else tables.requests.to_dicts()


def pick(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[n] for n in names)


def test_request_finished() -> None:
    text = sample("sglang_request_json.log")[0]
    (row,) = rows(text)
    expected = {
        "request_id": "r-1",
        "surface": "sglang.request_log",
        "source_line": 1,
        "rounds": 52,
        "drafted": 156,
        "accepted": 75,
        "emitted": 127,
        "iterations": 52,
        "accepted_hist": [12, 15, 15, 10],
        "counts_basis": "logged",
        "output_tokens": 128,
        "prompt_tokens": 410,
        "cached_tokens": 0,
        "temperature": 0.7,
        "top_p": 0.9,
        "num_speculative_tokens": 3,
        "ttft_us": 110_000,
        "decode_us": 1_200_000,
        "e2e_us": 1_310_000,
        "queue_us": 2_000,
        "tpot_us": 1_200_000 / 127,
        "tpot_basis": "derived",
        "finish_reason": "length",
        "error": False,
        "ts_basis": "absolute",
        "ts_start": datetime(2026, 3, 12, 10, 0, 3, 810000),
        "ts_end": datetime(2026, 3, 12, 10, 0, 5, 120000),
    }
    assert {k: row[k] for k in expected} == expected
    # The same as a line of JSON without the prefix (a log file target).
    assert rows(json.loads(text[text.index("{") :])) == [row]


def test_the_export() -> None:
    first, second, third = rows(*map(json.loads, sample("export.jsonl")))
    assert pick(first, *COUNTS) == ("e-1", 8, 24, 12, 19, 8, "logged")
    assert pick(first, "replica", "temperature", "top_p", "preemptions") == ("1", 0.0, 1.0, 1)
    assert pick(first, "decode_us", "tpot_us", "tpot_basis") == (190_000, 10_000.0, "logged")
    assert first["accepted_hist"] == [1, 3, 3, 1]
    # 0.4.4-0.5.3 log verify passes alone.
    assert pick(second, *COUNTS) == ("e-2", 4, None, 6, 10, 4, "derived")
    # Zeros are printed when speculation is off.
    assert pick(third, *COUNTS) == ("e-3", 0, 0, 0, 8, 8, "logged")
    assert pick(third, "decode_us", "tpot_us") == (400_000, 50_000.0)


def test_the_text_form_and_what_a_prompt_says_in_it() -> None:
    first, second = rows(*sample("finish.log"))
    assert pick(first, *COUNTS) == ("f-1", 6, None, 10, 16, 6, "derived")
    assert pick(first, "temperature", "top_p", "prompt_tokens", "ts_end") == (
        0.6,
        0.95,
        12,
        datetime(2025, 6, 20, 10, 0, 3),
    )
    assert pick(second, *COUNTS) == ("f-2", 4, 12, 5, 9, 4, "logged")
    names = ("accepted_hist", "finish_reason", "error", "preemptions", "prompt_tokens", "replica")
    assert pick(second, *names) == ([1, 2, 0, 1], "abort", True, 2, 100, None)
    assert second["ts_end"] == datetime(2026, 5, 20, 8, 2, 41, 500000)


@pytest.mark.parametrize(
    "names",
    [
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    ],
)
def test_every_generation_of_keys(names: tuple[str, str, str]) -> None:
    spec = dict(zip(names, (7, 15, [1, 1, 3]), strict=True)) | {"spec_verify_ct": 5, "spec_accept_rate": 0.47}
    body = {
        "id": "chatcmpl-1",
        "usage": {"prompt_tokens": 4, "completion_tokens": 13},
        "sglext": {"spec_tokens_details": spec},
    }
    for record in (
        body,
        {"meta_info": {"id": "chatcmpl-1", "prompt_tokens": 4, "completion_tokens": 13, **spec}},
        {"response": body},
    ):
        (row,) = rows(record)
        assert pick(row, *COUNTS) == ("chatcmpl-1", 5, 15, 7, 12, 5, "logged")
        assert pick(row, "accepted_hist", "num_speculative_tokens", "surface") == ([1, 1, 3], 3, "sglang.response")
    (row,) = rows(spec)
    assert pick(row, "request_id", "rounds", "emitted") == ("src#1", 5, None)


def test_a_tree_and_a_task_header() -> None:
    args = "speculative_num_steps=5, speculative_eagle_topk=4, speculative_num_draft_tokens=8"
    args = f"speculative_algorithm='EAGLE', {args}"
    meta = {
        "id": "t",
        "completion_tokens": 9,
        "spec_verify_ct": 4,
        "spec_num_correct_drafts": 4,
        "spec_num_proposed_drafts": 28,
    }
    value = {
        "timestamp": "2026-03-12T10:00:00.5",
        "event": "request.finished",
        "rid": "t",
        "headers": {"X-Task-Type": "code"},
        "obj": {},
        "out": {"meta_info": meta},
    }
    (row,) = rows(f"[2026-03-12 09:00:00] server_args=ServerArgs({args})", f"[2026-03-12 10:00:00] {json.dumps(value)}")
    assert pick(row, "drafted", "num_draft_nodes", "num_speculative_tokens", "task_type") == (20, 7, 5, "code")
    assert row["ts_end"] == datetime(2026, 3, 12, 10, 0, 0, 500000)
    (alone,) = rows(value)
    assert pick(alone, "drafted", "num_speculative_tokens") == (28, None)


def test_what_cannot_be_used() -> None:
    def finished(**meta: Any) -> dict[str, Any]:
        return {"event": "request.finished", "out": {"meta_info": {"id": "x", **meta}}}

    cases = [
        ({"completion_tokens": -1}, "completion_tokens: negative"),
        ({"spec_verify_ct": 2.5}, "spec_verify_ct: not a whole number"),
        ({"spec_verify_ct": 3, "spec_accept_histogram": [1, "a"]}, "histogram: wrong type"),
        ({"spec_verify_ct": 0, "spec_accept_token_num": 4}, "accepted or drafted tokens without a verify pass"),
        ({"e2e_latency": 1, "first_token_latency": 2}, "first_token_latency <= e2e_latency does not hold"),
    ]
    tables, rejects = ingest(*(finished(**meta) for meta, _ in cases))
    assert (tables.requests, [r.reason for r in rejects]) == (None, [why for _, why in cases])
    cut = sample("sglang_request_json.log")[0][:-40]
    tables, rejects = ingest(cut, {"event": "request.received", "obj": {}}, {"other": 1})
    assert (tables.requests, [r.reason for r in rejects]) == (None, ["broken JSON"])


def test_nothing_of_a_prompt_is_kept() -> None:
    secret = "s3cret-prompt"
    value = json.loads(sample("sglang_request_json.log")[0].split("] ", 1)[1])
    value["obj"] |= {"text": secret, "input_ids": [424242]}
    value["out"] |= {"text": secret, "output_ids": [424242]}
    value["out"]["meta_info"]["finish_reason"] = {"type": secret + " x", "matched": secret}
    text = str(rows(value)) + str(rows("[2026-03-12 10:00:05] " + json.dumps(value)))
    assert secret not in text
    assert "424242" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
META = st.dictionaries(
    st.sampled_from(
        [
            "id",
            "completion_tokens",
            "prompt_tokens",
            "spec_verify_ct",
            "spec_accept_token_num",
            "spec_draft_token_num",
            "spec_accept_histogram",
            "e2e_latency",
            "first_token_latency",
            "decode_throughput",
            "request_received_ts",
            "finish_reason",
            "dp_rank",
            "request_finished_ts",
            "queue_time",
        ]
    ),
    JSON,
)


@given(META | JSON, META | JSON, JSON)
@settings(max_examples=150, deadline=None)
def test_hostile_records(meta: Any, asked: Any, headers: Any) -> None:
    records = [
        {
            "event": "request.finished",
            "obj": asked,
            "headers": headers,
            "out": {"meta_info": meta},
            "timestamp": headers,
        },
        {"request_parameters": asked, "prompt_tokens": 3, **(meta if isinstance(meta, dict) else {})},
        {"request_parameters": str(asked), "prompt_tokens": 3},
        {"meta_info": meta, "request": asked, "usage": headers, "choices": asked},
        {"sglext": meta, "id": asked},
    ]
    ingest(*records)
