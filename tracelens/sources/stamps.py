"""Read the forms of time stamps that logs use into their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_CLOCK = r"(?P<h>[01]\d|2[0-3]):(?P<mi>[0-5]\d):(?P<s>[0-5]\d|60)(?:[.,](?P<f>\d*))?"
_FORMS = (
    rf"^(?P<y>[0-9]{{4}})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)(?:[Tt]|\s+){_CLOCK}\s?(?P<z>[Zz]|UTC|[+-]\d\d(?::?\d\d)?)?$",
    rf"^(?P<mo>\d\d)[-/](?P<d>\d\d)\s+{_CLOCK}$",
    rf"^(?P<name>[A-Z][a-z]{{2}})\s+(?P<d>\d{{1,2}})\s+{_CLOCK}$",
    r"^(?P<e>\d{9,19})(?:\.(?P<f>\d*))?$",
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SECOND = 1_000_000


def parse_stamps(text: pl.Series) -> pl.DataFrame:
    """Parts of stamps, row by row; all null where the text is no stamp.

    Returns:
        `utc` Datetime us where the zone is known, `wall` Datetime us (local) where only the year is, and
        `month`, `day` Int64 and `time_us` Int64 (microseconds since midnight) where the stamp has no year.
        Fractions are cut to microseconds. Epoch numbers are s, ms, us or ns by their magnitude.
    """
    import polars as pl

    text = text.cast(pl.String).str.strip_chars().alias("text")
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
    unique = text.unique().drop_nulls()  # the lines of one print share their stamp
    found: list[pl.DataFrame] = []
    for number, form in enumerate(_FORMS):
        hit = unique.str.contains(form)
        if not hit.any():
            continue
        stamps = unique.filter(hit)
        unique = unique.filter(~hit)
        parts = pl.concat([stamps.to_frame(), stamps.str.extract_groups(form).struct.unnest()], how="horizontal")
        found.append(parts.select("text", **_parts(number)))
    table = pl.concat([empty.with_columns(text=pl.lit(None, pl.String)), *found], how="diagonal")
    return text.to_frame().join(table, on="text", how="left", maintain_order="left").select(empty.columns)


def _parts(form: int) -> dict[str, pl.Expr]:
    """The columns that one form has, from its groups."""
    import polars as pl

    if form == 3:
        return {"utc": _epoch()}
    number = (
        pl.col("mo").cast(pl.Int64)
        if form < 2
        else pl.col("name").replace_strict(
            dict(zip(_MONTHS, range(1, 13), strict=True)), default=None, return_dtype=pl.Int64
        )
    )
    day, time = pl.col("d").cast(pl.Int64), _time_us()
    if form == 0:
        wall = wall_time(pl.col("y").cast(pl.Int64), number, day, time)
        zoned = pl.col("z").is_not_null()
        return {
            "utc": pl.when(zoned).then(wall - pl.duration(minutes=_offset_minutes())),
            "wall": pl.when(~zoned).then(wall),
        }
    valid = number.is_between(1, 12) & day.is_between(1, 31)
    return {
        "month": pl.when(valid).then(number),
        "day": pl.when(valid).then(day),
        "time_us": pl.when(valid).then(time),
    }


def _micros() -> pl.Expr:
    """The fraction `f` as microseconds."""
    import polars as pl

    return pl.col("f").fill_null("").str.slice(0, 6).str.pad_end(6, "0").cast(pl.Int64)


def _time_us() -> pl.Expr:
    import polars as pl

    hour, minute, second = (pl.col(part).cast(pl.Int64) for part in ("h", "mi", "s"))
    return ((hour * 60 + minute) * 60 + second) * _SECOND + _micros()


def _offset_minutes() -> pl.Expr:
    """East of UTC, of a zone as Z, UTC, +02, +0200, +02:00."""
    import polars as pl

    digits = pl.col("z").str.replace_all(r"\D", "").str.pad_end(4, "0").cast(pl.Int64)
    minutes = digits // 100 * 60 + digits % 100
    return pl.when(pl.col("z").str.starts_with("-")).then(-minutes).otherwise(minutes)


def _epoch() -> pl.Expr:
    """Seconds, milli-, micro- or nanoseconds since 1970; what is less than three years is no date."""
    import polars as pl

    whole = pl.col("e").cast(pl.Int64, strict=False)
    micros = (
        pl.when(whole < 100_000_000)
        .then(None)
        .when(whole < 100_000_000_000)
        .then(whole * _SECOND + _micros())
        .when(whole < 100_000_000_000_000)
        .then(whole * 1000 + pl.col("f").fill_null("").str.slice(0, 3).str.pad_end(3, "0").cast(pl.Int64))
        .when(whole < 100_000_000_000_000_000)
        .then(whole)
        .otherwise(whole // 1000)
    )
    return micros.cast(pl.Datetime("us"))


def wall_time(year: pl.Expr, month: pl.Expr, day: pl.Expr, time_us: pl.Expr) -> pl.Expr:
    """A date and microseconds since midnight as Datetime us; null for a day that the calendar lacks."""
    import polars as pl

    possible = year.is_between(1, 9999) & month.is_between(1, 12) & day.is_between(1, 31)
    first = pl.date(pl.when(possible).then(year), pl.when(possible).then(month), 1).cast(pl.Datetime("us"))
    date = first + pl.duration(days=day - 1)
    return pl.when(date.dt.month() == month).then(date + pl.duration(microseconds=time_us))
