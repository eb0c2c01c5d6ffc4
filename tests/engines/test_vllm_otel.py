"""`llm_request` spans of vLLM as requests, against what the same run's responses say of them."""

from __future__ import annotations

import gzip
import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, Parsed, Span, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.vllm import ENGINE, otel
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.lake.schema import table
from tracelens.sources.clocks import resolve

DATA = Path(__file__).parents[1] / "data" / "vllm"
START = 1_795_953_255_033_706_496
V1: dict[str, Any] = {
    "gen_ai.latency.time_to_first_token": 0.34,
    "gen_ai.latency.e2e": 1.34,
    "gen_ai.latency.time_in_queue": 0.001286,
    "gen_ai.usage.prompt_tokens": 38,
    "gen_ai.usage.completion_tokens": 11,
    "gen_ai.latency.time_in_model_prefill": 0.25,
    "gen_ai.latency.time_in_model_decode": 0.9,
    "gen_ai.latency.time_in_model_inference": 1.15,
    "gen_ai.request.id": "cmpl-code.7f3a-0",
    "gen_ai.request.top_p": 0.9,
    "gen_ai.request.max_tokens": 32,
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.n": 1,
}
V0: dict[str, Any] = {
    "gen_ai.response.model": "/models/org/big",
    "gen_ai.request.id": "cmpl-1",
    "gen_ai.request.temperature": 1.0,
    "gen_ai.request.top_p": 1.0,
    "gen_ai.request.max_tokens": 16,
    "gen_ai.request.n": 1,
    "gen_ai.usage.num_sequences": 1,
    "gen_ai.usage.prompt_tokens": 5,
    "gen_ai.usage.completion_tokens": 16,
    "gen_ai.latency.time_in_queue": 0.002,
    "gen_ai.latency.time_to_first_token": 0.1,
    "gen_ai.latency.e2e": 1.6,
    "gen_ai.latency.time_in_scheduler": 0.01,
}


def span(attributes: dict[str, Any], number: int = 1, name: str = "llm_request", **change: Any) -> Span:
    fields: dict[str, Any] = {
        "line": number,
        "name": name,
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "start_ns": START,
        "end_ns": START + 1_350_000_000,
        "attributes": attributes,
        "resource": {"service.name": "CANARY", "host.name": "CANARY"},
    }
    return Span(**{**fields, **change})


def without(attributes: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in attributes.items() if k.removeprefix("gen_ai.") not in keys}


def made(parsed: Parsed) -> Tables:
    context = Context("s", lambda frame: resolve(frame, tz=None, year=None, mtime=None))
    return ENGINE.assemble(parsed.frames, context)


def requests(*spans: Span) -> list[dict[str, Any]]:
    parsed = otel.parse(spans)
    assert parsed.rejects == []
    rows = made(parsed).requests
    assert rows is not None
    return rows.to_dicts()


def one(attributes: dict[str, Any]) -> dict[str, Any]:
    (row,) = requests(span(attributes))
    return row


def test_a_span_of_v1() -> None:
    start = datetime.fromtimestamp(START // 10**9, UTC).replace(tzinfo=None, microsecond=33706)
    assert one(V1) == {
        "ts_start": start,
        "ts_first_token": start + timedelta(seconds=0.34),
        "ts_end": start + timedelta(seconds=1.34),
        "ts_basis": "absolute",
        "surface": "vllm.otel_span",
        "source_line": 1,
        "request_id": "cmpl-code.7f3a-0",
        "model": None,
        "temperature": 0.7,
        "top_p": 0.9,
        "prompt_tokens": 38,
        "output_tokens": 11,
        "ttft_us": 340_000,
        "e2e_us": 1_340_000,
        "queue_us": 1286,
        "decode_us": 900_000,
        "tpot_us": pytest.approx(90_000),
        "tpot_basis": "derived",
    }


def test_a_span_of_v0_has_its_decode_time_between_first_token_and_end() -> None:
    row = one(V0)
    assert (row["decode_us"], row["tpot_us"]) == (1_500_000, pytest.approx(100_000))
    assert row["model"] == "big"  # a folder of the machine stays there
    assert row["temperature"] == 1.0


def test_greedy_requests_leave_the_temperature_out() -> None:
    assert one(without(V1, "request.temperature"))["temperature"] == 0.0
    assert one(V1 | {"gen_ai.request.temperature": 0.0})["temperature"] == 0.0
    bare = without(V1, "request.temperature", "request.top_p", "request.max_tokens", "request.n")
    assert one(bare)["temperature"] is None  # a span without any sampling parameter tells of none


def test_a_missing_top_p_is_unknown() -> None:
    row = one(without(V1, "request.top_p"))
    assert (row["top_p"], row["temperature"]) == (None, 0.7)


@pytest.mark.parametrize("change", [{"gen_ai.request.n": 4}, {"gen_ai.usage.num_sequences": 2}])
def test_tokens_of_several_sequences_give_no_tpot(change: dict[str, Any]) -> None:
    row = one(V1 | change)
    assert (row["tpot_us"], row["tpot_basis"], row["output_tokens"]) == (None, None, 11)


def test_one_token_has_no_tpot() -> None:
    assert one(V1 | {"gen_ai.usage.completion_tokens": 1})["tpot_us"] is None


def test_figures_may_be_text_and_what_is_missing_is_null() -> None:
    row = one({"gen_ai.latency.e2e": "1.5", "gen_ai.usage.completion_tokens": "4"})
    assert (row["e2e_us"], row["output_tokens"], row["ttft_us"], row["tpot_us"]) == (1_500_000, 4, None, None)
    assert row["request_id"] == "span-0000000000000001"


def test_a_span_without_stamps_has_no_time() -> None:
    (row,) = requests(span(V1, start_ns=None, end_ns=None))
    assert (row["ts_start"], row["ts_end"], row["ts_basis"]) == (None, None, "none")
    (row,) = requests(span(without(V1, "latency.e2e")))
    assert row["ts_end"] == row["ts_start"] + timedelta(seconds=1.35)


def test_a_span_that_is_exported_again_counts_once() -> None:
    parsed = otel.parse([span(V1, 1), span(V1, 2)])
    parsed.merge(otel.parse([span(V1, 1, line=9), span(V1, 3, trace_id=f"{1:032x}")]))
    tables = made(parsed)
    assert tables.requests is not None
    assert tables.requests["source_line"].to_list() == [1, 2, 3]
    assert [(r.line, r.reason, r.surface) for r in tables.rejects] == [
        (9, "a span that was exported before", "vllm.otel_span")
    ]


def test_spans_without_an_id_are_all_kept() -> None:
    assert len(requests(span(V1, 1, trace_id="", span_id=""), span(V1, 2, trace_id="", span_id=""))) == 2


@pytest.mark.parametrize(
    ("attributes", "change", "reason"),
    [
        ({}, {}, "a request span without its figures"),
        ({"gen_ai.request.id": "a", "gen_ai.request.n": 1}, {}, "a request span without its figures"),
        (V1 | {"gen_ai.latency.e2e": "much"}, {}, "a figure that is no number"),
        (V1 | {"gen_ai.latency.e2e": float("nan")}, {}, "a figure that is no number"),
        (V1 | {"gen_ai.latency.e2e": float("inf")}, {}, "a figure that is no number"),
        (V1 | {"gen_ai.latency.e2e": True}, {}, "a figure that is no number"),
        (V1 | {"gen_ai.latency.e2e": [1.0]}, {}, "a figure that is no number"),
        (V1 | {"gen_ai.latency.time_in_model_decode": -0.5}, {}, "a negative figure"),
        (V1 | {"gen_ai.latency.time_in_model_decode": 1e12}, {}, "a duration out of range"),
        (V1 | {"gen_ai.usage.completion_tokens": 1.5}, {}, "a token count that is no whole number, or out of range"),
        (V1 | {"gen_ai.usage.completion_tokens": 10**30}, {}, "a token count that is no whole number, or out of range"),
        (V1 | {"gen_ai.request.temperature": 1e9}, {}, "temperature or top_p out of range"),
        (V1, {"end_ns": START - 1}, "the span ends before it begins"),  # the clock was put back
        (V1 | {"gen_ai.latency.e2e": 0.2}, {}, "the first token comes after the end"),
        (V1 | {"gen_ai.latency.time_in_model_decode": 3.0}, {}, "the decode time is longer than the request"),
    ],
)
def test_a_span_that_cannot_be_is_refused(attributes: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    parsed = otel.parse([span(attributes, **change), span(V1, 2)])
    assert [(r.line, r.reason, r.surface) for r in parsed.rejects] == [(1, reason, "vllm.otel_span")]
    assert sum(f.height for f in parsed.frames["vllm.otel_span"]) == 1
    assert parsed.claimed == 2


def test_spans_of_the_start_and_of_others_are_no_requests() -> None:
    own = span({}, 1, "Load model", resource={"vllm.instrumenting_module_name": "vllm.worker"})
    parsed = otel.parse([own, span({}, 2, "HTTP POST")])
    assert (parsed.frames, parsed.rejects, parsed.claimed) == ({}, [], 1)
    assert otel.parse([]).claimed == 0


FIGURE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)
KEYS = sorted({*V1, *V0})


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), FIGURE), max_size=4), st.integers(0, 2**63 - 1))
@settings(deadline=None)
def test_whatever_the_attributes_hold_a_row_keeps_the_rules_or_is_refused(
    attributes: list[dict[str, Any]], start: int
) -> None:
    spans = [span(a, n, start_ns=start or None, end_ns=None) for n, a in enumerate(attributes, 1)]
    parsed = otel.parse(spans)
    rows = made(parsed).requests if parsed.frames else None
    assert len(spans) == len(parsed.rejects) + (0 if rows is None else rows.height)
    if rows is None:
        return
    types = table("requests").polars_schema()
    full = rows.cast({c: t for c, t in types.items() if c in rows.columns})
    missing = [pl.lit(None, t).alias(c) for c, t in types.items() if c not in full.columns]
    assert (
        full.with_columns(missing)
        .select(broken_identities("requests", full.with_columns(missing)))
        .to_series()
        .is_null()
        .all()
    )
    for name in ("ttft_us", "e2e_us", "queue_us", "decode_us", "tpot_us"):
        assert (rows[name].drop_nulls() >= 0).all()


# -- a real run: vLLM 0.32, draft model, K = 3 ------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    lake = tmp_path_factory.mktemp("otel") / "lake"
    summary = ingest([str(DATA / "otlp_spans.jsonl.gz")], lake, IngestOptions())
    assert (summary.rejects, summary.surfaces) == (0, {"vllm.otel_span": 152})
    assert summary.unrecognised == 0  # the other lines hold spans of the start
    with connect(lake, keep=True) as con:
        cursor = con.execute("from requests")
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_every_request_of_a_real_run_has_its_span(real: list[dict[str, Any]]) -> None:
    kinds = [row["request_id"].removeprefix("cmpl-").split("-")[0] for row in real]
    # 108 requests of the drive and 6 of the profile, which repeat ids of the drive; 36 of the bench; 2 to warm up.
    assert {k: kinds.count(k) for k in set(kinds)} == {"chat": 36, "code": 39, "copy": 39, "bench": 36, "warmup": 2}


def test_spans_agree_with_the_responses_of_the_same_requests(real: list[dict[str, Any]]) -> None:
    with gzip.open(DATA / "otlp_responses.jsonl.gz", "rt", encoding="utf-8") as lines:
        responses = [json.loads(line) for line in lines]
    spans: dict[str, list[dict[str, Any]]] = {}
    for row in real:
        spans.setdefault(row["request_id"].removeprefix("cmpl-").removesuffix("-0"), []).append(row)
    assert len(responses) == 108
    for response in responses:
        sent = datetime.fromtimestamp(response["t_send"], UTC).replace(tzinfo=None)
        row = min(spans[response["request_id"]], key=lambda r: abs(r["ts_start"] - sent))
        metrics, usage = response["metrics"], response["usage"]
        assert row["output_tokens"] == usage["completion_tokens"]
        assert row["prompt_tokens"] == usage["prompt_tokens"]
        assert row["temperature"] == response["temperature"]  # 36 of them greedy: left out of their spans
        assert abs(row["decode_us"] - metrics["generation_time_ms"] * 1000) <= 0.51
        assert abs(row["queue_us"] - metrics["queue_time_ms"] * 1000) <= 0.51
        assert row["tpot_us"] == pytest.approx(metrics["mean_itl_ms"] * 1000, rel=1e-9)
        # The response's TTFT begins with the first scheduling, the span's with the arrival; the client's is later.
        scheduled = (metrics["queue_time_ms"] + metrics["time_to_first_token_ms"]) * 1000
        assert scheduled <= row["ttft_us"] + 1
        assert row["ttft_us"] <= response["chunks"][0][0] * 1e6
        assert row["e2e_us"] <= response["e2e_s"] * 1e6


def test_nothing_of_the_machine_is_kept(tmp_path: Path) -> None:
    record = {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "host.name", "value": {"stringValue": "CANARY-1"}}]},
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "0af7651916cd43dd8448eb211c80319c",
                                "spanId": "00f067aa0ba902b7",
                                "name": "llm_request",
                                "startTimeUnixNano": str(START),
                                "endTimeUnixNano": str(START + 10**9),
                                "attributes": [
                                    {"key": "net.peer.ip", "value": {"stringValue": "CANARY-2"}},
                                    {"key": "enduser.id", "value": {"stringValue": "CANARY-3"}},
                                    {"key": "gen_ai.prompt", "value": {"stringValue": "CANARY-4"}},
                                    {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 1.0}},
                                ],
                            }
                        ]
                    }
                ],
            }
        ]
    }
    (tmp_path / "spans.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    ingest([str(tmp_path / "spans.jsonl")], tmp_path / "lake", IngestOptions())
    files = [p.read_bytes() for p in (tmp_path / "lake").rglob("*.parquet")]
    assert files
    assert not any(b"CANARY" in data for data in files)
    with connect(tmp_path / "lake", keep=True) as con:
        assert con.execute("select e2e_us, request_id from requests").fetchall() == [
            (1_000_000, "span-00f067aa0ba902b7")
        ]


@pytest.mark.parametrize("name", ["spans.jsonl", "spans.pb"])
def test_spans_beside_a_log_belong_to_the_run_that_the_log_tells_of(tmp_path: Path, name: str) -> None:
    start = "INFO 11-29 11:52:01 [core.py:58] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
    (tmp_path / "server.log").write_text(start + "speculative_config=None\n", encoding="utf-8")
    ids = (bytes(range(16)), bytes(range(8)))
    if name.endswith("pb"):
        pair = b"\x0a\x12gen_ai.latency.e2e\x12\x09\x21" + struct.pack("<d", 1.5)
        body = b"\x0a\x10" + ids[0] + b"\x12\x08" + ids[1] + b"\x2a\x0bllm_request"
        body += b"\x39" + struct.pack("<Q", START) + b"\x4a" + bytes([len(pair)]) + pair
        for tag in (b"\x12", b"\x12", b"\x0a"):  # Span, ScopeSpans, ResourceSpans
            body = tag + bytes([len(body)]) + body
        (tmp_path / name).write_bytes(body)
    else:
        attribute = {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 1.5}}
        one = {"traceId": ids[0].hex(), "spanId": ids[1].hex(), "name": "llm_request", "attributes": [attribute]}
        one["startTimeUnixNano"] = str(START)
        value = {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}
        (tmp_path / name).write_text(json.dumps(value) + "\n", encoding="utf-8")
    ingest([str(tmp_path)], tmp_path / "lake", IngestOptions(tz="UTC"))
    with connect(tmp_path / "lake", keep=True) as con:
        found = con.execute(
            "select e2e_us, request_id, ts_start = make_timestamp(?), run_id in (select run_id from runs where "
            "engine_version = '0.32.0') from requests",
            [START // 1000],
        ).fetchall()
    assert found == [(1_500_000, f"span-{ids[1].hex()}", True, True)]
