"""vLLM's tables of forward times: draft and verify passes of a draft model, told apart by their sizes and numbers."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_lines import at, ingest, only, parsed_lines, shown

from tracelens.engines.vllm import ENGINE
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as ingest_paths
from tracelens.lake.connection import connect

DATA = Path(__file__).parent.parent / "data" / "vllm"
WORKER = "(Worker pid=6000) INFO 05-06 12:00:{:02d} [forward_context.py:388] "
START = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='target', speculative_config=SpeculativeConfig("
    "method='{}', model='draft', num_spec_tokens={}), tokenizer='target'"
)

Entry = tuple[int, int, float]


def start(method: str = "draft_model", k: int = 4, second: int = 0) -> str:
    return f"(EngineCore pid=9) INFO 05-06 12:00:{second:02d} [core.py:133] {START.format(method, k)}"


def stats(second: int, *table: Entry, who: str = WORKER) -> str:
    return f"{who.format(second)}Batchsize forward time stats (batchsize, count, median_time(ms)): {list(table)}"


def steps(b: int, k: int, n: int, times: tuple[float, float, float] = (12.67, 7.1, 4.84)) -> list[Entry]:
    """The entries of n decode steps of b requests."""
    later = [(b, n * (k - 1), times[2])] if k > 1 else []
    return [*later, (b * (k + 1), n, times[0]), (b * (k + 2), n, times[1])]


TIMES = ("ts_start", "ts_end", "steps", "running", "draft_us", "target_us")
WORKED = [(1, 88, 4.84), (5, 30, 12.67), (6, 30, 7.1)]


def test_the_worked_example() -> None:
    """One request, K 4: verify 12.67 ms, draft 7.1 + 3 * 4.84 = 21.62 ms a round (vllm.md 4e); half a step is open."""
    tables, rejects = ingest(start(), stats(17, *WORKED))
    row = only(tables.windows)
    assert row.pop("draft_ms_per_token") == pytest.approx(5.405)
    assert row == {
        "run_key": 1, "process": "Worker 6000", "source_line": 2, "surface": "vllm.batchsize_line", "steps": 30,
        "ts_end": at(17), "ts_basis": "absolute", "num_speculative_tokens": 4, "draft_us": 21_620, "target_us": 12_670,
        "time_basis": "mean", "running": 1,
    } | {"ts_basis": row["ts_basis"]}  # fmt: skip
    assert (rejects, tables.rounds, tables.requests) == ([], None, None)


def test_counts_are_of_the_whole_life_and_differenced() -> None:
    lines = [stats(10 + i, *steps(1, 4, n)) for i, n in enumerate((30, 50, 50, 75))]
    tables, _ = ingest(start(), *lines)
    assert shown(tables.windows, *TIMES) == [
        (None, at(10), 30, 1, 21_620, 12_670),
        (at(10), at(11), 20, 1, 21_620, 12_670),
        (at(12), at(13), 25, 1, 21_620, 12_670),
    ]


def test_a_clock_that_was_set_back_tells_no_length() -> None:
    tables, rejects = ingest(start(), stats(40, *steps(1, 4, 50)), stats(10, *steps(1, 4, 80)))
    assert shown(tables.windows, "ts_start", "ts_end", "window_us", "steps") == [
        (None, at(40), None, 50),
        (None, at(10), None, 30),
    ]
    assert rejects == []


def test_a_process_that_starts_anew_counts_from_zero() -> None:
    tables, _ = ingest(start(), stats(10, *steps(1, 4, 50)), stats(20, *steps(1, 4, 30)))
    assert shown(tables.windows, "ts_start", "ts_end", "steps") == [(None, at(10), 50), (None, at(20), 30)]


def test_processes_and_starts_count_apart() -> None:
    other = WORKER.replace("6000", "7000")
    lines = [
        stats(10, *steps(1, 4, 50)),
        stats(11, *steps(1, 4, 60), who=other),
        start(second=15),
        stats(20, *steps(1, 4, 70)),
    ]
    tables, _ = ingest(start(), *lines)
    assert shown(tables.windows, "run_key", "process", "steps") == [
        (1, "Worker 6000", 50),
        (1, "Worker 7000", 60),
        (2, "Worker 6000", 70),
    ]


def test_each_concurrency_has_a_window() -> None:
    """Sizes tell them apart, where none is shared: 1, 5, 6 and 3, 15, 18."""
    table = [*steps(1, 4, 100), *steps(3, 4, 40, (20.0, 10.0, 6.0))]
    tables, rejects = ingest(start(), stats(10, *table))
    assert shown(tables.windows, "running", "steps", "draft_us", "target_us") == [
        (1, 100, 21_620, 12_670),
        (3, 40, 28_000, 20_000),
    ]
    assert rejects == []


def test_sizes_that_two_concurrencies_share_are_left_out() -> None:
    """With K 4, five passes of 5 tokens draft for B = 5 and verify for B = 1: their numbers do not fit."""
    mixed: dict[int, int] = {}
    for size, n, _ in (*steps(1, 4, 100), *steps(5, 4, 60)):
        mixed[size] = mixed.get(size, 0) + n
    tables, rejects = ingest(start(), stats(10, *((size, n, 5.0) for size, n in mixed.items())))
    assert (tables.windows, rejects) == (None, [])  # no K fits: it is the surface that allows no figure


def test_k_1_has_no_further_passes() -> None:
    tables, _ = ingest(start(k=1), stats(10, *steps(2, 1, 40)))
    row = only(tables.windows)
    assert (row["running"], row["steps"], row["draft_us"], row["draft_ms_per_token"]) == (2, 40, 7_100, 7.1)


def test_a_few_passes_of_other_work_are_borne() -> None:
    """Prefills of other sizes, and their draft passes among those of one token."""
    table = [(1, 3 * 100 + 6, 4.84), (5, 102, 12.67), (6, 100, 7.1), (40, 2, 30.0), (41, 2, 20.0)]
    assert shown(ingest(start(), stats(10, *table))[0].windows, "steps", "draft_us") == [(102, 21_620)]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([stats(10, *WORKED)], "K is not known"),
        ([start(method="eagle"), stats(10, *WORKED)], "only a draft model's passes"),
        ([start(k=3), stats(10, *WORKED)], "sizes are not those"),
        (
            [start().replace("=4)", "=4, num_speculative_tokens_per_batch_size=[[1, 4, 4]])"), stats(10, *WORKED)],
            "K changes",
        ),
        ([start(), stats(10, *WORKED, who=WORKER.replace("Worker", "Worker_PP1_TP0"))], "pipeline stage"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_apart_gives_a_reason_and_no_row(lines: list[str], why: str) -> None:
    """Once a process: each table holds the ones before."""
    tables, rejects = ingest(*lines, lines[-1].replace("12:00:10", "12:00:20"))
    assert tables.windows is not None
    assert tables.windows.height == 0
    assert [(r.line, r.surface) for r in rejects] == [(len(lines) + 1, "vllm.batchsize_line")]
    assert why in rejects[0].reason


@pytest.mark.parametrize(
    "table",
    [
        [(5, 60, 10.0), (1, 90, 4.84)],  # EAGLE: draft and verify passes of one size
        [(8, 60, 10.0), (1, 90, 4.84)],  # CUDA graphs: 5 and 6 padded to 8
        [(1, 41, 354.22), (6, 14, 578.74), (20, 2, 741.86), (2, 2, 1489.15)],  # n-gram
        [(1, 18, 4.84), (5, 6, 12.67), (6, 6, 7.1)],  # too few to show anything
        [(1, 30, 4.84), (5, 30, 12.67), (6, 30, 7.1)],  # the chain is not K - 1 long
        [(1, 88, 4.84), (5, 30, float("nan")), (6, 30, 7.1)],
    ],
)
def test_tables_without_the_pattern_are_counted_and_allow_no_figure(table: list[Entry]) -> None:
    parsed = parsed_lines(start(), stats(10, *table))
    assert {s: f[0].height for s, f in parsed.frames.items()} == {"vllm.start": 1, "vllm.batchsize_mixed": 1}
    assert next(s for s in ENGINE.surfaces if s.name == "vllm.batchsize_mixed").gives == ()
    tables, rejects = ingest(start(), stats(10, *table))
    assert (tables.windows, rejects) == (None, [])


def test_tensor_parallel_ranks_count_once_and_data_parallel_ones_are_replicas() -> None:
    ranks = [
        WORKER.replace("Worker pid=6000", f"Worker_DP{d}_TP{t} pid={6000 + 2 * d + t}") for d in (0, 1) for t in (0, 1)
    ]
    tables, _ = ingest(start(), *(stats(10, *steps(1, 4, 30 + i), who=who) for i, who in enumerate(ranks)))
    assert shown(tables.windows, "replica", "process", "steps") == [
        ("0", "Worker_DP0_TP0 6000", 30),
        ("1", "Worker_DP1_TP0 6002", 32),
    ]


@pytest.mark.parametrize("cut", [1, 3, 12, 30, 52])
def test_a_table_that_was_cut_is_a_reject(cut: int) -> None:
    tables, rejects = ingest(start(), stats(10, *WORKED)[:-cut])
    assert tables.windows is None
    assert [(r.line, r.reason) for r in rejects] == [(2, "incomplete line: the table of forward times is not whole")]


def test_a_printed_line_that_was_shipped_twice_counts_once() -> None:
    line = stats(10, *WORKED)
    assert shown(ingest(start(), line, line)[0].windows, "source_line", "steps") == [(2, 30)]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(16, 5000), st.tuples(*[st.integers(1, 10**7)] * 3))
def test_times_of_any_concurrency_come_back(b: int, k: int, n: int, hundredths: tuple[int, int, int]) -> None:
    verify, first, later = (h / 100 for h in hundredths)
    tables, rejects = ingest(start(k=k), stats(10, *steps(b, k, n, (verify, first, later))))
    row = only(tables.windows)
    assert (row["running"], row["steps"], row["num_speculative_tokens"]) == (b, n, k)
    assert row["target_us"] == pytest.approx(verify * 1000, abs=1)
    assert row["draft_us"] == pytest.approx((first + (k - 1) * later) * 1000, abs=1)
    assert rejects == []


# ---------------------------------------------------------------- real captures (vLLM 0.32.0 on a CPU, toy models)
def lake_of(tmp_path: Path, name: str) -> Any:
    ingest_paths([str(DATA / name)], tmp_path / "lake", IngestOptions(tz="UTC", year=2026, jobs=1))
    return connect(tmp_path / "lake", keep=True)


def test_the_real_draft_model_run(tmp_path: Path) -> None:
    """The hook of that run measured 25.6 ms of drafting a round, sampling included."""
    with lake_of(tmp_path, "vllm-0.32.0-draft_model-batchsize.log.gz") as con:
        got = con.execute(
            "select steps, running, num_speculative_tokens, draft_us, target_us, ts_end from windows "
            "where surface = 'vllm.batchsize_line'"
        ).fetchall()
        assert got == [(30, 1, 4, 21_620, 12_670, datetime(2026, 11, 29, 11, 58, 17))]
        found = con.execute(
            "select draft_ms_per_token / (target_ms / time_rounds), batch_size from facts where draft_ms is not null"
        ).fetchall()
        assert found == [(pytest.approx(5.405 / 12.67), 1)]
        assert con.execute("select count(*) from rejects").fetchone() == (0,)
        # All lines are of the run that the start line opened.
        assert con.execute("select count(distinct run_id) from windows").fetchone() == (1,)


def test_the_real_n_gram_run_as_json(tmp_path: Path) -> None:
    """No drafter runs: its 25 tables hold verify and prefill passes alone, and no draft time is made of them."""
    with lake_of(tmp_path, "vllm-0.32.0-ngram-K5.jsonformat.log.gz") as con:
        surfaces, rejects, envelope = con.execute("select surfaces, rejects, envelope from sources").fetchone()
        counts = {"vllm.v1_line": 26, "vllm.engine_line": 48, "vllm.iteration_line": 88, "vllm.request_line": 12}
        assert (surfaces, rejects, envelope) == (counts | {"vllm.start": 1, "vllm.batchsize_mixed": 25}, 0, "json")
        told = con.execute("select count(draft_us), bool_and(ts_basis = 'absolute') from windows").fetchone()
        assert told == (0, True)
        found = con.execute("select ts_end from windows where source_line in (3, 4, 5) order by source_line").fetchall()
        times = [(25, 588_000), (26, 154_000), (26, 773_000)]
        assert found == [(datetime(2026, 11, 29, 11, 46, second, us),) for second, us in times]
