"""One thing is one thing, in every answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracelens
from tracelens.wording import many, noun

# The end of a word, chosen by its number in the text itself.
_BY_HAND = re.compile(r""" == 1 else ['"]e?s['"]\}|\{['"]s['"]\[""")


@pytest.mark.parametrize(("number", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (12345, "12,345 files")])
def test_a_number_of_things(number: int, said: str) -> None:
    assert many(number, "file") == said


def test_words_that_end_otherwise() -> None:
    assert [many(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]
    assert [noun(n, "is", "are") for n in (0, 1, 2)] == ["are", "is", "are"]


def test_there_is_one_place_for_it() -> None:
    assert _BY_HAND.search("""f"{n} file{'' if n == 1 else 's'}" """)
    package = Path(tracelens.__file__).parent
    assert [p.name for p in sorted(package.rglob("*.py")) if _BY_HAND.search(p.read_text(encoding="utf-8"))] == []
