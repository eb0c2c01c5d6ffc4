"""Envelopes that are JSON objects: docker, journald, Loki, Fluent Bit, Vector, JSON logging."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import polars as pl

# Keys of records that are themselves what an engine measured: such an object is content, not an envelope.
_RECORD_KEYS = ("metrics", "choices", "aux_info", "drafted", "accepted", "event")
_TIME_KEYS = ("time", "timestamp", "ts", "asctime", "at_timestamp")
# What names the writer, best first: all keys of the first line that has any.
_IDENTITIES = (
    ("pod", "pod_name", "container", "container_name"),
    ("instance", "service_name", "service", "app", "job"),
    ("host", "hostname", "filename"),
)
_LABEL = re.compile(r'(?<![\w.])([A-Za-z_][\w.]*+)="((?:[^"\\]|\\.)*+)"')


class Inner(NamedTuple):
    """What one JSON envelope held."""

    text: str
    stamp: str | None
    stream: str | None
    process: str | None
    name: str


@cache
def _decoder() -> Any:
    """Decodes the keys an envelope may have; all others are passed over unread."""
    import msgspec

    raw = msgspec.Raw
    keys: list[tuple[str, Any, Any]] = []
    for key in ("log", "message", "msg", "line", "MESSAGE", *_TIME_KEYS, "stream", "labels", "kubernetes"):
        keys.append((key, Any, None))
    for key in ("values", "streams", "container_name", "service", "process", "pid", "processName"):
        keys.append((key, Any, None))
    for key in ("vllm_process_name", "textPayload", "jsonPayload", "resource"):  # the last three: Google Cloud
        keys.append((key, Any, None))
    for key in ("realtime", "pid_", "unit", "comm", "journal_container"):
        keys.append((key, Any, None))
    for key in (*_RECORD_KEYS, "request", "response"):
        keys.append((key, raw, raw()))
    rename = {
        "at_timestamp": "@timestamp",
        "realtime": "__REALTIME_TIMESTAMP",
        "pid_": "_PID",
        "unit": "_SYSTEMD_UNIT",
        "comm": "_COMM",
        "journal_container": "CONTAINER_NAME",
    }
    record = msgspec.defstruct("_Record", keys, rename=rename, gc=False)
    return msgspec.json.Decoder(record)


def peel_json(frame: pl.DataFrame, needles: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(lines that were JSON envelopes, peeled; lines that are content or no JSON)."""
    import polars as pl

    from tracelens.sources.envelopes import merged

    rows: list[int] = []
    inners: list[Inner] = []
    kept: list[int] = []
    for at, record in enumerate(_records(frame["text"])):
        found = _inners(record, needles) if record is not None else ()
        if not found:
            kept.append(at)
        for inner in found:
            rows.append(at)
            inners.append(inner)
    if not rows:
        return frame.clear(), frame
    whole = rows == list(range(frame.height))
    columns = [pl.Series(values, dtype=pl.String) for values in zip(*inners, strict=True)]
    got = merged(frame if whole else frame[rows], *columns)
    return got, frame[kept]


def identity_of_text(labels: str) -> str | None:
    """Who writes, by Loki's labels as `{app="vllm", pod="vllm-0"}`."""
    return _identity({key: value.replace('\\"', '"') for key, value in _LABEL.findall(labels)})


def _records(text: pl.Series) -> list[Any]:
    """One decoded record a line, None where the line is no such object."""
    import msgspec

    lines = text.to_list()
    decoder = _decoder()
    joined = "\n".join(lines)
    if joined.count("\n") == len(lines) - 1:
        try:
            records: list[Any] = decoder.decode_lines(joined)
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass
        else:
            if len(records) == len(lines):
                return records
    return [_record(decoder, line) for line in lines]


def _record(decoder: Any, line: str) -> Any:
    import msgspec

    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _inners(record: Any, needles: Sequence[str]) -> Sequence[Inner]:
    """What a record envelops; nothing when it is content."""
    if record.metrics or record.choices or record.aux_info or record.drafted or record.accepted or record.event:
        return ()
    if record.request and record.response:
        return ()
    if isinstance(record.log, str) and isinstance(record.stream, str) and isinstance(record.time, str):
        # docker's "stream" is stdout or stderr: no identity
        return (Inner(record.log, record.time, _kubernetes(record), None, "docker"),)
    if record.MESSAGE is not None:
        return _journal(record)
    if record.values is not None or record.streams is not None:
        return list(_pushed(record, needles))
    message = _message(record)
    if message is not None:
        stream = _kubernetes(record) or _text(record.container_name)
        return (Inner(message, _stamp(record), stream, _process(record), "json"),)
    if isinstance(record.line, str) and (record.labels is not None or record.timestamp is not None):
        stream = _identity(record.labels) if isinstance(record.labels, dict) else None
        return (Inner(record.line, _stamp(record), stream, None, "loki"),)
    return ()


def _message(record: Any) -> str | None:
    for value in (record.message, record.msg, record.log, record.textPayload):
        if isinstance(value, str):
            return value
    for value in (record.log, record.jsonPayload):
        if isinstance(value, dict):  # a collector that parsed the inner record already
            import msgspec

            return msgspec.json.encode(value).decode()
    return None


def _stamp(record: Any) -> str | None:
    for key in _TIME_KEYS:
        value = getattr(record, key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return f"{value:.6f}" if isinstance(value, float) else str(value)
    return None


def _process(record: Any) -> str | None:
    name = _text(record.vllm_process_name) or _text(record.processName)
    pid = record.process if isinstance(record.process, (int, str)) else record.pid
    parts = [str(part) for part in (name, pid) if isinstance(part, (int, str)) and part != ""]
    return " ".join(parts) or None


def _journal(record: Any) -> Sequence[Inner]:
    message = record.MESSAGE
    if isinstance(message, list):  # how journald exports text with colours, or that is not clean UTF-8
        try:
            message = bytes(message).decode("utf-8", "replace")
        except (TypeError, ValueError):
            return ()
    if not isinstance(message, str):
        return ()
    parts = [_text(record.comm), _text(record.pid_)]
    process = " ".join(part for part in parts if part) or None
    stream = _text(record.journal_container) or _text(record.unit)
    return (Inner(message, _text(record.realtime), stream, process, "journald"),)


def _pushed(record: Any, needles: Sequence[str]) -> Iterator[Inner]:
    """Loki's push form: streams of [ns, line] pairs, of which only the relevant lines are taken."""
    streams = (
        record.streams if isinstance(record.streams, list) else [{"stream": record.stream, "values": record.values}]
    )
    for stream in streams:
        if not isinstance(stream, dict) or not isinstance(stream.get("values"), list):
            continue
        labels = stream.get("stream")
        identity = _identity(labels) if isinstance(labels, dict) else None
        for pair in stream["values"]:
            if isinstance(pair, list) and len(pair) >= 2 and isinstance(pair[1], str):
                stamp, line = pair[:2]
                if any(needle in line for needle in needles):
                    yield Inner(line, _text(stamp), identity, None, "loki")


def _kubernetes(record: Any) -> str | None:
    """Pod and container as Fluent Bit, Vector or Google Cloud name them."""
    if isinstance(record.kubernetes, dict):
        return _identity(record.kubernetes)
    labels = record.resource.get("labels") if isinstance(record.resource, dict) else None
    return _identity(labels) if isinstance(labels, dict) else None


def _identity(labels: Mapping[str, Any]) -> str | None:
    """Who writes, by labels: pod and container where there are, else whatever names it."""
    for keys in _IDENTITIES:
        parts = [str(labels[key]) for key in keys if isinstance(labels.get(key), (str, int))]
        if parts:
            return "/".join(parts)
    rest = [f"{key}={value}" for key, value in sorted(labels.items()) if isinstance(value, str)]
    return ",".join(rest) or None


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
