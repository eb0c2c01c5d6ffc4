"""Time stamps as text to UTC: zones, missing years, New Year, and both nights of daylight saving."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.sources.stamps import parse_stamps

if TYPE_CHECKING:
    import polars as pl

# A month and day that falls by this much began a new year; anything less is disorder.
_NEW_YEAR_DAYS = 180
# One that rises by this much is a straggler of the old year; less may be a long silence.
_OLD_YEAR_DAYS = 330
# The local clock falls back by an hour (Lord Howe: half an hour) when daylight saving ends.
_FALL_BACK = timedelta(minutes=30)
_EARLIEST, _LATEST = datetime(1971, 1, 1), datetime(2261, 1, 1)
# Longer than any gap a zone has cut into its clock.
_BEFORE_GAP = timedelta(hours=3)


def resolve(frame: pl.DataFrame, *, tz: str | None, year: int | None, mtime: float | None) -> pl.DataFrame:
    """Turn the stamps of a source into UTC.

    The outer stamp wins; where it has no year, an inner one that has a year does. A missing year is `year` for
    the first stamp without one and grows where December turns into January; without `year` the file's date fixes
    the last stamp's and the others follow backwards. Local times that daylight saving skipped are read with the
    offset before the gap; those it repeated with the earlier offset until the clock falls back by half an hour.

    Args:
        frame: `stamp` (outer) and `inner` (the engine's own), String or null, in file order.
        tz: zone of stamps that name none, as `Europe/Berlin`; None reads them as UTC.
        year: year of the first stamp without one.
        mtime: date of the file, seconds since the epoch; None is now.

    Returns:
        As many rows, `ts` (Datetime us, UTC, naive; null where there is no readable stamp) and `ts_basis`:
        absolute, zone_assumed, year_inferred, none.

    Raises:
        InputError: `tz` names no time zone.
    """
    import polars as pl

    if tz is not None:
        _check_zone(tz)
    stamps = _chosen(frame)
    yearless = pl.col("utc").is_null() & pl.col("wall").is_null() & pl.col("month").is_not_null()
    stamps = stamps.with_columns(yearless=yearless)
    if stamps["yearless"].any():
        stamps = _with_years(stamps, year, mtime)
    local = stamps["wall"] if tz is None else _to_utc(stamps["wall"], tz)
    known = "zone_assumed" if tz is None else "absolute"
    # No log is older or newer; beyond, other libraries have no such time.
    ts = pl.coalesce("utc", local)
    return stamps.select(
        ts=pl.when(ts.is_between(_EARLIEST, _LATEST)).then(ts),
        basis=pl.when(pl.col("utc").is_not_null())
        .then(pl.lit("absolute"))
        .when("yearless")
        .then(pl.lit("year_inferred"))
        .otherwise(pl.lit(known)),
    ).select("ts", ts_basis=pl.when(pl.col("ts").is_null()).then(pl.lit("none")).otherwise("basis"))


def _chosen(frame: pl.DataFrame) -> pl.DataFrame:
    """By row the parts of the stamp that counts: utc, wall, month, day, time_us."""
    import polars as pl

    outer, inner = parse_stamps(frame["stamp"]), parse_stamps(frame["inner"])
    both = pl.concat([outer, inner.rename(lambda name: f"inner_{name}")], how="horizontal")
    dated = pl.col("utc").is_not_null() | pl.col("wall").is_not_null()
    inner_dated = pl.col("inner_utc").is_not_null() | pl.col("inner_wall").is_not_null()
    use_inner = ~dated & (inner_dated | pl.col("month").is_null())
    return both.select(pl.when(use_inner).then(f"inner_{name}").otherwise(name).alias(name) for name in outer.columns)


def _with_years(stamps: pl.DataFrame, year: int | None, mtime: float | None) -> pl.DataFrame:
    """The frame with `wall` filled where the stamps have no year."""
    import polars as pl

    from tracelens.sources.stamps import wall_time

    row = stamps.with_row_index("row").filter("yearless").select("row", "month", "day", "time_us")
    step = (pl.col("month") * 31 + pl.col("day")).diff().fill_null(0)
    turn = pl.when(step <= -_NEW_YEAR_DAYS).then(1).when(step >= _OLD_YEAR_DAYS).then(-1).otherwise(0)
    row = row.with_columns(turns=turn.cast(pl.Int64).cum_sum())
    if year is not None:
        first_year = year
    else:
        month, day, turns = row.select("month", "day", "turns").row(-1)
        first_year = _year_by_file(month, day, mtime) - turns
    row = row.with_columns(year=pl.col("turns") + first_year).with_columns(
        filled=wall_time(pl.col("year"), pl.col("month"), pl.col("day"), pl.col("time_us"))
    )
    joined = stamps.with_row_index("row").join(row.select("row", "filled"), on="row", how="left", maintain_order="left")
    return joined.with_columns(wall=pl.coalesce("wall", "filled")).drop("row", "filled")


def _year_by_file(month: int, day: int, mtime: float | None) -> int:
    """The latest year in which the day lies no more than a day behind the file's date."""
    now = datetime.now(UTC)
    try:
        date = now if mtime is None else datetime.fromtimestamp(mtime, UTC)
    except (OverflowError, ValueError, OSError):
        date = now
    limit = date + timedelta(days=1)  # the log's zone may be ahead of UTC
    return limit.year if (month, day) <= (limit.month, limit.day) else limit.year - 1


def _to_utc(wall: pl.Series, tz: str) -> pl.Series:
    """Local times of a zone, in file order, to UTC."""
    import polars as pl

    def utc(expression: pl.Expr, ambiguous: str) -> pl.Expr:
        zoned = expression.dt.replace_time_zone(tz, ambiguous=ambiguous, non_existent="null")  # type: ignore[arg-type]
        return zoned.dt.convert_time_zone("UTC").dt.replace_time_zone(None)

    local = pl.col("wall")
    frame = pl.DataFrame({"wall": wall}).with_row_index("row")
    try:
        frame = frame.with_columns(early=utc(local, "earliest"), late=utc(local, "latest"))
    except pl.exceptions.PolarsError as error:
        raise _zone_error(tz) from error
    if (frame["early"] != frame["late"]).any():
        twice = frame.filter(pl.col("early") != pl.col("late"))
        fell = (local.diff() <= -_FALL_BACK).fill_null(False).cast(pl.Int32)
        second = twice.select("row", second=fell.cum_sum().over(local.dt.date()) > 0)
        frame = frame.join(second, on="row", how="left", maintain_order="left")
        frame = frame.with_columns(early=pl.when("second").then("late").otherwise("early"))
    if frame["early"].null_count() > wall.null_count():
        before = utc(local - _BEFORE_GAP, "latest") + _BEFORE_GAP
        frame = frame.with_columns(early=pl.coalesce("early", before))
    return frame["early"]


def _check_zone(tz: str) -> None:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(tz)
    except (KeyError, ValueError, OSError) as error:
        raise _zone_error(tz) from error


def _zone_error(tz: str) -> InputError:
    return InputError(f"unknown time zone {tz!r}: --tz takes a name of the tz database, as Europe/Berlin or UTC.")
