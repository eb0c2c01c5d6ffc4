"""llama.cpp: request blocks, statistics lines, start-up; a sample of our own run, and lines made by hand."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.llama_cpp_runs import ingest, rows, shown
from tracelens.engines.base import Engine
from tracelens.engines.llama_cpp import ENGINE
from tracelens.engines.llama_cpp.recover import histogram, rounds_of

DATA = Path(__file__).parent.parent / "data" / "llama-cpp"

OLD_BLOCK = """\
slot launch_slot_: id  2 | task 7 | processing task
slot print_timing: id  2 | task 7 |
prompt eval time =      80.00 ms /    40 tokens (    2.00 ms per token,   500.00 tokens per second)
       eval time =     900.00 ms /    31 tokens (   29.03 ms per token,    34.44 tokens per second)
      total time =     980.00 ms /    71 tokens
slot print_timing: id  2 | task 7 |
draft acceptance rate = 0.41667 (   10 accepted /    24 generated)
statistics draft: #calls = 8, #gen drafts = 8, #acc drafts = 6, #gen tokens = 24, #acc tokens = 10, dur = 99.500 ms
slot      release: id  2 | task 7 | stop processing: n_tokens = 70, truncated = 0
"""


def block(task: int, accepted: int, drafted: int, more: str = "", tokens: int = 31, prefix: str = "") -> list[str]:
    """The lines of one request at level 3, as of 2026."""
    head = f"{prefix}slot print_timing: id  0 | task {task} | "
    return [
        f"{head}prompt eval time =      80.00 ms /    40 tokens (    2.00 ms per token,   500.00 tokens per second)",
        f"{head}       eval time =     900.00 ms / {tokens:5d} tokens (   30.00 ms per token,    33.33 t/s)",
        f"{head}draft acceptance = 0.41667 ({accepted:5d} accepted / {drafted:5d} generated){more}",
    ]


def statistics(calls: int, drafts: int, drafted: int, accepted: int, ms: float, name: str = "draft-simple") -> str:
    return (
        f"spec common_specu: statistics {name:>16}: #calls(b,g,a) = {1:4d} {calls:6d} {drafts:6d}, "
        f"#gen drafts = {drafts:6d}, #acc drafts = {1:5d}, #gen tokens = {drafted:6d}, #acc tokens = {accepted:5d}, "
        f"dur(b,g,a) = 0.100, {ms:.3f}, 0.100 ms"
    )


def test_is_an_engine_with_declared_surfaces() -> None:
    assert isinstance(ENGINE, Engine)
    assert len({s.name for s in ENGINE.surfaces}) == len(ENGINE.surfaces)


def test_sample_gives_its_run() -> None:
    tables, rejects = ingest(*(DATA / "trace.log").read_text().splitlines())
    assert rejects == []
    config = [{"key": "draft-simple.n_min", "value": "0"}, {"key": "draft-simple.p_min", "value": "0.000000"}]
    assert rows(tables.runs) == [
        {
            "run_key": 1, "model": "smol-f32.gguf", "draft_model": "smol-q4.gguf", "method": "draft-simple",
            "num_speculative_tokens": 2, "role": "speculative", "config": config,
        }
    ]  # fmt: skip


def test_sample_gives_its_requests() -> None:
    tables, _ = ingest(*(DATA / "trace.log").read_text().splitlines())
    shared = {
        "run_key": 1, "surface": "llama.request_block", "ts_basis": "relative", "output_tokens": 32, "emitted": 31,
        "prompt_tokens": 35, "counts_basis": "logged", "tpot_basis": "derived", "top_p": 0.95,
    }  # fmt: skip
    assert rows(tables.requests) == [
        shared
        | {
            "source_line": 25, "request_id": "35t532.96ms+32t2185.58ms", "cached_tokens": 0, "drafted": 22,
            "accepted": 19, "rounds": 11, "accepted_hist": [1, 1, 9], "ttft_us": 532960, "decode_us": 2185580,
            "e2e_us": 2718540, "tpot_us": 2185580 / 31, "temperature": 0.0, "draft_us": 569669,
        },
        shared
        | {
            "source_line": 52, "request_id": "1t100.08ms+32t2600.35ms", "cached_tokens": 34, "drafted": 24,
            "accepted": 18, "rounds": 12, "accepted_hist": [1, 4, 7], "ttft_us": 100080, "decode_us": 2600350,
            "e2e_us": 2700430, "tpot_us": 2600350 / 31, "temperature": 0.7, "draft_us": 653451,
        },
    ]  # fmt: skip


def test_sample_gives_its_rounds() -> None:
    tables, _ = ingest(*(DATA / "trace.log").read_text().splitlines())
    assert tables.rounds is not None
    assert tables.rounds.height == 23
    assert rows(tables.rounds.head(2)) == [
        {
            "run_key": 1, "source_line": 13, "surface": "llama.round_line", "request_id": "35t532.96ms+32t2185.58ms",
            "round_index": 0, "drafted": 2, "accepted": 2, "emitted": 3, "is_replay": False, "step_id": "13",
            "step_share": 1.0, "batch_size": 1, "context_len": 35, "temperature": 0.0, "top_p": 0.95,
            "ts_basis": "relative",
        },
        {
            "run_key": 1, "source_line": 14, "surface": "llama.round_line", "request_id": "35t532.96ms+32t2185.58ms",
            "round_index": 1, "drafted": 2, "accepted": 2, "emitted": 3, "is_replay": False, "step_id": "14",
            "step_share": 1.0, "batch_size": 1, "context_len": 38, "temperature": 0.0, "top_p": 0.95,
            "ts_basis": "relative", "step_us": 201736, "timing_basis": "derived",
        },
    ]  # fmt: skip
    # 31 tokens after the first: 30 from rounds and one plain step, which no line tells of.
    assert tables.rounds.filter(pl.col("temperature") == 0)["emitted"].sum() == 30


def test_sample_gives_a_window_a_statistics_line() -> None:
    tables, _ = ingest(*(DATA / "trace.log").read_text().splitlines())
    columns = (
        "source_line", "method", "drafted", "accepted", "rounds", "steps", "plain_steps", "draft_us",
        "accepted_per_pos", "window_us", "num_speculative_tokens",
    )  # fmt: skip
    assert shown(tables.windows, *columns) == [
        (30, "draft-simple", 22, 19, 11, 11, 0, 569669, [10, 9], 4059943, 2),
        (57, "draft-simple", 24, 18, 12, 12, 0, 653451, [11, 7], 2707919, 2),
    ]


def test_block_without_prefix() -> None:
    tables, rejects = ingest(*OLD_BLOCK.splitlines())
    assert rejects == []
    columns = ("prompt_tokens", "output_tokens", "drafted", "accepted", "rounds", "tpot_us", "counts_basis", "draft_us")
    # Slot 2 was used, so there are at least three: the drafter's time may be others' too.
    assert shown(tables.requests, *columns) == [(40, 31, 24, 10, None, 30000.0, "logged", None)]
    assert shown(tables.windows, "method", "drafted", "accepted", "rounds", "draft_us") == [("draft", 24, 10, 8, 99500)]


def test_block_in_one_json_message() -> None:
    text = "\n".join(OLD_BLOCK.splitlines()[1:5])
    tables, _ = ingest(text, stamp="2026-02-03 10:00:05")
    end = datetime(2026, 2, 3, 10, 0, 5)
    assert shown(tables.requests, "output_tokens", "ts_end", "ts_first_token", "ts_start", "ts_basis") == [
        (31, end, end - timedelta(milliseconds=900), end - timedelta(milliseconds=980), "zone_assumed")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "rounds", "hist"),
    [
        ("", None, None),
        (", mean len =  2.25", 8, None),
        (", mean acceptance length =  2.25, acceptance rate per position = (0.750, 0.375, 0.125)", 8, [2, 3, 2, 1]),
        (", mean acceptance length =  2.25, acceptance rate per position = (0.750, 0.375, 0.999)", 8, None),
        (", mean acce", None, None),
    ],
)
def test_rounds_behind_the_mean(more: str, rounds: int | None, hist: list[int] | None) -> None:
    tables, _ = ingest(*block(3, 10, 24, more))
    assert shown(tables.requests, "drafted", "rounds", "accepted_hist") == [(24, rounds, hist)]


def test_level_of_positions_is_a_line_of_its_own() -> None:
    line = "slot print_timing: id  0 | task 3 |      acc per pos = (0.750, 0.375, 0.125)"
    tables, _ = ingest(*block(3, 10, 24, ", mean len =  2.25"), line)
    assert shown(tables.requests, "rounds", "accepted_hist", "counts_basis") == [(8, [2, 3, 2, 1], "exact")]


def test_several_rounds_fit_and_nothing_accepted() -> None:
    assert rounds_of(3, 400, 1.01, []) is None
    assert rounds_of(0, 24, 1.0, [0.0]) is None
    assert rounds_of(167, 259, 2.92, []) == 87
    assert histogram(167, 87, [0.805, 0.632, 0.483]) == [17, 15, 13, 42]


def test_request_without_a_draft_of_a_speculating_server() -> None:
    quiet = block(3, 10, 24)[:2]
    tables, _ = ingest(*quiet, statistics(30, 0, 0, 0, 1.0))
    columns = ("drafted", "accepted", "rounds", "emitted", "counts_basis")
    assert shown(tables.requests, *columns) == [(0, 0, 0, 30, "derived")]
    assert shown(tables.windows, "rounds", "plain_steps", "drafted") == [(0, 30, 0)]
    # Nothing proves it without the statistics line: a line that was not printed is no zero.
    tables, _ = ingest(*quiet)
    assert shown(tables.requests, *columns) == [(None, None, None, None, None)]


def test_statistics_of_two_drafters_are_differenced_apart() -> None:
    lines = [
        statistics(6, 5, 35, 31, 1.0, "ngram-simple"), statistics(1, 1, 3, 3, 40.0),
        statistics(41, 11, 77, 67, 3.5, "ngram-simple"), statistics(30, 30, 89, 31, 900.0),
    ]  # fmt: skip
    tables, _ = ingest(*lines)
    columns = ("method", "drafted", "accepted", "rounds", "plain_steps", "draft_us")
    assert shown(tables.windows, *columns) == [
        ("ngram-simple", 35, 31, 5, None, 1000), ("draft-simple", 3, 3, 1, None, 40000),
        ("ngram-simple", 42, 36, 6, None, 2500), ("draft-simple", 86, 28, 29, None, 860000),
    ]  # fmt: skip


def test_statistics_start_anew_when_a_counter_falls() -> None:
    tables, _ = ingest(statistics(9, 9, 27, 12, 90.0), statistics(20, 20, 60, 30, 200.0), statistics(4, 4, 12, 5, 41.0))
    assert shown(tables.windows, "drafted", "accepted", "draft_us") == [
        (27, 12, 90000),
        (33, 18, 110000),
        (12, 5, 41000),
    ]


def test_statistics_between_a_draft_and_its_verification() -> None:
    """With several slots a line may count a draft and not yet what was accepted of it."""
    tables, rejects = ingest(
        statistics(9, 9, 27, 2, 9.0), statistics(10, 10, 30, 9, 10.0), statistics(20, 20, 60, 12, 20.0)
    )
    assert shown(tables.windows, "drafted", "accepted", "draft_us") == [(27, 2, 9000), (33, 10, 11000)]
    assert rejects == []


def test_relative_stamps_router_prefix_and_children() -> None:
    first = block(0, 10, 24, prefix="[52123] 0.10.000.000 I ")
    second = block(0, 4, 24, tokens=21, prefix="[52124] 0.10.000.000 I ")
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    tables, rejects = ingest(*mixed)
    assert rejects == []
    columns = ("process", "output_tokens", "accepted", "ts_basis")
    expected = [("child 52123", 31, 10, "relative"), ("child 52124", 21, 4, "relative")]
    assert shown(tables.requests, *columns) == expected


def test_two_starts_and_forced_acceptance() -> None:
    lines = [
        "0.00.014.000 I srv    load_model: loading model '/mnt/someone/models/a.gguf'",
        "0.00.144.000 I spec common_specu: no implementations specified for speculative decoding",
        *block(0, 10, 24)[:2],
        "0.00.014.000 I cmn  common_param: common_params_print_info: build 9159 (abc) with GNU 12 for Linux",
        "0.00.024.000 I srv    load_model: loading model 'b.gguf'",
        "0.00.100.000 W spec common_specu: synthetic speculative acceptance is enabled for benchmarking",
        "0.00.144.000 I spec common_specu: adding speculative implementation 'ngram-simple'",
        "0.00.145.000 I spec common_specu: - size_n=4, size_m=7, min_hits=1",
        *block(0, 10, 24),
    ]
    tables, _ = ingest(*lines)
    columns = ("run_key", "engine_version", "model", "method", "num_speculative_tokens", "role", "forced_acceptance")
    assert shown(tables.runs, *columns) == [
        (1, None, "a.gguf", None, None, "baseline", None),
        (2, "b9159", "b.gguf", "ngram-simple", 7, "speculative", True),
    ]
    assert shown(tables.requests, "run_key", "drafted") == [(1, None), (2, 24)]


EXAMPLE = """\
encoded   14 tokens in    0.054 seconds, speed:  258.250 t/s
decoded  673 tokens in   12.132 seconds, speed:   55.473 t/s

n_draft   = 5
n_predict = 673
n_drafted = 730
n_accept  = 526
accept    = 72.055%
"""


def test_example_programs() -> None:
    columns = (
        "request_id", "output_tokens", "decode_us", "tpot_us", "num_speculative_tokens", "drafted", "accepted",
        "emitted",
    )  # fmt: skip
    tables, rejects = ingest(*EXAMPLE.splitlines())
    row = ("src#7", 673, 12_132_000, 12_132_000 / 672, 5, 730, 526, None)
    assert (shown(tables.requests, *columns), rejects) == ([row], [])
    # 2023: `generated`; the counts alone are enough.
    tables, _ = ingest("generated 129 tokens in 248.340 seconds, speed: 0.519 t/s", "n_drafted = 132", "n_accept  = 47")
    assert shown(tables.requests, *columns[1:7]) == [(129, 248_340_000, 248_340_000 / 128, None, 132, 47)]
    tables, rejects = ingest("n_drafted = 132", "n_accept  = 47", "0.01.000.000 I n_accept  = 3")
    assert shown(tables.requests, "request_id", "drafted", "accepted", "output_tokens", "tpot_us") == [
        ("src#2", 132, 47, None, None)
    ]  # fmt: skip
    assert [r.reason for r in rejects] == ["n_accept without n_drafted"]


def test_counts_of_an_example_that_can_not_be() -> None:
    tables, rejects = ingest("n_draft   = 5", "n_drafted = 7", "n_accept  = 8", "n_drafted = 7", "n_accept  = 7")
    assert [(r.line, r.reason) for r in rejects] == [(3, "accepted <= drafted does not hold")]
    assert shown(tables.requests, "drafted", "accepted", "num_speculative_tokens") == [(7, 7, None)]


def test_a_start_has_a_time_where_the_log_has_outer_stamps() -> None:
    start = "srv    load_model: loading model 'a.gguf'"
    assert shown(ingest(start, stamp="2026-02-03 10:00:05")[0].runs, "started") == [(datetime(2026, 2, 3, 10, 0, 5),)]
    assert shown(ingest(f"0.00.014.000 I {start}")[0].runs, "started") == [(None,)]


def test_times_of_the_examples_own_print_are_no_request() -> None:
    line = "llama_perf_context_print:        eval time =     182.85 ms /    96 runs   (    1.90 ms per token)"
    assert ingest(line)[0].requests is None


_BROKEN_IDENTITY = "accepted <= drafted does not hold"
_BROKEN_EVAL = "broken line of a request block (eval time =)"
_ALONE = "line of a request block without its block"
_NO_EVAL = "request block without its eval time"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("slot update_slots: id  3 | task 0 | accepted 11/0 draft tokens, new n_tokens = 741", _BROKEN_IDENTITY),
        ("slot update_slots: id  3 | task 0 | accepted 1/1", "broken round line"),
        ("slot update_slots: id  3 | task 0 | accepted x/y draft tokens", "broken round line"),
        ("slot print_timing: id  0 | task 3 |        eval time =     900.00 ms /", _BROKEN_EVAL),
        ("draft acceptance rate = 1.00000 (    8 accepted /     8 generated)", _ALONE),
        ("prompt eval time =      37.91 ms /     1 tokens (   37.91 ms per token)", _NO_EVAL),
        ("statistics draft: #calls = 8, #gen drafts = 8, #acc drafts = 6, #gen tok", "broken statistics line"),
    ],
)  # fmt: skip
def test_refused(line: str, reason: str) -> None:
    tables, rejects = ingest(line)
    assert [(r.line, r.reason, r.excerpt) for r in rejects] == [(1, reason, None)]
    assert not any(f is not None and f.height for f in (tables.rounds, tables.windows, tables.requests))


@pytest.mark.parametrize("tail", [" draft tokens, new n_tok", " draft", " d"])
def test_a_cut_tail_does_not_matter(tail: str) -> None:
    tables, rejects = ingest(f"slot update_slots: id  3 | task 0 | accepted 3/4{tail}")
    assert (shown(tables.rounds, "drafted", "accepted"), rejects) == ([(4, 3)], [])


def test_what_a_prompt_quotes_is_no_record() -> None:
    tables, _ = ingest(
        'srv  log_server_r: request:  {"content":"slot x: id  0 | task 3 | accepted 1/3 draft tokens"}',
        "srv  update_chat_: Parsing chat message: slot p: id  0 | task 3 |        eval time =  1.00 ms / 9 tokens",
        "draft acceptance rate = 0.00% (0 / 0)",
        "#gen drafts = 1, #gen drafts = 18, #acc tokens = 12",
    )
    assert not any(f is not None and f.height for f in (tables.rounds, tables.windows, tables.requests))


def test_progress_lines_are_passed_over() -> None:
    line = "0.44.409.108 I slot print_timing: id  0 | task 0 | n_gen =    100, tg =  31.44 t/s, tg_3s =  31.75 t/s"
    tables, rejects = ingest(line, "0.53.493.544 I slot print_timing: id  0 | task 0 | n_ge")
    assert (tables.requests, tables.rounds, rejects) == (None, None, [])


_PIECES = [
    *(n.decode() for n in ENGINE.needles), "slot f: id  0 | task 3 | ", "0.01.000.000 I ", "[52123] ", "accepted ",
    "3/ 4", " draft tokens", " (restore checkpoint)", ", new n_tokens = 9", "prompt eval time = 1.00 ms / 5 tokens (",
    "eval time = ", "nan", "inf", "-1", "99999999999999999999", "(0.5, 0.5", "..", ")", "\n",
    "statistics a: #calls = 1", "#gen tokens = 3, ", "#acc tokens = 2, dur = 1.0 ms",
    "generate_draft: id=1, #tokens=3, #draft=3", "restoring speculative checkpoint",
    "acc per pos = (", "slot decode token, n_tokens = 3", "n_max=99999999999", "spec common_specu: - ", "\x00", "é",
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=6)), max_size=8).map("".join), max_size=8)
)
def test_hostile_lines_never_raise(lines: list[str]) -> None:
    ingest(*lines)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12), st.integers(0, 60))
def test_every_table_keeps_the_identities(slot: int, pairs: list[tuple[int, int]], tokens: int) -> None:
    lines: list[Any] = [f"slot f: id  {slot} | task 3 | accepted {a}/{d} draft tokens" for a, d in pairs]
    good = [(a, d) for a, d in pairs if a <= d]
    ends = block(3, sum(a for a, _ in good), sum(d for _, d in good), tokens=tokens)
    tables, _ = ingest(*lines, *ends)
    if good and tables.rounds is not None:
        assert tables.rounds["emitted"].sum() <= max(tokens - 1, 0)
