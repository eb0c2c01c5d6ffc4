"""llama.cpp: a round that up to three lines tell is one row, whichever of them a log has."""

import gzip
from itertools import chain, combinations
from pathlib import Path

import polars as pl
import pytest

from tests.engines.llama_cpp_runs import RUNS, ingest, shown

SLOT = "slot   operator(): id  0 | task 7 | "
LINES = ("trace", "added", "debug")
SUBSETS = [*chain.from_iterable(combinations(LINES, n) for n in (1, 2, 3))]
COUNTS = ("request_id", "round_index", "drafted", "accepted", "emitted", "is_replay")
ID = "9t80.00ms+7t900.00ms"


def told(kinds: tuple[str, ...], accepted: int, drafted: int, context: int = 20) -> list[str]:
    """The lines of one round, as b11434 has them."""
    lines = {
        "trace": f"0.01.000.000 I {SLOT}accepted {accepted:2d}/{drafted:2d} draft tokens",
        "added": f"0.01.000.100 D {SLOT}add accepted tokens: sampled=50256, ids.size={accepted + 1}, n_draft={drafted}",
        "debug": f"0.01.000.200 D {SLOT}accepted {accepted}/{drafted} draft tokens, new n_tokens = {context}",
    }
    return [lines[kind] for kind in LINES if kind in kinds]


def ended(tokens: int = 7, task: int = 7) -> list[str]:
    head = f"0.09.000.000 I slot print_timing: id  0 | task {task} | "
    return [
        f"{head}prompt eval time =      80.00 ms /     9 tokens (    2.00 ms per token,   500.00 tokens per second)",
        f"{head}       eval time =     900.00 ms / {tokens:5d} tokens (   30.00 ms per token,    33.33 t/s)",
        f"{head}draft acceptance = 0.5 (    3 accepted /     9 generated)",
        f"0.09.000.100 I slot      release: id  0 | task {task} | stop processing: n_tokens = 15, truncated = 0",
    ]


@pytest.mark.parametrize("kinds", SUBSETS, ids="+".join)
def test_every_set_of_lines_gives_each_round_once(kinds: tuple[str, ...]) -> None:
    # Two rounds alike, and a last one, which the request ends in: its debug line is left out.
    last = [line for line in told(kinds, 3, 3) if "new n_tokens" not in line]
    tables, rejects = ingest(*told(kinds, 0, 3), *told(kinds, 0, 3), *last, *ended())
    rows = [(ID, 0, 3, 0, 1, False), (ID, 1, 3, 0, 1, False), (ID, 2, 3, 3, 4, False)]
    assert shown(tables.rounds, *COUNTS) == rows[: 2 + bool(last)]
    assert rejects == []
    assert shown(tables.requests, "rounds", "accepted_hist") == ([(3, [2, 0, 0, 1])] if last else [(None, None)])


@pytest.mark.parametrize("task", [7, -1])
@pytest.mark.parametrize("kinds", [k for k in SUBSETS if "debug" in k], ids="+".join)
def test_the_debug_line_below_the_end_of_its_request(kinds: tuple[str, ...], task: int) -> None:
    *above, debug = told(kinds, 3, 3, context=14)
    below = debug.replace("task 7", f"task {task}")
    other = f"0.09.000.150 I slot   operator(): id  1 | task 9 | {told(('trace',), 1, 3)[0].partition('task 7 | ')[2]}"
    tables, rejects = ingest(*told(kinds, 0, 6), *above, *ended(), other, below)
    rows = shown(tables.rounds, *COUNTS, "context_len")
    assert sorted(rows) == sorted([
        (ID, 0, 6, 0, 1, False, 19 if "debug" in kinds else None), (ID, 1, 3, 3, 4, False, 10),
        ("9", 0, 3, 1, 2, False, None),
    ])  # fmt: skip
    assert rejects == []
    assert shown(tables.requests, "rounds", "accepted_hist") == [(2, [1, 0, 0, 1, 0, 0, 0])]


def test_a_debug_line_of_the_next_request_is_its_own() -> None:
    begun = "0.09.100.000 D slot get_n_draft_: id  0 | task 7 | max possible draft: 22"
    tables, _ = ingest(*told(("debug",), 0, 3), *ended(2), begun, *told(("debug",), 3, 3))
    assert shown(tables.rounds, "request_id", "round_index") == [("9t80.00ms+2t900.00ms", 0), ("7", 0)]


@pytest.mark.parametrize("kinds", [k for k in SUBSETS if k != ("debug",)], ids="+".join)
@pytest.mark.parametrize("fewer", [0, 1], ids=["before #26320", "since"])
def test_a_replay_is_one_round(kinds: tuple[str, ...], fewer: int) -> None:
    draft = "0.00.900.000 D slot handle_last_: id  0 | task 7 | generate_draft: id=1, #tokens=9, #draft=3, pos_next=9"
    restores = {
        "trace": f"0.00.990.000 I {SLOT}accepted  1/ 3 draft tokens (restore checkpoint)",
        "debug": f"0.00.990.100 D {SLOT}restoring speculative checkpoint (pos_min = 0, pos_max = 8, size = 100)",
    }
    # Without debug lines the `added` ones are not there either.
    restored = [restores[k] for k in restores if k in kinds or (k == "debug" and "added" in kinds)]
    again = told(kinds, 2, 2)
    if "debug" in kinds and len(kinds) > 1:
        again[-1] = again[-1].replace("accepted 2/2", f"accepted {2 - fewer}/2")
    tables, rejects = ingest(draft, *restored, *again, *told(kinds, 0, 3))
    assert shown(tables.rounds, *COUNTS) == [
        ("7", 0, 3, 1, 2, False), ("7", 1, 2, 2, 1, True), ("7", 2, 3, 0, 1, False)
    ]  # fmt: skip
    assert rejects == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sampled=5, ids.size=0, n_draft=3", "broken round line"),
        ("sampled=5, ids.size=2, n_dr", "broken round line"),
        ("sampled=5, ids.size=5, n_draft=3", "accepted <= drafted does not hold"),
    ],
)
def test_a_broken_line_is_refused(text: str, reason: str) -> None:
    tables, rejects = ingest(f"{SLOT}add accepted tokens: {text}", *told(("added",), 1, 3))
    assert [(r.line, r.reason, r.excerpt) for r in rejects] == [(1, reason, None)]
    assert shown(tables.rounds, "drafted", "accepted") == [(3, 1)]


def test_no_token_of_the_answer_is_kept() -> None:
    tables, _ = ingest(*told(LINES, 1, 3), *ended())
    for frame in (tables.rounds, tables.requests):
        assert frame is not None
        assert "50256" not in frame.write_json()


@pytest.mark.skipif(not (RUNS / "fmt-debug").exists(), reason="the real runs are not beside the project")
def test_a_real_debug_log_has_the_same_rounds_without_its_trace_lines(tmp_path: Path) -> None:
    lines = gzip.decompress((RUNS / "fmt-debug" / "server.log.gz").read_bytes()).decode(errors="replace").split("\n")
    traced = [line for line in lines if " I slot" in line and "| accepted " in line]
    whole, bare = (ingest(*kept)[0].rounds for kept in (lines, [line for line in lines if line not in set(traced)]))
    assert whole is not None
    assert bare is not None
    assert whole.height == len(traced)
    columns = [*COUNTS, "context_len"]
    assert bare.select(columns).equals(whole.select(columns))
    assert whole.select(pl.col("drafted", "accepted").sum()).row(0) == (118, 28)
