from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.sources import needles
from tracelens.sources.needles import Anchors, Needles

# Few letters: needles overlap each other, themselves and their anchors.
WORDS = st.lists(st.text("ab", min_size=1, max_size=9).map(str.encode), min_size=1, max_size=8, unique=True)


def lines_with(data: bytes, words: list[bytes]) -> list[int]:
    return [i for i, line in enumerate(data.split(b"\n")) if any(word in line for word in words)]


# More letters, and a log that is made of words and pieces of them: needles that share an anchor and can't overlap.
MIXED = st.lists(st.sampled_from([b" met", b"a met", b"b met", b" metrics", b"etc"]), min_size=1, max_size=3).map(
    b"".join
)
LOGS = st.lists(MIXED | st.sampled_from([b"\n", b" ", b"m", b"x"]), max_size=40).map(b"".join)


@given(
    WORDS | st.lists(MIXED, min_size=1, max_size=6, unique=True),
    st.text("ab\n", max_size=120).map(str.encode) | LOGS,
    st.text("ab", max_size=40).map(str.encode),
    st.sampled_from([0, 64]),
)
def test_every_line_and_every_needle_is_found(words: list[bytes], data: bytes, sample: bytes, few: int) -> None:
    with patch.object(needles, "_TOGETHER", few):
        hits, found, wrong = Anchors(words, sample).hits(data)
    assert sorted({data.count(b"\n", 0, at) for at in hits}) == lines_with(data, words)
    assert hits == sorted(hits)
    assert all(any(data.startswith(word, at) for word in words) for at in hits)
    assert found == {word for word in words if word in data}
    # Again with what the first block has told of the needles.
    with patch.object(needles, "_TOGETHER", few):
        anchors = Anchors(words, sample)
        anchors.hits(data)
        again, found_again, wrong_again = anchors.hits(data)
    assert (again, found_again, wrong_again) == (hits, found, wrong)
    with patch.object(needles, "_TOGETHER", 64 - few):
        assert Anchors(words, sample).hits(data) == (hits, found, wrong)


def test_anchors_are_rare_ones() -> None:
    sample = b"INFO: request done\n" * 1000
    anchors = Anchors([b"INFO: accepted", b"request accepted"], sample)
    assert all(gram not in sample for gram in anchors.grams)
    assert anchors.often == 0


def test_anchors_of_few_needles_are_of_rare_bytes() -> None:
    sample = b'{"ph": "X", "cat": "kernel"}, ' * 500
    assert set(Anchors([b'"Draft"', b'"Sample'], sample).grams) == {b"Draf", b"Samp"}


def test_a_log_that_changes_its_ways_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needles, "_WORTH", 0)
    monkeypatch.setattr(needles, "_WRONG", 10)
    finder = Needles([b"abcdefgh"])
    assert finder.hits(b"x efgh\n" * 500) == []
    first = finder._anchors
    assert first is not None
    assert first.grams != [b"efgh"]
    assert finder.hits(b"y " + first.grams[0] + b"\n" + (b"z " + first.grams[0] + b"\n") * 500) == []
    assert finder._anchors is None
    assert finder.hits(b"abcdefgh\n" + b"z " + first.grams[0] + b"\n") == [0]


def test_common_needles_go_to_the_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needles, "_WORTH", 0)
    finder = Needles([b"aa", b"b"])
    data = b"aabaab\n" * 100
    assert len(finder.hits(data)) == 400
    assert finder.found == {b"aa", b"b"}
