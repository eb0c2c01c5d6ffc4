"""TensorRT-LLM's steps: the forward's own time, records that were dropped, steps listed by finished requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.test_tensorrt_llm import COUNTS, ingest, stats, windows
from tests.engines.whole_source import ingest as ingest_text
from tests.engines.whole_source import reasons, shown


def spec(drafted: int, accepted: int, rounds: int, draft_ms: float) -> dict[str, Any]:
    return {
        "numDraftTokens": drafted, "numAcceptedTokens": accepted, "numRequestsWithDraftTokens": rounds,
        "iterLatencyMS": draft_ms,
    }  # fmt: skip


def test_the_forward_of_an_iteration_is_the_targets_where_no_drafter_is_in_it() -> None:
    rows = windows(
        stats(10, gpuForwardTimeMS=7.5, specDecodingStats=spec(12, 6, 4, 2.25)),  # a draft model, timed outside of it
        stats(11, gpuForwardTimeMS=9.5, specDecodingStats=spec(12, 6, 4, 0.0)),  # one-model: the drafter is inside
        stats(12, gpuForwardTimeMS=6.25, specDecodingStats=None),  # nothing drafts
        stats(13, gpuForwardTimeMS=0.0, specDecodingStats=None),
        stats(
            14,
            gpuForwardTimeMS=30.0,
            specDecodingStats=None,
            inflightBatchingStats={"numContextRequests": 1, "numGenRequests": 4, "numScheduledRequests": 5},
        ),
    )
    assert rows.select("draft_us", "target_us").rows() == [
        (2250, 7500), (None, None), (None, 6250), (None, None), (None, None),
    ]  # fmt: skip


NOTHING = (None, None, None, None, None)
PLAIN = (0, 4, 0, 0, "logged")
BATCH = {"numContextRequests": 0, "numGenRequests": 4, "numScheduledRequests": 4}
EMPTY = spec(0, 0, 0, 0.0)


@pytest.mark.parametrize(
    ("others", "vouched"),
    [
        ([], False),
        ([stats(12, specDecodingStats={})], False),
        ([stats(12, specDecodingStats=EMPTY | {"acceptanceLength": 0.0, "draftOverhead": 0.0})], False),
        ([stats(12)], True),  # n-gram: iterations with a draft and without
        ([stats(12, specDecodingStats=None)], True),  # null where nothing drafts: since #9855
        ([stats(12, 0, 0, 0, hostStepTimeMS=9.5)], True),
        ([stats(12, 0, 0, 0, prevDeviceStepTimeMS=9.5)], True),
        ([stats(12, 0, 0, 0, schedulerMode="overlap")], True),
        ([stats(12, 0, 0, 0, gpuForwardTimeMS=9.5)], True),
        ([stats(12, 0, 0, 0, statsSequence=12)], True),
        ([stats(12, 0, 0, 0, inflightBatchingStats=BATCH | {"numGenKvTokens": 99})], True),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("blocks", [1, 3])
def test_zeros_that_nothing_vouches_for_are_not_counts(
    others: list[dict[str, Any]], vouched: bool, order: int, blocks: int
) -> None:
    """Before #9855 (2025-12) the block was left at zero outside n-gram, whatever was drafted."""
    records = [stats(10, specDecodingStats=EMPTY), stats(11, 0, 0, 0), *others][::order]
    rows = windows(*records, blocks=blocks).select(*COUNTS).rows()[::order]
    assert rows[:2] == [PLAIN if vouched else NOTHING] * 2
    if not vouched:
        assert set(rows) == {NOTHING}


def test_another_process_does_not_vouch(tmp_path: Path) -> None:
    said = (("gen-1", stats(10, 0, 0, 0)), ("gen-2", stats(10, 0, 0, 0)), ("gen-2", stats(11)))
    text = "".join(f"{pod}  | {json.dumps(record)}\n" for pod, record in said)
    tables, _ = ingest_text(tmp_path, text, "tensorrt-llm", "compose.log")
    assert shown(tables.windows, "source_line", "drafted", "plain_steps") == [(1, None, None), (2, 0, 4), (3, 12, 0)]


def test_records_that_were_dropped_before_a_poll_are_told() -> None:
    polls = [
        stats(n, statsSequence=n, statsDroppedFrames=0, timestamp=f"08-23-2026 10:00:00.{n:06}") for n in (7, 8, 12)
    ]
    more = [stats(n, statsSequence=n, statsDroppedFrames=5, timestamp=f"08-23-2026 10:00:01.{n:06}") for n in (15, 16)]
    tables, rejects = ingest(*polls, *more)
    assert tables.windows is not None
    assert tables.windows.height == 5
    assert [(r.line, r.reason) for r in rejects] == [
        (3, "5 iterations were dropped before they were polled: poll more often")
    ]


def test_a_restart_and_ranks_of_one_iteration_drop_nothing() -> None:
    ranks = [stats(7, statsSequence=7, attentionDpRank=r, timestamp="08-23-2026 10:00:00") for r in (0, 1)]
    anew = stats(1, statsSequence=0, timestamp="08-23-2026 10:05:00")
    assert ingest(*ranks, stats(8, statsSequence=8), anew)[1] == []


def entry(began: float, forward: float | None = 12.0, sample: float | None = 0.5) -> dict[str, Any]:
    return {
        "forward_start_time": began, "forward_end_time": began + 0.01, "sample_start_time": began + 0.01,
        "gpu_forward_time": forward, "gpu_sample_time": sample,
    }  # fmt: skip


def request(
    number: int, began: Sequence[float], drafted: int | None, *, prompt: Sequence[float] = (), **more: Any
) -> dict[str, Any]:
    """A finished request that took part in the steps that began at these times; `drafted` None leaves the block out."""
    metrics: dict[str, Any] = {"first_iter": 3, "last_iter": 3 + len(began)}
    if drafted is not None:
        metrics["speculative_decoding"] = {"total_draft_tokens": drafted, "total_accepted_draft_tokens": drafted // 2}
    lists = {"step_metrics": [entry(b, **more) for b in began], "ctx_chunk_metrics": [entry(b, 40.0) for b in prompt]}
    return {"request_id": number, "perf_metrics": metrics, "time_breakdown_metrics": lists}


COLUMNS = ("surface", "running", "rounds", "plain_steps", "step_us", "sample_us", "target_us", "steps")
STEP = "trtllm.step_metrics"


def test_steps_of_requests_are_one_a_batch() -> None:
    tables, rejects = ingest(
        request(1, [9.0, 9.02, 9.04], 9, prompt=[8.9]),
        request(2, [9.02, 9.04], 6, prompt=[9.0]),  # its prompt was in the step at 9.0
    )
    assert rejects == []
    assert shown(tables.windows, *COLUMNS) == [
        (STEP, 1, 1, 0, None, None, None, 1),
        (STEP, 2, 2, 0, 12500, 500, None, 1),
        (STEP, 2, 2, 0, 12500, 500, None, 1),
    ]
    assert shown(tables.windows, "drafted", "counts_basis", "rounds_basis", "ts_basis", "ts_end")[1] == (
        None, None, "derived", "none", None,
    )  # fmt: skip
    assert shown(tables.requests, "rounds", "drafted", "target_us") == [(3, 9, None), (2, 6, None)]


def test_steps_without_drafts_are_the_targets() -> None:
    tables, _ = ingest(request(1, [9.0, 9.02], None), request(2, [9.02], None))
    assert shown(tables.windows, *COLUMNS) == [
        (STEP, 1, 0, 1, 12500, 500, 12000, 1),
        (STEP, 2, 0, 2, 12500, 500, 12000, 1),
    ]
    assert shown(tables.requests, "target_us") == [(24000,), (12000,)]


def test_a_block_of_zeros_does_not_say_that_nothing_was_drafted() -> None:
    """The PyTorch backend wrote it before #17082, with speculation or without."""
    tables, _ = ingest(request(1, [9.0], 0), request(2, [9.0, 9.02], None))
    assert shown(tables.windows, *COLUMNS) == [
        (STEP, 2, None, None, 12500, 500, None, 1),
        (STEP, 1, 0, 1, 12500, 500, 12000, 1),
    ]
    assert shown(tables.requests, "target_us", "drafted") == [(None, None), (24000, None)]


def test_what_was_not_measured_of_a_step() -> None:
    tables, rejects = ingest(
        request(1, [9.0], 3, forward=0), request(2, [9.02], 3, sample=None), request(3, [9.04], 3, forward="x"),
        request(4, [], 3), {"perf_metrics": {}, "time_breakdown_metrics": {"step_metrics": [{}, 7]}},
    )  # fmt: skip
    assert rejects == []
    assert shown(tables.windows, "step_us", "sample_us", "time_basis") == [
        (None, 500, None), (12000, None, "sum"), (None, 500, None),
    ]  # fmt: skip


def test_a_file_that_ends_in_the_middle_of_a_record(tmp_path: Path) -> None:
    lines = [json.dumps(request(n, [9.0 + n], 3)) for n in (1, 2, 3)]
    tables, rejects = ingest_text(tmp_path, "\n".join(lines)[:-40], "tensorrt-llm", "perf_metrics-server-x.jsonl")
    assert shown(tables.requests, "request_id") == [("1",), ("2",)]
    assert len(rejects) == 1
    assert reasons(rejects)[0].startswith("broken JSON")


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, unique=True, max_size=6).map(sorted), min_size=1, max_size=6),
    st.integers(1, 4), st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_steps_count_the_requests_in_them(taken: list[list[int]], k: int, blocks: int) -> None:
    made = [request(i, [9.0 + s for s in steps], k * len(steps)) for i, steps in enumerate(taken, 1)]
    tables, rejects = ingest(*made, blocks=blocks)
    assert rejects == []
    truth = [sum(s in steps for steps in taken) for s in sorted({s for steps in taken for s in steps})]
    found = shown(tables.windows, "running", "rounds")
    assert sorted(found) == sorted((n, n) for n in truth)
    assert tables.requests is not None
    assert sum(n for n, _ in found) == tables.requests["rounds"].sum()
