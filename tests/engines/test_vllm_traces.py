"""torch profiler traces of vLLM: steps, their phases, their counts; and real traces beside what a hook in vLLM saw."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.traces import BASE_NS, document, event, torch
from tracelens.engines.base import Context, Reject, Tables, TraceAbout
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.traced import whole_us
from tracelens.engines.vllm import ENGINE, traces
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.lake.schema import table
from tracelens.sources.chrome_trace import read

REAL = Path(__file__).parents[2].parent / "shared" / "real" / "vllm"
RUN = REAL / "runs" / "B-trunc2-k3"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the real captures are not here")
CONTEXT = Context("source", lambda frame: frame)
Event = dict[str, Any]


def taken(
    events: Sequence[Event], file: str | None = None, **about: Any
) -> tuple[dict[str, int], Tables, list[Reject]]:
    """Rows of a trace, the number of records by surface, and what was refused."""
    trace = read(iter([torch(document(events))]), traces.MARKS)
    return _assembled(trace.events, replace(trace.about, file=file, **about))


def _assembled(events: pl.DataFrame, about: TraceAbout) -> tuple[dict[str, int], Tables, list[Reject]]:
    parsed = ENGINE.trace(events, about)
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


def step(at: float, name: str, forward: float = 17_000, draft: float | None = 40_000, sample: float = 1_800,
         old: bool = False) -> list[Event]:  # fmt: skip
    """The host's ranges of one step of the V1 runner, in its order."""
    scope = (lambda s: s.capitalize()) if old else (lambda s: f"gpu_model_runner: {s}")
    out = [event(name, at, forward + 900)] if name else []
    out += [event(scope("preprocess"), at + 100, 300), event(scope("forward"), at + 450, forward)]
    out += [event(scope("sample"), at + 1_000 + forward, sample)]
    if draft is not None:
        out += [event(scope("draft"), at + 3_000 + forward, draft)]
    return [*out, event(scope("bookkeep"), at + 4_000 + forward + (draft or 0), 50)]


def decode(requests: int, tokens: int) -> str:
    return f"execute_context_0(0)_generation_{requests}({tokens})"


def test_a_draft_phase_belongs_to_the_step_that_verifies_it() -> None:
    events = [
        *step(0, "execute_context_2(60)_generation_0(0)", forward=90_000, draft=91_000),
        *step(200_000, decode(2, 10), forward=17_000, draft=40_000),
        *step(300_000, decode(2, 10), forward=18_000, draft=41_000, sample=1_900),
        *step(400_000.4, decode(2, 8), forward=19_000, draft=42_000),
        *step(500_000, decode(2, 2), forward=20_000, draft=None),
        event("execute_context_0(0)_generation_0(0)", 600_000, 100),
    ]
    records, tables, rejects = taken(events)
    assert (records, rejects) == ({"vllm.trace": 6}, [])
    columns = ("draft_us", "target_us", "sample_us", "step_us", "rounds", "drafted", "plain_steps", "rounds_basis")
    assert rows(tables, *columns) == [
        (None, None, None, None, 0, 0, 0, "derived"),  # prefill: its times are no round's
        (None, 17_000, 1_800, 100_000, 2, 8, 0, "derived"),  # its drafts came from the prefill step
        (40_000, 18_000, 1_900, 100_000, 2, 8, 0, "derived"),
        (41_000, 19_000, 1_800, 100_000, 2, 6, None, "estimated"),  # fewer than K: some may have had none
        (42_000, 20_000, 1_800, 100_000, 0, 0, 2, "derived"),  # a draft phase that found nothing
    ]
    same = ("surface", "steps", "accepted", "num_speculative_tokens", "time_basis", "ts_basis")
    assert rows(tables, *same)[1:] == [("vllm.trace", 1, None, 4, "sum", "absolute")] * 4
    assert rows(tables, "running", "prompt_tokens", "time_basis")[0] == (2, 60, None)
    begun = rows(tables, "ts_start", "ts_end", "window_us")[1]
    assert (begun[0] - pl.Series([BASE_NS // 1000]).cast(pl.Datetime("us"))[0]).total_seconds() == 0.2
    assert (begun[1] - begun[0]).total_seconds() == 0.1
    assert begun[2] == 100_000


def test_a_step_with_prefill_spoils_neither_phase() -> None:
    events = [
        *step(0, decode(1, 4)),
        *step(100_000, "execute_context_1(30)_generation_1(4)", forward=99_000, draft=98_000),
        *step(300_000, decode(2, 8)),
        *step(400_000, decode(2, 8)),
    ]
    _, tables, _ = taken(events)
    assert rows(tables, "draft_us", "target_us", "step_us", "rounds", "drafted", "running") == [
        (None, 17_000, 100_000, 1, 3, 1),
        (None, None, None, 1, 3, 2),
        (None, 17_000, 100_000, 2, 6, 2),
        (40_000, 17_000, None, 2, 6, 2),  # the last one: nobody knows when it ended
    ]


def test_idle_time_is_in_no_step() -> None:
    """A step of new requests alone may begin long after the one before it ended."""
    events = [
        *step(0, decode(1, 4)),
        *step(9_000_000, "execute_context_1(30)_generation_0(0)"),
        *step(9_100_000, decode(1, 4)),
    ]
    _, tables, _ = taken(events)
    assert rows(tables, "step_us") == [(None,)] * 3


def test_the_first_generation_of_names() -> None:
    """0.10.2 and 0.11.0 have scopes and no range around them: times, and no counts."""
    events = [*step(0, "", old=True), *step(100_000, "", old=True, forward=18_000), *step(200_000, "", old=True)]
    records, tables, _ = taken(events)
    assert records == {"vllm.trace": 3}
    assert rows(tables, "draft_us", "target_us", "sample_us", "step_us", "rounds", "drafted", "running") == [
        (None, 17_000, 1_800, 100_000, None, None, None),
        (40_000, 18_000, 1_800, 100_000, None, None, None),
        (40_000, 17_000, 1_800, None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        (decode(3, 15), (3, 12, 0, 3)),
        ("execute_24_context_0(sq0sk0sqsq0sqsk0)_generation_6(sq24sk900sqsq96sqsk3600)", (6, 18, 0, 6)),
        ("execute_new_0_cached_3", (None, None, None, 3)),  # 0.11.1-0.13: requests and no tokens
        ("execute_new_0_cached_0", None),
        ("execute_context_0(0)_generation_0(0)", None),
    ],
)
def test_the_ranges_of_all_releases(name: str, counts: tuple[int | None, ...] | None) -> None:
    _, tables, rejects = taken([*step(0, name), *step(100_000, name)])
    expected = [] if counts is None else [counts] * 2
    assert rows(tables, "rounds", "drafted", "plain_steps", "running") == expected
    assert rejects == []


def test_prefill_is_told_by_the_older_ranges_too() -> None:
    _, tables, _ = taken([*step(0, "execute_new_1_cached_2"), *step(100_000, "execute_new_0_cached_3")])
    assert rows(tables, "target_us", "draft_us", "running") == [(None, None, 3), (17_000, None, 3)]


def test_a_trace_without_speculation_is_a_baseline() -> None:
    _, tables, _ = taken([e for i in range(3) for e in step(i * 50_000, decode(4, 4), draft=None)])
    columns = ("rounds", "plain_steps", "drafted", "accepted", "draft_us", "step_us", "num_speculative_tokens")
    assert rows(tables, *columns)[0] == (0, 4, 0, 0, None, 50_000, None)


def test_what_drafts_is_no_baseline() -> None:
    """A prompt lookup that found nothing drafted all the same: accepted tokens stay unknown."""
    _, tables, _ = taken([e for i in range(3) for e in step(i * 50_000, decode(4, 4), draft=300)])
    assert rows(tables, "plain_steps", "drafted", "accepted")[1] == (4, 0, None)


def test_lengths_that_vary_have_no_k() -> None:
    names = (decode(1, 4), decode(1, 4), decode(1, 6))
    _, tables, _ = taken([e for i, name in enumerate(names) for e in step(i * 100_000, name)])
    assert rows(tables, "drafted", "num_speculative_tokens", "rounds_basis") == [
        (3, None, "estimated"), (3, None, "estimated"), (5, None, "estimated"),
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["0.32.0", None])
def test_without_scopes_there_are_steps_and_advice(version: str | None) -> None:
    events = [event(decode(2, 10), i * 30_000.0, 900) for i in range(3)]
    records, tables, _ = taken(events, others={} if version is None else {"vllm_version": version})
    assert records == {"vllm.trace_steps": 3}
    assert rows(tables, "step_us", "draft_us", "target_us", "rounds", "drafted")[0] == (30_000, None, None, 2, 8)
    told = None if tables.runs is None else tables.runs.rows()
    assert told == (None if version is None else [(0, version)])
    surface = next(s for s in ENGINE.surfaces if s.name == "vllm.trace_steps")
    for variable in ("VLLM_USE_V2_MODEL_RUNNER=0", "VLLM_CUSTOM_SCOPES_FOR_PROFILING=1"):
        assert variable in str(surface.switch_on)
    assert "rho_verify" not in surface.gives


def on_device(at: float, *, ids: Sequence[int] | None = None, draft: bool = True, tid: int = 7) -> list[Event]:
    """The GPU's ranges of the same step, late and longer."""
    spans = [("forward", 500, 19_000.0), ("sample", 20_000, 700.0), ("draft", 21_000, 33_000.0)]
    return [
        event(f"gpu_model_runner: {name}", at + start, dur, cat="gpu_user_annotation", pid=0, tid=tid,
              **({"External id": ids[i]} if ids else {}))
        for i, (name, start, dur) in enumerate(spans) if draft or name != "draft"
    ]  # fmt: skip


def launched(at: float, first: int = 0, requests: int = 2) -> list[Event]:
    """A step whose host ranges only launch."""
    events = step(at, decode(requests, requests * 5), forward=400, draft=600, sample=50)
    for number, one in enumerate(events):
        one["args"] = {"External id": first + number}
    return events


def test_the_gpu_s_ranges_go_before_the_host_s() -> None:
    """The GPU runs a step behind the host, and the copies of a range on another stream are no work of the model."""
    host = [e for i in range(3) for e in launched(i * 60_000, 10 * i)]
    device = [e for i in range(3) for e in on_device(i * 60_000 + 59_000)]
    other = [event("gpu_model_runner: forward", 10.0, 5, cat="gpu_user_annotation", pid=0, tid=20)]
    records, tables, _ = taken([*host, *other, *device], devices=1)
    assert records == {"vllm.trace_device": 3}
    assert rows(tables, "draft_us", "target_us", "sample_us", "step_us") == [
        (None, 19_000, 700, 60_000),
        (33_000, 19_000, 700, 60_000),
        (33_000, 19_000, 700, None),
    ]


def test_the_gpu_s_ranges_are_matched_by_id_where_they_have_one() -> None:
    """The first step's work was launched before the profiler started to listen."""
    host = [e for i in range(3) for e in launched(i * 60_000, 10 * i)]
    device = [e for i in (1, 2) for e in on_device(i * 60_000 + 59_000, ids=[10 * i + 2, 10 * i + 3, 10 * i + 4])]
    records, tables, _ = taken([*host, *device], devices=1)
    assert records == {"vllm.trace_device": 3}
    assert rows(tables, "draft_us", "target_us") == [(None, None), (None, 19_000), (33_000, 19_000)]
    # Without ids nobody knows which two of the three steps these are of.
    nameless = [{**e, "args": {}} for e in device]
    records, tables, _ = taken([*host, *nameless], devices=1)
    assert records == {"vllm.trace_steps": 3}
    assert rows(tables, "target_us", "step_us")[0] == (None, 60_000)


def test_launch_times_of_a_gpu_are_no_times_of_its_work() -> None:
    host = [e for i in range(3) for e in launched(i * 60_000)]
    assert taken(host, devices=1)[0] == {"vllm.trace_steps": 3}
    assert taken(host, devices=0)[0] == {"vllm.trace": 3}


@pytest.mark.parametrize(
    ("file", "rank", "counts", "process", "replica"),
    [
        (None, None, True, None, None),
        ("tl_rank0.1795952564506115245.pt.trace.json.gz", None, True, "rank 0", None),
        ("tl_rank3.1795952564506115245.pt.trace.json.gz", None, False, None, None),
        ("a1b2-rank-1.1795952564506115245.pt.trace.json", None, False, None, None),
        ("prof/x_dp1_pp0_tp0_dcp0_ep2_rank2.1.pt.trace.json", 2, True, "rank 2", "1"),  # the first of its group
        ("prof/x_dp1_pp0_tp1_dcp0_ep3_rank3.1.pt.trace.json", 3, False, None, None),
        ("prof/dp0_pp1_tp0_dcp0_ep0_rank2.1.pt.trace.json", 2, False, None, None),
        ("trace.json", 1, False, None, None),
        ("trace.json", 0, True, "rank 0", None),
    ],
)
def test_only_the_first_rank_counts(
    file: str | None, rank: int | None, counts: bool, process: str | None, replica: str | None
) -> None:
    records, tables, _ = taken([*step(0, decode(2, 10)), *step(100_000, decode(2, 10))], file, rank=rank)
    if counts:
        assert records == {"vllm.trace": 2}
        assert rows(tables, "process", "replica") == [(process, replica)] * 2
    else:
        assert records == {"vllm.trace_rank": 2}
        assert tables.windows is None


def test_ranks_put_together_count_once() -> None:
    one = [e for i in range(3) for e in step(i * 100_000.0, decode(2, 10))]
    two = [{**e, "pid": 8, "tid": 8} for e in one]
    records, tables, _ = taken([*one, *two])
    assert records == {"vllm.trace": 3, "vllm.trace_rank": 3}
    assert len(rows(tables, "drafted")) == 3


def test_relative_and_old_absolute_times() -> None:
    events = [*step(5_000, decode(1, 5)), *step(105_000, decode(1, 5))]
    _, tables, _ = taken(events, base_ns=None)
    assert rows(tables, "ts_start", "ts_basis", "step_us")[0] == (None, "relative", 100_000)
    # torch up to 2.2: no base, and microseconds since 1970.
    old = [{**e, "ts": e["ts"] + 1_700_000_000_000_000} for e in events]
    _, tables, _ = taken(old, base_ns=None)
    assert rows(tables, "ts_basis", "step_us")[0] == ("absolute", 100_000)
    assert str(rows(tables, "ts_start")[0][0]).startswith("2023-11-14 22:13:20")


def test_what_cannot_be_used_is_refused_and_repeats_count_once() -> None:
    events = [*step(0, decode(2, 10)), *step(100_000, decode(2, 10))]
    lame = {k: v for k, v in event("gpu_model_runner: draft", 1, 1).items() if k != "dur"}
    odd = [*step(200_000, decode(3, 2)), *step(300_000, decode(2, 10))]
    records, tables, rejects = taken([*events, *events[:7], lame, *odd])
    assert records == {"vllm.trace": 4}
    assert rows(tables, "target_us", "step_us")[:2] == [(17_000, 100_000), (17_000, 100_000)]
    assert len(rows(tables, "step_us")) == 3
    assert [r.reason for r in rejects] == [
        "event without a start or a duration",
        "generation requests <= generation tokens does not hold",
    ]


def test_other_programs_ranges_are_not_vllm_s() -> None:
    training = [event(name, 1, 1) for name in ("Preprocess", "Forward", "execute_model", "ProfilerStep#1")]
    function = event("execute_context_0(0)_generation_1(4)", 1, 1, cat="python_function")
    assert taken([*training, function])[0] == {}


NAMES = st.sampled_from(
    [decode(1, 5), decode(2, 8), "execute_context_1(9)_generation_1(5)", "execute_new_1_cached_2", "Preprocess",
     "gpu_model_runner: forward", "gpu_model_runner: draft", "gpu_model_runner: sample", "Forward", "Draft", "Sample",
     "execute_context_0(0)_generation_0(0)", "execute_context_999999999(1)_generation_999999999(999999999999)"]
)  # fmt: skip


@settings(deadline=None, max_examples=120)
@given(
    st.lists(
        st.tuples(
            NAMES,
            st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60) | st.floats(0, 1e6),
            st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1e6),
            st.sampled_from(["user_annotation", "gpu_user_annotation", "cpu_op"]),
            st.integers(0, 2),
        ),
        max_size=20,
    ),
    st.none() | st.integers(0, 2**63 - 1),
    st.integers(0, 1),
)
def test_any_events_give_rows_that_hold(events: list[tuple[Any, ...]], base: int | None, devices: int) -> None:
    made = [event(name, ts, dur, cat=cat, pid=tid, tid=tid) for name, ts, dur, cat, tid in events]
    _, tables, _ = taken(made, base_ns=base, devices=devices)
    if tables.windows is not None and tables.windows.height:
        for column in ("draft_us", "target_us", "sample_us", "step_us"):
            assert (tables.windows[column].drop_nulls() >= 0).all()


# ---- real traces ----------------------------------------------------------------------------------------------------


def _real(path: Path) -> tuple[dict[str, int], Tables, list[Reject]]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        trace = read(iter([file.read()]), traces.MARKS)
    assert (trace.problems, trace.cut) == ([], None)
    return _assembled(trace.events, replace(trace.about, file=path.name))


@real
def test_real_steps_are_those_of_the_hook() -> None:
    """Every profiled step: requests and drafted tokens exactly, and times within what the two ways of timing differ."""
    _, tables, rejects = _real(RUN / "rank0.pt.trace.reduced.json.gz")
    assert rejects == []
    assert tables.windows is not None
    assert tables.runs is not None
    assert tables.runs["engine_version"].to_list() == ["0.32.0"]
    with gzip.open(RUN / "worker_steps.jsonl.gz", "rt") as file:
        hook = [row for row in map(json.loads, file) if row["ev"] == "step"]
    got = tables.windows
    begun = (got["ts_start"].dt.timestamp("us") / 1e6).to_list()
    # The hook's clock is the wall's, the trace's base another one of the same machine: nearest step by step.
    matched = [min(hook, key=lambda row: abs(row["wall0"] - at)) for at in begun]
    assert max(abs(row["wall0"] - at) for row, at in zip(matched, begun, strict=True)) < 0.02
    assert [row["i"] for row in matched] == list(range(matched[0]["i"], matched[0]["i"] + 67))
    assert got["rounds"].to_list() == [len(row["drafted"]) for row in matched]
    assert got["drafted"].to_list() == [sum(row["drafted"].values()) for row in matched]
    # A scope begins before the hook inside it and ends behind it, mostly by 0.6%; a busy machine adds a few ms.
    starts = [row["wall0"] * 1e6 for row in matched]
    longer: list[float] = []
    for i, (target, step_us, prompt) in enumerate(got.select("target_us", "step_us", "prompt_tokens").rows()):
        assert (target is None) == (prompt > 0)
        if target is not None:
            longer.append(target / 1000 / matched[i]["target_forward_ms"] - 1)
            assert i == 66 or step_us == pytest.approx(starts[i + 1] - starts[i], abs=14_000)
    assert (min(longer) >= 0, max(longer) < 0.09, sorted(longer)[len(longer) // 2] < 0.007) == (True, True, True)
    # draft(t) is in row t + 1.
    drafts = got["draft_us"].to_list()[1:]
    pairs = [(us / 1000, row["draft_ms"]) for us, row in zip(drafts, matched, strict=False) if us is not None]
    assert len(pairs) == 56
    assert all(0 <= scope - hooked < 8 for scope, hooked in pairs)


@real
def test_real_totals_are_those_of_the_profiler_s_own_table() -> None:
    with gzip.open(RUN / "rank0.profiler_out.txt.gz", "rt") as file:
        table_rows = {line[:52].strip(): line.split() for line in file}
    with gzip.open(RUN / "rank0.pt.trace.reduced.json.gz") as stream:
        trace = read(iter([stream.read()]), traces.MARKS)
    steps = ENGINE.trace(trace.events, trace.about).frames["vllm.trace"][0]
    for phase in ("forward", "draft", "sample"):
        words = table_rows[f"gpu_model_runner: {phase}"]
        total, calls = words[-3], int(words[-1])
        seconds = float(total.removesuffix("ms")) / 1000 if total.endswith("ms") else float(total.removesuffix("s"))
        assert steps[phase].count() == calls == 67
        assert steps[phase].sum() / 1e6 == pytest.approx(seconds, abs=6e-4)


@real
def test_real_medians_of_the_small_trace() -> None:
    """16 steps of two requests, K = 4: forward 17.4 ms, draft 43.1 ms, sample 1.8 ms."""
    path = REAL / "small" / "tl_rank0.trimmed.pt.trace.json"
    trace = read(iter([path.read_bytes()]), traces.MARKS)
    steps = ENGINE.trace(trace.events, trace.about).frames["vllm.trace"][0]
    medians = steps.select(pl.col("forward", "draft", "sample").median() / 1000).row(0)
    assert [round(m, 1) for m in medians] == [17.4, 43.1, 1.8]
    _, tables, _ = _real(path)
    assert rows(tables, "num_speculative_tokens", "process")[0] == (4, "rank 0")
    assert sum(r[0] for r in rows(tables, "drafted")) == 10 * 8 + 4 * 4 + 4


# ---- through the whole pipeline ------------------------------------------------------------------------------------


def test_a_folder_of_traces_becomes_one_run_and_gives_rho(tmp_path: Path) -> None:
    """Two ranks, one of them cut by a crash: the first rank's steps, once; the cut is kept and told."""
    events = [e for i in range(40) for e in step(i * 100_000.0, decode(2, 10), forward=20_000, draft=40_000)]
    data = torch(document(events, {"baseTimeNanoseconds": BASE_NS, "vllm_version": "0.28.0"}))
    folder, lake = tmp_path / "prof", tmp_path / "lake"
    folder.mkdir()
    (folder / "x_rank0.1.pt.trace.json.gz").write_bytes(gzip.compress(data))
    (folder / "x_rank1.1.pt.trace.json.gz").write_bytes(gzip.compress(data.replace(b"0.28.0", b"0.28.1"))[:-60])
    ingest([str(folder)], lake, IngestOptions(jobs=1))
    with connect(lake, keep=True) as con:
        found = con.execute(
            "select count(*), sum(drafted), count(distinct run_id), max(process) from windows"
        ).fetchall()
        assert found == [(40, 40 * 8, 1, "rank 0")]
        assert con.execute("select surfaces['vllm.trace_rank'] > 0, rejects from sources order by name").fetchall() == [
            (None, 0),
            (True, 1),
        ]
        assert con.execute("select reason from rejects").fetchall()[0][0].startswith("truncated compressed stream")
        assert con.execute("select engine_version from runs where engine_version = '0.28.0'").fetchall() != []
        price = con.execute("select sum(draft_ms) / sum(drafted_timed), sum(target_ms) / sum(time_rounds) from facts "
                            "where draft_ms is not null").fetchall()  # fmt: skip
    assert price == [(pytest.approx(10.0), pytest.approx(20.0))]


def test_spans_beyond_31_years_are_no_times() -> None:
    given = pl.DataFrame({"us": [1e15, 1e15 + 1, -2e15, 1.5, None]})
    assert given.select(whole_us(pl.col("us")))["us"].to_list() == [10**15, None, None, 2, None]
