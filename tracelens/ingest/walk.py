"""All lines of a block read at once, key by key: for files whose lines differ in nothing but their values.

A writer of records writes the same keys in the same order with the same signs between them. So the places of the first
value of all lines are known, and with the ends of these values the places of the second ones: each step is a few
operations on arrays over all lines of the block, and a step that finds other bytes than it must takes its lines out.
What remains is byte for byte of the form: no key is missing, or there twice, or of another type. That is proof enough
to take the values as they stand; no other reader sees these lines.

Numbers are read eight digits at a time from 64-bit words (D. Lemire, "Number parsing at a gigabyte per second", 2021).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Places = NDArray[np.int64]
Words = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Kind = Literal["text", "whole", "number", "truth"]

_PAIR = re.compile(rb'\s*"(?P<key>[^"\\]*)"\s*:\s*(?:"(?P<text>[^"\\]*)"|(?P<truth>true|false)|(?P<number>[0-9.]+))\s*')
_BYTES = 0x0101010101010101
_LONGEST_FORM = 4096
_LONGEST_TEXT = 64  # words of eight bytes; a line with a longer text is not taken
# Longer numbers are exact neither in a double nor, with a point, after one division.
_EXACT_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Field:
    """A key: what stands between the value before it and its own, and of what kind its values are."""

    key: str
    kind: Kind
    before: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """Lines that differ only in their values: the fields in their order, and what ends a line."""

    fields: tuple[Field, ...]
    tail: bytes

    def with_points(self, keys: Collection[str]) -> Form:
        """The form in which the numbers of some keys may have a point."""
        fields = (replace(f, kind="number") if f.key in keys and f.kind == "whole" else f for f in self.fields)
        return Form(tuple(fields), self.tail)


@dataclass(frozen=True, slots=True)
class Texts:
    """Where the values of a key stand; good until the next block is cut."""

    buffer: NDArray[np.uint8]
    starts: Places
    ends: Places

    def arrow(self) -> pa.StringArray:
        """The texts."""
        # Each text, and what lies between it and the next one: then every other one is taken.
        places = np.empty(2 * len(self.starts), np.int32)
        places[0::2], places[1::2] = self.starts, self.ends
        both = pa.StringArray.from_buffers(max(0, len(places) - 1), pa.py_buffer(places), pa.py_buffer(self.buffer))
        return both.take(pa.array(np.arange(0, len(places), 2, dtype=np.int32)))


@dataclass(frozen=True, slots=True)
class Same:
    """One value of all lines: str, int, float or bool."""

    value: Any


@dataclass(frozen=True, slots=True)
class Cut:
    """The lines of a block.

    Attributes:
        taken: numbers (from 0) of the lines that are of the form.
        others: numbers of the lines that are not.
        starts, ends: where each line of the block begins and ends (its LF, or the end of the block).
        values: key -> values of the lines taken: `Same`; whole numbers as int64, numbers as float64 (or `Texts` of
            digits and a point, where a double needs more care), truths as bool, texts as `Texts`.
    """

    taken: Places
    others: Places
    starts: Places
    ends: Places
    values: Mapping[str, Any]


def form_of(lines: Sequence[bytes], fixed: Collection[str] = ()) -> tuple[Form, bytes] | None:
    """The form of most of some lines, and one of them; None where no half of them are of one.

    Args:
        lines: lines without their ends.
        fixed: keys whose texts are part of the form.
    """
    forms = [(form, line) for line in lines if (form := _form(line, fixed)) is not None]
    form, count = Counter(f for f, _ in forms).most_common(1)[0] if forms else (None, 0)
    return next((pair for pair in forms if pair[0] == form), None) if 0 < 2 * count >= len(lines) else None


def _form(line: bytes, fixed: Collection[str]) -> Form | None:
    if not line.startswith(b"{") or not line.isascii():
        return None
    fields: list[Field] = []
    keys: list[str] = []
    at, done = 1, 0  # behind the last comma, and behind the last value
    while (pair := _PAIR.match(line, at)) is not None:
        name = str(pair.lastgroup)
        kind: Kind = "text" if name == "text" else "truth" if name == "truth" else "number"
        if kind == "number" and b"." not in pair["number"]:
            kind = "whole"
        start, end = pair.span(name)
        keys.append(pair["key"].decode())
        at = pair.end()
        if kind != "text" or keys[-1] not in fixed:
            fields.append(Field(keys[-1], kind, line[done:start]))
            done = end
        if line[at : at + 1] != b",":
            break
        at += 1
    plain = fields and line[at:] == b"}" and len(set(keys)) == len(keys)
    return Form(tuple(fields), line[done:]) if plain and len(line) <= _LONGEST_FORM else None


class Walker:
    """Cuts block after block; it learns which values are always the same, and how long texts are."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._same: dict[str, bytes] | None = None  # not known before the first block
        self._lengths: dict[str, int | None] = {}  # None: they differ
        self._buffer = np.empty(0, np.uint8)
        follows = [*(f.before for f in form.fields[1:]), form.tail]
        self._after = {f.key: after[:8] for f, after in zip(form.fields, follows, strict=True)}
        self._quotes = sum(f.before.count(b'"') for f in form.fields) + form.tail.count(b'"')

    def cut(self, data: bytes) -> Cut:
        """Whole lines to columns."""
        # A line that was taken out is read on, and may come behind the end by all the form's texts and numbers.
        padding = 2 * _LONGEST_FORM + 8 * (_LONGEST_TEXT + 5) * len(self.form.fields)
        if len(self._buffer) < len(data) + padding:
            self._buffer = np.zeros(len(data) + padding, np.uint8)
        self._buffer[: len(data)] = np.frombuffer(data, np.uint8)
        codes = self._buffer[: len(data)]
        ends = np.flatnonzero(codes < 32)
        clean = b"\\" not in data and data.isascii() and bool((codes[ends] == 10).all())
        if not clean:
            ends = ends[codes[ends] == 10]
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        right = None if clean else _without_strange(codes, ends)
        while True:
            step, found = self._walk(starts, ends, right)
            step.keep(step.at == ends)
            if not self._forget(step, data):
                break
        _count_quotes(step, data, starts, ends, self._quotes)
        taken, others = np.flatnonzero(step.good), np.flatnonzero(~step.good)
        if self._same is None:
            self._same = self._learnt(found, taken)
        return Cut(taken, others, starts, ends, {k: _only(v, taken, len(ends)) for k, v in found.items()})

    def _walk(self, starts: Places, ends: Places, right: Mask | None) -> tuple[_Step, dict[str, Any]]:
        step = _Step(self._buffer, starts, ends)
        if right is not None:
            step.keep(right)
        same = self._same or {}
        found: dict[str, Any] = {}
        literal, spans = b"", []
        for field in self.form.fields:
            literal += field.before
            if field.key in same:
                spans.append((len(literal), field.key))
                literal += same[field.key]
                found[field.key] = _value(field.kind, same[field.key])
                continue
            step.over(literal, spans)
            found[field.key] = self._read(step, field)
            literal, spans = b"", []
        step.over(literal + self.form.tail, spans)
        return step, found

    def _read(self, step: _Step, field: Field) -> Any:
        if field.kind == "text":
            start = step.at
            step.at = self._ends(step, field.key)
            step.keep(step.at < step.ends)  # a text that is cut off ends in no other line
            return Texts(step.buffer, start, step.at)
        return {"whole": _wholes, "number": _numbers, "truth": _truths}[field.kind](step)

    def _ends(self, step: _Step, key: str) -> Places:
        """Where texts end: most often all are as long as the first one."""
        if key not in self._lengths:
            first = step.at[step.good.argmax() : step.good.argmax() + 1]
            self._lengths[key] = int((step.quote(first) - first).sum())
        length = self._lengths[key]
        if length is None:
            return step.quote(step.at)
        ends = step.at + length
        after = self._after[key]
        bits = np.uint64((1 << 8 * len(after)) - 1)
        missed = (((step.words[ends] & bits) != np.uint64(int.from_bytes(after, "little"))) & step.good).nonzero()[0]
        if len(missed):
            ends[missed] = step.quote(step.at[missed])
            if 4 * len(missed) > len(ends):
                self._lengths[key] = None
        return ends

    def _learnt(self, found: Mapping[str, Any], taken: Places) -> dict[str, bytes]:
        """Values that all lines taken have, as they stand there."""
        same: dict[str, bytes] = {}
        for field in self.form.fields if len(taken) else ():
            value = found[field.key]
            if isinstance(value, Texts):
                texts = Texts(value.buffer, value.starts[taken], value.ends[taken]).arrow().unique()
                if len(texts) == 1 and field.kind == "text":
                    same[field.key] = texts[0].as_py().encode()
            elif (value[taken] == value[taken[0]]).all():
                cell = value[taken[0]].item()
                same[field.key] = (str(cell).lower() if field.kind == "truth" else repr(cell)).encode()
        return same

    def _forget(self, step: _Step, data: bytes) -> bool:
        """Whether some value is not always the same after all; then the block is to be read again."""
        wrong: set[str] = set()
        for lines, literal, spans in step.missed:
            for at in lines.tolist():
                place = next((i for i, byte in enumerate(literal) if self._buffer[at + i] != byte), len(literal))
                # Where a line was cut off, no other value stands.
                if at + place < len(data) and self._buffer[at + place] != 10:
                    wrong |= {key for start, key in spans if start <= place <= start + len((self._same or {})[key])}
        self._same = {k: v for k, v in (self._same or {}).items() if k not in wrong} if wrong else self._same
        return bool(wrong)


class _Step:
    """Where each line is being read, and which lines have kept to the form so far."""

    def __init__(self, buffer: NDArray[np.uint8], starts: Places, ends: Places) -> None:
        self.buffer = buffer
        self.ends = ends
        self.words: Words = np.ndarray((len(buffer) - 7,), "<u8", buffer.data, strides=(1,))
        self.at = starts
        self.good = np.ones(len(starts), np.bool_)
        self.all_good = True
        # Places where a literal that holds values did not stand, the literal, and where each of its values begins.
        self.missed: list[tuple[Places, bytes, list[tuple[int, str]]]] = []

    def keep(self, right: Mask) -> None:
        """Take out the lines that are not right; they are read on at the beginning of the block, for nothing."""
        if right.all():
            return
        wrong = self.good > right
        if wrong.any():
            self.good &= right
            self.all_good = False
            self.at = self.at.copy()
            self.at[wrong] = 0

    def over(self, literal: bytes, spans: list[tuple[int, str]]) -> None:
        """Step over bytes that must stand here."""
        right = self._is_at(literal)
        if spans and not right.all():
            self.missed.append((self.at[~right & self.good], literal, spans))
        self.keep(right)
        self.at = self.at + len(literal)

    def _is_at(self, literal: bytes) -> Mask:
        count = -(-len(literal) // 8)
        parts = np.frombuffer(literal.ljust(8 * count, b"\0"), "<u8")
        bits = np.frombuffer((b"\xff" * len(literal)).ljust(8 * count, b"\0"), "<u8")
        if count == 1:
            found: Mask = (self.words[self.at] & bits) == parts
            return found
        # One step of memory for all words of a line.
        view: NDArray[Any] = np.ndarray(
            (len(self.buffer) - 8 * count,), f"V{8 * count}", self.buffer.data, strides=(1,)
        )
        words = view[self.at].view("<u8").reshape(-1, count)
        words[:, -1] &= bits[-1]
        same = words == parts
        right: Mask = same[:, 0].copy()
        for i in range(1, count):  # quicker than `all` over such short rows
            right &= same[:, i]
        return right

    def quote(self, at: Places) -> Places:
        """The next quote behind each place; where there is none for long, some other place."""
        out = at.copy()
        left = np.arange(len(at))
        for _ in range(_LONGEST_TEXT):
            bits = self.words[out[left]] ^ np.uint64(_BYTES * 0x22)
            before = _bytes_before((bits - np.uint64(_BYTES)) & ~bits & np.uint64(_BYTES * 0x80))
            out[left] += before
            left = left[before == 8]
            if not len(left):
                break
        return out

    def digits(self) -> tuple[Words, Places, Mask]:
        """What the digits at each place say, how many they are, and whether 0 is the first; at most 16 of them."""
        words = self.words[self.at]
        value, width = _eight(words)
        longer = (width == 8).nonzero()[0]
        if len(longer):
            more, further = _eight(self.words[self.at[longer] + 8])
            value[longer] = value[longer] * np.power(np.uint64(10), further.astype(np.uint64)) + more
            width[longer] += further
        return value, width, (words & np.uint64(0xFF)) == np.uint64(0x30)


def words_at(buffer: NDArray[np.uint8], at: Places, count: int) -> Words:
    """So many words of eight bytes at each place: one step of memory for all words of a line."""
    view: NDArray[Any] = np.ndarray((len(buffer) - 8 * count,), f"V{8 * count}", buffer.data, strides=(1,))
    words: Words = view[at].view("<u8").reshape(-1, count)
    return words


def _bytes_before(hit: Words) -> Places:
    """Bytes before the first one whose highest bit is set; 8 where there is none."""
    before: Places = (np.bitwise_count(~hit & (hit - np.uint64(1))) >> np.uint8(3)).astype(np.int64)
    return before


def _eight(words: Words) -> tuple[Words, Places]:
    """What the digits at the beginning of eight bytes say, and how many they are."""
    digits = words ^ np.uint64(_BYTES * 0x30)
    other = (((digits & np.uint64(_BYTES * 0x7F)) + np.uint64(_BYTES * 0x76)) | digits) & np.uint64(_BYTES * 0x80)
    width = _bytes_before(other)
    # The digits to the end of the word, zeros before them; a shift by 64 gives 0.
    digits <<= ((8 - width) << 3).view(np.uint64)
    pairs = digits * np.uint64(10) + (digits >> np.uint64(8))
    low = np.uint64(0x000000FF000000FF)
    value = (pairs & low) * np.uint64(0x000F424000000064)
    value += ((pairs >> np.uint64(16)) & low) * np.uint64(0x0000271000000001)
    value >>= np.uint64(32)
    return value, width


def _wholes(step: _Step) -> Places:
    value, width, zero = step.digits()
    step.at = step.at + width
    # 007 is no number of JSON.
    step.keep((width > 0) & ~(zero & (width > 1)))
    return value.view(np.int64)


def _numbers(step: _Step) -> Any:
    """Digits, and perhaps a point and more of them; an exponent or a sign is of another form."""
    start = step.at
    whole = _wholes(step)
    pointed = step.buffer[step.at] == ord(".")
    if not pointed.any():
        return whole.astype(np.float64)
    step.at = step.at + pointed
    part, width, _ = step.digits()
    longer = (width == 16).nonzero()[0]
    if len(longer):  # 0.0012345678901234567
        width[longer] += _eight(step.words[step.at[longer] + 16])[1]
    width[~pointed] = 0
    step.keep(~pointed | (width > 0))
    step.at = step.at + width
    if (step.good & (step.at - start - pointed > _EXACT_DIGITS)).any():
        return Texts(step.buffer, start, step.at)
    scale = np.power(np.uint64(10), width.view(np.uint64))
    part[~pointed] = 0
    # Both are exact, so that one division gives the nearest double (W. Clinger, 1990).
    return (whole.view(np.uint64) * scale + part).astype(np.float64) / scale.astype(np.float64)


def _truths(step: _Step) -> Mask:
    words = step.words[step.at]
    true: Mask = (words & np.uint64(0xFFFFFFFF)) == np.uint64(int.from_bytes(b"true", "little"))
    false = (words & np.uint64(0xFFFFFFFFFF)) == np.uint64(int.from_bytes(b"false", "little"))
    step.at = step.at + 4 + false
    step.keep(true | false)
    return true


def _without_strange(codes: NDArray[np.uint8], ends: Places) -> Mask:
    """Lines without an escape, a byte beyond ASCII or a control character."""
    strange = (codes == 0x5C) | (codes >= 0x80) | ((codes < 32) & (codes != 10))
    right = np.ones(len(ends), np.bool_)
    right[np.searchsorted(ends, np.flatnonzero(strange))] = False
    return right


def _count_quotes(step: _Step, data: bytes, starts: Places, ends: Places, due: int) -> None:
    """Take out lines with a quote inside a text: whoever knows how long a text is does not look for its end."""
    spare = 0
    if not step.all_good:
        bad = np.flatnonzero(~step.good)
        spare = sum(data.count(b'"', a, b) for a, b in zip(starts[bad].tolist(), ends[bad].tolist(), strict=True))
    if int(np.count_nonzero(step.buffer[: len(data)] == 34)) - spare == due * int(np.count_nonzero(step.good)):
        return
    right = [data.count(b'"', a, b) == due for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    step.keep(np.array(right, np.bool_))


def _value(kind: Kind, token: bytes) -> Same:
    if kind == "text":
        return Same(token.decode())
    return Same(token == b"true" if kind == "truth" else int(token) if kind == "whole" else float(token))


def _only(value: Any, taken: Places, lines: int) -> Any:
    """The values of the lines taken."""
    if isinstance(value, Same) or len(taken) == lines:
        return value
    if isinstance(value, Texts):
        return Texts(value.buffer, value.starts[taken], value.ends[taken])
    return value[taken]
