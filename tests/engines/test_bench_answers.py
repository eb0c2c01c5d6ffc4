"""Answer files of Spec-Bench and EAGLE: turns, categories, baselines, lists that do not fit."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_source import ingest, reasons, shown

from tracelens.engines.base import JsonRecord
from tracelens.engines.eagle import ENGINE as EAGLE
from tracelens.engines.spec_bench import ENGINE as SPEC_BENCH
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as ingest_paths
from tracelens.lake.connection import connect

COUNTS = ("rounds", "drafted", "accepted", "emitted", "iterations", "accepted_hist", "output_tokens")
LENGTHS = [3, 1, 2, 4, 1, 1]
CANARY = "what a model wrote"
MODEL = "vicuna-7b-v1.3-sps-68m-float16-temp-0.0"


def answer(choice: dict[str, Any] | None = None, **changes: Any) -> str:
    base = {
        "index": 0, "turns": [CANARY, CANARY], "decoding_steps": [4, 2], "new_tokens": [10, 2],
        "wall_time": [0.5, 0.125], "accept_lengths": LENGTHS,
    }  # fmt: skip
    one = {k: v for k, v in (base | (choice or {})).items() if v is not None}
    value = {
        "question_id": 81, "category": "writing", "answer_id": "a", "model_id": MODEL, "choices": [one],
        "tstamp": 1_789_898_400.0,
    } | changes  # fmt: skip
    return json.dumps({k: v for k, v in value.items() if v is not None}) + "\n"


def eagle(choice: dict[str, Any] | None = None, **changes: Any) -> str:
    own = {"decoding_steps": None, "accept_lengths": None, "idxs": [3, 1]}
    return answer(own | (choice or {}), **({"category": None, "model_id": "m-ea-in-temperature-1.0"} | changes))


def test_turns_are_requests(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, answer(), "spec-bench")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [
        (4, None, 6, 10, 4, [1, 1, 1, 1], 10),
        (2, None, 0, 2, 2, [2], 2),
    ]
    about = ("request_id", "task_type", "temperature", "e2e_us", "tpot_us", "ts_end", "counts_basis")
    end = datetime(2026, 9, 20, 10)
    assert shown(tables.requests, *about) == [
        ("81.0.0", "writing", 0.0, 500_000, None, end, "derived"),
        ("81.0.1", "writing", 0.0, 125_000, None, end, "derived"),
    ]
    assert shown(tables.runs, "run_id", "model", "method", "role") == [(f"bench-{MODEL}", MODEL, "sps", "speculative")]
    assert tables.requests is not None
    assert CANARY not in str(tables.requests.rows())


CHAIN = {"idxs": [5], "new_tokens": [14], "wall_time": [0.5], "alpha": [4, 3, 1], "alpha_num": [6, 4, 3]}
SHAPE = ("rounds", "drafted", "accepted", "emitted", "accepted_hist", "num_speculative_tokens")


def test_a_chain_gives_acceptance_by_position(tmp_path: Path) -> None:
    """Of 6 rounds 2 accepted none, 1 one, 2 two and 1 all three."""
    tables, rejects = ingest(tmp_path, eagle(CHAIN), "eagle")
    assert rejects == []
    assert shown(tables.requests, *SHAPE) == [(6, 18, 8, 14, [2, 1, 2, 1], 3)]
    # Tokens behind the end of the turn were verified, and cut.
    assert shown(ingest(tmp_path, eagle(CHAIN | {"new_tokens": [12]}), "eagle")[0].requests, *SHAPE) == [
        (6, 18, 8, 12, [2, 1, 2, 1], 3)
    ]


@pytest.mark.parametrize(
    ("choice", "rows"),
    [
        # The last of two turns, both turns, and neither.
        ({"idxs": [1, 5], "new_tokens": [3, 14]}, [(2, None, 1, 3, None, None), (6, 18, 8, 14, [2, 1, 2, 1], 3)]),
        ({"idxs": [1, 3], "new_tokens": [4, 10]}, [(6, 18, 8, 14, [2, 1, 2, 1], 3)]),
        ({"idxs": [1, 1], "new_tokens": [4, 4]}, [(2, None, 2, 4, None, None)] * 2),
    ],
)
def test_a_chain_is_of_the_last_turn_or_of_all(tmp_path: Path, choice: dict[str, Any], rows: list[Any]) -> None:
    text = eagle(CHAIN | {"wall_time": [0.5, 0.5]} | choice)
    assert shown(ingest(tmp_path, text, "eagle")[0].requests, *SHAPE) == rows


@pytest.mark.parametrize(
    ("choice", "hist"),
    [
        ({"alpha": [4, 3, 1, 0, 0], "alpha_num": [6, 4, 3, 0, 0]}, [2, 1, 2, 1]),  # lists longer than the chain
        ({"alpha": [4, 0, 0], "alpha_num": [6, 4, 0], "new_tokens": [10]}, [2, 4, 0, 0]),  # never that far
        ({"alpha": [4, 3, 1], "alpha_num": [6, 6, 6]}, None),  # a tree: other branches are counted
        ({"alpha": [4, 5, 1], "alpha_num": [6, 4, 5]}, None),
        ({"alpha": [2, 1, 1], "alpha_num": [6, 2, 1]}, None),  # more tokens than were accepted
        ({"alpha": [], "alpha_num": []}, None),
        ({"alpha_num": None}, None),
    ],
)
def test_positions_count_where_they_fit_the_rounds(tmp_path: Path, choice: dict[str, Any], hist: Any) -> None:
    tables, rejects = ingest(tmp_path, eagle(CHAIN | choice), "eagle")
    assert rejects == []
    assert shown(tables.requests, "accepted_hist") == [(hist,)]


def test_positions_that_are_no_counts_are_refused(tmp_path: Path) -> None:
    for choice in ({"alpha": [1]}, {"alpha": [-1, 3, 1]}, {"alpha": "x"}):
        _, rejects = ingest(tmp_path, eagle(CHAIN | choice), "eagle")
        assert len(rejects) == 1


@pytest.mark.parametrize(
    "choice",
    [
        {"decoding_steps": None, "idxs": [3, 1]},  # EAGLE's index of the last round
        {"decoding_steps": None, "idxs": [4, 2]},  # the number of rounds under that name
        {"decoding_steps": [4, 1]},  # a counter that stops one short: the tokens tell where a turn ends
        {"decoding_steps": None},
    ],
)
def test_where_a_turn_ends(tmp_path: Path, choice: dict[str, Any]) -> None:
    tables, rejects = ingest(tmp_path, answer(choice), "spec-bench")
    assert rejects == []
    assert shown(tables.requests, "rounds", "accepted") == [(4, 6), (2, 0)]


def test_turns_that_nothing_parts_are_one_request(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, answer({"decoding_steps": [2, 1], "new_tokens": [9, 3]}), "spec-bench")
    assert rejects == []
    assert shown(tables.requests, "request_id", "rounds", "accepted", "output_tokens", "e2e_us") == [
        ("81.0.0", 6, 6, 12, 625_000)
    ]


def test_a_round_that_was_trimmed_to_nothing(tmp_path: Path) -> None:
    choice = {"decoding_steps": [3], "new_tokens": [5], "wall_time": [0.5], "accept_lengths": [3, 2, 0]}
    tables, _ = ingest(tmp_path, answer(choice), "spec-bench")
    assert shown(tables.requests, "rounds", "accepted", "emitted", "accepted_hist") == [(3, 3, 5, [1, 1, 1])]


def test_steps_without_lengths(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, answer({"accept_lengths": None}), "spec-bench")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(4, None, 6, 10, 4, None, 10), (2, None, 0, 2, 2, None, 2)]


def test_eagle_counts_its_rounds_from_nought(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, eagle({"alpha": [2, 1], "alpha_num": [4, 2]}), "eagle")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(4, None, 6, 10, 4, None, 10), (2, None, 0, 2, 2, None, 2)]
    assert shown(tables.requests, "temperature", "task_type") == [(1.0, None)] * 2
    assert shown(tables.runs, "method", "role") == [("ea", "speculative")]


@pytest.mark.parametrize(
    ("model", "role", "rounds"),
    [
        ("vicuna-7b-v1.3-vanilla-float16-temp-0.0", "baseline", 0),
        ("vicuna-7b-v1.3-pld-float16", "speculative", 3),  # a drafter that never hit
    ],
)
def test_a_baseline_says_so(tmp_path: Path, model: str, role: str, rounds: int) -> None:
    choice = {"decoding_steps": [3], "new_tokens": [3], "wall_time": [0.5], "accept_lengths": [1, 1, 1]}
    tables, _ = ingest(tmp_path, answer(choice, model_id=model), "spec-bench")
    assert shown(tables.runs, "role") == [(role,)]
    drafted = 0 if role == "baseline" else None
    assert shown(tables.requests, "rounds", "drafted", "accepted", "iterations", "emitted") == [
        (rounds, drafted, 0, 3, 3)
    ]


def test_a_name_alone_is_no_baseline(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, answer(model_id="llama-2-7b-base-eagle"), "spec-bench")
    assert shown(tables.runs, "role", "method") == [("speculative", "eagle")]


def test_runs_by_model_and_no_folders(tmp_path: Path) -> None:
    text = answer(model_id="/home/u/answers/m-medusa") + answer(question_id=82) + answer(question_id="q", model_id="z")
    tables, _ = ingest(tmp_path, text, "spec-bench")
    assert tables.runs is not None
    assert sorted(shown(tables.runs, "model", "run_id"), key=str) == [
        ("m-medusa", None),
        (MODEL, f"bench-{MODEL}"),
        ("z", "bench-z"),
    ]
    assert tables.requests is not None
    assert tables.requests["run_key"].n_unique() == 3


@pytest.mark.parametrize(
    ("text", "engine", "reason"),
    [
        (answer({"wall_time": [0.5]}), "spec-bench", "wall_time and new_tokens of different lengths"),
        (answer({"accept_lengths": [1, -1]}), "spec-bench", "accept_lengths: negative"),
        (answer({"accept_lengths": [1, 2**62]}), "spec-bench", "accept_lengths: longer than any draft"),
        (eagle({"new_tokens": [10, 2**62]}), "eagle", "new_tokens: out of range"),
        (answer({"wall_time": [2**31, 0]}), "spec-bench", "wall_time: out of range"),
        (answer({"wall_time": [-1, 0]}), "spec-bench", "wall_time: negative"),
        (eagle({"idxs": [3]}), "eagle", "rounds and new_tokens of different lengths"),
        (eagle({"idxs": [10, 1]}), "eagle", "new_tokens >= rounds does not hold"),
        (eagle({"new_tokens": "x"}), "eagle", "new_tokens: wrong type"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, engine: str, reason: str) -> None:
    tables, rejects = ingest(tmp_path, text, engine)
    assert reasons(rejects) == [reason]
    assert tables.requests is None


def test_categories_are_task_types_of_the_lake(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    other = answer(category="coding", question_id=121, model_id="vicuna-7b-v1.3-vanilla-float16-temp-0.0")
    path.write_text(answer() + other, encoding="utf-8")
    lake = tmp_path / "lake"
    ingest_paths([str(path)], lake, IngestOptions())
    with connect(lake, keep=True) as con:
        found = con.execute(
            "select task_type, run_id, sum(rounds), sum(accepted) from facts group by all order by all"
        ).fetchall()  # fmt: skip
    assert found == [
        ("coding", "bench-vicuna-7b-v1.3-vanilla-float16-temp-0.0", 6, 6),
        ("writing", f"bench-{MODEL}", 6, 6),
    ]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(["decoding_steps", "idxs", "new_tokens", "wall_time", "accept_lengths"]), _json),
    st.dictionaries(st.sampled_from(["question_id", "category", "model_id", "tstamp"]), _json, max_size=2),
    st.booleans(),
)
def test_any_values_are_rows_or_a_reject(choice: dict[str, Any], about: dict[str, Any], of_eagle: bool) -> None:
    value = json.loads((eagle if of_eagle else answer)())
    value["choices"][0] |= choice
    value |= about
    for engine in (EAGLE, SPEC_BENCH):
        parsed = engine.records([JsonRecord(1, 0, None, None, value)])
        assert parsed.claimed == (1 if parsed.rejects or parsed.frames else 0)
        assert len(parsed.rejects) <= 1
