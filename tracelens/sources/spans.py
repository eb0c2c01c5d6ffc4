"""OpenTelemetry spans: OTLP as JSON lines and protobuf, exports of Jaeger and Tempo.

Read are OTLP JSON (`resourceSpans`; ids in hex as OTLP wants them, or in base64 as protobuf's own JSON writes them),
Tempo's API (`batches`, `trace`), Jaeger's API and UI (`data`), Jaeger's documents in Elasticsearch (a span a line), and
OTLP protobuf files (see `tracelens.sources.otlp_wire`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tracelens.engines.base import JsonRecord, Reject, Span
from tracelens.sources import otlp_wire

# What every span export in JSON holds somewhere, in the spellings of OTLP 0.x and 1.x and of Jaeger.
KEYS: Sequence[bytes] = (
    b'"scopeSpans"',
    b'"scope_spans"',
    b'"instrumentationLibrarySpans"',
    b'"operationName"',
)

_GROUPS = ("resourceSpans", "resource_spans", "batches")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "instrumentation_library_spans")
# Spans handed over together: a frame is made of each lot.
_LOT = 8192
_MARKS = frozenset(("trace", "_source", "data", "operationName", *_GROUPS))
_NO_OBJECT = "spans that are no objects"

Object = Mapping[str, Any]


def looks(head: bytes) -> bool:
    """Whether a source that begins with these bytes is OTLP in protobuf, or what the collector frames like it."""
    return otlp_wire.begins(head)


def holds(value: Object) -> bool:
    """Whether a JSON object is an export of spans."""
    if _MARKS.isdisjoint(value):  # nearly every record of a log
        return False
    value = _unwrapped(value)
    return _otlp_groups(value) is not None or _jaeger_traces(value) is not None or _is_jaeger_span(value)


def of_record(record: JsonRecord, rejects: list[Reject]) -> list[Span]:
    """The spans of one JSON object."""
    value = _unwrapped(record.value)
    found: list[Span] = []
    lost = 0
    groups = _otlp_groups(value)
    if groups is not None:
        for group in groups:
            lost += _of_group(group, record.line, found)
    elif (traces := _jaeger_traces(value)) is not None:
        for trace in traces:
            lost += _of_trace(trace, record.line, found)
    elif _is_jaeger_span(value):
        found.append(_jaeger_span(value, record.line, _process(value.get("process"))))
    if lost:
        rejects.append(Reject(record.line, _NO_OBJECT, None, record.offset))
    return found


def of_protobuf(pieces: Iterator[bytes], rejects: list[Reject]) -> Iterator[list[Span]]:
    """The spans of a protobuf file, some thousand at a time; `line` is the number of the message they came in."""
    import msgspec

    lot: list[Span] = []
    for number, (message, whole) in enumerate(otlp_wire.messages(pieces, rejects), 1):
        if message[:1] == b"{":  # the collector frames compressed JSON like protobuf
            try:
                value = msgspec.json.decode(message)
            except (msgspec.DecodeError, RecursionError):
                if whole:
                    rejects.append(Reject(number, "broken JSON in a frame"))
                continue
            if isinstance(value, dict) and holds(value):
                lot += of_record(JsonRecord(number, 0, None, None, value), rejects)
        else:
            lot += otlp_wire.spans(message, number, rejects if whole else [])  # that it is cut is told
        if len(lot) >= _LOT:
            yield lot
            lot = []
    if lot:
        yield lot


# -- OTLP -----------------------------------------------------------------------------------------------------


def _unwrapped(value: Object) -> Object:
    """The object inside the envelope of Tempo's second API or of an Elasticsearch dump."""
    for key in ("trace", "_source"):
        inner = value.get(key)
        if isinstance(inner, dict):
            return inner
    return value


def _otlp_groups(value: Object) -> list[Any] | None:
    """Spans by resource; None where the object is no OTLP."""
    for key in _GROUPS:
        groups = value.get(key)
        if isinstance(groups, list) and (key != "batches" or _is_group(groups)):
            return groups
    return None


def _is_group(groups: list[Any]) -> bool:
    """`batches` is a word of many logs: it is Tempo's where the first one holds scopes."""
    return bool(groups) and isinstance(groups[0], dict) and any(key in groups[0] for key in _SCOPES)


def _of_group(group: Any, line: int, found: list[Span]) -> int:
    """Append the spans of one resource; how many of them could not be read."""
    if not isinstance(group, dict):
        return 1
    lost = 0
    resource: dict[str, Any] | None = None
    for key in _SCOPES:
        for scope in _list(group.get(key)):
            for span in _list(scope.get("spans")) if isinstance(scope, dict) else ():
                if not isinstance(span, dict):
                    lost += 1
                    continue
                if resource is None:
                    resource = _attributes(_object(group.get("resource")).get("attributes"))
                found.append(_otlp_span(span, line, resource))
    return lost


def _otlp_span(span: Object, line: int, resource: Object) -> Span:
    get = span.get
    return Span(
        line,
        _text(get("name")),
        _hex(get("traceId") or get("trace_id"), 16),
        _hex(get("spanId") or get("span_id"), 8),
        _moment(get("startTimeUnixNano") or get("start_time_unix_nano"), 1),
        _moment(get("endTimeUnixNano") or get("end_time_unix_nano"), 1),
        _attributes(get("attributes")),
        resource,
        _hex(get("parentSpanId") or get("parent_span_id"), 8),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for pair in _list(pairs):
        key, value = (pair.get("key"), pair.get("value")) if isinstance(pair, dict) else (None, None)
        if isinstance(key, str) and isinstance(value, dict):
            for kind, content in value.items():  # one key: which of the kinds it is
                read = _VALUES.get(kind)
                if read is not None:
                    out[key] = read(content)
                    break
    return out


def _whole(value: Any) -> int | None:
    """An int64, which JSON writes as text."""
    if type(value) is str and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Any) -> float | None:
    """A double; NaN and the infinities are text in JSON, and stay what they are: the engine refuses them."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _plain_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _array(value: Any) -> list[Any]:
    """A list of scalars; lists in lists are nobody's figures."""
    items = _list(_object(value).get("values"))
    return [read(v) for item in items for k, v in _object(item).items() if (read := _SCALARS.get(k)) is not None]


_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "doubleValue": _real, "intValue": _whole, "stringValue": _plain_text, "boolValue": _flag,
    "double_value": _real, "int_value": _whole, "string_value": _plain_text, "bool_value": _flag,
}  # fmt: skip
_VALUES: Mapping[str, Callable[[Any], Any]] = {**_SCALARS, "arrayValue": _array, "array_value": _array}


# -- Jaeger ---------------------------------------------------------------------------------------------------


def _jaeger_traces(value: Object) -> list[Object] | None:
    """The traces of an answer of Jaeger's API; None where the object is none."""
    traces: list[Object] = [
        t for t in _list(value.get("data")) if isinstance(t, dict) and isinstance(t.get("spans"), list)
    ]
    return traces if any("traceID" in t or "processes" in t for t in traces) else None


def _is_jaeger_span(value: Object) -> bool:
    return "operationName" in value and "spanID" in value


def _of_trace(trace: Object, line: int, found: list[Span]) -> int:
    processes = {key: _process(p) for key, p in _object(trace.get("processes")).items()}
    lost = 0
    for span in _list(trace.get("spans")):
        if isinstance(span, dict):
            key = span.get("processID")
            resource = processes.get(key) if isinstance(key, str) else None
            found.append(_jaeger_span(span, line, _process(span.get("process")) if resource is None else resource))
        else:
            lost += 1
    return lost


def _process(process: Any) -> dict[str, Any]:
    process = _object(process)
    name = process.get("serviceName")
    return {**({"service.name": name} if isinstance(name, str) else {}), **_tags(process)}


def _jaeger_span(span: Object, line: int, resource: Object) -> Span:
    """A span of Jaeger's: times in us, an end by its duration."""
    start = _moment(span.get("startTime"), 1000)
    lasted = _whole(span.get("duration"))
    known = start is not None and lasted is not None and 0 <= lasted < _FAR // 1000
    end = start + lasted * 1000 if start is not None and lasted is not None and known else None
    trace_id, span_id = (_hex(span.get(key), size) for key, size in (("traceID", 16), ("spanID", 8)))
    name = _text(span.get("operationName"))
    return Span(line, name, trace_id, span_id, start, end, _tags(span), resource, _parent(span))


def _parent(span: Object) -> str:
    """The span that this one is a child of; Jaeger before 1.0 wrote it beside the references."""
    for reference in _list(span.get("references")):
        if isinstance(reference, dict) and reference.get("refType") == "CHILD_OF":
            return _hex(reference.get("spanID"), 8)
    return _hex(span.get("parentSpanID"), 8)


def _tags(holder: Object) -> dict[str, Any]:
    """Tags as a list, or as fields with `@` for the dots (Elasticsearch, `--es.tags-as-fields`)."""
    out: dict[str, Any] = {}
    for key, value in _object(holder.get("tag")).items():
        if isinstance(value, (str, bool, int, float)):
            out[key.replace("@", ".")] = value
    for tag in _list(holder.get("tags")):
        if isinstance(tag, dict) and isinstance(tag.get("key"), str):
            read = _KINDS.get(str(tag.get("type")), _scalar)
            out[tag["key"]] = read(tag.get("value"))
    return out


def _scalar(value: Any) -> Any:
    return value if isinstance(value, (str, bool, int, float)) else None


def _truth(value: Any) -> bool | None:
    """True or false, or its name: Elasticsearch keeps every tag as text."""
    return {"true": True, "false": False}.get(value) if isinstance(value, str) else _flag(value)


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "float64": _real, "int64": _whole, "bool": _truth, "string": _plain_text,
}  # fmt: skip


# -- parts ----------------------------------------------------------------------------------------------------

# The year 2262: beyond, no int64 holds nanoseconds.
_FAR = 2**63


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _moment(value: Any, factor: int) -> int | None:
    """Nanoseconds since 1970; 0 is "not set"."""
    number = _whole(value)
    return number * factor if number is not None and 0 < number < _FAR // factor else None


def _hex(value: Any, size: int) -> str:
    """An id of `size` bytes in hex, however it was written; some other text as it is."""
    if not isinstance(value, str):
        return ""
    if len(value) == (size + 2) // 3 * 4 and value[-1:] == "=":
        try:
            return base64.b64decode(value, validate=True).hex()
        except (binascii.Error, ValueError):
            return value
    return value[:64].lower()
