"""Runs of accepted drafts in SQL are those of the model; what cannot be replayed is told apart."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bare import bare, rows
from lakes import write_lake

from tracelens.model.acceptance import hazards
from tracelens.model.replay import Runs, passes, replayed, run_lengths

DAY = dt.datetime(2026, 11, 1, 10)
RUN = {"run_id": "run", "engine": "vllm", "role": "speculative", "method": "eagle", "num_speculative_tokens": 6}


def traffic(seed: int, requests: int = 40) -> list[dict[str, Any]]:
    """Rounds of mixed length and plain ones, written out of order."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(requests):
        for j in range(int(rng.integers(1, 40))):
            d = 0 if rng.random() < 0.1 else 6 if rng.random() < 0.8 else int(rng.integers(1, 6))
            a = int(min(d, rng.geometric(0.3) - 1))
            found.append(
                {"run_id": "run", "ts": DAY, "request_id": f"{'ab'[i % 2]}-{i}", "task_type": "ab"[i % 2],
                 "round_index": j, "drafted": d, "accepted": a, "emitted": a + 1}
            )  # fmt: skip
    return [found[i] for i in rng.permutation(len(found))]


def of(found: list[dict[str, Any]]) -> tuple[Runs, Any, dict[str, Any]]:
    """The runs of rows of the query, their counts, and sums over the buckets."""
    kinds = [
        (length, by_zero, count)
        for row in found
        for name, by_zero in (("ended_by_zero", True), ("open", False))
        for length, count in (row[name] or {}).items()
    ]
    table = np.array(kinds, dtype=np.int64)
    names = ("requests", "rounds", "plain_rounds", "drafted", "accepted", "emitted", "inner_rounds", "shortened")
    return Runs(table[:, 0], table[:, 1] > 0), table[:, 2], {n: sum(row[n] or 0 for row in found) for n in names}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.long
def test_sql_is_numpy(tmp_path: Path, seed: int) -> None:
    """Same rounds, same draws: the very same runs, for a stratum and for all."""
    written = traffic(seed)
    con = bare(write_lake(tmp_path, rounds=written, runs=[RUN]))
    draws = {
        (row["request_id"], row["round_index"]): row["draw"]
        for row in rows(con, "select request_id, round_index, hash(run_id, request_id, round_index, source_id,"
                             " source_line, 7::bigint) / 18446744073709551616.0 as draw from strata")
    }  # fmt: skip
    told = rows(con, "run_lengths")
    for task in ("a", "b", None):
        kept = sorted((r for r in written if task in (None, r["task_type"])),
                      key=lambda r: (r["request_id"], r["round_index"]))  # fmt: skip
        d, a = (np.array([r[name] for r in kept]) for name in ("drafted", "accepted"))
        ids = np.unique([r["request_id"] for r in kept], return_inverse=True)[1]
        draw = np.array([draws[r["request_id"], r["round_index"]] for r in kept])
        hazard = hazards(a[d > 0], d[d > 0]).hazard
        expected = run_lengths(ids, d, a, draw < hazard[np.maximum(d, 1) - 1])
        found = [row for row in told if row["stratum"] == (None if task is None else {"task_type": task})]
        runs, counts, sums = of(found)
        pairs = np.stack([runs.lengths, runs.ended_by_zero], axis=1)
        wanted = np.stack([expected.lengths, expected.ended_by_zero], axis=1)
        assert sorted(np.repeat(pairs, counts, axis=0).tolist()) == sorted(wanted.tolist())
        assert (sums["rounds"], sums["plain_rounds"]) == ((d > 0).sum(), (d == 0).sum())
        assert (sums["drafted"], sums["accepted"], sums["emitted"]) == (d.sum(), a.sum(), (a + 1).sum())
        assert sums["requests"] == ids.max() + 1
        assert {row["trace_k"] for row in found} == {6}


def test_the_same_k_gives_the_trace_again(tmp_path: Path) -> None:
    """Fixed drafts with plain rounds between; a cut last round costs tokens, not rounds."""
    written = [r | {"drafted": 6 * (r["drafted"] > 0)} for r in traffic(9)]
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(written, key=lambda r: r["round_index"]):
        last[row["request_id"]] = row
    for row in last.values():
        row["emitted"] = 1
    found = [r for r in rows(bare(write_lake(tmp_path, rounds=written, runs=[RUN])), "run_lengths") if not r["stratum"]]
    runs, counts, sums = of(found)
    again = replayed(runs, 6)
    assert (again.rounds * counts).sum() == sums["rounds"]
    assert (again.accepted * counts).sum() == sums["accepted"]
    tokens = np.array([(t, n) for row in found for t, n in (row["tokens"] or {}).items()])
    assert (passes(tokens[:, 0], 6) * tokens[:, 1]).sum() == sums["rounds"]
    assert (tokens[:, 0] * tokens[:, 1]).sum() == sums["emitted"] - sums["plain_rounds"]


def test_the_longest_k_with_enough_rounds(tmp_path: Path) -> None:
    runs = [RUN | {"run_id": f"k{k}", "num_speculative_tokens": k} for k in (2, 4, 8)]
    written = [
        {"run_id": f"k{k}", "ts": DAY, "request_id": f"r{i}", "task_type": "a", "round_index": j, "drafted": k,
         "accepted": 1}
        for k, requests in ((2, 6), (4, 4), (8, 3)) for i in range(requests) for j in range(5)
    ]  # fmt: skip
    written.append(written[-1] | {"task_type": "b", "drafted": 0, "accepted": 0})
    written += [r | {"task_type": "b", "request_id": f"b{r['request_id']}"} for r in written[:8] + written[-4:-1]]
    con = bare(write_lake(tmp_path, rounds=written, runs=runs))

    def trace_k() -> dict[str | None, int]:
        return {s and s["task_type"]: k for s, k in ((r["stratum"], r["trace_k"]) for r in rows(con, "run_lengths"))}

    # 20 rounds with a draft are enough; where no K has them it is the longest that more than one request ran with.
    assert trace_k() == {None: 4, "a": 4, "b": 2}
    con.execute("set variable replay_rounds = 16")
    assert trace_k() == {None: 8, "a": 4, "b": 2}
    con.execute("set variable replay_rounds = 100000")
    assert trace_k() == {None: 8, "a": 8, "b": 2}


@pytest.mark.parametrize("k", [7, 60_000, 65_536])
def test_one_lucky_request_is_no_trace(tmp_path: Path, k: int) -> None:
    """However long its drafts and however many its rounds; the longest draft of all costs nothing."""
    runs = [RUN | {"run_id": f"k{n}", "num_speculative_tokens": n} for n in (4, k)]
    written = [
        {"run_id": "k4", "ts": DAY, "request_id": f"r{i}", "task_type": "a", "round_index": j, "drafted": 4,
         "accepted": 1, "target_us": 10_000}
        for i in range(6) for j in range(5)
    ]  # fmt: skip
    lucky = [written[0] | {"run_id": f"k{k}", "drafted": k, "accepted": 4, "round_index": j} for j in range(40)]
    con = bare(write_lake(tmp_path, rounds=[*written, *lucky], runs=runs))
    assert {row["trace_k"] for row in rows(con, "run_lengths")} == {4}
    assert {(row["kind"], row["rounds"]) for row in rows(con, "replay_domain")} == {("chain", 70.0)}
    assert {row["drafted"] for row in rows(con, "round_times")} == {4, k}


def test_a_request_alone_is_a_trace_where_there_is_no_other(tmp_path: Path) -> None:
    written = [
        {"run_id": "run", "ts": DAY, "request_id": "r", "task_type": "a", "round_index": j, "drafted": 6, "accepted": 1}
        for j in range(3)
    ]
    con = bare(write_lake(tmp_path, rounds=written, runs=[RUN]))
    assert {row["trace_k"] for row in rows(con, "run_lengths")} == {6}


def test_plain_rounds_of_a_run_without_drafts_are_not_timed(tmp_path: Path) -> None:
    """They have no K, so they are no plain rounds of the K that ran."""
    base = {"ts": DAY, "task_type": "a", "accepted": 0, "step_us": 10_000}
    written = [
        base | {"run_id": "run", "request_id": "a", "round_index": 0, "drafted": 6},
        base | {"run_id": "run", "request_id": "a", "round_index": 1, "drafted": 0},
        base | {"run_id": "other", "request_id": "b", "round_index": 0, "drafted": 0, "step_us": 90_000},
    ]
    con = bare(write_lake(tmp_path, rounds=written, runs=[RUN, {"run_id": "other"}]))
    found = {row["drafted"]: (row["step_rounds"], row["step_ms"]) for row in rows(con, "round_times")}
    assert found == {6: (1.0, 10.0), 0: (1.0, 10.0)}


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    base = {"ts": DAY, "request_id": "r", "task_type": "a", "drafted": 3, "accepted": 1, "round_index": 0}
    written = [
        base, base | {"num_draft_nodes": 8}, base | {"method": "ngram_gpu"}, base | {"method": "Medusa"},
        base | {"weight": 2.0}, base | {"request_id": None}, base | {"drafted": None},
        base | {"drafted": 0, "accepted": 0}, base | {"run_id": "par"},
    ]  # fmt: skip
    config = [{"run_id": "par", "engine": "vllm", "config": [("parallel_drafting", "true")]}]
    con = bare(write_lake(tmp_path, rounds=written, runs=config))
    told = {r["kind"]: (r["rounds"], r["methods"]) for r in rows(con, "replay_domain") if r["stratum"] is None}
    assert told == {
        "chain": (1, None), "tree": (1, None), "parallel": (3, ["medusa", "ngram_gpu"]), "sampled": (2, None),
        "no_request": (1, None), "no_length": (1, None),
    }  # fmt: skip
    assert of([r for r in rows(con, "run_lengths") if r["stratum"] is None])[2]["rounds"] == 1


def test_times_by_length(tmp_path: Path) -> None:
    base = {"ts": DAY, "request_id": "r", "task_type": "a", "accepted": 0, "batch_size": 2, "target_us": 20_000}
    written = [
        base | {"drafted": 2, "draft_us": 8000, "step_us": 30_000}, base | {"drafted": 2, "draft_us": 10_000},
        base | {"drafted": 0, "step_us": 21_000}, base | {"drafted": 2, "draft_us": 99_000, "has_prefill": True},
    ]  # fmt: skip
    found = [r for r in rows(bare(write_lake(tmp_path, rounds=written)), "round_times") if r["stratum"] is None]
    plain, two = found
    assert (plain["drafted"], plain["draft_rounds"], plain["rest_ms"]) == (0, None, 1.0)
    assert (two["drafted"], two["draft_rounds"], two["draft_ms"], two["rest_rounds"]) == (2, 2, 18.0, 1)
    assert (two["rest_ms"], two["target_ms"], two["step_rounds"]) == (2.0, 40.0, 1)
