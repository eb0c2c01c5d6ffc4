"""One truth, and what llama.cpp and TensorRT-LLM print for it in each of their forms: the same counts come back.

Every request drafts K tokens a round; its first token is the prompt's. No last round is cut, which some of the forms
could not tell.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pytest

from tests.engines import llama_cpp_runs, test_llama_cpp, test_llama_cpp_metrics, test_tensorrt_llm
from tests.engines import test_tensorrt_llm_bench as bench
from tests.engines import test_tensorrt_llm_metrics as prometheus
from tests.engines.test_llama_cpp_rounds import stream
from tests.engines.test_tensorrt_llm_steps import request as finished
from tracelens.engines.base import Tables

K = 3
_RANDOM = random.Random(7)


def _length() -> int:
    """Accepted drafts of a round: each with probability 0.7 behind the one before."""
    return next((i for i in range(K) if _RANDOM.random() > 0.7), K)


TRUTH = [[_length() for _ in range(_RANDOM.randint(2, 12))] for _ in range(40)] + [[0, 0]]
ROUNDS = [n for request in TRUTH for n in request]
HIST = [ROUNDS.count(j) for j in range(K + 1)]
LIVED = [sum(n > i for n in ROUNDS) for i in range(K)]
COUNTS = {"rounds": len(ROUNDS), "drafted": K * len(ROUNDS), "accepted": sum(ROUNDS)}


def output(lengths: list[int]) -> int:
    return 1 + len(lengths) + sum(lengths)


def rates(lengths: list[int]) -> str:
    return ", ".join(f"{sum(n > i for n in lengths) / len(lengths):.3f}" for i in range(K))


# -- llama.cpp --------------------------------------------------------------------------------------------------------


def llama_block(form: str) -> Tables:
    lines: list[str] = []
    for task, lengths in enumerate(TRUTH, 1):
        mean = f"{1 + sum(lengths) / len(lengths):.2f}"
        more = {"2025": "", "level 3": f", mean len = {mean}"}.get(
            form, f", mean acceptance length = {mean}, acceptance rate per position = ({rates(lengths)})"
        )
        lines += test_llama_cpp.block(task, sum(lengths), K * len(lengths), more, tokens=output(lengths))
    return llama_cpp_runs.ingest(*lines)[0]


def llama_rounds() -> Tables:
    lines: list[str] = []
    for task, lengths in enumerate(TRUTH, 1):
        lines += [f"slot   operator(): id  0 | task {task} | accepted {n:2d}/{K:2d} draft tokens" for n in lengths]
        lines += test_llama_cpp.block(task, sum(lengths), K * len(lengths), tokens=output(lengths))
    return llama_cpp_runs.ingest(*lines)[0]


def llama_statistics() -> Tables:
    lines, calls, accepted = [], 0, 0
    for lengths in TRUTH:
        calls, accepted = calls + len(lengths), accepted + sum(lengths)
        lines.append(test_llama_cpp.statistics(calls, calls, K * calls, accepted, 2.5 * calls))
    return llama_cpp_runs.ingest(*lines)[0]


def llama_streams() -> Tables:
    records: list[dict[str, Any]] = []
    for number, lengths in enumerate(TRUTH):
        states = [(1, 0.0, 0, 0)]
        for n in lengths:
            tokens, ms, drafted, accepted = states[-1]
            states.append((tokens + n + 1, ms + 9.0, drafted + K, accepted + n))
        records += [{**chunk, "id": f"cmpl-{number}"} for chunk in stream([*states, states[-1]])]
    return llama_cpp_runs.ingest(*records)[0]


def llama_metrics() -> Tables:
    text = test_llama_cpp_metrics.page(COUNTS["rounds"], COUNTS["drafted"], COUNTS["accepted"], LIVED, 999)
    return Tables(windows=test_llama_cpp_metrics.read(text)[0])


# -- TensorRT-LLM -----------------------------------------------------------------------------------------------------


def trtllm_iterations() -> Tables:
    """All requests run together: iteration i has those with a round i."""
    records = []
    for i in range(max(map(len, TRUTH))):
        batch = [lengths[i] for lengths in TRUTH if len(lengths) > i]
        scheduled = {"numContextRequests": 0, "numGenRequests": len(batch), "numScheduledRequests": len(batch)}
        records.append(
            test_tensorrt_llm.stats(10 + i, K * len(batch), sum(batch), len(batch), inflightBatchingStats=scheduled)
        )
    return test_tensorrt_llm.ingest(*records)[0]


def trtllm_requests() -> Tables:
    records = []
    for number, lengths in enumerate(TRUTH):
        record = finished(number, [9.0 + 0.02 * i for i in range(len(lengths))], K * len(lengths))
        record["perf_metrics"]["speculative_decoding"]["total_accepted_draft_tokens"] = sum(lengths)
        records.append(record)
    return Tables(requests=test_tensorrt_llm.ingest(*records)[0].requests)


def trtllm_responses() -> Tables:
    records = []
    for number, lengths in enumerate(TRUTH):
        spec = {
            "total_draft_tokens": K * len(lengths), "total_accepted_draft_tokens": sum(lengths),
            "num_spec_steps": len(lengths), "num_spec_tokens": K,
            "acceptance_histogram": [lengths.count(j) for j in range(K + 1)],
        }  # fmt: skip
        choice = {"finish_reason": "stop", "speculative_decoding": spec}
        usage = {"prompt_tokens": 3, "completion_tokens": output(lengths)}
        records.append({"id": f"cmpl-{number}", "choices": [choice], "usage": usage})
    return test_tensorrt_llm.ingest(*records)[0]


def trtllm_metrics() -> Tables:
    server = prometheus.Server()
    for lengths in TRUTH:
        server.finish(lengths, K)
    return Tables(windows=prometheus.read(server.page())[0])


def trtllm_bench(counts_prefill: bool) -> Tables:
    made = bench.report([bench.Request(lengths) for lengths in TRUTH], K, counts_prefill=counts_prefill)
    return bench.read(made)[0]


FORMS: Mapping[str, Callable[[], Tables]] = {
    "llama.cpp request block, level 3": lambda: llama_block("level 3"),
    "llama.cpp request block, 2026-06": lambda: llama_block("2026-06"),
    "llama.cpp request block, 2025": lambda: llama_block("2025"),
    "llama.cpp round lines": llama_rounds,
    "llama.cpp statistics lines": llama_statistics,
    "llama.cpp streamed timings": llama_streams,
    "llama.cpp /metrics": llama_metrics,
    "TensorRT-LLM iteration stats": trtllm_iterations,
    "TensorRT-LLM perf_metrics": trtllm_requests,
    "TensorRT-LLM responses": trtllm_responses,
    "TensorRT-LLM Prometheus": trtllm_metrics,
    "trtllm-bench": lambda: trtllm_bench(False),
    "trtllm-bench, prefill counted twice": lambda: trtllm_bench(True),
}
# A block tells its rounds by a mean of two digits: not where nothing was accepted, and not before 2026-06.
WITHOUT_ALL_ROUNDS = ("level 3", "2026-06", "2025")
HISTOGRAMS = ("llama.cpp streamed timings", "TensorRT-LLM responses", "llama.cpp round lines")
POSITIONS = ("llama.cpp /metrics", "TensorRT-LLM Prometheus")


def sums(form: str, column: str) -> int:
    tables = FORMS[form]()
    frame = tables.rounds if tables.rounds is not None else tables.requests if tables.requests is not None else None
    frame = tables.windows if frame is None else frame
    assert frame is not None
    if tables.rounds is not None and column == "rounds":
        return frame.filter(pl.col("drafted") > 0).height
    return int(frame[column].sum())


@pytest.mark.parametrize("form", FORMS)
def test_counts_come_back(form: str) -> None:
    columns = [c for c in COUNTS if c != "rounds" or not form.endswith(WITHOUT_ALL_ROUNDS)]
    assert {c: sums(form, c) for c in columns} == {c: COUNTS[c] for c in columns}


@pytest.mark.parametrize("form", HISTOGRAMS)
def test_rollback_histograms_come_back(form: str) -> None:
    found = FORMS[form]().requests
    assert found is not None
    padded = [[*hist, *[0] * (K + 1 - len(hist))] for hist in found["accepted_hist"].to_list()]
    assert [sum(column) for column in zip(*padded, strict=True)] == HIST


@pytest.mark.parametrize("form", POSITIONS)
def test_positions_come_back(form: str) -> None:
    found = FORMS[form]().windows
    assert found is not None
    assert found["accepted_per_pos"].to_list() == [LIVED]


def test_rounds_of_a_block_are_those_of_its_request_or_none() -> None:
    found = llama_block("2026-06").requests
    assert found is not None
    told = found.with_columns(truth=pl.Series([len(lengths) for lengths in TRUTH])).filter(
        pl.col("rounds").is_not_null()
    )
    assert (told["rounds"] == told["truth"]).all()
    assert told.height >= len(TRUTH) - sum(not any(lengths) for lengths in TRUTH)
