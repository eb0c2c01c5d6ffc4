"""Chrome traces: whatever the layout, the cuts and the damage, whole events come out as they went in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.sources import chrome_trace, needles
from tracelens.sources.chrome_trace import Trace, looks, read
from tracelens.sources.json_array import scan

from .traces import BASE_NS, LAYOUTS, document, event, torch

MARKS = (b'"ours: ', b'"also')
OURS = [
    event("ours: forward", 1.5, 20, External_id=7),
    event("aten::copy_", 2.0, 1, cat="cpu_op", dims=[[1, 2], [], {"ours": {}}], text='a "quoted" \\ } { ] [ text'),
    event('operator(){lambda(int)#1}"[] \\" ours: x', 3.0, 1, cat="kernel"),
    event("also größer 批", 4, 2.25, pid="Spans", tid="a thread"),
    {"ph": "M", "name": "process_name", "ts": 0.5, "pid": 7, "tid": 0, "args": {"name": "Worker"}},
    event("ours: draft", 5096554055941.907, 30),
]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return iter([data[i : i + size] for i in range(0, len(data), size)])


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    return trace.events.select("event", "name", "ts", "dur", "pid", "tid").rows()


EXPECTED = [
    (1, "ours: forward", 1.5, 20.0, "7", "7"),
    (4, "also größer 批", 4.0, 2.25, "Spans", "a thread"),
    (6, "ours: draft", 5096554055941.907, 30.0, "7", "7"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_every_layout_and_chunk_gives_the_same_events(layout: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "CHUNK", chunk)
    data = LAYOUTS[layout](document(OURS, tail={"distributedInfo": {"rank": 3}, "vllm_version": "0.32.0"}))
    trace = read(pieces(data, 11), MARKS)
    found = rows(trace)
    assert found == EXPECTED
    assert (trace.problems, trace.cut) == ([], None)
    assert trace.about.base_ns == BASE_NS
    if layout != "torch":
        assert (trace.about.rank, trace.about.others["vllm_version"]) == (3, "0.32.0")
    assert json.loads(trace.events["args"][0]) == {"External_id": 7}
    assert looks(data)


def test_keys_may_stand_behind_the_events_or_nowhere() -> None:
    late = json.dumps({"traceEvents": OURS, "baseTimeNanoseconds": BASE_NS, "deviceProperties": [{"id": 0}]}).encode()
    about = read(iter([late]), MARKS).about
    assert (about.base_ns, about.devices, about.rank) == (BASE_NS, 1, None)
    bare = json.dumps(OURS).encode()
    assert rows(read(iter([bare]), MARKS)) == EXPECTED
    assert read(iter([bare]), MARKS).about.base_ns is None


@pytest.mark.parametrize("end", ["]", "", ",", " ,\n", ",\n]\n"])
def test_a_bare_array_may_lack_its_end(end: str) -> None:
    data = json.dumps(OURS)[:-1] + end
    trace = read(iter([data.encode()]), MARKS)
    assert looks(data.encode())
    assert (rows(trace), trace.cut, trace.problems) == (EXPECTED, None, [])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_trace_keeps_every_whole_event(layout: str) -> None:
    """Cut at any byte: the whole events before it, and one reject that names the cut."""
    data = LAYOUTS[layout](document(OURS))
    opening = data.index(b"[") + 1
    decode = json.JSONDecoder().raw_decode
    text = data.decode()
    ends, at = [], len(data[:opening].decode())
    for _ in OURS:
        at = text.index("{", at)
        at = decode(text, at)[1]
        ends.append(len(text[:at].encode()))
    for cut in sorted({*range(opening, len(data) - 1, 13), *(end + i for end in ends for i in (-1, 0, 1))}):
        trace = read(iter([data[:cut]]), MARKS)
        whole = sum(end <= cut for end in ends)
        assert rows(trace) == [row for row in EXPECTED if row[0] <= whole], cut
        closed = data[ends[-1] : cut].find(b"]") >= 0
        assert (trace.cut is None) == closed
        if trace.cut is not None:
            assert (trace.cut.reason, trace.problems) == (chrome_trace.CUT, [])
            assert trace.cut.line == whole + 1
            assert trace.about.base_ns == BASE_NS


@settings(deadline=None, max_examples=100)
@given(
    values=st.lists(
        st.dictionaries(
            st.text(max_size=5),
            st.recursive(
                st.none() | st.integers() | st.text(alphabet=st.sampled_from('ab"\\{}[],:\n é'), max_size=12),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                max_leaves=8,
            ),
            max_size=4,
        ),
        max_size=8,
    ),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
)
def test_scan_finds_exactly_the_objects(values: list[Any], indent: int | None, ascii_only: bool) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()[1:]
    found = scan(data)
    got = [json.loads(data[a:b]) for a, b in zip(found.starts.tolist(), found.ends.tolist(), strict=True)]
    assert got == values
    assert found.closed == len(data) - 1
    assert not found.broken


@settings(deadline=None, max_examples=200)
@given(
    damage=st.lists(
        st.tuples(st.integers(0, 5000), st.sampled_from([b"", b'"', b"{", b"}", b"]", b"\\", b"\xff", b"\0"]))
    ),
    layout=st.sampled_from(sorted(LAYOUTS)),
    size=st.integers(1, 400),
)
def test_damage_never_raises(damage: list[tuple[int, bytes]], layout: str, size: int) -> None:
    """Bytes put in or taken out anywhere: events come out that went in, and nothing else but rejects."""
    data = LAYOUTS[layout](document(OURS * 3, tail={"traceName": "x"}))
    for place, what in damage:
        at = place % len(data)
        data = data[:at] + what + data[at + (not what) :]
    trace = read(pieces(data, size), MARKS, MARKS)
    assert trace.events.height <= 3 * len(OURS)
    assert all(len(problem.reason) < 80 for problem in trace.problems)
    looks(data)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300), st.sampled_from([b"", b"[", b"{", b'{"traceEvents": [', b'[{"ph":']))
def test_junk_never_raises(junk: bytes, before: bytes) -> None:
    looks(before + junk)
    read(iter([before + junk]), MARKS, MARKS)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b'{"ph": "X", "name": "ours: broken", "args": {"a": 1}', "broken event"),  # a brace is missing
        (b'{"ph": "X", "name": "ours: broken", "ts": }', "broken event"),
        (b'{"ph": "X", "name": "ours: broken", "ts": "late"}', "broken event"),
        (b'{"ph": "X", "name": "ours: broken", "dur": -2}', "negative duration"),
        (b'{"ph": "X", "name": "ours: broken}', "broken event"),  # a quote is missing
        (b'{"ph": "X", "name": "ours: broken"}}', "broken event"),  # a brace too many
    ],
)
def test_a_broken_event_costs_itself(broken: bytes, reason: str) -> None:
    texts = [json.dumps(one).encode() for one in OURS]
    data = b'{"traceEvents": [' + b",\n".join([*texts[:4], broken, *texts[4:]]) + b"]}"
    trace = read(iter([data]), MARKS)
    names = [name for _, name, *_ in rows(trace) if name != "ours: broken"]
    assert names == [name for _, name, *_ in EXPECTED]
    assert [p.reason for p in trace.problems] == [reason]
    assert trace.problems[0].line in (5, 6)


@pytest.mark.parametrize("number", ["NaN", "nan", "-Infinity", "inf"])
def test_a_number_that_is_none_is_not_measured(number: str) -> None:
    data = torch(document(OURS)).replace(b'"dur": 30', b'"dur": ' + number.encode())
    trace = read(iter([data]), MARKS)
    assert [r[:4] for r in rows(trace)][-1] == (6, "ours: draft", 5096554055941.907, None)
    assert trace.problems == []


def test_bad_bytes_are_replaced() -> None:
    data = json.dumps(document([event("ours: XX", 1, 2)])).encode().replace(b"XX", b"\xff\xfe")
    assert rows(read(iter([data]), MARKS)) == [(1, "ours: \ufffd\ufffd", 1.0, 2.0, "7", "7")]


def test_depth_and_length_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b'{"ph": "X", "name": "ours: deep", "args": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    long = b'{"ph": "X", "name": "ours: long", "args": {"s": "' + b"x{" * 600_000 + b'"}}'
    good = json.dumps(event("ours: good", 1, 2)).encode()
    data = b'{"traceEvents": [' + b", ".join([deep, good, long, good]) + b"]}"
    trace = read(iter([data]), MARKS)
    assert [name for _, name, *_ in rows(trace)] == ["ours: good", "ours: long", "ours: good"]
    assert trace.events["args"][1] is None  # nobody reads a megabyte of arguments
    assert [(p.line, p.reason) for p in trace.problems] == [(1, "broken event")]
    monkeypatch.setattr(chrome_trace, "_LONGEST", 100_000)
    monkeypatch.setattr(chrome_trace, "CHUNK", 10_000)
    trace = read(iter([data]), MARKS)
    assert [name for _, name, *_ in rows(trace)][-1] == "ours: good"
    assert trace.problems[0].reason == "event longer than 4 MB"
    assert len(trace.problems) < 40


def test_many_broken_events_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "_NAMED", 3)
    monkeypatch.setattr(chrome_trace, "_FLUSH", 2)
    bad = b'{"ph": "X", "name": "ours: broken", "ts": []}'
    good = json.dumps(event("ours: good", 1, 2)).encode()
    data = b'{"traceEvents": [' + b", ".join([bad, good] * 5) + b"]}"
    trace = read(iter([data]), MARKS)
    assert [r[0] for r in rows(trace)] == [2, 4, 6, 8, 10]
    assert [p.reason for p in trace.problems] == ["broken event"] * 3 + ["2 more events that cannot be used"]


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"[]",
        b"{}",
        b'{"resourceSpans": [{"scopeSpans": []}]}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        b'{"date": "20261129", "total_token_throughput": 3.5, "itls": [[0.1]]}',
        b'[{"request_id": "a", "accepted": 3}]',
        b'[{"name": "a", "value": 3}]',
        b'[["ph", "X"]]',
        b'{"message": "\\"traceEvents\\": ["}',
        b'{"message": "x", "inner": {"traceEvents": [1]}}',
        b'{"a": 1}\n{"traceEvents": [1]}',
        b'INFO 05-06 12:34:56 [metrics.py:489] {"traceEvents": [',
        b'# HELP vllm:num_requests_running "traceEvents": [',
    ],
)
def test_other_sources_are_no_traces(other: bytes) -> None:
    assert not looks(other)


def test_what_ends_before_its_events_says_so() -> None:
    trace = read(iter([b'{"schemaVersion": 1, "deviceProp']), MARKS)
    assert [p.reason for p in trace.problems] == ["no array of events: this is no whole trace"]
    trace = read(iter([json.dumps(document(OURS)).encode()[:-1] + b', "traceName": "x']), MARKS)
    assert [p.reason for p in trace.problems] == ["what stands behind the events cannot be read"]
    assert (rows(trace), trace.about.base_ns) == (EXPECTED, BASE_NS)


def _launched(correlation: Any, ts: float, cat: str = "cuda_runtime", tid: int = 7) -> Any:
    return event("cudaLaunchKernel", ts, 1, cat=cat, tid=tid, correlation=correlation)


def _kernel(correlation: Any, ts: float, dur: float, cat: str = "kernel") -> Any:
    return event("a kernel", ts, dur, cat=cat, pid=0, tid=9, correlation=correlation)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk", [50, 1 << 20])
@pytest.mark.parametrize("large", [1 << 18, 0])  # chunks from this size on are searched by anchors
def test_the_device_s_work_is_tied_to_its_launch(
    layout: str, chunk: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_trace, "CHUNK", chunk)
    monkeypatch.setattr(needles, "_WORTH", large)
    events = [
        _launched(1, 3.0),  # before the first event that asks for it
        event("ours: forward", 10, 20),
        _launched(77, 11.0),
        _launched(78, 12.0, "cuda_driver", tid=8),
        _kernel(77, 20, 5),
        _kernel(77, 26, 2),  # a graph launches many
        _kernel(78, 30, 4, "gpu_memcpy"),
        _kernel(79, 40, 4),  # nobody's
        _kernel("x", 50, 1),
        _kernel(2**70, 50, 1),
        _kernel(77, 60, -1),
        event("cudaStreamSynchronize", 13, 1, cat="cuda_sync", correlation=77),
    ]
    work = read(iter([LAYOUTS[layout](document(events))]), MARKS, [MARKS[0]]).about.work
    assert work is not None
    expected = [("7", "7", 11.0, 20.0, 5.0), ("7", "7", 11.0, 26.0, 2.0), ("7", "8", 12.0, 30.0, 4.0)]
    assert work.select("pid", "tid", "launched", "start", "dur").rows() == expected
    assert read(iter([LAYOUTS[layout](document(events))]), MARKS).about.work is None
    alone = read(iter([LAYOUTS[layout](document([*events[:3], events[4]]))]), MARKS, [MARKS[0]]).about.work
    assert alone is not None
    assert alone.schema == work.schema
    assert alone.rows() == [("7", "7", 11.0, 20.0, 5.0)]


def _long(size: int, fill: str) -> str:
    return (
        '{"ph":"X","name":"mark long","pid":1,"tid":1,"ts":1,"dur":1,"args":{"x":"' + fill * (size // len(fill)) + '"}}'
    )


@pytest.mark.parametrize("tail", [",{e}]}}", ",\n  {e}\n]}}", "]}}", ",{e},{e}]}}", ",{e},{e}"])
@pytest.mark.parametrize("fill", ["y", "y]}{[,", '\\"a\\",'])
@pytest.mark.parametrize("chunk", [997, 1024])
def test_an_event_that_is_too_long_is_one_reject(
    tail: str, fill: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_trace, "_LONGEST", 4000)
    monkeypatch.setattr(chrome_trace, "CHUNK", chunk)
    monkeypatch.setattr(chrome_trace, "_OVERLAP", 60)
    event = '{"ph":"X","name":"mark","pid":1,"tid":1,"ts":5,"dur":2}'
    for size in (5200, 6011, 9000, 50_017):
        text = '{"traceEvents":[' + event + "," + _long(size, fill) + tail.replace("{e}", event).replace("}}", "}")
        trace = read(pieces(text.encode(), chunk), [b"mark"])
        assert [p.reason for p in trace.problems] == ["event longer than 4 MB"]
        assert trace.events["name"].to_list() == ["mark"] * (1 + tail.count("{e}"))
        assert trace.cut is None or not tail.endswith("]}}")
