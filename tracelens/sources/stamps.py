"""Read the forms of time stamps that logs use into their parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:[.,][0-9]*)?"
_ZONE = r"(?:[Zz]|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)"
_DATED, _NUMBERS, _NAMED, _EPOCH = (
    rf"^[0-9]{{4}}[-/][0-9]{{2}}[-/][0-9]{{2}}[Tt ]{_CLOCK} ?{_ZONE}?$",
    rf"^[0-9]{{2}}[-/][0-9]{{2}} {_CLOCK}$",
    rf"^[A-Z][a-z]{{2}} [ 0-9][0-9] {_CLOCK}$",
    r"^[0-9]{9,19}(?:\.[0-9]*)?$",
)
# Where the clock begins in a form; what stands before it has a fixed width too.
_CLOCK_AT = {_DATED: 11, _NUMBERS: 6, _NAMED: 7}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SECOND = 1_000_000
_MANY = 1024


def parse_stamps(text: pl.Series) -> pl.DataFrame:
    """Parts of stamps, row by row; all null where the text is no stamp.

    Returns:
        `utc` Datetime us where the zone is known, `wall` Datetime us (local) where only the year is, and
        `month`, `day` Int64 and `time_us` Int64 (microseconds since midnight) where the stamp has no year.
        Fractions are cut to microseconds. Epoch numbers are s, ms, us or ns by their magnitude.
    """
    import polars as pl

    text = text.cast(pl.String).alias("text")
    if len(text) > _MANY and text.null_count() < len(text):
        # A server writes several lines a second: neighbours with one stamp are read once.
        first = text.ne_missing(text.shift())
        first[0] = True
        if 2 * first.sum() <= _MANY + len(text):
            return parse_stamps(text.filter(first))[(first.cum_sum() - 1).cast(pl.UInt32)]
    text = text.str.strip_chars()
    empty = pl.DataFrame(
        {
            "utc": pl.Series([], dtype=pl.Datetime("us")),
            "wall": pl.Series([], dtype=pl.Datetime("us")),
            "month": pl.Series([], dtype=pl.Int64),
            "day": pl.Series([], dtype=pl.Int64),
            "time_us": pl.Series([], dtype=pl.Int64),
        }
    )
    if text.null_count() == len(text):
        return empty.clear(len(text))
    rest = text.to_frame().with_row_index("row")
    found: list[pl.DataFrame] = []
    for form in (_DATED, _NUMBERS, _NAMED, _EPOCH):
        hit = rest["text"].str.contains(form)
        if hit.any():
            stamps = rest.filter(hit)
            rest = rest.filter(~hit.fill_null(False))
            found.append(stamps.select("row", **(_epoch() if form == _EPOCH else _parts(form))))
    found = [empty.with_columns(row=pl.lit(None, pl.UInt32)), rest.select("row"), *found]
    return pl.concat(found, how="diagonal").sort("row").select(empty.columns)


@cache
def _parts(form: str) -> Mapping[str, pl.Expr]:
    """The columns that a form with a date has."""
    import polars as pl

    clock = _CLOCK_AT[form]
    tail = pl.col("text").str.slice(clock + 8)
    hour, minute, second = (_digits(clock + at, 2) for at in (0, 3, 6))
    fraction = tail.str.extract(r"^[.,]([0-9]*)", 1)
    time = ((hour * 60 + minute) * 60 + second) * _SECOND + _scaled(fraction, 6)
    if form == _DATED:
        wall = wall_time(_digits(0, 4), _digits(5, 2), _digits(8, 2), time)
        zone = tail.str.extract(f"({_ZONE})$", 1)
        return {
            "utc": pl.when(zone.is_not_null()).then(wall - pl.duration(minutes=_offset_minutes(zone))),
            "wall": pl.when(zone.is_null()).then(wall),
        }
    if form == _NUMBERS:
        month, day = _digits(0, 2), _digits(3, 2)
    else:
        numbers = dict(zip(_MONTHS, range(1, 13), strict=True))
        name = pl.col("text").str.slice(0, 3)
        month = name.replace_strict(numbers, default=None, return_dtype=pl.Int64)
        day = pl.col("text").str.slice(4, 2).str.strip_chars().cast(pl.Int64)
    valid = month.is_between(1, 12) & day.is_between(1, 31)
    columns = {"month": month, "day": day, "time_us": time}
    return {name: pl.when(valid).then(column) for name, column in columns.items()}


def _digits(start: int, width: int) -> pl.Expr:
    import polars as pl

    return pl.col("text").str.slice(start, width).cast(pl.Int64)


def _scaled(fraction: pl.Expr, digits: int) -> pl.Expr:
    """A decimal fraction, as its digits, as a whole number of that many digits; 0 where there is none."""
    import polars as pl

    return fraction.fill_null("").str.slice(0, digits).str.pad_end(digits, "0").cast(pl.Int64)


def _offset_minutes(zone: pl.Expr) -> pl.Expr:
    """East of UTC, of a zone as Z, UTC, +02, +0200, +02:00."""
    import polars as pl

    digits = zone.str.replace_all("[^0-9]", "").str.pad_end(4, "0").cast(pl.Int64)
    minutes = digits // 100 * 60 + digits % 100
    return pl.when(zone.str.starts_with("-")).then(-minutes).otherwise(minutes)


@cache
def _epoch() -> Mapping[str, pl.Expr]:
    """Seconds, milli-, micro- or nanoseconds since 1970; what is less than three years is no date."""
    import polars as pl

    whole = pl.col("text").str.extract(r"^([0-9]+)", 1).cast(pl.Int64, strict=False)
    fraction = pl.col("text").str.extract(r"\.([0-9]*)$", 1)
    micros = (
        pl.when(whole < 100_000_000)
        .then(None)
        .when(whole < 100_000_000_000)
        .then(whole * _SECOND + _scaled(fraction, 6))
        .when(whole < 100_000_000_000_000)
        .then(whole * 1000 + _scaled(fraction, 3))
        .when(whole < 100_000_000_000_000_000)
        .then(whole)
        .otherwise(whole // 1000)
    )
    return {"utc": micros.cast(pl.Datetime("us"))}


def wall_time(year: pl.Expr, month: pl.Expr, day: pl.Expr, time_us: pl.Expr) -> pl.Expr:
    """A date and microseconds since midnight as Datetime us; null for a day that the calendar lacks."""
    import polars as pl

    possible = year.is_between(1, 9999) & month.is_between(1, 12) & day.is_between(1, 31)
    first = pl.date(pl.when(possible).then(year), pl.when(possible).then(month), 1).cast(pl.Datetime("us"))
    date = first + pl.duration(days=day - 1)
    return pl.when(date.dt.month() == month).then(date + pl.duration(microseconds=time_us))
