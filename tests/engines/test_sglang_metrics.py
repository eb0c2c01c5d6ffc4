"""SGLang's /metrics to windows: counts, device time and K of every generation, and what a counter may suffer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, Reject, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.sglang import ENGINE
from tracelens.engines.sglang.metrics import FINISHED, SCHEDULER
from tracelens.lake.schema import table
from tracelens.sources.clocks import resolve
from tracelens.sources.exposition import Scrapes
from tracelens.sources.stream import Block

START = datetime(2026, 9, 20, 10, 0, 0)
RANK = {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
COUNTS = ("rounds", "plain_steps", "drafted", "accepted", "emitted")


def read(text: str) -> tuple[pl.DataFrame, list[Reject]]:
    """Windows of a page or several, with every column of the table; identities hold in all of them."""
    scrapes = Scrapes(ENGINE.metric_prefixes)
    samples = pl.concat([scrapes.feed(Block(text.encode(), 1, 0)), scrapes.finish()])
    parsed = ENGINE.metrics(samples)
    assert parsed.claimed == samples.height
    context = Context("source", lambda frame: resolve(frame, tz=None, year=None, mtime=None))
    made = ENGINE.assemble(parsed.frames, context) if parsed.frames else Tables()
    types = table("windows").polars_schema()
    rows = pl.DataFrame(schema=types) if made.windows is None else made.windows
    rows = rows.with_columns(pl.lit(None, t).alias(c) for c, t in types.items() if c not in rows.columns)
    rows = rows.select(list(types)).cast(types)
    assert broken_identities("windows", rows).null_count() == rows.height
    return rows, [*scrapes.problems, *parsed.rejects, *made.rejects]


def sample(name: str, value: float, **labels: str) -> str:
    inside = ",".join(f'{k}="{v}"' for k, v in labels.items())
    return f"sglang:{name}{{{inside}}} {value}\n"


def scheduler(
    tokens: float | None = None, passes: float | None = None, times: Mapping[str, float] | None = None,
    length: float = 0.0, rate: float = 0.0, steps: float = 0, verified: float = 0, throughput: float = 0.0,
    family: str = "forward_execution_seconds_total", **ranks: str,
) -> str:  # fmt: skip
    """What one scheduler exports (0.5.15+); `ranks` over those of a single one."""
    labels = {"model_name": "acme/llama", "engine_type": "unified", **RANK, **ranks}
    out = [
        sample("num_running_reqs", 4, **labels),
        sample("num_queue_reqs", 1, **labels),
        sample("token_usage", 0.25, **labels),
        sample("gen_throughput", throughput, **labels),
        sample("spec_accept_length", length, **labels),
        sample("spec_accept_rate", rate, **labels),
        sample("spec_num_steps", steps, **labels),
        sample("spec_num_draft_tokens", verified, **labels),
    ]
    if tokens is not None:
        out.append(sample("realtime_tokens_total", tokens, **labels, mode="decode"))
    if passes is not None:
        out.append(sample("cuda_graph_passes_total", passes, **labels, mode="decode_cuda_graph"))
    out += [sample(family, value, **labels, category=c) for c, value in (times or {}).items()]
    return "".join(out)


def front_end(generated: float, requests: float, rounds: float | None = None, gap_s: float = 0, **labels: str) -> str:
    labels = {"model_name": "acme/llama", **labels}
    calls = {k: v for k, v in labels.items() if k != "is_streaming"}
    out = sample("generation_tokens_total", generated, **labels) + sample("num_requests_total", requests, **labels)
    out += sample("prompt_tokens_total", 10 * requests, **labels)
    if rounds is not None:
        out += sample("spec_verify_calls_total", rounds, **calls)
    if gap_s:
        out += sample("inter_token_latency_seconds_sum", gap_s, **calls)
        out += sample("inter_token_latency_seconds_count", generated - requests, **calls)
    return out


def stamped(*pages: str) -> str:
    """Pages ten seconds apart."""
    times = [START + timedelta(seconds=10 * i) for i in range(len(pages))]
    return "".join(f"# {t:%Y-%m-%dT%H:%M:%SZ}\n{p}" for t, p in zip(times, pages, strict=True))


def later(page: str) -> str:
    """A page that follows one on which nothing had been counted yet."""
    counted = ("_total{", "_seconds_sum{", "_seconds_count{")
    lines = [line.rpartition(" ")[0] + " 0" if any(c in line for c in counted) else line for line in page.splitlines()]
    return stamped("".join(line + "\n" for line in lines), page)


def shown(rows: pl.DataFrame, surface: str, *columns: str) -> list[tuple[Any, ...]]:
    return rows.filter(pl.col("surface") == surface).select(columns).rows()


TIMES = {"extend": 1.0, "target_verify": 2.0, "eagle_draft": 0.5, "eagle_draft_extend": 0.25}
LATER = {"extend": 1.1, "target_verify": 3.2, "eagle_draft": 0.8, "eagle_draft_extend": 0.35}


def test_draft_and_verify_time_by_window() -> None:
    told = {"length": 2.5, "rate": 0.5, "steps": 3, "verified": 4, "throughput": 100.0}
    rows, rejects = read(stamped(scheduler(1000, 100, TIMES, **told), scheduler(2000, 200, LATER, **told)))
    assert rejects == []
    columns = ("draft_us", "target_us", "steps", *COUNTS, "num_speculative_tokens", "rounds_basis", "time_basis")
    # 1000 tokens at 2.5 a round; draft and extend are the drafter's, and 0.1 s of prefill is nobody's.
    assert shown(rows, SCHEDULER, *columns) == [
        # What a server had counted before it was looked at may be that of days: no gauge of 40 passes speaks for it.
        (750_000, 2_000_000, 100, None, None, None, None, None, 3, None, "sum"),
        (400_000, 1_200_000, 100, 400, None, 1200, 600, 1000, 3, "estimated", "sum"),
    ]
    place = ("ts_start", "ts_end", "window_us", "running", "waiting", "kv_cache_usage", "model", "replica", "process")
    assert shown(rows, SCHEDULER, *place)[1] == (
        START, START + timedelta(seconds=10), 10_000_000, 4, 1, 0.25, "acme/llama", None, None,
    )  # fmt: skip
    assert shown(rows, SCHEDULER, "ts_start", "window_us", "generated_tokens")[0] == (None, None, 1000)
    # Its draft time is a mean by pass and K all the same.
    assert shown(rows, SCHEDULER, "draft_ms_per_token") == [(2.5,), (None,)]


def test_finished_requests_are_counted_exactly_and_an_estimate_stands_back() -> None:
    told = {"length": 2.5, "rate": 0.5, "steps": 3, "verified": 4, "throughput": 100.0}
    first = scheduler(1000, 100, **told) + front_end(410, 10, 160, gap_s=3.2)
    second = scheduler(2000, 200, **told) + front_end(1420, 20, 560, gap_s=11.2)
    rows, rejects = read(stamped(first, second))
    assert rejects == []
    columns = (*COUNTS, "counts_basis", "rounds_basis", "num_speculative_tokens", "round_us", "rounds_timed")
    # Each request's first token is prefill's: 1010 new tokens of 10 requests are 1000 of 400 rounds.
    assert shown(rows, FINISHED, *columns)[1] == (
        400, None, 1200, 600, 1000, "derived", "logged", 3, 8_000_000, 400,
    )  # fmt: skip
    assert shown(rows, FINISHED, "generated_tokens", "prompt_tokens", "running")[1] == (1010, 100, 4)
    assert shown(rows, SCHEDULER, "rounds", "accepted", "drafted")[1] == (400, None, 1200)


def test_streamed_and_other_requests_are_one_count() -> None:
    def page(streamed: float, other: float, rounds: float) -> str:
        return (
            front_end(streamed, 2, rounds, is_streaming="true")
            + front_end(other, 1, is_streaming="false").replace("# ", "")
        )  # fmt: skip

    rows, rejects = read(stamped(page(202, 101, 150), page(402, 201, 300)))
    assert rejects == []
    assert shown(rows, FINISHED, "generated_tokens", "rounds", "emitted", "accepted") == [
        (303, 150, 300, 150),
        (300, 150, 300, 150),
    ]


def test_a_server_that_does_not_speculate_takes_plain_steps() -> None:
    one = scheduler(100, 50, {"decode": 1.0}, throughput=10.0) + front_end(103, 3, gap_s=1.1)
    two = scheduler(300, 150, {"decode": 3.0}, throughput=10.0) + front_end(306, 6, gap_s=3.3)
    rows, rejects = read(stamped(one, two))
    assert rejects == []
    columns = (*COUNTS, "draft_us", "target_us", "num_speculative_tokens")
    assert shown(rows, SCHEDULER, *columns)[1] == (0, 200, 0, 0, 200, None, 2_000_000, None)
    assert shown(rows, FINISHED, *COUNTS, "round_us", "rounds_timed")[1] == (0, 200, 0, 0, 200, 2_200_000, 200)
    # Before the first decode interval nothing tells whether it does.
    rows, _ = read(later(scheduler(100, 30, {"decode": 1.0})))
    assert shown(rows, SCHEDULER, *COUNTS, "draft_us") == [(None, None, None, None, None, None)]


@pytest.mark.parametrize("own", [True, False])
def test_k_is_told_by_the_rate_where_no_gauge_tells_it(own: bool) -> None:
    """0.5.8-0.5.14 have no gauge of K, and both conventions of the rate are in them."""
    pages = []
    for i, length in enumerate((2.25, 2.1875, 2.40625)):
        rate = length / 4 if own else (length - 1) / 3
        page = scheduler(1000.0 * i, 100.0 * i, length=length, rate=rate, throughput=9.0)
        pages.append("".join(line + "\n" for line in page.splitlines() if "spec_num" not in line))
    rows, _ = read(stamped(*pages))
    assert shown(rows, SCHEDULER, "num_speculative_tokens", "rounds", "drafted", "accepted") == [
        (3, 457, 1371, 543),
        (3, 416, 1248, 584),
    ]


def test_a_tree_has_nodes_and_an_adaptive_window_no_k() -> None:
    tree = {"length": 2.0, "steps": 5, "verified": 8, "throughput": 9.0}
    rows, _ = read(stamped(scheduler(100, 10, **tree), scheduler(200, 20, **tree)))
    assert shown(rows, SCHEDULER, "num_speculative_tokens", "num_draft_nodes", "drafted")[1] == (5, 7, 250)
    three, one = ({"length": 1.5, "steps": k, "verified": k + 1, "throughput": 9.0} for k in (3, 1))
    pages = (
        scheduler(0, 0, **three),
        scheduler(100, 10, **three),
        scheduler(200, 20, **one),
        scheduler(300, 30, **one),
    )
    rows, _ = read(stamped(*pages))
    assert shown(rows, SCHEDULER, "num_speculative_tokens", "drafted", "accepted") == [
        (3, 201, 33),
        (None, None, 33),
        (1, 67, 33),
    ]


def test_tensor_ranks_once_data_ranks_each() -> None:
    told = {"length": 2.0, "steps": 3, "verified": 4, "throughput": 9.0}
    ranks = [{"dp_rank": d, "tp_rank": t} for d, t in (("0", "0"), ("0", "1"), ("1", "2"), ("1", "3"))]
    page = "".join(scheduler(100.0 * (1 + int(r["dp_rank"])), 10, {"target_verify": 1.0}, **told, **r) for r in ranks)
    rows, _ = read(later(page))
    assert shown(rows, SCHEDULER, "replica", "emitted", "target_us", "process") == [
        ("0", 100, 1_000_000, None),
        ("1", 200, 1_000_000, None),
    ]


def test_parts_of_a_total_are_not_added_to_it() -> None:
    told = {"length": 2.0, "steps": 3, "verified": 4, "throughput": 9.0}
    page = scheduler(100, 10, **told, priority="") + sample(
        "num_running_reqs", 77, model_name="acme/llama", engine_type="unified", **RANK, priority="5"
    )
    assert shown(read(later(page))[0], SCHEDULER, "running", "emitted") == [(4, 100)]


def test_draft_time_that_went_elsewhere_is_not_used() -> None:
    told = {"length": 2.5, "steps": 3, "verified": 4, "throughput": 9.0}
    # Without the overlap scheduler only the target is timed (0.5.11+).
    rows, rejects = read(scheduler(1000, 100, {"target_verify": 2.0, "extend": 1.0}, **told))
    assert shown(rows, SCHEDULER, "draft_us", "target_us") == [(None, 2_000_000)]
    assert [r.reason.split(":")[0] for r in rejects] == ["verify time without draft time"]
    # Draft steps outside CUDA graphs are counted as decode.
    rows, rejects = read(scheduler(1000, 100, TIMES | {"decode": 0.4}, **told))
    assert shown(rows, SCHEDULER, "draft_us", "target_us") == [(None, 2_000_000)]
    assert [r.reason.split(":")[0] for r in rejects] == ["draft time not used"]
    # One stray pass of many windows is no reason to say so, but its window is not used.
    pages = [scheduler(1000.0 * i, 100.0 * i, {k: i * v for k, v in TIMES.items()}, **told) for i in range(1, 6)]
    stray = {k: 6 * v for k, v in TIMES.items()} | {"decode": 0.2}
    rows, rejects = read(stamped(*pages, scheduler(6000, 600, stray, **told)))
    assert (shown(rows, SCHEDULER, "draft_us")[-2:], rejects) == ([(750_000,), (None,)], [])


def test_before_0_5_11_the_timer_has_whole_rounds() -> None:
    told = {"length": 2.5, "throughput": 9.0, "family": "gpu_execution_seconds_total"}
    rows, rejects = read(scheduler(1000, 100, {"forward_extend": 1.0, "forward_decode": 2.0}, **told))
    assert rejects == []
    assert shown(rows, SCHEDULER, "draft_us", "target_us", "step_us", "steps") == [(None, None, 2_000_000, 100)]


def test_restart_and_cut_page() -> None:
    told = {"length": 2.0, "steps": 3, "verified": 4, "throughput": 9.0}
    full = [scheduler(t, t / 10, {"target_verify": t / 100, "eagle_draft": 1.0}, **told) for t in (1000, 1500, 1800)]
    restarted = scheduler(200, 20, {"target_verify": 2.0, "eagle_draft": 0.5}, **told)
    rows, rejects = read(stamped(*full, restarted))
    assert rejects == []
    assert shown(rows, SCHEDULER, "emitted", "target_us") == [
        (None, 10_000_000), (500, 5_000_000), (300, 3_000_000), (200, 2_000_000),
    ]  # fmt: skip
    # A page that was cut behind its gauges leaves its counts to the next one.
    cut = "".join(line + "\n" for line in full[1].splitlines()[:8])
    rows, rejects = read(stamped(full[0], cut, full[2]))
    assert rejects == []
    assert shown(rows, SCHEDULER, "emitted", "target_us", "ts_start") == [
        (None, 10_000_000, None), (800, 8_000_000, START),
    ]  # fmt: skip


def test_what_is_no_counter_is_told() -> None:
    _, rejects = read(front_end(10.5, 1, 3))
    assert [r.reason for r in rejects] == [
        "a counter that is no whole number: query the metric itself, not an average or a rate of it"
    ]
    falling = [front_end(v, 1, 3) for v in (90, 10, 80, 5, 70, 3, 60, 2, 50, 1)]
    rows, rejects = read(stamped(*falling))
    assert rows.height == 0
    assert rejects[0].reason.startswith("counters fall again and again")


def test_names_with_an_underscore_and_a_model_in_a_folder() -> None:
    told = {"length": 2.0, "steps": 3, "verified": 4, "throughput": 9.0}
    page = scheduler(100, 10, **told, model_name="/data/models/acme").replace("sglang:", "sglang_")
    assert shown(read(later(page))[0], SCHEDULER, "model", "emitted") == [("acme", 100)]


def test_an_address_in_a_label_is_not_kept() -> None:
    told = {"length": 2.0, "steps": 3, "verified": 4, "throughput": 9.0}
    page = "".join(scheduler(n, n / 10, **told, instance=f"192.0.2.{i}:30000") for i, n in enumerate((100, 200), 1))
    rows, _ = read(later(page))
    assert shown(rows, SCHEDULER, "process", "emitted") == [("target 1", 100), ("target 2", 200)]
    assert "192.0.2" not in str(rows.to_dicts())


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 16), st.floats(0, 1)), min_size=1, max_size=6),
)
@settings(max_examples=10, deadline=None)
def test_counts_come_back(k: int, intervals: list[tuple[int, int, float]]) -> None:
    """Whatever was counted between the first and the last scrape is in the windows, once."""
    tokens = passes = rounds = accepted = 0
    # Nothing is counted yet, but the gauges stand there from an earlier life: the first page is where all starts.
    pages = [
        scheduler(0, 0, {"target_verify": 0, "eagle_draft": 0}, length=2.0, steps=k, verified=k + 1, throughput=1.0)
        + front_end(0, 0, 0)
    ]
    for steps, batch, share in [(1, 1, 1.0), *intervals]:
        now = int(share * steps * batch * k)
        passes, rounds, accepted = passes + steps, rounds + steps * batch, accepted + now
        tokens += steps * batch + now
        length = 1 + now / (steps * batch)
        told = {"length": length, "steps": k, "verified": k + 1, "throughput": 1.0}
        times = {"target_verify": passes / 64, "eagle_draft": rounds / 128}
        pages.append(scheduler(tokens, passes, times, **told) + front_end(tokens + 1, 1, rounds))
    rows, rejects = read(stamped(*pages))
    assert rejects == []
    sums = {s: rows.filter(pl.col("surface") == s).sum().to_dicts()[0] for s in (SCHEDULER, FINISHED)}
    assert (sums[SCHEDULER]["rounds"], sums[SCHEDULER]["emitted"], sums[SCHEDULER]["steps"]) == (rounds, tokens, passes)
    assert (sums[SCHEDULER]["target_us"], sums[SCHEDULER]["draft_us"]) == pytest.approx(
        (passes / 64 * 1e6, rounds / 128 * 1e6), abs=len(pages)
    )
    assert (sums[FINISHED]["rounds"], sums[FINISHED]["accepted"]) == (rounds, accepted)
    assert sums[FINISHED]["drafted"] == rounds * k


NAMES = st.sampled_from(
    ["realtime_tokens_total", "cuda_graph_passes_total", "forward_execution_seconds_total", "spec_accept_length",
     "spec_accept_rate", "spec_num_steps", "spec_num_draft_tokens", "generation_tokens_total", "num_requests_total",
     "spec_verify_calls_total", "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count",
     "gen_throughput", "something_else"]
)  # fmt: skip
LABELS = st.dictionaries(
    st.sampled_from(["mode", "category", "tp_rank", "dp_rank", "priority", "is_streaming", "model_name", "task_type"]),
    st.sampled_from(
        ["decode", "decode_none", "target_verify", "eagle_draft", "0", "1", "x", "", "true", "-3", "9" * 30]
    ),
    max_size=4,
)
VALUES = st.one_of(
    st.integers(-5, 10_000).map(float), st.floats(allow_nan=True), st.sampled_from([1e300, -1e300, 2.0**60])
)


@given(st.lists(st.lists(st.tuples(NAMES, LABELS, VALUES), max_size=8), max_size=5))
@settings(max_examples=20, deadline=None)
def test_hostile_pages(pages: list[list[tuple[str, dict[str, str], float]]]) -> None:
    read(stamped(*("".join(sample(n, v, **labels) for n, labels, v in page) for page in pages)))
