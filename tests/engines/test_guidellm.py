"""GuideLLM: reports of 0.2 and 0.8, one run a benchmark, TPOT that is none."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_source import ingest, reasons, shown

from tracelens.engines.base import JsonRecord
from tracelens.engines.guidellm import ENGINE

START_S = 1_789_898_400.0
START = datetime(2026, 9, 20, 10)
SAID = {
    "acceptance_histogram": [1, 1, 1, 1], "num_spec_steps": 4, "num_accepted_draft_tokens": 6, "num_draft_tokens": 12,
    "num_spec_tokens": 3, "per_step_accepted": [3, 0, 2, 1], "per_step_drafted": [3, 3, 3, 3],
}  # fmt: skip
CANARY = "a user's words"


def new(request: str = "g-1", said: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A request of 0.4 and later."""
    timings = {
        "queued": START_S - 1, "request_start": START_S, "first_token_iteration": START_S + 0.05,
        "last_token_iteration": START_S + 0.23, "token_iterations": 5, "request_end": START_S + 0.235,
    } | changes.pop("timings", {})  # fmt: skip
    args = {"method": "POST", "body": {"model": "org/m", "temperature": 0.7, "top_p": 0.9, "messages": [CANARY]}}
    return {
        "type_": "generative_request_stats", "request_id": request, "request_args": json.dumps(args), "output": CANARY,
        "info": {"status": "completed", "timings": timings, "error": None}, "prompt_tokens": 100, "output_tokens": 10,
        "time_per_output_token_ms": 23.0, "inter_token_latency_ms": 20.0, "iter_tokens_per_iteration": 2.25,
        **({} if said is None else {"response_metrics": {"speculative_decoding": said}}), **changes,
    }  # fmt: skip


def old(request: str = "g-1") -> dict[str, Any]:
    """A request of 0.2 and 0.3."""
    return {
        "type_": "text_response", "request_id": request, "prompt": CANARY, "output": CANARY, "start_time": START_S,
        "first_token_time": START_S + 0.05, "last_token_time": START_S + 0.23, "end_time": START_S + 0.235,
        "prompt_tokens": 100, "output_tokens": 10, "time_per_output_token_ms": 23.0,
    }  # fmt: skip


def benchmark(
    number: int = 0, incomplete: list[Any] | None = None, errored: list[Any] | None = None, *good: Any
) -> Any:
    return {
        "type_": "generative_benchmark", "id_": f"b{number}", "start_time": START_S, "metrics": {"x": 1},
        "config": {"strategy": {"type_": "concurrent", "streams": 2 ** number, "note": "http://10.0.0.7"}},
        "requests": {"successful": list(good), "incomplete": incomplete or [], "errored": errored},
    }  # fmt: skip


def report(*benchmarks: Any) -> str:
    about = {"metadata": {"guidellm_version": "0.8.1"}, "args": {"target": "http://10.0.0.7", "model": "/models/org/m"}}
    return json.dumps(about | {"benchmarks": list(benchmarks)}, indent=1)


@pytest.mark.parametrize("request_", [new(), old()])
@pytest.mark.parametrize("one_line", [False, True])
def test_a_request(tmp_path: Path, request_: dict[str, Any], one_line: bool) -> None:
    text = report(benchmark(0, None, None, request_))
    text = json.dumps(json.loads(text)) if one_line else text
    tables, rejects = ingest(tmp_path, text, "guidellm", "benchmarks.json")
    assert rejects == []
    columns = ("request_id", "prompt_tokens", "output_tokens", "ttft_us", "decode_us", "e2e_us", "error", "accepted")
    assert shown(tables.requests, *columns) == [("g-1", 100, 10, 50_000, 180_000, 235_000, False, None)]
    # (last - first token) / 9: not the 23 ms that have the time to the first token in them.
    assert shown(tables.requests, "tpot_us", "tpot_basis") == [(20_000.0, "derived")]
    assert shown(tables.requests, "ts_start", "ts_end", "ts_basis") == [
        (START, START + timedelta(milliseconds=235), "absolute")
    ]


def test_what_was_asked(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, report(benchmark(0, None, None, new(), old("g-2"))), "guidellm")
    assert shown(tables.requests, "model", "temperature", "top_p") == [("org/m", 0.7, 0.9), ("m", None, None)]
    assert tables.requests is not None
    assert CANARY not in str(tables.requests.rows())


def test_what_the_server_said(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, report(benchmark(0, None, None, new(said=SAID), new("g-2"))), "guidellm")
    assert rejects == []
    assert shown(tables.requests, "rounds", "drafted", "accepted", "emitted", "accepted_hist") == [
        (4, 12, 6, 9, [1, 1, 1, 1]), (None, None, None, None, None),
    ]  # fmt: skip
    assert shown(tables.rounds, "round_index", "drafted", "accepted", "emitted", "request_id", "temperature") == [
        (0, 3, 3, 4, "g-1", 0.7), (1, 3, 0, 1, "g-1", 0.7), (2, 3, 2, 3, "g-1", 0.7), (3, 3, 1, 1, "g-1", 0.7),
    ]  # fmt: skip


def test_acceptance_tells_the_engine_of_its_benchmark(tmp_path: Path) -> None:
    """Only vLLM answers with it; the other benchmark tells none."""
    text = report(benchmark(0, None, None, new(said=SAID)), benchmark(1, None, None, new()))
    runs = ingest(tmp_path, text, "guidellm")[0].runs
    assert sorted(shown(runs, "engine")) == [("guidellm",), ("vllm",)]


def test_acceptance_that_contradicts_itself_leaves_the_request(tmp_path: Path) -> None:
    text = report(benchmark(0, None, None, new(said=SAID | {"num_spec_steps": 5})))
    tables, rejects = ingest(tmp_path, text, "guidellm")
    assert reasons(rejects) == ["acceptance not counted: sum(acceptance_histogram) = num_spec_steps does not hold"]
    assert shown(tables.requests, "accepted", "tpot_us") == [(None, 20_000.0)]


def test_each_benchmark_is_a_run(tmp_path: Path) -> None:
    text = report(benchmark(0, None, None, new()), benchmark(3, None, None, new("g-2"), new("g-3")))
    tables, _ = ingest(tmp_path, text, "guidellm")
    assert tables.runs is not None
    assert tables.requests is not None
    keys = [r[0] for r in shown(tables.requests, "run_key")]
    assert sorted(keys) == keys or sorted(keys, reverse=True) == keys
    assert len(set(keys)) == 2
    settings_ = {tuple((c["key"], c["value"]) for c in row) for row in tables.runs["config"].to_list()}
    assert settings_ == {
        (("type", "concurrent"), ("streams", "1")), (("type", "concurrent"), ("streams", "8")),
    }  # fmt: skip
    names = tables.runs["run_id"].to_list()
    assert len(set(names)) == 2
    assert "10.0.0.7" not in str(tables.runs.rows())
    # The same report has the same names again.
    again, _ = ingest(tmp_path, text, "guidellm", "other.json")
    assert again.runs is not None
    assert again.runs["run_id"].to_list() == names


def test_requests_that_were_cut_off_or_failed(tmp_path: Path) -> None:
    failed = new("g-3", timings={"first_token_iteration": None, "last_token_iteration": None}, output_tokens=None)
    text = report(benchmark(0, [new("g-2")], [failed], new()))
    tables, rejects = ingest(tmp_path, text, "guidellm")
    assert rejects == []
    assert shown(tables.requests, "request_id", "error", "finish_reason", "decode_us") == [
        ("g-1", False, None, 180_000), ("g-2", True, "incomplete", 180_000), ("g-3", True, "errored", None),
    ]  # fmt: skip


def test_requests_without_ids(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, report(benchmark(0, None, None, new(""), new(""))), "guidellm")
    assert shown(tables.requests, "request_id", "source_line") == [("src#1", 1), ("src#2", 2)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timings": {"first_token_iteration": START_S - 1}}, "times of a request: start <= first does not hold"),
        ({"output_tokens": -1}, "output_tokens: negative"),
        ({"prompt_tokens": "many"}, "prompt_tokens: wrong type"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    text = report(benchmark(0, None, None, new(**change), new("g-2")))
    tables, rejects = ingest(tmp_path, text, "guidellm")
    assert reasons(rejects) == [reason]
    assert shown(tables.requests, "request_id") == [("g-2",)]


def test_stamps_that_were_never_taken(tmp_path: Path) -> None:
    text = report(benchmark(0, None, None, new(timings={"request_start": -1, "first_token_iteration": 0.0})))
    tables, rejects = ingest(tmp_path, text, "guidellm")
    assert rejects == []
    assert shown(tables.requests, "ts_start", "ttft_us", "decode_us", "tpot_us") == [(None, None, None, None)]


def test_a_report_that_was_cut_is_told(tmp_path: Path) -> None:
    text = report(benchmark(0, None, None, new()))
    tables, rejects = ingest(tmp_path, text[: len(text) // 2], "guidellm", "benchmarks.json")
    assert tables.requests is None
    assert reasons(rejects) == ["a JSON document that is cut off or broken"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from([*new(said=SAID)]), _json, max_size=4),
    st.dictionaries(st.sampled_from(["id_", "config", "args", "start_time", "metrics"]), _json, max_size=2),
)
def test_any_values_are_a_row_or_a_reject(change: dict[str, Any], about: dict[str, Any]) -> None:
    value = json.loads(report(benchmark(0, None, None, new(said=SAID))))
    value["benchmarks"][0]["requests"]["successful"][0] |= change
    value["benchmarks"][0] |= about
    parsed = ENGINE.records([JsonRecord(1, 0, None, None, value)])
    assert parsed.claimed == 1
    assert len(parsed.rejects) + sum(f.height for fs in parsed.frames.values() for f in fs) >= 1
