"""vLLM's interval lines in bulk: one search by regular expressions for all lines that differ in digits only.

None of the patterns of `lines` names a digit, so what they match in a line does not depend on which digits it has.
Lines are told apart by their shape, the line with every digit as 0: a log has a few hundred of them. Each is searched
once, and the figures of all lines are read where their shape has them. Lines of a shape that is in any way unusual are
left to `lines`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Fewer lines are not worth it; so many shapes are kept, and where more than this share of the lines have a new one,
# they have none in common.
SMALLEST = 512
_MOST = 20_000
_NEW = 0.25
_FIGURE = re.compile(rb"(0{1,15})(?:\.(0{1,7}))?")  # of a shape; as many digits as a double holds
_RATES = re.compile(rb"0\.000(?:, 0\.000)*")
_PART = 1 << 16
_WIDEST = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a line of this shape has what.

    `place` is the start and the length in bytes of each wanted figure (start -1 where there is none) and its decimals,
    `rates` the starts of the per-position rates. `process_end` is where the process in brackets ends.
    """

    surface: int
    inner: int
    process_end: int
    message: int
    place: tuple[tuple[int, int, int], ...]
    rates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """A surface that is read by shapes: how its message begins, its figures, and those that a record must have."""

    surface: str
    marker: str
    keys: Mapping[str, str]
    ints: tuple[str, ...]
    needed: tuple[str, ...]
    rates: str | None = None


class Reader:
    """Reads the lines of some surfaces; keeps the shapes that it has seen.

    Args:
        prefix: what stands before the first `] ` of a line, as a regular expression with the groups `proc`, `pid` and
            `inner`.
        kinds: the surfaces.
    """

    def __init__(self, prefix: str, kinds: tuple[Kind, ...]) -> None:
        self._prefix = re.compile(prefix.encode())
        self._kinds = kinds
        self._markers = [re.compile(kind.marker.encode()) for kind in kinds]
        self._keys = [{n: re.compile(p.encode()) for n, p in kind.keys.items()} for kind in kinds]
        self._shapes: dict[bytes, Shape | None] = {}

    def read(self, frame: pl.DataFrame) -> tuple[dict[str, pl.DataFrame], pl.DataFrame]:
        """Read the lines of known shapes.

        Args:
            frame: as `Engine.lines`, with `process`.

        Returns:
            By surface, `line`, `offset`, `stamp`, `inner`, `stream`, `process`, `hash` of the message, its figures and
            `rates` (List of Float64) where it has them; and the lines that are left.
        """
        if frame.height < SMALLEST:
            return {}, frame
        arrow = frame["text"].to_arrow().cast("large_string")
        if arrow.null_count:
            return {}, frame
        _, edges, data = arrow.buffers()
        starts = np.frombuffer(edges, np.int64)[arrow.offset : arrow.offset + len(arrow) + 1]
        flags = np.zeros(int(starts[-1]) + _WIDEST, np.uint8)  # so that a window at the last byte is one
        flags[:-_WIDEST] = np.frombuffer(data, np.uint8)[: starts[-1]]
        if flags.max() > 127:
            return {}, frame
        which, shapes = self._shaped(flags, starts)
        if shapes is None:
            return {}, frame
        surfaces = np.asarray([-1 if s is None else s.surface for s in shapes])[which]
        found = {}
        for number, kind in enumerate(self._kinds):
            rows = np.flatnonzero(surfaces == number)
            if rows.size:
                mine = [s if s is not None and s.surface == number else None for s in shapes]
                found[kind.surface] = self._rows(kind, frame[rows], flags, starts[rows], which[rows], mine)
        left = surfaces < 0
        return found, frame.filter(pl.Series(left)) if left.any() else frame.clear()

    def _shaped(self, flags: Bytes, starts: Ints) -> tuple[Ints, list[Shape | None] | None]:
        """The number of each line's shape, and the shapes; None where the lines have none in common."""
        masked = np.empty(starts[-1], np.uint8)
        for i in range(0, len(masked), _PART):  # in parts that stay in the processor's cache
            part = flags[i : min(i + _PART, len(masked))]
            digit = part - np.uint8(48)
            np.subtract(part, digit * (digit < 10), out=masked[i : i + len(part)])
        hashes = _texts(masked, starts).hash().to_numpy()
        first, which = _distinct(hashes)
        view = masked.tobytes()
        texts = [view[starts[i] : starts[i + 1]] for i in first.tolist()]
        new = [text for text in texts if text not in self._shapes]
        if len(new) > max(_NEW * len(hashes), SMALLEST):
            return which, None
        if len(self._shapes) + len(new) > _MOST:
            self._shapes.clear()
            new = texts
        for text in new:
            self._shapes[text] = self._shape(text)
        return which, [self._shapes[text] for text in texts]

    def _shape(self, line: bytes) -> Shape | None:
        """Where a line with zeros for digits has what; None where it is not to be read by its shape."""
        head, bracket, message = line.partition(b"] ")
        prefix = self._prefix.match(head)
        number = next((i for i, marker in enumerate(self._markers) if marker.match(message)), None)
        if not bracket or prefix is None or number is None or b"] " in message:
            return None
        kind, at = self._kinds[number], len(head) + len(bracket)
        rates: tuple[int, ...] = ()
        place = []
        for name, pattern in self._keys[number].items():
            hit = pattern.search(message)
            if hit is None and (name in kind.needed or name == kind.rates):
                return None
            if name == kind.rates and hit is not None:
                text = hit[1].strip(b", ")
                if _RATES.fullmatch(text) is None or hit[1][:1] != b"0":
                    return None
                rates = tuple(at + hit.start(1) + 7 * i for i in range((len(text) + 2) // 7))
            elif hit is None:
                place.append((-1, 0, 0))
            else:
                figure = _FIGURE.fullmatch(hit[1])
                if figure is None or len(hit[1]) > 16 or (name in kind.ints and figure[2]):
                    return None
                place.append((at + hit.start(1), len(hit[1]), len(figure[2] or b"")))
        return Shape(number, prefix.start("inner"), max(0, prefix.end("pid")), at, tuple(place), rates)

    def _rows(
        self, kind: Kind, frame: pl.DataFrame, flags: Bytes, starts: Ints, which: Ints, shapes: list[Shape | None]
    ) -> pl.DataFrame:
        own = {i: s for i, s in enumerate(shapes) if s is not None}
        numbers = np.zeros(len(shapes), np.int64)
        numbers[list(own)] = np.arange(len(own))
        which = numbers[which]
        base = np.asarray([(s.inner, s.process_end, s.message) for s in own.values()], np.int64)[which]
        place = np.asarray([s.place for s in own.values()], np.int64)[which]
        columns: dict[str, pl.Series] = {
            "inner": _fixed(flags, starts + base[:, 0], 14),
            "process": self._process(frame, flags, starts, base[:, 1]),
            "hash": _from(frame["text"], base[:, 2]).hash(),
        }
        names = [name for name in kind.keys if name != kind.rates]
        for i, name in enumerate(names):
            there = place[:, i, 0] >= 0
            value = _figures(flags, starts + np.maximum(place[:, i, 0], 0), place[:, i, 1])
            figures = pl.Series(value) if name in kind.ints else pl.Series(value / 10.0 ** place[:, i, 2])
            none = None if there.all() else pl.Series(there)
            columns[name] = figures if none is None else figures.to_frame("x").select(pl.when(none).then("x"))["x"]
        out = frame.select("line", "offset", "stamp", "stream").with_columns(**columns)
        if kind.rates is not None:
            out = out.with_columns(rates=_rates(flags, starts, which, [s.rates for s in own.values()]))
        return out

    def _process(self, frame: pl.DataFrame, flags: Bytes, starts: Ints, ends: Ints) -> pl.Series:
        """`APIServer 812`; where the line has no process, the one of its envelope."""
        end = int(ends[0])
        heads = _window(flags, starts, end) if (ends == end).all() and end <= _WIDEST else None
        if heads is not None and (heads == heads[0]).all():  # one process, as in most logs
            first, which = np.zeros(1, np.int64), np.zeros(len(ends), np.int64)
        else:
            texts = frame.select(pl.col("text").str.slice(0, pl.Series(ends)))["text"]
            first, which = _distinct(texts.hash().to_numpy())
        names: list[str | None] = []
        for text in frame["text"][first].to_list():
            prefix = self._prefix.match(text.partition("] ")[0].encode())
            told = prefix is not None and prefix["proc"] is not None
            names.append(f"{prefix['proc'].decode()} {prefix['pid'].decode()}" if prefix and told else None)
        named = pl.Series(names, dtype=pl.String).gather(which)
        return pl.select(pl.coalesce(named, frame["process"])).to_series() if None in names else named


def _distinct(values: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Where each value stands first, and the number of each place's; np.unique would load numpy.ma, for 37 ms."""
    order = np.argsort(values, kind="stable")
    new = np.ones(len(values), np.bool_)
    new[1:] = values[order[1:]] != values[order[:-1]]
    which = np.empty(len(values), np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def _texts(data: Bytes, starts: Ints) -> pl.Series:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.ascontiguousarray(starts)), pa.py_buffer(data)]
    return pl.Series(pa.Array.from_buffers(pa.large_string(), len(starts) - 1, buffers))


def _window(flags: Bytes, at: Ints, width: int) -> Bytes:
    """The bytes from each place on, shape (N, width)."""
    found: Bytes = np.lib.stride_tricks.sliding_window_view(flags, max(1, width))[at][:, :width]
    return found


def _fixed(flags: Bytes, at: Ints, width: int) -> pl.Series:
    """Texts of one width."""
    return _texts(_window(flags, at, width).ravel(), np.arange(len(at) + 1, dtype=np.int64) * width)


def _from(text: pl.Series, at: Ints) -> pl.Series:
    return text.to_frame("text").select(pl.col("text").str.slice(pl.Series(at)))["text"]


def _figures(flags: Bytes, at: Ints, width: Ints) -> Ints:
    """The digits of figures as whole numbers, without their decimal points."""
    value = np.zeros(len(at), np.int64)
    narrow = int(width.min(initial=0))
    for i in range(int(width.max(initial=0))):
        digit = flags.take(at + i, mode="clip") - np.uint8(48)
        mine = digit < 10 if i < narrow else (digit < 10) & (width > i)
        if mine.all():
            value *= 10
            value += digit
        else:
            value = np.where(mine, value * 10 + digit, value)
    return value


def _rates(flags: Bytes, starts: Ints, which: Ints, places: list[tuple[int, ...]]) -> pl.Series:
    """Lists of rates with three decimals; null where one is no rate."""
    lengths = np.asarray([len(place) for place in places])
    row_lengths = lengths[which]
    edges = np.zeros(len(which) + 1, np.int64)
    np.cumsum(row_lengths, out=edges[1:])
    first = np.asarray([place[0] for place in places], np.int64)[which]
    within = np.arange(edges[-1]) - np.repeat(edges[:-1], row_lengths)
    at = np.repeat(starts + first, row_lengths) + 7 * within
    value = _figures(flags, at, np.full(len(at), 5))
    import pyarrow as pa

    values = value / 1000.0
    cells = pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(values)])
    lists = pl.Series(
        pa.LargeListArray.from_arrays(pa.Array.from_buffers(pa.int64(), len(edges), [None, pa.py_buffer(edges)]), cells)
    )
    whole = np.minimum.reduceat(value < 2000, edges[:-1]) if len(value) else np.zeros(0, bool)
    return lists if whole.all() else lists.to_frame("x").select(pl.when(pl.Series(whole)).then("x"))["x"]
