"""Chrome traces for tests, as different programs set them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Event = dict[str, Any]
BASE_NS = 1_790_857_026_000_000_000


def event(name: str, ts: float, dur: float, *, cat: str = "user_annotation", pid: Any = 7, tid: Any = 7,
          **args: Any) -> Event:  # fmt: skip
    """One complete event."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def document(
    events: Sequence[Event], head: Mapping[str, Any] | None = None, tail: Mapping[str, Any] | None = None
) -> Any:
    """A whole trace as Python values."""
    return {**({"baseTimeNanoseconds": BASE_NS} if head is None else head), "traceEvents": list(events), **(tail or {})}


def torch(value: Any) -> bytes:
    """As torch's own writer sets it (libkineto, output_json.cpp): events apart, three lines or more each."""
    keys = {k: v for k, v in value.items() if k != "traceEvents"}
    lines = [f'  "{k}": {json.dumps(v)},' for k, v in keys.items()]
    events = []
    for one in value["traceEvents"]:
        head = ", ".join(f'"{k}": {json.dumps(one[k])}' for k in ("ph", "cat", "name", "pid", "tid") if k in one)
        times = ", ".join(f'"{k}": {json.dumps(one[k])}' for k in ("ts", "dur") if k in one)
        inner = ",".join(f'"{k}": {json.dumps(v)}' for k, v in one.get("args", {}).items())
        events.append(f'  {{\n    {head},\n    {times},\n    "args": {{\n      {inner}\n    }}\n  }}')
    text = "{\n" + "\n".join(lines) + '\n  "traceEvents": [\n' + ",\n".join(events) + '],\n  "traceName": "x.json"\n}'
    return text.encode()


LAYOUTS: dict[str, Callable[[Any], bytes]] = {
    "torch": torch,
    "one line": lambda value: json.dumps(value).encode(),
    "compact": lambda value: json.dumps(value, separators=(",", ":")).encode(),
    "indented": lambda value: json.dumps(value, indent=2).encode(),
    "windows": lambda value: json.dumps(value, indent=1).replace("\n", "\r\n").encode(),
    "comma first": lambda value: json.dumps(value, separators=("\n , ", " : ")).encode(),
    "keys sorted": lambda value: json.dumps(value, sort_keys=True).encode(),
    "not ascii": lambda value: json.dumps(value, ensure_ascii=False).encode(),
}
