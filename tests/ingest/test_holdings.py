"""What `inspect` says these records give: what their columns hold, not what others of their kind could."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ingest_logs import interval, jsonl, log, response, run

from tracelens.engines import load
from tracelens.engines.base import Tables
from tracelens.ingest import advice
from tracelens.ingest.holdings import Held, held_by
from tracelens.ingest.inspect import Inspection
from tracelens.ingest.inspect import inspect as look
from tracelens.ingest.options import IngestOptions

COUNTED = ("draft_accept_ratio", "hazard", "rollback_len", "near_k_request_share", "tau_committed")


def seen(folder: Path, text: str, name: str = "x.log") -> Inspection:
    (folder / name).write_text(text)
    return look([str(folder / name)], IngestOptions(year=2026))


def switches(found: Inspection, figure: str) -> str:
    return " ".join(m.switch_on for m in found.missing if figure in m.figure.split(", "))


def bare(**more: Any) -> dict[str, Any]:
    """A response whose server told no acceptance."""
    body = response()
    del body["metrics"]["speculative_decoding"]
    return body | more


def scrape(drafts: int | None, tokens: int) -> str:
    labels = '{engine="0",model_name="m"}'
    lines = [
        f"vllm:generation_tokens_total{labels} {tokens}",
        f"vllm:inter_token_latency_seconds_count{labels} {tokens // 2}",
        f"vllm:inter_token_latency_seconds_sum{labels} {tokens / 50}",
    ]
    if drafts is not None:
        lines += [
            f"vllm:spec_decode_num_drafts_total{labels} {drafts}",
            f"vllm:spec_decode_num_draft_tokens_total{labels} {2 * drafts}",
            f"vllm:spec_decode_num_accepted_tokens_total{labels} {drafts}",
        ]
    return "".join(f"{line}\n" for line in lines)


def sglang(timer: bool) -> str:
    labels = 'model_name="m",tp_rank="0"'
    pages = []
    for n in (0, 100):
        pages += [
            f"Mon Sep 21 14:13:{20 + n // 10} UTC 2026",
            f"sglang:spec_verify_calls_total{{{labels}}} {n}",
            f'sglang:realtime_tokens_total{{mode="decode",{labels}}} {3 * n}',
            f"sglang:spec_num_steps{{{labels}}} 5",
        ]
        if timer:
            pages += [
                f'sglang:forward_execution_seconds_total{{category="{category}",{labels}}} {n / 1000}'
                for category in ("eagle_draft", "eagle_draft_extend", "target_verify")
            ]
    return log(*pages)


SERVE: dict[str, Any] = {
    "model_id": "tiny", "duration": 4.5, "completed": 2, "total_output_tokens": 13, "request_throughput": 0.4,
    "mean_ttft_ms": 400.0, "mean_tpot_ms": 150.0,
}  # fmt: skip
COUNTS = {"spec_decode_num_drafts": 4, "spec_decode_draft_tokens": 12, "spec_decode_accepted_tokens": 7}
AIPERF: dict[str, Any] = {
    "metadata": {"benchmark_phase": "profiling", "request_start_ns": 1_790_000_000_000_000_000},
    "metrics": {
        "time_to_first_token": {"value": 200.0, "unit": "ms"}, "request_latency": {"value": 700.0, "unit": "ms"},
        "output_sequence_length": {"value": 9, "unit": "tokens"},
    },
}  # fmt: skip
SPEC = response()["metrics"]["speculative_decoding"]
GUIDELLM: dict[str, Any] = {
    "output_tokens": 9, "request_id": "r", "info": {"timings": {
        "request_start": 1_790_000_000.0, "first_token_iteration": 1_790_000_000.2,
        "last_token_iteration": 1_790_000_000.7,
    }},
}  # fmt: skip


def guidellm(**more: Any) -> str:
    benchmark = {"type_": "generative_benchmark", "metrics": {}, "requests": {"successful": [GUIDELLM | more]}}
    return json.dumps({"benchmarks": [benchmark]}, indent=1)


# Each: records that hold acceptance and ones of the same kind that don't, what these give, and what is to switch on.
KINDS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "vllm bodies": (jsonl(response()), jsonl(bare()), ("tpot_ms",), "--per-request-spec-decode-metrics detailed"),
    "aiperf": (
        jsonl(AIPERF | {"spec_decode_acceptance": SPEC | {"acceptance_histogram": {"0": 1, "1": 1, "3": 1}}}),
        jsonl(AIPERF), ("tpot_ms",), "a server that reports acceptance",
    ),
    "guidellm": (
        guidellm(response_metrics={"speculative_decoding": SPEC}, output_tokens=8), guidellm(), ("tpot_ms",),
        "--per-request-spec-decode-metrics detailed",
    ),
    "vllm scrape": (scrape(0, 0) + scrape(40, 100), scrape(None, 0) + scrape(None, 100), (), "is the drafter loaded"),
    "vllm bench": (jsonl(SERVE | COUNTS), jsonl(SERVE), ("tpot_ms",), "with the server's /metrics in reach"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_that_these_records_do_not_hold(tmp_path: Path, kind: str) -> None:
    whole, without, given, switch = KINDS[kind]
    assert "draft_accept_ratio" in seen(tmp_path, whole).allowed
    found = seen(tmp_path, without)
    assert found.allowed == given
    told = {figure for m in found.missing for figure in m.figure.split(", ")}
    assert {*COUNTED} <= told
    assert not told & set(given)
    assert switch in switches(found, "draft_accept_ratio")
    (known,) = found.titles.values()
    assert (known.gives, known.lacks[0]) == (given, "draft_accept_ratio")
    assert "draft_accept_ratio" in known.unfilled


def test_draft_time_needs_the_device_timer(tmp_path: Path) -> None:
    assert "rho" in seen(tmp_path, sglang(True)).allowed
    found = seen(tmp_path, sglang(False))
    assert "rho" not in found.allowed
    assert "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1" in switches(found, "rho")


def test_a_line_without_positions_gives_no_hazard(tmp_path: Path) -> None:
    assert seen(tmp_path, log(interval("12:00:10"))).allowed == ("draft_accept_ratio",)


def test_lengths_are_never_told_where_no_draft_is_counted(tmp_path: Path) -> None:
    choice = {"turns": ["x"], "decoding_steps": [2], "new_tokens": [5], "wall_time": [0.5], "accept_lengths": [3, 2]}
    found = seen(tmp_path, jsonl({"question_id": 1, "model_id": "m-eagle", "choices": [choice]}))
    assert found.allowed == ("tau_committed",)


def test_several_files_give_together_what_one_of_them_holds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl(response("a")))
    (tmp_path / "b.jsonl").write_text(jsonl(bare(id="b")))
    found = look([str(tmp_path)], IngestOptions())
    assert set(COUNTED) <= set(found.allowed)


def test_an_ingest_knows_what_it_wrote(tmp_path: Path) -> None:
    """With what `--set` brought; rows of the fast road were not looked at, and are not judged."""
    (tmp_path / "a.jsonl").write_text(jsonl(bare()))
    summary = run(tmp_path / "lake", tmp_path / "a.jsonl", sets={"temperature": "0.5"})
    assert summary.held["vllm"].of("vllm.response") == {"tpot", "temperature"}
    told = {m.figure for m in advice.missing(load(), summary.surfaces, summary.held)}
    assert "draft_accept_ratio" in told
    assert not told & {"tpot_ms", "temperature"}
    one = {"record": "round", "run_id": "a", "request_id": "r", "drafted": 3, "accepted": 1, "emitted": 2}
    (tmp_path / "b.jsonl").write_text(jsonl(*(one | {"round_index": i} for i in range(20_000))))
    summary = run(tmp_path / "lake", tmp_path / "b.jsonl")
    assert summary.rows["rounds"] == 20_000
    assert "generic" not in summary.held
    assert "temperature" not in {m.figure for m in advice.missing(load(), summary.surfaces, summary.held)}


# -- columns to needs -----------------------------------------------------------------------------------------


def needs(name: str, **columns: Any) -> set[str]:
    made = Tables()
    setattr(made, name, pl.DataFrame({"surface": ["s"], **{c: [v] for c, v in columns.items()}}))
    return held_by(made).of("s")


@pytest.mark.parametrize(
    ("name", "columns", "held"),
    [
        ("rounds", {"accepted": 2, "drafted": None}, {"counts", "rounds"}),
        ("rounds", {"accepted": 0, "drafted": 0, "emitted": 1}, {"counts", "rounds", "emitted"}),
        (
            "rounds", {"accepted": 2, "drafted": 3, "request_id": "r", "draft_us": 5},
            {"counts", "rounds", "drafted", "draft_lengths", "requests", "draft_time"},
        ),
        ("windows", {"accepted": 2, "drafted": 3}, {"counts", "drafted"}),
        (
            "windows", {"accepted": 2, "drafted": 4, "rounds": 2, "accepted_per_pos": [2, 0]},
            {"counts", "drafted", "rounds", "draft_lengths"},
        ),
        # Drafts of several lengths: the list alone tells none.
        (
            "windows", {"accepted": 2, "drafted": 3, "rounds": 2, "accepted_per_pos": [2, 0]},
            {"counts", "drafted", "rounds"},
        ),
        ("windows", {"draft_ms_per_token": 1.5, "round_us": 7}, {"draft_time", "step_time"}),
        (
            "requests", {"accepted": 2, "drafted": 4, "rounds": 2, "accepted_hist": [1, 0, 1], "emitted": 4},
            {"counts", "drafted", "rounds", "draft_lengths", "requests", "emitted"},
        ),
        ("requests", {"output_tokens": 1, "decode_us": 0, "temperature": 0.0}, {"temperature"}),
        ("requests", {"output_tokens": 2, "decode_us": 9}, {"tpot"}),
        ("requests", {"tpot_us": 9.0}, {"tpot"}),
        ("requests", {"tpot_us": 9.0, "error": True}, set()),
    ],
)  # fmt: skip
def test_needs_of_a_row(name: str, columns: dict[str, Any], held: set[str]) -> None:
    assert needs(name, **columns) == held


def test_few_rows_of_one_length_are_no_fair_sample() -> None:
    """n-gram drafts are of several lengths, and some window has rounds of one by chance."""
    rows = {"drafted": [4, 21], "rounds": [2, 8], "accepted": [2, 4], "accepted_per_pos": [[2, 0], [3, 1]]}
    held = held_by(Tables(windows=pl.DataFrame({"surface": ["s", "s"], **rows})))
    assert held.of("s") == {"counts", "drafted", "rounds"}
    most = pl.DataFrame({"surface": ["s", "s"], **rows | {"drafted": [3, 16]}})
    assert "draft_lengths" in held_by(Tables(windows=most)).of("s")


def test_no_row_holds_nothing() -> None:
    assert held_by(Tables()).all() == set()
    empty = Tables(rounds=pl.DataFrame(schema={"surface": pl.String, "accepted": pl.Int64}))
    assert held_by(empty).all() == set()


def test_a_surface_without_rows_is_part_of_what_others_rows_tell() -> None:
    held = Held({"a": {"counts"}, "b": {"tpot"}})
    assert (held.of("a"), held.of("start")) == ({"counts"}, {"counts", "tpot"})


def test_every_figure_that_a_surface_names_can_be_held() -> None:
    """No figure of a surface waits for a need that no column meets."""
    everything = Held({s.name: set(_ALL) for e in load() for s in e.surfaces})
    for engine in load():
        for surface in engine.surfaces:
            assert advice.of_surface(surface, everything)[2] == ()


_ALL = {
    "counts", "drafted", "draft_time", "target_time", "step_time", "temperature", "draft_lengths", "rounds", "emitted",
    "requests", "tpot",
}  # fmt: skip


def test_lengths_are_judged_by_all_rows_of_a_source_together() -> None:
    def rows(k: int, rounds: int) -> Held:
        columns = {"surface": ["a"], "drafted": [3 * rounds], "rounds": [rounds], "num_speculative_tokens": [k]}
        return held_by(Tables(requests=pl.DataFrame(columns | {"accepted": [0], "accepted_hist": [[rounds, 0, 0, 0]]})))

    fixed, loose = rows(3, 10), rows(2, 10)
    assert ("draft_lengths" in fixed.all(), "draft_lengths" in loose.all()) == (True, False)
    for parts in ((fixed, loose), (loose, fixed)):
        whole = Held()
        for part in parts:
            whole.more(part)
        assert "draft_lengths" not in whole.of("a")
        whole.more(rows(3, 60))
        assert "draft_lengths" in whole.of("a")
    lake = Held()  # of several sources each speaks for itself
    lake.add(fixed)
    lake.add(loose)
    assert "draft_lengths" in lake.of("a")


@pytest.mark.parametrize(("ms", "has"), [(7, True), (0, False)])
def test_fine_stamps_of_a_request_hold_its_tpot(ms: int, has: bool) -> None:
    """As the view `requests` takes them: whole seconds are no times of tokens."""
    first, end = (dt.datetime(2026, 5, 6, 12, 0, s, 1000 * ms) for s in (1, 3))
    rows = pl.DataFrame({"surface": ["x"], "ts_first_token": [first], "ts_end": [end], "output_tokens": [11]})
    assert ("tpot" in held_by(Tables(requests=rows)).all()) is has
