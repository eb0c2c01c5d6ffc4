from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.sources import lines
from tracelens.sources.lines import LineFinder
from tracelens.sources.stream import Block

from .wraps import BASE, NEEDLE, STAMP, WRAPS, cri, docker


def run(data: bytes, cuts: list[int], needles: tuple[bytes, ...] = (NEEDLE.encode(),)) -> list[tuple[object, ...]]:
    """Rows found when the data come in blocks cut behind the lines with the given numbers."""
    lines = data.splitlines(keepends=True)
    finder = LineFinder(needles)
    frames, start, offset = [], 0, 0
    for cut in [*sorted({c for c in cuts if 0 < c < len(lines)}), len(lines)]:
        piece = b"".join(lines[start:cut])
        if piece:
            frames.append(finder.find(Block(piece, start + 1, offset)))
        start, offset = cut, offset + len(piece)
    frames.append(finder.finish())
    return pl.concat(frames).sort("line", maintain_order=True).rows()


def test_no_hit_gives_the_columns() -> None:
    finder = LineFinder([b"x"])
    empty = finder.find(Block(b"abc\n", 1, 0))
    assert empty.schema == finder.finish().schema == LineFinder([b"a"]).find(Block(b"abc\n", 1, 0)).schema
    assert empty.height == 0


def test_a_line_hit_twice_comes_once_with_its_place() -> None:
    rows = run(b"aa\nx b aa b\nccc\nb", [], (b"aa", b"b"))
    assert [row[:3] for row in rows] == [(1, 0, "aa"), (2, 3, "x b aa b"), (4, 16, "b")]


def test_block_position_is_added() -> None:
    got = LineFinder([b"aa"]).find(Block(b"x\naa\n", 11, 1000))
    assert got.select("line", "offset").rows() == [(12, 1002)]


def test_invalid_utf8_is_replaced() -> None:
    assert [row[2] for row in run(b"aa \xff\xfe\nb\naa ok\n", [], (b"aa",))] == ["aa \ufffd\ufffd", "aa ok"]


def test_no_needles() -> None:
    assert run(b"abc\n", [], ()) == []


def part(tag: str, text: str, stream: str = "stdout") -> str:
    return f"{STAMP} {stream} {tag} {text}\n"


LONG = BASE[1]
CRI_PARTS = "".join(
    [
        cri(BASE[0]) + "\n",
        part("P", LONG[:30]),
        part("F", "other stream", "stderr"),
        part("P", LONG[30:90]),  # the needle is split over this part and the one before
        part("F", f"{NEEDLE} whole", "stderr"),
        part("F", LONG[90:]),
        cri(BASE[3]) + "\n",
        part("P", f"{NEEDLE} never ended"),
    ]
).encode()


@pytest.mark.parametrize("cuts", [[], [2], [3, 4], [1, 2, 3, 4, 5, 6, 7]])
def test_cri_parts(cuts: list[int]) -> None:
    assert LONG.find(NEEDLE) < 90 < len(LONG)
    rows = run(CRI_PARTS, cuts)
    assert [(row[0], row[2], row[3], row[6]) for row in rows] == [
        (2, LONG, STAMP, "cri"),
        (5, f"{NEEDLE} whole", STAMP, "cri"),
        (7, BASE[3], STAMP, "cri"),
        (8, f"{NEEDLE} never ended", STAMP, "cri"),
    ]
    assert [row[1] for row in rows] == [CRI_PARTS.find(b"\n") + 1, *(CRI_PARTS.find(t) for t in tails(CRI_PARTS))]


def tails(data: bytes) -> list[bytes]:
    lines = data.splitlines(keepends=True)
    return [lines[4], lines[6], lines[7]]


def record(log: str, stream: str = "stdout") -> str:
    return json.dumps({"log": log, "stream": stream, "time": STAMP}, separators=(",", ":")) + "\n"


DOCKER_PARTS = "".join(
    [
        docker(BASE[0]) + "\n",
        record(LONG[:30]),
        record("err\n", "stderr"),
        record(LONG[30:]),
        record("\n"),
        docker(BASE[3]) + "\n",
        record(f"{NEEDLE} never ended"),
    ]
).encode()


@pytest.mark.parametrize("cuts", [[], [2], [3, 4], [1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("spaces", [False, True])
def test_docker_parts(cuts: list[int], spaces: bool) -> None:
    data = DOCKER_PARTS
    if spaces:
        data = b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in data.splitlines())
    assert [(row[0], row[2], row[3], row[6]) for row in run(data, cuts)] == [
        (2, LONG, STAMP, "docker"),
        (6, BASE[3], STAMP, "docker"),
        (7, f"{NEEDLE} never ended", STAMP, "docker"),
    ]


@pytest.mark.parametrize("data", [CRI_PARTS, DOCKER_PARTS])
def test_parts_behind_a_broken_first_line(data: bytes) -> None:
    assert LONG in [row[2] for row in run(b"oken line\n\n" + data, [])]


def test_a_message_whose_end_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.sources.partials.MAX_GAP", 3)
    data = part("P", f"{NEEDLE} a") + part("F", "x", "stderr") * 6 + part("F", f"{NEEDLE} b")
    assert [row[2] for row in run(data.encode(), [])] == [f"{NEEDLE} a", f"{NEEDLE} b"]


def test_lines_of_others_between_parts() -> None:
    between = "\n{}\n[]\nplain " + NEEDLE + "\n"
    got = [row[2] for row in run((part("P", LONG[:30]) + between + part("F", LONG[30:])).encode(), [])]
    assert got == [LONG, f"plain {NEEDLE}"]
    got = [row[2] for row in run((record(LONG[:30]) + between + record(LONG[30:] + "\n")).encode(), [])]
    assert got == [LONG, f"plain {NEEDLE}"]


def test_message_in_parts_that_grows_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.sources.partials.MAX_MESSAGE", 100)
    finder = LineFinder([NEEDLE.encode()])
    data = (part("P", "x" * 80) * 2 + part("F", NEEDLE)).encode()
    assert finder.find(Block(data, 1, 0))["text"].to_list() == [NEEDLE]
    assert [(p.line, p.reason) for p in finder.problems] == [(1, "message in parts longer than 100 bytes")]


# A byte array is only looked for in a block that begins with JSON.
NAMES = sorted(set(WRAPS) - {"journald_bytes"})


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(BASE)), max_size=12), st.lists(st.integers(1, 11)))
def test_any_split_gives_the_same(pairs: list[tuple[str, str]], cuts: list[int]) -> None:
    data = "".join(WRAPS[name][0](line) + "\n" for name, line in pairs).encode()
    whole = run(data, [])
    assert run(data, cuts) == whole
    assert [row[2] for row in whole] == [line for _, line in pairs if NEEDLE in line]


@given(st.lists(st.tuples(st.sampled_from("PF"), st.sampled_from(["stdout", "stderr"]), st.integers(0, 30))),
       st.lists(st.integers(1, 20)), st.booleans())  # fmt: skip
def test_any_parts_and_any_split(parts: list[tuple[str, str, int]], cuts: list[int], is_docker: bool) -> None:
    """Against a plain model: join by stream until F."""
    lines, waiting, expected = [], {"stdout": "", "stderr": ""}, []
    text = NEEDLE * 2
    for tag, stream, at in parts:
        piece = f"a{text[at : at + 25]}"
        waiting[stream] += piece
        lines.append(record(piece + "\n" * (tag == "F"), stream) if is_docker else part(tag, piece, stream))
        if tag == "F":
            expected.append(waiting.pop(stream))
            waiting[stream] = ""
    expected += waiting.values()
    rows = run("".join(lines).encode(), cuts)
    assert sorted(row[2] for row in rows) == sorted(one for one in expected if NEEDLE in one)


def test_lines_of_several_blocks_are_given_together() -> None:
    finder = LineFinder([b"aa", b"zz"])
    finder.add(Block(b"x\naa\n", 1, 0))
    held = finder.held
    finder.add(Block(b"b\nzz \xff\n", 3, 5))
    assert 0 < held < finder.held
    assert finder.take().select("line", "offset", "text").rows() == [(2, 2, "aa"), (4, 7, "zz \ufffd")]
    assert finder.found == {b"aa", b"zz"}
    assert finder.held == 0
    assert finder.take().height == 0
    assert finder.found == set()


@pytest.mark.parametrize("others", [0, 2000])
def test_keys_count_in_lines_with_a_brace(others: int) -> None:
    braces = b"GET /{id}\n" * others
    text = b'say "key"\nx {"key": 1}\n' + braces + b'last {"key": 2}'
    got = LineFinder([b"aa"], [b'"key"']).find(Block(text, 1, 0))
    # Where most lines have a brace, all are searched; what is no object is no record then either.
    assert got["line"].to_list() == ([1] if others else []) + [2, 3 + others]


def test_keys_of_a_document_stand_apart_from_its_braces() -> None:
    finder = LineFinder([b"aa"], [b'"key"'])
    finder.add(Block(b'[\n {\n  "key": 1\n', 1, 0), document=True)
    assert finder.take()["line"].to_list() == [3]


@given(st.lists(st.sampled_from([b"aa", b"b aa c", b"", b"noise " * 40]), max_size=40), st.booleans())
def test_few_hits_and_many_give_the_same_lines(texts: list[bytes], ended: bool) -> None:
    data = b"\n".join(texts) + b"\n" * ended
    hits = [at for at in range(len(data)) if data.startswith(b"aa", at)]
    if hits:
        assert [x.tolist() for x in lines._few(data, hits)] == [x.tolist() for x in lines._many(data, hits)[:3]]
