"""Messages that a container runtime wrote in parts: Kubernetes CRI `P`/`F` lines, docker records without a final LF."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelens.engines.base import Reject

if TYPE_CHECKING:
    from tracelens.sources.stream import Block

# What a message may grow to, and how many lines later its next part may come, before it is given up.
MAX_MESSAGE = 8 << 20
MAX_GAP = 10_000

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) (stdout|stderr) ([PF])(?::\S*)? ?")
_DOCKER = re.compile(rb'\s*\{\s*"(?:log|stream|time|attrs)"\s*:')

_DOCKER_END = re.compile(rb'", ?"(?:stream|attrs|time)" ?:')


@dataclass(frozen=True, slots=True)
class Joined:
    """A message put together, in the envelope of its first part."""

    line: int
    offset: int
    data: bytes


@dataclass(slots=True)
class _Pending:
    line: int
    offset: int
    head: tuple[bytes, bytes]  # stamp and stream
    last: int  # line of the newest part
    size: int = 0
    parts: list[bytes] = field(default_factory=list)


class PartialJoiner:
    """Joins parts by stream, over the borders of blocks; only lines near a part are looked at one by one."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        self.problems: list[Reject] = []
        self._needles = needles
        self._pending: dict[bytes, _Pending] = {}
        self._kind: str | None = None
        self._marks: list[bytes] = []

    def split(self, block: Block) -> tuple[list[tuple[int, int]], list[Joined]]:
        """Ranges of the block (start, end in bytes) that are parts of messages, and relevant messages that ended."""
        if not self._pending:
            self._kind = _kind(block.data)
        self._marks = _marks(self._kind, block.data)
        if not self._marks and not self._pending:
            return [], []
        first = 0 if self._pending else self._next_part(block.data, 0)
        taken: list[tuple[int, int]] = []
        joined: list[Joined] = []
        line, counted = block.line, 0
        while 0 <= first < len(block.data):
            line += block.data.count(b"\n", counted, first)
            end, line = self._walk(block, first, line, taken, joined)
            counted = end
            first = self._next_part(block.data, end)
        return taken, joined

    def finish(self) -> list[Joined]:
        """The relevant messages that never ended."""
        joined: list[Joined] = []
        for key in list(self._pending):
            self._close(key, joined)
        return joined

    def _next_part(self, data: bytes, start: int) -> int:
        """Where the next line that is a part without end begins, from a line start on; -1 when there is none."""
        found = -1
        for mark in self._marks:
            at = data.find(mark, start)
            while at >= 0 and (found < 0 or at < found):
                line = data.rfind(b"\n", 0, at) + 1
                if self._is_part(data, line, at):
                    found = line
                    break
                at = data.find(mark, at + 1)
        return found

    def _is_part(self, data: bytes, line: int, at: int) -> bool:
        """Whether the line from `line` on, with a mark at `at`, is a part that another one follows."""
        if self._kind == "docker" and data[at - 2 : at] == b"\\n":
            return False
        end = data.find(b"\n", at) + 1 or len(data)
        part = _cri_part(data[line:end]) if self._kind == "cri" else _docker_record(data[line:end])
        return part is not None and not part[3]

    def _walk(
        self, block: Block, start: int, line: int, taken: list[tuple[int, int]], joined: list[Joined]
    ) -> tuple[int, int]:
        """Take lines from `start` on until no message waits; returns the next line's start and number."""
        data = block.data
        while start < len(data):
            end = data.find(b"\n", start) + 1 or len(data)
            part = _cri_part(data[start:end]) if self._kind == "cri" else _docker_record(data[start:end])
            if part is not None:
                stamp, stream, text, last = part
                if stream in self._pending or not last:
                    taken.append((start, end))
                    self._add(stream, stamp, text, line, block.offset + start)
                    if last or self._pending[stream].size > MAX_MESSAGE:
                        self._close(stream, joined)
            for key in [key for key, waiting in self._pending.items() if line - waiting.last > MAX_GAP]:
                self._close(key, joined)
            start = end
            line += 1
            if not self._pending:
                break
        return start, line

    def _add(self, stream: bytes, stamp: bytes, text: bytes, line: int, offset: int) -> None:
        waiting = self._pending.get(stream)
        if waiting is None:
            waiting = self._pending[stream] = _Pending(line, offset, (stamp, stream), line)
        waiting.parts.append(text)
        waiting.size += len(text)
        waiting.last = line

    def _close(self, stream: bytes, joined: list[Joined]) -> None:
        waiting = self._pending.pop(stream)
        text = b"".join(waiting.parts)
        if waiting.size > MAX_MESSAGE:
            reason = f"message in parts longer than {MAX_MESSAGE} bytes"
            self.problems.append(Reject(line=waiting.line, reason=reason, offset=waiting.offset))
            return
        if any(needle in text for needle in self._needles):
            data = _cri_line(waiting.head, text) if self._kind == "cri" else _docker_line(waiting.head, text)
            joined.append(Joined(waiting.line, waiting.offset, data))


def first_lines(data: bytes) -> list[bytes]:
    """The first lines of a block, cut short: a file may begin inside a line or with a line of its own."""
    return [line[:200] for line in data[: 64 << 10].split(b"\n", 8)[:8]]


def _kind(data: bytes) -> str | None:
    """By the first lines of a block: may it hold messages in parts?"""
    lines = first_lines(data)
    if any(map(_CRI.match, lines)):
        return "cri"
    return "docker" if any(map(_DOCKER.match, lines)) else None


def _marks(kind: str | None, data: bytes) -> list[bytes]:
    """Bytes that parts without end hold; none where the block has no such part."""
    if kind == "cri":
        return [mark for mark in (b" stdout P", b" stderr P") if mark in data]
    if kind == "docker":
        # One writer ends all its logs alike, a whole line in `\\n"`. Counting is far quicker than looking at each.
        end = _DOCKER_END.search(data, data.find(b'"log"'))
        return [end[0]] if end and data.count(end[0]) != data.count(b"\\n" + end[0]) else []
    return []


def _cri_part(line: bytes) -> tuple[bytes, bytes, bytes, bool] | None:
    """(stamp, stream, text, last part?) of a CRI line."""
    head = _CRI.match(line)
    if head is None:
        return None
    return head[1], head[2], line[head.end() :].rstrip(b"\r\n"), head[3] == b"F"


def _cri_line(head: tuple[bytes, bytes], text: bytes) -> bytes:
    return b"%s %s F %s" % (*head, text)


def _docker_record(line: bytes) -> tuple[bytes, bytes, bytes, bool] | None:
    """(stamp, stream, text, last part?) of a docker json-file record."""
    import msgspec

    try:
        record: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(record, dict):
        return None
    log, stream, time = record.get("log"), record.get("stream"), record.get("time")
    if not (isinstance(log, str) and isinstance(stream, str) and isinstance(time, str)):
        return None
    return time.encode(), stream.encode(), log.encode("utf-8", "replace"), log.endswith("\n")


def _docker_line(head: tuple[bytes, bytes], text: bytes) -> bytes:
    import msgspec

    stamp, stream = (part.decode("utf-8", "replace") for part in head)
    return msgspec.json.encode({"log": text.decode("utf-8", "replace"), "stream": stream, "time": stamp})
