from __future__ import annotations

from itertools import pairwise

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracelens.engines.rows import Once, once

ROWS = st.lists(
    st.tuples(st.none() | st.just("a"), st.none() | st.just("p"), st.none() | st.sampled_from("xy"), st.integers(0, 3)),
    max_size=60,
)


@given(ROWS, st.lists(st.integers(0, 60), max_size=8))
def test_parts_keep_what_the_whole_does(
    rows: list[tuple[str | None, str | None, str | None, int]], cuts: list[int]
) -> None:
    schema = {"stream": pl.String, "process": pl.String, "inner": pl.String, "hash": pl.UInt64}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("line")
    only, places = Once("process"), [0, *sorted(cuts), frame.height]
    parts = [only(frame.slice(a, max(0, b - a))) for a, b in pairwise(places)]
    assert pl.concat(parts).equals(once(frame, "process"))
