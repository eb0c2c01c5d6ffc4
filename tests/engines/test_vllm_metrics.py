"""vLLM's /metrics to windows: exact counts of real runs, and everything that a counter may suffer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, JsonRecord, Reject, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.vllm import ENGINE
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.lake.schema import table
from tracelens.sources import metric_json
from tracelens.sources.clocks import resolve
from tracelens.sources.exposition import Scrapes
from tracelens.sources.stream import Block

DATA = Path(__file__).parent.parent / "data" / "vllm"
TRUTH: Mapping[str, Any] = json.loads((DATA / "metrics-truth.json").read_text(encoding="utf-8"))
START = datetime(2026, 11, 29, 11, 0, 0)
COUNTS = ("rounds", "drafted", "accepted", "accepted_per_pos")


def windows_of(samples: pl.DataFrame) -> tuple[pl.DataFrame, list[Reject]]:
    """Windows of samples, with every column of the table; identities hold in all of them."""
    parsed = ENGINE.metrics(samples)
    assert parsed.claimed == samples.height
    context = Context("source", lambda frame: resolve(frame, tz=None, year=None, mtime=None))
    made = ENGINE.assemble(parsed.frames, context) if parsed.frames else Tables()
    types = table("windows").polars_schema()
    rows = pl.DataFrame(schema=types) if made.windows is None else made.windows
    rows = rows.with_columns(pl.lit(None, t).alias(c) for c, t in types.items() if c not in rows.columns)
    rows = rows.select(list(types)).cast(types)
    assert broken_identities("windows", rows).null_count() == rows.height
    assert rows["source_line"].is_unique().all()
    return rows, [*parsed.rejects, *made.rejects]


def read(text: str | bytes) -> tuple[pl.DataFrame, list[Reject]]:
    scrapes = Scrapes(ENGINE.metric_prefixes)
    data = text.encode() if isinstance(text, str) else text
    samples = pl.concat([scrapes.feed(Block(data, 1, 0)), scrapes.finish()])
    rows, rejects = windows_of(samples)
    return rows, [*scrapes.problems, *rejects]


def page(
    rounds: float | None = None, drafted: float | None = None, accepted: float | None = None,
    per_pos: Sequence[float] = (), labels: str = 'engine="0",model_name="m"', **others: float,
) -> str:  # fmt: skip
    """A page of 0.32; other metrics by their name without prefix."""
    spec = {"num_drafts_total": rounds, "num_draft_tokens_total": drafted, "num_accepted_tokens_total": accepted}
    lines = [f"vllm:spec_decode_{n}{{{labels}}} {v}" for n, v in spec.items() if v is not None]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {v}'
        for i, v in enumerate(per_pos)
    ]
    lines += [f"vllm:{name}{{{labels}}} {value}" for name, value in others.items()]
    return "".join(f"{line}\n" for line in lines)


def stamped(*pages: str) -> str:
    """Pages ten seconds apart."""
    times = [START + timedelta(seconds=10 * i) for i in range(len(pages))]
    return "".join(f"# {t:%Y-%m-%dT%H:%M:%SZ}\n{p}" for t, p in zip(times, pages, strict=True))


def shown(rows: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return rows.select(columns).rows()


# -- real runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", TRUTH)
def test_real_runs_are_counted_exactly(run: str) -> None:
    """Between the first and the last scrape the windows give what the engine counted, by four independent counts."""
    truth = TRUTH[run]
    rows, rejects = read(gzip.decompress((DATA / f"metrics-{run}.prom.gz").read_bytes()))
    assert rejects == []
    assert shown(rows, "ts_start")[0] == (None,)
    between = rows.filter(pl.col("ts_start").is_not_null())
    names = ("rounds", "drafted", "accepted", "generated_tokens", "prompt_tokens", "steps", "rounds_timed")
    keys = (
        "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
        "generation_tokens_total", "prompt_tokens_total", "iteration_tokens_total_count",
        "inter_token_latency_seconds_count",
    )  # fmt: skip
    sums = {n: between[n].sum() for n in (*names, "emitted", "plain_steps")}
    assert {n: sums[n] for n in names} == {n: truth[k] for n, k in zip(names, keys, strict=True)}
    depth = max((len(p) for p in between["accepted_per_pos"].drop_nulls()), default=0)
    assert [sum(p[i] for p in between["accepted_per_pos"].drop_nulls()) for i in range(depth)] == truth["per_pos"]
    # Every request has one first token, which no round emitted; every other step of a request is a gap.
    requests = truth["request_time_per_output_token_seconds_count"]
    assert sums["emitted"] == truth["generation_tokens_total"] - requests
    assert sums["plain_steps"] == truth["inter_token_latency_seconds_count"] - truth["spec_decode_num_drafts_total"]
    assert (between["emitted"] <= between["accepted"].fill_null(0) + between["rounds"] + between["plain_steps"]).all()


def test_a_real_page_by_itself_is_one_window_from_the_start() -> None:
    rows, rejects = read((DATA / "metrics-0.32.0.prom").read_bytes())
    assert rejects == []
    assert shown(rows, *COUNTS, "rounds_basis", "num_speculative_tokens", "steps", "rounds_timed", "round_us") == [
        (531, 2124, 165, [83, 32, 25, 25], "logged", 4, 146, 531, 47353859)
    ]
    assert shown(rows, "ts_start", "ts_end", "ts_basis", "window_us", "replica", "model", "surface") == [
        (None, None, "none", None, "0", "target", "vllm.metrics")
    ]


def test_the_torn_page_of_a_real_run_makes_no_plain_steps() -> None:
    """In one scrape of the run the gaps are three ahead of the drafts: the step was counted while the page was made."""
    rows, _ = read(gzip.decompress((DATA / "metrics-B-trunc2-k3.prom.gz").read_bytes()))
    assert (rows["rounds_timed"] - rows["rounds"]).to_list().count(3) == 1
    assert set(rows["plain_steps"]) == {0}


# -- what a counter may suffer ----------------------------------------------------------------------------------------


def test_windows_between_scrapes() -> None:
    text = stamped(
        page(4, 12, 6, [4, 1, 1], generation_tokens_total=12, prompt_tokens_total=30, num_preemptions_total=0),
        page(10, 30, 13, [8, 3, 2], generation_tokens_total=30, prompt_tokens_total=30, num_preemptions_total=2,
             num_requests_running=3, num_requests_waiting=1, kv_cache_usage_perc=0.25),
    )  # fmt: skip
    rows, rejects = read(text)
    assert rejects == []
    assert shown(rows, *COUNTS) == [(4, 12, 6, [4, 1, 1]), (6, 18, 7, [4, 2, 1])]
    end = START + timedelta(seconds=10)
    assert shown(rows, "ts_start", "ts_end", "window_us", "ts_basis") == [
        (None, START, None, "absolute"), (START, end, 10_000_000, "absolute"),
    ]  # fmt: skip
    columns = ("generated_tokens", "prompt_tokens", "preemptions", "running", "waiting", "kv_cache_usage")
    assert shown(rows, *columns) == [(12, 30, 0, None, None, None), (18, 0, 2, 3, 1, 0.25)]
    assert shown(rows, "source_line", "num_speculative_tokens", "counts_basis", "rounds_basis", "emitted") == [
        (2, 3, "logged", "logged", None), (12, 3, "logged", "logged", None),
    ]  # fmt: skip


def test_a_restart_counts_from_its_own_zero() -> None:
    rows, _ = read(stamped(page(40, 120, 60), page(50, 150, 70), page(3, 15, 9), page(4, 20, 10)))
    assert shown(rows, "rounds", "drafted", "accepted") == [(40, 120, 60), (10, 30, 10), (3, 15, 9), (1, 5, 1)]
    assert [s is None for (s,) in shown(rows, "ts_start")] == [True, False, True, False]


def test_a_restart_with_another_k() -> None:
    rows, rejects = read(stamped(page(40, 80, 50, [30, 20]), page(4, 12, 6, [3, 2, 1]), page(6, 18, 9, [4, 3, 2])))
    assert rejects == []
    assert shown(rows, "accepted_per_pos", "num_speculative_tokens") == [
        ([30, 20], 2), ([3, 2, 1], 3), ([1, 1, 1], 3),
    ]  # fmt: skip


def test_a_restart_that_shows_only_by_the_time_of_its_counters() -> None:
    first = page(4, 12, 6) + page(generation_tokens_created=1.7e9, generation_tokens_total=9)
    later = page(40, 120, 60) + page(generation_tokens_created=1.8e9, generation_tokens_total=90)
    rows, _ = read(stamped(first, later))
    assert shown(rows, "rounds", "drafted", "accepted", "ts_start") == [(4, 12, 6, None), (40, 120, 60, None)]


def test_the_public_case_of_a_reset_without_stamps() -> None:
    """`_created` is a time, and positions that do not add up are no counts (a made page)."""
    labels = 'engine="0"'
    text = (
        "# scrape 1\n"
        + page(400, 2000, 1200, [800], labels)
        + f"vllm:spec_decode_num_draft_tokens_created{{{labels}}} 1.7876e+09\n"
        + "# scrape 2 (after a restart)\n"
        + page(10, 50, 30, labels=labels)
    )
    rows, rejects = read(text)
    assert shown(rows, *COUNTS, "ts_basis") == [(400, 2000, 1200, None, "none"), (10, 50, 30, None, "none")]
    assert [(r.line, r.reason) for r in rejects] == [
        (2, "accepted tokens by position do not add up to the accepted tokens")
    ]


def test_idle_scrapes_give_no_window_and_hide_none() -> None:
    rows, _ = read(stamped(page(0, 0, 0), page(0, 0, 0), page(2, 6, 3), page(2, 6, 3), page(3, 9, 3)))
    assert shown(rows, "rounds", "window_us", "ts_end") == [
        (2, 10_000_000, START + timedelta(seconds=20)), (1, 10_000_000, START + timedelta(seconds=40)),
    ]  # fmt: skip


def test_a_cut_page_leaves_its_rounds_to_the_next() -> None:
    """The page ends behind the drafted tokens: accepted is not 0 there."""
    cut = page(10, 30)
    rows, rejects = read(stamped(page(4, 12, 6, [4, 1, 1]), cut, page(12, 36, 15, [8, 4, 3])))
    assert rejects == []
    assert shown(rows, *COUNTS, "window_us") == [
        (4, 12, 6, [4, 1, 1], None), (8, 24, 9, [4, 3, 2], 20_000_000),
    ]  # fmt: skip


def test_a_page_that_was_made_while_a_round_was_counted() -> None:
    pages = [page(4, 12, 6, [4, 1, 1]), page(8, 24, 10, [7, 2, 2]), page(12, 36, 15, [8, 4, 3])]
    rows, rejects = read(stamped(*pages))
    assert rejects == []
    assert shown(rows, *COUNTS) == [(4, 12, 6, [4, 1, 1]), (8, 24, 9, [4, 3, 2])]
    # The last one has no next page: its counts stand, without the positions.
    rows, _ = read(
        stamped(
            *pages[:2],
        )
    )
    assert shown(rows, *COUNTS) == [(4, 12, 6, [4, 1, 1]), (4, 12, 4, None)]


def test_a_torn_page_before_a_restart_keeps_its_counts() -> None:
    pages = [page(4, 12, 6, [4, 1, 1]), page(8, 24, 10, [7, 2, 2]), page(1, 3, 1, [1, 0, 0])]
    rows, rejects = read(stamped(*pages))
    assert rejects == []
    assert shown(rows, *COUNTS) == [(4, 12, 6, [4, 1, 1]), (4, 12, 4, None), (1, 3, 1, [1, 0, 0])]


def test_scrapes_out_of_order_and_twice() -> None:
    one, two, three = page(4, 12, 6), page(8, 24, 10), page(9, 27, 11)
    text = f"# 2026-11-29T11:00:00Z\n{one}# 2026-11-29T11:00:20Z\n{three}# 2026-11-29T11:00:10Z\n{two}"
    text += f"# 2026-11-29T11:00:20Z\n{three}"
    rows, _ = read(text)
    assert sorted(shown(rows, "ts_end", "rounds")) == [
        (START, 4), (START + timedelta(seconds=10), 4), (START + timedelta(seconds=20), 1),
    ]  # fmt: skip


def test_engines_of_one_server_are_apart() -> None:
    zero, one = 'engine="0",model_name="m"', 'engine="1",model_name="m"'
    text = stamped(
        page(4, 12, 6, [], zero) + page(2, 6, 1, [], one), page(5, 15, 7, [], zero) + page(9, 27, 8, [], one)
    )
    rows, _ = read(text)
    assert sorted(shown(rows, "replica", "rounds", "process")) == [
        ("0", 1, None), ("0", 4, None), ("1", 2, None), ("1", 7, None),
    ]  # fmt: skip


def test_bare_names_and_underscores_are_the_same_counters() -> None:
    text = page(4, 12, 6, [4, 1, 1], generation_tokens_total=12)
    for other in (text.replace("_total{", "{"), text.replace("vllm:", "vllm_")):
        assert read(other)[0].equals(read(text)[0])


def test_the_old_name_of_the_gap_between_outputs() -> None:
    old = {"time_per_output_token_seconds_count": 5, "time_per_output_token_seconds_sum": 0.25}
    new = {"inter_token_latency_seconds_count": 5, "inter_token_latency_seconds_sum": 0.5}
    tokens = {"generation_tokens_total": 12, "time_to_first_token_seconds_count": 1}
    columns = ("rounds_timed", "round_us", "time_basis", "plain_steps", "emitted")
    assert shown(read(page(4, 12, 6, **old, **tokens))[0], *columns) == [(5, 250_000, "sum", 1, 11)]
    assert shown(read(page(4, 12, 6, **old, **new, **tokens))[0], *columns) == [(5, 500_000, "sum", 1, 11)]


def test_a_server_that_does_not_speculate() -> None:
    """From 0.10.2 a page without the counters is of such a server; an older one may not have exported them."""
    tokens = {"generation_tokens_total": 12, "time_to_first_token_seconds_count": 2}
    columns = ("rounds", "plain_steps", "drafted", "accepted", "emitted", "rounds_basis", "rounds_timed")
    new = page(**tokens, inter_token_latency_seconds_count=10, inter_token_latency_seconds_sum=0.5)
    assert shown(read(new)[0], *columns) == [(0, 10, None, None, 10, "derived", 10)]
    old = page(**tokens, time_per_output_token_seconds_count=10, time_per_output_token_seconds_sum=0.5)
    assert shown(read(old)[0], *columns) == [(None, None, None, None, None, None, 10)]
    dump = "".join(f"{line} 1795953254992\n" for line in new.splitlines())
    assert shown(read(dump)[0], *columns) == [(None, None, None, None, None, None, 10)]


def test_as_many_cuts_as_plain_steps() -> None:
    """emitted = accepted + rounds reads as if the plain steps were left out of it: it is left open."""
    gaps = {"inter_token_latency_seconds_count": 6, "time_to_first_token_seconds_count": 1}
    columns = ("rounds", "plain_steps", "emitted")
    assert shown(read(page(4, 12, 6, **gaps, generation_tokens_total=11))[0], *columns) == [(4, 2, None)]
    assert shown(read(page(4, 12, 6, **gaps, generation_tokens_total=12))[0], *columns) == [(4, 2, 11)]


def test_accepted_above_drafted_is_refused_and_the_rest_is_kept() -> None:
    rows, rejects = read(stamped(page(4, 12, 6, generation_tokens_total=5), page(5, 13, 12, generation_tokens_total=9)))
    assert shown(rows, "drafted", "accepted", "generated_tokens") == [(12, 6, 5), (None, None, 4)]
    assert [r.reason for r in rejects] == ["accepted <= drafted does not hold"]


@pytest.mark.parametrize("value", ["12.5", "-3", "1e300"])
def test_a_counter_that_is_none(value: str) -> None:
    text = page(4, 12, 6).replace(" 12\n", f" {value}\n")
    rows, rejects = read(text + page(generation_tokens_total=7))
    assert shown(rows, "drafted", "accepted", "generated_tokens") == [(None, None, 7)]
    assert [r.reason.split(":")[0] for r in rejects] == ["a counter that is no whole number"]


def test_several_servers_behind_one_address_are_no_counter() -> None:
    pages = [page(r, 3 * r, r) for i in range(8) for r in (100 + i, 900 + i)]
    rows, rejects = read(stamped(*pages))
    assert rows.height == 0
    assert [(r.line, r.reason.split(":")[0]) for r in rejects] == [(2, "counters fall again and again")]
    # With the time of their start they are told apart.
    begun = [page(generation_tokens_total=1, generation_tokens_created=v) for v in (1.7e9, 1.8e9)] * 8
    rows, rejects = read(stamped(*(p + b for p, b in zip(pages, begun, strict=True))))
    assert rejects == []
    assert rows["rounds"].sum() == 107 + 907


# -- V0 ---------------------------------------------------------------------------------------------------------------

V0 = 'model_name="m"'


def test_the_counters_of_v0_are_refused_once_and_said_why() -> None:
    pages = [
        page(None, 12 * i, 6 * i, labels=V0, generation_tokens_total=5 * i, spec_decode_num_emitted_tokens_total=8 * i,
             spec_decode_efficiency=0.5, time_per_output_token_seconds_count=i, time_per_output_token_seconds_sum=i)
        for i in (1, 2, 3)
    ]  # fmt: skip
    rows, rejects = read(stamped(*pages))
    assert shown(rows, "drafted", "accepted", "rounds_timed", "generated_tokens") == [(None, None, None, 5)] * 3
    assert [(r.line, r.reason.split(":")[0]) for r in rejects] == [
        (2, "V0's speculative counters add the total since the start at every interval")
    ]


def test_counters_without_an_engine_need_a_proof_that_they_are_v1_s() -> None:
    rows, rejects = read(page(None, 12, 6, labels=V0))
    assert rows.height == 0
    assert "nothing that shows V1" in rejects[0].reason
    rows, rejects = read(page(4, 12, 6, labels=V0))
    assert shown(rows, "rounds", "drafted", "accepted", "replica") == [(4, 12, 6, None)]
    assert rejects == []


def test_v0_beside_v1() -> None:
    """Versions are told by target: one of a range query over both does not prove the other."""
    text = (
        page(None, 12, 6, labels=f'instance="a:1",{V0}', spec_decode_efficiency=0.5)
        + page(4, 12, 6, labels='engine="0",instance="b:1"')
    )  # fmt: skip
    rows, rejects = read(text)
    assert shown(rows, "rounds", "drafted") == [(4, 12)]
    assert len(rejects) == 1


# -- privacy ----------------------------------------------------------------------------------------------------------


def test_no_address_and_no_path_is_kept() -> None:
    places = ['engine="0",instance="10.1.2.3:8000",model_name="/home/jane/models/big"',
              'engine="0",instance="10.9.9.9:8000",model_name="org/small"',
              'engine="10.7.7.7:1",instance="10.9.9.9:8000",model_name="org/small"']  # fmt: skip
    rows, _ = read("".join(page(4, 12, 6, labels=p) for p in places))
    assert sorted(shown(rows, "process", "model", "replica"), key=str) == [
        ("target 1", "big", "0"), ("target 2", "org/small", "0"), ("target 2", "org/small", None),
    ]  # fmt: skip
    assert not any(secret in str(row) for row in rows.rows() for secret in ("10.", "jane"))


# -- queries and exports ----------------------------------------------------------------------------------------------


def series(name: str, values: Sequence[tuple[int, float]], **labels: str) -> dict[str, Any]:
    metric = {"__name__": f"vllm:{name}", "engine": "0", "instance": "h:8000", "model_name": "m", **labels}
    return {"metric": metric, "values": [[1795953254 + t, str(v)] for t, v in values]}


def queried(*found: Any) -> tuple[pl.DataFrame, list[Reject]]:
    rejects: list[Reject] = []
    value = {"status": "success", "data": {"resultType": "matrix", "result": list(found)}}
    samples = metric_json.samples([JsonRecord(1, 0, None, None, value)], ENGINE.metric_prefixes, rejects)
    rows, more = windows_of(samples)
    return rows, [*rejects, *more]


def test_a_range_query_over_some_counters() -> None:
    positions = [[4, 8, 8, 10], [1, 3, 3, 4], [1, 2, 2, 2]]
    times = (0, 15, 30, 45)
    rows, rejects = queried(
        series("spec_decode_num_draft_tokens_total", [(0, 12), (15, 30), (30, 30), (45, 36)]),
        series("spec_decode_num_accepted_tokens_total", [(0, 6), (15, 13), (30, 13), (45, 16)]),
        *(
            series("spec_decode_num_accepted_tokens_per_pos_total", list(zip(times, p, strict=True)), position=str(i))
            for i, p in enumerate(positions)
        ),
        {"metric": {"engine": "0"}, "values": [[1, "0.5"]]},
    )
    assert shown(rows, *COUNTS, "rounds_basis", "window_us") == [
        (4, 12, 6, [4, 1, 1], "derived", None),
        (6, 18, 7, [4, 2, 1], "derived", 15_000_000),
        (2, 6, 3, [2, 1, 0], "derived", 15_000_000),
    ]
    assert shown(rows, "source_line", "process", "ts_basis") == [(i, None, "absolute") for i in (1, 2, 3)]
    assert [r.reason.split(" (")[0] for r in rejects] == ["a query result without the metric's name"]


def test_rounds_that_cannot_be_derived_stay_open() -> None:
    """Before 0.8.5 there is neither a count of drafts nor of positions: K is not known."""
    rows, _ = queried(
        series("spec_decode_num_draft_tokens_total", [(0, 12)]),
        series("spec_decode_num_accepted_tokens_total", [(0, 6)]),
    )
    assert shown(rows, *COUNTS, "rounds_basis", "num_speculative_tokens") == [(None, 12, 6, None, None, None)]


def test_all_forms_of_one_history_are_the_same_windows() -> None:
    """A text page, a dump, a range query and an export that hold the same samples."""
    history = {"num_drafts": [4, 10], "num_draft_tokens": [12, 30], "num_accepted_tokens": [6, 13]}
    stamps = [1795953254000, 1795953269000]
    labels = 'engine="0",model_name="m"'
    text = "".join(
        f"# {t}\n" + "".join(f"vllm:spec_decode_{n}_total{{{labels}}} {v[i]}\n" for n, v in history.items())
        for i, t in enumerate(stamps)
    )
    dump = "".join(
        f'{{__name__="vllm:spec_decode_{n}_total",{labels}}} {v} {t}\n'
        for n, values in history.items()
        for t, v in zip(stamps, values, strict=True)
    )
    metric = {"engine": "0", "model_name": "m"}
    export = [
        {"metric": {"__name__": f"vllm:spec_decode_{n}_total", **metric}, "values": v, "timestamps": stamps}
        for n, v in history.items()
    ]
    pairs = [
        {"metric": s["metric"], "values": [[t / 1000, str(v)] for t, v in zip(stamps, s["values"], strict=True)]}
        for s in export
    ]
    aiperf = [
        {
            "endpoint_url": "http://h:8000/metrics",
            "timestamp_ns": t * 1_000_000,
            "metrics": {f"vllm:spec_decode_{n}": [{"labels": metric, "value": v[i]}] for n, v in history.items()},
        }
        for i, t in enumerate(stamps)
    ]
    results = [read(text)[0], read(dump)[0]]
    for records in (export, pairs, aiperf):
        found = metric_json.samples([JsonRecord(1, 0, None, None, r) for r in records], ENGINE.metric_prefixes, [])
        results.append(windows_of(found)[0])
    columns = [c for c in results[0].columns if c != "source_line"]
    assert results[0].height == 2
    assert all(r.select(columns).equals(results[0].select(columns)) for r in results)


# -- properties -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=6), min_size=1, max_size=5
    ),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_windows_add_up_whatever_pages_are_kept(intervals: list[list[tuple[int, int, int]]], kept: list[bool]) -> None:
    """Rounds of K 3 with so many accepted, plain steps and cut tokens: sums are those up to the last page."""
    state = {"rounds": 0, "accepted": 0, "plain": 0, "emitted": 0}
    per_pos = [0, 0, 0]
    pages, truths = [], []
    for interval in intervals:
        for accepted, plain, cut in interval:
            state["rounds"] += 1
            state["accepted"] += accepted
            state["plain"] += plain
            state["emitted"] += accepted + 1 + plain - min(cut, accepted)
            per_pos = [n + (accepted > i) for i, n in enumerate(per_pos)]
        pages.append(
            page(state["rounds"], 3 * state["rounds"], state["accepted"], per_pos,
                 generation_tokens_total=state["emitted"] + 5, time_to_first_token_seconds_count=5,
                 inter_token_latency_seconds_count=state["rounds"] + state["plain"])
        )  # fmt: skip
        truths.append((state["rounds"], state["accepted"], state["plain"], list(per_pos)))
    chosen = [i for i in range(len(pages)) if kept[i]] or [len(pages) - 1]
    rows, rejects = read(stamped(*(pages[i] for i in chosen)))
    rounds, accepted, plain, positions = truths[chosen[-1]]
    assert rejects == []
    assert [rows[c].sum() for c in ("rounds", "drafted", "accepted", "plain_steps")] == [
        rounds,
        3 * rounds,
        accepted,
        plain,
    ]
    assert [sum(p[i] for p in rows["accepted_per_pos"]) for i in range(3)] == (positions if rows.height else [0, 0, 0])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["num_drafts_total", "num_draft_tokens", "num_accepted_tokens_total", "efficiency"]),
            st.sampled_from(['engine="0"', 'engine="1"', "", 'engine="x",position="1"']),
            st.one_of(st.integers(0, 99), st.floats()),
        ),
        max_size=12,
    )
)
def test_no_page_breaks_an_identity(samples: list[tuple[str, str, float]]) -> None:
    text = "".join(f"vllm:spec_decode_{n}{{{labels}}} {value}\n" for n, labels, value in samples)
    rows, _ = read(text.replace("inf", "Inf").replace("nan", "NaN"))
    assert set(rows["surface"]) <= {"vllm.metrics"}


# -- the whole way ----------------------------------------------------------------------------------------------------


def test_scrapes_beside_the_log_of_a_server_are_of_its_run_and_count_once(tmp_path: Path) -> None:
    """Requests of the responses hold the counts; the scrapes of the same run add none and keep its K and model."""
    from tracelens.resources import room

    run = "B-trunc2-k3-fix"
    folder = tmp_path / "site"
    folder.mkdir()
    for path in (room("samples") / "vllm-real" / run).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "metrics.prom.gz").write_bytes((DATA / f"metrics-{run}.prom.gz").read_bytes())
    done = ingest([str(folder)], tmp_path / "lake", IngestOptions(tz="UTC", jobs=1))
    assert done.surfaces["vllm.metrics"] > 0
    with connect(tmp_path / "lake", keep=True) as con:
        runs = con.execute("select distinct run_id from windows union select distinct run_id from requests").fetchall()
        counts = con.execute("select sum(rounds), sum(drafted), sum(accepted) from facts").fetchone()
    assert len(runs) == 1
    truth = TRUTH[run]
    assert counts == (
        truth["spec_decode_num_drafts_total"], truth["spec_decode_num_draft_tokens_total"],
        truth["spec_decode_num_accepted_tokens_total"],
    )  # fmt: skip


@pytest.mark.parametrize("form", ["text", "query", "export"])
def test_a_file_of_each_form_is_read(tmp_path: Path, form: str) -> None:
    found = [
        series("spec_decode_num_drafts_total", [(0, 4), (15, 10)]),
        series("spec_decode_num_draft_tokens_total", [(0, 12), (15, 30)]),
        series("spec_decode_num_accepted_tokens_total", [(0, 6), (15, 13)]),
    ]
    if form == "text":
        text = stamped(page(4, 12, 6), page(10, 30, 13))
    elif form == "query":
        text = json.dumps(
            {"status": "success", "data": {"resultType": "matrix", "result": found}}, separators=(",", ":")
        )
    else:
        text = "".join(
            json.dumps({"metric": s["metric"], "values": [float(v) for _, v in s["values"]],
                        "timestamps": [t * 1000 for t, _ in s["values"]]}) + "\n"
            for s in found
        )  # fmt: skip
    (tmp_path / "metrics").write_text(text, encoding="utf-8")
    done = ingest([str(tmp_path / "metrics")], tmp_path / "lake", IngestOptions(jobs=1))
    assert (done.rows["windows"], done.rejects) == (2, 0)
    with connect(tmp_path / "lake", keep=True) as con:
        counts = con.execute("select rounds, drafted, accepted from windows order by ts_end").fetchall()
    assert counts == [(4, 12, 6), (6, 18, 7)]
