"""Every query runs in a bare DuckDB after two lines, and says what the model says."""

from __future__ import annotations

import datetime as dt
import random
import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from bare import QUERIES, bare, rows, total
from lakes import write_lake

from tracelens.model.acceptance import hazards
from tracelens.model.intervals import two_way_variance

NAMES = sorted(p.stem for p in QUERIES.glob("*.sql") if p.stem != "views")
DAY = dt.datetime(2026, 11, 1, 10)


def traffic(seed: int = 1) -> list[dict[str, Any]]:
    """Two tasks with planted acceptance .8 and .5, drafts of 5 and 3, batches of 4 that share their steps."""
    rng = random.Random(seed)
    found = []
    for task, p in (("code", 0.8), ("chat", 0.5)):
        for i in range(40):
            for j in range(rng.randint(5, 30)):
                d = 5 if rng.random() < 0.9 else 3
                a = next((x for x in range(d) if rng.random() >= p), d)
                found.append(
                    {"ts": DAY, "request_id": f"{task}-{i}", "task_type": task, "temperature": 0.0, "top_p": 1.0,
                     "round_index": j, "drafted": d, "accepted": a, "emitted": a + 1, "draft_us": 7000 * d,
                     "target_us": 18_000, "step_us": 60_000 + hash((task, i // 4, j)) % 5000,
                     "step_id": f"{task}{i // 4}-{j}", "step_share": 0.25, "batch_size": 4}
                )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    return bare(write_lake(tmp_path_factory.mktemp("empty")))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    lake = write_lake(
        tmp_path_factory.mktemp("filled"),
        rounds=traffic(),
        requests=[{"request_id": "code-1", "ts_end": DAY, "output_tokens": 10, "decode_us": 200_000}],
        sources=[{"name": "a.log", "rejects": 1}],
        rejects=[{"source_id": "src", "reason": "cut"}],
    )
    return bare(lake)


@pytest.mark.parametrize("name", NAMES)
def test_every_query_runs_on_an_empty_lake(empty: duckdb.DuckDBPyConnection, name: str) -> None:
    rows(empty, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_query_runs_and_has_a_header(filled: duckdb.DuckDBPyConnection, name: str) -> None:
    assert rows(filled, name)
    text = (QUERIES / f"{name}.sql").read_text(encoding="utf-8")
    for word in ("-- Question:", "-- Inputs:", "-- Output", "-- Basis:"):
        assert word in text
    assert text == text.strip() + "\n"
    assert all(len(line) <= 120 for line in text.splitlines())


def rounded(value: Any) -> str:
    """Threads add up in any order: the last digits of a number say nothing."""
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda m: f"{float(m[0]):.9g}", repr(value))


@pytest.mark.long
def test_views_of_views_give_what_tables_of_them_do(filled: duckdb.DuckDBPyConnection) -> None:
    """As a reader has them, nothing is a table."""
    lake = filled.execute("select getvariable('lake')").fetchall()[0][0]
    con = bare(Path(lake), kept=False)
    for name in ("alpha", "rollback"):
        assert rounded(rows(con, name)) == rounded(rows(filled, name))


def test_the_grouping_is_one_view(tmp_path: Path) -> None:
    con = bare(write_lake(tmp_path, rounds=traffic()))
    con.execute(
        "create or replace view strata as select {'task_type': task_type, 'drafted': drafted} as stratum,"
        " {'task_type': task_type} as traffic, * from facts"
    )
    found = rows(con, "alpha")
    assert [r["stratum"] for r in found] == [
        {"task_type": t, "drafted": d} for t in ("chat", "code") for d in (3, 5)
    ] + [None]  # fmt: skip
    assert sum(r["drafted"] for r in found[:-1]) == found[-1]["drafted"]


def test_the_total_is_pooled_not_averaged(tmp_path: Path) -> None:
    data = traffic()
    found = total(bare(write_lake(tmp_path, rounds=data)), "alpha")
    assert found["draft_accept_ratio"] == pytest.approx(
        sum(r["accepted"] for r in data) / sum(r["drafted"] for r in data)
    )
    assert found["tau_verified"] == found["tau_drafted"] == pytest.approx(found["tau_committed"])
    assert found["terminal_overcount"] == 0
    assert found["requests"] == 80


def test_hazards_agree_with_the_model(tmp_path: Path) -> None:
    data = traffic()
    found = [r for r in rows(bare(write_lake(tmp_path, rounds=data)), "hazards") if r["stratum"] is None]
    model = hazards([r["accepted"] for r in data], [r["drafted"] for r in data])
    assert [r["hazard"] for r in found] == pytest.approx(list(model.hazard))
    assert [r["survival"] for r in found] == pytest.approx(list(model.survival))
    assert [r["at_risk"] for r in found] == list(model.at_risk)
    assert all(r["log_survival_var"] > 0 for r in found)


HIST = {"rounds": 43, "drafted": 129, "accepted": 10, "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    "tables",
    [
        {"requests": [{**HIST, "accepted_hist": [39, 1, 0, 3]}]},
        {"windows": [{**HIST, "accepted_per_pos": [4, 3, 3]}]},
        {"rounds": [{"drafted": 3, "accepted": a} for a, n in enumerate((39, 1, 0, 3)) for _ in range(n)]},
    ],
    ids=["histogram", "per position", "rounds"],
)
def test_o1_comes_out_of_every_grain(tmp_path: Path, tables: dict[str, Any]) -> None:
    con = bare(write_lake(tmp_path, **tables))
    found = total(con, "alpha")
    assert found["draft_accept_ratio"] == pytest.approx(0.0775194, abs=5e-8)
    assert found["tau_verified"] == pytest.approx(1.2325581, abs=5e-8)
    assert found["token_accept_prob"] == pytest.approx(0.2)
    lengths = [r for r in rows(con, "rollback") if r["stratum"] is None]
    assert [(r["rollback_len"], r["rounds"]) for r in lengths] == [(0, 3), (1, 0), (2, 1), (3, 39)]
    near = total(con, "near_k")
    assert near["near_k_round_share"] == pytest.approx(40 / 43)
    assert near["near_k_strict_share"] == pytest.approx(39 / 43)
    assert near["near_k_iid_share"] == pytest.approx(1 - 0.2**2)


def test_per_position_counts_of_mixed_lengths_give_no_probability(tmp_path: Path) -> None:
    window = {"rounds": 10, "drafted": 25, "accepted": 9, "accepted_per_pos": [5, 3, 1], "num_speculative_tokens": 3}
    con = bare(write_lake(tmp_path, windows=[window]))
    found = total(con, "alpha")
    assert found["draft_accept_ratio"] == pytest.approx(0.36)
    assert found["token_accept_prob"] is None
    assert rows(con, "hazards") == []


def test_near_k_takes_its_variables(tmp_path: Path) -> None:
    con = bare(write_lake(tmp_path, rounds=[{"drafted": 4, "accepted": a} for a in (0, 1, 2, 4)]))
    assert total(con, "near_k")["near_k_round_share"] == 0.5
    con.execute("set variable near_k_delta = 0")
    assert total(con, "near_k")["near_k_round_share"] == 0.25
    con.execute("set variable near_k_delta = 2")
    assert total(con, "near_k")["near_k_round_share"] == 0.75


def test_engine_time_counts_a_step_once(tmp_path: Path) -> None:
    step = {"step_id": "1", "step_share": 0.5, "draft_us": 10_000, "step_us": 40_000, "drafted": 4}
    con = bare(write_lake(tmp_path, rounds=[{**step, "request_id": "a", "accepted": 0},
                                            {**step, "request_id": "b", "accepted": 4}]))  # fmt: skip
    found = total(con, "near_k")
    assert found["near_k_draft_ms"] == 5.0
    assert found["near_k_step_ms"] == 20.0
    assert found["near_k_draft_share"] == 0.5
    assert total(con, "rho")["draft_ms_per_token"] == 2.5


def test_step_time_variance_is_clustered_both_ways(tmp_path: Path) -> None:
    data = traffic()
    found = total(bare(write_lake(tmp_path, rounds=data)), "rho")
    step = np.array([r["step_us"] / 1000 for r in data])
    expected = two_way_variance(step, np.ones(step.size), [r["request_id"] for r in data], [r["step_id"] for r in data])
    assert expected is not None
    assert found["round_cost_relvar"] == pytest.approx(expected / step.mean() ** 2)
    assert found["step_ms"] == pytest.approx(step.mean())


def test_prefill_steps_stay_out_of_the_means(tmp_path: Path) -> None:
    base = {"drafted": 4, "accepted": 2, "draft_us": 8000, "target_us": 20_000, "step_us": 30_000}
    con = bare(write_lake(tmp_path, rounds=[base, {**base, "step_us": 90_000, "has_prefill": True}]))
    found = total(con, "rho")
    assert (found["step_ms"], found["prefill_step_ms"], found["prefill_rounds"]) == (30.0, 90.0, 1)


def test_weights_count(tmp_path: Path) -> None:
    con = bare(
        write_lake(tmp_path, rounds=[{"drafted": 4, "accepted": 4, "weight": 3.0}, {"drafted": 4, "accepted": 0}])
    )
    assert total(con, "alpha")["draft_accept_ratio"] == 0.75


LADDER = {"drafted": 5, "accepted": 2, "emitted": 3, "target_us": 18_000, "batch_size": 4, "context_len": 900}
PLAIN = {"drafted": 0, "accepted": 0, "emitted": 1, "step_us": 16_000, "target_us": 15_000}


def baseline(tmp_path: Path, *more: dict[str, Any], requests: Any = (), setting: str = "") -> dict[str, Any]:
    lake = write_lake(
        tmp_path,
        rounds=[{**LADDER, "run_id": "spec", "model": "m"}, *more],
        requests=requests,
        runs=[
            {"run_id": "plain", "role": "baseline", "model": "m"},
            {"run_id": "other", "role": "baseline", "model": "x"},
        ],
    )
    con = bare(lake)
    if setting:
        con.execute(setting)
    return total(con, "baseline")


def test_ladder_verify_pass(tmp_path: Path) -> None:
    found = baseline(tmp_path)
    assert (found["baseline_ms"], found["baseline_basis"]) == (18.0, "verify_pass")


def test_ladder_plain_steps(tmp_path: Path) -> None:
    found = baseline(tmp_path, {**PLAIN, "run_id": "spec"})
    assert (found["baseline_ms"], found["baseline_basis"]) == (16.0, "plain_steps")


def test_ladder_extrapolated(tmp_path: Path) -> None:
    varied = [{**LADDER, "run_id": "spec", "drafted": d, "target_us": 15_000 + 500 * d} for d in (2, 5) * 60]
    found = baseline(tmp_path, *varied)
    assert found["baseline_basis"] == "verify_extrapolated"
    assert found["baseline_ms"] == pytest.approx(15.0, abs=0.1)


def test_ladder_run_matched_on_model_batch_and_context(tmp_path: Path) -> None:
    found = baseline(
        tmp_path,
        {**PLAIN, "run_id": "plain", "step_us": 14_000, "batch_size": 3, "context_len": 1000},
        {**PLAIN, "run_id": "plain", "step_us": 25_000, "batch_size": 32, "context_len": 1000},
    )
    assert (found["baseline_ms"], found["baseline_basis"]) == (14.0, "run_step")
    assert found["baseline_matched_share"] == 1.0


def test_ladder_falls_back_to_fewer_keys(tmp_path: Path) -> None:
    found = baseline(tmp_path, {**PLAIN, "run_id": "plain", "step_us": 25_000, "batch_size": 32})
    assert (found["baseline_ms"], found["baseline_matched_share"], found["baseline_bucket_share"]) == (25.0, 1.0, 0.0)


def test_another_models_run_is_no_baseline(tmp_path: Path) -> None:
    found = baseline(tmp_path, {**PLAIN, "run_id": "other", "step_us": 25_000})
    assert found["baseline_basis"] == "verify_pass"


def test_ladder_run_without_steps_gives_its_tpot(tmp_path: Path) -> None:
    requests = [{"run_id": "plain", "request_id": f"r{i}", "output_tokens": 11, "decode_us": 170_000} for i in range(3)]
    found = baseline(tmp_path, requests=requests)
    assert (found["baseline_ms"], found["baseline_basis"], found["baseline_tpot_ms"]) == (17.0, "run_tpot", 17.0)


def test_ladder_what_the_user_names_comes_first(tmp_path: Path) -> None:
    found = baseline(tmp_path, {**PLAIN, "run_id": "plain"}, setting="set variable baseline_ms = 12.5")
    assert (found["baseline_ms"], found["baseline_basis"], found["baseline_tpot_ms"]) == (12.5, "value", 12.5)


def test_ladder_a_run_by_name(tmp_path: Path) -> None:
    plain = [{**PLAIN, "run_id": "plain"}, {**PLAIN, "run_id": "named", "step_us": 13_000}]
    found = baseline(tmp_path, *plain, setting="set variable baseline_run = 'named'")
    assert (found["baseline_ms"], found["baseline_basis"]) == (13.0, "run_step")


def test_tpot_is_token_weighted(tmp_path: Path) -> None:
    requests = [
        {"request_id": "long", "output_tokens": 101, "decode_us": 2_000_000},
        {"request_id": "short", "output_tokens": 2, "decode_us": 120_000},
        {"request_id": "one", "output_tokens": 1, "decode_us": 0},
        {"request_id": "failed", "output_tokens": 50, "decode_us": 9_000_000, "error": True},
    ]
    found = total(bare(write_lake(tmp_path, requests=requests)), "speedup")
    assert found["tpot_ms"] == pytest.approx(2120 / 101)
    assert found["tpot_requests"] == 2
    assert found["tpot_p50_ms"] == pytest.approx(70.0)


def test_the_full_drafts_of_a_drafter_of_many_lengths_are_no_sample(tmp_path: Path) -> None:
    """N-gram windows: the few in which every draft was full are the easy ones."""
    easy = {"rounds": 10, "drafted": 30, "accepted": 27, "accepted_per_pos": [9, 9, 9], "num_speculative_tokens": 3}
    hard = {"rounds": 90, "drafted": 120, "accepted": 12, "accepted_per_pos": [9, 3, 0], "num_speculative_tokens": 3}
    con = bare(write_lake(tmp_path, windows=[easy, hard]))
    assert total(con, "alpha")["token_accept_prob"] is None
    assert total(con, "alpha")["draft_accept_ratio"] == pytest.approx(39 / 150)
    assert rows(con, "near_k") == []


def test_the_baseline_follows_the_rounds_that_were_timed(tmp_path: Path) -> None:
    """Two models in one stratum, one of them with times: its costs meet its own model's baseline."""
    rounds = [
        {**LADDER, "run_id": "a", "model": "m", "step_us": 50_000},
        {"run_id": "b", "model": "x", "drafted": 5, "accepted": 1},
        {**PLAIN, "run_id": "pm", "model": "m", "step_us": 20_000},
        {**PLAIN, "run_id": "px", "model": "x", "step_us": 90_000},
    ]
    runs = [{"run_id": run, "role": "baseline"} for run in ("pm", "px")]
    found = total(bare(write_lake(tmp_path, rounds=rounds, runs=runs)), "baseline")
    assert found["baseline_ms"] == 20.0


def test_outcome_without_prices_has_what_needs_none(tmp_path: Path) -> None:
    con = bare(write_lake(tmp_path, rounds=traffic()))
    found, alpha = total(con, "outcome"), total(con, "alpha")
    for name in ("rounds", "requests", "draft_accept_ratio", "token_accept_prob", "tau_verified", "tau_committed"):
        assert found[name] == pytest.approx(alpha[name]), name
    assert found["near_k_round_share"] == pytest.approx(total(con, "near_k")["near_k_round_share"])
    assert found["rho_verify"] == pytest.approx(total(con, "rho")["rho_verify"])
    for name in ("baseline_ms", "rho", "relative_token_time", "relative_token_time_basis", "break_even_alpha"):
        assert found[name] is None, name


def test_hazard_sums_are_the_hazard(tmp_path: Path) -> None:
    for row in rows(bare(write_lake(tmp_path, rounds=traffic())), "hazards"):
        sums = row["hazard_sums"]
        assert (sums["y"], sums["x"]) == (row["reached"], row["at_risk"])
        assert sums["y"] / sums["x"] == pytest.approx(row["hazard"])
        assert sums["m"] > 1
