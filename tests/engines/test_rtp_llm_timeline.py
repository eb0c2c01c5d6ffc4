"""RTP-LLM's timelines: phases of the host, and of the device by the launches inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.traces import document, event, torch
from tracelens.engines.base import Context, Reject, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.rtp_llm import ENGINE, timeline
from tracelens.lake.schema import table
from tracelens.sources.chrome_trace import read

REAL = Path(__file__).parents[2].parent / "shared" / "real" / "rtp-llm" / "profiler_wr0_1.json"
CONTEXT = Context(
    "source",
    lambda frame: frame.select(ts=pl.lit(None, pl.Datetime("us")), ts_basis=pl.lit("none")),
)
PHASES = ("draft_us", "target_us", "sample_us", "rollback_us", "repack_us", "emit_lag_us", "step_us")
Event = dict[str, Any]


def taken(
    events: Sequence[Event], file: str | None = None, **about: Any
) -> tuple[dict[str, int], Tables, list[Reject]]:
    trace = read(iter([torch(document(events))]), timeline.MARKS, timeline.LAUNCH_MARKS)
    assert (trace.problems, trace.cut) == ([], None)
    parsed = ENGINE.trace(trace.events, replace(trace.about, file=file, **about))
    tables = ENGINE.assemble(parsed.frames, CONTEXT)
    if tables.windows is not None:
        types = table("windows").polars_schema()
        full = tables.windows.with_columns(
            pl.lit(None, t).alias(c) for c, t in types.items() if c not in tables.windows.columns
        ).cast(types)  # type: ignore[arg-type]
        assert full.select(f=broken_identities("windows", full))["f"].null_count() == full.height
    records = {surface: sum(f.height for f in frames) for surface, frames in parsed.frames.items()}
    return records, tables, [*parsed.rejects, *tables.rejects]


def rows(tables: Tables, *columns: str) -> list[tuple[Any, ...]]:
    assert tables.windows is not None
    return tables.windows.select(columns).rows()


def scope(name: str, ts: float, dur: float, tid: int = 4311, pid: int = 4242) -> Event:
    return event(name, ts, dur, cat="cpu_op", pid=pid, tid=tid)


def call(at: float, streams: int = 2, k: int = 4, dur: float = 24_000) -> list[Event]:
    """One call of the executor that decodes, with every scope of main that has a phase."""
    head, part = "executor.mtp.", "executor.mtp.decode_step"
    return [
        scope(f"{head}process(stream_size={streams},mtp_step={k})", at, dur),
        scope(f"{part}(decode_stream_size={streams})", at + 50, dur - 100),
        scope(f"{part}(wait_prev_bookkeeping,stream_count={streams})", at + 60, 40),
        scope(f"{part}(prepare_decode_input_and_tp_sync)", at + 200, 100),
        scope(f"{part}(gather_model_input)", at + 210, 30),
        scope(f"{part}(tp_sync_input_rank0)", at + 250, 20),
        scope(f"{head}draft_model_decode(batch_size={streams})", at + 400, 3_500),
        scope(f"{head}draft_model_decode(loop_iter=0)", at + 450, 1_000),
        scope(f"{head}draft_model_decode(loop_iter=1)", at + 1_500, 1_000),
        scope(f"{head}draft_model_decode(build_spec_decode_input)", at + 3_700, 150),
        scope(f"{part}(target_model_verify)", at + 5_000, 800),
        scope(f"{part}(rejection_sampling)", at + 6_000, 500),
        scope("speculative_sampler.batchSample", at + 6_100, 300),
        scope("speculative_sampler.batchSample.execRejectionSampling", at + 6_150, 90),
        scope(f"{part}(draft_model_forward)", at + 6_600, 300),
        scope(f"{part}(draft_model_sample)", at + 6_950, 70),
        scope(f"{part}(tp_sync_post_rejection)", at + 7_100, 60),
        scope(f"{part}(wait_pending_linear_attn_swaps,count=1)", at + 7_200, 25),
        scope(f"{part}(update_kv_cache_kernel_block_id)", at + 7_300, 35),
        scope(f"{part}(collect_metrics)", at + 7_400, 999),
        scope(f"{part}(dispatch_output)", at + 8_500, 210),
        scope(f"{part}(spec_bookkeeping_worker)", at + 8_600, 400, tid=99),  # its own thread, beside the step
    ]


def launch(correlation: int, at: float, *kernels: tuple[float, float], stream: int = 7) -> list[Event]:
    return [
        event("cudaLaunchKernel", at, 5, cat="cuda_runtime", pid=4242, tid=4311, correlation=correlation),
        *(event("k", ts, dur, cat="kernel", pid=0, tid=stream, correlation=correlation) for ts, dur in kernels),
    ]


def test_every_phase_has_the_host_s_time_once() -> None:
    records, tables, rejects = taken([*call(0), *call(25_000, streams=3)], "profiler_ts17_wr0_1.json")
    assert (records, rejects) == ({"rtp.timeline": 2}, [])
    # draft: the loop without the verify input that is built in it, and the tail; re-packing has that input.
    host = (3_500 - 150 + 300 + 70, 800, 500, 25 + 35, 100 + 150 + 60, 40 + 210, 24_000)
    assert rows(tables, *PHASES) == [host] * 2
    counts = rows(tables, "rounds", "drafted", "plain_steps", "num_speculative_tokens", "running")
    assert counts == [(2, 8, 0, 4, 2), (3, 12, 0, 4, 3)]
    assert tables.windows is not None
    assert "accepted" not in tables.windows.columns
    assert rows(tables, "process", "surface", "ts_basis", "steps", "time_basis")[0] == (
        "rank 0", "rtp.timeline", "absolute", 1, "sum",
    )  # fmt: skip


@pytest.mark.parametrize("together", [1, 64])
def test_the_device_s_time_of_a_phase_is_that_of_the_work_launched_in_it(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that run long behind their launch, side by side, or in another phase's host time."""
    monkeypatch.setattr(timeline, "_STEPS", together)
    events = [
        *call(0), *call(25_000),
        *launch(1, 460.0, (500, 900)), *launch(2, 1_510.0, (1_600, 800)),
        *launch(3, 3_750.0, (3_800, 20)),  # the verify input: re-packing, which is the host's
        *launch(4, 5_100.0, (5_200, 9_000), (10_000, 6_000)),  # a graph; 4,200 us of the two overlap
        *launch(5, 5_110.0, (15_000, 2_000)),  # on another stream, half of it beside the graph
        *launch(6, 6_160.0, (17_000, 250)), *launch(7, 6_610.0, (17_400, 300)),
        *launch(8, 24_500.0, (24_600, 100)),  # between the calls: of no phase
        *launch(9, 30_050.0, (30_100, 8_000)),
    ]  # fmt: skip
    records, tables, _ = taken(events)
    assert records == {"rtp.timeline_device": 2}
    assert rows(tables, *PHASES) == [
        (900 + 800 + 300, 11_800, 250, 60, 310, 250, 24_000),
        (None, 8_000, None, 60, 310, 250, 24_000),
    ]


def test_without_kernels_a_gpu_s_phases_are_not_known() -> None:
    _, tables, _ = taken(call(0), devices=2)
    assert rows(tables, *PHASES) == [(None, None, None, 60, 310, 250, 24_000)]


def test_prefill_in_a_call_is_in_no_round_s_step() -> None:
    events = call(0)
    events += [scope("executor.mtp.prefill_step(prefill_stream_size=1)", 10_000, 9_000)]
    alone = [scope("executor.mtp.process(stream_size=1,mtp_step=4)", 50_000, 9_000),
             scope("executor.mtp.prefill_step(prefill_stream_size=1)", 50_010, 8_000)]  # fmt: skip
    records, tables, _ = taken([*events, *alone])
    assert records == {"rtp.timeline": 1}
    assert rows(tables, "target_us", "step_us", "window_us", "rounds") == [(800, None, 24_000, 2)]


@pytest.mark.parametrize(
    ("file", "rank", "counts"),
    [
        ("profiler_ts1_wr0_1.json", None, True),
        ("profiler_ts1_wr3_1.json", None, False),
        ("profiler_ts1_wr3_1.json", 0, True),
        ("any.json", None, True),
        ("any.json", 2, False),
    ],
)
def test_only_rank_0_counts(file: str, rank: int | None, counts: bool) -> None:
    records, tables, _ = taken([*call(0), *call(25_000)], file, rank=rank)
    assert records == {"rtp.timeline" if counts else "rtp.timeline_rank": 2}
    assert (tables.windows is not None) == counts


def test_ranks_put_together_count_once() -> None:
    other = [{**e, "pid": 5, "tid": 6} for e in call(0)]
    records, _, _ = taken([*call(0), *call(25_000), *other])
    assert records == {"rtp.timeline": 2, "rtp.timeline_rank": 1}


def test_a_trace_of_something_else_is_not_taken() -> None:
    assert taken([scope("executor.mtp.unknown", 0, 1), scope("aten::copy_", 1, 1)])[0] == {}


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_phases_never_add_up_to_more_than_the_call(data: st.DataObject) -> None:
    """Whatever lies in whatever: every moment of a call has one phase at most."""
    names = [e["name"] for e in call(0)]
    times = st.integers(0, 30_000)
    inner = data.draw(st.lists(st.tuples(st.sampled_from(names), times, times), max_size=25))
    events = [*call(0)[:2], *(scope(name, ts, dur) for name, ts, dur in inner)]
    _, tables, _ = taken(events)
    if tables.windows is not None:
        for row in rows(tables, "window_us", *PHASES[:-1]):
            assert sum(value or 0 for value in row[1:]) <= row[0] + len(PHASES)


@pytest.mark.skipif(not REAL.is_file(), reason="the real captures are not here")
def test_the_example_of_main() -> None:
    trace = read(iter([REAL.read_bytes()]), timeline.MARKS, timeline.LAUNCH_MARKS)
    parsed = ENGINE.trace(trace.events, replace(trace.about, file=REAL.name))
    tables = ENGINE.assemble(parsed.frames, CONTEXT)
    columns = ("surface", "target_us", "step_us", "rounds", "drafted", "num_speculative_tokens", "process")
    assert rows(tables, *columns) == [("rtp.timeline_device", 15_600, 24_000, 1, 4, 4, "rank 0")] * 2
    host = timeline.windows(timeline.parse(trace.events, replace(trace.about, work=None)).frames)[0]
    assert host.select("draft_us", "target_us", "sample_us").rows() == [(3_800, 800, 90)] * 2
