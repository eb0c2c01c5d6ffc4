"""Find the lines that matter in blocks of bytes; all other bytes never become strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.engines.base import Reject
from tracelens.sources.needles import Needles
from tracelens.sources.partials import Joined, PartialJoiner, first_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from tracelens.sources.stream import Block

    Positions = npt.NDArray[np.int64]


# Bytes of relevant lines that are worth to be looked at together, and of those of a JSON log, which become objects.
BATCH = 2 << 20
# Lines with a brace in a block that are searched for keys one by one; beyond, the whole block is.
_BRACED = 512
# So many bytes to a hit, and single searches around the hits are cheaper than the ends of all lines.
_SPARSE = 4096


class LineFinder:
    """Lines that hold at least one needle, peeled of their envelopes.

    Needles are looked for in the bytes as they are in the block; one that holds a double quote is also looked
    for as it reads inside a JSON string. Messages that a container runtime wrote in parts are joined first.

    Args:
        needles: what makes a line relevant.
        keys: what does so in a JSON object only: it is looked for in lines with a brace.

    Attributes:
        envelopes: the envelopes seen so far, as in the column `envelope`.
        found: the needles that were in the lines that `take` gave last.
        joined: whether messages in parts were put together in them; those may have begun before.
        problems: messages in parts that never ended.
        parted: whether there was any message in parts.
        held: bytes of the lines that wait for `take`.
    """

    def __init__(self, needles: Sequence[bytes], keys: Sequence[bytes] = ()) -> None:
        self.envelopes: set[str] = set()
        self.found: set[bytes] = set()
        self.joined = False
        self.parted = False
        self.held = 0
        words = [needle for needle in dict.fromkeys(needles) if needle]
        keys = [key for key in dict.fromkeys(keys) if key and key not in words]
        self._plain = [*words, *keys]
        escaped = [needle.replace(b'"', b'\\"') for needle in self._plain if b'"' in needle]
        self._texts = [needle.decode("utf-8", "replace") for needle in self._plain]
        self._joiner = PartialJoiner([*self._plain, *escaped])
        self._words, self._keys, self._escaped = Needles(words), Needles(keys), Needles([*keys, *escaped])
        self._numbers: dict[bytes, Needles] = {}
        self._found: set[bytes] = set()
        self._joined: list[Joined] = []
        self._lines: list[Positions] = []
        self._offsets: list[Positions] = []
        self._pieces: list[bytes] = []

    @property
    def problems(self) -> list[Reject]:
        """Messages in parts that could not be put together."""
        return self._joiner.problems

    def find(self, block: Block) -> pl.DataFrame:
        """The relevant lines of the next block; as `add` and `take`."""
        self.add(block)
        return self.take()

    def add(self, block: Block, document: bool = False) -> None:
        """Find the relevant lines of the next block, and keep them for `take`.

        Args:
            block: whole lines.
            document: it is of a JSON document over several lines, whose keys stand apart from its braces.
        """
        taken, joined = self._joiner.split(block)
        self._joined += joined
        self.parted |= bool(taken)
        self.held += sum(len(one.data) for one in joined)
        hits = self._hits(block.data, document)
        if hits:
            lines, offsets, pieces = _gathered(block, hits, taken)
            self._lines.append(lines)
            self._offsets.append(offsets)
            self._pieces += pieces
            self.held += sum(map(len, pieces))

    def take(self) -> pl.DataFrame:
        """The lines found since the last call.

        Returns:
            `line` Int64, `offset` Int64 (bytes), `text` String, `stamp` String (outer stamp, or null), `stream`
            String (pod, service, container, or null), `process` String (the writing process by the envelope, or
            null), `envelope` String (outermost first, `docker>json`, or null), in order of lines. A message in
            parts is given where it ends, with the line and offset of its first part.
        """
        joined, pieces = self._joined, self._pieces
        lines, offsets = self._lines, self._offsets
        self.found, self.joined = self._found, bool(joined)
        self._found, self._joined, self._pieces, self._lines, self._offsets, self.held = set(), [], [], [], [], 0
        if not pieces and not joined:
            return empty_lines()
        data = b"".join(pieces)
        return self._peeled(_frame(lines, offsets, pieces, data), joined, data)

    def finish(self) -> pl.DataFrame:
        """What was not taken yet, and what waited for its last part when the source ended; as `take`."""
        self._joined += self._joiner.finish()
        return self.take()

    def _hits(self, data: bytes, document: bool) -> list[int]:
        """Where needles begin, in order; several may lie in one line.

        Only JSON escapes quotes, and journald writes a message with colours as an array of byte numbers; looking
        at the first lines spares other blocks these scans.
        """
        if not any(line.startswith(b"{") for line in first_lines(data)):
            hits = self._searched(self._words, data)
            more = self._searched(self._keys, data) if document else self._key_hits(data)
        else:
            hits = self._searched(self._words, data)
            more = self._searched(self._escaped, data)
            comma = _array_comma(data)
            if comma is not None:
                more = more + self._searched(self._as_numbers(comma), data)
        return sorted(hits + more) if more else hits

    def _searched(self, needles: Needles, data: bytes) -> list[int]:
        hits = needles.hits(data)
        self._found |= needles.found
        return hits

    def _as_numbers(self, comma: bytes) -> Needles:
        if comma not in self._numbers:
            self._numbers[comma] = Needles([comma.join(b"%d" % byte for byte in needle) for needle in self._plain])
        return self._numbers[comma]

    def _key_hits(self, data: bytes) -> list[int]:
        """Where keys are: they count in lines with a brace only, of which a text log has few."""
        lines: list[tuple[int, int]] = []
        at = data.find(b"{")
        while at >= 0 and len(lines) <= _BRACED:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            lines.append((data.rfind(b"\n", 0, at) + 1, end))
            at = data.find(b"{", end)
        if len(lines) > _BRACED:
            return self._searched(self._keys, data)
        return [start for start, end in lines if self._searched(self._keys, data[start:end])]

    def _peeled(self, frame: pl.DataFrame, joined: Sequence[Joined], data: bytes) -> pl.DataFrame:
        import polars as pl

        from tracelens.sources.envelopes import STRANGE, peel

        plain = not joined and not any(byte in data for byte in STRANGE)
        if joined:
            extra = {
                "line": [one.line for one in joined],
                "offset": [one.offset for one in joined],
                "text": [one.data.decode("utf-8", "replace") for one in joined],
            }
            more = pl.DataFrame(extra, schema={"line": pl.Int64, "offset": pl.Int64, "text": pl.String})
            frame = pl.concat([frame, more]).sort("line", maintain_order=True)
        peeled = peel(frame, self._texts, plain)
        if peeled["envelope"].null_count() < peeled.height:
            self.envelopes.update(peeled["envelope"].drop_nulls().unique().to_list())
        return peeled


def _array_comma(data: bytes) -> bytes | None:
    """What stands between the numbers of a message that is an array of bytes; None where none is."""
    if data.find(b'"MESSAGE"', 0, 1 << 16) >= 0:
        for mark, comma in ((b'"MESSAGE":[', b","), (b'"MESSAGE": [', b", "), (b'"MESSAGE" : [', b", ")):
            if mark in data:
                return comma
    return None


def empty_lines() -> pl.DataFrame:
    """No lines, with the columns of `LineFinder.find`."""
    import polars as pl

    texts = dict.fromkeys(("text", "stamp", "stream", "process", "envelope"), pl.String)
    return pl.DataFrame(schema={"line": pl.Int64, "offset": pl.Int64, **texts})


def _gathered(
    block: Block, hits: list[int], taken: Sequence[tuple[int, int]]
) -> tuple[Positions, Positions, list[bytes]]:
    """Numbers, offsets and bytes (without LF) of the lines that are hit, without those in the taken ranges."""
    import numpy as np

    data = block.data
    if len(hits) * _SPARSE < len(data):
        index, starts, ends = _few(data, hits)
    else:
        index, starts, ends, block.lines = _many(data, hits)
    if taken:
        ranges = np.asarray(taken, np.int64)
        which = np.searchsorted(ranges[:, 0], starts, side="right") - 1
        free = (which < 0) | (starts >= ranges[which, 1])
        index, starts, ends = index[free], starts[free], ends[free]
    pieces = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return index + block.line, starts + block.offset, pieces


def _many(data: bytes, hits: list[int]) -> tuple[Positions, Positions, Positions, int]:
    """Numbers (from 0), starts and ends of the lines that are hit, by the ends of all lines; and how many these are."""
    import numpy as np

    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    index = np.searchsorted(ends, np.asarray(hits, np.int64))
    if len(index) > 1:
        index = index[np.concatenate((np.ones(1, np.bool_), index[1:] != index[:-1]))]
    starts = np.where(index > 0, ends[index - 1] + 1, 0)
    return index, starts, ends[index], len(ends)


def _few(data: bytes, hits: list[int]) -> tuple[Positions, Positions, Positions]:
    """The same for a hit here and there: the lines between are counted only."""
    import numpy as np

    flags = np.frombuffer(data, np.uint8)
    rows: list[tuple[int, int, int]] = []
    line = counted = end = 0
    for hit in hits:
        if rows and hit < end:
            continue
        start = data.rfind(b"\n", 0, hit) + 1
        end = data.find(b"\n", hit)
        end = len(data) if end < 0 else end
        line += int(np.count_nonzero(flags[counted:start] == 10))
        counted = start
        rows.append((line, start, end))
    found = np.asarray(rows, np.int64).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]


def _frame(lines: Sequence[Positions], offsets: Sequence[Positions], pieces: list[bytes], data: bytes) -> pl.DataFrame:
    """Columns `line`, `offset`, `text` of lines in order; `data` is all of them."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    edges = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)), out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    if data.isascii():
        texts = pa.Array.from_buffers(pa.large_string(), len(pieces), buffers)
    else:
        try:
            texts = pa.Array.from_buffers(pa.large_binary(), len(pieces), buffers).cast(pa.large_string())
        except pa.ArrowInvalid:  # invalid UTF-8 somewhere: rare, and then line by line
            texts = pa.array([piece.decode("utf-8", "replace") for piece in pieces], pa.large_string())
    text = pl.from_arrow(texts)
    assert isinstance(text, pl.Series)
    none = np.zeros(0, np.int64)
    return pl.DataFrame({
        "line": np.concatenate([none, *lines]), "offset": np.concatenate([none, *offsets]), "text": text,
    })  # fmt: skip
