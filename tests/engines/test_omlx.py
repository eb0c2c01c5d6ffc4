"""oMLX: ends of sequences in every form that was seen, and finished completions."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_source import CONTEXT, ingest, reasons, shown

from tracelens.engines.omlx import ENGINE

SHARED = Path(__file__).parents[2].parent / "shared" / "real" / "other" / "omlx_lightllm.log"
COUNTS = ("rounds", "drafted", "accepted", "emitted", "iterations", "accepted_hist", "num_speculative_tokens")
STAMP = "2026-09-17 21:14:02,004 - omlx.mtp - INFO - [-] - "
EMITS = "emits[init=2,draft=207,bonus=76,verify=50]"
TIMING = "timing[backbone=7407.0ms mtp=211.9ms sample=1.1ms cache=6.9ms]"
# 0.6: three positions, chosen anew in each cycle: of 111 whose first draft was accepted 107 had a second.
ADAPTIVE = (
    f"MTP[1] finish=stop tokens=335 cycles=127 tok/cycle=2.64 accept=207/257 (80.5%) "
    f"depth[d1=111/124,d2=77/107,d3=19/26] d0=3 {EMITS} {TIMING}"
)
CONSTANT = (
    "MTP[2] finish=length tokens=24 cycles=10 tok/cycle=2.40 accept=12/18 (66.7%) depth[d1=8/10,d2=4/8] "
    "emits[init=2,draft=12,bonus=4,verify=6] timing[backbone=100.0ms mtp=20.0ms sample=1.0ms cache=2.0ms]"
)


@pytest.mark.skipif(not SHARED.exists(), reason="captures are not here")
def test_the_capture_contradicts_itself(tmp_path: Path) -> None:
    """A line that was made up: its second position was reached more often than the first was accepted."""
    text = SHARED.read_text(encoding="utf-8").splitlines()[0]
    tables, rejects = ingest(tmp_path, text, "omlx")
    assert reasons(rejects) == ["positions by depth contradict the counts: not used"]
    assert shown(tables.requests, *COUNTS) == [(44, None, 82, 127, 47, None, 2)]
    assert shown(tables.requests, "draft_us", "target_us", "finish_reason") == [(612_000, 5_753_000, "stop")]


def test_positions_count_what_was_reached(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, STAMP + ADAPTIVE, "omlx")
    assert rejects == []
    # Chains of changing length: 257 is no number of proposed tokens. 124 cycles with a draft, 13 of them all refused.
    assert shown(tables.requests, *COUNTS) == [(124, None, 207, 333, 127, [13, 34, 58, 19], 3)]
    assert shown(tables.requests, "counts_basis", "method", "ts_end", "output_tokens", "tpot_us") == [
        ("logged", "mtp", datetime(2026, 9, 17, 21, 14, 2, 4000), 335, None)
    ]


def test_a_constant_chain_tells_its_drafts(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, STAMP + CONSTANT, "omlx")
    assert rejects == []
    assert shown(tables.requests, *COUNTS, "counts_basis") == [(10, 20, 12, 22, 10, [2, 4, 4], 2, "derived")]


# Its second draft was never reached.
SHORT = CONSTANT.replace("accept=12/18", "accept=0/10").replace("d1=8/10,d2=4/8", "d1=0/10,d2=0/0")


@pytest.mark.parametrize(
    ("lines", "drafted"),
    [
        ([CONSTANT, ADAPTIVE], [None, None]),  # lengths change
        ([SHORT], [None]),  # nothing shows how long the chain is
        ([CONSTANT, SHORT], [20, 20]),
    ],
)
def test_the_log_tells_whether_chains_are_constant(tmp_path: Path, lines: list[str], drafted: list[int | None]) -> None:
    tables, rejects = ingest(tmp_path, "".join(f"{STAMP}{line}\n" for line in lines), "omlx")
    assert rejects == []
    assert [d for (d,) in shown(tables.requests, "drafted")] == drafted


def test_sampling_and_cache_are_a_window(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, STAMP + ADAPTIVE, "omlx")
    columns = (
        "steps",
        "rounds",
        "plain_steps",
        "draft_us",
        "target_us",
        "sample_us",
        "rollback_us",
        "step_us",
        "running",
    )
    assert shown(tables.windows, *columns, "accepted", "time_basis") == [
        (127, 124, 3, 211_900, 7_407_000, 1_100, 6_900, 7_626_900, 1, None, "sum")
    ]


def test_a_draft_length_that_can_not_be_is_none(tmp_path: Path) -> None:
    line = f"{STAMP}{CONSTANT.replace('12/18', '12/2147483648')}\n"
    tables, _ = ingest(tmp_path, line, "omlx")
    assert shown(tables.requests, "rounds", "drafted", "accepted") == [(10, None, 12)]


def test_the_first_releases_drafted_one_token(tmp_path: Path) -> None:
    old = f"MTP[17] finish=stop tokens=120 cycles=70 accept=50/70 (71.4%) {EMITS} {TIMING}"
    tables, rejects = ingest(tmp_path, old, "omlx")
    assert rejects == []
    assert shown(tables.requests, *COUNTS, "counts_basis") == [(70, 70, 50, 118, 70, [20, 50], 1, "logged")]


@pytest.mark.parametrize(
    ("middle", "k"),
    [
        ("depth=3 tokens=120 cycles=40 full-accept=10/40 (25.0%) draft-tokens=78/120 (65.0%) ", 3),
        ("tokens=120 cycles=40 accept=10/40 (drafts 78/120, 65.0%) ", None),
    ],
)
def test_forks_write_the_proposed_tokens(tmp_path: Path, middle: str, k: int | None) -> None:
    tables, rejects = ingest(tmp_path, f"MTP[3] finish=stop {middle}{EMITS} {TIMING}", "omlx")
    assert rejects == []
    assert shown(tables.requests, *COUNTS, "counts_basis") == [(40, 120, 78, 118, 40, None, k, "logged")]


def test_a_line_may_end_early(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, ADAPTIVE.split(" emits")[0], "omlx")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(124, None, 207, None, 127, [13, 34, 58, 19], 3)]
    assert shown(tables.requests, "target_us", "draft_us") == [(None, None)]
    assert tables.windows is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MTP[1] finish=stop tokens=335 cycles=127 tok/cycle=2.64 acc", "incomplete line: no accept"),
        ("MTP[1] finish=stop tokens= cycles=127 tok/cycle=2.64 accept=1/2 ", "incomplete line: no tokens and cycles"),
        (ADAPTIVE.replace("d0=3", "d0=128"), "d0 <= cycles does not hold"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    tables, rejects = ingest(tmp_path, text, "omlx")
    assert reasons(rejects) == [reason]
    assert tables.requests is None


@pytest.mark.parametrize(
    "depth",
    ["d1=111/124,d2=77/112,d3=19/26", "d1=125/124,d2=77/107,d3=5/26", "d1=110/124,d2=77/107,d3=19/26"],
)
def test_positions_that_contradict_the_counts(tmp_path: Path, depth: str) -> None:
    text = ADAPTIVE.replace("d1=111/124,d2=77/107,d3=19/26", depth)
    tables, rejects = ingest(tmp_path, text, "omlx")
    assert reasons(rejects) == ["positions by depth contradict the counts: not used"]
    assert shown(tables.requests, "rounds", "accepted", "accepted_hist") == [(124, 207, None)]


def test_completions(tmp_path: Path) -> None:
    text = (
        # Streamed: the rate is over the time behind the first token.
        STAMP + "Chat completion: model=/Users/x/models/org/M-4bit, 128 tokens in 6.97s (27.2 tok/s), prompt: 46, "
        "finish_reason=length, max_tokens=128\n"
        # Not streamed: over all of it.
         + STAMP + "Completion: 200 tokens in 4.78s (41.8 tok/s), prompt: 19\n"
    )
    tables, rejects = ingest(tmp_path, text, "omlx")
    assert rejects == []
    columns = ("model", "output_tokens", "prompt_tokens", "e2e_us", "decode_us", "ttft_us", "finish_reason")
    assert shown(tables.requests, *columns) == [
        ("M-4bit", 128, 46, 6_970_000, 4_705_882, 2_264_118, "length"),
        (None, 200, 19, 4_780_000, None, None, None),
    ]
    assert shown(tables.requests, "tpot_us", "tpot_basis", "accepted") == [
        (pytest.approx(4_705_882 / 127), "derived", None),
        (None, None, None),
    ]


@pytest.mark.parametrize("before", ['"', "{'text': '", "said `"])
@pytest.mark.parametrize("text", [ADAPTIVE, "Completion: 200 tokens in 4.78s (41.8 tok/s), prompt: 19"])
def test_what_a_user_wrote_is_no_line(tmp_path: Path, before: str, text: str) -> None:
    tables, _ = ingest(tmp_path, before + text, "omlx")
    assert tables.requests is None


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([ADAPTIVE, CONSTANT]), st.integers(0, 300), st.text(max_size=20))
def test_any_cut_and_any_junk(text: str, cut: int, junk: str) -> None:
    frame = pl.DataFrame(
        {"line": [1], "offset": [0], "text": [STAMP + text[:cut] + junk], "stamp": [None], "stream": [None]},
        schema={"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String},
    )
    parsed = ENGINE.lines(frame)
    made = ENGINE.assemble(parsed.frames, CONTEXT)
    assert (0 if made.requests is None else made.requests.height) + len(parsed.rejects) <= 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30).map(
        lambda cycles: [(k, min(a, k)) for k, a in cycles]
    )
)
def test_any_sequence_comes_back(cycles: list[tuple[int, int]]) -> None:
    """Cycles of any draft length, counted as the engine counts them: rounds, accepted tokens and lengths are exact."""
    longest = max(k for k, _ in cycles)
    reached = [sum(k > j and a >= j for k, a in cycles) for j in range(longest)]
    accepted = [sum(a > j for _, a in cycles) for j in range(longest)]
    zero = sum(k == 0 for k, _ in cycles)
    total = sum(a for _, a in cycles)
    depth = (
        "depth[" + ",".join(f"d{j + 1}={a}/{d}" for j, (a, d) in enumerate(zip(accepted, reached, strict=True))) + "] "
    )
    text = (
        f"MTP[1] finish=stop tokens={2 + total + len(cycles)} cycles={len(cycles)} tok/cycle=1.00 "
        f"accept={total}/{sum(reached) or len(cycles)} (1.0%) {depth if longest else ''}{f'd0={zero} ' if zero else ''}"
        f"emits[init=2,draft={total},bonus=0,verify={len(cycles)}] {TIMING}"
    )
    frame = pl.DataFrame(
        {"line": [1], "offset": [0], "text": [text], "stamp": [None], "stream": [None]},
        schema={"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String},
    )
    made = ENGINE.assemble(ENGINE.lines(frame).frames, CONTEXT)
    assert made.rejects == []
    drafting = [(k, a) for k, a in cycles if k]
    rounds, got, emitted, hist, drafted = shown(
        made.requests, "rounds", "accepted", "emitted", "accepted_hist", "drafted"
    )[0]  # fmt: skip
    assert (rounds, got, emitted) == (len(drafting), total, total + len(cycles))
    if longest:
        assert hist == [sum(a == j for _, a in drafting) for j in range(longest + 1)]
    if longest and all(k == longest for k, _ in drafting) and reached[-1]:
        assert drafted == longest * len(drafting)
    elif not longest or any(a == k < longest for k, a in drafting):
        assert drafted is None
