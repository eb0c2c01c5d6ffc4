"""One server seen through several surfaces: its log, /metrics, requests, spans and /server_info, ingested together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_sglang import line
from test_sglang_bench import SERVER
from test_sglang_metrics import front_end, scheduler, stamped
from test_sglang_otel import LATENCIES, Trace, otlp

from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect

ARGS = "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4"
START = f"[2026-09-20 09:59:00] server_args=ServerArgs(model_path='m', speculative_algorithm='EAGLE3', {ARGS})"


def metrics() -> str:
    told = {"length": 2.5, "rate": 0.5, "steps": 3, "verified": 4, "throughput": 100.0}
    times = {"target_verify": 2.0, "eagle_draft": 0.5, "eagle_draft_extend": 0.1}
    pages = [
        scheduler(1000.0 * i, 100.0 * i, {k: i * v for k, v in times.items()}, **told)
        + front_end(1010.0 * i, 10.0 * i, 400.0 * i, gap_s=8.0 * i)
        for i in (1, 2, 3)
    ]
    return stamped(*pages)


def export(number: int) -> str:
    record = {
        "request_parameters": json.dumps({"sampling_params": {"temperature": 0.7}}), "id": f"req-{number:05}",
        "prompt_tokens": 9, "completion_tokens": 26, "e2e_latency": 1.1, "first_token_latency": 0.1,
        "spec_num_correct_drafts": 15, "spec_num_proposed_drafts": 30, "spec_verify_ct": 10,
        "spec_correct_drafts_histogram": [2, 3, 3, 2],
    }  # fmt: skip
    return json.dumps(record)


def lake_of(folder: Path, files: dict[str, str]) -> Path:
    logs = folder / "logs"
    logs.mkdir()
    for name, text in files.items():
        (logs / name).write_text(text, encoding="utf-8")
    summary = ingest([str(logs)], folder / "lake", IngestOptions())
    assert summary.rejects == 0
    return folder / "lake"


def one(lake: Path, sql: str) -> tuple[Any, ...]:
    with connect(lake, keep=True) as con:
        rows = con.execute(sql).fetchall()
    assert len(rows) == 1
    return tuple(rows[0])


def test_nothing_counts_twice(tmp_path: Path) -> None:
    lines = [line(f"10:00:{s:02}", 4, 2.5, 0.5).replace("2026-03-12", "2026-09-20") for s in range(10)]
    files = {
        "server.log": "\n".join([START, *lines]) + "\n",
        "metrics.prom": metrics(),
        "export.jsonl": "\n".join(export(i) for i in range(3)) + "\n",
    }
    lake = lake_of(tmp_path, files)
    assert one(lake, "select count(distinct run_id), min(num_speculative_tokens), min(role) from runs") == (
        1,
        3,
        "speculative",
    )
    # Counts are those of the requests, which are the finest grain; draft and verify time those of the only timer.
    assert one(lake, "select sum(rounds), sum(drafted), sum(accepted), list_sum(max(accepted_hist)) from facts") == (
        30, 90, 45, 10,
    )  # fmt: skip
    sql = "select sum(draft_us), sum(drafted_timed), sum(target_us), sum(time_rounds) from facts where draft_us > 0"
    draft, drafted, target, rounds = one(lake, sql)
    # In the view of a request-round each carries its whole step: 4 requests shared each of 200 passes. How many shared
    # the 100 before the first scrape is not known.
    assert (draft / rounds, target / rounds) == pytest.approx((6_000, 20_000))
    assert (drafted, rounds) == (2400, 900)


def test_metrics_alone_take_the_exact_count(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, {"metrics.prom": metrics()})
    assert one(lake, "select sum(rounds), sum(accepted), sum(drafted) from facts where rounds is not null") == (
        1200, 1800, 3600,
    )  # fmt: skip
    assert one(lake, "select count(*) from facts where accepted is not null and surface = 'sglang.metrics'") == (0,)


def test_server_info_tells_of_the_run_beside_it(tmp_path: Path) -> None:
    lines = [line(f"10:00:{s:02}", 4, 2.5) for s in range(3)]
    files = {"server.log": "\n".join(lines) + "\n", "server_info.json": json.dumps(SERVER, indent=1)}
    lake = lake_of(tmp_path, files)
    told = "select count(distinct run_id), max(num_speculative_tokens), max(method), max(engine_version) from runs"
    assert one(lake, told) == (1, 3, "eagle3", "0.5.12")
    lone = "select count(*), sum(accepted), max(num_speculative_tokens) from facts where accepted is not null"
    assert one(lake, lone) == (3, 720, 3)


def test_spans_as_otlp(tmp_path: Path) -> None:
    trace = Trace("r-1", "a" * 32, **LATENCIES)
    for i, accepted in enumerate((3, 0, 2)):
        trace.round(100 + 20 * i, 3, 12, 1, accepted, "num_correct_drafts")
    lake = lake_of(tmp_path, {"traces.jsonl": json.dumps(otlp(trace.spans)) + "\n"})
    sql = "select count(*), sum(accepted), sum(draft_us), sum(target_us), min(temperature) from facts"
    sql += " where grain = 'round'"
    assert one(lake, sql) == (3, 5, 12_000, 36_000, 0.7)
    assert one(lake, "select request_id, tpot_us, output_tokens from requests") == ("r-1", pytest.approx(10_000), 90)
