"""How far an answer is: never backwards, never past the end, and nothing where nobody waits."""

from __future__ import annotations

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from tracelens.lake import progress
from tracelens.lake.progress import Waiting


@given(st.integers(0, 50), st.integers(0, 200))
def test_the_share_lies_in_0_to_1_however_wrong_the_plan_was(planned: int, done: int) -> None:
    assert 0.0 <= Waiting(planned, done).share <= 1.0


def test_steps_are_counted_only_where_somebody_waits() -> None:
    progress.expect(3)
    progress.step()
    with progress.told() as waiting:
        progress.expect(4)
        assert waiting.share == 0.0
        progress.step()
        assert waiting.share == 0.25
        progress.expect(2)
        assert waiting.planned == 4
        progress.expect(5)
        assert waiting.planned == 6
    progress.step()
    assert waiting.done == 1


def test_a_closed_connection_tells_nothing_and_breaks_nothing() -> None:
    con = duckdb.connect()
    with progress.told() as waiting:
        progress.expect(2)
        progress.connected(con)
        progress.step()
        con.close()
        assert waiting.share == 0.5
