"""AIPerf: records of requests, quoted acceptance, sums of a run; what llama.cpp's adapter makes up."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from whole_source import ingest, reasons, shown

from tracelens.engines.aiperf import ENGINE
from tracelens.engines.base import JsonRecord
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as ingest_paths
from tracelens.lake.connection import connect

START = datetime(2026, 9, 20, 10)
START_NS = 1_789_898_400 * 10**9
COUNTS = ("rounds", "drafted", "accepted", "emitted", "iterations", "accepted_hist", "num_speculative_tokens")
QUOTED = {
    "mean_acceptance_length": 1.23, "draft_acceptance_rate": 0.078, "acceptance_histogram": {"0": 39, "1": 1, "3": 3},
    "num_spec_steps": 43, "num_accepted_draft_tokens": 10, "num_draft_tokens": 129, "num_spec_tokens": 3,
}  # fmt: skip
SPEC = {
    "engine": "vllm", "mean_acceptance_length": 2.25, "draft_acceptance_rate": 0.41,
    "acceptance_histogram": {"0": 1, "1": 1, "2": 1, "3": 1}, "num_accepted_draft_tokens": 6, "num_draft_tokens": 12,
    "num_spec_steps": 4, "num_spec_tokens": 3, "completion_tokens": 10, "per_step_accepted": [3, 0, 2, 1],
    "per_step_drafted": [3, 3, 3, 3],
}  # fmt: skip


def record(spec: dict[str, Any] | None = None, request: str = "r-1", **changes: Any) -> dict[str, Any]:
    metrics = {
        "time_to_first_token": {"value": 50.0, "unit": "ms"}, "request_latency": {"value": 230.0, "unit": "ms"},
        "inter_token_latency": {"value": 20.0, "unit": "ms"}, "output_sequence_length": {"value": 10, "unit": "tokens"},
        "input_sequence_length": {"value": 100, "unit": "tokens"},
        "inter_chunk_latency": {"value": [45.0, 44.0, 46.0, 45.0], "unit": "ms"},
    } | changes.pop("metrics", {})  # fmt: skip
    metadata = {
        "session_num": 0, "x_request_id": request, "request_start_ns": START_NS, "request_ack_ns": START_NS + 10**6,
        "request_end_ns": START_NS + 231 * 10**6, "worker_id": "worker-host-7", "benchmark_phase": "profiling",
        "was_cancelled": False,
    } | changes.pop("metadata", {})  # fmt: skip
    out = {"metadata": metadata, "metrics": metrics, "error": None, **changes}
    return out if spec is None else out | {"spec_decode_acceptance": spec}


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(r) + "\n" for r in records)


def at(ms: float) -> datetime:
    return START + timedelta(milliseconds=ms)


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_without_speculation(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, lines(record()), "aiperf")
    assert rejects == []
    columns = ("request_id", "ts_start", "ts_first_token", "ts_end", "ttft_us", "e2e_us", "decode_us", "error")
    assert shown(tables.requests, *columns) == [("r-1", START, at(50), at(230), 50_000, 230_000, 180_000, False)]
    assert shown(tables.requests, "prompt_tokens", "output_tokens", "tpot_us", "tpot_basis", "ts_basis") == [
        (100, 10, 20_000.0, "derived", "absolute")
    ]
    assert shown(tables.requests, *COUNTS) == [(None,) * 7]
    assert tables.rounds is None


def test_acceptance_and_rounds(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, lines(record(SPEC)), "aiperf")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(4, 12, 6, 9, 4, [1, 1, 1, 1], 3)]
    # Ten tokens: the prefill's, and nine of ten that the rounds accepted or made; the last round was cut.
    columns = ("round_index", "drafted", "accepted", "emitted", "step_us", "ts", "timing_basis", "request_id")
    assert shown(tables.rounds, *columns) == [
        (0, 3, 3, 4, 45_000, at(95), "derived", "r-1"),
        (1, 3, 0, 1, 44_000, at(139), "derived", "r-1"),
        (2, 3, 2, 3, 46_000, at(185), "derived", "r-1"),
        (3, 3, 1, 1, 45_000, at(230), "derived", "r-1"),
    ]
    assert shown(tables.runs, "run_key", "engine") == [(0, "vllm")]


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"inter_chunk_latency": {"value": [45.0, 44.0, 46.0], "unit": "ms"}}},
        {"metrics": {"inter_chunk_latency": {"value": [45.0, -1.0, 46.0, 45.0], "unit": "ms"}}},
        {"metrics": {"inter_chunk_latency": {"value": "none", "unit": "ms"}}},
    ],
)
def test_chunks_that_are_no_rounds_give_no_times(tmp_path: Path, change: dict[str, Any]) -> None:
    tables, rejects = ingest(tmp_path, lines(record(SPEC, **change)), "aiperf")
    assert rejects == []
    assert shown(tables.rounds, "step_us", "ts", "timing_basis") == [(None, at(230), None)] * 4


def test_plain_steps_between_rounds_hide_which_gap_is_whose(tmp_path: Path) -> None:
    """More tokens than the rounds gave: as many gaps as rounds are then a coincidence."""
    tables, _ = ingest(tmp_path, lines(record(SPEC | {"completion_tokens": 13})), "aiperf")
    assert shown(tables.requests, "emitted", "iterations") == [(12, 6)]
    assert set(shown(tables.rounds, "step_us")) == {(None,)}


def test_requests_with_and_without_times_of_rounds(tmp_path: Path) -> None:
    other = record(SPEC, "r-2", metrics={"inter_chunk_latency": None})
    tables, _ = ingest(tmp_path, lines(record(SPEC), other), "aiperf")
    assert tables.rounds is not None
    assert tables.rounds["step_us"].null_count() == 4
    assert tables.rounds.height == 8


def test_quoted_acceptance_alone(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, json.dumps(QUOTED, indent=2), "aiperf", "x.json")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(43, 129, 10, None, None, [39, 1, 0, 3], 3)]
    assert shown(tables.requests, "request_id", "counts_basis", "error") == [("src#1", "logged", None)]


def test_the_servers_count_of_tokens_comes_first(tmp_path: Path) -> None:
    usage = {"metrics": {"usage_completion_tokens": {"value": 12, "unit": "tokens"}}}
    tables, _ = ingest(tmp_path, lines(record(**usage), record(SPEC, "r-2", **usage)), "aiperf")
    assert shown(tables.requests, "output_tokens") == [(12,), (10,)]


def test_units_and_what_is_logged_without_parts(tmp_path: Path) -> None:
    first = record(metrics={"time_to_first_token": None, "inter_token_latency": {"value": 0.02, "unit": "sec"}})
    second = record(request="r-2", metrics={"request_latency": {"value": 230_000_000, "unit": "ns"}})
    tables, rejects = ingest(tmp_path, lines(first, second), "aiperf")
    assert rejects == []
    assert shown(tables.requests, "tpot_us", "tpot_basis", "decode_us") == [
        (20_000.0, "logged", None), (20_000.0, "derived", 180_000),
    ]  # fmt: skip


def test_failed_and_cancelled_requests(tmp_path: Path) -> None:
    failed = {"metadata": record()["metadata"], "metrics": {}, "error": {"code": 500, "message": "secret"}}
    cancelled = record(request="r-2", metadata={"was_cancelled": True})
    tables, rejects = ingest(tmp_path, lines(failed, cancelled), "aiperf")
    assert rejects == []
    assert shown(tables.requests, "error", "finish_reason", "e2e_us") == [
        (True, None, 231_000), (True, "cancelled", 230_000),
    ]  # fmt: skip


def test_the_warm_up_is_not_counted(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, lines(record(SPEC, metadata={"benchmark_phase": "warmup"}), record()), "aiperf")
    assert reasons(rejects) == ["a request of the warm-up: not counted"]
    assert shown(tables.requests, "accepted") == [(None,)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_spec_steps": 5}, "sum(acceptance_histogram) = num_spec_steps does not hold"),
        ({"num_draft_tokens": 5, "per_step_drafted": None}, "accepted <= drafted does not hold"),
        ({"acceptance_histogram": {"x": 4}}, "acceptance_histogram: a length that is no number of tokens"),
        ({"acceptance_histogram": {"99999": 4}}, "acceptance_histogram: a length out of range"),
        ({"acceptance_histogram": {"1": -4}}, "acceptance_histogram: not a list of counts"),
        ({"num_draft_tokens": -1}, "num_draft_tokens: out of range"),
    ],
)
def test_acceptance_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    tables, rejects = ingest(tmp_path, lines(record(SPEC | change), record(request="r-2")), "aiperf")
    assert reasons(rejects) == [reason]
    assert shown(tables.requests, "request_id") == [("r-2",)]


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"request_latency": {"value": 1, "unit": "fortnights"}}, "request_latency: an unknown unit"),
        ({"request_latency": {"value": 1, "unit": ["ms"]}}, "request_latency: an unknown unit"),
        ({"request_latency": {"value": -1, "unit": "ms"}}, "request_latency: no duration"),
        ({"output_sequence_length": {"value": 1.5, "unit": "tokens"}}, "tokens: not a whole number"),
    ],
)
def test_figures_that_are_none(tmp_path: Path, metrics: dict[str, Any], reason: str) -> None:
    tables, rejects = ingest(tmp_path, lines(record(metrics=metrics)), "aiperf")
    assert reasons(rejects) == [reason]
    assert tables.requests is None


# -- histograms that were made up -------------------------------------------------------------------------------------


def flat(rounds: int, accepted: int, k: int | None = None, engine: str = "other") -> dict[str, Any]:
    """A histogram as AIPerf's llama.cpp adapter makes it of totals."""
    base, more = divmod(accepted, rounds)
    hist = {str(base): rounds - more} | ({str(base + 1): more} if more else {})
    return {
        "engine": engine, "acceptance_histogram": hist, "num_spec_steps": rounds, "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": 4 * rounds, "num_spec_tokens": k, "completion_tokens": rounds + accepted,
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["llamacpp", "llama.cpp", "LLAMA_CPP"])
def test_llama_cpp_has_totals_only(tmp_path: Path, engine: str) -> None:
    tables, rejects = ingest(tmp_path, lines(record(flat(50, 70, engine=engine))), "aiperf")
    assert reasons(rejects) == ["acceptance by length is made of totals (llama.cpp reports no more): not used"]
    # What it calls steps has the prefill's token in it: no rounds either.
    assert shown(tables.requests, *COUNTS) == [(None, 200, 70, 119, None, None, None)]
    # Its name is that of the lake, however the adapter spells it.
    assert shown(tables.runs, "engine") == [("llama.cpp",)]


def test_flat_histograms_are_refused_whoever_sent_them(tmp_path: Path) -> None:
    made_up = [record(flat(50 + i, 70 + i), f"r-{i}") for i in range(3)]
    tables, rejects = ingest(tmp_path, lines(*made_up), "aiperf")
    assert reasons(rejects) == [
        "acceptance by length is as flat as can be in every request, as if made of totals: not used"
    ]
    assert shown(tables.requests, "rounds", "accepted", "accepted_hist") == [(50 + i, 70 + i, None) for i in range(3)]


@pytest.mark.parametrize(
    "records",
    [
        [record(flat(50, 70))],  # one request may be so
        [record(flat(50, 20, k=1), f"r-{i}") for i in range(9)],  # with K = 1 there is no other form
        [record(flat(50, 0), f"r-{i}") for i in range(9)],  # nor where nothing was accepted
        [*(record(flat(50, 70), f"r-{i}") for i in range(9)), record(QUOTED | {"engine": "x"}, "r-10")],
    ],
)
def test_flat_histograms_that_may_be_counted(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    tables, rejects = ingest(tmp_path, lines(*records), "aiperf")
    assert rejects == []
    assert tables.requests is not None
    assert tables.requests["accepted_hist"].null_count() == 0


# -- sums of a run ----------------------------------------------------------------------------------------------------

SUMS: dict[str, Any] = {
    "schema_version": "1.1", "aiperf_version": "0.14.0",
    "input_config": {"endpoint": {"model_names": ["/models/org/m"], "urls": ["http://10.0.0.7:8000"]}},
    "request_count": {"unit": "requests", "avg": 40}, "request_latency": {"unit": "ms", "avg": 230.0, "p50": 228.0},
    "benchmark_duration": {"unit": "sec", "avg": 60.5}, "total_output_tokens": {"unit": "tokens", "avg": 12_000.0},
    "total_isl": {"unit": "tokens", "avg": 4000.0}, "total_spec_decode_steps": {"unit": "count", "avg": 100.0},
    "total_draft_tokens": {"unit": "tokens", "avg": 300.0},
    "total_accepted_draft_tokens": {"unit": "tokens", "avg": 150.0},
    "pooled_spec_decode_acceptance_histogram": {"0": 30, "1": 20, "2": 20, "3": 30},
    "start_time": "2026-09-20T10:00:00", "end_time": "2026-09-20T10:01:00.5",
}  # fmt: skip


def test_sums_of_a_run(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, json.dumps(SUMS, indent=2), "aiperf", "profile_export_aiperf.json")
    assert rejects == []
    columns = ("rounds", "drafted", "accepted", "accepted_per_pos", "num_speculative_tokens", "generated_tokens")
    assert shown(tables.windows, *columns) == [(100, 300, 150, [70, 50, 30], 3, 12_000)]
    assert shown(tables.windows, "window_us", "ts_start", "ts_end", "model", "prompt_tokens") == [
        (60_500_000, START, START + timedelta(seconds=60.5), "m", 4000)
    ]
    assert shown(tables.runs, "model") == [("m",)]


@pytest.mark.parametrize(
    ("drafts", "hist"), [(310.0, {"0": 30, "1": 20, "2": 20, "3": 30}), (100.0, {"0": 50, "1": 30, "2": 10, "5": 10})]
)
def test_lengths_without_a_draft_length_are_not_taken(tmp_path: Path, drafts: float, hist: dict[str, int]) -> None:
    accepted = sum(int(j) * n for j, n in hist.items())
    change = {
        "total_draft_tokens": {"unit": "tokens", "avg": drafts}, "pooled_spec_decode_acceptance_histogram": hist,
        "total_accepted_draft_tokens": {"unit": "tokens", "avg": float(accepted)},
    }  # fmt: skip
    tables, rejects = ingest(tmp_path, json.dumps(SUMS | change), "aiperf", "profile_export_aiperf.json")
    if accepted > drafts:
        assert reasons(rejects) == ["total_accepted_draft_tokens <= total_draft_tokens does not hold"]
        return
    assert [r.split(":")[0] for r in reasons(rejects)] == ["acceptance by length"]
    assert shown(tables.windows, "rounds", "drafted", "accepted", "accepted_per_pos") == [(100, drafts, accepted, None)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"total_spec_decode_steps": {"avg": 99}}, "sum(pooled_spec_decode_acceptance_histogram)"),
        ({"total_accepted_draft_tokens": {"avg": 149}}, "sum(j * pooled_spec_decode_acceptance_histogram[j])"),
        ({"total_draft_tokens": {"avg": 1.5}}, "total_draft_tokens: not a whole number"),
    ],
)
def test_sums_that_contradict_each_other(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    tables, rejects = ingest(tmp_path, json.dumps(SUMS | change), "aiperf", "profile_export_aiperf.json")
    assert len(rejects) == 1
    assert rejects[0].reason.startswith(reason)
    assert tables.windows is None


def test_requests_and_their_sums_count_once(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    folder.mkdir()
    (folder / "profile_export.jsonl").write_text(lines(record(SPEC), record(SPEC, "r-2")), encoding="utf-8")
    totals = {"total_spec_decode_steps": 8, "total_draft_tokens": 24, "total_accepted_draft_tokens": 12}
    sums = SUMS | {k: {"unit": "x", "avg": v} for k, v in totals.items()}
    sums["pooled_spec_decode_acceptance_histogram"] = {"0": 2, "1": 2, "2": 2, "3": 2}
    (folder / "profile_export_aiperf.json").write_text(json.dumps(sums), encoding="utf-8")
    lake = tmp_path / "lake"
    ingest_paths([str(folder)], lake, IngestOptions())
    with connect(lake, keep=True) as con:
        counted = con.execute(
            "select sum(rounds), sum(drafted), sum(accepted), count(distinct run_id) from facts"
        ).fetchone()
        flavour = con.execute("select max(engine), max(model) from runs").fetchone()
        kept = str([con.execute(f"from {name}").fetchall() for name in ("requests", "runs")])
    assert counted == (8, 24, 12, 1)
    assert flavour == ("vllm", "m")
    assert "10.0.0.7" not in kept
    assert "worker-host" not in kept


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from([*SPEC]), _json, max_size=4),
    st.dictionaries(st.sampled_from([*record()["metrics"]]), _json, max_size=3),
    st.dictionaries(st.sampled_from([*record()["metadata"]]), _json, max_size=3),
)
def test_any_values_are_a_row_or_a_reject(spec: dict[str, Any], metrics: dict[str, Any], about: dict[str, Any]) -> None:
    value = record(SPEC | spec, metrics=metrics, metadata=about)
    parsed = ENGINE.records([JsonRecord(1, 0, None, None, value)])
    assert parsed.claimed == 1
    assert len(parsed.rejects) + sum(f.height for fs in parsed.frames.values() for f in fs) >= 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*SUMS]), _json, max_size=4))
@example({"pooled_spec_decode_acceptance_histogram": 1})
def test_any_sums_are_a_row_or_a_reject(change: dict[str, Any]) -> None:
    parsed = ENGINE.records([JsonRecord(1, 0, None, None, SUMS | change)])
    rows = sum(f.height for fs in parsed.frames.values() for f in fs)
    # A row whose lengths are not used has a reject beside it.
    assert rows <= parsed.claimed <= rows + len(parsed.rejects)


def test_a_clients_requests_are_those_of_the_engines_log(tmp_path: Path) -> None:
    """One request that vLLM's response and AIPerf saw is one, of vLLM; and vLLM's advice and baselines are its own."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "profile_export.jsonl").write_text(lines(record(SPEC), record(SPEC, "r-2")), encoding="utf-8")
    shared = {"engine": "vllm", "drafted": 12, "accepted": 6, "rounds": 4, "output_tokens": 11, "decode_ms": 100}
    canonical = [{"record": "request", "request_id": f"cmpl-{name}", **shared} for name in ("r-1", "r-2")]
    (folder / "server.jsonl").write_text(lines(*canonical), encoding="utf-8")
    lake = tmp_path / "lake"
    ingest_paths([str(folder)], lake, IngestOptions(run="r"))
    with connect(lake, keep=True) as con:
        assert con.execute("select distinct engine from requests").fetchall() == [("vllm",)]
        assert con.execute("select count(*), count(tpot_us) from requests_joined").fetchone() == (2, 2)
