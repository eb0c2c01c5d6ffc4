"""Files of canonical JSON lines with everything in them that a writer can get wrong."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

DAY = "2026-04-19"
_SHARED: dict[str, list[Any]] = {
    "run_id": ["a", "b"],
    "engine": ["acme", "ACME", "other"],
    "replica": ["0", "1"],
    "process": ["p"],
    "model": ["m", "n/7b"],
    "draft_model": ["d"],
    "method": ["eagle"],
    "num_speculative_tokens": [3, 5],
    "task_type": ["chat", "sum"],
    "temperature": [0.0, 0.7, 1],
    "top_p": [0.9, 1],
    "forced_acceptance": [True, False],
    "num_draft_nodes": [8],
    "weight": [1, 2.5],
}
_TIMES = [0, 1, 2.5, 7.0015, 12.3455, 0.5]
_KINDS: dict[str, dict[str, list[Any]]] = {
    "round": {
        "request_id": ["r1", "r2"],
        "round_index": [0, 1, 7],
        "step_id": ["s1", "s2"],
        "batch_size": [1, 3, 8],
        "context_len": [100],
        "drafted": [5, 7],
        "accepted": [0, 2, 5],
        "emitted": [1],
        "draft_steps": [2],
        "timing_basis": ["device", "host"],
        "has_prefill": [True, False],
        "is_replay": [False],
        "step_share": [0.5],
        "draft": _TIMES,
        "target": _TIMES,
        "step": _TIMES,
    },
    "window": {
        "rounds": [10, 20],
        "steps": [30],
        "drafted": [50],
        "accepted": [6],
        "accepted_per_pos": [[3, 2, 1], [4, 2], [6]],
        "emitted": [16],
        "counts_basis": ["logged"],
        "time_basis": ["sum"],
        "kv_cache_usage": [0.5],
        "window": _TIMES,
        "draft_ms_per_token": [1.25],
        "v0_matched": [3],
        "draft": _TIMES,
        "round": _TIMES,
    },
    "request": {
        "request_id": ["chatcmpl-1", "x"],
        "output_tokens": [1, 5, 90],
        "rounds": [4],
        "drafted": [20],
        "accepted": [5],
        "accepted_hist": [[1, 2, 0, 1], [0, 3, 1]],
        "decode": _TIMES,
        "ttft": _TIMES,
        "tpot": [3.3, 0.1],
        "error": [False],
        "finish_reason": ["stop"],
        "tpot_basis": ["logged"],
        "prompt_tokens": [9],
    },
}
_DURATIONS = frozenset({"draft", "target", "step", "window", "round", "decode", "ttft", "tpot"})
_NEEDED = {"round": ["accepted", "round_index"], "window": ["rounds", "drafted"], "request": ["output_tokens"]}
_EXTRA: list[tuple[str, list[Any]]] = [("gpu", ["h100", "a"]), ("host-no", [3, 4]), ("ok?", [True])]
# What else may stand where a value is due, as JSON text.
WRONG = [
    "null",
    "true",
    "false",
    '"5"',
    '"true"',
    '"x"',
    '""',
    "5",
    "5.0",
    "3.7",
    "1e3",
    "1E-2",
    "0",
    "-0",
    "-0.0",
    "-1",
    "-0.3",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "9007199254740993",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "123456789012345678901234567890",
    "1.5",
    "[]",
    "[1,2]",
    '[1,"2"]',
    "[3,2.0,1]",
    "[3,null]",
    "[-1]",
    "[true]",
    "{}",
    '{"accepted":1}',
    '"\\ud800"',
    '"\\u0000"',
    '"a\\"b"',
    '"caf\\u00e9"',
    '"café"',
    '"a\\\\"',
    '"İΣ"',
    "01",
    "1.",
    "0.1e1",
    f'"{DAY}"',
    f'"{DAY}T10:00:00Z"',
    f'"{DAY} 10:00:00.1234567"',
    f'"{DAY}T10:00:00+02:00"',
    f'"{DAY}T23:59:60Z"',
    '"2026-02-30T00:00:00Z"',
    '"infinity"',
    "1776556800",
    "1776556800.1234565",
    "1776556800123",
    "1776556800123456",
    "1776556800123456789",
    "12.5",
    "1e300",
]
LINES = [
    "",
    "   ",
    "null",
    "[1]",
    "[]",
    "{}",
    '"x"',
    "{",
    "}",
    "plain text",
    '{"record":"run","run_id":"a","engine":"acme","model":"M"}',
    '{"record":"run","run_id":"c","engine":"acme","num_speculative_tokens":3}',
    '{"accepted":1',
    '{"foo":1}',
    '{"foo":1',
    '{"record":"request","request_id":"q","output_tokens":5,"rounds":2}',
    '{"record":"round","accepted":1,"drafted":2}',
    '{"record":"round","accepted":3,"drafted":2}',
    '{"record":"window","ts_end":"2026-04-20T01:00:00Z","rounds":2,"drafted":4}',
    '{"record":"round","drafted":2}',
    '{"record":"other","accepted":1,"drafted":1}',
    '{"accepted":1}{"accepted":2}',
    '{"accepted":1,"drafted":1} {"accepted":2,"drafted":5}',
    '{"accepted":1,"drafted":2,"accepted":2}',
    '{"table":"rounds","accepted":1}',
    '{"\\u0061ccepted":1,"drafted":2}',
    '{"id":"x","metrics":{"speculative_decoding":{"num_spec_steps":1}},"accepted":1}',
    'data: {"accepted":1,"drafted":2}',
    '\x1b[1m{"accepted":1,"drafted":2}\x1b[0m',
    '{"accepted":1,\r"drafted":2}',
    '{"Accepted":1,"drafted":2,"accepted":0}',
]

Record = dict[str, str]


def _stamp(draw: Any, style: str, i: int) -> str:
    second = f"{i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}"
    texts = {"z": f"{DAY}T{second}Z", "fraction": f"{DAY} {second}.123456Z", "zone": f"{DAY}T{second}+02:00"}
    texts |= {"bare": f"{DAY}T{second}", "midnight": f"2026-04-{19 + i % 2}T{second}Z"}
    if style in texts:
        return json.dumps(texts[style])
    base = 1776556800 + i
    return str({"s": base + 0.25, "ms": base * 1000 + 1, "us": base * 10**6 + 3, "ns": base * 10**9 + 1501}[style])


@st.composite
def files(draw: Any, dirty: bool) -> bytes:
    """A file: 64 lines or more of one form, and where `dirty`, lines of any other form behind (or among) them."""
    kind = draw(st.sampled_from(sorted(_KINDS)))
    columns = {**_SHARED, **_KINDS[kind]}
    chosen = draw(st.lists(st.sampled_from(sorted(columns)), unique=True, max_size=14))
    chosen += [k for k in _NEEDED[kind] if k not in chosen]
    units = {k: draw(st.sampled_from([("_us",), ("_ms",), ("_s",), ("_ms", "_us")])) for k in chosen if k in _DURATIONS}
    stamps = draw(st.sampled_from(["none", "z", "fraction", "zone", "bare", "midnight", "s", "ms", "us", "ns"]))
    main = "ts" if kind == "round" else draw(st.sampled_from(["ts", "ts_end"]))
    suffix = draw(st.sampled_from(["", f"_{stamps}"])) if stamps in ("s", "ms", "us", "ns") else ""
    worded = draw(st.booleans())
    extra = draw(st.lists(st.sampled_from(_EXTRA), unique_by=lambda e: e[0], max_size=2))
    loose = draw(st.booleans()) and dirty  # keys missing, nulls

    def record(i: int) -> Record:
        cells: Record = {"record": f'"{kind}"'} if worded else {}
        if stamps != "none":
            cells[main + suffix] = _stamp(draw, stamps, i * 2000)
        for key in chosen:
            text = json.dumps(columns[key][(i * 7 + len(key)) % len(columns[key])])
            cells |= {key + u: text for u in units[key]} if key in units else {key: text}
        cells |= {k: json.dumps(values[i % len(values)]) for k, values in extra}
        return cells

    colon, comma = draw(st.sampled_from([(":", ","), (": ", ", "), (" : ", " , ")]))
    records = [record(i) for i in range(70)]
    if loose:
        for r in records:
            for key in draw(st.lists(st.sampled_from(sorted(r)), max_size=1)):
                if key != "record":
                    r[key] = "null"
    text = [_text(list(r.items()), colon, comma) for r in records]
    if dirty:
        text += [_mutant(draw, record(100 + i), kind, colon, comma) for i in range(draw(st.integers(0, 8)))]
        for line in draw(st.lists(st.sampled_from(LINES), max_size=3)):
            text.insert(draw(st.integers(0, len(text))), line)
    end = draw(st.sampled_from(["\n", "\r\n"])) if dirty else "\n"
    data = end.join(text).encode() + draw(st.sampled_from([b"", end.encode()]))
    if dirty and draw(st.integers(0, 9)) == 0:
        data = b"\xef\xbb\xbf" + data
    if dirty and draw(st.integers(0, 9)) == 0:
        data = data.rstrip()[: -draw(st.integers(1, 30))]
    return data


def _text(cells: list[tuple[str, str]], colon: str, comma: str) -> str:
    return "{" + comma.join(f'"{k}"{colon}{v}' for k, v in cells) + "}"


def _mutant(draw: Any, record: Record, kind: str, colon: str, comma: str) -> str:
    cells = list(record.items())
    spare = [
        *_SHARED,
        *_KINDS[kind],
        "ts",
        "ts_end",
        "ts_ms",
        "draft_ms",
        "draft_us",
        "draft_s",
        "record",
        "table",
        "new",
        "Accepted",
    ]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(cells) - 1)) if cells else 0
        how = draw(st.sampled_from(["wrong", "wrong", "drop", "add", "twice", "swap"]))
        if how == "add" or not cells:
            cells.insert(at, (draw(st.sampled_from(spare)), draw(st.sampled_from(WRONG))))
        elif how == "wrong":
            cells[at] = (cells[at][0], draw(st.sampled_from(WRONG)))
        elif how == "drop":
            del cells[at]
        elif how == "twice":
            cells.append((cells[at][0], draw(st.sampled_from([cells[at][1], *WRONG]))))
        else:
            cells = [*cells[at:], *cells[:at]]
    text = _text(cells, colon, comma)
    return draw(st.sampled_from([text] * 8 + [text[:-3], text + text, f" {text} ", text + ",", text.replace('"', "'")]))
