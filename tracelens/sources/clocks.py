"""Time stamps as text to UTC: zones, missing years, New Year, and both nights of daylight saving."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
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
    """Turn all stamps of a source into UTC; see `Clock`."""
    return Clock(tz=tz, year=year, mtime=mtime).resolve(frame)


class Clock:
    """Turns the stamps of a source into UTC, part by part.

    The outer stamp wins; where it has no year, an inner one that has a year does. A missing year is `year` for
    the first stamp without one and grows where December turns into January; without `year` the file's date fixes
    the last stamp's and the others follow backwards. Local times that daylight saving skipped are read with the
    offset before the gap; those it repeated with the earlier offset until the clock falls back by half an hour.

    Args:
        tz: zone of stamps that name none, as `Europe/Berlin`; None reads them as UTC.
        year: year of the first stamp without one.
        mtime: date of the file, seconds since the epoch; None is now.

    Raises:
        InputError: `tz` names no time zone.
    """

    def __init__(self, *, tz: str | None, year: int | None, mtime: float | None) -> None:
        if tz is not None:
            _check_zone(tz)
        self._tz = tz
        self._years = _Years(year, mtime)
        self._repeated = _Repeated()

    @property
    def holds(self) -> bool:
        """Whether the stamps of all parts are as they would be if they were one.

        Without a year given it is the last stamp of the first part that was taken to be of the file's date.
        """
        return self._years.hold

    def resolve(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The next part.

        Args:
            frame: `stamp` (outer) and `inner` (the engine's own), String or null, in file order.

        Returns:
            As many rows, `ts` (Datetime us, UTC, naive; null where there is no readable stamp) and `ts_basis`:
            absolute, zone_assumed, year_inferred, none.
        """
        import polars as pl

        stamps = _chosen(frame)
        yearless = pl.col("utc").is_null() & pl.col("wall").is_null() & pl.col("month").is_not_null()
        stamps = stamps.with_columns(yearless=yearless)
        if stamps["yearless"].any():
            stamps = self._years.fill(stamps)
        local = stamps["wall"] if self._tz is None else _to_utc(stamps["wall"], self._tz, self._repeated)
        known = "zone_assumed" if self._tz is None else "absolute"
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


class _Years:
    """The years of stamps without one."""

    def __init__(self, year: int | None, mtime: float | None) -> None:
        self._given, self._mtime = year is not None, mtime
        self._first = year
        self._turns = 0  # years since the first stamp
        self._last: tuple[int, int] | None = None  # month and day

    @property
    def hold(self) -> bool:
        """Whether the year of the last stamp is that of the file's date."""
        if self._given or self._last is None:
            return True
        return _year_by_file(*self._last, self._mtime) - self._turns == self._first

    def fill(self, stamps: pl.DataFrame) -> pl.DataFrame:
        """The frame with `wall` filled where the stamps have no year."""
        import polars as pl

        from tracelens.sources.stamps import wall_time

        row = stamps.with_row_index("row").filter("yearless").select("row", "month", "day", "time_us")
        date = pl.col("month") * 31 + pl.col("day")
        before = pl.lit(None, pl.Int64) if self._last is None else pl.lit(self._last[0] * 31 + self._last[1], pl.Int64)
        step = (date - pl.coalesce(date.shift(1), before)).fill_null(0)
        turn = pl.when(step <= -_NEW_YEAR_DAYS).then(1).when(step >= _OLD_YEAR_DAYS).then(-1).otherwise(0)
        row = row.with_columns(turns=turn.cast(pl.Int64).cum_sum() + self._turns)
        month, day, self._turns = row.select("month", "day", "turns").row(-1)
        self._last = (month, day)
        if self._first is None:
            self._first = _year_by_file(month, day, self._mtime) - self._turns
        row = row.with_columns(year=pl.col("turns") + self._first).with_columns(
            filled=wall_time(pl.col("year"), pl.col("month"), pl.col("day"), pl.col("time_us"))
        )
        filled = row.select("row", "filled")
        joined = stamps.with_row_index("row").join(filled, on="row", how="left", maintain_order="left")
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


class _Repeated:
    """Which of the two, of local times that there are twice in a night."""

    def __init__(self) -> None:
        self._last: datetime | None = None
        self._fell: set[date] = set()  # days whose clock has fallen back

    def second(self, twice: pl.DataFrame) -> pl.DataFrame:
        """Of rows with such times, `row` and whether the clock had fallen back (`second`)."""
        import polars as pl

        wall, day = pl.col("wall"), pl.col("wall").dt.date()
        before = pl.coalesce(wall.shift(1), pl.lit(self._last, pl.Datetime("us")))
        fell = (wall - before <= -_FALL_BACK).fill_null(False).cast(pl.Int32)
        found = twice.select("row", "wall", second=(fell.cum_sum().over(day) > 0) | day.is_in(sorted(self._fell)))
        self._last = found["wall"][-1]
        self._fell |= set(found.filter("second").select(day.unique()).to_series().to_list())
        return found.select("row", "second")


def _to_utc(wall: pl.Series, tz: str, repeated: _Repeated) -> pl.Series:
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
        second = repeated.second(frame.filter(pl.col("early") != pl.col("late")))
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
