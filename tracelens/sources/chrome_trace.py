"""Chrome traces (torch profiler): read as a stream, in bounded memory; only the events that matter are decoded.

Two forms: an object whose `traceEvents` is the array of events, with keys before and behind it, and the bare array,
which may lack its end. How the writer sets white space does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tracelens.engines.base import Reject, TraceAbout
from tracelens.sources.json_array import Objects, depth_of, scan
from tracelens.sources.needles import Needles

if TYPE_CHECKING:
    import polars as pl

    from tracelens.sources.trace_events import Event, Work

CUT = "the trace ends early: it was cut, and what stood behind this event is lost"
#: What is scanned at once: it and the masks made of it stay in the cache of a core.
CHUNK = 1 << 20
# A longer event is none; its bytes are held until its end is seen.
_LONGEST = 4 << 20
# What is kept of the middle of such an event: enough to see that another one begins.
_OVERLAP = 4096
# Keys before and behind the events, each side.
_MOST_KEYS = 16 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
# Where an event may begin again behind a broken one.
_AGAIN = re.compile(rb'[,\[]\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args)"\s*:)')
_TEXT, _ITEMS = 200, 64
_FLUSH = 20_000
# Broken events named one by one; of further ones the number.
_NAMED = 10_000
# Events looked for behind broken ones, in one trace: with more damage than that it is not worth the time.
_SALVAGED = 100_000


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace: the events that matter, and what it says of itself.

    `cut` is set where the trace ends early; `problems` are the events that could not be used (their line is the number
    of the event). `count` is the number of all its events, of which `events` are few.
    """

    events: pl.DataFrame
    about: TraceAbout
    problems: list[Reject]
    cut: Reject | None
    count: int


def looks(head: bytes) -> bool:
    """Whether a source that begins with these bytes is a Chrome trace.

    A document of another kind has no array of that name at its top, or no events in its array.
    """
    start = head.lstrip()
    if start[:1] == b"{":
        return _opening(start) is not None
    if start[:1] != b"[":
        return False
    found = scan(start[1 : 1 + CHUNK])
    if not len(found.starts):
        return False
    from tracelens.sources.trace_events import event

    first = event(start[1 + int(found.starts[0]) : 1 + int(found.ends[0])])
    return first is not None and len(first.ph or "") == 1 and (first.ts is not None or first.name is not None)


def read(pieces: Iterator[bytes], marks: Sequence[bytes], launchers: Sequence[bytes] = ()) -> Trace:
    """Read a trace; kept are the events whose text holds one of `marks` (columns of `TraceReader.trace`).

    Args:
        pieces: the trace, cut anywhere.
        marks: what an event must hold.
        launchers: those of the marks whose work on the device is wanted as well (`TraceAbout.work`). torch writes
            scopes before the launches and kernels in them: work is taken from the first such event on.
    """
    reader = _Reader(marks, launchers)
    for chunk in _chunks(pieces):
        reader.feed(chunk)
    return reader.finish()


def _chunks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces as chunks of about `CHUNK` bytes."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size < CHUNK:
            continue
        whole = b"".join(held) if len(held) > 1 else piece
        if size < 2 * CHUNK:
            yield whole
        else:
            yield from (whole[at : at + CHUNK] for at in range(0, size, CHUNK))
        held, size = [], 0
    if size:
        yield b"".join(held)


def _opening(data: bytes) -> int | None:
    """Where the first event could begin: behind the `[` of `traceEvents` at the top of the first object."""
    for number, match in enumerate(_EVENTS.finditer(data)):
        if depth_of(data[: match.start()]) == 1:
            return match.end()
        if number == 8:
            break
    return None


class _Columns:
    """Kept events: column by column, and from time to time as a frame, which takes a tenth of the memory."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self._rows: dict[str, list[Any]] = {name: [] for name in _schema()}

    def add(self, number: int, event: Event) -> None:
        from tracelens.sources.trace_events import arguments

        pid, tid = (None if value is None else str(value) for value in (event.pid, event.tid))
        row = (number, event.ph, event.cat, event.name, pid, tid, event.ts, event.dur, arguments(event))
        for values, value in zip(self._rows.values(), row, strict=True):
            values.append(value)
        if len(self._rows["event"]) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        import polars as pl

        self._frames.append(pl.DataFrame(self._rows, schema=_schema()))
        self._rows = {name: [] for name in _schema()}

    def frame(self) -> pl.DataFrame:
        import polars as pl

        self._flush()
        return pl.concat(self._frames)


def _schema() -> dict[str, Any]:
    import polars as pl

    texts = dict.fromkeys(("ph", "cat", "name", "pid", "tid"), pl.String)
    return {"event": pl.Int64, **texts, "ts": pl.Float64, "dur": pl.Float64, "args": pl.String}


class _Reader:
    """The state between two chunks."""

    def __init__(self, marks: Sequence[bytes], launchers: Sequence[bytes]) -> None:
        self._marks, self._launchers = tuple(dict.fromkeys(marks)), tuple(launchers)
        self._needles = Needles(self._marks)
        self._columns = _Columns()
        self._problems: list[Reject] = []
        self._unnamed = self._salvaged = 0
        self._work: Work | None = None
        self._state = "head"
        self._lost = False  # inside an event that was refused
        self._head, self._tail = b"", b""
        self._bare = False
        self._carry = b""
        self._number = 0  # events so far
        self._offset = 0  # of the first byte of `_carry`

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if self._state == "head":
            chunk = self._begun(chunk)
        if self._state == "events" and chunk:
            self._events(self._carry + chunk)
        elif self._state == "tail":
            self._tail = (self._tail + chunk)[:_MOST_KEYS]

    def _begun(self, chunk: bytes) -> bytes:
        """What of the head is events; nothing as long as they have not begun."""
        self._head += chunk
        start = self._head.lstrip()
        self._bare = start[:1] == b"["
        opening = len(self._head) - len(start) + 1 if self._bare else _opening(self._head)
        if opening is None:
            if len(self._head) > _MOST_KEYS:
                self._state = "lost"
            return b""
        rest, self._head = self._head[opening:], self._head[:opening]
        self._offset = opening
        self._state = "events"
        return rest

    def _events(self, data: bytes) -> None:
        """Take the whole events of `data`, which begins at `_offset`, and carry the rest."""
        while True:
            if self._lost:
                data = self._resumed(data)
            if self._lost:
                self._carry = data
                return
            found = scan(data)
            self._take(data, found)
            if found.closed is not None:
                self._state, self._tail, self._carry = "tail", data[found.closed + 1 :], b""
                return
            rest = found.rest
            if found.broken or len(data) - rest > _LONGEST:
                rest = self._salvage(data, rest, "broken event" if found.broken else "event longer than 4 MB")
            self._offset += rest
            self._carry = data = data[rest:]
            if rest == found.rest or not data:
                return

    def _take(self, data: bytes, found: Objects) -> None:
        """Keep the whole events that hold a mark."""
        import numpy as np

        starts, ends = found.starts, found.ends
        limit = int(ends[-1]) if len(ends) else 0
        hits = [at for at in self._needles.hits(data) if at < limit] if limit else []
        if hits:
            places = np.asarray(hits, np.int64)
            index = np.searchsorted(starts, places, side="right") - 1
            good = (index >= 0) & (places < ends[index])
            for i in np.unique(index[good]).tolist():
                at = int(starts[i])
                self._swallowed(data[at : int(ends[i])], i, self._offset + at)
        if self._work is None and self._launchers and any(data.startswith(self._launchers, at) for at in hits):
            from tracelens.sources.trace_events import Work

            self._work = Work()
        if self._work is not None:
            self._work.take(data, found)
        self._number += len(starts)

    def _swallowed(self, data: bytes, index: int, offset: int) -> None:
        """Keep a whole event; one that lacks a brace looks whole as well, and has those behind it inside."""
        if self._keep(data, self._number + index + 1, offset):
            return
        begins = self._begins(data, 0)
        if begins:
            last = scan(data[begins[-1] :])
            ends = [*begins[1:], begins[-1] + int(last.ends[0]) if len(last.ends) else len(data)]
            for begin, end in zip(begins, ends, strict=True):
                self._number += 1
                self._one(data[begin:end], self._number + index + 1, offset + begin)

    def _one(self, piece: bytes, number: int, offset: int) -> None:
        """Keep an event behind a broken one, where it holds a mark."""
        if any(mark in piece for mark in self._marks):
            self._keep(piece.rstrip(b" \t\r\n,"), number, offset)

    def _begins(self, data: bytes, rest: int) -> list[int]:
        """Where further events may begin inside what is open from `rest` on; none once too many were tried."""
        found = [m.start(1) for m in _AGAIN.finditer(data, rest) if m.start(1) > rest]
        self._salvaged += len(found)
        if self._salvaged > _SALVAGED:
            return []
        return [a for a, b in zip(found, [*found[1:], len(data)], strict=False) if data.find(b'"ph"', a, b) >= 0]

    def _keep(self, data: bytes, number: int, offset: int) -> bool:
        """Keep an event; False where it is none."""
        from tracelens.sources import trace_events

        event = trace_events.event(data)
        if event is None:
            self._refuse(number, "broken event", offset)
        elif (event.dur or 0) < 0:
            self._refuse(number, "negative duration", offset)
        else:
            self._columns.add(number, event)
        return event is not None

    def _refuse(self, number: int, why: str, offset: int) -> None:
        if len(self._problems) < _NAMED:
            self._problems.append(Reject(number, why, None, offset))
        else:
            self._unnamed += 1

    def _salvage(self, data: bytes, rest: int, why: str) -> int:
        """Take what can be told of events behind a broken one, each for itself; what the last begins is kept.

        Returns:
            Where to go on.
        """
        begins = [rest, *self._begins(data, rest)]
        self._refuse(self._number + 1, why, self._offset + rest)
        self._number += 1
        for begin, end in pairwise(begins[1:]):
            self._number += 1
            self._one(data[begin:end], self._number, self._offset + begin)
        # Without a further beginning all that follows is of this event, which is counted, until one comes.
        self._lost = len(begins) == 1
        return max(rest + 1, len(data) - _OVERLAP) if self._lost else begins[-1]

    def _resumed(self, data: bytes) -> bytes:
        """What stands behind an event whose end was not seen, from the last beginning on: those before are taken."""
        begins = self._begins(data, 0)
        for begin, end in pairwise(begins):
            self._number += 1
            self._one(data[begin:end], self._number, self._offset + begin)
        self._lost = not begins
        keep = begins[-1] if begins else max(0, len(data) - _OVERLAP)
        self._offset += keep
        return data[keep:]

    def finish(self) -> Trace:
        """What was found, once the source has ended."""
        cut: Reject | None = None
        if self._state == "events":
            cut = self._last()
        elif self._state != "tail":
            self._problems.append(Reject(0, "no array of events: this is no whole trace", None, 0))
        about = self._about()
        if self._unnamed:
            self._problems.append(Reject(self._number, f"{self._unnamed} more events that cannot be used"))
        return Trace(self._columns.frame(), about, self._problems, cut, self._number)

    def _last(self) -> Reject | None:
        """Events behind a broken one that had swallowed them, and whether the last one is whole."""
        if self._lost:
            whole = self._carry.rstrip().endswith((b"]", b"}"))
            return None if whole else Reject(self._number, CUT, None, self._offset)
        while self._begins(self._carry, 0):
            data = self._carry
            rest = self._salvage(data, 0, "broken event")
            self._carry, self._offset = b"", self._offset + rest
            self._events(data[rest:])
            if self._state != "events":
                return None
        if self._bare and not self._carry.strip(b" \t\r\n,"):
            return None  # the end of a bare array may be missing
        return Reject(self._number + 1, CUT, None, self._offset)

    def _about(self) -> TraceAbout:
        from tracelens.sources.trace_events import value

        keys: Any = None
        if not self._bare and self._head:
            keys = value(self._head + b"]" + self._tail)
            if keys is None:
                keys = value(self._head + b"]}")
                if self._state == "tail":
                    self._problems.append(Reject(self._number, "what stands behind the events cannot be read"))
        work = None if self._work is None else self._work.frame()
        return _told(keys if isinstance(keys, dict) else {}, work)


def _told(keys: Mapping[str, Any], work: pl.DataFrame | None) -> TraceAbout:
    base = keys.get("baseTimeNanoseconds")
    group = keys.get("distributedInfo")
    rank = group.get("rank") if isinstance(group, dict) else None
    devices = keys.get("deviceProperties")
    return TraceAbout(
        base_ns=base if _count(base) else None,
        rank=rank if _count(rank) else None,
        others={k: v for k, v in keys.items() if k != "traceEvents" and (_simple(v) or _all_simple(v))},
        devices=len(devices) if isinstance(devices, list) else 0,
        work=work,
    )


def _count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63


def _simple(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _TEXT)


def _all_simple(values: Any) -> bool:
    return isinstance(values, list) and len(values) <= _ITEMS and all(_simple(value) for value in values)
