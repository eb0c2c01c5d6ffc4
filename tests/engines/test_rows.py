"""Rows as frames: as polars makes them, whatever stands in a column of lists."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracelens.engines import rows

SCHEMA = {"name": pl.String, "counts": pl.List(pl.Int64), "times": pl.List(pl.Float64), "words": pl.List(pl.String)}
_counts = st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3)
_times = st.none() | st.lists(st.none() | st.floats() | st.integers(0, 9), max_size=3)


@given(st.lists(st.tuples(st.text(max_size=2), _counts, _times), max_size=6), st.integers(0, 4))
def test_rows_are_as_polars_makes_them(cells: list[tuple[Any, ...]], few: int) -> None:
    listed = [dict(zip(SCHEMA, cell, strict=False)) | {"other": 1} for cell in cells]
    plain = pl.DataFrame({c: [row.get(c) for row in listed] for c in SCHEMA}, schema=SCHEMA)
    with patch.object(rows, "_SEVERAL", few):
        assert_frame_equal(rows.frame_of(listed, SCHEMA), plain)


@pytest.mark.parametrize("cell", [[2**63], [10**400], [1.5], ["x"], 3, [[1]]])
def test_what_is_no_list_of_counts_is_left_to_polars(cell: Any) -> None:
    listed: list[dict[str, Any]] = [{"counts": [1]}] * 70 + [{"counts": cell}]
    schema = {"counts": pl.List(pl.Int64)}

    def told(make: Any) -> Any:
        try:
            return make().to_dicts()
        except Exception as error:
            return type(error)

    columns = {"counts": [row["counts"] for row in listed]}
    assert told(lambda: rows.frame_of(listed, schema)) == told(lambda: pl.DataFrame(columns, schema=schema))
