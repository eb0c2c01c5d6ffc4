from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.sources.clocks import Clock, resolve
from tracelens.sources.stamps import parse_stamps

Texts = list[str | None]


def run(
    stamp: Texts,
    inner: Texts | None = None,
    *,
    tz: str | None = None,
    year: int | None = None,
    mtime: str = "2026-06-01",
) -> list[tuple[str, str]]:
    blank: Texts = [None] * len(stamp)
    frame = pl.DataFrame({"stamp": stamp, "inner": inner or blank}, schema={"stamp": pl.String, "inner": pl.String})
    date = datetime.fromisoformat(mtime).replace(tzinfo=UTC).timestamp()
    got = resolve(frame, tz=tz, year=year, mtime=date)
    assert got.schema == {"ts": pl.Datetime("us"), "ts_basis": pl.String}
    assert got.height == frame.height
    return [(str(ts), basis) for ts, basis in got.rows()]


def inner(texts: Texts, **options: object) -> list[tuple[str, str]]:
    return run([None] * len(texts), texts, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ts", "basis"),
    [
        ("2026-04-19T10:00:10.061123456Z", "2026-04-19 10:00:10.061123", "absolute"),
        ("2026-04-19T10:00:10Z", "2026-04-19 10:00:10", "absolute"),
        ("9999-12-31T23:59:59-14:00", "None", "none"),
        ("0001-01-01T00:00:00+14:00", "None", "none"),
        ("2026-04-19t10:00:10.5z", "2026-04-19 10:00:10.500000", "absolute"),
        ("2026-04-19T10:00:10+02:00", "2026-04-19 08:00:10", "absolute"),
        ("2026-04-19T10:00:10.061-0530", "2026-04-19 15:30:10.061000", "absolute"),
        ("2026-04-19 10:00:10 +0000", "2026-04-19 10:00:10", "absolute"),
        ("2026-04-19 10:00:10,144", "2026-04-19 10:00:10.144000", "zone_assumed"),
        ("2026-04-19 10:00:10.144", "2026-04-19 10:00:10.144000", "zone_assumed"),
        ("2026-04-19T10:00:10", "2026-04-19 10:00:10", "zone_assumed"),
        ("2026/04/19 10:00:10", "2026-04-19 10:00:10", "zone_assumed"),
        ("04-19 10:00:10", "2026-04-19 10:00:10", "year_inferred"),
        ("04-19 10:00:10.25", "2026-04-19 10:00:10.250000", "year_inferred"),
        ("Apr 19 10:00:10", "2026-04-19 10:00:10", "year_inferred"),
        ("Apr  9 10:00:10.5", "2026-04-09 10:00:10.500000", "year_inferred"),
        ("1776592810", "2026-04-19 10:00:10", "absolute"),
        ("1776592810.061123", "2026-04-19 10:00:10.061123", "absolute"),
        ("1776592810061", "2026-04-19 10:00:10.061000", "absolute"),
        ("1776592810061.5", "2026-04-19 10:00:10.061500", "absolute"),
        ("1776592810061123", "2026-04-19 10:00:10.061123", "absolute"),
        ("1776592810061123456", "2026-04-19 10:00:10.061123", "absolute"),
        ("2026-12-31T23:59:60Z", "2027-01-01 00:00:00", "absolute"),
        ("2026-02-30 10:00:00", "None", "none"),
        ("2026-13-01 10:00:00", "None", "none"),
        ("2026-04-19 25:00:00", "None", "none"),
        ("13-01 10:00:00", "None", "none"),
        ("02-30 10:00:00", "None", "none"),
        ("Foo 19 10:00:10", "None", "none"),
        ("12.5", "None", "none"),
        ("9999999999999999999", "None", "none"),
        ("soon", "None", "none"),
        ("", "None", "none"),
        (None, "None", "none"),
    ],
)
def test_forms(text: str | None, ts: str, basis: str) -> None:
    assert run([text]) == inner([text]) == [(ts, basis)]


def test_which_stamp_counts() -> None:
    outer: Texts = ["2026-04-19T10:00:10Z", "Apr 19 10:00:10", "Apr 19 10:00:10", "bogus", None, "2026-04-19 10:00:10"]
    within: Texts = ["04-19 09:00:00", "2025-04-19 09:00:00", "04-19 09:00:00", "04-19 09:00:00", None, "1776592810"]
    assert run(outer, within) == [
        ("2026-04-19 10:00:10", "absolute"),
        ("2025-04-19 09:00:00", "zone_assumed"),
        ("2026-04-19 10:00:10", "year_inferred"),
        ("2026-04-19 09:00:00", "year_inferred"),
        ("None", "none"),
        ("2026-04-19 10:00:10", "zone_assumed"),
    ]


def test_zone_and_year_only_where_the_log_is_silent() -> None:
    texts: Texts = ["2026-04-19T10:00:10Z", "2026-04-19 10:00:10", "04-19 10:00:10"]
    assert run(texts, tz="Europe/Berlin", year=2020) == [
        ("2026-04-19 10:00:10", "absolute"),
        ("2026-04-19 08:00:10", "absolute"),
        ("2020-04-19 08:00:10", "year_inferred"),
    ]


NEW_YEAR: Texts = ["12-31 23:59:50", "01-01 00:00:00", "12-31 23:59:59", "01-01 00:00:01", "01-01 00:00:10"]


@pytest.mark.parametrize(
    ("options", "first"),
    [({"year": 2024}, 2024), ({"mtime": "2027-01-01"}, 2026), ({"mtime": "2026-12-31T20:00"}, 2026),
     ({"mtime": "2027-09-01"}, 2026)],
)  # fmt: skip
def test_new_year(options: dict[str, object], first: int) -> None:
    years = [ts[:4] for ts, _ in inner(NEW_YEAR, **options)]
    assert years == [str(first + n) for n in (0, 1, 0, 1, 1)]


def test_last_stamp_after_the_file_date_is_of_the_year_before() -> None:
    assert inner(["11-30 10:00:00", "12-02 10:00:00"], mtime="2026-06-01")[1][0][:4] == "2025"
    assert inner(["06-02 10:00:00"], mtime="2026-06-01T12:00")[0][0][:4] == "2026"
    assert inner(["06-03 10:00:00"], mtime="2026-06-01T12:00")[0][0][:4] == "2025"


def test_disorder_is_no_new_year() -> None:
    got = inner(["04-19 16:27:00", "04-19 16:20:00", "04-18 23:00:00", "04-20 00:00:00"], year=2026)
    assert {ts[:4] for ts, _ in got} == {"2026"}


def test_long_silence_stays_in_the_year() -> None:
    got = inner(["01-05 00:00:00", "08-20 00:00:00", "01-03 00:00:00"], year=2025)
    assert [ts[:4] for ts, _ in got] == ["2025", "2025", "2026"]


def test_leap_day() -> None:
    assert inner(["02-29 10:00:00"], year=2024) == [("2024-02-29 10:00:00", "year_inferred")]
    assert inner(["02-29 10:00:00", "03-01 10:00:00"], year=2026) == [
        ("None", "none"),
        ("2026-03-01 10:00:00", "year_inferred"),
    ]


def test_without_file_date_it_is_now() -> None:
    now = datetime.now(UTC)
    frame = pl.DataFrame({"stamp": [f"{now:%m-%d} 00:00:00"], "inner": pl.Series([None], dtype=pl.String)})
    assert resolve(frame, tz=None, year=None, mtime=None)["ts"][0].year == now.year
    assert resolve(frame, tz=None, year=None, mtime=1e300)["ts"][0].year == now.year


def test_spring() -> None:
    texts: Texts = ["2026-03-29 01:59:50.120", "2026-03-29 03:00:00.120", "2026-03-29 03:00:10.120"]
    assert [ts[11:19] for ts, _ in run(texts, tz="Europe/Berlin")] == ["00:59:50", "01:00:00", "01:00:10"]
    # a stamp that no clock showed is read with the offset before the gap
    assert run(["2026-03-29 02:30:00"], tz="Europe/Berlin") == [("2026-03-29 01:30:00", "absolute")]


def test_autumn() -> None:
    local = ["01:59:50", "02:10:00", "02:50:10", "02:49:10", "02:00:10", "02:30:00", "02:59:10", "03:00:10"]
    got = run([f"2026-10-25 {time}" for time in local], tz="Europe/Berlin")
    assert [ts[11:] for ts, _ in got] == [
        "23:59:50", "00:10:00", "00:50:10", "00:49:10", "01:00:10", "01:30:00", "01:59:10", "02:00:10",
    ]  # fmt: skip


def test_autumn_without_the_fall_is_the_first_pass() -> None:
    assert run(["2026-10-25 02:30:00"], tz="Europe/Berlin") == [("2026-10-25 00:30:00", "absolute")]


@pytest.mark.parametrize("tz", ["Berlin", "", "../etc/passwd", "Europe", "+02:00", "a\0b"])
def test_unknown_zone(tz: str) -> None:
    with pytest.raises(InputError, match="Europe/Berlin"):
        run(["2026-04-19 10:00:10"], tz=tz)


def test_empty() -> None:
    assert run([]) == []
    assert run([], tz="Europe/Berlin", year=2026) == []


STEPS = st.lists(st.integers(1, 29 * 60), min_size=1, max_size=200)
START = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(lambda t: t.replace(microsecond=0))


@given(START | st.just(datetime(2026, 10, 24, 23, 30)) | st.just(datetime(2026, 3, 29, 0, 30)), STEPS)
def test_a_steady_log_comes_back_in_any_zone(start: datetime, steps: list[int]) -> None:
    times = [start]
    for step in steps:
        times.append(times[-1] + timedelta(seconds=step))
    zone = ZoneInfo("Europe/Berlin")
    local = [t.replace(tzinfo=UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") for t in times]
    berlin = start.replace(tzinfo=UTC).astimezone(zone)
    if berlin.fold:  # begun in the second pass: nothing tells
        return
    assert [ts for ts, _ in run(list(local), tz="Europe/Berlin")] == [str(t) for t in times]


@given(START, st.lists(st.integers(1, 100 * 86400), max_size=40))
def test_years_come_back_from_yearless_stamps(start: datetime, steps: list[int]) -> None:
    times = [start]
    for step in steps:
        times.append(times[-1] + timedelta(seconds=step))
    texts: Texts = [f"{t:%m-%d %H:%M:%S}" for t in times]
    expected = [str(t) for t in times]
    assert [ts for ts, _ in inner(texts, mtime=f"{times[-1]:%Y-%m-%dT%H:%M:%S}")] == expected
    assert [ts for ts, _ in inner(texts, year=start.year)] == expected


@given(st.lists(st.text(max_size=30) | st.from_regex(r"\A[0-9:T./ Z+-]{0,30}\Z"), max_size=20), st.booleans())
def test_noise_never_raises(texts: list[str], zoned: bool) -> None:
    inner(list(texts), tz="Europe/Berlin" if zoned else None)


@pytest.mark.parametrize("first", ["04-19 12:00:00", None])
def test_stamps_of_neighbours_are_read_once_and_told_of_each(first: str | None) -> None:
    cycle = [first, first, "04-19 12:00:01", "04-19 12:00:01", None, None, " 04-19 12:00:02", "x", "x"]
    text = pl.Series(cycle * 400, dtype=pl.String)
    assert parse_stamps(text).equals(pl.concat([parse_stamps(pl.Series([c], dtype=pl.String)) for c in cycle] * 400))


@given(
    START | st.just(datetime(2026, 10, 25, 0, 30)),
    st.lists(st.integers(-4000, 4000) | st.integers(1, 40 * 86400), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from([None, "Europe/Berlin"]),
    st.booleans(),
)
def test_stamps_in_parts(start: datetime, steps: list[int], cuts: list[int], tz: str | None, dated: bool) -> None:
    moments = [start]
    for step in steps:
        moments.append(moments[-1] + timedelta(seconds=step))
    form = "%Y-%m-%d %H:%M:%S" if dated else "%m-%d %H:%M:%S"
    blank = pl.lit(None, pl.String)
    frame = pl.DataFrame({"inner": [m.strftime(form) for m in moments]}).select(stamp=blank, inner="inner")
    options: dict[str, Any] = {"tz": tz, "year": None, "mtime": moments[-1].timestamp()}
    clock, places = Clock(**options), [0, *sorted(cuts), frame.height]
    parts = [clock.resolve(frame.slice(a, max(0, b - a))) for a, b in pairwise(places)]
    if clock.holds:
        assert pl.concat(parts).equals(resolve(frame, **options))
    else:
        assert not dated
