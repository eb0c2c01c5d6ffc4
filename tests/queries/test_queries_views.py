"""The views: what they hold, how requests are joined, and that grains never add up twice."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import duckdb
import pytest
from bare import bare, rows
from lakes import write_lake

DAY = dt.datetime(2026, 11, 1, 10, 30)


@pytest.fixture(scope="module")
def macros(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    return bare(write_lake(tmp_path_factory.mktemp("macros")))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("copy-t0.0-0018", "copy-t0.0-0018"),
        ("cmpl-copy-t0.0-0018-0", "copy-t0.0-0018"),
        ("cmpl-copy-t0.0-0018", "copy-t0.0-0018"),
        ("cmpl-taskA.1-0", "taskA.1"),
        ("cmpl-taskA.1-0-838b5265", "taskA.1"),
        ("cmpl-taskA.1", "taskA.1"),
        ("chatcmpl-tl-taskB-0", "tl-taskB-0"),
        ("chatcmpl-tl-taskB-0-8395499e", "tl-taskB-0"),
        ("cmpl-bench-5", "bench-5"),
        ("cmpl-bench-5-0", "bench-5"),
        ("cmpl-bench-5-0-0a1b2c3d", "bench-5"),
        ("cmpl-batch-1", "batch-1"),
        ("chatcmpl-0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
        ("plain-0123abcd", "plain-0123abcd"),
        ("3536840114397185", "3536840114397185"),
        ("", ""),
        (None, None),
    ],
)
def test_request_key(macros: duckdb.DuckDBPyConnection, given: str | None, key: str | None) -> None:
    macros.execute("set variable id = $1", [given])
    assert rows(macros, "select request_key(getvariable('id')::varchar) as key")[0]["key"] == key


def test_an_empty_lake_has_every_view(tmp_path: Path) -> None:
    con = bare(write_lake(tmp_path))
    for view in ("rounds", "windows", "requests", "runs", "rejects", "sources", "requests_joined", "facts", "strata",
                 "baseline_facts", "round_shapes"):  # fmt: skip
        assert rows(con, f"select count(*) as n from {view}") == [{"n": 0}]


def test_tables_have_milliseconds_weight_and_typed_dates(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        rounds=[{"ts": DAY, "draft_us": 1500, "accepted": 1}, {"draft_us": None, "weight": 2.0}],
        windows=[{"ts_end": DAY, "window_us": 10_000_000}],
        requests=[{"ts_end": DAY, "tpot_us": 2500.5}],
    )
    con = bare(lake)
    found = rows(con, "select draft_us, draft_ms, weight, date from rounds order by weight")
    assert found == [
        {"draft_us": 1500, "draft_ms": 1.5, "weight": 1.0, "date": dt.date(2026, 11, 1)},
        {"draft_us": None, "draft_ms": None, "weight": 2.0, "date": None},
    ]
    assert rows(con, "select window_ms from windows") == [{"window_ms": 10_000.0}]
    assert rows(con, "select tpot_ms from requests") == [{"tpot_ms": 2.5005}]


def test_a_date_filter_on_facts_reads_only_its_partitions(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, rounds=[{"ts": DAY + dt.timedelta(days=i), "drafted": 3} for i in range(5)])
    con = bare(lake, kept=False)
    plan = rows(con, "explain analyze select sum(drafted) from strata where date >= '2026-11-04'")[0]["explain_value"]
    assert re.search("Scanning Files: 2/[26]", plan)  # of all six, or of the two that an earlier pass had left


def test_two_surfaces_of_a_request_become_one_row(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        requests=[
            {"request_id": "cmpl-a.1", "surface": "vllm.response", "drafted": 8, "accepted": 3, "rounds": 2,
             "output_tokens": 6},
            {"request_id": "cmpl-a.1-0", "surface": "vllm.received", "temperature": 0.7, "top_p": 0.9,
             "output_tokens": 7, "source_id": "other", "run_id": "elsewhere"},
            {"request_id": "src#2", "surface": "vllm.received", "source_line": 2},
        ],
    )  # fmt: skip
    found = rows(bare(lake), "select * from requests_joined order by request_id")
    assert len(found) == 2
    one = found[0]
    assert (one["run_id"], one["surface"], one["accepted"]) == ("run", "vllm.response", 3)
    assert (one["temperature"], one["output_tokens"], one["conflicts"], one["records"]) == (0.7, 6, 1, 2)
    assert (one["conflicting"], found[1]["conflicting"]) == (["output_tokens"], [])


@pytest.mark.parametrize(("surface", "steps"), [("vllm.stage_line", "vllm.stage_line"),
                                                ("vllm.trace", "vllm.iteration_line")])  # fmt: skip
def test_steps_are_of_the_surface_that_times_the_phases_unless_a_profiler_did(
    tmp_path: Path, surface: str, steps: str
) -> None:
    phased = {"surface": surface, "steps": 1, "draft_us": 40, "target_us": 50, "step_us": 100}
    plain = [{"surface": "vllm.iteration_line", "steps": 1, "step_us": 60}] * 5
    con = bare(write_lake(tmp_path, windows=[phased, *plain]))
    assert rows(con, "select distinct drafts_from, targets_from, steps_from from grain_choice") == [
        dict.fromkeys(("drafts_from", "targets_from"), f"window {surface}") | {"steps_from": f"window {steps}"}
    ]
    lasted = 100 if steps == surface else 300
    assert rows(con, "select sum(draft_us) as draft_us, sum(step_us) as step_us from facts") == [
        {"draft_us": 40, "step_us": lasted}
    ]


def test_an_id_used_twice_stays_two_requests(tmp_path: Path) -> None:
    twice = [{"request_id": "retry-17", "surface": "rtp.access", "accepted": a, "rounds": 4} for a in (3, 5)]
    query = {"request_id": "retry-17", "surface": "rtp.query", "temperature": 0.5}
    found = rows(bare(write_lake(tmp_path, requests=[*twice, query])), "select accepted from requests_joined")
    assert sorted((r["accepted"] for r in found), key=str) == [3, 5, None]


def test_runs_with_the_same_ids_join_within_the_run(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        requests=[
            {"run_id": run, "request_id": "bench-0001", "surface": surface, **what}
            for run, t in (("k1", 0.0), ("k3", 1.0))
            for surface, what in (
                ("vllm.response", {"accepted": 2, "rounds": 2}),
                ("vllm.received", {"temperature": t}),
            )
        ],
    )
    found = rows(bare(lake), "select run_id, accepted, temperature from requests_joined order by run_id")
    assert found == [
        {"run_id": "k1", "accepted": 2, "temperature": 0.0},
        {"run_id": "k3", "accepted": 2, "temperature": 1.0},
    ]


def test_task_numbers_of_different_servers_are_not_one_request(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        requests=[
            {"run_id": "one", "engine": "llama.cpp", "request_id": "18", "surface": "llama.timing", "accepted": 1},
            {"run_id": "two", "engine": "llama.cpp", "request_id": "18", "surface": "llama.response", "accepted": 2},
        ],
    )
    assert len(rows(bare(lake), "select accepted from requests_joined")) == 2


MIXED = {
    "rounds": [
        {"ts": DAY, "request_id": "r1", "drafted": 4, "accepted": a, "emitted": a + 1, "surface": "vllm.detailed"}
        for a in (4, 2)
    ],
    "requests": [
        {"ts_end": DAY, "request_id": "r1", "surface": "vllm.response", "rounds": 2, "drafted": 8, "accepted": 6,
         "emitted": 8, "iterations": 2, "output_tokens": 9, "decode_us": 90_000}
    ],
    "windows": [
        {"ts_end": DAY, "surface": "vllm.v1_line", "rounds": 2, "drafted": 8, "accepted": 6,
         "accepted_per_pos": [2, 2, 1, 1], "draft_us": 500, "steps": 2},
        {"ts_end": DAY, "surface": "vllm.metrics", "rounds": 2, "drafted": 8, "accepted": 6},
    ],
}  # fmt: skip


def test_grains_of_one_run_are_never_added(tmp_path: Path) -> None:
    con = bare(write_lake(tmp_path, **MIXED))
    found = rows(con, "select sum(rounds) n, sum(plain_steps) p, sum(drafted) d, sum(accepted) a, sum(emitted) e,"
                      " sum(draft_us) t, sum(output_tokens) o, sum(decode_us) u from facts")[0]  # fmt: skip
    assert found == {"n": 2, "p": 0, "d": 8, "a": 6, "e": 8, "t": 500, "o": 9, "u": 90_000}


@pytest.mark.parametrize(
    ("tables", "grain"),
    [(("rounds", "requests", "windows"), "round"), (("requests", "windows"), "request"), (("windows",), "window")],
)
def test_the_finest_grain_that_holds_a_figure_gives_it(tmp_path: Path, tables: tuple[str, ...], grain: str) -> None:
    con = bare(write_lake(tmp_path, **{name: MIXED[name] for name in tables}))
    found = rows(con, "select grain, sum(accepted) a, sum(drafted) d from facts where accepted is not null group by 1")
    assert found == [{"grain": grain, "a": 6, "d": 8}]


def test_grains_are_chosen_run_by_run(tmp_path: Path) -> None:
    tables = {
        "rounds": [{"run_id": "fine", "drafted": 4, "accepted": 1}],
        "windows": [
            {"run_id": run, "rounds": 1, "drafted": 4, "accepted": 1} for run in ("fine", "coarse")
        ],
    }  # fmt: skip
    con = bare(write_lake(tmp_path, **tables))
    assert rows(con, "select sum(drafted) d, sum(accepted) a from facts") == [{"d": 8, "a": 2}]


def test_passes_without_a_draft_come_from_the_request(tmp_path: Path) -> None:
    """N-gram drafting: the arrays of a detailed response hold rounds with a draft only."""
    lake = write_lake(
        tmp_path,
        rounds=[{"request_id": "r1", "drafted": 3, "accepted": 1, "emitted": 2}],
        requests=[{"request_id": "r1", "rounds": 1, "iterations": 6, "drafted": 3, "accepted": 1, "emitted": 7}],
    )
    found = rows(
        bare(lake), "select sum(rounds) n, sum(plain_steps) p, sum(emitted) e, count(distinct unit) u from facts"
    )
    assert found == [{"n": 1, "p": 5, "e": 7, "u": 1}]


def test_plain_steps_follow_from_emitted_where_passes_are_not_logged(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, requests=[{"rounds": 4, "drafted": 8, "accepted": 5, "emitted": 12}])
    found = rows(bare(lake), "select rounds, plain_steps, emitted, emitted_drafted from facts")
    assert found == [{"rounds": 4, "plain_steps": 3, "emitted": 12, "emitted_drafted": 9}]


def test_rounds_learn_task_and_sampling_from_their_request(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        rounds=[{"request_id": "chatcmpl-sum.1-0a1b2c3d", "drafted": 3, "accepted": 1}],
        requests=[{"request_id": "chatcmpl-sum.1", "task_type": "summarize", "temperature": 0.2, "top_p": 1.0,
                   "run_id": "gateway"}],
        runs=[{"model": "m", "num_speculative_tokens": 3, "engine_version": "0.32.0"}],
    )  # fmt: skip
    found = rows(bare(lake), "select task_type, temperature, temperature_bucket, model, num_speculative_tokens k,"
                             " engine_version v, role from facts where grain = 'round'")  # fmt: skip
    assert found == [{"task_type": "summarize", "temperature": 0.2, "temperature_bucket": "(0, 0.3]", "model": "m",
                      "k": 3, "v": "0.32.0", "role": "speculative"}]  # fmt: skip


def test_a_joined_round_stays_one_row(tmp_path: Path) -> None:
    requests = [{"request_id": "reused-id", "task_type": t, "accepted": 1, "rounds": 1} for t in ("a", "b")]
    lake = write_lake(tmp_path, rounds=[{"request_id": "reused-id", "drafted": 3, "accepted": 1}], requests=requests)
    assert rows(bare(lake), "select count(*) n, sum(drafted) d from facts where grain = 'round'") == [{"n": 1, "d": 3}]


def test_window_times_are_sums_over_request_rounds(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        windows=[{"rounds": 40, "plain_steps": 0, "steps": 10, "drafted": 120, "accepted": 60, "draft_us": 50_000,
                  "step_us": 300_000, "time_basis": "sum"}],
    )  # fmt: skip
    sql = (
        "select draft_us / time_rounds as d, step_us / time_rounds as t, step_us * step_share as engine,"
        " draft_us / drafted_timed as per_token from facts"
    )
    found = rows(bare(lake), sql)[0]
    assert found["d"] == pytest.approx(5000)
    assert found["t"] == pytest.approx(30_000)
    assert found["engine"] == pytest.approx(300_000)
    assert found["per_token"] == pytest.approx(5000 / 3)


def test_baseline_and_forced_rows_stay_out_of_strata(tmp_path: Path) -> None:
    lake = write_lake(
        tmp_path,
        rounds=[
            {"run_id": "spec", "drafted": 3, "accepted": 1},
            {"run_id": "spec", "drafted": 3, "accepted": 3, "forced_acceptance": True},
            {"run_id": "plain", "drafted": 0, "step_us": 20_000},
        ],
        runs=[{"run_id": "plain", "role": "baseline"}],
    )
    con = bare(lake)
    assert rows(con, "select sum(drafted) d, sum(accepted) a from strata") == [{"d": 3, "a": 1}]
    assert rows(con, "select run_id, step_ms from baseline_facts") == [{"run_id": "plain", "step_ms": 20.0}]


def test_buckets_sort_as_text(tmp_path: Path) -> None:
    con = bare(write_lake(tmp_path))
    sizes = [1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025, 4000, 9000]
    found = rows(con, f"select batch_bucket_of(b) as bucket from (select unnest({sizes}) as b)")
    labels = [r["bucket"] for r in found]
    assert labels == sorted(labels)
    assert labels[:4] == ["0001", "0002", "0003-0004", "0005-0008"]
    lengths = [511, 512, 1024, 2048, 5000, 9000, 17_000, 33_000, 66_000, 132_000, 263_000, 525_000, 2_000_000]
    found = rows(con, f"select context_bucket_of(c) as bucket from (select unnest({lengths}) as c)")
    labels = [r["bucket"] for r in found]
    assert labels == sorted(labels)
    assert labels[0] == "< 0.5k"
    temperatures = [0.0, 0.3, 0.31, 0.7, 1.0, 1.1]
    found = rows(con, f"select temperature_bucket_of(t) as bucket from (select unnest({temperatures}) as t)")
    assert [r["bucket"] for r in found] == ["0", "(0, 0.3]", "(0.3, 0.7]", "(0.3, 0.7]", "(0.7, 1]", "> 1"]


MS = dt.timedelta(milliseconds=1)
AT = DAY + 7 * MS


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"ts_start": AT, "ts_first_token": AT + 200 * MS, "ts_end": AT + 1200 * MS},
         (200_000, 1_000_000, 1_200_000, 100_000.0, "derived")),
        # What the record tells stands before its stamps.
        ({"ts_start": AT, "ts_first_token": AT + 200 * MS, "ts_end": AT + 1200 * MS, "ttft_us": 190_000,
          "decode_us": 990_000, "e2e_us": 1_190_000, "tpot_us": 99_000.0, "tpot_basis": "derived"},
         (190_000, 990_000, 1_190_000, 99_000.0, "derived")),
        # A logged TPOT too: figures take the decode time first.
        ({"ts_first_token": AT + 200 * MS, "ts_end": AT + 1200 * MS, "tpot_us": 98_000.0, "tpot_basis": "logged"},
         (None, None, None, 98_000.0, "logged")),
        # Whole seconds are no times of tokens, neither of both nor of one.
        ({"ts_start": DAY, "ts_first_token": DAY + 1000 * MS, "ts_end": DAY + 3000 * MS},
         (None, None, None, None, None)),
        ({"ts_start": DAY, "ts_first_token": AT + 200 * MS, "ts_end": DAY + 3000 * MS},
         (None, None, None, None, None)),
        ({"ts_start": AT, "ts_end": AT + 1200 * MS}, (None, None, 1_200_000, None, None)),
        ({"ts_start": AT, "ts_first_token": AT + 200 * MS, "ts_end": AT + 1200 * MS, "error": True},
         (None, None, None, None, None)),
        ({"ts_first_token": AT + 1200 * MS, "ts_end": AT + 200 * MS}, (None, None, None, None, None)),
        ({"ts_first_token": AT + 200 * MS, "ts_end": AT + 1200 * MS, "output_tokens": 1},
         (None, 1_000_000, None, None, None)),
        ({"ts_first_token": AT + 200 * MS, "ts_end": AT + 1200 * MS, "output_tokens": None},
         (None, 1_000_000, None, None, None)),
    ],
)  # fmt: skip
def test_stamps_of_a_request_tell_its_times(tmp_path: Path, row: dict[str, object], told: tuple[object, ...]) -> None:
    con = bare(write_lake(tmp_path, requests=[{"output_tokens": 11, **row}]))
    columns = "ttft_us, decode_us, e2e_us, tpot_us, tpot_basis, tpot_ms"
    (found,) = con.execute(f"select {columns} from requests").fetchall()
    assert found == (*told, None if told[3] is None else told[3] / 1000)  # type: ignore[operator]
