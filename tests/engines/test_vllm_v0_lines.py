"""V0: the cumulative line and the stage times of one sampled step."""

from __future__ import annotations

import pytest
from vllm_lines import API, OLD, at, ingest, only, parsed_lines, shown, v0_line

WORKER = "(VllmWorkerProcess pid=7) "
COUNTS = ("source_line", "num_speculative_tokens", "rounds", "drafted", "accepted", "emitted", "v0_matched")


@pytest.mark.parametrize("doubled", [True, False], ids=["0.4.2", "0.5.4"])
def test_cumulative_counts_are_differenced(doubled: bool) -> None:
    tables, rejects = ingest(
        OLD.format(0) + v0_line(3, 60, 90, 80, doubled),
        OLD.format(5) + v0_line(3, 200, 300, 260, doubled),
        OLD.format(10) + v0_line(3, 200, 300, 260, doubled),  # nothing happened
        OLD.format(15) + v0_line(3, 203, 303, 262, doubled),
    )
    assert rejects == []
    assert shown(tables.windows, *COUNTS) == [
        (1, 3, 30, 90, 50, 80, 60),
        (2, 3, 70, 210, 110, 180, 140),
        (4, 3, 1, 3, 1, 2, 3),
    ]
    assert shown(tables.windows, "ts_start", "ts_end", "window_us") == [
        (None, at(0), None),
        (at(0), at(5), 5_000_000),
        (at(10), at(15), 5_000_000),
    ]
    assert shown(tables.windows, "surface", "rounds_basis", "counts_basis")[0] == ("vllm.v0_line", "derived", "derived")


def test_the_real_line_of_vllm_9539() -> None:
    line = (
        "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: "
        "0.598, Number of speculative tokens: 3, Number of accepted tokens: 8547, Number of draft tokens: 13311, "
        "Number of emitted tokens: 10616."
    )
    row = only(ingest(line)[0].windows)
    assert [row[c] for c in COUNTS] == [1, 3, 4437, 13311, 6179, 10616, 8547]
    assert row["emitted"] / (row["drafted"] / 3 * 4) == pytest.approx(0.598, abs=0.0005)  # as printed


def test_a_falling_counter_is_a_new_start() -> None:
    tables, _ = ingest(
        OLD.format(0) + v0_line(3, 200, 300, 260),
        OLD.format(5) + v0_line(3, 20, 30, 26),
        OLD.format(10) + v0_line(3, 40, 60, 52),
    )
    assert shown(tables.windows, *COUNTS)[1:] == [(2, 3, 10, 30, 16, 26, 20), (3, 3, 10, 30, 16, 26, 20)]
    assert shown(tables.windows, "ts_start") == [(None,), (None,), (at(5),)]


def test_another_k_is_a_new_start_each_time() -> None:
    tables, _ = ingest(
        OLD.format(0) + v0_line(5, 300, 500, 350),
        OLD.format(5) + v0_line(3, 400, 600, 500),
        OLD.format(10) + v0_line(5, 500, 700, 600),  # more than at first, and yet a third start
    )
    assert shown(tables.windows, "num_speculative_tokens", "drafted", "rounds") == [
        (5, 500, 100),
        (3, 600, 200),
        (5, 700, 140),
    ]


def test_a_start_line_opens_a_run_that_began_then() -> None:
    start = (
        "Initializing an LLM engine (v0.6.3) with config: model='/models/big', "
        "speculative_config=SpeculativeConfig(draft_model='/models/small', num_spec_tokens=3), tensor_parallel_size=4"
    )
    tables, _ = ingest(
        OLD.format(0) + v0_line(3, 60, 90, 80),
        OLD.format(10) + start,
        OLD.format(20) + v0_line(3, 80, 120, 100),  # higher than before: only the start tells that it is new
        OLD.format(25) + v0_line(3, 100, 150, 120),
    )
    assert shown(tables.windows, "run_key", "ts_start", "drafted") == [
        (0, None, 90),
        (1, at(10), 120),
        (1, at(20), 30),
    ]


def test_two_engines_in_one_file_have_their_own_counters() -> None:
    a, b = "(VllmWorkerProcess pid=1) " + OLD, "(VllmWorkerProcess pid=2) " + OLD
    tables, _ = ingest(
        a.format(0) + v0_line(3, 60, 90, 80),
        b.format(1) + v0_line(3, 6, 9, 8),
        a.format(5) + v0_line(3, 62, 93, 82),
        b.format(6) + v0_line(3, 8, 12, 10),
    )
    assert shown(tables.windows, "process", "drafted") == [
        ("VllmWorkerProcess 1", 90),
        ("VllmWorkerProcess 2", 9),
        ("VllmWorkerProcess 1", 3),
        ("VllmWorkerProcess 2", 3),
    ]


def test_drafts_of_uneven_length_tell_no_rounds() -> None:
    row = only(ingest(OLD.format(0) + v0_line(3, 60, 91, 80))[0].windows)
    assert (row["drafted"], row["emitted"]) == (91, 80)
    assert not {"rounds", "accepted", "rounds_basis"} & set(row)


def test_broken_identities_and_absurd_numbers() -> None:
    tables, rejects = ingest(
        OLD.format(0) + v0_line(3, 60, 90, 20),  # fewer emitted than rounds
        OLD.format(1) + v0_line(99_999_999_999, 60, 99_999_999_999, 20),
        OLD.format(2) + v0_line(3, 60, 2**63, 20),
    )
    assert [(r.line, r.reason) for r in rejects] == [
        (3, "incomplete line: no drafted"),
        (1, "rounds <= emitted <= rounds + drafted does not hold"),
    ]
    assert shown(tables.windows, "source_line", "num_speculative_tokens") == [(2, None)]


def test_cut_lines_are_refused() -> None:
    whole = v0_line(3, 60, 90, 80)
    for end in range(len("Speculative metrics: "), len(whole)):
        tables, rejects = ingest(OLD.format(0) + whole[:end])
        if end == whole.index("90,") + 3 and tables.windows is not None:
            pytest.fail("a cut V0 line is no V1 line")
        assert (tables.windows, [r.line for r in rejects]) == (None, [1]), whole[:end]


STAGES = (
    "SpecDecodeWorker stage times: average_time_per_proposal_tok_ms=4.96 scoring_time_ms=54.92 "
    "verification_time_ms=1.20"
)


@pytest.mark.parametrize("prefix", ["", OLD, WORKER + OLD, API])
def test_stage_times_are_a_sample_of_one_step(prefix: str) -> None:
    tables, rejects = ingest(prefix.format(50) + STAGES)
    expected = {
        "run_key": 0, "source_line": 1, "surface": "vllm.stage_times", "steps": 1, "time_basis": "sample",
        "draft_ms_per_token": 4.96, "target_us": 54_920, "sample_us": 1_200, "ts_basis": "none",
    }  # fmt: skip
    if prefix:
        expected |= {"ts_end": at(50), "ts_basis": "year_inferred"}
    if "(" in prefix:
        expected["process"] = "APIServer 1" if "API" in prefix else "VllmWorkerProcess 7"
    assert (only(tables.windows), rejects) == (expected, [])


def test_cut_or_absurd_stage_times() -> None:
    for end in range(len("SpecDecodeWorker stage times: "), len(STAGES)):
        assert ingest(STAGES[:end])[0].windows is None, STAGES[:end]
    huge = STAGES.replace("54.92", "9" * 30 + ".00")
    row = only(ingest(huge)[0].windows)
    assert "target_us" not in row
    assert ingest(STAGES.replace("4.96", "nan"))[0].windows is None


def test_lines_count_as_claimed_only_when_they_are_used() -> None:
    parsed = parsed_lines(OLD.format(0) + v0_line(3, 60, 90, 80), OLD.format(5) + STAGES, OLD.format(5) + STAGES[:-9])
    assert (parsed.claimed, len(parsed.rejects)) == (2, 1)
