"""How often a watch really looks: what is overwritten in that time is never seen."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from tracelens.ingest.watch import Round
from tracelens.reporters.live import Screen

FOUND = Round(1, ("a.log",), True, (), (), 0.3)


@pytest.mark.parametrize(
    ("apart", "told"),
    [
        (None, "a look every 5 s. "),
        (5.3, "a look every 5 s. "),
        (7.6, "a look every 7.6 s (5 s asked for). "),
        (1234.0, "a look every 1234.0 s (5 s asked for). "),
    ],
)
def test_the_period_that_there_is(apart: float | None, told: str) -> None:
    screen = Screen(io.StringIO(), Path("lake"), 5.0)
    assert told in screen._status(replace(FOUND, apart=apart))
