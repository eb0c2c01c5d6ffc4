"""llama.cpp: rounds of both log levels, replays, several slots, responses, slots."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens
from tests.engines import whole_source
from tests.engines.llama_cpp_runs import ingest, rows, shown
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as ingest_all
from tracelens.lake.connection import connect

SLOT = "slot   operator(): id  0 | task 29 | "
# One round of `-v` with LLAMA_TRACE=1 and its twin, as in our own run fmt-debug, and the draft of a second one.
DEBUG = [
    "0.01.274.739 D slot get_n_draft_: id  0 | task 29 | max possible draft: 22",
    "0.01.281.775 D slot handle_last_: id  0 | task 29 | generate_draft: id=131, #tokens=9, #draft=3, pos_next=9",
    f"0.01.285.660 I {SLOT}accepted  1/ 3 draft tokens",
    f"0.01.285.726 D {SLOT}add accepted tokens: sampled=227, ids.size=2, n_draft=3",
    f"0.01.288.161 D {SLOT}accepted 1/3 draft tokens, new n_tokens = 11",
    "0.01.288.269 D slot get_n_draft_: id  0 | task 29 | max possible draft: 20",
    "0.01.291.814 D slot handle_last_: id  0 | task 29 | generate_draft: id=227, #tokens=11, #draft=3, pos_next=11",
]


def ends(task: int, tokens: int, accepted: int, drafted: int) -> list[str]:
    head = f"0.09.000.000 I slot print_timing: id  0 | task {task} | "
    return [
        f"{head}prompt eval time =      80.00 ms /     9 tokens (    2.00 ms per token,   500.00 tokens per second)",
        f"{head}       eval time =     900.00 ms / {tokens:5d} tokens (   30.00 ms per token,    33.33 t/s)",
        f"{head}draft acceptance = 0.5 ({accepted:5d} accepted / {drafted:5d} generated)",
        f"{head}stop processing: n_tokens = {8 + tokens}, truncated = 0",
    ]


def test_debug_and_trace_line_of_one_round_are_one_row() -> None:
    tables, rejects = ingest(*DEBUG, f"0.01.294.800 I {SLOT}accepted  0/ 3 draft tokens", *ends(29, 4, 1, 6))
    assert rejects == []
    shared = {
        "run_key": 0, "surface": "llama.round_line", "request_id": "9t80.00ms+4t900.00ms", "drafted": 3,
        "is_replay": False, "step_share": 1.0, "batch_size": 1, "ts_basis": "relative", "timing_basis": "host",
    }  # fmt: skip
    assert rows(tables.rounds) == [
        shared
        | {
            "source_line": 3, "round_index": 0, "accepted": 1, "emitted": 2, "draft_us": 7036, "target_us": 3885,
            "context_len": 9, "step_id": "3",
        },
        shared
        | {
            "source_line": 8, "round_index": 1, "accepted": 0, "emitted": 1, "draft_us": 3545, "target_us": 2986,
            "context_len": 11, "step_id": "8", "step_us": 9140,
        },
    ]  # fmt: skip
    assert shown(tables.requests, "rounds", "accepted_hist", "emitted") == [(2, [1, 1, 0, 0], 3)]


def test_debug_lines_alone() -> None:
    lines = [line for line in DEBUG if " I " not in line]
    tables, _ = ingest(*lines)
    assert shown(tables.rounds, "request_id", "drafted", "accepted", "emitted", "context_len") == [("29", 3, 1, 2, 9)]


def test_plain_steps_of_debug() -> None:
    plain = f"0.01.300.000 D {SLOT}slot decode token, id=8068, n_ctx = 4096, n_tokens = 24, truncated = 0"
    tables, _ = ingest(f"0.01.285.660 I {SLOT}accepted  1/ 3 draft tokens", plain)
    assert shown(tables.rounds, "drafted", "accepted", "emitted", "context_len") == [(3, 1, 2, None), (0, 0, 1, 24)]


def test_a_replayed_round_is_marked_and_costs_its_time() -> None:
    lines = [
        f"0.01.000.000 I {SLOT}accepted  3/ 3 draft tokens",
        f"0.01.020.000 I {SLOT}accepted  1/ 3 draft tokens (restore checkpoint)",
        f"0.01.035.000 I {SLOT}accepted  2/ 2 draft tokens",
        f"0.01.055.000 I {SLOT}accepted  0/ 3 draft tokens",
    ]
    tables, _ = ingest(*lines, *ends(29, 9, 4, 9))
    columns = ("drafted", "accepted", "emitted", "is_replay", "step_us", "rollback_us", "context_len")
    assert shown(tables.rounds, *columns) == [
        (3, 3, 4, False, None, None, 9),
        (3, 1, 2, False, 20000, None, 13),
        (2, 2, 1, True, 15000, 15000, 15),
        (3, 0, 1, False, 20000, None, 16),
    ]
    # The request's counts leave the replay out (since llama.cpp#26320), and so does its histogram.
    assert shown(tables.requests, "rounds", "accepted_hist") == [(3, [1, 1, 0, 1])]


def test_a_restore_that_only_debug_tells() -> None:
    restore = f"0.01.290.000 D {SLOT}restoring speculative checkpoint (pos_min = 0, pos_max = 8, size = 1.000 MiB)"
    tables, rejects = ingest(*DEBUG[:2], restore, f"0.01.300.000 D {SLOT}accepted 2/2 draft tokens, new n_tokens = 12")
    assert shown(tables.rounds, "drafted", "accepted", "emitted", "is_replay") == [(3, 1, 2, False), (2, 2, 1, True)]
    assert rejects == []
    _, rejects = ingest(restore)
    assert [r.reason for r in rejects] == ["restored checkpoint without its draft or its replay"]


def test_rounds_of_several_slots_share_a_step() -> None:
    def line(slot: int, task: int, us: int) -> str:
        return f"0.01.000.{us:03d} I slot   operator(): id  {slot} | task {task} | accepted  1/ 3 draft tokens"

    launch = "0.01.000.150 I slot launch_slot_: id  2 | task 12 | processing task, is_child = 0"
    tables, _ = ingest(line(0, 10, 1), line(1, 11, 2), line(0, 10, 101), line(1, 11, 102), launch, line(0, 10, 201))
    columns = ("request_id", "round_index", "step_id", "step_share", "batch_size", "has_prefill")
    assert shown(tables.rounds, *columns) == [
        ("10", 0, "1", 0.5, 2, None), ("11", 0, "1", 0.5, 2, None),
        ("10", 1, "3", 0.5, 2, None), ("11", 1, "3", 0.5, 2, None),
        ("10", 2, "6", 1.0, 1, True),
    ]  # fmt: skip


def test_gaps_with_plain_steps_in_them_are_no_times() -> None:
    lines = [f"0.01.0{i}0.000 I {SLOT}accepted  1/ 3 draft tokens" for i in range(3)]
    whole = shown(ingest(*lines, *ends(29, 8, 3, 9))[0].rounds, "step_us", "context_len", "emitted")
    assert whole == [(None, 9, 2), (10000, 11, 2), (10000, 13, 2)]
    gaps = shown(ingest(*lines, *ends(29, 20, 3, 9))[0].rounds, "step_us", "context_len", "emitted")
    assert gaps == [(None, None, 2)] * 3
    cut = shown(ingest(*lines, *ends(29, 6, 3, 9))[0].rounds, "emitted")
    assert cut == [(2,), (2,), (1,)]


def test_a_task_number_that_comes_again_is_another_request() -> None:
    line = f"{SLOT}accepted  1/ 3 draft tokens"
    tables, _ = ingest(line, *ends(29, 3, 1, 3), line, line, *ends(29, 5, 2, 6))
    assert shown(tables.rounds, "request_id", "round_index") == [
        ("9t80.00ms+3t900.00ms", 0), ("9t80.00ms+5t900.00ms", 0), ("9t80.00ms+5t900.00ms", 1)
    ]  # fmt: skip


def test_json_log_has_its_clock_in_the_envelope() -> None:
    tables, _ = ingest(f"{SLOT}accepted  1/ 3 draft tokens", f"{SLOT}accepted  1/ 3 draft tokens", stamp="250000000")
    assert shown(tables.rounds, "ts", "ts_basis") == [(None, "relative")] * 2


def test_a_line_behind_one_without_its_end() -> None:
    unended = "0.00.970.900 D No parser definition detected, assuming pure content parser."
    text = f"{unended}{unended}0.00.971.360 I {SLOT}accepted  1/ 3 draft tokens"
    assert shown(ingest(text)[0].rounds, "drafted", "accepted") == [(3, 1)]


TIMINGS = {
    "cache_n": 8, "prompt_n": 1, "prompt_ms": 7.508, "predicted_n": 60, "predicted_ms": 291.173, "draft_n": 109,
    "draft_n_accepted": 21,
}  # fmt: skip


def test_response_with_timings() -> None:
    body = {
        "choices": [{"finish_reason": "stop", "message": {"content": "private"}}],
        "id": "chatcmpl-x",
        "model": "/mnt/someone/m.gguf",
        "timings": TIMINGS,
    }
    tables, rejects = ingest({"task_type": "chat", "temperature": 0.7, "response": body})
    assert rejects == []
    assert rows(tables.requests) == [
        {
            "source_line": 1, "surface": "llama.timings", "request_id": "1t7.51ms+60t291.17ms", "task_type": "chat",
            "model": "m.gguf", "temperature": 0.7, "prompt_tokens": 9, "cached_tokens": 8, "output_tokens": 60,
            "drafted": 109, "accepted": 21, "emitted": 59, "ttft_us": 7508, "decode_us": 291173, "e2e_us": 298681,
            "tpot_us": 291173 / 59, "tpot_basis": "derived", "counts_basis": "logged", "finish_reason": "stop",
            "ts_basis": "none",
        }
    ]  # fmt: skip


CREATED = 1_790_000_000
BODY = {"created": CREATED, "id": "chatcmpl-x", "choices": [{"finish_reason": "stop"}], "timings": TIMINGS}
ENDED = dt.datetime(2026, 9, 21, 14, 13, 20)


def test_created_is_the_end_of_a_response() -> None:
    tables, _ = ingest({"response": BODY, "created": 1})  # a client's own key is none of the server's
    us = dt.timedelta(microseconds=1)
    assert shown(tables.requests, "ts_end", "ts_basis", "ts_first_token", "ts_start") == [
        (ENDED, "absolute", ENDED - 291_173 * us, ENDED - 298_681 * us)
    ]


def test_created_of_a_stream_is_that_of_its_last_chunk() -> None:
    chunks = stream([(1, 0.0, 0, 0), (4, 9.0, 3, 2), (5, 18.0, 6, 2)])
    tables, _ = ingest(*[chunk | {"created": CREATED - 9 + 3 * i} for i, chunk in enumerate(chunks, 1)])
    assert shown(tables.requests, "ts_end", "output_tokens") == [(ENDED, 5)]


@pytest.mark.parametrize("created", [None, True, 0, -CREATED, 3, "soon", float(CREATED), 10**10, CREATED * 1000])
def test_what_is_no_time_of_a_response(created: object) -> None:
    tables, rejects = ingest(BODY | {"created": created})
    assert rejects == []
    assert shown(tables.requests, "ts_end", "ts_basis") == [(None, "none")]


def test_created_of_another_server_with_timings_is_not_known_to_be_the_end() -> None:
    tables, _ = ingest(BODY | {"timings": TIMINGS | {"draft_kind": "mtp", "draft_rounds": 38}})
    assert shown(tables.requests, "ts_end", "rounds") == [(None, 38)]


def test_a_stamp_of_the_envelope_stands_before_created() -> None:
    tables, _ = ingest(BODY, stamp="2026-09-21T14:13:21.250Z")
    assert shown(tables.requests, "ts_end") == [(ENDED + dt.timedelta(seconds=1.25),)]


def test_a_response_with_a_time_is_still_the_request_of_the_log(tmp_path: Path) -> None:
    head = "0.09.000.000 I slot print_timing: id  0 | task 3 | "
    (tmp_path / "server.log").write_text(
        f"{head}prompt eval time =       7.51 ms /     1 tokens (    7.51 ms per token,   133.19 tokens per second)\n"
        f"{head}       eval time =     291.17 ms /    60 tokens (    4.94 ms per token,   202.63 tokens per second)\n"
        f"{head}draft acceptance = 0.19266 (   21 accepted /   109 generated), mean len =  1.55\n"
    )
    (tmp_path / "answers.jsonl").write_text(json.dumps(BODY) + "\n")
    lake = tmp_path / "lake"
    ingest_all([str(tmp_path / name) for name in ("server.log", "answers.jsonl")], lake, IngestOptions())
    with connect(lake) as con:
        found = con.execute("select count(*), sum(accepted) from requests").fetchall()
    figures = tracelens.open(lake).report().total.figures
    assert (found, figures["requests"]) == ([(2, 42)], 1)


def test_response_without_a_draft_says_nothing_of_speculation() -> None:
    plain = {k: v for k, v in TIMINGS.items() if not k.startswith("draft")}
    tables, _ = ingest(plain)
    assert shown(tables.requests, "drafted", "accepted", "emitted", "output_tokens") == [(None, None, None, 60)]


def test_rounds_that_mlx_vlm_adds_to_the_object() -> None:
    tables, _ = ingest({"timings": TIMINGS | {"draft_kind": "mtp", "draft_rounds": 38}})
    assert shown(tables.requests, "rounds", "drafted", "accepted", "accepted_hist") == [(38, 109, 21, None)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"draft_n": -1}, "draft_n: negative"),
        ({"draft_n": "many"}, "draft_n: wrong type"),
        ({"predicted_n": 1.5}, "predicted_n: not a whole number"),
        ({"predicted_ms": float("nan")}, "predicted_ms: not a finite number"),
        ({"prompt_ms": -3.0}, "prompt_ms: negative"),
    ],
)
def test_broken_timings(change: dict[str, Any], reason: str) -> None:
    tables, rejects = ingest({"timings": TIMINGS | change})
    assert [r.reason for r in rejects] == [reason]
    assert tables.requests is None


def stream(states: list[tuple[int, float, int, int]]) -> list[dict[str, Any]]:
    """Chunks of one stream from (predicted_n, predicted_ms, draft_n, draft_n_accepted)."""
    names = ("predicted_n", "predicted_ms", "draft_n", "draft_n_accepted")
    prompt = {"prompt_n": 5, "prompt_ms": 9.5}
    return [
        {"stop": i == len(states), "timings": prompt | dict(zip(names, state, strict=True))}
        for i, state in enumerate(states, 1)
    ]


def test_stream_with_timings_per_token_tells_its_rounds() -> None:
    states = [
        (1, 0.0, 0, 0),
        (2, 9.0, 3, 2),
        (3, 9.0, 3, 2),
        (4, 9.0, 3, 2),
        (5, 18.0, 6, 2),
        (6, 25.0, 6, 2),
        (6, 25.0, 6, 2),
    ]
    tables, _ = ingest(*stream(states))
    columns = ("source_line", "output_tokens", "drafted", "accepted", "rounds", "accepted_hist", "counts_basis")
    assert shown(tables.requests, *columns) == [(7, 6, 6, 2, 2, [1, 0, 1], "exact")]


def test_server_sent_events_as_a_client_saves_them(tmp_path: Path) -> None:
    chunks = stream([(1, 0.0, 0, 0), (4, 9.0, 3, 2), (5, 18.0, 6, 2), (5, 18.0, 6, 2)])
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    tables, rejects = whole_source.ingest(tmp_path, text, "llama.cpp", "stream.txt")
    assert rejects == []
    assert shown(tables.requests, "output_tokens", "drafted", "accepted", "accepted_hist") == [(5, 6, 2, [1, 0, 1])]


def test_stream_with_held_back_text_tells_its_totals_only() -> None:
    tables, _ = ingest(*stream([(1, 0.0, 0, 0), (3, 9.0, 3, 2), (5, 18.0, 6, 2), (5, 18.0, 6, 2)]))
    assert shown(tables.requests, "drafted", "accepted", "rounds") == [(6, 2, None)]


def test_slots() -> None:
    slot = {"n_ctx": 2048, "params": {"speculative.types": "none,draft-simple"}, "prompt": "private"}
    polled = [slot | {"id": i, "is_processing": i == 0, "id_task": 7, "n_prompt_tokens": 512 * i} for i in (0, 1)]
    tables, _ = ingest(*polled, *polled, {"is_processing": 3, "id_task": 1})
    columns = ("source_line", "surface", "running", "kv_cache_usage", "method", "drafted")
    assert shown(tables.windows, *columns) == [(i, "llama.slots", 1, 0.125, "draft-simple", None) for i in (1, 3)]


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=4,
)
_KEYS = [
    *TIMINGS,
    "draft_rounds",
    "timings",
    "choices",
    "id",
    "model",
    "stop",
    "is_processing",
    "id_task",
    "response",
    "params",
    "n_ctx",
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=8), max_size=4), st.booleans())
def test_hostile_records_never_raise(values: list[dict[str, Any]], whole: bool) -> None:
    ingest(*[{"timings": TIMINGS | value} if whole else value for value in values])
