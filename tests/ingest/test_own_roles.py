"""Results of benchmarks that say they ran without speculation stay the baseline, whatever `--role` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import jsonl, log, run, start, table

from tracelens.lake.connection import connect

SGLANG_ROW: dict[str, Any] = {
    "batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4, "acc_length": 2.6, "step_time": 0.02,
    "speed": 130.0, "completion_tokens": 64.0,
}  # fmt: skip
PLAIN_ROW = SGLANG_ROW | {"steps": 0, "topk": 0, "num_draft_tokens": 0, "acc_length": 1.0, "step_time": 0.012}
SERVING: dict[str, Any] = {
    "backend": "sglang", "duration": 20.0, "completed": 10, "total_output_tokens": 1010, "accept_length": 2.5,
    "total_output_tokens_retokenized": 1009, "server_info": {"speculative_algorithm": "EAGLE3"},
}  # fmt: skip
SERVE: dict[str, Any] = {
    "model_id": "tiny", "duration": 4.5, "completed": 2, "total_output_tokens": 13, "request_throughput": 0.4,
    "spec_decode_num_drafts": 4, "spec_decode_draft_tokens": 12, "spec_decode_accepted_tokens": 7,
}  # fmt: skip
TRT: dict[str, Any] = {
    "engine": {"model": "m"},
    "request_info": {"num_requests": 2, "avg_output_length": 8},
    "performance": {"system_output_throughput_tok_s": 9.0, "total_latency_ms": 900.0},
}
ANSWER: dict[str, Any] = {
    "question_id": 1, "model_id": "m-eagle", "choices": [
        {"turns": ["x"], "decoding_steps": [2], "new_tokens": [5], "wall_time": [0.5], "accept_lengths": [3, 2]},
    ],
}  # fmt: skip
ALONE = {"turns": ["x"], "decoding_steps": [2], "new_tokens": [2], "wall_time": [0.5], "accept_lengths": [1, 1]}
# A result with speculation (None where the format has none of it beside the plain one), and one without.
FORMATS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bench_speculative": (SGLANG_ROW, PLAIN_ROW),
    "sglang bench_serving": (
        SERVING, SERVING | {"duration": 30.0, "accept_length": None, "server_info": {"speculative_algorithm": None}}
    ),
    "vllm bench serve": (
        SERVE, {k: v for k, v in SERVE.items() if k[:5] != "spec_"} | {"duration": 9.0, "num_speculative_tokens": "0"}
    ),
    "answers": (ANSWER, ANSWER | {"model_id": "m-vanilla", "choices": [ALONE]}),
}  # fmt: skip


def roles(lake: Path) -> list[tuple[str, str]]:
    return sorted({(r["run_id"], r["role"]) for r in table(lake, "runs")}, key=lambda pair: pair[1])


@pytest.mark.parametrize("name", FORMATS)
def test_a_plain_result_stays_the_baseline(tmp_path: Path, name: str) -> None:
    (tmp_path / "bench.jsonl").write_text(jsonl(*FORMATS[name]))
    summary = run(tmp_path / "lake", tmp_path / "bench.jsonl", role="speculative")
    assert [role for _, role in roles(tmp_path / "lake")] == ["baseline", "speculative"]
    told = "--role speculative does not hold for 1 result that ran without speculation: it stays the baseline"
    assert summary.remarks == (("bench.jsonl", told),)


@pytest.mark.parametrize(("name", "role"), [(n, "speculative") for n in FORMATS] + [("answers", None)])
def test_a_run_that_the_user_names_has_one_role(tmp_path: Path, name: str, role: str | None) -> None:
    (tmp_path / "bench.jsonl").write_text(jsonl(*FORMATS[name]))
    summary = run(tmp_path / "lake", tmp_path / "bench.jsonl", role=role, run="x")
    assert roles(tmp_path / "lake") == [("x-baseline", "baseline"), ("x", "speculative")]
    ((_, told),) = summary.remarks
    assert told.endswith("it stays the baseline (run x-baseline)")
    facts = [*table(tmp_path / "lake", "windows", "run_id"), *table(tmp_path / "lake", "requests", "run_id")]
    assert set(facts) == {("x",), ("x-baseline",)}
    scopes = {(r["run_id"], r["scope"]) for r in table(tmp_path / "lake", "runs")}
    assert scopes == {("x", "x"), ("x-baseline", "x-baseline")}


def test_results_of_several_files_meet_in_the_two_runs(tmp_path: Path) -> None:
    """trtllm-bench writes a file a run."""
    decoding = {"mode": "EAGLE", "num_draft_tokens_percentiles": {}, "num_accepted_draft_tokens_percentiles": {}}
    (tmp_path / "off.json").write_text(json.dumps(TRT))
    (tmp_path / "on.json").write_text(json.dumps(TRT | {"decoding_stats": decoding}))
    run(tmp_path / "lake", tmp_path / "off.json", tmp_path / "on.json", role="speculative", run="x")
    assert roles(tmp_path / "lake") == [("x-baseline", "baseline"), ("x", "speculative")]


def test_a_baseline_alone_keeps_the_name_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "off.json").write_text(json.dumps(TRT))
    summary = run(tmp_path / "lake", tmp_path / "off.json", run="off")
    assert (roles(tmp_path / "lake"), summary.remarks) == ([("off", "baseline")], ())


def test_the_role_holds_for_logs_and_for_what_drafted(tmp_path: Path) -> None:
    """A name is no proof against counted drafts, and a server's log is not the whole of its run."""
    named = SERVE | {"metadata": "x", "label": "baseline", "role": "baseline"}
    (tmp_path / "bench.jsonl").write_text(jsonl(named))
    (tmp_path / "server.log").write_text(log(start().replace("'speculative_config'", "'other'")))
    summary = run(tmp_path / "lake", tmp_path / "bench.jsonl", tmp_path / "server.log", role="speculative")
    assert {role for _, role in roles(tmp_path / "lake")} == {"speculative"}
    assert summary.remarks == ()


def test_the_speedup_of_a_table_over_k(tmp_path: Path) -> None:
    (tmp_path / "bench.jsonl").write_text(jsonl(PLAIN_ROW, SGLANG_ROW))
    query = "select sum(step_ms) / sum(time_rounds) from facts where role = 'baseline'"
    run(tmp_path / "lake", tmp_path / "bench.jsonl", role="speculative", run="x")
    with connect(tmp_path / "lake", keep=True) as con:
        assert con.execute(query).fetchone() == (12.0,)
