"""Lines of one form taken apart by columns: what is taken is what a JSON reader reads, and nothing else is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from canonical import LINES, WRONG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roads import CLEAN, take

from tracelens.ingest.digest import Digest
from tracelens.ingest.walk import Cut, Form, Same, Texts, Walker, form_of

FORM = {"ts": "2026-04-19T00:00:00Z", "id": "r1", "n": 5, "t": 1.5, "ok": True, "name": "chat"}


def form(*records: dict[str, Any]) -> Form:
    found = form_of([json.dumps(r).encode() for r in records] or [json.dumps(FORM).encode()])
    assert found is not None
    return found[0]


def cells(cut: Cut, key: str) -> list[Any]:
    value = cut.values[key]
    if isinstance(value, Same):
        return [value.value] * len(cut.taken)
    return value.arrow().to_pylist() if isinstance(value, Texts) else value.tolist()


def check(walker: Walker, lines: list[bytes], end: bytes = b"\n") -> Cut:
    """Cut lines and hold every cell against what Python's reader makes of the line."""
    data = b"\n".join(lines) + end
    cut = walker.cut(data)
    assert sorted([*cut.taken.tolist(), *cut.others.tolist()]) == list(range(len(lines)))
    assert [data[a:b] for a, b in zip(cut.starts.tolist(), cut.ends.tolist(), strict=True)] == lines
    read = [json.loads(lines[i]) for i in cut.taken.tolist()]
    for key in (f.key for f in walker.form.fields):
        got = [float(c) if isinstance(c, str) and not isinstance(r[key], str) else c
               for c, r in zip(cells(cut, key), read, strict=True)]  # fmt: skip
        assert got == [r[key] for r in read], key
        assert all(type(g) is type(r[key]) or not isinstance(g, bool) for g, r in zip(got, read, strict=True))
    return cut


_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'), max_size=40)
_RECORD = st.fixed_dictionaries({
    "ts": st.just(FORM["ts"]),
    "id": _TEXT,
    "n": st.one_of(st.integers(0, 99), st.integers(0, 10**16 - 1)),
    "t": st.one_of(st.decimals(0, 10**6, places=3).map(float), st.floats(0.001, 1e15), st.integers(0, 5).map(float)),
    "ok": st.booleans(),
    "name": st.sampled_from(["chat", "summarise", "x"]),
}).map(lambda record: {key: record[key] for key in FORM})  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(blocks=st.lists(st.lists(_RECORD, min_size=1, max_size=30), min_size=1, max_size=3), end=st.booleans())
def test_what_is_of_the_form_is_taken_as_it_stands(blocks: list[list[dict[str, Any]]], end: bool) -> None:
    walker = Walker(form())
    for records in blocks:
        lines = [json.dumps(r).encode() for r in records]
        cut = check(walker, lines, b"\n" if end else b"")
        assert len(cut.taken) == len(lines)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    records=st.lists(_RECORD, min_size=3, max_size=12),
    places=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 400), st.sampled_from(b'"\\{},: \r\x00\x7f\xc3.-0e'),
                              st.sampled_from(["set", "insert", "delete", "cut"])), max_size=8),
)  # fmt: skip
def test_no_change_of_a_byte_is_taken_for_another_value(records: list[dict[str, Any]], places: list[Any]) -> None:
    walker = Walker(form())
    lines = [json.dumps(r).encode() for r in records]
    check(walker, lines)  # it knows now what is always the same
    for line, at, byte, how in places:
        old = lines[line % len(lines)]
        head, tail = old[: at % (len(old) + 1)], old[at % (len(old) + 1) :]
        new = {"set": head + bytes([byte]) + tail[1:], "insert": head + bytes([byte]) + tail}
        new |= {"delete": head + tail[1:], "cut": head}
        lines[line % len(lines)] = new[how]
    check(walker, lines)


def test_every_wrong_value_and_every_other_line() -> None:
    walker = Walker(form())
    good = json.dumps(FORM).encode()
    lines = [good] * 5
    for key in FORM:
        for wrong in WRONG:
            lines.append(json.dumps(FORM | {key: "@"}).replace('"@"', wrong).encode())
            lines.append(good)
    lines += [line.encode() for line in LINES] + [good, good + good, good[:-1], good[1:], b" " + good, good + b" "]
    for _ in range(2):
        cut = walker.cut(b"\n".join(lines))
        for i in cut.taken.tolist():
            record = json.loads(lines[i])
            assert list(record) == list(FORM)
            assert [type(v) for v in record.values()] == [str, str, int, float, bool, str] or isinstance(
                record["t"], int
            )
    assert len(cut.taken) >= 6 * len(WRONG)


def test_a_value_that_is_no_more_the_same_costs_one_more_look() -> None:
    walker = Walker(form())
    check(walker, [json.dumps(FORM | {"id": f"r{i}"}).encode() for i in range(20)])
    changed = [json.dumps(FORM | {"id": f"r{i}", "n": 5 + i % 2, "name": "chatty"}).encode() for i in range(20)]
    assert len(check(walker, changed).taken) == 20
    # A line that is cut off does not make the others slow.
    cut = check(walker, [*changed, changed[0][:-3], changed[0][:50]])
    assert (len(cut.taken), isinstance(cut.values["ts"], Same)) == (20, True)


def test_texts_longer_than_the_longest_and_quotes_in_texts() -> None:
    walker = Walker(form())
    records = [FORM | {"id": "x" * n} for n in (0, 7, 8, 9, 500)]
    assert len(check(walker, [json.dumps(r).encode() for r in records]).taken) == 5
    long = json.dumps(FORM | {"id": "x" * 600}).encode()
    quoted = [json.dumps(r).encode().replace(b"xxx", b'x"x') for r in records]
    cut = walker.cut(b"\n".join([long, *quoted]))
    assert cut.taken.tolist() == [1]  # the one without any x


@pytest.mark.parametrize("digits", [1, 7, 8, 9, 15, 16, 17, 20])
def test_whole_numbers_of_every_length(digits: int) -> None:
    walker = Walker(form({"n": 1}, {"n": 2}))
    lines = [b'{"n": %s}' % (b"9" * digits), b'{"n": 1%s}' % (b"0" * (digits - 1)), b'{"n": 0%s}' % (b"1" * digits)]
    cut = walker.cut(b"\n".join(lines))
    assert cells(cut, "n") == ([10**digits - 1, 10 ** (digits - 1)] if digits <= 16 else [])


def test_doubles_are_the_nearest_ones() -> None:
    walker = Walker(form({"t": 1.5}, {"t": 2.25}))
    rng = np.random.default_rng(4)
    numbers = [
        0.1,
        0.3,
        1e15,
        123456.789,
        0.000001,
        9007199254740993.0,
        *(rng.random(3000) * 10.0 ** rng.integers(-3, 9, 3000)),
    ]
    lines = [b'{"t": %s}' % (f"{n:.{p}f}".encode()) for n in numbers for p in (1, 3, 9, 19)]
    cut = check(walker, lines)
    assert len(cut.taken) == len(lines)
    few = [line for line in lines if len(line) < 20]
    assert len(check(walker, few).taken) == len(few)


def test_what_is_no_form() -> None:
    assert form_of([b"{}", b"[]", b"1"]) is None
    assert form_of([b'{"a":1,"a":2}'] * 3) is None
    assert form_of([b'{"a":[1]}'] * 3) is None
    assert form_of([b'{"a":1}', b'{"b":1}', b'{"c":1}']) is None
    found = form_of([b'{"record":"round","a":1}', b'{"record":"run","b":1}', b'{"record":"round","a":7}'], ("record",))
    assert found is not None
    assert [f.key for f in found[0].fields] == ["a"]
    assert found[0].fields[0].before == b'{"record":"round","a":'


@pytest.mark.parametrize("how", ["grows", "is written anew"])
def test_a_file_that_changes_behind_its_digest(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rounds.jsonl"
    lines = ['{"record":"round","ts":"2026-05-06T12:00:00Z","drafted":3,"accepted":1}\n'] * 400
    path.write_text("".join(lines))
    of = Digest.of

    def change(*given: Any) -> Any:
        found = of(*given)
        if how == "grows":
            with path.open("a") as file:
                file.write(lines[0] + lines[0][:30])
        elif path.read_text() == "".join(lines):
            path.write_text("".join(lines).replace('"accepted":1', '"accepted":2'))
            os.utime(path, ns=(0, 0))
        return found

    monkeypatch.setattr(Digest, "of", change)
    made = take(path, tmp_path / "staging", quick=True)
    rows = made.rows("rounds")
    if how == "grows":  # read to where its digest ends
        assert made.road == CLEAN
        assert [row["accepted"] for row in rows] == [1] * 400
    else:  # the next road reads it as it is now
        assert "decoded" in made.why
        assert [row["accepted"] for row in rows] == [2] * 400
