"""Counters between scrapes: resets, gaps, order, processes apart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.counters import (
    Group,
    Layout,
    both,
    differences,
    is_count,
    labels_of,
    restless,
    scrapes,
    unpaired,
)
from tracelens.sources.clocks import resolve

LAYOUT = Layout(
    columns={**both("x:a", "a"), "x:b": "b", **both("x:pos", "pos"), "x:now": "now"},
    own=("engine",),
    positions={"pos": "position"},
    epoch="x:a_created",
)
SCHEMA = {
    "line": pl.Int64, "scrape": pl.Int64, "stamp": pl.String, "stream": pl.String, "name": pl.String,
    "labels": pl.String, "value": pl.Float64,
}  # fmt: skip
START = datetime(2026, 11, 29, 11, 0, 0)


def frame(*samples: tuple[int | None, str | None, str, str, float]) -> pl.DataFrame:
    """Samples as (scrape, stamp, name, labels, value), a line each."""
    rows = [(i, scrape, stamp, None, *rest) for i, (scrape, stamp, *rest) in enumerate(samples, 1)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def rows_of(samples: pl.DataFrame, layout: Layout = LAYOUT) -> pl.DataFrame:
    return scrapes(samples, layout, lambda f: resolve(f, tz=None, year=None, mtime=None), "s", [])


def grown(*values: Sequence[float | None], columns: Sequence[str] = ("a", "b"), **group: Any) -> pl.DataFrame:
    """Differences of one process whose counters had these values, a second apart."""
    samples = [
        (i, f"{START + timedelta(seconds=i):%Y-%m-%dT%H:%M:%SZ}", f"x:{c}", "", v)
        for i, told in enumerate(values)
        for c, v in zip(columns, told, strict=True)
        if v is not None
    ]
    return differences(rows_of(frame(*samples)), [Group(columns[:1], columns[1:])] if group else [Group(columns)])


def test_rows_of_a_page() -> None:
    found = rows_of(
        frame(
            (0, "2026-11-29T11:00:00Z", "x:a_total", 'engine="1"', 3.0),
            (0, "2026-11-29T11:00:00Z", "x:pos_total", 'engine="1",position="1"', 1.0),
            (0, "2026-11-29T11:00:00Z", "x:pos_total", 'engine="1",position="0"', 2.0),
            (0, "2026-11-29T11:00:00Z", "x:pos_total", 'engine="1",position="none"', 7.0),
            (0, "2026-11-29T11:00:00Z", "x:now", 'engine="0"', float("nan")),
            (0, "2026-11-29T11:00:00Z", "x:now", 'engine="0"', 4.0),
            (0, "2026-11-29T11:00:00Z", "x:other", 'engine="0"', 9.0),
        )
    )
    assert found.sort("line").select("line", "engine", "ts", "ts_basis", "a", "b", "now", "pos.0", "pos.1").rows() == [
        (1, "1", START, "absolute", 3.0, None, None, 2.0, 1.0),
        (6, "0", START, "absolute", None, None, 4.0, None, None),
    ]
    assert found["key"].n_unique() == 2
    assert found["target"].to_list() == [1, 1]


def test_no_samples_give_no_rows() -> None:
    assert rows_of(frame()).height == 0
    assert differences(rows_of(frame()), [Group(("a",))]).height == 0


def test_growth_and_where_it_is_from() -> None:
    out = grown((3, 1), (5, 1), (5, 4))
    assert out.select("d.a", "d.b", "start", "segment", "fell").rows() == [
        (3.0, 1.0, None, 1, False),
        (2.0, 0.0, START, 1, False),
        (0.0, 3.0, START + timedelta(seconds=1), 1, False),
    ]


def test_a_fall_is_a_new_start_of_all_counters() -> None:
    out = grown((30, 10), (40, 15), (2, 16), (5, 18))
    assert out.select("d.a", "d.b", "segment", "fell").rows() == [
        (30.0, 10.0, 1, False),
        (10.0, 5.0, 1, False),
        (2.0, 16.0, 2, True),
        (3.0, 2.0, 2, False),
    ]
    assert out["start"].to_list() == [None, START, None, START + timedelta(seconds=2)]


def test_a_value_that_was_not_told_is_no_zero() -> None:
    out = grown((3, 1), (5, None), (9, 4))
    assert out.select("d.a", "d.b").rows() == [(3.0, 1.0), (None, None), (6.0, 3.0)]
    assert out["start"].to_list() == [None, None, START]


def test_a_counter_beside_the_needed_ones_is_null_where_it_is_missing() -> None:
    out = grown((3, 1), (5, None), (9, 4), (9, 3), also=True)
    assert out.select("d.a", "d.b", "fell").rows() == [
        (3.0, 1.0, False), (2.0, None, False), (4.0, None, False), (0.0, -1.0, False),
    ]  # fmt: skip


def test_a_fall_that_shows_late_is_the_same_start() -> None:
    """The page of the restart was cut: its other counter falls one page later, and nothing is counted twice."""
    samples = frame(
        *((i, None, "x:a", "", v) for i, v in enumerate((50.0, 4.0, 9.0))),
        (0, None, "x:b", "", 70.0),
        (2, None, "x:b", "", 8.0),
    )
    out = differences(rows_of(samples), [Group(("a",)), Group(("b",))])
    assert out.select("d.a", "d.b", "fell").rows() == [(50.0, 70.0, False), (4.0, None, True), (5.0, 8.0, False)]


def test_a_row_that_does_not_hold_leaves_its_events_to_the_next() -> None:
    samples = rows_of(frame(*((i, None, "x:a", "", v) for i, v in enumerate((1.0, 4.0, 9.0)))))
    out = differences(samples, [Group(("a",), holds=pl.col("a") != 4.0)])
    assert out["d.a"].to_list() == [1.0, None, 8.0]


def test_scrapes_are_sorted_by_their_stamps_and_overlaps_count_once() -> None:
    stamps = ["1795953254", "1795953284", "1795953269", "1795953269"]
    out = differences(
        rows_of(frame(*((i, s, "x:a", "", v) for i, (s, v) in enumerate(zip(stamps, (1, 9, 4, 4), strict=True))))),
        [Group(("a",))],
    )
    assert out["d.a"].to_list() == [1.0, 3.0, 0.0, 5.0]
    assert out["fell"].to_list() == [False] * 4


def test_a_scrape_without_a_stamp_stands_where_it_stood() -> None:
    stamps = [None, "1795953254", None, "1795953269"]
    out = differences(rows_of(frame(*((i, s, "x:a", "", float(i * i)) for i, s in enumerate(stamps)))), [Group(("a",))])
    assert out["a"].to_list() == [0.0, 1.0, 4.0, 9.0]
    assert out["ts_basis"].to_list() == ["none", "absolute", "none", "absolute"]


def test_samples_with_stamps_of_their_own_meet_by_them() -> None:
    samples = frame(
        *((None, f"179595325400{i}", "x:a", 'i="1"', v) for i, v in enumerate((1.0, 2.0, 3.0))),
        *((None, f"179595325400{i}", "x:b", 'i="1"', v) for i, v in enumerate((5.0, 6.0, 7.0))),
        (None, "1795953254001", "x:b", 'i="1"', 6.0),
    )
    out = differences(rows_of(samples), [Group(("a", "b"))])
    assert out.select("d.a", "d.b").rows() == [(1.0, 5.0), (1.0, 1.0), (1.0, 1.0)]


def test_processes_behind_one_address_are_told_apart_by_when_they_began() -> None:
    values = [(100.0, 7.0), (20.0, 8.0), (110.0, 7.0), (25.0, 8.0), (120.0, None), (31.0, 8.0)]
    samples = [(i, None, "x:a", "", a) for i, (a, _) in enumerate(values)]
    begun = [(i, None, "x:a_created", "", c) for i, (_, c) in enumerate(values) if c is not None]
    out = differences(rows_of(frame(*samples[:4], *begun[:4])), [Group(("a",))])
    assert sorted(out.select("epoch", "d.a", "fell").rows()) == [
        (7.0, 10.0, False), (7.0, 100.0, False), (8.0, 5.0, False), (8.0, 20.0, False),
    ]  # fmt: skip


def test_another_start_with_higher_counters_is_seen_by_when_it_began() -> None:
    samples = [(0, None, "x:a", "", 10.0), (0, None, "x:a_created", "", 7.0)]
    later = [(1, None, "x:a", "", 50.0), (1, None, "x:a_created", "", 9.0)]
    assert differences(rows_of(frame(*samples, *later)), [Group(("a",))])["d.a"].to_list() == [10.0, 50.0]


def test_targets_are_numbered_and_scrapers_are_none() -> None:
    samples = frame(
        (None, "1795953254", "x:a", 'engine="0",instance="10.0.0.1:8000",prometheus="p0"', 1.0),
        (None, "1795953255", "x:a", 'engine="0",instance="10.0.0.1:8000",prometheus="p1"', 2.0),
        (None, "1795953254", "x:a", 'engine="1",instance="10.0.0.1:8000"', 5.0),
        (None, "1795953254", "x:a", 'instance="10.0.0.2:8000",engine="0"', 9.0),
    )
    out = differences(rows_of(samples), [Group(("a",))])
    assert sorted(out.select("target", "engine", "d.a").rows()) == [
        (1, "0", 1.0), (1, "0", 1.0), (1, "1", 5.0), (2, "0", 9.0),
    ]  # fmt: skip
    assert not any("10.0.0" in str(cell) for row in out.rows() for cell in row)


@pytest.mark.parametrize(("falls", "found"), [(4, 0), (5, 1)])
def test_counters_that_fall_again_and_again_are_none(falls: int, found: int) -> None:
    values = [(v, None) for _ in range(falls + 1) for v in (10.0, 20.0)]
    out = restless(grown(*values, columns=("a", "b")).with_columns(fell=pl.col("a").diff() < 0))
    assert out.height == found
    if found:
        assert out.row(0) == (0 + out["key"][0], 1, falls, 2 * falls + 2)


def test_a_long_life_with_a_few_restarts_is_not_restless() -> None:
    values = [(float(v), 0.0) for _ in range(6) for v in range(1, 9)]
    assert restless(grown(*values)).height == 0


def test_labels() -> None:
    assert labels_of(r'a="1", b = "x\\n\"y\n" ,c="",') == {"a": "1", "b": 'x\\n"y\n', "c": ""}
    assert labels_of("") == labels_of("junk") == {}


def test_counts_are_whole_numbers() -> None:
    cells = pl.DataFrame({"c": [0.0, 3.0, -1.0, 1.5, 1e300, None]})
    assert cells.select(is_count("c")).to_series().to_list() == [True, True, False, False, False, None]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5), min_size=1, max_size=4),
    st.data(),
)
def test_growth_adds_up_to_what_every_start_counted(starts: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    """Of each start of the process, what was last told is what was counted, however many pages there were."""
    values: list[tuple[float, float]] = []
    expected = [0.0, 0.0]
    for steps in starts:
        a = b = 0
        for more, also in steps:
            a, b = a + more, b + also
            values.append((float(a), float(b)))
        expected = [expected[0] + a, expected[1] + b]
    lasts = [(sum(m for m, _ in s), sum(n for _, n in s)) for s in starts]
    firsts = [s[0] for s in starts]
    # A start is only seen where a counter is lower than it was.
    if any(f[0] >= p[0] and f[1] >= p[1] for p, f in zip(lasts, firsts[1:], strict=False)):
        return
    out = grown(*values)
    assert [out["d.a"].sum(), out["d.b"].sum()] == expected
    assert out["segment"].max() == len(starts)
    assert out.filter(pl.col("d.a") < 0).height == 0
    dropped = data.draw(st.integers(0, len(values) - 1))
    # A page that is missing changes no sum, unless it was the last one of its start or hid it.
    if dropped + 1 < len(values) and not out["fell"][dropped + 1] and not (out["fell"][dropped]):
        assert grown(*values[:dropped], *values[dropped + 1 :])["d.a"].sum() == expected[0]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('a="1",b="2"', {"a": "1", "b": "2"}),
        (' a = "1" , b="x,y" ,', {"a": "1", "b": "x,y"}),
        (r'a="q\"u\\",b="n\nl"', {"a": 'q"u\\', "b": "n\nl"}),
        ('junk,a="1",more junk,b="2"', {"a": "1", "b": "2"}),
        ('a="open', {}),
        ("a" * 100_000, {}),
        (", " * 100_000, {}),
        ("", {}),
    ],
)
def test_labels_of_any_text(text: str, labels: dict[str, str]) -> None:
    assert labels_of(text) == labels


def test_counters_that_stand_under_different_labels_are_told_once() -> None:
    rows = pl.DataFrame({
        "key": [1, 1, 2, 2, 3, 3, 4], "line": [1, 2, 3, 4, 5, 6, 7],
        "drafted": [1.0, None, 1.0, 2.0, None, None, None], "accepted": [None, 1.0, None, None, 1.0, 2.0, None],
    })  # fmt: skip
    (reject,) = unpaired(rows, ("drafted", "accepted"), "s")
    assert (reject.line, reject.surface) == (3, "s")
    assert "drafted, accepted" in reject.reason
    assert unpaired(rows.filter(pl.col("key").is_in([1, 4])), ("drafted", "accepted"), "s") == []
