"""trtllm-bench: what its formulas did to one truth is undone; what they can't tell is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.whole_source import CONTEXT, check, ingest, reasons, shown
from tracelens.engines.base import JsonRecord, Reject, Tables
from tracelens.engines.tensorrt_llm import ENGINE
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as into_lake
from tracelens.lake.connection import connect

COUNTS = ("rounds", "plain_steps", "drafted", "accepted", "emitted", "rounds_basis", "num_speculative_tokens")


@dataclass(frozen=True)
class Request:
    """Accepted drafts of each round of a request, of K; `cut` tokens of its last round were not sent."""

    lengths: Sequence[int]
    cut: int = 0

    @property
    def output(self) -> int:
        return 1 + len(self.lengths) + sum(self.lengths) - self.cut


def percentiles(values: Sequence[float], weights: Sequence[float] | None = None) -> dict[str, float]:
    weights = weights or [1.0] * len(values)
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    return {"average": mean, "minimum": min(values), "maximum": max(values), "p50": sorted(values)[len(values) // 2]}


def report(
    requests: Sequence[Request], k: int, *, mode: str = "MTP", counts_prefill: bool = False, weighted: bool = False,
    step_ms: float = 20.0,
) -> dict[str, Any]:  # fmt: skip
    """The report of a run by the formulas of `reporting.py`; K = 0 is a run without speculation."""
    n = len(requests)
    outputs = [r.output for r in requests]
    iterations = [len(r.lengths) + counts_prefill + 1 for r in requests]
    latency = [100.0 + step_ms * len(r.lengths) for r in requests]
    made: dict[str, Any] = {
        "engine": {
            "model": "/data/home/someone/Llama-3.3-70B", "model_path": "/data/home/someone", "version": "1.2.0",
            "backend": "Pytorch", "dtype": "bfloat16", "engine_dir": "None",
        },
        "world_info": {"tp_size": 2, "pp_size": 1, "max_batch_size": 64, "scheduling_policy": "GUARANTEED_NO_EVICT"},
        "request_info": {
            "num_requests": n, "avg_num_concurrent_requests": 1.7, "avg_input_length": 128.0,
            "avg_output_length": sum(outputs) / n,
        },
        "performance": {
            "total_latency_ms": sum(latency), "avg_request_latency_ms": sum(latency) / n,
            "system_output_throughput_tok_s": 1000 * sum(outputs) / sum(latency),
        },
        "streaming_metrics": {"avg_ttft_ms": 100.0, "avg_tpot_ms": 9.9},
    }  # fmt: skip
    if k:
        accepted = [o - i for o, i in zip(outputs, iterations, strict=True)]
        drafted = [k * i for i in iterations]
        rates = [a / d for a, d in zip(accepted, drafted, strict=True)]
        weights = [float(i) for i in iterations] if weighted else None
        made["decoding_stats"] = {
            "mode": mode,
            "num_draft_tokens_percentiles": percentiles(drafted),
            "num_accepted_draft_tokens_percentiles": percentiles(accepted),
            "draft_acceptance_rate_percentiles": percentiles(rates, weights),
            "acceptance_length_percentiles": percentiles(
                [o / i for o, i in zip(outputs, iterations, strict=True)], weights
            ),
        }
    return made


def read(*values: dict[str, Any]) -> tuple[Tables, list[Reject]]:
    parsed = ENGINE.records([JsonRecord(i, i, None, None, v) for i, v in enumerate(values, 1)])
    assert parsed.claimed == len(values)
    tables = ENGINE.assemble(parsed.frames, CONTEXT)
    for name in ("windows", "requests", "runs"):
        check(name, getattr(tables, name), {s.name for s in ENGINE.surfaces})
    return tables, parsed.rejects + tables.rejects


RUN = [Request([3, 0, 1, 3, 2]), Request([2, 2, 3]), Request([0, 1])]


@pytest.mark.parametrize("weighted", [False, True])
def test_counts_without_the_iteration_of_the_prefill(weighted: bool) -> None:
    made = report(RUN, 3, weighted=weighted)
    tables, rejects = read(made)
    assert rejects == []
    # 17 of 30 drafts; the report says 17 of 39 if its sums are pooled, and something else as a mean of requests.
    assert shown(tables.windows, *COUNTS) == [(10, None, 30, 17, 27, "estimated", None)]
    assert made["decoding_stats"]["draft_acceptance_rate_percentiles"]["average"] < 17 / 30
    columns = ("round_us", "rounds_timed", "window_us", "generated_tokens", "prompt_tokens", "running", "ts_basis")
    assert shown(tables.windows, *columns) == [(200_000, 10, 500_000, 30, 384, 2, "none")]
    told = (
        "model", "engine_version", "method", "num_speculative_tokens", "role", "tensor_parallel", "max_num_seqs",
    )  # fmt: skip
    assert shown(tables.runs, *told) == [("Llama-3.3-70B", "1.2.0", "mtp", 3, "speculative", 2, 64)]
    assert "someone" not in str(tables)


def test_a_request_that_accepted_nothing_shows_how_iterations_are_counted() -> None:
    """Where `decode_iteration` counts the prefill's pass too, such a request has one less than no accepted token."""
    requests = [*RUN, Request([0, 0])]
    plain, counted = (read(report(requests, 3, counts_prefill=c))[0] for c in (False, True))
    assert shown(plain.windows, *COUNTS[:5]) == shown(counted.windows, *COUNTS[:5]) == [(12, None, 36, 17, 29)]


def test_drafters_that_copy_are_refused() -> None:
    tables, rejects = read(report(RUN, 3, mode="NGram"))
    assert reasons(rejects) == [
        "acceptance rebuilt from the longest draft, of a drafter that often drafts less or nothing: refused"
    ]
    assert shown(tables.windows, *COUNTS) == [(None, None, None, None, 27, None, None)]
    assert shown(tables.runs, "method", "role") == [("ngram", "speculative")]


def test_a_run_without_speculation_is_a_baseline() -> None:
    tables, rejects = read(report([Request([0] * 9), Request([0] * 4)], 0, step_ms=15.0))
    assert rejects == []
    assert shown(tables.windows, *COUNTS, "round_us", "rounds_timed") == [
        (0, 13, 0, 0, 13, "logged", None, 195_000, 13)
    ]  # fmt: skip
    assert shown(tables.runs, "role", "method") == [("baseline", None)]


def test_the_last_round_that_was_cut_is_in_no_report() -> None:
    tables, _ = read(report([Request([3, 3, 3], cut=2), Request([1])], 3))
    assert shown(tables.windows, "rounds", "drafted", "accepted", "emitted") == [(4, 12, 8, 12)]


def changed(**change: Any) -> dict[str, Any]:
    made = report(RUN, 3)
    for place, value in change.items():
        at = made
        *path, last = place.split("__")
        for name in path:
            at = at[name]
        at[last] = value
    return made


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"request_info__num_requests": -1}, "num_requests: negative"),
        ({"request_info__avg_output_length": 9.99}, "avg_output_length: no mean of whole numbers"),
        ({"request_info": 3}, "request_info: wrong type"),
        ({"performance__total_latency_ms": float("nan")}, "total_latency_ms: not a finite number"),
        (
            {"decoding_stats__num_draft_tokens_percentiles__average": 12.5},
            "the averages of drafted and accepted tokens do not fit the output tokens",
        ),
        (
            {"request_info__avg_output_length": 100.0},
            "the averages of drafted and accepted tokens do not fit the output tokens",
        ),
    ],
)
def test_refused(change: dict[str, Any], reason: str) -> None:
    parsed = ENGINE.records([JsonRecord(1, 0, None, None, changed(**change))])
    assert reasons(parsed.rejects) == [reason]
    assert not parsed.frames


def test_the_same_report_twice_counts_once() -> None:
    tables, rejects = read(report(RUN, 3), report(RUN, 3))
    assert reasons(rejects) == ["a result that is in this source already"]
    assert tables.windows is not None
    assert tables.windows.height == 1


def record(number: int, request: Request, *, counts_prefill: bool = False, streaming: bool = True) -> dict[str, Any]:
    """An entry of `--request_json`: times in ns of `perf_counter`."""
    start, end = 5_000_000_000, 5_100_000_000 + 20_000_000 * len(request.lengths)
    return {
        "id": number, "num_input_tokens": 128, "error_tokens": 0, "start_timestamp": start,
        "first_token_timestamp": 5_100_000_000 if streaming else -1, "end_timestamp": end,
        "decode_iteration": len(request.lengths) + counts_prefill, "num_total_output_tokens": request.output,
        "output": "private text", "output_tokens": request.output,
    }  # fmt: skip


def test_requests() -> None:
    tables, rejects = read(*(record(i, r) for i, r in enumerate(RUN, 1)))
    assert rejects == []
    columns = (
        "request_id",
        "prompt_tokens",
        "output_tokens",
        "iterations",
        "ttft_us",
        "decode_us",
        "e2e_us",
        "tpot_us",
    )
    assert shown(tables.requests, *columns)[0] == ("src#1", 128, 15, 5, 100_000, 100_000, 200_000, 100_000 / 14)
    assert "private" not in str(tables)
    # A request that accepted nothing had as many passes as tokens: the prefill's is among them, in all of the file.
    counted, _ = read(*(record(i, r, counts_prefill=True) for i, r in enumerate([*RUN, Request([0, 0])], 1)))
    assert counted.requests is not None
    assert counted.requests["iterations"].to_list() == [5, 3, 2, 2]


def test_requests_without_streaming_have_no_first_token() -> None:
    tables, _ = read(record(1, RUN[0], streaming=False))
    assert shown(tables.requests, "ttft_us", "decode_us", "tpot_us", "e2e_us") == [(None, None, None, 200_000)]


def test_files_as_they_are_written(tmp_path: Path) -> None:
    """Both are documents over several lines, the requests as an array."""
    tables, rejects = ingest(tmp_path, json.dumps(report(RUN, 3), indent=4), "tensorrt-llm", "report.json")
    assert (shown(tables.windows, "rounds", "accepted"), rejects) == ([(10, 17)], [])
    listed = json.dumps([record(i, r) for i, r in enumerate(RUN, 1)], indent=4)
    tables, rejects = ingest(tmp_path, listed, "tensorrt-llm", "requests.json")
    assert (shown(tables.requests, "request_id", "output_tokens"), rejects) == (
        [("src#1", 15), ("src#2", 11), ("src#3", 4)],
        [],
    )


def test_figures_of_a_lake(tmp_path: Path) -> None:
    """alpha, tau and the round's time of two runs and their baseline."""
    for name, made in (("spec", report(RUN, 3)), ("base", report([Request([0] * 9)], 0, step_ms=15.0))):
        (tmp_path / f"{name}.json").write_text(json.dumps(made, indent=1))
    into_lake([str(tmp_path / f"{n}.json") for n in ("spec", "base")], tmp_path / "lake", IngestOptions(jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        rows = con.execute(
            "select role, sum(accepted) / nullif(sum(drafted), 0),"
            " sum(emitted) / sum(rounds + coalesce(plain_steps, 0)),"
            " sum(step_us) / sum(time_rounds) from facts group by role order by role"
        ).fetchall()
    assert rows == [("baseline", None, 1.0, 15000.0), ("speculative", 17 / 30, 2.7, 20000.0)]


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(4, 7),
    st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_one_truth_comes_back(lengths: list[list[int]], k: int, weighted: bool, counts_prefill: bool) -> None:
    requests = [Request(each) for each in lengths]
    if counts_prefill:
        requests.append(Request([0]))  # shows it
    tables, rejects = read(report(requests, k, weighted=weighted, counts_prefill=counts_prefill))
    rounds, accepted = sum(len(r.lengths) for r in requests), sum(sum(r.lengths) for r in requests)
    assert rejects == []
    assert shown(tables.windows, "rounds", "drafted", "accepted") == [(rounds, k * rounds, accepted)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = (
    "engine", "engine__model", "engine__version", "world_info", "world_info__tp_size", "request_info",
    "request_info__num_requests", "request_info__avg_output_length", "request_info__avg_num_concurrent_requests",
    "performance__total_latency_ms", "performance__avg_request_latency_ms", "streaming_metrics",
    "streaming_metrics__avg_ttft_ms", "decoding_stats", "decoding_stats__mode",
    "decoding_stats__num_draft_tokens_percentiles", "decoding_stats__num_draft_tokens_percentiles__average",
    "decoding_stats__num_accepted_draft_tokens_percentiles__average",
    "decoding_stats__num_accepted_draft_tokens_percentiles__minimum",
)  # fmt: skip


@given(st.sampled_from(PLACES), JSON, st.dictionaries(st.sampled_from(list(record(1, RUN[0]))), JSON, max_size=4))
@settings(max_examples=150, deadline=None)
def test_hostile_values(place: str, value: Any, entry: dict[str, Any]) -> None:
    read(changed(**{place: value}), record(1, RUN[0]) | entry)


def test_surfaces_are_declared() -> None:
    frames = pl.Series([s.name for s in ENGINE.surfaces])
    assert frames.is_unique().all()
