"""What readers of counters do alike with the rows that `counters.scrapes` gives: refuse, difference, keep what grew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import counters
from tracelens.engines.base import Reject
from tracelens.engines.counters import Group
from tracelens.engines.units import INT32_MAX

#: What `counters` of a window holds before the counts by position, in this order (schemas/windows.json).
STOOD = ("steps", "rounds", "plain_steps", "drafted", "accepted", "emitted", "draft_us", "target_us", "step_us",
         "round_us", "rounds_timed", "preemptions", "generated_tokens", "prompt_tokens", "gaps")  # fmt: skip
NO_COUNT = "a counter that is no whole number: query the metric itself, not an average or a rate of it"
_LATEST = 4_102_444_800  # 2100, in seconds since 1970: no process began later
RESTLESS = "counters fall again and again: several servers behind one address; scrape each of them by itself"


def places(rows: pl.DataFrame, column: str) -> list[str]:
    """Columns of a counter by position (`Layout.positions`), in the order of positions."""
    found = [c for c in rows.columns if c.startswith(f"{column}.")]
    return sorted(found, key=lambda c: int(c.rsplit(".", 1)[1]))


def grown(
    rows: pl.DataFrame, counts: Sequence[str], groups: Sequence[Group], surface: str, rejects: list[Reject]
) -> pl.DataFrame:
    """Rows with the growth of their counters (see `counters.differences`), without what is no counter.

    Args:
        rows: as `counters.scrapes` gives them.
        counts: columns that hold whole numbers only; another value is refused, once a process and column.
        groups: counters to difference.
        surface: that of the rejects.
        rejects: gets what was refused.
    """
    for column in counters.uncounted(rows, counts):
        wrong = (~counters.is_count(column)).fill_null(False)
        lines = rows.filter(wrong).group_by("key", maintain_order=True).agg(pl.col("line").first())["line"]
        rejects += [Reject(line, NO_COUNT, surface) for line in lines]
        rows = rows.with_columns(pl.when(~wrong).then(column).alias(column))
    rows = counters.differences(rows, groups)
    unsteady = counters.restless(rows)
    rejects += [Reject(line, RESTLESS, surface) for line in unsteady["line"]]
    return rows.join(unsteady, on="key", how="anti", maintain_order="left")


def changed(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows in which something happened, in the order of scrapes or of time, with `source_line`.

    Samples of a query or an export stand by series, not by time: there the window's own number tells them apart.
    """
    some = pl.any_horizontal([pl.col(c) > 0 for c in rows.columns if c.startswith("d.")])
    scraped = pl.col("scrape").is_not_null()
    kept = rows.filter(some.fill_null(False)).sort(
        scraped, pl.when(scraped).then("line"), "ts", "key", maintain_order=True
    )
    number = pl.when(scraped).then("line").otherwise((~scraped).cast(pl.Int64).cum_sum())
    return kept.with_columns(source_line=number)


def per_position(columns: Sequence[str], accepted: pl.Expr, rounds: pl.Expr) -> pl.Expr:
    """`accepted_per_pos` from the growth by position, where it fits the window's other counts; else null.

    Args:
        columns: counters by position, in order; their growth is in `d.<column>`.
        accepted: growth of the accepted tokens.
        rounds: growth of the rounds.
    """
    if not columns:
        return pl.lit(None, pl.List(pl.Int64))
    listed = pl.concat_list([pl.col(f"d.{c}").cast(pl.Int64, strict=False) for c in columns])
    whole = listed.list.eval(pl.element().is_not_null()).list.all()
    falls = (listed.list.diff().list.max().fill_null(0) <= 0) & (listed.list.min() >= 0)
    fits = (listed.list.sum() == accepted) & falls & (listed.list.first() <= rounds)
    return pl.when(whole & fits).then(listed)


def whole(column: str) -> pl.Expr:
    """A column of floats that holds whole numbers, as such."""
    return pl.col(column).round().cast(pl.Int64, strict=False)


def level(column: str) -> pl.Expr:
    """A gauge that counts requests; null where it is no number of them."""
    value = pl.col(column)
    return pl.when((value >= 0) & (value <= INT32_MAX)).then(value.round()).cast(pl.Int64, strict=False)


def stood(counts: Mapping[str, pl.Expr | str], positions: Sequence[pl.Expr | str] = ()) -> dict[str, pl.Expr]:
    """Columns `counters` and `counters_since`: what the counters of a row stand at.

    Args:
        counts: of those of `STOOD` that the process has: its counter, null where the row does not count it (then the
            next row's growth is from the row before).
        positions: counters of accepted tokens by position, in order.
    """
    nothing = pl.lit(None, pl.Float64)
    cells = [counts.get(name, nothing) for name in STOOD]
    listed = [(pl.col(c) if isinstance(c, str) else c).cast(pl.Float64, strict=False) for c in (*cells, *positions)]
    began = pl.when(pl.col("epoch").is_between(0, _LATEST)).then((pl.col("epoch") * 1e6).round())
    return {"counters": pl.concat_list(listed), "counters_since": began.cast(pl.Int64).cast(pl.Datetime("us"))}


def counted(column: str, growth: str | None = None) -> pl.Expr:
    """A counter where its growth (`d.<column>`) counts; null in a row that leaves it to the next one."""
    return pl.when(pl.col(growth or f"d.{column}").is_not_null()).then(column)


def target(rows: pl.DataFrame) -> pl.Expr:
    """Column `process`: which of several targets a row is of; its address is not kept."""
    several = rows["target"].n_unique() > 1
    return pl.format("target {}", "target") if several else pl.lit(None, pl.String)
