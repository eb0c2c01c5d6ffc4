"""Spans as exporters write them: OTLP in JSON and protobuf, Jaeger, Tempo."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.engines.base import Span


def sample(number: int, name: str = "llm_request") -> Span:
    """A span with every kind of attribute; its times are whole microseconds, which all formats can hold."""
    start = 1_795_953_255_033_706_000 + number * 1_000_000
    attributes = {
        "gen_ai.latency.e2e": 1.5 + number,
        "gen_ai.usage.completion_tokens": 32 + number,
        "gen_ai.request.id": f"cmpl-ü-{number}",
        "error": False,
    }
    resource = {"service.name": "svc", "vllm.process_id": "7"}
    return Span(1, name, f"{number + 1:032x}", f"{number + 1:016x}", start, start + 10**9, attributes, resource)


def facts(span: Span) -> tuple[Any, ...]:
    """A span without the line it stood on."""
    return (
        span.name, span.trace_id, span.span_id, span.start_ns, span.end_ns, dict(span.attributes), dict(span.resource)
    )  # fmt: skip


# -- JSON -----------------------------------------------------------------------------------------------------

_WORDS = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}


def _snake(word: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in word)


def any_value(value: Any, snake: bool = False) -> dict[str, Any]:
    if isinstance(value, list):
        inner: Any = {"values": [any_value(v, snake) for v in value]}
        return {"array_value" if snake else "arrayValue": inner}
    word = _WORDS[type(value)]
    content = str(value) if type(value) is int else value
    return {_snake(word) if snake else word: content}


def pairs(attributes: Mapping[str, Any], snake: bool = False) -> list[dict[str, Any]]:
    return [{"key": k, "value": any_value(v, snake)} for k, v in attributes.items()]


def _id(text: str, as_base64: bool) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode() if as_base64 else text


def otlp(
    spans: Sequence[Span],
    *,
    as_base64: bool = False,
    snake: bool = False,
    numbers: bool = False,
    scopes: str = "scopeSpans",
    groups: str = "resourceSpans",
) -> dict[str, Any]:
    """One export. `numbers`: times as numbers, as some writers have them; OTLP says text."""

    def word(name: str) -> str:
        return _snake(name) if snake else name

    def moment(value: int | None) -> Any:
        return value if numbers else str(value)

    listed = [
        {
            word("traceId"): _id(s.trace_id, as_base64),
            word("spanId"): _id(s.span_id, as_base64),
            "name": s.name,
            word("startTimeUnixNano"): moment(s.start_ns),
            word("endTimeUnixNano"): moment(s.end_ns),
            "attributes": pairs(s.attributes, snake),
        }
        for s in spans
    ]
    resource = {"attributes": pairs(spans[0].resource, snake)}
    return {word(groups): [{"resource": resource, word(scopes): [{"scope": {"name": "x"}, "spans": listed}]}]}


def _tags(attributes: Mapping[str, Any], as_text: bool = False) -> list[dict[str, Any]]:
    kinds = {bool: "bool", int: "int64", float: "float64", str: "string"}
    written = {False: "false", True: "true"}

    def value(v: Any) -> Any:
        return v if not as_text else written[v] if isinstance(v, bool) else str(v)

    return [{"key": k, "type": kinds[type(v)], "value": value(v)} for k, v in attributes.items()]


def jaeger_span(span: Span, as_text: bool = False) -> dict[str, Any]:
    assert span.start_ns is not None
    assert span.end_ns is not None
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": [],
        "startTime": span.start_ns // 1000,
        "duration": (span.end_ns - span.start_ns) // 1000,
        "tags": _tags(span.attributes, as_text),
        "logs": [],
    }


def _process(span: Span) -> dict[str, Any]:
    rest = {k: v for k, v in span.resource.items() if k != "service.name"}
    return {"serviceName": span.resource["service.name"], "tags": _tags(rest)}


def jaeger(spans: Sequence[Span]) -> dict[str, Any]:
    """An answer of Jaeger's API: a trace a span here."""
    traces = [
        {"traceID": s.trace_id, "spans": [{**jaeger_span(s), "processID": "p1"}], "processes": {"p1": _process(s)}}
        for s in spans
    ]
    return {"data": traces, "total": 0, "errors": None}


def jaeger_document(span: Span, fields: bool = False) -> dict[str, Any]:
    """A span as Jaeger keeps it in Elasticsearch: every value is text; tags as a list or as fields."""
    document = {**jaeger_span(span, as_text=True), "process": _process(span)}
    if fields:
        tags = document.pop("tags")
        document |= {"tags": [], "tag": {t["key"].replace(".", "@"): t["value"] for t in tags}}
    return document


# -- protobuf -------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def chunk(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def _fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def pb_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return varint(2 << 3) + varint(int(value))
    if isinstance(value, int):
        return varint(3 << 3) + varint(value)
    if isinstance(value, float):
        return varint(4 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, str):
        return chunk(1, value.encode())
    return chunk(5, b"".join(chunk(1, pb_value(v)) for v in value))


def pb_pair(key: str, value: Any) -> bytes:
    return chunk(1, key.encode()) + chunk(2, pb_value(value))


def pb_span(span: Span) -> bytes:
    return b"".join(
        (
            chunk(1, bytes.fromhex(span.trace_id)),
            chunk(2, bytes.fromhex(span.span_id)),
            chunk(4, b"parent--"),
            chunk(5, span.name.encode()),
            varint(6 << 3) + varint(2),  # kind
            _fixed64(7, span.start_ns or 0),
            _fixed64(8, span.end_ns or 0),
            *(chunk(9, pb_pair(k, v)) for k, v in span.attributes.items()),
            varint(16 << 3 | 5) + struct.pack("<I", 256),  # flags
        )
    )


def pb_group(spans: Sequence[Span], scope_field: int = 2, resource_last: bool = False) -> bytes:
    """One ResourceSpans."""
    resource = chunk(1, b"".join(chunk(1, pb_pair(k, v)) for k, v in spans[0].resource.items()))
    scope = chunk(scope_field, chunk(1, chunk(1, b"x")) + b"".join(chunk(2, pb_span(s)) for s in spans))
    return scope + resource if resource_last else resource + scope


def pb_message(spans: Sequence[Span], **options: Any) -> bytes:
    """A TracesData (or an ExportTraceServiceRequest: they are the same on the wire)."""
    return chunk(1, pb_group(spans, **options))


def framed(messages: Sequence[bytes]) -> bytes:
    """As the collector's file exporter writes them with `format: proto`, or with compression."""
    return b"".join(struct.pack(">I", len(m)) + m for m in messages)
