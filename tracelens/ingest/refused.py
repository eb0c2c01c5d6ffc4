"""Refusals of a source in bounded memory: a hostile or broken log may have ten million of them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

from tracelens.engines.base import Reject
from tracelens.lake.schema import table

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

# So many are kept as they come, about half a kilobyte each; the others as three numbers.
_HELD = 1 << 14
_NOWHERE = -1
#: Characters of a reason that the table `rejects` holds.
REASON = 200
_SLICE = 1 << 17  # rows of a frame

_Kind = tuple[str | None, str, str | None]


class Refused(list[Reject]):
    """A list of refusals to append to and to go through; most of it is packed.

    The order in which they were appended is kept.
    """

    def __init__(self, rejects: Iterable[Reject] = ()) -> None:
        super().__init__()
        self._lines = array("q")
        self._offsets = array("q")
        self._codes = array("i")
        self._kinds: dict[_Kind, int] = {}  # surface, reason and excerpt: many lines have the same ones
        self.extend(rejects)

    def __len__(self) -> int:
        return len(self._lines) + super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[Reject]:
        kinds = list(self._kinds)
        for line, offset, code in zip(self._lines, self._offsets, self._codes, strict=True):
            surface, reason, excerpt = kinds[code]
            yield Reject(line, reason, surface, None if offset == _NOWHERE else offset, excerpt)
        yield from super().__iter__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and list(iter(self)) == list(iter(other))

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:  # from one process to another
        self._pack()
        return _restored, (self._lines, self._offsets, self._codes, self._kinds)

    def shift(self, lines: int) -> None:
        """Count their lines from so many lines before."""
        self._pack()
        self._lines = array("q", (self.lines() + lines).tobytes())

    def append(self, reject: Reject) -> None:
        """Add one."""
        super().append(reject)
        if super().__len__() >= _HELD:
            self._pack()

    def extend(self, rejects: Iterable[Reject]) -> None:
        """Add some; those of another such list are taken over without being unpacked, and are no more in that one."""
        if isinstance(rejects, Refused):
            self._pack()
            rejects._pack()
            if not self._lines:  # without a copy
                self.__dict__, rejects.__dict__ = rejects.__dict__, self.__dict__
                return
            codes = [self._code(kind) for kind in rejects._kinds]
            self._lines += rejects._lines
            self._offsets += rejects._offsets
            self._codes.extend(map(codes.__getitem__, rejects._codes))
            rejects.clear()
            return
        for reject in rejects:
            self.append(reject)

    def __iadd__(self, rejects: Iterable[Reject]) -> Refused:  # type: ignore[override, misc]
        self.extend(rejects)
        return self

    def clear(self) -> None:
        """Forget them all."""
        super().clear()
        del self._lines[:], self._offsets[:], self._codes[:]

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        return list(iter(self))[index]  # for a look at few; all are gone through

    def _code(self, kind: _Kind) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    def _pack(self) -> None:
        for r in super().__iter__():
            self._lines.append(r.line)
            self._offsets.append(_NOWHERE if r.offset is None else r.offset)
            self._codes.append(self._code((r.surface, r.reason, r.excerpt)))
        super().clear()

    def lines(self) -> NDArray[np.int64]:
        """The line of each."""
        import numpy as np

        self._pack()
        return np.array(self._lines, np.int64)

    def place(self, offsets: NDArray[np.int64]) -> None:
        """Say of each where its line begins."""
        self._pack()
        self._offsets = array("q", offsets.tobytes())

    def counts(self) -> Counter[tuple[str | None, str]]:
        """How many there are by surface and reason."""
        import numpy as np

        self._pack()
        found: Counter[tuple[str | None, str]] = Counter()
        own = np.bincount(np.array(self._codes, np.int64), minlength=len(self._kinds)).tolist()
        for (surface, reason, _), count in zip(self._kinds, own, strict=True):
            found[surface, reason] += count
        return +found

    def first(self, count: int) -> list[tuple[int, str]]:
        """Line and reason of the first ones of the source."""
        order = self._order()[:count].tolist()
        kinds = list(self._kinds)
        return [(self._lines[i], kinds[self._codes[i]][1]) for i in order]

    def frames(self, source_id: str) -> Iterator[pl.DataFrame]:
        """Rows of the table `rejects` in the order of their lines, some thousands at once."""
        import numpy as np
        import polars as pl

        order = self._order()
        lines, offsets = np.frombuffer(self._lines, np.int64), np.frombuffer(self._offsets, np.int64)
        codes = np.frombuffer(self._codes, np.int32)
        types = table("rejects").polars_schema()
        cells = {"surface": 0, "reason": 1, "excerpt": 2}
        kinds = pl.DataFrame(
            {c: [k[i] for k in self._kinds] for c, i in cells.items()}, schema=dict.fromkeys(cells, pl.String)
        ).with_columns(pl.col("reason").str.slice(0, REASON))
        for start in range(0, len(order), _SLICE):
            here = order[start : start + _SLICE]
            frame = pl.DataFrame({"line": lines[here], "byte_offset": offsets[here]})
            frame = frame.with_columns(
                pl.lit(source_id).alias("source_id"),
                pl.when(pl.col("line") != 0).then("line"),
                pl.when(pl.col("byte_offset") != _NOWHERE).then("byte_offset"),
            ).hstack(kinds[codes[here]])
            yield frame.cast({c: types[c] for c in frame.columns})

    def _order(self) -> Any:
        import numpy as np

        self._pack()
        lines = np.frombuffer(self._lines, np.int64) if self._lines else np.zeros(0, np.int64)
        rising = bool((lines[1:] >= lines[:-1]).all())
        return np.arange(len(lines)) if rising else np.argsort(lines, kind="stable")


def _restored(lines: array[int], offsets: array[int], codes: array[int], kinds: dict[_Kind, int]) -> Refused:
    refused = Refused()
    refused._lines, refused._offsets, refused._codes, refused._kinds = lines, offsets, codes, kinds
    return refused
