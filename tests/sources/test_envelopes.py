from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.sources.lines import LineFinder
from tracelens.sources.stream import Block

from .wraps import BASE, NEEDLE, STAMP, WRAPS, cri, docker, json_logging, kubectl, loki, rfc3164

COLUMNS = ["line", "offset", "text", "stamp", "stream", "process", "envelope"]


def found(data: bytes, needle: str = NEEDLE) -> pl.DataFrame:
    finder = LineFinder([needle.encode()])
    return pl.concat([finder.find(Block(data, 1, 0)), finder.finish()])


def texts(*lines: str, needle: str = NEEDLE) -> list[str]:
    return found("".join(line + "\n" for line in lines).encode(), needle)["text"].to_list()


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_wrapping(name: str, end: str) -> None:
    wrap, envelope, stamp, stream, process = WRAPS[name]
    lines = [wrap(line) + end for line in BASE]
    offsets = [sum(len(line) for line in lines[:n]) for n in (1, 3)]
    data = "".join(lines).encode()
    got = found(data)
    assert got.columns == COLUMNS
    assert got.rows() == [
        (2, offsets[0], BASE[1], stamp, stream, process, envelope),
        (4, offsets[1], BASE[3], stamp, stream, process, envelope),
    ]


def test_envelopes_seen() -> None:
    finder = LineFinder([NEEDLE.encode()])
    for line in (docker(BASE[1]), cri(json_logging(BASE[1])), BASE[1]):
        finder.find(Block(line.encode() + b"\n", 1, 0))
    assert finder.envelopes == {"docker", "cri>json"}


@pytest.mark.parametrize(
    "record",
    [
        {"metrics": {"a": 1}, "message": NEEDLE},
        {"choices": [{"message": {"content": NEEDLE}}], "line": "x"},
        {"aux_info": {}, "msg": NEEDLE, "aux_infos": [1]},
        {"request": {"prompt": NEEDLE}, "response": {"a": 1}, "message": "x"},
        {"drafted": 4, "accepted": 3, "message": NEEDLE},
        {"event": "step", "message": NEEDLE},
        {"id": 1, "prompt": f"Apr 19 10:00:10 node vllm[1]: {NEEDLE}"},
        {"message": {"text": NEEDLE}},
        {"line": 7, "text": NEEDLE},
        {"msg": None, "text": NEEDLE},
    ],
)
def test_content_is_no_envelope(record: dict[str, object]) -> None:
    line = json.dumps(record)
    got = found(line.encode())
    assert got.select("text", "stamp", "envelope").rows() == [(line, None, None)]
    assert texts(docker(line)) == [line]


@pytest.mark.parametrize(
    "line",
    [
        f'{{"log": "{NEEDLE}',
        f'{{"log": "{NEEDLE}"}} trailing',
        f'prompt: "{STAMP} stdout F {NEEDLE}"',
        f"INFO [pod/a/b] {NEEDLE}",
        f"{{}} {NEEDLE}",
        f"{{{NEEDLE}",
        f"Apr 19 10:00:10 {NEEDLE}",  # the head of the message reads as host and tag
        f"{NEEDLE} x | y",
    ],
)
def test_what_only_looks_like_one(line: str) -> None:
    assert texts(line) == [line]


def test_good_json_beside_malformed() -> None:
    bad = f'{{"log": "{NEEDLE}'
    assert texts(docker(BASE[1]), bad, docker(BASE[3])) == [BASE[1], bad, BASE[3]]


def test_multi_line_message_keeps_its_newlines() -> None:
    message = f"first\r\n{NEEDLE} 1\nlast"
    assert texts(json_logging(message)) == [f"first\n{NEEDLE} 1\nlast"]


def test_progress_bar() -> None:
    bar = f"Processed:  10%|#  | 2/20\rProcessed:  45%|## | 9/20\r{BASE[1]}\rProcessed: 100%"
    assert texts(bar) == [BASE[1]]
    assert texts(cri(bar)) == [BASE[1]]
    assert found(("bar 1%\r" + json_logging(BASE[1])).encode())["process"].to_list() == ["APIServer 812"]


def test_nul_bytes() -> None:
    assert texts("\0\0\0" + BASE[1], BASE[3] + "\0") == [BASE[1], BASE[3]]


def test_loki_push_gives_a_row_for_each_relevant_line() -> None:
    streams = [
        {"stream": {"pod": "a"}, "values": [["1", BASE[0]], ["1776592810061123456", BASE[1]]]},
        {"stream": {"pod": "b"}, "values": [["1776592820061123456", BASE[3], {"trace": "t"}]]},
    ]
    got = found(json.dumps({"streams": streams}).encode())
    assert got.select("line", "text", "stamp", "stream").rows() == [
        (1, BASE[1], "1776592810061123456", "a"),
        (1, BASE[3], "1776592820061123456", "b"),
    ]


@pytest.mark.parametrize(
    ("record", "stamp", "stream", "process"),
    [
        ({"message": "m", "time": True, "ts": 1776592810061}, "1776592810061", None, None),
        ({"msg": "m", "pid": 7, "container_name": "vllm"}, None, "vllm", "7"),
        ({"log": {"message": "m"}, "kubernetes": {"labels": {}}}, None, None, None),
        ({"line": "m", "labels": {"b": "2", "a": "1"}}, None, "a=1,b=2", None),
        ({"line": "m", "labels": {}, "timestamp": "t"}, "t", None, None),
        ({"MESSAGE": "m", "CONTAINER_NAME": "c", "_SYSTEMD_UNIT": "u", "_PID": "1", "_COMM": "x"}, None, "c", "x 1"),
    ],
)
def test_json_keys(record: dict[str, object], stamp: str | None, stream: str | None, process: str | None) -> None:
    data = json.dumps(record).replace('"m"', f'"{NEEDLE}"').encode()
    assert found(data).select("text", "stamp", "stream", "process").rows() == [(NEEDLE, stamp, stream, process)]


@pytest.mark.parametrize(
    "record",
    [
        {"MESSAGE": [300, "x"], "text": NEEDLE},
        {"MESSAGE": {"a": NEEDLE}},
        {"streams": [1, {"values": 2}, {"values": [[1], 2, [3, 4]]}], "text": NEEDLE},
        {"values": [["1", "irrelevant"]], "text": NEEDLE},
    ],
)
def test_odd_records_are_left(record: dict[str, object]) -> None:
    assert texts(json.dumps(record)) == [json.dumps(record)]


def test_logcli_without_labels() -> None:
    assert found(f"{STAMP} {{}} {NEEDLE}".encode()).select("text", "stream", "envelope").rows() == [
        (NEEDLE, None, "loki")
    ]


def test_identities_of_nested_envelopes_are_joined() -> None:
    assert found(kubectl(loki(BASE[1])).encode())["stream"].to_list() == ["vllm-0/server vllm-0"]


def test_five_levels_at_most() -> None:
    line = BASE[1]
    for _ in range(7):
        line = json.dumps({"message": line})
    assert found(line.encode())["envelope"].to_list() == ["json>json>json>json>json"]


def test_a_needle_with_quotes_is_found_inside_json() -> None:
    record = '{"aux_info": {"a": 1}}'
    assert texts(docker(record), needle='"aux_info"') == [record]


def test_yearless_outer_stamp_gives_way_to_a_dated_one() -> None:
    got = found(rfc3164(json_logging(BASE[1])).encode())
    assert got["stamp"].to_list() == ["2026-04-19 10:00:10,144"]


LINE = st.text(st.characters(blacklist_characters="\r\n\0\x1b", blacklist_categories=("Cs",)), max_size=40)
FLAT = [name for name in WRAPS if name not in ("plain", "ansi", "docker_ansi")]


@given(st.lists(LINE, max_size=8), st.sampled_from(FLAT))
def test_round_trip(lines: list[str], name: str) -> None:
    # a head that no envelope begins with: what begins like one would be peeled further, rightly
    lines = [f"(p) {line} {NEEDLE}" for line in lines]
    assert texts(*map(WRAPS[name][0], lines)) == lines


@given(st.binary(max_size=300), st.lists(st.sampled_from([b"\n", b"{", b'"log":"', b"} ", NEEDLE.encode(), b"\r"])))
def test_noise_never_raises(noise: bytes, pieces: list[bytes]) -> None:
    data = noise + b"".join(piece + noise[:7] for piece in pieces)
    got = found(data)
    assert got.columns == COLUMNS
    assert found(data.replace(b"\n", b" ")).height <= 1
