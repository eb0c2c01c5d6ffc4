from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, JsonRecord, Reject, Span
from tracelens.engines.vllm import ENGINE
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.read import read
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.sources import otlp_wire, spans
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

from .otlp import (
    any_value,
    chunk,
    facts,
    framed,
    jaeger,
    jaeger_document,
    otlp,
    pb_group,
    pb_message,
    pb_pair,
    pb_span,
    pb_value,
    sample,
    varint,
)

SPANS = [sample(n) for n in range(3)]
WANTED = [facts(s) for s in SPANS]


def of_json(value: dict[str, Any]) -> tuple[list[tuple[Any, ...]], list[Reject]]:
    # What an exporter writes has gone through JSON.
    record = JsonRecord(5, 17, None, None, json.loads(json.dumps(value)))
    assert spans.holds(record.value)
    rejects: list[Reject] = []
    found = spans.of_record(record, rejects)
    assert {s.line for s in found} <= {5}
    return [facts(s) for s in found], rejects


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def of_bytes(data: bytes, size: int = 1 << 20) -> tuple[list[Span], list[Reject]]:
    rejects: list[Reject] = []
    return [s for lot in spans.of_protobuf(pieces(data, size), rejects) for s in lot], rejects


# -- JSON -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        otlp(SPANS),
        otlp(SPANS, as_base64=True),
        otlp(SPANS, numbers=True),
        otlp(SPANS, snake=True),
        otlp(SPANS, scopes="instrumentationLibrarySpans"),
        otlp(SPANS, groups="batches"),
        {"trace": otlp(SPANS)},
        {"trace": otlp(SPANS, groups="batches")},
        jaeger(SPANS),
    ],
    ids=["otlp", "base64", "numbers", "snake", "0.x", "tempo", "tempo-v2", "tempo-batches", "jaeger"],
)
def test_every_export_gives_the_same_spans(value: dict[str, Any]) -> None:
    assert of_json(value) == (WANTED, [])


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_span_a_line_of_jaeger(wrapped: bool) -> None:
    for span, wanted in zip(SPANS, WANTED, strict=True):
        document = jaeger_document(span)
        assert of_json({"_index": "x", "_source": document} if wrapped else document) == ([wanted], [])


def test_tags_as_fields_are_text_with_their_names_restored() -> None:
    found, _ = of_json(jaeger_document(SPANS[0], fields=True))
    assert found[0][5] == {
        "gen_ai.latency.e2e": "1.5",
        "gen_ai.usage.completion_tokens": "32",
        "gen_ai.request.id": "cmpl-ü-0",
        "error": "false",
    }


def test_what_is_no_export_of_spans() -> None:
    for value in (
        {},
        {"batches": [1, 2]},
        {"batches": [{"size": 3}]},
        {"data": [{"spans": 3}]},
        {"data": {"spans": []}},
        {"resourceSpans": {}},
        {"resourceMetrics": []},
        {"operationName": "x"},
        {"trace": "on"},
    ):
        assert not spans.holds(value), value


def test_broken_parts_are_left_out_and_told() -> None:
    value = otlp(SPANS)
    value["resourceSpans"][0]["scopeSpans"][0]["spans"].insert(1, "cut")
    value["resourceSpans"] += [None, {"scopeSpans": [7, {"spans": {}}]}]
    found, rejects = of_json(value)
    assert found == WANTED
    assert rejects == [Reject(5, "spans that are no objects", None, 17)]
    traces = jaeger(SPANS)
    traces["data"][0]["spans"].append(3)
    assert of_json(traces) == (WANTED, [Reject(5, "spans that are no objects", None, 17)])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"doubleValue": "NaN"}, "nan"),
        ({"doubleValue": 3}, 3.0),
        ({"doubleValue": "x"}, None),
        ({"doubleValue": True}, None),
        ({"intValue": "-5"}, -5),
        ({"intValue": 7}, 7),
        ({"intValue": "5.5"}, None),
        ({"intValue": "9" * 5000}, None),
        ({"stringValue": 4}, None),
        ({"boolValue": "yes"}, None),
        ({"arrayValue": {"values": [{"intValue": "1"}, {"arrayValue": {}}, 5]}}, [1]),
        ({"arrayValue": None}, []),
    ],
)
def test_values_of_attributes(written: dict[str, Any], read: Any) -> None:
    value = otlp(SPANS[:1])
    value["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = [{"key": "a", "value": written}]
    (found,), _ = of_json(value)
    assert str(found[5]["a"]) == str(read)


def test_values_that_say_nothing_give_no_attribute() -> None:
    value = otlp(SPANS[:1])
    odd: list[Any] = [3, {"key": "a"}, {"key": 1, "value": any_value(1)}, {"key": "b", "value": {"kvlistValue": {}}}]
    value["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = odd
    (found,), rejects = of_json(value)
    assert (found[5], rejects) == ({}, [])


@pytest.mark.parametrize("moment", ["", "0", 0, -5, "x", None, True, str(2**63), 1.5, "1" * 30])
def test_a_time_that_is_none(moment: Any) -> None:
    value = otlp(SPANS[:1])
    span = value["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span["startTimeUnixNano"] = span["endTimeUnixNano"] = moment
    (found,), _ = of_json(value)
    assert found[3:5] == (None, None)
    traces = jaeger(SPANS[:1])
    traces["data"][0]["spans"][0]["startTime"] = moment
    (found,), _ = of_json(traces)
    assert found[3:5] == (None, None)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            [
                "resourceSpans", "batches", "trace", "data", "spans", "scopeSpans", "resource", "attributes", "key",
                "value", "intValue", "doubleValue", "arrayValue", "values", "processes", "process", "processID", "tags",
                "tag", "type", "operationName", "spanID", "traceId", "startTime", "duration", "_source",
            ]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=30,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["resourceSpans", "batches", "trace", "data", "operationName", "spanID"]), JUNK))
@settings(max_examples=300, deadline=None)
def test_no_json_is_too_odd(value: dict[str, Any]) -> None:
    if spans.holds(value):
        for span in spans.of_record(JsonRecord(1, 0, None, None, value), []):
            assert span.start_ns is None or 0 < span.start_ns < 2**63
            assert all(isinstance(key, str) for key in span.attributes)


# -- protobuf -------------------------------------------------------------------------------------------------

MESSAGES = [pb_message(SPANS[:2]), pb_message(SPANS[2:])]
JOINED, FRAMED = b"".join(MESSAGES), framed(MESSAGES)
FORMS = {
    "joined": JOINED,
    "framed": FRAMED,
    "zstd": framed([zstd.compress(m) for m in MESSAGES]),
    "zstd-json": framed([zstd.compress(json.dumps(otlp(s)).encode()) for s in (SPANS[:2], SPANS[2:])]),
    "0.x": pb_message(SPANS, scope_field=1000),
    "resource-last": pb_message(SPANS, resource_last=True),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_protobuf_cut_anywhere_gives_the_same_spans(form: str, size: int) -> None:
    data = FORMS[form]
    assert spans.looks(data)
    found, rejects = of_bytes(data, size)
    assert [facts(s) for s in found] == WANTED
    assert rejects == []


def test_the_number_of_the_message_is_the_line() -> None:
    assert [s.line for s in of_bytes(FRAMED)[0]] == [1, 1, 2]


@pytest.mark.parametrize("form", ["joined", "framed"])
def test_what_a_crash_cut_off_is_told_and_the_rest_kept(form: str) -> None:
    """At whatever byte a file ends, the spans before it are all there, and nothing is made up."""
    data = FORMS[form]
    ends = {len(m) for m in (b"", MESSAGES[0], JOINED)}
    if form == "framed":
        ends = {0, 4 + len(MESSAGES[0]), len(FRAMED)}
    counts = []
    for end in range(len(data) + 1):
        found, rejects = of_bytes(data[:end], 64)
        assert [facts(s)[:6] for s in found] == [w[:6] for w in WANTED[: len(found)]]
        assert len(rejects) == (end not in ends), end
        counts.append(len(found))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}


def test_a_broken_span_costs_itself_alone() -> None:
    broken = pb_span(SPANS[1])[:-2]
    scope = chunk(2, b"".join(chunk(2, m) for m in (pb_span(SPANS[0]), broken, pb_span(SPANS[2]))))
    found, rejects = of_bytes(chunk(1, scope))
    assert [s.span_id for s in found] == [SPANS[0].span_id, SPANS[2].span_id]
    assert [(r.line, r.reason) for r in rejects] == [(1, "a message that is cut")]


def test_a_length_that_cannot_be_ends_the_reading() -> None:
    found, rejects = of_bytes(FRAMED + struct.pack(">I", 2**32 - 1) + b"x" * 100)
    assert len(found) == 3
    assert [r.reason for r in rejects] == ["a length that no message has: the rest is not read"]
    found, rejects = of_bytes(JOINED + b"\x0a\xff\xff\xff\xff\x7f" + b"x" * 100)
    assert len(found) == 3
    assert [r.reason for r in rejects] == ["broken protobuf: the rest is not read"]


def test_a_compressed_message_that_is_damaged_is_told() -> None:
    whole = zstd.compress(MESSAGES[0])
    found, rejects = of_bytes(framed([whole[:-5], zstd.compress(MESSAGES[1])]))
    assert [s.span_id for s in found][-1:] == [SPANS[2].span_id]
    assert [r.reason for r in rejects] == ["a compressed message that cannot be read to its end"]


def test_a_compressed_message_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_wire, "LONGEST", 1 << 20)
    bomb = zstd.compress(b"\0" * (64 << 20))
    found, rejects = of_bytes(framed([MESSAGES[0], bomb]))
    assert len(found) == 2
    assert "a compressed message that cannot be read to its end" in [r.reason for r in rejects]


VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(), st.text(min_size=120)
)


@given(st.dictionaries(st.one_of(st.text(), st.text(min_size=120)), VALUES | st.lists(VALUES, max_size=3), max_size=5))
@settings(deadline=None)
def test_attributes_of_all_kinds_and_lengths(attributes: dict[str, Any]) -> None:
    span = Span(1, "n", "0" * 32, "0" * 16, 5, 6, attributes, {"a": 1})
    (found,), rejects = of_bytes(pb_message([span]))
    assert facts(found) == facts(span)
    assert rejects == []


def test_a_pair_with_its_value_first() -> None:
    turned = chunk(2, pb_value(5)) + chunk(1, b"key")
    scope = chunk(2, chunk(2, pb_span(SPANS[0]) + chunk(9, turned) + chunk(9, pb_pair("b", 2.5) + varint(40) + b"\1")))
    (found,), _ = of_bytes(chunk(1, scope))
    assert found.attributes["key"] == 5
    assert found.attributes["b"] == 2.5


@given(st.binary(max_size=400), st.integers(1, 64))
@settings(max_examples=300, deadline=None)
def test_no_bytes_are_too_odd(data: bytes, size: int) -> None:
    spans.looks(data)
    of_bytes(data, size)


@given(st.integers(0, len(FRAMED) - 1), st.integers(0, 255), st.sampled_from(["joined", "framed", "zstd", "zstd-json"]))
@settings(max_examples=300, deadline=None)
def test_a_damaged_byte_never_stops_the_reading(place: int, byte: int, form: str) -> None:
    data = bytearray(FORMS[form])
    data[place % len(data)] = byte
    spans.looks(bytes(data))
    found, _ = of_bytes(bytes(data), 50)
    assert len(found) <= 6


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\n",
        b"\n\n\nINFO 05-06 12:00:00 [loggers.py:1] a log that begins with empty lines\n",
        b"\nabc" * 100,
        b'{"resourceSpans": []}\n',
        b"PAR1" + b"\0" * 100,
        b"\x00\x00\x00\x20ftypisom" + b"\0" * 100,
        chunk(1, chunk(1, b"") + chunk(2, chunk(2, chunk(1, b"metric name") + chunk(5, b"x")))),  # MetricsData
        framed([chunk(1, chunk(2, chunk(2, b"\x09" + b"\0" * 8 + chunk(5, b"log"))))]),  # LogsData
        framed([zstd.compress(b"some text")]),
        bytes(range(256)) * 40,
    ],
)
def test_what_does_not_look_like_spans(head: bytes) -> None:
    assert not spans.looks(head)


def test_it_looks_like_spans_from_its_first_bytes_on() -> None:
    for form, data in FORMS.items():
        if "zstd" not in form:
            assert spans.looks(data[:400]), form
    long = pb_message([sample(n) for n in range(2000)])
    assert spans.looks(long[: 64 << 10])


# -- as a source ----------------------------------------------------------------------------------------------


def rows_of(tmp_path: Path, name: str, content: bytes) -> list[dict[str, Any]]:
    path = tmp_path / name
    path.write_bytes(content)
    reading = read(SourceFile(path, name, "0" * 16, None, None), [ENGINE])
    data = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    assert (reading.sha256, reading.bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (reading.rejects, reading.parsed["vllm"].rejects, reading.binary) == ([], [], False)
    assert reading.claimed >= 1
    context = Context("s", lambda frame: resolve(frame, tz=None, year=None, mtime=None))
    made = ENGINE.assemble(reading.parsed["vllm"].frames, context)
    assert made.requests is not None
    return made.requests.drop("source_line").sort("request_id").to_dicts()


def test_a_source_of_each_format_gives_the_same_rows(tmp_path: Path) -> None:
    lines: Sequence[dict[str, Any]] = [otlp([s]) for s in SPANS]
    jsonl = "".join(json.dumps(line) + "\n" for line in lines).encode()
    wanted = rows_of(tmp_path, "spans.jsonl", jsonl)
    keys = ("request_id", "e2e_us", "output_tokens")
    expected = [(f"cmpl-ü-{n}", (1 + n) * 1_000_000 + 500_000, 32 + n) for n in range(3)]
    assert [tuple(row[k] for k in keys) for row in wanted] == expected
    others = {
        "spans.pb": JOINED,
        "framed.pb": FRAMED,
        "framed.pb.gz": gzip.compress(FRAMED, mtime=0),
        "zstd.pb": FORMS["zstd"],
        "jaeger.json": json.dumps(jaeger(SPANS)).encode(),
        "jaeger-indented.json": json.dumps(jaeger(SPANS), indent=2).encode(),
        "tempo.json": json.dumps(otlp(SPANS, groups="batches")).encode(),
        "array.json": json.dumps(lines).encode(),
        "documents.jsonl": "".join(json.dumps(jaeger_document(s, fields=True)) + "\n" for s in SPANS).encode(),
    }
    for name, content in others.items():
        assert rows_of(tmp_path, name, content) == wanted, name


def test_a_protobuf_file_is_ingested_once(tmp_path: Path) -> None:
    (tmp_path / "spans.pb").write_bytes(FRAMED)
    lake = tmp_path / "lake"
    summary = ingest([str(tmp_path / "spans.pb")], lake, IngestOptions())
    assert (summary.rows["requests"], summary.rejects, summary.unrecognised) == (3, 0, 0)
    assert ingest([str(tmp_path / "spans.pb")], lake, IngestOptions()).notes == (
        ("spans.pb", "already in the lake (as spans.pb)"),
    )
    with connect(lake, keep=True) as con:
        assert con.execute("select encoding, lines, bytes from sources").fetchall() == [("bytes", 0, len(FRAMED))]


def test_an_export_on_one_line_may_be_long(tmp_path: Path) -> None:
    """Jaeger and Tempo answer without a line end; some thousand spans are more than a line of a log may be."""
    many = [sample(n) for n in range(15_000)]
    content = json.dumps(jaeger(many)).encode()
    assert len(content) > 8 << 20
    (tmp_path / "big.json").write_bytes(content)
    summary = ingest([str(tmp_path / "big.json")], tmp_path / "lake", IngestOptions())
    assert (summary.rows["requests"], summary.rejects) == (len(many), 0)


def test_a_stream_gives_what_is_no_text_only_where_it_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "spans.pb"
    path.write_bytes(FRAMED)
    source = SourceFile(path, path.name, "0" * 16, None, None)
    with BlockStream(source) as stream:
        assert b"".join(stream.pieces()) == b""
    assert stream.binary
    digest = stream.sha256
    with BlockStream(source, takes=spans.looks, checkpoints=[10]) as stream:
        assert b"".join(stream.pieces()) == FRAMED
    assert (stream.binary, stream.encoding, stream.sha256) == (False, "bytes", digest)
    assert stream.prefix_sha256 == {10: hashlib.sha256(FRAMED[:10]).hexdigest()}
    path.write_bytes(b"\x7fELF" + bytes(range(256)) * 8)
    with BlockStream(source, takes=spans.looks) as stream:
        assert b"".join(stream.pieces()) == b""
    assert stream.binary


def test_groups_are_read_where_several_are_in_one_message() -> None:
    other = Span(1, "b", "1" * 32, "2" * 16, 7, 8, {}, {"service.name": "other"})
    found, rejects = of_bytes(chunk(1, pb_group(SPANS)) + chunk(1, pb_group([other])))
    assert [facts(s) for s in found] == [*WANTED, facts(other)]
    assert rejects == []


@pytest.mark.parametrize("indent", [None, 2])
def test_an_answer_of_jaeger_that_was_cut_off_is_told(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "jaeger.json"
    text = json.dumps(jaeger(SPANS), indent=indent)
    path.write_text(text[: len(text) * 2 // 3], encoding="utf-8")
    reading = read(SourceFile(path, path.name, "0" * 16, None, None), [ENGINE])
    assert len(reading.rejects) == 1
    assert not reading.parsed["vllm"].frames


def test_lines_before_the_one_that_a_crash_cut_off_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    text = "".join(json.dumps(otlp([s])) + "\n" for s in SPANS)
    path.write_text(text[:-200], encoding="utf-8")
    reading = read(SourceFile(path, path.name, "0" * 16, None, None), [ENGINE])
    assert [(r.line, r.reason.split(":")[0]) for r in reading.rejects] == [(3, "broken JSON")]
    assert sum(f.height for f in reading.parsed["vllm"].frames["vllm.otel_span"]) == 2
    path.write_bytes(gzip.compress(text.encode(), mtime=0)[:-30])
    reading = read(SourceFile(path, path.name, "0" * 16, None, None), [ENGINE])
    assert len(reading.rejects) >= 1
