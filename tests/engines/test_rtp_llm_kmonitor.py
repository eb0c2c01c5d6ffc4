"""RTP-LLM's kmonitor gauges: log sink, flume bodies, Prometheus text. The examples are built from the sources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rtp_llm import DATA, LINES, check, ingest, only, resolve, shown

from tracelens.engines.base import Context, MetricsReader, Parsed, Tables
from tracelens.engines.rtp_llm import ENGINE, kmonitor
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as ingest_paths
from tracelens.lake.connection import connect

MS = 1_787_229_620_000
TAGS = "hippo_app=default hippo_slave_ip=127.0.0.1 hippo_work_dir=default host={host} kmon_service_name="
SP = "rtp_llm_sp_"
STEP, DRAFT, TARGET, SAMPLE = (
    f"{SP}{name}_us"
    for name in ("step_latency", "propose_step_latency", "score_step_latency", "speculative_sampler_latency")
)
PROPOSED, COMMITTED = f"{SP}total_propose_token_num", f"{SP}total_accepted_token_num"
PER_STREAM, RATE, DRAFT_RATE = (f"{SP}avg_{name}" for name in ("accept_token_num", "accept_rate", "fix_accept_rate"))


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)


def gauge(
    metric: str, values: Sequence[float], *, ms: int = MS, dp: int = 0, host: str = "192.0.2.10", pid: int | None = 4242
) -> str:
    """A record as kmonitor writes it; without a process it is a flume body."""
    total = sum(values)
    figures = "_".join(f"{v:.10g}" for v in (total / len(values), total, max(values), min(values)))
    head = "" if pid is None else f"[2026-08-20 20:40:20.512345] [INFO] [{pid}:4399] "
    return f"{head}{metric} {ms} {figures}_{len(values)} dp_rank={dp} {TAGS.format(host=host)}"


def window(steps: Sequence[tuple[int, int]], k: int, rates: bool = True, **where: Any) -> list[str]:
    """Gauges of steps, each (streams, tokens that these committed)."""
    sums: dict[str, Sequence[float]] = {
        STEP: [50_000 + 10 * i for i in range(len(steps))],
        DRAFT: [30_000] * len(steps),
        TARGET: [18_000] * len(steps),
        SAMPLE: [300] * len(steps),
        PROPOSED: [s * k for s, _ in steps],
        COMMITTED: [c for _, c in steps],
        PER_STREAM: [c / s for s, c in steps],
    }
    if rates:
        sums[RATE] = [c / s / (k + 1) for s, c in steps]
        sums[DRAFT_RATE] = [(c / s - 1) / k for s, c in steps]
    return [gauge(metric, values, **where) for metric, values in sums.items()]


def replaced(lines: Sequence[str], values: dict[str, Sequence[float]]) -> list[str]:
    """The gauges, with other reports of some."""
    names = [next((m for m in values if f" {m} " in line), None) for line in lines]
    return [line if m is None else gauge(m, values[m]) for line, m in zip(lines, names, strict=True)]


TWO = window([(1, 3), (1, 2)], 5)
WINDOW = {
    "source_line": 1, "surface": "rtp.kmonitor", "replica": "0", "ts_start": at(MS - 10_000), "ts_end": at(MS),
    "ts_basis": "absolute", "window_us": 10_000_000, "num_speculative_tokens": 5, "steps": 4, "rounds": 4,
    "drafted": 20, "accepted": 10, "emitted": 14, "rounds_basis": "derived", "counts_basis": "derived",
    "draft_us": 140_295, "target_us": 72_060, "sample_us": 1_194, "step_us": 213_549, "time_basis": "sum",
    "engine": "rtp-llm",
}  # fmt: skip


def known(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if v is not None}


def test_the_log_sink() -> None:
    """The built example: 4 steps of one stream with K 5 (rtp-llm.md 4.1), rho = 7015 us / 18015 us."""
    tables, rejects = ingest(*(DATA / "engine_kmonitor_sink.log").read_text(encoding="utf-8").splitlines())
    row = only(tables.windows)
    assert known(row) == WINDOW
    assert (rejects, tables.rounds, tables.requests, tables.runs) == ([], None, None, None)
    assert row["draft_us"] / row["drafted"] / (row["target_us"] / row["steps"]) == pytest.approx(0.38938, abs=1e-5)


def test_flume_bodies_are_the_same_records() -> None:
    lines = (DATA / "engine_kmonitor_sink.log").read_text(encoding="utf-8").splitlines()
    bodies = [line.split("] ", 3)[3] for line in lines]
    assert bodies[0].startswith("rtp_llm_sp_step_latency_us 1787229620000 ")
    assert known(only(ingest(*bodies)[0].windows)) == WINDOW


def test_addresses_and_names_of_hosts_stay_out() -> None:
    lines = window([(1, 3)], 5, host="secret-host") + window([(1, 2)], 5, host="192.0.2.99", ms=MS + 1)
    tables, _ = ingest(*lines)
    assert tables.windows is not None
    text = str(tables.windows.to_dicts())
    assert not any(word in text for word in ("secret", "192.0.2", "127.0.0", "default", "hippo"))
    assert shown(tables.windows, "process", "emitted") == [("writer 1", 3), ("writer 2", 2)]


@pytest.mark.parametrize("rates", [True, False])
def test_several_streams_a_step_need_the_rates_for_k(rates: bool) -> None:
    """Before 2026-08-19 nothing tells K there: drafted and emitted stay, rounds and accepted are unknown."""
    row = only(ingest(*window([(2, 5), (3, 4), (2, 8)], 3, rates))[0].windows)
    assert (row["drafted"], row["emitted"], row["steps"]) == (21, 17, 3)
    told = (3, 7, 10, "derived", "derived") if rates else (None, None, None, None, "logged")
    names = ("num_speculative_tokens", "rounds", "accepted", "rounds_basis", "counts_basis")
    assert tuple(row[n] for n in names) == told


def test_a_proposal_of_several_streams_is_no_k() -> None:
    """Two streams each step: 6 tokens are proposed every time, and K is 3."""
    row = only(ingest(*window([(2, 5), (2, 4)], 3, rates=False))[0].windows)
    assert (row["num_speculative_tokens"], row["rounds"], row["accepted"]) == (None, None, None)


def test_one_stream_a_step_tells_k_before_the_rates() -> None:
    """committed = committed / streams in every step, so a proposal is K."""
    row = only(ingest(*window([(1, 3), (1, 1), (1, 5)], 4, rates=False))[0].windows)
    assert (row["num_speculative_tokens"], row["rounds"], row["accepted"]) == (4, 3, 6)


def test_one_rate_of_the_two_is_enough() -> None:
    lines = window([(2, 5), (3, 4)], 3)
    for lost in (RATE, DRAFT_RATE):
        row = only(ingest(*(line for line in lines if f" {lost} " not in line))[0].windows)
        assert (row["num_speculative_tokens"], row["accepted"]) == (3, 4)


def test_a_configuration_dump_in_the_same_source_tells_k() -> None:
    steps = window([(2, 5), (3, 4)], 3, rates=False)
    tables, rejects = ingest("gen_num_per_cycle: 3", *steps)
    assert (shown(tables.windows, "rounds", "accepted"), rejects) == ([(5, 4)], [])


def test_a_k_that_changed_within_the_window_is_no_k() -> None:
    mixed = [
        gauge(STEP, [50_000, 50_000]),
        gauge(PROPOSED, [5, 1]),
        gauge(COMMITTED, [3, 2]),
        gauge(PER_STREAM, [3, 2]),
        gauge(RATE, [3 / 6, 2 / 2]),
        gauge(DRAFT_RATE, [2 / 5, 1 / 1]),
    ]
    row = only(ingest(*mixed)[0].windows)
    assert (row["num_speculative_tokens"], row["rounds"], row["accepted"], row["drafted"]) == (None, None, None, 6)


def test_zeros_of_mtp_executor_are_not_measured() -> None:
    """Emitted, and assigned by nothing (main since 402c80393): missing, and no rho of 0."""
    lines = replaced(TWO, {m: [0, 0] for m in (DRAFT, TARGET, SAMPLE)})
    row = only(ingest(*lines)[0].windows)
    assert [row[c] for c in ("draft_us", "target_us", "sample_us", "step_us")] == [None, None, None, 100_010]
    assert (row["rounds"], row["accepted"]) == (2, 3)


def test_a_single_zero_is_not_measured_either() -> None:
    lines = replaced(TWO, {SAMPLE: [0, 0]})
    assert shown(ingest(*lines)[0].windows, "draft_us", "target_us", "sample_us") == [(60_000, 36_000, None)]


def test_times_of_other_steps_are_left_out() -> None:
    """A gauge that lost a report stands for other steps than the sum of the step times."""
    lines = replaced(TWO, {TARGET: [18_000]})
    assert shown(ingest(*lines)[0].windows, "steps", "draft_us", "target_us") == [(2, 60_000, None)]


def test_steps_without_a_proposal_leave_acceptance_unknown() -> None:
    """Proposals are reported where > 0, committed tokens always: their sums speak of different steps."""
    lines = replaced(TWO, {COMMITTED: [3, 2, 1]})
    row = only(ingest(*lines)[0].windows)
    assert (row["drafted"], row["rounds"], row["emitted"], row["accepted"]) == (10, 2, None, None)


def test_an_identity_that_breaks_is_a_reject() -> None:
    lines = replaced(TWO, {COMMITTED: [30, 20]})
    tables, rejects = ingest(*lines)
    assert tables.windows is None
    assert [(r.line, r.reason) for r in rejects] == [
        (1, "identity broken: rounds <= committed tokens <= rounds + proposed tokens")
    ]


def test_tensor_parallel_ranks_count_once() -> None:
    """Same tags, other processes; their periods need not be in step."""
    once = window([(1, 3)], 5)
    lines = [*once, *window([(1, 3)], 5, pid=4243), *window([(1, 3)], 5, pid=4244, ms=MS + 3_000), *once]
    lines += window([(1, 2)], 5, ms=MS + 10_000) + window([(1, 2)], 5, ms=MS + 13_000, pid=4244)
    assert shown(ingest(*lines)[0].windows, "ts_end", "emitted") == [(at(MS), 3), (at(MS + 10_000), 2)]


def test_data_parallel_ranks_are_replicas() -> None:
    tables, _ = ingest(*window([(1, 3)], 5), *window([(1, 2)], 5, dp=1))
    assert shown(tables.windows, "replica", "process", "emitted") == [("0", None, 3), ("1", None, 2)]


def loop(decoding: Sequence[int], prefilling: Sequence[int], us: int = 20_000) -> list[str]:
    return [
        gauge("rtp_llm_step_latency_us", [us] * len(decoding)),
        gauge("rtp_llm_generate_batch_size", decoding),
        gauge("rtp_llm_context_batch_size", prefilling),
    ]


def test_an_engine_without_speculation_gives_plain_steps() -> None:
    row = only(ingest(*loop([3, 4, 4], [0, 0, 0]))[0].windows)
    names = ("steps", "plain_steps", "rounds", "drafted", "accepted", "emitted", "step_us", "draft_us")
    assert tuple(row[n] for n in names) == (3, 11, 0, 0, 0, 11, 60_000, None)


@pytest.mark.parametrize("lines", [loop([3, 4], [0, 1]), loop([3, 4], [0, 0])[:2], loop([0, 0], [0, 0])])
def test_with_prefill_or_without_knowing_they_are_no_plain_steps(lines: list[str]) -> None:
    assert ingest(*lines)[0].windows is None


def test_load_is_the_mean_of_the_period() -> None:
    more = [gauge("rtp_llm_running_stream_size", [3, 4, 4]), gauge("rtp_llm_wait_stream_size", [0, 1, 0])]
    assert shown(ingest(*window([(1, 3)], 5), *more)[0].windows, "running", "waiting") == [(4, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "rtp_llm_sp_step_latency_us 1787229620000 53387.25_2135",
        "rtp_llm_sp_step_latency_us 1787229620000 53387.25_213549_53521_53266_",
        "rtp_llm_sp_step_latency_us 17872296 5_5_5_5_1 dp_rank=0",
        "rtp_llm_sp_step_latency_us 1787229620000 5_5_5_5_1 dp_rank=0 and more",
        "rtp_llm_sp_step_latency_us 1787229620000 nan_nan_nan_nan_4 dp_rank=0",
        "rtp_llm_sp_step_latency_us 1787229620000 -5_-5_-5_-5_1 dp_rank=0",
        "rtp_llm_sp_step_latency_us 1787229620000 0_0_0_0_0 dp_rank=0",
        "rtp_llm_sp_step_latency_us 1787229620000 5_50_5_5_1 dp_rank=0",
    ],
)
def test_what_is_no_record_is_a_reject(text: str) -> None:
    tables, rejects = ingest(text)
    assert tables.windows is None
    assert [(r.line, r.surface) for r in rejects] == [(1, "rtp.kmonitor")]
    assert not any(word in rejects[0].reason for word in ("53387", "1787", "and more"))


@pytest.mark.parametrize(
    "text",
    [
        "a prompt that says rtp_llm_sp_step_latency_us 1787229620000 5_5_5_5_1 dp_rank=0",
        "rtp_llm_sp_step_latency_us is a gauge",
        "rtp_llm_kv_cache_usage 1787229620000 5_5_5_5_1 dp_rank=0",
    ],
)
def test_what_only_names_a_gauge_is_nothing(text: str) -> None:
    tables, rejects = ingest(text)
    assert (tables.windows, rejects) == (None, [])


def test_large_sums_in_ten_digits() -> None:
    assert shown(ingest(gauge(STEP, [9_876_543_210.0] * 20))[0].windows, "step_us") == [(197_530_864_200,)]


def in_one_block(lines: Sequence[str]) -> tuple[Tables, int]:
    """Tables, and how many lines were refused."""
    rows = [(i, 10 * i, text, None, None) for i, text in enumerate(lines, 1)]
    parsed = ENGINE.lines(pl.DataFrame(rows, schema=LINES, orient="row"))
    tables = ENGINE.assemble(parsed.frames, Context("src", resolve))
    check(tables)
    return tables, len(parsed.rejects + tables.rejects)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 400)), min_size=1, max_size=30),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_counts_of_any_window_come_back(steps: list[tuple[int, int]], k: int, dp: int) -> None:
    """Streams and committed tokens of any steps: K, rounds, drafted, accepted are recovered from the sums."""
    real = [(s, s + extra % (s * k + 1)) for s, extra in steps]
    tables, rejects = in_one_block(window(real, k, dp=dp))
    row = only(tables.windows)
    streams, committed = sum(s for s, _ in real), sum(c for _, c in real)
    names = ("num_speculative_tokens", "rounds", "drafted", "accepted", "emitted", "steps", "replica")
    expected = (k, streams, streams * k, committed - streams, committed, len(real), str(dp))
    assert tuple(row[n] for n in names) == expected
    assert rejects == 0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_cuts_and_junk_never_raise(data: st.DataObject) -> None:
    """Whatever is cut, doubled or overwritten: no error, and no broken identity (see `check`)."""
    lines = window([(2, 5), (1, 1)], 3)
    text = "\n".join(lines)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    junk = data.draw(st.text(alphabet="0123456789_.e-naif =[]x", max_size=12))
    cut = (text[:start] + junk + text[end:]).split("\n")
    in_one_block(cut)


# ---------------------------------------------------------------- Prometheus text
LABEL = 'dp_rank="{dp}",hippo_app="default",hippo_slave_ip="127.0.0.1",host="192.0.2.10",kmon_service_name=""'


def samples(values: dict[str, float], *, scrape: int | None = 0, stamp: str | None = None, dp: int = 0) -> pl.DataFrame:
    """A scrape, in the frame of `MetricsReader.metrics`."""
    rows = [(1, scrape, stamp, None, name, LABEL.format(dp=dp), value) for name, value in values.items()]
    types = {"line": pl.Int64, "scrape": pl.Int64, "stamp": pl.String, "stream": pl.String, "name": pl.String,
             "labels": pl.String, "value": pl.Float64}  # fmt: skip
    return pl.DataFrame(rows, schema=types, orient="row")


def scraped(*frames: pl.DataFrame) -> pl.DataFrame | None:
    parsed = Parsed()
    for frame in frames:
        parsed.merge(ENGINE.metrics(frame))
    assert parsed.rejects == []
    return ENGINE.assemble(parsed.frames, Context("src", resolve)).windows


def push_text() -> dict[str, float]:
    """The built example, read by hand."""
    lines = (DATA / "kmonitor_prometheus.txt").read_text(encoding="utf-8").splitlines()
    return {line.split("{", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_the_engine_reads_metrics() -> None:
    assert isinstance(ENGINE, MetricsReader)
    assert all(m.startswith(tuple(ENGINE.metric_prefixes)) for m in push_text())


def test_push_text_gives_the_times_of_a_mean_step_and_no_counts() -> None:
    found = scraped(samples(push_text()))
    assert found is not None
    row = known(only(found))
    assert row.pop("draft_ms_per_token") == pytest.approx(7.01475)
    assert row == {
        "source_line": 1, "surface": "rtp.kmonitor_gauges", "replica": "0", "ts_basis": "none",
        "num_speculative_tokens": 5, "draft_us": 35_074, "target_us": 18_015, "sample_us": 299, "step_us": 53_387,
        "time_basis": "mean", "engine": "rtp-llm",
    }  # fmt: skip


def test_a_gauge_that_did_not_move_counts_once() -> None:
    values = push_text()
    other = values | {STEP: 60_000.0}
    stamp = "2026-08-20 12:40:{:02d}"
    frames = [samples(v, scrape=i, stamp=stamp.format(3 * i)) for i, v in enumerate([values, values, other, values])]
    assert shown(scraped(*frames), "ts_end", "step_us") == [
        (datetime(2026, 8, 20, 12, 40, 0), 53_387),
        (datetime(2026, 8, 20, 12, 40, 6), 60_000),
        (datetime(2026, 8, 20, 12, 40, 9), 53_387),
    ]


def test_samples_of_a_range_query_go_by_their_stamps() -> None:
    one, two = (samples(push_text(), scrape=None, stamp=f"2026-08-20 12:40:0{s}", dp=s) for s in (1, 2))
    assert shown(scraped(one, two), "replica", "step_us") == [("1", 53_387), ("2", 53_387)]


def test_gauges_of_mtp_executor_have_step_times_alone() -> None:
    values = push_text() | dict.fromkeys((DRAFT, TARGET, SAMPLE), 0.0)
    found = shown(scraped(samples(values)), "draft_us", "target_us", "sample_us", "draft_ms_per_token", "step_us")
    assert found == [(None, None, None, None, 53_387)]


def test_gauges_without_any_time_give_no_row() -> None:
    assert scraped(samples({RATE: 0.5, PER_STREAM: 3.0})) is None
    assert scraped(samples({STEP: float("nan"), DRAFT: float("inf"), "rtp_llm_other": 1.0})) is None


def test_a_scrape_cut_by_a_block_is_one_window() -> None:
    frame = samples(push_text())
    assert scraped(frame[:3], frame[3:]).equals(scraped(frame), null_equal=True)  # type: ignore[union-attr, arg-type]


def test_needles_find_every_gauge_that_is_read() -> None:
    assert {n.decode().strip() for n in kmonitor.NEEDLES} >= set(push_text())


# ---------------------------------------------------------------- files
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("engine_kmonitor_sink.log", ("rtp.kmonitor", 20, 10, 140_295, 72_060, 213_549)),
        ("kmonitor_prometheus.txt", ("rtp.kmonitor_gauges", None, None, 35_074, 18_015, 53_387)),
    ],
)
def test_a_file_end_to_end(tmp_path: Path, name: str, figures: tuple[Any, ...]) -> None:
    ingest_paths([str(DATA / name)], tmp_path / "lake", IngestOptions(jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        got = con.execute(
            "select surface, drafted, accepted, draft_us, target_us, step_us from windows where draft_us is not null"
        ).fetchall()
        assert got == [figures]
        ledger = con.execute("select surfaces, rejects, unrecognised from sources").fetchone()
        assert ledger == ({figures[0]: 10}, 0, 0)
    lake = b"".join(p.read_bytes() for p in (tmp_path / "lake").rglob("*.parquet"))
    assert b"192.0.2.10" not in lake
    assert b"127.0.0.1" not in lake


def test_gauges_beside_the_debug_log_count_once(tmp_path: Path) -> None:
    """The rounds of engine.log are the finer grain: its counts and times hold, whatever the gauges add up to."""
    folder = tmp_path / "logs"
    folder.mkdir()
    debug = (DATA / "engine_v0.2.0_debug.log").read_text(encoding="utf-8")
    (folder / "engine.log").write_text(debug + "\n".join(window([(2, 5)] * 50, 5)) + "\n", encoding="utf-8")
    ingest_paths([str(folder)], tmp_path / "lake", IngestOptions(jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        both = con.execute("select (select count(*) from rounds), (select count(*) from windows)").fetchone()
        assert both is not None
        assert min(both) > 0
        own = con.execute("select sum(drafted), sum(accepted), count(draft_us) from rounds").fetchone()
        assert con.execute("select sum(drafted), sum(accepted), count(draft_us) from facts").fetchone() == own
