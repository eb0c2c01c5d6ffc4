"""TensorRT-LLM: iteration stats, print_iter_log, request metrics. All examples are synthetic."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Tables
from tracelens.engines.tensorrt_llm import ENGINE
from tracelens.lake.schema import table

DATA = Path(__file__).parent.parent / "data" / "tensorrt-llm"
LINES = {"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String}
COUNTS = ("rounds", "plain_steps", "drafted", "accepted", "rounds_basis")


def resolve(stamps: pl.DataFrame) -> pl.DataFrame:
    text = pl.coalesce("stamp", "inner")
    ts = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    return stamps.select(ts=ts, ts_basis=pl.when(ts.is_null()).then(pl.lit("none")).otherwise(pl.lit("zone_assumed")))


def ingest(*entries: Any, blocks: int = 1) -> tuple[Tables, list[Reject]]:
    """Text lines (str) and records (dict) as one source, in some number of blocks."""
    parsed = Parsed()
    size = -(-len(entries) // blocks)
    for start in range(0, len(entries), size):
        part = list(enumerate(entries[start : start + size], start + 1))
        parsed.merge(ENGINE.records([JsonRecord(i, i, None, None, e) for i, e in part if isinstance(e, dict)]))
        texts = [(i, i, e, None, None) for i, e in part if isinstance(e, str)]
        texts = [t for t in texts if any(n.decode() in t[2] for n in ENGINE.needles)]
        if texts:
            parsed.merge(ENGINE.lines(pl.DataFrame(texts, schema=LINES, orient="row")))
    tables = ENGINE.assemble(parsed.frames, Context("src", resolve))
    for name in ("windows", "requests"):
        frame = getattr(tables, name)
        types = table(name).polars_schema()
        assert frame is None or {c: t for c, t in frame.schema.items() if types.get(c) != t} == {}
    return tables, parsed.rejects + tables.rejects


def sample(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def windows(*entries: Any, blocks: int = 1) -> pl.DataFrame:
    tables, rejects = ingest(*entries, blocks=blocks)
    assert rejects == []
    assert tables.windows is not None
    return tables.windows


def stats(number: int, drafted: int = 12, accepted: int = 6, rounds: int | None = 4, **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"numDraftTokens": drafted, "numAcceptedTokens": accepted}
    if rounds is not None:
        spec |= {
            "numRequestsWithDraftTokens": rounds,
            "acceptanceLength": (accepted + rounds) / rounds if rounds else 0.0,
        }
    batch = {"numContextRequests": 0, "numGenRequests": 4, "numScheduledRequests": 4}
    value = {"iter": number, "iterLatencyMS": 18.0, "inflightBatchingStats": batch, "specDecodingStats": spec}
    return value | more


def logged(
    number: int, scheduled: int, host: float, device: str, *, rank: int = 0, context: int = 0, fed: int = 16
) -> str:
    return (
        f"[08/23/2026-10:00:00] [TRT-LLM] [I] [_torch][RANK {rank}] "
        f"iter = {number}, global_rank = {rank}, rank = {rank}, "
        f"num_scheduled_requests = {scheduled}, kv_cache_util = 0.125, currank_total_requests = 0/1, "
        f"host_step_time = {host}ms, prev_device_step_time = {device}, timestamp = 08-23-2026 10:00:00, "
        f"states = {{'num_ctx_requests': {context}, 'num_ctx_tokens': {context * 7}, 'num_generation_tokens': {fed}}}"
    )


def test_one_iteration() -> None:
    (row,) = windows(*map(json.loads, sample("trtllm_iterstats.jsonl"))).to_dicts()
    expected = {
        "surface": "trtllm.iteration_stats",
        "source_line": 1,
        "steps": 1,
        "rounds": 4,
        "rounds_basis": "logged",
        "plain_steps": 0,
        "drafted": 12,
        "accepted": 7,
        "counts_basis": "logged",
        "num_speculative_tokens": 3,
        "draft_us": 2100,
        "step_us": 7420,
        "time_basis": "sum",
        "running": 4,
        "waiting": 0,
        "replica": "0",
        "ts_end": datetime(2026, 8, 23, 10, 0, 0, 123456),
    }
    assert {k: row[k] for k in expected} == expected


@pytest.mark.parametrize("blocks", [1, 3])
def test_drained_lists_attention_dp_and_the_shift(blocks: int) -> None:
    rows = windows(*sample("overlap.jsonl"), blocks=blocks)
    assert rows.select("source_line", "replica", *COUNTS).rows() == [
        (1, "0", 4, 0, 12, 7, "logged"),  # the second rank's row repeats the counts of the first
        (3, "0", 3, 1, 9, 9, "logged"),
        (3, "0", 0, 4, 0, 0, "logged"),  # null: nothing drafts
    ]
    # Device time of the iteration stands in the next record; the last one has prefill in it. 0.0 is not measured.
    assert rows["step_us"].to_list() == [9250, 9500, None]
    assert rows["draft_us"].to_list() == [None, 2100, None]
    assert rows["prompt_tokens"].to_list() == [0, 0, 77]
    assert rows["kv_cache_usage"].to_list() == [0.25, None, None]
    assert rows["num_speculative_tokens"].to_list() == [3, 3, None]


def test_old_and_partial_records() -> None:
    rows = windows(
        stats(5),
        stats(6, 20, 15, None),  # neither rounds nor a length to derive them from
        stats(7, 6, 3, None, specDecodingStats={"numDraftTokens": 6, "numAcceptedTokens": 3, "acceptanceLength": 2.5}),
        stats(8, 0, 0, 0),
        {"iter": 9, "iterLatencyMS": 3.0, "inflightBatchingStats": {"numGenRequests": 2}},
        {"iter": 9, "requestStats": [{"id": 3}]},
        stats(10, schedulerMode="non_overlap"),
    )
    assert rows.select(*COUNTS).rows() == [
        (4, 0, 12, 6, "logged"),
        (None, None, 20, 15, None),
        (2, 2, 6, 3, "derived"),
        (0, 4, 0, 0, "logged"),
        (None, None, None, None, None),
        (4, 0, 12, 6, "logged"),
    ]
    # iterLatencyMS is a step's only where no overlap scheduler runs.
    assert rows["step_us"].to_list() == [None] * 5 + [18000]


def test_broken_records() -> None:
    tables, rejects = ingest(
        stats(5, 3, 4), stats(5, -1, 0), stats(5, iter="x"), '[{"iterLatencyMS": 3', "iter = 1, global_rank = 0, x"
    )
    assert tables.windows is None
    assert sorted((r.line, r.reason) for r in rejects) == [
        (1, "numAcceptedTokens <= numDraftTokens does not hold"),
        (2, "numDraftTokens: negative"),
        (3, "iter: wrong type"),
        (4, "broken JSON"),
        (5, "incomplete line: no step time"),
    ]


def test_the_four_forms_of_the_iteration_log() -> None:
    rows = windows(*sample("trtllm_iter.log"))
    assert rows.select("step_us", "running", "steps", "rounds", "drafted").rows() == [
        (12300, None, 1, None, None),
        (12410, 4, 1, None, None),  # form (c) logs the device time of the iteration before
        (13221, 4, 1, None, None),
        (7426, 4, 1, None, None),
    ]
    assert rows["ts_end"].to_list()[0] == datetime(2025, 5, 2, 10)
    assert rows["kv_cache_usage"].to_list() == [None, None, None, 0.125]


@pytest.mark.parametrize("before", ["0: ", "[1,0]<stdout>:", "2026-08-23T10:00:00Z stdout F "])
def test_prefixes_of_launchers_and_fields_that_came_later(before: str) -> None:
    line = logged(43, 4, 7.5, "N/A").replace("currank_total", "cached_kv_len = 63821, currank_total")
    rows = windows(before + line)
    assert rows.select("step_us", "running", "kv_cache_usage").rows() == [(7500, 4, 0.125)]


def test_device_time_after_an_empty_iteration_is_idle_time() -> None:
    rows = windows(
        logged(258, 4, 7.0, "6.5ms"),
        logged(259, 0, 1456.0, "6.6ms"),
        logged(260, 4, 7.1, "1456.7ms"),
        logged(261, 4, 7.2, "6.8ms"),
        logged(262, 4, 7.3, "6.9ms", context=1),
        logged(263, 4, 7.4, "20.0ms"),
        logged(1, 4, 900.0, "N/A"),
        logged(263, 4, 7.4, "20.0ms", rank=1),
    )
    # 258 and 260, 261 by the device; 259 and 262 are no decode steps; 263 by the host; a new executor warms up.
    assert rows["step_us"].to_list() == [6600, None, 6800, 6900, None, 7400, None]
    assert windows(logged(9, 0, 1456.0, "N/A"), logged(10, 4, 1400.0, "3.0ms"))["step_us"].to_list() == [None, None]


def test_as_many_tokens_as_requests_are_plain_steps() -> None:
    rows = windows(logged(9, 4, 7.0, "6.5ms", fed=4), logged(10, 4, 7.0, "6.5ms", fed=16))
    assert rows.select(*COUNTS).rows() == [(0, 4, 0, 0, "derived"), (None, None, None, None, None)]
    assert windows(logged(9, 4, 7.0, "6.5ms").replace(": 16}", ": tensor(256)}"))["rounds"].to_list() == [None]


def test_perf_metrics() -> None:
    tables, rejects = ingest(*map(json.loads, sample("trtllm_perf_metrics.jsonl")))
    assert rejects == []
    assert tables.requests is not None
    (row,) = tables.requests.to_dicts()
    expected = {
        "request_id": "7",
        "surface": "trtllm.perf_metrics",
        "iterations": 42,
        "rounds": 42,
        "drafted": 126,
        "accepted": 73,
        "num_speculative_tokens": 3,
        "counts_basis": "derived",
        "queue_us": 3000,
        "ttft_us": 23000,
        "decode_us": 595_000,
        "e2e_us": 618_000,
        "ts_end": None,
        "ts_basis": "none",
        "output_tokens": None,
        "target_us": None,
    }
    assert {k: row[k] for k in expected} == expected


def perf(spec: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    timing = {"arrival_time": 10.0, "first_scheduled_time": 10.5, "first_token_time": 11.0, "last_token_time": 12.0}
    metrics: dict[str, Any] = {"first_iter": 3, "last_iter": 13, "timing_metrics": timing}
    metrics |= {"speculative_decoding": spec} if spec is not None else {}
    return {"request_id": 1, "perf_metrics": metrics | more}


def test_perf_metrics_that_say_less() -> None:
    zeros = {"acceptance_rate": 0.0, "total_accepted_draft_tokens": 0, "total_draft_tokens": 0}
    uneven = {"total_accepted_draft_tokens": 8, "total_draft_tokens": 25}
    passes = {"time_breakdown_metrics": {"step_metrics": [{"gpu_forward_time": 5.5}, {"gpu_forward_time": 6.0}]}}
    wrapped = {"ctx_perf_metrics": perf(None), "gen_perf_metrics": perf({**uneven, "total_draft_tokens": 20})}
    tables, rejects = ingest(
        perf(zeros), perf(uneven), perf(None) | passes, json.dumps([wrapped]), perf({"total_draft_tokens": 3})
    )
    assert tables.requests is not None
    assert tables.requests.select(
        "drafted", "accepted", "rounds", "iterations", "target_us", "counts_basis"
    ).rows() == [
        (None, None, None, 10, None, None),
        (25, 8, None, 10, None, "logged"),
        (None, None, None, 10, 11500, None),
        (20, 8, 10, 10, None, "derived"),
    ]
    assert [(r.line, r.surface) for r in rejects] == [(5, "trtllm.perf_metrics")]
    backwards = perf(None, timing_metrics={"arrival_time": 2.0, "first_token_time": 1.0})
    assert [r.reason for r in ingest(backwards)[1]] == ["arrival_time <= first_token_time does not hold"]


def test_responses() -> None:
    spec = {
        "total_accepted_draft_tokens": 5,
        "total_draft_tokens": 12,
        "num_spec_steps": 4,
        "num_spec_tokens": 3,
        "acceptance_histogram": [1, 2, 0, 1],
    }
    body = {
        "id": "cmpl-1",
        "usage": {"prompt_tokens": 3, "completion_tokens": 9},
        "choices": [{"finish_reason": "stop", "text": "secret", "speculative_decoding": spec}],
    }
    tables, rejects = ingest(body)
    assert rejects == []
    assert tables.requests is not None
    (row,) = tables.requests.to_dicts()
    expected = {
        "request_id": "cmpl-1",
        "rounds": 4,
        "drafted": 12,
        "accepted": 5,
        "accepted_hist": [1, 2, 0, 1],
        "emitted": 8,
        "iterations": 4,
        "output_tokens": 9,
        "num_speculative_tokens": 3,
        "finish_reason": "stop",
    }
    assert {k: row[k] for k in expected} == expected
    assert "secret" not in str(row)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5), st.data()), min_size=1, max_size=12),
    st.integers(1, 3),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_counts_come_back(steps: list[tuple[int, int, st.DataObject]], blocks: int, young: bool) -> None:
    records: list[dict[str, Any]] = []
    truth: list[tuple[int | None, ...]] = []
    for number, (rounds, k, data) in enumerate(steps, 10):
        accepted = data.draw(st.integers(0, rounds * k))
        batch = {"numGenRequests": rounds + 1, "numScheduledRequests": rounds + 1}
        younger = {"hostStepTimeMS": 9.5} if young else {}
        records.append(stats(number, rounds * k, accepted, rounds, inflightBatchingStats=batch, **younger))
        truth.append((rounds, 1, rounds * k, accepted))
    if not young and not any(rounds for rounds, *_ in truth):
        truth = [(None,) * 4 for _ in truth]  # they may never have been filled
    assert windows(*records, blocks=blocks).select(COUNTS[:4]).rows() == truth


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def some(*names: str) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(names), JSON) | JSON


@given(
    some("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens", "acceptanceLength", "iterLatencyMS"),
    some("numGenRequests", "numScheduledRequests", "numContextRequests", "numCtxTokens"),
    some("total_draft_tokens", "total_accepted_draft_tokens", "num_spec_steps", "acceptance_histogram"),
    some("arrival_time", "first_token_time", "last_token_time"),
    JSON,
)
@settings(max_examples=150, deadline=None)
def test_hostile_records(spec: Any, batch: Any, counts: Any, timing: Any, other: Any) -> None:
    base = {
        "iter": other,
        "iterLatencyMS": other,
        "timestamp": other,
        "hostStepTimeMS": other,
        "attentionDpRank": other,
    }
    tables, _ = ingest(
        base | {"specDecodingStats": spec, "inflightBatchingStats": batch, "kvCacheStats": batch},
        {"iter": 7, "iterLatencyMS": 1.0, "specDecodingStats": spec, "inflightBatchingStats": batch},
        {
            "perf_metrics": {
                "timing_metrics": timing,
                "speculative_decoding": counts,
                "first_iter": other,
                "last_iter": 4,
            }
        },
        {"gen_perf_metrics": other, "choices": [{"speculative_decoding": counts}], "usage": other, "id": other},
    )
    for frame in (tables.windows, tables.requests):
        for row in () if frame is None else frame.iter_rows(named=True):
            assert row["drafted"] is None or row["accepted"] is None or 0 <= row["accepted"] <= row["drafted"]


HOSTILE = st.sampled_from(
    [
        "iter = ",
        "7",
        ", global_rank = ",
        "0,",
        " host_step_time = ",
        "9.5ms",
        "N/A",
        "prev_device_step_time = ",
        "99999999999999999999",
        "timestamp = 99-99-2026 00:00:00",
        "states = {",
        "'num_generation_tokens': ",
        "tensor(",
        "}",
        "[{",
        '"iterLatencyMS"',
        "'",
        '"',
    ]
)


@given(st.lists(st.lists(HOSTILE | st.text(max_size=6), max_size=14).map("".join), min_size=1, max_size=6))
@settings(max_examples=120, deadline=None)
def test_hostile_lines(texts: list[str]) -> None:
    ingest(*texts)
