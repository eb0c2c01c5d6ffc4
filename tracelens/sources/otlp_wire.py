"""OTLP traces in protobuf, read from the wire format: the few fields of a span that matter, and no others.

A decoder of our own because a handful of fields is all that is wanted and the generated classes (`opentelemetry-proto`)
bring the protobuf runtime with them. Field numbers: opentelemetry/proto, trace.proto and common.proto (v1). Files hold
one message (`TracesData`, `ExportTraceServiceRequest`: both are a list of ResourceSpans in field 1), several joined,
or, as the collector's file exporter writes them, each behind its length in four bytes (big-endian), and then perhaps
compressed with zstd.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from tracelens.engines.base import Reject, Span
from tracelens.sources.compression import CorruptError, TruncatedError, decompress

# A longer message is no export of spans: exporters send a few MB at most.
LONGEST = 64 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
# Fields looked at to find the first span of a file.
_LOOKS = 4096

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SCOPE_FIELDS = (2, 1000)  # ScopeSpans; InstrumentationLibrarySpans up to OTLP 0.15
_DOUBLE = struct.Struct("<d")

Field = tuple[int, int, int, int]


class _BrokenError(ValueError):
    """No protobuf, or cut."""


def begins(head: bytes) -> bool:
    """Whether a file that begins with these bytes holds spans.

    A span with ids of 16 and 8 bytes must be found where the messages have it: text or other protobuf is never taken.
    """
    if head[:1] == b"\n":
        return _begins_with_span(head, 0, len(head))
    size = int.from_bytes(head[:4], "big")
    if len(head) < 8 or not 0 < size <= LONGEST:
        return False
    body = head[4 : 4 + size]
    if body.startswith(_ZSTD):
        body = _inflated(body)[0]  # the head of a file ends anywhere
    if body[:1] == b"{":  # compressed JSON is framed, too
        return b'Spans"' in body and b'"spans"' in body
    return _begins_with_span(body, 0, len(body))


def messages(pieces: Iterator[bytes], rejects: list[Reject]) -> Iterator[tuple[bytes, bool]]:
    """The messages of a file, one at a time, each with whether it is whole: lists of ResourceSpans, or framed JSON.

    A file of joined messages is given by its ResourceSpans, each with its tag and length: that is a message too.
    """
    reader = _Reader(pieces)
    framed = reader.peek(1) != b"\n"  # a length that begins like that is longer than any message
    number = 0
    while reader.peek(1):
        number += 1
        body = reader.frame() if framed else reader.group()
        if body is None:
            rejects.append(Reject(number, reader.fault))
            if reader.rest:
                yield reader.rest, False
            return
        whole = True
        if body.startswith(_ZSTD):
            body, whole = _inflated(body)
            if not whole:
                rejects.append(Reject(number, "a compressed message that cannot be read to its end"))
        yield body, whole


def spans(message: bytes, line: int, rejects: list[Reject]) -> list[Span]:
    """The spans of one message; what is broken or cut is refused, what stands beside it is kept."""
    found: list[Span] = []
    try:
        for number, kind, start, end in _fields(message, 0, len(message), clip=True):
            if number == 1 and kind == _BYTES:
                _of_group(message, start, end, line, found, rejects)
    except _BrokenError as error:
        rejects.append(Reject(line, str(error)))
    return found


def _of_group(data: bytes, start: int, end: int, line: int, found: list[Span], rejects: list[Reject]) -> None:
    """Append the spans of one ResourceSpans; its scopes may stand before its resource."""
    resource: dict[str, Any] = {}
    scopes: list[tuple[int, int]] = []
    problems: list[str] = []
    try:
        for number, kind, at, stop in _fields(data, start, end, clip=True):
            if number == 1 and kind == _BYTES:
                resource = _attributes(data, at, stop, 1)
            elif number in _SCOPE_FIELDS and kind == _BYTES:
                scopes.append((at, stop))
    except _BrokenError as error:
        problems.append(str(error))
    for at, stop in scopes:
        try:
            for number, kind, first, last in _fields(data, at, stop):
                if number == 2 and kind == _BYTES:
                    try:
                        found.append(_span(data, first, last, line, resource))
                    except _BrokenError as error:
                        problems.append(str(error))
        except _BrokenError as error:
            problems.append(str(error))
    rejects += [Reject(line, problem) for problem in problems]


def _span(data: bytes, start: int, end: int, line: int, resource: dict[str, Any]) -> Span:
    trace_id = span_id = parent_id = name = ""
    begun: int | None = None
    ended: int | None = None
    attributes: dict[str, Any] = {}
    for number, kind, at, stop in _fields(data, start, end):
        if number == 9 and kind == _BYTES:
            _pair(data, at, stop, attributes)
        elif number == 1 and kind == _BYTES:
            trace_id = data[at:stop].hex()
        elif number == 2 and kind == _BYTES:
            span_id = data[at:stop].hex()
        elif number == 4 and kind == _BYTES:
            parent_id = data[at:stop].hex()
        elif number == 5 and kind == _BYTES:
            name = data[at:stop].decode("utf-8", "replace")
        elif number == 7 and kind == _FIXED64:
            begun = _moment(data, at)
        elif number == 8 and kind == _FIXED64:
            ended = _moment(data, at)
    return Span(line, name, trace_id, span_id, begun, ended, attributes, resource, parent_id)


def _moment(data: bytes, at: int) -> int | None:
    """Nanoseconds since 1970; 0 is "not set"."""
    value = int.from_bytes(data[at : at + 8], "little")
    return value if 0 < value < 2**63 else None


def _attributes(data: bytes, start: int, end: int, field: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for number, kind, at, stop in _fields(data, start, end):
        if number == field and kind == _BYTES:
            _pair(data, at, stop, out)
    return out


def _pair(data: bytes, start: int, end: int, out: dict[str, Any]) -> None:
    """One KeyValue into `out`."""
    # As all encoders write it: key (field 1), then value (field 2) to the end, both shorter than 128 bytes.
    middle = start + 2 + data[start + 1] if end - start > 4 and data[start] == 0x0A else end
    if middle + 2 < end and data[middle] == 0x12 and data[middle + 1] == end - middle - 2 < 0x80 > data[start + 1]:
        at = middle + 2
        kind, rest = data[at], end - at - 1
        if kind == 0x21 and rest == 8:
            out[data[start + 2 : middle].decode("utf-8", "replace")] = _DOUBLE.unpack_from(data, at + 1)[0]
            return
        if kind == 0x0A and rest and data[at + 1] == rest - 1:
            out[data[start + 2 : middle].decode("utf-8", "replace")] = data[at + 2 : end].decode("utf-8", "replace")
            return
        if kind == 0x18 and rest == 1 and data[at + 1] < 0x80:
            out[data[start + 2 : middle].decode("utf-8", "replace")] = data[at + 1]
            return
    key = ""
    value: Any = None
    for number, kind, at, stop in _fields(data, start, end):
        if kind == _BYTES:
            if number == 1:
                key = data[at:stop].decode("utf-8", "replace")
            elif number == 2:
                value = _value(data, at, stop, True)
    out[key] = value


def _value(data: bytes, start: int, end: int, lists: bool) -> Any:
    """An AnyValue: text, bool, int, float, or a list of them; maps and bytes are nobody's figures."""
    value: Any = None
    for number, kind, at, stop in _fields(data, start, end):
        if number == 4 and kind == _FIXED64:
            value = _DOUBLE.unpack_from(data, at)[0]
        elif number == 3 and kind == _VARINT:
            value = at - 2**64 if at >= 2**63 else at
        elif number == 1 and kind == _BYTES:
            value = data[at:stop].decode("utf-8", "replace")
        elif number == 2 and kind == _VARINT:
            value = at != 0
        elif number == 5 and kind == _BYTES and lists:
            items = _fields(data, at, stop)
            value = [_value(data, a, b, False) for n, k, a, b in items if n == 1 and k == _BYTES]
    return value


# -- the wire format ------------------------------------------------------------------------------------------


def _fields(data: bytes, at: int, end: int, clip: bool = False) -> Iterator[Field]:
    """The fields of a message: number, wire type, and where its content begins and ends (for a varint: its value).

    With `clip` a last field that reaches beyond `end` is given as far as it goes, before the error.
    """
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag > 0x7F:
                tag, at = _varint(data, at - 1, end)
            kind = tag & 7
            if kind == _BYTES:
                size = data[at]
                at += 1
                if size > 0x7F:
                    size, at = _varint(data, at - 1, end)
                stop = at + size
            elif kind == _VARINT:
                value, at = _varint(data, at, end)
                yield tag >> 3, kind, value, at
                continue
            elif kind == _FIXED64:
                stop = at + 8
            elif kind == _FIXED32:
                stop = at + 4
            else:
                raise _BrokenError("broken protobuf")
            if stop > end:
                if clip and kind == _BYTES:
                    yield tag >> 3, kind, at, end
                raise _BrokenError("a message that is cut")
            yield tag >> 3, kind, at, stop
            at = stop
    except IndexError:
        raise _BrokenError("a message that is cut") from None


def _clipped(data: bytes, at: int, end: int) -> Iterator[Field]:
    """The same, and silent about what is cut or broken."""
    try:
        yield from _fields(data, at, end, clip=True)
    except _BrokenError:
        return


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise _BrokenError("a message that is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise _BrokenError("broken protobuf")


def _begins_with_span(data: bytes, at: int, end: int) -> bool:
    """Whether a span stands among the first fields of a list of ResourceSpans, which may be cut anywhere."""
    left = _LOOKS
    for number, kind, start, stop in _clipped(data, at, end):
        if number != 1 or kind != _BYTES:
            return False  # these messages have one field
        for part, kind_, first, last in _clipped(data, start, stop):
            left -= 1
            if part in _SCOPE_FIELDS and kind_ == _BYTES:
                for item, kind__, a, b in _clipped(data, first, last):
                    if item == 2 and kind__ == _BYTES:
                        return _is_span(data, a, b)
            if left < 0:
                return False
    return False


def _is_span(data: bytes, start: int, end: int) -> bool:
    sizes = {number: stop - at for number, kind, at, stop in _clipped(data, start, end) if kind == _BYTES}
    return sizes.get(1) == 16 and sizes.get(2) == 8


def _inflated(body: bytes) -> tuple[bytes, bool]:
    """A zstd frame's content as far as it can be read (and no further than a message goes), and whether that is all."""
    out: list[bytes] = []
    size = 0
    try:
        for piece in decompress(BytesIO(body).read, "zstd"):
            size += len(piece)
            if size > LONGEST:
                return b"".join(out), False
            out.append(piece)
    except (TruncatedError, CorruptError):
        return b"".join(out), False
    return b"".join(out), True


class _Reader:
    """Pieces cut anywhere, as messages.

    Attributes:
        fault: why the last message could not be had.
        rest: what there is of a message that was cut.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.fault = ""
        self.rest = b""
        self._pieces = pieces
        self._held = b""
        self._at = 0

    def peek(self, size: int) -> bytes:
        """The next bytes, fewer at the end of the file."""
        if len(self._held) - self._at < size:
            parts = [self._held[self._at :]]
            have = len(parts[0])
            while have < size and (piece := next(self._pieces, None)) is not None:
                parts.append(piece)
                have += len(piece)
            self._held, self._at = b"".join(parts), 0
        return self._held[self._at : self._at + size]

    def frame(self) -> bytes | None:
        """The next message behind its length."""
        head = self.peek(4)
        size = int.from_bytes(head, "big")
        if len(head) == 4 and size > LONGEST:
            self._fail("a length that no message has: the rest is not read")
            return None
        body = self.peek(4 + size)[4:] if len(head) == 4 else b""
        if len(head) < 4 or len(body) < size:
            self._fail("the last message is cut", body)
            return None
        self._at += 4 + size
        return body

    def group(self) -> bytes | None:
        """The next field of joined messages, with its tag and length."""
        head = self.peek(12)
        try:
            tag, at = _varint(head, 0, len(head))
            size, at = _varint(head, at, len(head))
        except _BrokenError:
            self._fail("the last message is cut" if len(head) < 12 else "broken protobuf: the rest is not read")
            return None
        if tag != 0x0A or size > LONGEST:
            self._fail("broken protobuf: the rest is not read")
            return None
        whole = self.peek(at + size)
        if len(whole) < at + size:
            self._fail("the last message is cut", whole)
            return None
        self._at += at + size
        return whole

    def _fail(self, why: str, rest: bytes = b"") -> None:
        self.fault, self.rest = why, rest
