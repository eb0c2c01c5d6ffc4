"""Where any of many byte strings stands in a block, at a few gigabytes a second.

An automaton of all needles takes every byte through a table: 0.5 GB/s. Up to 64 short strings are found by vector
instructions instead (the Teddy algorithm of the crate aho-corasick), ten times as fast. So a few `anchors` of four
bytes are chosen such that each needle holds one of them, rare ones by a look at the block; what they hit is compared
with the needles themselves, and nothing but the speed depends on the choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import chain, combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from ahocorasick_rs import BytesAhoCorasick

# To choose anchors takes 20 ms: smaller blocks are searched by the automaton.
_WORTH = 1 << 18
_WIDTH = 4
_MOST = 64  # anchors that are found by vector instructions
_SAMPLE = 1 << 14
# Hits of anchors to a byte from which on the automaton is cheaper.
_OFTEN = 1 / 64
# Anchors are chosen again when so many more of their hits are no needle than are one.
_WRONG = 20_000
# Of more needles it is best when the anchors share bytes, of so few when their bytes are rare.
_FEW = 16
_TOGETHER = 64  # fewer hits of anchors are looked at one by one


class Needles:
    """Finds needles in block after block of one source.

    Attributes:
        found: the needles that were in the last block.
    """

    def __init__(self, needles: Sequence[bytes]) -> None:
        self.found: set[bytes] = set()
        self._needles = tuple(needle for needle in dict.fromkeys(needles) if needle)
        self._anchors: Anchors | None = None

    def hits(self, data: bytes) -> list[int]:
        """Where needles are, in order; one number or more for every line that holds one."""
        if not self._needles:
            self.found = set()
            return []
        if len(data) < _WORTH:
            return self._by_automaton(data)
        if self._anchors is None:
            self._anchors = Anchors(self._needles, _sample(data))
        if len(self._anchors.grams) > _MOST or self._anchors.often > _OFTEN:
            return self._by_automaton(data)
        hits, self.found, wrong = self._anchors.hits(data)
        if wrong > _WRONG + len(hits):
            self._anchors = None  # the log has changed its ways
        return hits

    def _by_automaton(self, data: bytes) -> list[int]:
        matches = automaton(self._needles).find_matches_as_indexes(data)
        self.found = {self._needles[index] for index in {index for index, _, _ in matches}}
        return [at for _, at, _ in matches]


class Anchors:
    """Short strings such that each needle holds one of them.

    Attributes:
        grams: the anchors.
        often: how many of them there are to a byte of the sample.
    """

    def __init__(self, needles: Sequence[bytes], sample: bytes) -> None:
        from ahocorasick_rs import BytesAhoCorasick, MatchKind

        if len(needles) <= _FEW:  # all grams of a sample are megabytes of small strings
            often = Counter({gram: sample.count(gram) for needle in needles for gram in _grams(needle)})
            holders = _choose(needles, often, Counter(sample))
        else:
            often = Counter(_grams(sample))
            holders = _choose(needles, often, Counter())
        self.often = sum(often[gram] for gram in holders) / max(1, len(sample))
        self.grams = list(holders)
        # Only this kind of search takes the road of vector instructions. It passes over a match that begins inside
        # another one, so the needles of that one's anchor are looked for beside it.
        self._automaton = BytesAhoCorasick(self.grams, matchkind=MatchKind.LeftmostFirst)
        self._at = [_around(gram, holders) for gram in self.grams]
        self._alone = [not _overlap(around) for around in self._at]

    def hits(self, data: bytes) -> tuple[list[int], set[bytes], int]:
        """Where needles begin, the needles, and how many anchors belonged to none."""
        matches = self._automaton.find_matches_as_indexes(data)
        if len(matches) < _TOGETHER:
            return self._one_by_one(data, matches)
        import numpy as np

        places = np.fromiter(chain.from_iterable(matches), np.int64, 3 * len(matches)).reshape(-1, 3)
        index, at = places[:, 0], places[:, 1]
        none = np.ones(len(matches), np.bool_)
        found: set[bytes] = set()
        hits = []
        for i in sorted(set(index.tolist())):
            mine = np.flatnonzero(index == i)
            for one in tuple(self._at[i]):
                shift, needle = one
                starts = at[mine] + shift
                right = _stands(data, needle, starts)
                if right.any():
                    hits.append(starts[right])
                    found.add(needle)
                    none[mine[right]] = False
                    if self._alone[i]:  # the others can't be there, too; this one is likely the next time
                        mine = mine[~right]
                        self._at[i].remove(one)
                        self._at[i].insert(0, one)
                        if not len(mine):
                            break
        return (np.sort(np.concatenate(hits)).tolist() if hits else []), found, int(none.sum())

    def _one_by_one(self, data: bytes, matches: list[tuple[int, int, int]]) -> tuple[list[int], set[bytes], int]:
        hits: list[int] = []
        found: set[bytes] = set()
        wrong = 0
        for index, at, _ in matches:
            none = True
            for shift, needle in self._at[index]:
                start = at + shift
                if start >= 0 and data.startswith(needle, start):
                    hits.append(start)
                    found.add(needle)
                    none = False
            wrong += none
        hits.sort()
        return hits, found, wrong


def _stands(data: bytes, needle: bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a needle stands at each of some places, which may lie outside the data."""
    import numpy as np

    right = (starts >= 0) & (starts <= len(data) - len(needle))
    if not right.any():
        return right
    size = len(needle)
    kind = next(k for k in (8, 4, 2, 1) if k <= size)
    words = np.ndarray((len(data) - kind + 1,), f"<u{kind}", data, strides=(1,))
    left = np.flatnonzero(right)
    # Word by word; the last one may overlap the one before it.
    for k in (*range(0, size - kind, kind), size - kind):
        same = words[starts[left] + k] == int.from_bytes(needle[k : k + kind], "little")
        right[left[~same]] = False
        left = left[same]
    return right


def _grams(data: bytes) -> Iterator[bytes]:
    """All stretches of the width of an anchor; what is shorter is one itself."""
    return (data[i : i + _WIDTH] for i in range(max(1, len(data) - _WIDTH + 1)))


def _choose(needles: Sequence[bytes], often: Counter[bytes], common: Counter[int]) -> dict[bytes, set[bytes]]:
    """Anchors, each with the needles it stands for: those first that are in many needles and seldom in the log.

    Of those that are alike in that, the one of the least `common` bytes: a quote of JSON, say, takes the search out of
    its stride each time.
    """
    holders: dict[bytes, set[bytes]] = {}
    for needle in needles:
        for gram in _grams(needle):
            holders.setdefault(gram, set()).add(needle)
    left = set(needles)
    chosen: dict[bytes, set[bytes]] = {}

    def worth(gram: bytes) -> float:
        return len(holders[gram] & left) / (1 + often[gram])

    # What a gram is worth only falls, so that the first one whose worth is still what it was is the best.
    heap = [(-worth(gram), sum(common[byte] for byte in gram), gram) for gram in holders]
    heapify(heap)
    while left:
        before, rareness, gram = heap[0]
        if -before > (now := worth(gram)):
            heapreplace(heap, (-now, rareness, gram))
            continue
        heappop(heap)
        chosen[gram] = holders[gram] & left
        left -= chosen[gram]
    return chosen


def _around(gram: bytes, holders: dict[bytes, set[bytes]]) -> list[tuple[int, bytes]]:
    """Needles that may be where an anchor was found, with the distance from it to their begin."""
    found: set[tuple[int, bytes]] = set()
    for other, needles in holders.items():
        for shift in range(len(gram)):
            if gram[shift : shift + len(other)] != other[: len(gram) - shift]:
                continue
            found |= {(shift - at, n) for n in needles for at in range(len(n)) if n.startswith(other, at)}
    return sorted(found)


def _overlap(around: Sequence[tuple[int, bytes]]) -> bool:
    """Whether two of the needles may be around one anchor at the same time."""
    for (one, a), (other, b) in combinations(around, 2):
        start, end = max(one, other), min(one + len(a), other + len(b))
        if end <= start or a[start - one : end - one] == b[start - other : end - other]:
            return True
    return False


def _sample(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:_SAMPLE] + data[middle : middle + _SAMPLE]


@lru_cache(maxsize=8)
def automaton(needles: tuple[bytes, ...]) -> BytesAhoCorasick:
    """All needles in one pass, at 0.5 GB/s whatever they are."""
    from ahocorasick_rs import BytesAhoCorasick, Implementation

    return BytesAhoCorasick(list(needles), implementation=Implementation.DFA)
