"""Single events of a Chrome trace, decoded; and what the device did, by the launch that asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import polars as pl

    from tracelens.sources.json_array import Objects

# Numbers that no JSON has, from writers that print them all the same: not measured.
_NO_NUMBER = re.compile(rb"(:\s*)[-+]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_LAUNCH = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "runtime"))
_MOST_ARGS = 64 << 10


class Event(msgspec.Struct):
    """One event, with the keys that anybody reads."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"null")


class _Arguments(msgspec.Struct, gc=False):
    correlation: int | None = None


class _Tied(msgspec.Struct, gc=False):
    """A launch, or what it launched: no name, which is long for kernels."""

    cat: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float | None = None
    dur: float | None = None
    args: _Arguments | None = None


_EVENT, _TIED, _ALL_TIED = msgspec.json.Decoder(Event), msgspec.json.Decoder(_Tied), msgspec.json.Decoder(list[_Tied])
_ANY = msgspec.json.Decoder()


def event(data: bytes) -> Event | None:
    """One event; None where it is broken."""
    found = _lenient(_EVENT, data)
    return found if isinstance(found, Event) else None


def value(data: bytes) -> Any:
    """Any JSON value; None where it is none."""
    return _lenient(_ANY, data)


def _lenient(decoder: Any, data: bytes) -> Any:
    """Decode; once more with odd numbers as null and bad bytes replaced."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return decoder.decode(_NO_NUMBER.sub(rb"\1null", data.decode("utf-8", "replace").encode()))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def arguments(found: Event) -> str | None:
    """The `args` of an event as JSON text; None where there are none, or absurdly many."""
    text = bytes(found.args)
    return None if text == b"null" or len(text) > _MOST_ARGS else text.decode("utf-8", "replace")


class Work:
    """Launches and the device's work of one trace, compact: three numbers an event."""

    def __init__(self) -> None:
        self._launches, self._device = _Rows("<u4"), _Rows("<f8")  # with the thread, with the duration
        self._threads: dict[tuple[Any, Any], int] = {}

    def take(self, data: bytes, found: Objects) -> None:
        """Take the events that are tied by a correlation id."""
        if not len(found.ends) or data.find(b'"correlation"') < 0:
            return
        # All events at once: a call for each, or finding those with an id first, costs more than decoding them.
        together = _lenient(_ALL_TIED, b"[" + data[int(found.starts[0]) : int(found.ends[-1])] + b"]")
        if together is None:
            pieces = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
            together = [one for a, b in pieces if (one := _lenient(_TIED, data[a:b])) is not None]
        tied = [t for t in together if t.args is not None and t.ts is not None and _is_id(t.args.correlation)]
        device = [t for t in tied if t.cat in _DEVICE and t.dur is not None and t.dur >= 0]
        self._device.add(device, [t.dur for t in device])
        code, launches = self._threads, [t for t in tied if t.cat in _LAUNCH]
        self._launches.add(launches, [code.setdefault((t.pid, t.tid), len(code)) for t in launches])

    def frame(self) -> pl.DataFrame:
        """One row a piece of work whose launch is known: columns of `TraceAbout.work`, by launch. To be called once."""
        import numpy as np
        import polars as pl

        # By hand: a join of frames takes five times the memory of what it joins. What is done with is let go at once.
        ids, launched, threads = self._launches.columns()
        ids, first = np.unique(ids, return_index=True)
        launched, threads = launched[first], threads[first]
        wanted, start, dur = self._device.columns()
        at = np.searchsorted(ids, wanted)
        known = np.flatnonzero(at < len(ids))
        known = known[ids[at[known]] == wanted[known]]
        del ids, wanted, first
        known = known[np.lexsort((start[known], launched[at[known]]))]
        at = at[known]
        columns = {"start": pl.Series(start[known])}
        del start
        columns["dur"] = pl.Series(dur[known])
        del dur, known
        columns["launched"] = pl.Series(launched[at])
        threads = threads[at]
        del launched, at
        frame = pl.DataFrame({name: columns.pop(name) for name in ("launched", "start", "dur")})
        return frame.select(*self._names(threads), "launched", "start", "dur")

    def _names(self, threads: Any) -> list[pl.Series | pl.Expr]:
        """`pid` and `tid` of some threads, by their codes; of a single one as constants, which take no memory."""
        import polars as pl

        names = [tuple(None if v is None else str(v) for v in ids) for ids in self._threads]
        if len(threads) and (threads == threads[0]).all():
            return [pl.lit(v, pl.String).alias(name) for name, v in zip(("pid", "tid"), names[threads[0]], strict=True)]
        code = pl.Series(threads, dtype=pl.UInt32)
        columns = [pl.Series(name, [n[i] for n in names], pl.String) for i, name in enumerate(("pid", "tid"))]
        return [column.gather(code) for column in columns]


def _is_id(number: int | None) -> bool:
    return number is not None and 0 <= number < 2**63


class _Rows:
    """Correlation id, start, and one number more of events."""

    def __init__(self, more: str) -> None:
        self._types = ("<i8", "<f8", more)
        self._chunks: tuple[list[Any], ...] = ([], [], [])

    def add(self, tied: list[_Tied], more: list[Any]) -> None:
        """Take events, with the further number of each."""
        import numpy as np

        ids = [t.args.correlation if t.args is not None else None for t in tied]
        for chunks, kind, column in zip(self._chunks, self._types, (ids, [t.ts for t in tied], more), strict=True):
            chunks.append(np.asarray(column, kind))

    def columns(self) -> Iterator[Any]:
        """The three columns of all events, one after the other; each is forgotten when it is given."""
        import numpy as np

        for chunks, kind in zip(self._chunks, self._types, strict=True):
            whole = np.concatenate(chunks) if chunks else np.zeros(0, kind)
            chunks.clear()
            yield whole
