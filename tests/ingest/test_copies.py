"""Which sources are compared with which: those whose files may hold the same record."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from tracelens.ingest.copies import _File, _meeting, _Pairing
from tracelens.lake.ledger import Entry

_NOON = dt.datetime(2026, 5, 6, 12)
_NEW, _OLD = ("new0", "new1", "new2"), ("old0", "old1", "old2")
_TIMES = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 30), st.integers(0, 12)).map(
        lambda t: (_NOON + dt.timedelta(seconds=t[0]), _NOON + dt.timedelta(seconds=t[0] + t[1]))
    ),
)


def files(sources: tuple[str, ...]) -> st.SearchStrategy[list[_File]]:
    one = st.tuples(st.sampled_from(sources), st.sampled_from(["date=2026-05-06", "date=2026-05-07"]), _TIMES)
    return st.lists(one, max_size=8).map(
        lambda found: [_File(s, f"{s}-{i}", day, *(t or (None, None))) for i, (s, day, t) in enumerate(found)]
    )


def surfaces(sources: tuple[str, ...]) -> st.SearchStrategy[dict[str, frozenset[str]]]:
    return st.fixed_dictionaries(dict.fromkeys(sources, st.frozensets(st.sampled_from("ab"), max_size=2)))


@given(files(_NEW), files(_OLD), surfaces(_NEW), surfaces(_OLD), st.frozensets(st.sampled_from(_NEW)))
def test_those_meet_that_cover_the_same_time(
    mine: list[_File],
    theirs: list[_File],
    new: dict[str, frozenset[str]],
    old: dict[str, frozenset[str]],
    copies: frozenset[str],
) -> None:
    rows = [{"source_id": name, "surfaces": dict.fromkeys(new[name], 1)} for name in _NEW]
    left = [Entry(n, n, n, 1, "f", surfaces=old[n], same_as=copies if n == "old0" else frozenset()) for n in _OLD]
    expected = set()
    for one in mine:
        for other in (*theirs, *mine):
            late = one.source > other.source if other.source in _NEW else True
            known = other.source == "old0" and one.source in copies
            if one.source == other.source or one.day != other.day or not late or known:
                continue
            unknown = one.low is None or one.high is None or other.low is None or other.high is None
            apart = dt.timedelta(seconds=5)
            near = unknown or (one.low <= other.high + apart and other.low <= one.high + apart)  # type: ignore[operator]
            if near and new[one.source] & (new | old)[other.source]:
                expected |= {((one.source, other.source), one.path, other.path)}
    pairing = _Pairing(rows, left)
    assert _meeting(mine, theirs, pairing) == (
        {pair for pair, _, _ in expected},
        {path for _, *paths in expected for path in paths},
    )
    assert pairing.wanted == {n for n in _OLD if any(old[n] & own for own in new.values())}
