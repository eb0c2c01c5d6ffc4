"""Results of SGLang's benchmarks and GET /server_info. All examples are synthetic."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sglang import ingest

from tracelens.engines.generic.block import broken_identities
from tracelens.lake.schema import table

COUNTS = ("rounds", "plain_steps", "drafted", "accepted", "emitted", "counts_basis")
SERVER: dict[str, Any] = {
    "model_path": "/models/acme/llama-8b", "served_model_name": "llama-8b", "tp_size": 2, "dp_size": 1,
    "max_running_requests": 64, "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "/models/eagle3",
    "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
    "internal_states": [{"avg_spec_accept_length": 2.5, "last_gen_throughput": 410.0}], "version": "0.5.12",
    "decode_log_interval": 40, "api_key": "CANARY-KEY", "host": "192.0.2.1",
}  # fmt: skip
SERVING: dict[str, Any] = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": 16,
    "server_info": SERVER, "duration": 20.0, "completed": 10, "total_input_tokens": 5000,
    "total_output_tokens": 1010, "total_output_tokens_retokenized": 1009, "mean_e2e_latency_ms": 1100.0,
    "mean_ttft_ms": 100.0, "mean_tpot_ms": 10.2, "mean_itl_ms": 10.0, "accept_length": 2.5, "concurrency": 5.5,
}  # fmt: skip
SPECULATIVE: dict[str, Any] = {
    "batch_size": 4, "steps": 3, "topk": 1, "num_draft_tokens": 4, "acc_length": 2.5, "step_time": 0.018,
    "speed": 138.889, "completion_tokens": 501.0,
}  # fmt: skip
BATCH: dict[str, Any] = {
    "run_name": "default", "batch_size": 8, "input_len": 1024, "output_len": 101, "latency": 2.2,
    "input_throughput": 40_960.0, "output_throughput": 404.0, "overall_throughput": 4090.0, "last_ttft": 0.2,
    "last_gen_throughput": 410.0, "acc_length": 2.5,
}  # fmt: skip


def windows(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    tables, rejects = ingest(*entries)
    assert rejects == []
    assert tables.windows is not None
    types = table("windows").polars_schema()
    missing = [pl.lit(None, t).alias(c) for c, t in types.items() if c not in tables.windows.columns]
    rows = tables.windows.with_columns(missing).select(list(types)).cast(types)
    assert broken_identities("windows", rows).null_count() == rows.height
    return rows.to_dicts()


def pick(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[n] for n in names)


def test_bench_serving() -> None:
    (row,) = windows(SERVING)
    # 1010 tokens of 10 requests: 1000 of rounds, at 2.5 a round 400; 10 x (1100 - 100) ms of decoding.
    assert pick(row, *COUNTS) == (400, None, 1200, 600, None, "estimated")
    assert pick(row, "round_us", "rounds_timed", "window_us") == (10_000_000, 400, 20_000_000)
    assert pick(row, "generated_tokens", "prompt_tokens", "num_speculative_tokens") == (1010, 5000, 3)
    runs = ingest(SERVING)[0].runs
    assert runs is not None
    told = ("model", "draft_model", "method", "role", "engine_version", "tensor_parallel", "max_num_seqs")
    assert runs.select(told).rows() == [("llama-8b", "eagle3", "eagle3", "speculative", "0.5.12", 2, 64)]
    config = {pair["key"]: pair["value"] for pair in runs["config"][0]}
    assert config == {
        "speculative_eagle_topk": "1", "speculative_num_draft_tokens": "4", "backend": "sglang",
        "dataset_name": "random", "request_rate": "4.0", "max_concurrency": "16",
    }  # fmt: skip
    assert "CANARY" not in str(runs.to_dicts())


def test_an_accept_length_is_verified_and_what_was_committed_is_not_told() -> None:
    """758 rounds verified 758 + 1816 tokens; the requests' ends cut 54 of them, so that 2520 were committed."""
    (row,) = windows(SERVING | {"completed": 40, "total_output_tokens": 2560, "accept_length": (758 + 1816) / 758})
    assert (row["emitted"], row["generated_tokens"], row["counts_basis"]) == (None, 2560, "estimated")
    assert 1 + row["accepted"] / row["rounds"] == pytest.approx(3.3958, abs=5e-4)
    # Rounds are too few by what was cut, the time of each is too long by as much: the time of a token is right.
    token_us = row["round_us"] / row["rounds_timed"] / (1 + row["accepted"] / row["rounds"])
    assert token_us == pytest.approx(40 * (1100 - 100) * 1e3 / 2520)


def test_bench_serving_without_speculation_and_without_an_answer_of_the_server() -> None:
    server = {k: v for k, v in SERVER.items() if not k.startswith("speculative")} | {"speculative_algorithm": None}
    plain = SERVING | {"server_info": server, "accept_length": None}
    (row,) = windows(plain)
    assert pick(row, *COUNTS) == (0, 1000, 0, 0, 1000, "logged")
    assert pick(row, "round_us", "rounds_timed") == (10_000_000, 1000)
    # An older result tells tokens a round and no K; one without either is no baseline for that.
    older = {k: v for k, v in SERVING.items() if k != "server_info"}
    (row,) = windows(older)
    assert pick(row, *COUNTS) == (400, None, None, 600, None, "estimated")
    (row,) = windows(older | {"accept_length": None})
    assert pick(row, *COUNTS, "round_us") == (None, None, None, None, None, None, None)


def test_requests_of_bench_serving() -> None:
    details = {
        "input_lens": [100, 200, 50], "output_lens": [11, 1, 0], "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.05] * 10, [], []], "generated_texts": ["CANARY"] * 3, "errors": ["", "", "CANARY"],
    }  # fmt: skip
    tables, rejects = ingest(SERVING | details)
    assert rejects == []
    assert tables.requests is not None
    columns = ("request_id", "prompt_tokens", "output_tokens", "ttft_us", "decode_us", "e2e_us", "tpot_us", "error")
    assert tables.requests.select(columns).rows() == [
        ("src#1.0", 100, 11, 100_000, 500_000, 600_000, pytest.approx(50_000), False),
        ("src#1.1", 200, 1, 200_000, None, None, None, False),
        ("src#1.2", 50, 0, None, None, None, None, True),
    ]
    assert "CANARY" not in str(tables)
    tables, rejects = ingest(SERVING | details | {"ttfts": [0.1, "x", -1]})
    assert tables.requests is not None
    assert tables.requests["request_id"].to_list() == ["src#1.0"]
    assert [r.reason for r in rejects] == [
        "a figure of a request that is no number",
        "a negative figure of a request",
    ]
    tables, rejects = ingest(SERVING | details | {"ttfts": [0.1]})
    assert [r.reason for r in rejects] == ["lists of requests of different lengths"]
    assert tables.requests is not None
    assert tables.requests.select("weight", "tpot_us", "tpot_basis").rows() == [(10.0, 10_000.0, "derived")]


def test_bench_speculative_is_a_table_over_k() -> None:
    baseline = SPECULATIVE | {"steps": 0, "topk": 0, "num_draft_tokens": 0, "acc_length": 1.0, "step_time": 0.011}
    tree = SPECULATIVE | {"steps": 5, "topk": 4, "num_draft_tokens": 16}
    rows = windows(baseline, SPECULATIVE, tree)
    assert [pick(r, *COUNTS) for r in rows] == [
        (0, 500, 0, 0, 500, "logged"),
        (200, None, 600, 300, None, "estimated"),
        (200, None, 1000, 300, None, "estimated"),
    ]
    columns = ("step_us", "time_basis", "running", "num_speculative_tokens", "num_draft_nodes")
    assert [pick(r, *columns) for r in rows] == [
        (11_000, "mean", 4, None, None),
        (18_000, "mean", 4, 3, None),
        (18_000, "mean", 4, 5, 15),
    ]
    runs = ingest(baseline, SPECULATIVE, tree)[0].runs
    assert runs is not None
    assert runs["role"].to_list() == ["baseline", "speculative", "speculative"]
    assert runs["run_id"].n_unique() == 3


def test_one_batch_server() -> None:
    (row,) = windows(BATCH)
    # 8 requests of 101 tokens, of which prefill gave the first; all of them decode for 2 s.
    assert pick(row, *COUNTS) == (320, None, None, 480, None, "estimated")
    assert pick(row, "round_us", "rounds_timed", "running", "prompt_tokens") == (16_000_000, 320, 8, 8192)
    (row,) = windows(BATCH | {"acc_length": -1})
    assert pick(row, *COUNTS, "round_us") == (None, None, None, None, None, None, None)


def test_a_result_that_is_there_twice_counts_once() -> None:
    tables, rejects = ingest(SERVING, SERVING, SPECULATIVE)
    assert tables.windows is not None
    assert tables.windows.height == 2
    assert [(r.line, r.reason) for r in rejects] == [(2, "a result that is in this source already")]


def test_what_cannot_be_used() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (SERVING | {"backend": "vllm"}, "a result of another engine"),
        (SERVING | {"duration": "x"}, "duration: wrong type"),
        (SERVING | {"completed": -1}, "completed: negative"),
        (SERVING | {"total_output_tokens": 2.5}, "total_output_tokens: not a whole number"),
        (SPECULATIVE | {"step_time": float("nan")}, "step_time: not a finite number"),
        (SPECULATIVE | {"completion_tokens": 1e300}, "completion_tokens: out of range"),
        (BATCH | {"latency": -1.0}, "latency: out of range"),
    ]
    tables, rejects = ingest(*(value for value, _ in cases))
    assert (tables.windows, [r.reason for r in rejects]) == (None, [why for _, why in cases])


def test_server_info() -> None:
    states = [{"step_time_dict": {"1": [0.010, 0.012, 0.5], "4": [0.018]}}, {"step_time_dict": {"1": [0.011]}}]
    rows = windows(SERVER | {"internal_states": states})
    columns = ("replica", "running", "steps", "step_us", "rounds", "plain_steps", "time_basis", "rounds_basis")
    # The middle one of the means: 0.5 s has a pause in it.
    assert [pick(r, *columns) for r in rows] == [
        ("0", 1, 120, 12_000, 120, None, "mean", "estimated"),
        ("0", 4, 40, 18_000, 160, None, "mean", "estimated"),
        ("1", 1, 40, 11_000, 40, None, "mean", "estimated"),
    ]
    tables, rejects = ingest(SERVER, SERVER | {"speculative_num_steps": 5, "speculative_num_draft_tokens": 6})
    assert rejects == []
    assert tables.runs is not None
    # The last answer tells of the run before any start: the server's own log or metrics beside it are of it.
    told = ("run_key", "model", "method", "num_speculative_tokens", "role", "engine_version", "forced_acceptance")
    assert tables.runs.select(told).rows() == [(0, "llama-8b", "eagle3", 5, "speculative", "0.5.12", None)]


def test_simulated_acceptance_is_told_by_the_environment() -> None:
    for value, forced in (("2.5", True), ("-1", None), ("0", None), ("x", None)):
        server = SERVER | {"internal_states": [{"env_vars": {"SGLANG_SIMULATE_ACC_LEN": value}}]}
        for record in (server, SERVING | {"server_info": server}):
            runs = ingest(record)[0].runs
            assert runs is not None
            assert runs["forced_acceptance"].to_list() == [forced]


def test_a_broken_step_time_is_told() -> None:
    for times, why in (({"x": [1]}, "wrong type"), ({"1": [-1.0]}, "out of range"), ({"1": 3}, "wrong type")):
        tables, rejects = ingest(SERVER | {"internal_states": [{"step_time_dict": times}]})
        assert (tables.windows, [r.reason for r in rejects]) == (None, [f"step_time_dict: {why}"])
        assert tables.runs is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([SERVING, SPECULATIVE, BATCH, SERVER]), st.data())
@settings(max_examples=120, deadline=None)
def test_hostile_results(good: dict[str, Any], data: st.DataObject) -> None:
    keys = [*good, "output_lens", "itls", "ttfts", "input_lens"]
    changed = data.draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=5))
    ingest(good | changed)
    ingest(json.loads(json.dumps(good)) | {"internal_states": data.draw(JSON)})
