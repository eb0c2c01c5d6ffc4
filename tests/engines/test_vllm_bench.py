"""Results of `vllm bench`: what they count, what they prove, and what they must not become."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, JsonRecord, Parsed, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.vllm import ENGINE, bench
from tracelens.ingest.options import IngestOptions, Summary
from tracelens.ingest.read import read
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.lake.schema import table
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile

DATA = Path(__file__).parents[1] / "data" / "vllm"
END = datetime(2026, 11, 29, 12, 15, 25)
SUMMARY: dict[str, Any] = {
    "date": "20261129-121525",
    "endpoint_type": "openai",
    "backend": "openai",
    "label": None,
    "model_id": "/models/org/tiny",
    "tokenizer_id": "/models/CANARY",
    "num_prompts": 3,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 4.5,
    "completed": 2,
    "failed": 1,
    "total_input_tokens": 35,
    "total_output_tokens": 13,
    "request_throughput": 0.4444,
    "request_goodput": None,
    "output_throughput": 2.9,
    "total_token_throughput": 10.7,
    "mean_ttft_ms": 400.0,
    "mean_tpot_ms": 150.0,
    "mean_itl_ms": 300.0,
}
DETAILS: dict[str, Any] = {
    "input_lens": [17, 18, 16],
    "output_lens": [9, 4, 0],
    "ttfts": [0.4, 0.5, 0.0],
    "itls": [[0.3, 0.3, 0.6], [0.45], []],
    "latencies": [1.6, 0.95, 0.0],
    "start_times": [100.0, 103.0, 103.5],
    "queue_times": [0.1, 0.2, 0.3],  # the client's own: it waits for its --max-concurrency
    "generated_texts": ["CANARY one", "CANARY two", ""],
    "errors": ["", "", "CANARY: connection to 10.1.2.3 refused"],
}
SPEC: dict[str, Any] = {
    "spec_decode_acceptance_rate": 100 * 7 / 12,
    "spec_decode_acceptance_length": 1 + 7 / 4,
    "spec_decode_num_drafts": 4,
    "spec_decode_draft_tokens": 12,
    "spec_decode_accepted_tokens": 7,
    "spec_decode_per_position_acceptance_rates": [3 / 4, 3 / 4, 1 / 4],
}
THROUGHPUT = {
    "elapsed_time": 12.5,
    "num_requests": 100,
    "total_num_tokens": 38_400,
    "requests_per_second": 8.0,
    "tokens_per_second": 3072.0,
}


def parsed_of(*results: dict[str, Any]) -> Parsed:
    written = [json.loads(json.dumps(r)) for r in results]
    assert all(bench.holds(r) for r in written)
    return ENGINE.records([JsonRecord(n, 100 * n, None, None, r) for n, r in enumerate(written, 1)])


def assembled(parsed: Parsed) -> Tables:
    context = Context("s", lambda frame: resolve(frame, tz="UTC", year=None, mtime=None))
    return ENGINE.assemble(parsed.frames, context)


def tables(*results: dict[str, Any]) -> Tables:
    parsed = parsed_of(*results)
    assert parsed.rejects == []
    return assembled(parsed)


def rows(frame: pl.DataFrame | None) -> list[dict[str, Any]]:
    return [] if frame is None else frame.to_dicts()


def window(*results: dict[str, Any]) -> dict[str, Any]:
    (row,) = rows(tables(*results).windows)
    return row


def run(*results: dict[str, Any]) -> dict[str, Any]:
    (row,) = rows(tables(*results).runs)
    return row


# -- one result -----------------------------------------------------------------------------------------------


def test_a_detailed_result_with_speculation() -> None:
    made = tables(SUMMARY | DETAILS | SPEC)
    assert rows(made.windows) == [
        {
            "run_key": 1, "task_type": None, "temperature": None, "top_p": None, "surface": "vllm.bench_serve",
            "ts_basis": "absolute", "window_us": 4_500_000, "rounds": 4, "drafted": 12, "accepted": 7,
            "accepted_per_pos": [3, 3, 1], "generated_tokens": 13, "prompt_tokens": 35,
            # As many gaps between chunks as drafts: each is a round.
            "round_us": 1_650_000, "rounds_timed": 4,
            "source_line": 1, "ts_start": END - timedelta(seconds=4.5), "ts_end": END, "counts_basis": "logged",
            "rounds_basis": "exact",
        }
    ]  # fmt: skip
    (told,) = rows(made.runs)
    assert told.pop("run_id").startswith("vllm-bench-20261129T121525-")
    config = {c["key"]: c["value"] for c in told.pop("config")}
    assert config == {"backend": "openai", "request_rate": "inf", "burstiness": "1", "num_prompts": "3"}
    assert told == {
        "run_key": 1, "model": "tiny", "draft_model": None, "method": None, "num_speculative_tokens": 3,
        "tensor_parallel": None, "data_parallel": None, "max_num_seqs": None, "role": "speculative",
        "is_result": True,
    }  # fmt: skip


def test_its_requests() -> None:
    first, second, failed = rows(tables(SUMMARY | DETAILS).requests)
    # The last answer came at 103 + 0.95 s of the client's clock: that was the end of the run.
    start = END - timedelta(seconds=3.95)
    assert first == {
        "run_key": 1, "task_type": None, "temperature": None, "top_p": None, "ts_start": start, "prompt_tokens": 17,
        "output_tokens": 9, "error": False, "surface": "vllm.bench_request", "source_line": 1, "request_id": "s#1.0",
        "ts_first_token": start + timedelta(seconds=0.4), "ts_end": start + timedelta(seconds=1.6),
        "ts_basis": "absolute", "ttft_us": 400_000, "decode_us": 1_200_000, "e2e_us": 1_600_000, "queue_us": None,
        "tpot_us": pytest.approx(150_000), "tpot_basis": "derived",
    }  # fmt: skip
    assert (second["ts_end"], second["tpot_us"]) == (END, pytest.approx(150_000))
    assert (failed["error"], failed["prompt_tokens"], failed["request_id"]) == (True, 16, "s#1.2")
    # What vLLM writes as 0 for it was not measured.
    nothing = ("output_tokens", "ttft_us", "decode_us", "e2e_us", "tpot_us", "tpot_basis", "ts_first_token")
    assert [failed[c] for c in nothing] == [None] * len(nothing)


def test_the_gap_between_chunks_is_no_round_unless_the_counts_prove_it() -> None:
    assert window(SUMMARY | DETAILS | SPEC)["rounds_timed"] == 4
    other = SPEC | {"spec_decode_num_drafts": 8, "spec_decode_draft_tokens": 24}
    other["spec_decode_per_position_acceptance_rates"] = [3 / 8, 3 / 8, 1 / 8]
    row = window(SUMMARY | DETAILS | other)
    assert (row["round_us"], row["rounds_timed"], row["rounds"]) == (None, None, 8)
    # Without drafts: a gap a token, or nothing.
    assert window(SUMMARY | DETAILS)["rounds_timed"] is None
    plain = DETAILS | {"output_lens": [4, 2, 0]}
    failed = window(SUMMARY | plain)
    assert failed["rounds_timed"] is None  # the failed request has no gap, and 0 tokens prove nothing
    whole = {k: v[:2] for k, v in plain.items()}
    assert (window(SUMMARY | whole)["round_us"], window(SUMMARY | whole)["rounds_timed"]) == (1_650_000, 4)


def test_itl_is_never_tpot() -> None:
    (first, *_) = rows(tables(SUMMARY | DETAILS).requests)
    mean_gap = sum(DETAILS["itls"][0]) / 3 * 1e6
    assert first["tpot_us"] < mean_gap / 2


def test_a_summary_alone_has_the_means_of_its_requests() -> None:
    made = tables(SUMMARY | SPEC)
    (row,) = rows(made.requests)
    assert (row["weight"], row["tpot_us"], row["tpot_basis"], row["ttft_us"]) == (2.0, 150_000.0, "logged", 400_000)
    assert (row["request_id"], row["ts_end"], "output_tokens" in row) == ("s#1", END, False)
    assert rows(made.windows)[0]["accepted_per_pos"] == [3, 3, 1]
    row = window(SUMMARY)
    counted = [row[c] for c in ("rounds", "drafted", "accepted", "accepted_per_pos", "rounds_basis")]
    assert counted == [None] * 5
    assert (row["generated_tokens"], row["prompt_tokens"]) == (13, 35)


def test_the_latency_of_older_releases_is_the_sum_of_its_parts() -> None:
    older = {k: v for k, v in DETAILS.items() if k not in ("latencies", "start_times", "queue_times")}
    first, second, failed = rows(tables(SUMMARY | older).requests)
    assert (first["e2e_us"], second["tpot_us"], failed["error"]) == (1_600_000, pytest.approx(150_000), True)
    assert (first["ts_start"], first["ts_end"]) == (None, END)


def test_a_reply_that_was_not_streamed_has_no_ttft() -> None:
    first, *_ = rows(tables(SUMMARY | DETAILS | {"ttfts": [0.0, 0.5, 0.0]}).requests)
    assert [first[c] for c in ("ttft_us", "decode_us", "tpot_us", "e2e_us")] == [None, None, None, 1_600_000]


def test_the_server_s_queue_is_kept_where_it_is_told() -> None:
    first, _, failed = rows(tables(SUMMARY | DETAILS | {"server_queue_times": [0.01, None, None]}).requests)
    assert (first["queue_us"], failed["queue_us"]) == (10_000, None)


def test_throughput_tells_the_length_of_a_run_only() -> None:
    made = tables(THROUGHPUT)
    assert made.requests is None
    (row,) = rows(made.windows)
    assert {k: v for k, v in row.items() if v is not None} == {
        "run_key": 1, "surface": "vllm.bench_throughput", "ts_basis": "none", "window_us": 12_500_000, "source_line": 1
    }  # fmt: skip
    (told,) = rows(made.runs)
    assert {c["key"]: c["value"] for c in told["config"]} == {"num_requests": "100", "total_num_tokens": "38400"}
    assert told["role"] is None


# -- several results ------------------------------------------------------------------------------------------


def test_appended_results_are_runs_of_their_own_and_a_repeat_counts_once() -> None:
    later = SUMMARY | DETAILS | {"date": "20261129-122525", "duration": 4.75}
    parsed = parsed_of(SUMMARY | DETAILS, later, SUMMARY | DETAILS, THROUGHPUT, SUMMARY | DETAILS | {"run_number": 2})
    made = assembled(parsed)
    assert made.runs is not None
    assert made.requests is not None
    assert made.runs["run_key"].to_list() == [1, 2, 3]
    assert made.runs["run_id"].n_unique() == 3
    assert made.requests["run_key"].to_list() == [1, 1, 1, 2, 2, 2]
    assert made.requests["request_id"].n_unique() == 6
    assert [(r.line, r.reason) for r in made.rejects] == [
        (3, "a result that is in this source already"),
        (5, "a result that is in this source already"),
    ]
    assert parsed.claimed == 5


def sweep(folder: Path) -> None:
    """What `vllm bench sweep serve` leaves: K = 0 (off), 2 and 3, twice each."""
    for number, (name, told, spec) in enumerate(
        [
            ("SERVE--baseline", {"_benchmark_name": "baseline"}, {}),
            ("SERVE--k3", {"speculative_config.num_speculative_tokens": 3, "speculative_config.method": "eagle"}, SPEC),
        ]
    ):
        place = folder / name
        place.mkdir(parents=True)
        combination = []
        for repeat in range(2):
            result = SUMMARY | DETAILS | spec | {"duration": 5.0 + number + repeat / 8, "run_number": repeat} | told
            (place / f"run={repeat}.json").write_text(json.dumps(result, indent=4), encoding="utf-8")
            combination.append(result)
        (place / "summary.json").write_text(json.dumps(combination, indent=4), encoding="utf-8")
        warm_up = SUMMARY | told | {"run_number": -1, "duration": 1.0}
        (place / "warmup.json").write_text(json.dumps(warm_up, indent=4), encoding="utf-8")
        failure = {"run_number": 3, "error_type": "OSError", "error": "CANARY", "serve_overrides": {}}
        (place / "run=3.failure.json").write_text(json.dumps(failure, indent=2), encoding="utf-8")
    (folder / "summary.csv").write_text("a,b\n1,2\n", encoding="utf-8")


def test_the_runs_of_a_sweep_count_once(tmp_path: Path) -> None:
    sweep(tmp_path / "sweep")
    lake = tmp_path / "lake"
    summary: Summary = ingest([str(tmp_path / "sweep")], lake, IngestOptions(tz="UTC"))
    again = "repeats the results of run=*.json beside it"
    assert [n for n in summary.notes if n[1] == again] == [
        ("SERVE--baseline/summary.json", again),
        ("SERVE--k3/summary.json", again),
    ]
    assert summary.reasons == {"a sweep's warm-up run: not counted": 2}
    with connect(lake, keep=True) as con:
        got = con.execute(
            """select role, num_speculative_tokens, method, count(distinct run_id), sum(rounds)::int, sum(accepted)::int
            from facts where grain = 'window' group by all order by all"""
        ).fetchall()
        requests = con.execute("select count(*), count(distinct request_id), count(tpot_us) from requests").fetchone()
    assert got == [("baseline", None, None, 2, None, None), ("speculative", 3, "eagle", 2, 8, 14)]
    assert requests == (12, 12, 8)


def test_a_summary_without_its_runs_is_read(tmp_path: Path) -> None:
    """By itself it gives the same runs by the same names."""
    sweep(tmp_path)
    names = []
    for part in ("run=0.json", "run=1.json", "summary.json"):
        path = tmp_path / "SERVE--k3" / part
        reading = read(SourceFile(path, part, "0" * 16, None, None), [ENGINE])
        made = assembled(reading.parsed["vllm"])
        assert made.runs is not None
        assert (reading.rejects, made.rejects) == ([], [])
        names.append(set(made.runs["run_id"]))
    assert names[2] == names[0] | names[1]
    assert len(names[2]) == 2


# -- what is told of the server -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "k"),
    [
        ({}, None),
        ({"speculative_config.num_speculative_tokens": 5}, 5),
        ({"speculative-config.num-speculative-tokens": "5"}, 5),
        ({"speculative_config": {"method": "eagle", "num_speculative_tokens": 7}}, 7),
        ({"speculative_config": '{"method": "eagle", "num_speculative_tokens": 7}'}, 7),
        ({"speculative_config": '{"method": '}, None),
        ({"spec-tokens": 4}, 4),
        ({"k": "2"}, 2),
        ({"label": "eagle3-k5"}, 5),
        ({"label": "K=3"}, 3),
        ({"run": "A-ngram-k4"}, 4),
        ({"label": "k3", "run": "k5"}, None),
        ({"label": "k8s-pod"}, None),
        ({"label": "ctx-128k"}, None),
        ({"label": "k1.5"}, None),
        ({"num_speculative_tokens": -3}, None),
        ({"num_speculative_tokens": 2.5}, None),
        ({"num_speculative_tokens": True}, None),
        (SPEC, 3),
        (SPEC | {"label": "k7"}, 3),
        (SPEC | {"num_speculative_tokens": 4}, 4),
    ],
)
def test_k(told: dict[str, Any], k: int | None) -> None:
    assert run(SUMMARY | told)["num_speculative_tokens"] == k


@pytest.mark.parametrize(
    ("told", "role"),
    [
        ({}, None),
        ({"label": "production"}, None),
        (SPEC, "speculative"),
        (SPEC | {"label": "baseline"}, "speculative"),
        ({"label": "baseline"}, "baseline"),
        ({"run": "C-baseline"}, "baseline"),
        ({"label": "no-spec"}, "baseline"),
        ({"_benchmark_name": "no_speculation"}, "baseline"),
        ({"label": "baselines-k3"}, "speculative"),
        ({"label": "rebaseline2"}, None),
        ({"num_speculative_tokens": 0}, "baseline"),
        ({"k": "0"}, "baseline"),
        ({"label": "k0"}, "baseline"),
        ({"speculative_config": None}, "baseline"),
        ({"speculative_config": "None"}, "baseline"),
        ({"speculative_config.num_speculative_tokens": 2}, "speculative"),
        ({"role": "baseline"}, "baseline"),
        ({"role": "admin"}, None),
    ],
)
def test_a_role_is_told_and_never_guessed(told: dict[str, Any], role: str | None) -> None:
    assert run(SUMMARY | told)["role"] == role


def test_other_settings() -> None:
    told = {
        "speculative_config.method": "draft_model", "speculative_config.model": "/models/org/draft",
        "tensor_parallel_size": "2", "max-num-seqs": 64, "temperature": "0.7", "extra_body": '{"top_p": 0.9}',
        "task_type": "code", "data_parallel_size": 10**30, "label": "/home/CANARY/x", "run_number": 1,
    }  # fmt: skip
    made = tables(SUMMARY | told)
    (row,) = rows(made.runs)
    assert (row["method"], row["draft_model"], row["tensor_parallel"], row["max_num_seqs"], row["data_parallel"]) == (
        "draft_model", "draft", 2, 64, None
    )  # fmt: skip
    assert "CANARY" not in str(row["config"])
    assert {"key": "run_number", "value": "1"} in row["config"]
    (row,) = rows(made.windows)
    assert (row["temperature"], row["top_p"], row["task_type"]) == (0.7, 0.9, "code")


def test_texts_errors_and_paths_stay_out_of_the_lake(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    told = {"label": "a label of CANARY", "owner": "CANARY", "run": "/home/CANARY", "method": "CANARY with spaces"}
    path.write_text(json.dumps(SUMMARY | DETAILS | SPEC | told), encoding="utf-8")
    summary = ingest([str(path)], tmp_path / "lake", IngestOptions(tz="UTC"))
    assert (summary.rejects, summary.unrecognised) == (0, 0)
    files = [p.read_bytes() for p in (tmp_path / "lake").rglob("*.parquet")]
    assert files
    assert not any(b"CANARY" in data or b"10.1.2.3" in data for data in files)


# -- what cannot be used --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"duration": -1}, "duration: out of range"),
        ({"duration": "long"}, "duration: wrong type"),
        ({"total_output_tokens": 1.5}, "total_output_tokens: not a whole number"),
        ({"completed": -1}, "completed: negative"),
        ({"backend": "sglang"}, "a result of another engine"),
        ({"run_number": -1}, "a sweep's warm-up run: not counted"),
    ],
)
def test_a_result_that_is_refused(change: dict[str, Any], reason: str) -> None:
    parsed = parsed_of(SUMMARY | DETAILS | SPEC | change)
    assert [(r.line, r.reason, r.surface, r.offset) for r in parsed.rejects] == [(1, reason, "vllm.bench_serve", 100)]
    assert parsed.frames == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"accepted_tokens": 13}, "accepted <= drafted does not hold"),
        ({"accepted_tokens": 6}, "sum(accepted_per_pos) = accepted does not hold"),
        ({"num_drafts": -4}, "spec_decode_num_drafts: negative"),  # the server was started again during the run
        ({"per_position_acceptance_rates": [0.25, 0.75, 0.75]}, "accepted_per_pos does not fall"),
        ({"per_position_acceptance_rates": [1.25, 0.25, 0.25]}, "accepted_per_pos does not fall"),
        ({"per_position_acceptance_rates": [0.7, 0.7, 0.3]}, "no share of the drafts"),
        ({"per_position_acceptance_rates": "high"}, "wrong type"),
    ],
)
def test_counts_that_cannot_be_are_refused_and_the_requests_stay(change: dict[str, Any], reason: str) -> None:
    broken = SPEC | {f"spec_decode_{key}": value for key, value in change.items()}
    parsed = parsed_of(SUMMARY | DETAILS | broken)
    assert len(parsed.rejects) == 1
    assert parsed.rejects[0].reason.startswith("acceptance not counted: ")
    assert parsed.rejects[0].reason.endswith(reason)
    made = assembled(parsed)
    assert rows(made.windows)[0]["accepted"] is None
    assert len(rows(made.requests)) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ttfts": [2.0, 0.5, 0.0]}, "the first token comes after the end"),
        ({"ttfts": [-1.0, 0.5, 0.0]}, "a negative figure of a request"),
        ({"ttfts": ["soon", 0.5, 0.0]}, "a figure of a request that is no number"),
        ({"latencies": [1e9, 0.95, 0.0]}, "a request's duration out of range"),
        ({"output_lens": [8.5, 4, 0]}, "a length that is no whole number, or out of range"),
    ],
)
def test_a_request_that_is_refused(change: dict[str, Any], reason: str) -> None:
    parsed = parsed_of(SUMMARY | DETAILS | change)
    assert [(r.line, r.reason, r.surface) for r in parsed.rejects] == [(1, reason, "vllm.bench_request")]
    assert [r["request_id"] for r in rows(assembled(parsed).requests)] == ["s#1.1", "s#1.2"]


def test_lists_that_were_cut_are_refused() -> None:
    parsed = parsed_of(SUMMARY | DETAILS | SPEC | {"ttfts": [0.4]})
    assert [r.reason for r in parsed.rejects] == ["lists of requests of different lengths"]
    made = assembled(parsed)
    assert [r["weight"] for r in rows(made.requests)] == [2.0]  # the means stand
    assert rows(made.windows)[0]["accepted"] == 7


def test_drafts_longer_than_any_drafter_makes_are_refused_and_the_times_stay() -> None:
    parsed = parsed_of(SUMMARY | DETAILS | SPEC | {"spec_decode_draft_tokens": 65_536 * 4 + 1})
    assert [r.reason for r in parsed.rejects] == ["acceptance not counted: drafted <= 65536 a round does not hold"]
    made = assembled(parsed)
    assert rows(made.windows)[0]["drafted"] is None
    assert rows(made.requests)


def test_what_is_no_result_of_vllm_bench() -> None:
    sglang = {"backend": "sglang", "duration": 1.0, "completed": 3, "total_output_tokens": 5, "request_throughput": 2.0}
    embeddings = {k: v for k, v in SUMMARY.items() if k != "total_output_tokens"}
    for value in ({}, sglang, embeddings, {"elapsed_time": 3, "num_requests": 4}):
        assert not bench.holds(value)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6),
    st.lists(st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3),
                       st.lists(st.floats(0, 1), max_size=2)), min_size=3, max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted({*SUMMARY, *DETAILS, *SPEC, "speculative_config", "run"})), JUNK))
@settings(max_examples=80, deadline=None)
def test_whatever_a_result_holds_its_rows_keep_the_rules(change: dict[str, Any]) -> None:
    made = assembled(parsed_of(SUMMARY | DETAILS | SPEC | change, THROUGHPUT))
    for name in ("windows", "requests"):
        frame: pl.DataFrame | None = getattr(made, name)
        if frame is None:
            continue
        types = table(name).polars_schema()
        full = frame.cast({c: t for c, t in types.items() if c in frame.columns})
        full = full.with_columns(pl.lit(None, t).alias(c) for c, t in types.items() if c not in full.columns)
        assert full.select(broken_identities(name, full)).to_series().is_null().all()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(0, 10**6))
@settings(deadline=None)
def test_counts_by_position_come_back_exactly(histogram: list[int], none: int) -> None:
    """Any counts, divided as vLLM divides them, are found again."""
    per_pos = [sum(histogram[i:]) for i in range(len(histogram))]
    drafts = per_pos[0] + none
    if not drafts:
        return
    spec = SPEC | {
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafts * len(histogram),
        "spec_decode_accepted_tokens": sum(per_pos),
        "spec_decode_per_position_acceptance_rates": [c / drafts for c in per_pos],
    }
    row = window(SUMMARY | spec)
    assert (row["rounds"], row["accepted_per_pos"], row["rounds_basis"]) == (drafts, per_pos, "exact")


# -- real runs: vLLM 0.32 ---------------------------------------------------------------------------------------

# /metrics after the bench less /metrics at the end of the traffic before it.
REAL = {
    "A-ngram-k4": (28, 108, 69, [19, 18, 17, 15], 4, "speculative"),
    "B-trunc2-k3": (642, 1926, 497, [296, 130, 71], 3, "speculative"),
    "C-baseline": (None, None, None, None, None, "baseline"),
}


def real(name: str) -> dict[str, Any]:
    with gzip.open(DATA / f"bench_{name}.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
        return found


@pytest.mark.parametrize("name", REAL)
def test_a_real_result_gives_the_server_s_counters(name: str) -> None:
    made = tables(real(name))
    (row,) = rows(made.windows)
    (told,) = rows(made.runs)
    counts = tuple(row[c] for c in ("rounds", "drafted", "accepted", "accepted_per_pos"))
    assert (*counts, told["num_speculative_tokens"], told["role"]) == REAL[name]
    assert (row["prompt_tokens"], row["generated_tokens"], told["model"]) == (864, 1152, "tiny-target")


@pytest.mark.parametrize("name", REAL)
def test_a_real_result_gives_vllm_s_own_means(name: str) -> None:
    result, frame = real(name), tables(real(name)).requests
    assert frame is not None
    assert (frame.height, frame["error"].any(), frame["output_tokens"].sum()) == (36, False, 1152)
    means = {c: frame[c].to_numpy().mean() / 1000 for c in ("tpot_us", "ttft_us")}
    assert means["tpot_us"] == pytest.approx(result["mean_tpot_ms"], rel=1e-12)
    assert means["ttft_us"] == pytest.approx(result["mean_ttft_ms"], abs=0.0006)  # whole microseconds
    ends = frame.select(pl.col("ts_start").min(), pl.col("ts_end").max()).row(0)
    assert (ends[1] - ends[0]).total_seconds() == pytest.approx(result["duration"], abs=0.02)


def test_gaps_of_real_runs_are_rounds_where_they_are_as_many() -> None:
    """The draft model drafts in every round; n-gram misses most of them, and 1072 gaps are neither 28 nor 1116."""
    timed = {name: window(real(name)) for name in REAL}
    assert {n: row["rounds_timed"] for n, row in timed.items()} == {
        "A-ngram-k4": None, "B-trunc2-k3": 642, "C-baseline": 1116
    }  # fmt: skip
    for name in ("B-trunc2-k3", "C-baseline"):
        mean = timed[name]["round_us"] / timed[name]["rounds_timed"] / 1000
        assert mean == pytest.approx(real(name)["mean_itl_ms"], rel=1e-6)


@pytest.mark.parametrize("indent", [None, 4])
def test_a_result_that_was_cut_off_is_told(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "run=0.json"
    text = json.dumps(SUMMARY | DETAILS | SPEC, indent=indent)
    path.write_text(text[: text.index('"itls"') + 20], encoding="utf-8")
    reading = read(SourceFile(path, path.name, "0" * 16, None, None), [ENGINE])
    assert len(reading.rejects) == 1
    assert reading.rejects[0].reason.startswith(("broken JSON: ", "a JSON document that is cut off or broken"))
    assert not reading.parsed["vllm"].frames
