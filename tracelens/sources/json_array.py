"""The objects of a JSON array in bytes: where each begins and ends, found by vector operations and never decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Positions = npt.NDArray[np.int64]

_QUOTE, _BACKSLASH, _CLOSE = 34, 92, 93
# What may stand between two elements; a comma more or less is no reason to lose what follows.
_BETWEEN = b" \t\r\n,"


@dataclass(frozen=True, slots=True)
class Objects:
    """The whole objects in a stretch of an array.

    `starts` and `ends` (exclusive) are their places. `rest` is where the next element begins that is not whole yet, or
    what follows the last one. `closed` is the place of the array's `]`, or None. `broken` says that more braces are
    closed than opened: from `rest` on nothing can be told.
    """

    starts: Positions
    ends: Positions
    rest: int
    closed: int | None
    broken: bool


def scan(data: bytes) -> Objects:
    """Find the objects in `data`, which begins between two elements of an array."""
    import numpy as np

    cells = np.frombuffer(data, np.uint8)
    braces = outer_braces(cells)
    kinds = cells[braces]
    depth = _depth(kinds)
    starts, ends = braces[(depth == 1) & (kinds == 123)], braces[(depth == 0) & (kinds == 125)] + 1
    under = np.flatnonzero(depth < 0)
    if len(under):
        ends = ends[ends <= braces[under[0]]]
    # Where an element could begin: at the start, and behind every whole object.
    begins = _skipped(cells, np.concatenate((np.zeros(1, np.int64), ends)))
    closes = np.flatnonzero(_at(cells, begins) == _CLOSE)
    if len(closes):
        last = int(closes[0])
        return Objects(starts[:last], ends[:last], int(begins[last]) + 1, int(begins[last]), False)
    rest = int(starts[len(ends)]) if len(starts) > len(ends) else int(begins[-1])
    if len(under):
        rest = int(begins[-1])
    return Objects(starts[: len(ends)], ends, rest, None, bool(len(under)))


def depth_of(data: bytes) -> int:
    """How many objects are open at the end of `data`, which begins before its first object; 0 behind or beside one.

    A place inside a string counts as outside of everything: nothing that is looked for lies there.
    """
    import numpy as np

    cells = np.frombuffer(data, np.uint8)
    kinds = cells[outer_braces(cells)]
    depth = _depth(kinds)
    quotes = np.count_nonzero(cells == _QUOTE) - np.count_nonzero(cells[_escaped(cells)] == _QUOTE)
    if not len(depth) or quotes % 2 or (depth < 1).any():
        return 0
    return int(depth[-1])


def outer_braces(cells: Bytes) -> Positions:
    """Places of the braces outside strings; the first byte is outside.

    Strings are told by the parity of the quotes before a place, all 64 places of a word at once, as simdjson does it
    (Langdale and Lemire, 2019, section 3.1.1).
    """
    import numpy as np

    count = len(cells)
    quotes = cells == _QUOTE
    quotes[_escaped(cells)] = False
    words = np.zeros(-(-count // 64), "<u8")
    words.view(np.uint8)[: -(-count // 8)] = np.packbits(quotes, bitorder="little")
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    odd = np.bitwise_xor.accumulate(words >> np.uint64(63))
    words[1:] ^= np.negative(odd[:-1])
    found = np.packbits(((cells - np.uint8(123)) & np.uint8(0xFD)) == 0, bitorder="little")
    found &= ~words.view(np.uint8)[: len(found)]
    return np.flatnonzero(np.unpackbits(found, count=count, bitorder="little").view(np.bool_))


def _depth(braces: Bytes) -> npt.NDArray[np.int32]:
    """Objects open behind each brace."""
    import numpy as np

    depth: npt.NDArray[np.int32] = np.cumsum(124 - braces.view(np.int8), dtype=np.int32)  # `{` is 123, `}` is 125
    return depth


def _escaped(cells: Bytes) -> Positions:
    """Places behind an odd run of backslashes: what stands there means itself."""
    import numpy as np

    slashes = np.flatnonzero(cells == _BACKSLASH)
    if not len(slashes):
        return slashes
    first = np.flatnonzero(np.diff(slashes, prepend=-2) > 1)
    lengths = np.diff(first, append=len(slashes))
    behind = slashes[first] + lengths
    found: Positions = behind[(lengths % 2 == 1) & (behind < len(cells))]
    return found


def _skipped(cells: Bytes, places: Positions) -> Positions:
    """Each place moved behind white space and commas; a run of them that is far too long ends it."""
    import numpy as np

    between = np.zeros(256, np.bool_)
    between[list(_BETWEEN)] = True
    places = places.copy()
    moving = np.arange(len(places))
    for _ in range(4096):
        moving = moving[places[moving] < len(cells)]
        moving = moving[between[cells[places[moving]]]]
        if not len(moving):
            break
        places[moving] += 1
    return places


def _at(cells: Bytes, places: Positions) -> Bytes:
    """The bytes at places; 0 behind the end."""
    import numpy as np

    out = np.zeros(len(places), np.uint8)
    inside = places < len(cells)
    out[inside] = cells[places[inside]]
    return out
