"""vLLM's smaller records: ends of requests, logged outputs and bodies, padding, MFU, JSON logging."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vllm_forward_times import START, WORKED, start, stats
from test_vllm_responses import BODY, ROW
from vllm_lines import API, BRACKET, LINES, at, c_line, check, ingest, only, parsed_lines, shown

from tracelens.engines.base import Context
from tracelens.engines.vllm import ENGINE
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as ingest_paths
from tracelens.lake.connection import connect
from tracelens.sources.clocks import resolve

CANARY = "CANARY"

# ---------------------------------------------------------------- ends of requests
ENDS = ("request_id", "finish_reason", "ts_end", "surface")


def test_finished_and_aborted_requests() -> None:
    tables, rejects = ingest(
        BRACKET.format(1) + "Finished request cmpl-a.1-0.",
        BRACKET.format(2) + "Aborted request cmpl-b.",
        API.format(3) + "Aborted request(s) cmpl-c-0-8395499e,cmpl-d.",
        API.format(3) + "Request cmpl-d aborted.",
        "INFO 05-06 12:00:04 async_llm_engine.py:134] Finished request 7f3a.",
    )
    finish = "vllm.finish_line"
    assert shown(tables.requests, *ENDS) == [
        ("cmpl-a.1-0", None, at(1), finish),
        ("cmpl-b", "abort", at(2), finish),
        ("cmpl-c-0-8395499e", "abort", at(3), finish),
        ("cmpl-d", "abort", at(3), finish),
        ("7f3a", None, at(4), finish),
    ]
    assert rejects == []


def test_an_id_used_twice_ends_twice() -> None:
    line = "Finished request cmpl-a."
    tables, _ = ingest(BRACKET.format(1) + line, BRACKET.format(9) + line, BRACKET.format(9) + line)
    assert shown(tables.requests, "ts_end") == [(at(1),), (at(9),)]


def test_an_id_that_was_cut_is_a_reject() -> None:
    tables, rejects = ingest(BRACKET.format(1) + "Finished request cmpl-a.1")
    assert tables.requests is None
    assert [r.reason for r in rejects] == ["incomplete line: no request_id"]


@pytest.mark.parametrize(
    "text",
    [
        "Finished request 12.",  # some other program's
        "2026-05-06T12:00:00Z gateway: Finished request 12.",
        BRACKET.format(1) + "Finished request handling in 5 ms.",
        BRACKET.format(1) + "Request cmpl-a failed.",
    ],
)
def test_other_programs_finish_requests_too(text: str) -> None:
    tables, rejects = ingest(text)
    assert (tables.requests, rejects) == (None, [])


def output(request: str, text: str, reason: str | None, part: str = "") -> str:
    return f"Generated response {request}{part}: output: {text!r}, output_token_ids: [5, 17], finish_reason: {reason}"


FAKE = f"{CANARY}, finish_reason: stop SpecDecoding metrics: Accepted: 5 tokens Finished request x."


def test_generated_responses_tell_the_end_and_not_the_text() -> None:
    tables, rejects = ingest(
        API.format(1) + output("chatcmpl-a", FAKE, "length"),
        API.format(2) + output("chatcmpl-b", FAKE, None),
        API.format(3) + output("chatcmpl-c", FAKE, "stop").replace(", output_token_ids: [5, 17]", ""),  # from ~0.28
        API.format(4) + output("chatcmpl-d", FAKE, "stop")[:60],
        API.format(5) + output("chatcmpl-e", FAKE, "whatever"),
        API.format(6) + "Generated response chatcmpl-f details: output_token_ids: []",
    )
    surface = "vllm.output_line"
    assert shown(tables.requests, *ENDS) == [
        ("chatcmpl-a", "length", at(1), surface),
        ("chatcmpl-b", None, at(2), surface),
        ("chatcmpl-c", "stop", at(3), surface),
        ("chatcmpl-d", None, at(4), surface),
        ("chatcmpl-e", None, at(5), surface),
    ]
    assert (tables.windows, rejects) == (None, [])


def test_a_stream_s_pieces_are_one_response() -> None:
    """The last piece says why it ended; the closing line says `streaming_complete` only."""
    delta, complete = " (streaming delta)", " (streaming complete)"
    tables, _ = ingest(
        API.format(1) + output("chatcmpl-a", "x", None, delta),
        API.format(2) + output("chatcmpl-a", "y", "length", delta),
        API.format(3) + output("chatcmpl-b", "z", None, delta),
        API.format(4) + output("chatcmpl-a", "xy", "streaming_complete", complete),
        API.format(4) + output("chatcmpl-a", "other choice", "streaming_complete", complete),
        API.format(5) + output("chatcmpl-b", "z", "streaming_complete", complete),
        API.format(6) + output("chatcmpl-a", "again", "stop", delta),
        API.format(7) + output("chatcmpl-a", "again", "streaming_complete", complete),
    )
    assert shown(tables.requests, "request_id", "finish_reason", "ts_end", "source_line") == [
        ("chatcmpl-a", "length", at(4), 4),
        ("chatcmpl-b", None, at(5), 6),
        ("chatcmpl-a", "stop", at(7), 8),
    ]


# ---------------------------------------------------------------- response bodies
@pytest.mark.parametrize("form", ["response_body={{{}}}", "response_body={}"])
def test_a_logged_body_is_a_response(form: str) -> None:
    """`response_body={%s}` around the body (0.8.5 and later); the run is that of the start above."""
    tables, rejects = ingest(start(), API.format(9) + form.format(json.dumps(BODY)))
    assert only(tables.requests) == ROW | {"run_key": 1, "source_line": 2}
    assert tables.rounds is not None
    assert tables.rounds["run_key"].to_list() == [1] * 4
    assert tables.rounds["accepted"].to_list() == [0, 1, 3, 1]
    assert CANARY not in str(tables.requests.to_dicts())  # type: ignore[union-attr]
    assert rejects == []


def test_a_client_s_record_beside_it_stays_before_the_start() -> None:
    tables, _ = ingest(start(), API.format(9) + f"response_body={{{json.dumps(BODY)}}}", BODY | {"id": "cmpl-other"})
    assert shown(tables.requests, "request_id", "run_key") == [("chatcmpl-sum.7f3a", 1), ("cmpl-other", 0)]


def test_a_body_without_a_start_is_of_the_run_before() -> None:
    assert only(ingest(API.format(9) + f"response_body={{{json.dumps(BODY)}}}")[0].requests)["run_key"] == 0


def test_the_line_s_own_stamp_is_its_end() -> None:
    body = {k: v for k, v in BODY.items() if k != "created"}
    row = only(ingest(API.format(9) + f"response_body={{{json.dumps(body)}}}")[0].requests)
    assert row["ts_end"] == at(9)


def test_a_body_that_was_cut_is_a_reject_without_its_text() -> None:
    text = f"response_body={{{json.dumps(BODY)}}}"
    tables, rejects = ingest(API.format(9) + text[:-40])
    assert tables.requests is None
    assert [(r.line, r.surface, r.reason) for r in rejects] == [(1, "vllm.response", "response_body: broken JSON")]


@pytest.mark.parametrize(
    "body",
    [
        "{<empty>}",
        "{<binary_data>}",
        "{streaming_complete: content='speculative_decoding', chunks=12}",
        '{{"object":"list","data":[]}}',
        '{[{"metrics": {"num_spec_steps": 1}}]}',
        "{# HELP vllm:spec_decode_num_drafts}",
        json.dumps({"choices": [{"text": c_line(5, 8, [3, 2], 4)}]}),
    ],
)
def test_bodies_of_other_calls_are_nothing(body: str) -> None:
    tables, rejects = ingest(API.format(9) + f"response_body={body}")
    assert (tables.requests, tables.windows, rejects) == (None, None, [])


def test_a_body_that_breaks_an_identity_is_a_reject() -> None:
    body = json.loads(json.dumps(BODY))
    body["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] = 99
    _, rejects = ingest(API.format(9) + f"response_body={{{json.dumps(body)}}}")
    assert [r.surface for r in rejects] == ["vllm.response"]


# ---------------------------------------------------------------- context, and JSON logging
TABLE = (
    "**CUDAGraph Config Settings:**\n\n- Mode: FULL_AND_PIECEWISE\n- Capture sizes: [1, 2, 4, 8]\n\n"
    "**CUDAGraph Stats:**\n\n"
    "| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |\n"
    "|-----------------|---------------|--------------|--------------|-------|\n"
    "| 5               | 8             | 3            | FULL         | 120   |\n"
)
MFU = "Engine 000: MFU: 123.4 TF/s/device 567.8 GB/s/device"


def recognised(*texts: str, process: str | None = None) -> dict[str, int]:
    parsed = parsed_lines(*texts, process=process)
    assert parsed.rejects == []
    return {surface: sum(f.height for f in frames) for surface, frames in parsed.frames.items()}


def test_padding_tables_and_mfu_lines_are_counted_and_give_no_row() -> None:
    lines = [API.format(1) + line for line in (*TABLE.splitlines(), MFU)]
    assert recognised(*lines) == {"vllm.cudagraph_table": 1, "vllm.mfu_line": 1}
    assert recognised(TABLE, MFU, process="MainProcess 5") == {"vllm.cudagraph_table": 1, "vllm.mfu_line": 1}
    tables, _ = ingest(*lines)
    assert (tables.windows, tables.requests, tables.rounds, tables.runs) == (None, None, None, None)


@pytest.mark.parametrize("text", ["MFU: unknown", "a table | Unpadded Tokens | of a user", "the MFU: 1.0 TF/s of it"])
def test_what_only_reads_alike_is_nothing(text: str) -> None:
    assert recognised(API.format(1) + text) == {}


def test_every_surface_is_declared_once() -> None:
    names = [s.name for s in ENGINE.surfaces]
    assert len(set(names)) == len(names)
    assert set(recognised(API.format(1) + MFU)) <= set(names)


def as_json(second: str, message: str, process: str = "MainProcess", pid: int = 330) -> str:
    record = {"asctime": f"2025-05-06 12:00:{second}", "levelname": "INFO", "name": "vllm.x", "processName": process}
    return json.dumps(record | {"process": pid, "message": message, "vllm_process_name": process})


def test_json_logging_brings_year_and_milliseconds(tmp_path: Path) -> None:
    """`--logging-config.formatter json` (0.32 and later): the stamp has a year and ms, the message no prefix."""
    lines = [
        as_json("00,001", START.format("draft_model", 4), "EngineCore", 9),
        as_json("05,250", "Received request cmpl-a-0: params: SamplingParams(n=1, temperature=0.7, top_p=0.9)"),
        'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK',
        as_json("10,500", c_line(250, 400, [90, 70, 50, 40], 100)),
        as_json(
            "10,750", f"Batchsize forward time stats (batchsize, count, median_time(ms)): {WORKED}", "Worker", 6000
        ),
        as_json("11,125", output("cmpl-a", FAKE, "length")),
        as_json("11,500", TABLE),
        as_json("11,625", f"response_body={{{json.dumps(BODY)}}}"),
    ]
    (tmp_path / "server.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ingest_paths([str(tmp_path / "server.log")], tmp_path / "lake", IngestOptions(tz="UTC", jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        rows = con.execute(
            "select surface, ts_end, ts_basis, draft_us, accepted from windows order by source_line"
        ).fetchall()
        assert rows == [
            ("vllm.v1_line", datetime(2025, 5, 6, 12, 0, 10, 500_000), "absolute", None, 250),
            ("vllm.batchsize_line", datetime(2025, 5, 6, 12, 0, 10, 750_000), "absolute", 21_620, None),
        ]
        # Arrival and end of one request, seen on two surfaces, are one row.
        joined = con.execute(
            "select request_id, ts_start, ts_end, temperature, finish_reason, records, conflicts from requests_joined "
            "where request_id like 'cmpl-a%'"
        ).fetchall()
        assert [r[1:] for r in joined] == [
            (datetime(2025, 5, 6, 12, 0, 5, 250_000), datetime(2025, 5, 6, 12, 0, 11, 125_000), 0.7, "length", 2, 0)
        ]
        assert con.execute("select count(distinct run_id) from runs").fetchone() == (1,)
        surfaces = con.execute("select surfaces, rejects, unrecognised from sources").fetchall()
        assert surfaces[0][0] == {
            "vllm.start": 1, "vllm.request_line": 1, "vllm.v1_line": 1, "vllm.batchsize_line": 1,
            "vllm.output_line": 1, "vllm.cudagraph_table": 1, "vllm.response": 1,
        }  # fmt: skip
        assert surfaces[0][1:] == (0, 1)
    lake = b"".join(p.read_bytes() for p in (tmp_path / "lake").rglob("*") if p.is_file())
    assert CANARY.encode() not in lake


# ---------------------------------------------------------------- anything at all
PIECES = st.sampled_from(
    [
        start(), stats(17, *WORKED), BRACKET.format(1) + "Finished request cmpl-a.",
        API.format(2) + "Aborted request(s) a,,b.", API.format(2) + output("a", FAKE, "stop"),
        API.format(2) + output("a", "x", "stop", " (streaming delta)"), API.format(3) + MFU,
        API.format(3) + f"response_body={{{json.dumps(BODY)}}}", API.format(4) + TABLE.splitlines()[7],
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(PIECES, st.integers(0, 400), st.integers(0, 400), st.text(max_size=6)), max_size=6))
def test_cuts_and_junk_never_raise(parts: Sequence[tuple[str, int, int, str]]) -> None:
    texts = [text[:a] + junk + text[a + b :] for text, a, b, junk in parts]
    rows = [(i, 10 * i, text, None, None, None) for i, text in enumerate(texts, 1)]
    parsed = ENGINE.lines(pl.DataFrame(rows, schema={"line": pl.Int64, "offset": pl.Int64, **LINES}, orient="row"))
    context = Context("src", lambda f: resolve(f, tz="UTC", year=2026, mtime=None))
    tables = ENGINE.assemble(parsed.frames, context)
    check(tables)
    for reject in parsed.rejects + tables.rejects:
        assert CANARY not in reject.reason
