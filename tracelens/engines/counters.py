"""Counters that only grow, as Prometheus metrics export them, differenced to what happened between two scrapes.

Two steps: `scrapes` puts the samples of one process at one time into a row, `differences` takes the growth from row to
row. Names of metrics and what their figures mean are the engine's own affair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from tracelens.engines.base import Reject
from tracelens.engines.units import MOST_POSITIONS

# Labels that tell apart the Prometheus servers that scraped, and not the processes that were.
_SCRAPERS = ("prometheus", "prometheus_replica", "__replica__")
# A pair, or what is none, up to the next comma. Possessive, and each match begins where the last has ended: labels may
# be as long as a line, and no place of them is looked at twice.
_PAIR = re.compile(r'[\s,]*+(?:([^\s=,"]++)\s*+=\s*+"((?:[^"\\]|\\.)*+)"|[^,]++)', re.S)
_ESCAPE = re.compile(r"\\(.)", re.S)
# A counter that falls this often, at every third scrape or more, is no counter of one process.
_RESTLESS_FALLS = 5
_RESTLESS_SHARE = 1 / 3
# What the tables hold; beyond it no counter is one.
_MOST = 1e15

_UNPAIRED = "counters that count together are not all there under the same labels, so none of them counts"
_TOO_MANY = f"more than {MOST_POSITIONS} positions, which no engine drafts: its tokens are not counted by position"

Resolve = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which samples make a row.

    Attributes:
        columns: exported name -> column. Several names may share one, where a process exports only one of them.
        own: labels that are columns of the rows (null where a series has none), as `engine`.
        positions: column -> label that numbers its parts from 0; part i is the column `<column>.<i>`.
        epoch: name of a sample that tells when the process began (`..._created`); another value is another process.
    """

    columns: Mapping[str, str]
    own: Sequence[str] = ()
    positions: Mapping[str, str] = field(default_factory=dict)
    epoch: str | None = None

    @property
    def names(self) -> list[str]:
        """All names that matter."""
        return [*self.columns, *([self.epoch] if self.epoch else [])]


@dataclass(frozen=True, slots=True)
class Group:
    """Counters that speak of the same events and are only differenced together.

    A row counts where it has all of `needed`, and `holds` is true there. A row that does not (a page that was cut)
    leaves its events to the next one. `also` are differenced between the same rows, and are null where one of the two
    has none; they may be figures that can fall for a moment, and tell of no new start.
    """

    needed: Sequence[str]
    also: Sequence[str] = ()
    holds: pl.Expr | None = None


def both(name: str, column: str) -> dict[str, str]:
    """A counter's name as it is declared and as it is exported."""
    return {name: column, f"{name}_total": column}


def scrapes(
    samples: pl.DataFrame, layout: Layout, resolve: Resolve, surface: str, rejects: list[Reject]
) -> pl.DataFrame:
    """Rows of what each process told at each time, in the order of time.

    Samples of one scrape, or of equal stamps where there are no scrapes, make a row; those of one series that come
    twice in it count once. What is no finite number is missing.

    Args:
        samples: as `MetricsReader.metrics` takes them.
        layout: which samples matter.
        resolve: turns stamps into times (`Context.resolve`).
        surface: that of the rejects.
        rejects: gets one for the first process with more positions than can be (`MOST_POSITIONS`): it has none here.

    Returns:
        `key` Int64 (one process and epoch), `target` Int64 (from 1, in the order of the source: what labels of the
        target, as its address, tell apart), the labels of `layout.own`, `line` (the first sample's), `scrape`, `ts`,
        `ts_basis`, `epoch` Float64, and a Float64 for each column that was found (those of `layout.columns` always).
    """
    series = _series(samples.select("stream", "labels").unique(maintain_order=True), layout)
    places = {name: column for name, column in layout.columns.items() if column in layout.positions}
    told = samples.filter(pl.col("name").is_in(layout.names) & pl.col("value").is_finite())
    told = _timed(told, resolve).join(series, on=("stream", "labels"), how="left", nulls_equal=True)
    column = pl.col("name").replace_strict(layout.columns, default="epoch", return_dtype=pl.String)
    placed = pl.col("name").is_in(list(places))
    deep = told.filter(placed & (pl.col("place") >= MOST_POSITIONS)).select("key", "line")
    if deep.height:
        rejects.append(Reject(deep["line"][0], _TOO_MANY, surface))
        told = told.filter(~(placed & pl.col("key").is_in(deep["key"].unique().to_list())))
    told = told.filter(~placed | pl.col("place").is_not_null()).with_columns(
        column=pl.when(placed).then(pl.format("{}.{}", column, "place")).otherwise(column)
    )
    found = told["column"].unique(maintain_order=True).to_list()
    plain = [c for c in dict.fromkeys(layout.columns.values()) if c not in layout.positions]
    wanted = [*dict.fromkeys([*plain, "epoch", *sorted(c for c in found if c not in plain)])]
    rows = told.group_by("key", "scrape", "ts", maintain_order=True).agg(
        pl.col("target", *layout.own, "ts_basis").first(),
        pl.col("line").min(),
        *(pl.col("value").filter(pl.col("column") == c).first().alias(c) for c in wanted),
    )
    return _by_epoch(_in_order(rows))


def differences(rows: pl.DataFrame, groups: Sequence[Group]) -> pl.DataFrame:
    """The growth of counters from row to row of a key.

    A fall of any that is needed is a new start of the process: then the value itself is the growth, as in a first row.

    Args:
        rows: as `scrapes` gives them, those of a key together.
        groups: counters to difference, each in one group only.

    Returns:
        The rows with `d.<counter>` Float64 beside each counter (null where nothing can be told), `start` (time of the
        row that the growth is from; null where it is the counter's own start, or has no time), `segment` Int64 (which
        start of the process, from 1) and `fell` (whether the row began one that is not the key's first).
    """
    counters = [c for g in groups for c in g.needed if c in rows.columns]
    rows = rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = rows.with_columns(fell=_falls(rows, counters))
    first = pl.col("key").ne_missing(pl.col("key").shift(1))
    rows = rows.with_columns(segment=(first | pl.col("fell")).cum_sum().over("key").cast(pl.Int64))
    since: list[str] = []
    for number, group in enumerate(groups):
        rows = _grown(rows, group, f"since.{number}")
        since.append(f"since.{number}")
    told = [pl.col(c).is_not_null() for c in since]
    unknown = pl.any_horizontal([pl.col(f"{c}.first") for c in since])
    start = pl.min_horizontal(since)
    return rows.with_columns(start=pl.when(pl.any_horizontal(told) & ~unknown).then(start)).drop(
        "row", *since, *(f"{c}.first" for c in since)
    )


def restless(rows: pl.DataFrame) -> pl.DataFrame:
    """Keys whose counters fall at every third row or more often: several servers behind one address, taken for one.

    Args:
        rows: as `differences` gives them.

    Returns:
        `key`, `line` (of the first row), `falls`, `rows`.
    """
    by_key = rows.group_by("key", maintain_order=True).agg(
        pl.col("line").min(), falls=pl.col("fell").sum(), rows=pl.len()
    )
    often = (pl.col("falls") >= _RESTLESS_FALLS) & (pl.col("falls") >= pl.col("rows") * _RESTLESS_SHARE)
    return by_key.filter(often)


def labels_of(text: str) -> dict[str, str]:
    """Labels as they stand between the braces of a sample, unescaped."""
    pairs = (hit.groups() for hit in iter(_PAIR.scanner(text).match, None))  # type: ignore[attr-defined]
    return {k: _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], v) for k, v in pairs if k is not None}


def is_count(column: str) -> pl.Expr:
    """Whether a cell is a whole number that a counter can have; null where there is none."""
    c = pl.col(column)
    return (c >= 0) & (c <= _MOST) & (c == c.round())


def uncounted(rows: pl.DataFrame, columns: Sequence[str]) -> list[str]:
    """Those of some columns in which a cell is no count (`is_count`): seldom any, so all are looked at together."""
    if not columns:
        return []
    wrong = rows.select((~is_count(c)).fill_null(False).any().alias(c) for c in columns)
    return [c for c in columns if wrong[c][0]]


def unpaired(rows: pl.DataFrame, columns: Sequence[str], surface: str) -> list[Reject]:
    """A reject where a process has some of the counters that only count together and never the others.

    A query that asked for one of them does that, and an export in which they stand under different labels; only the
    first such process is named.
    """
    by_key = rows.group_by("key", maintain_order=True).agg(
        pl.col("line").min(), *(pl.col(c).is_not_null().any() for c in columns)
    )
    some, every = pl.any_horizontal(columns), pl.all_horizontal(columns)
    lines = by_key.filter(some & ~every)["line"]
    return [Reject(lines[0], f"{_UNPAIRED}: {', '.join(columns)}", surface)] if len(lines) else []


def _series(found: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """What the labels of each series say: key, target, place, and the own labels. A few rows a process."""
    inside = {*layout.positions.values(), *_SCRAPERS}
    keys: dict[object, int] = {}
    targets: dict[object, int] = {}
    columns: dict[str, list[object]] = {c: [] for c in ("key", "target", "place", *layout.own)}
    for stream, text in found.iter_rows():
        labels = labels_of(text)
        process = (stream, frozenset((k, v) for k, v in labels.items() if k not in inside))
        target = (stream, frozenset((k, v) for k, v in process[1] if k not in layout.own))
        columns["key"].append(keys.setdefault(process, len(keys)))
        columns["target"].append(targets.setdefault(target, len(targets) + 1))
        place = next((labels[p] for p in layout.positions.values() if p in labels), "")
        columns["place"].append(int(place) if place.isdecimal() and len(place) < 10 else None)
        for name in layout.own:
            columns[name].append(labels.get(name))
    kinds = {"key": pl.Int64, "target": pl.Int64, "place": pl.Int64, **dict.fromkeys(layout.own, pl.String)}
    return found.with_columns(pl.Series(c, values, dtype=kinds[c]) for c, values in columns.items())


def _timed(samples: pl.DataFrame, resolve: Resolve) -> pl.DataFrame:
    """Samples with `ts` and `ts_basis`; the stamps of a scrape are one."""
    stamps = samples.select("scrape", "stamp").unique(maintain_order=True)
    times = resolve(stamps.select("stamp", inner=pl.lit(None, pl.String)))
    stamps = pl.concat([stamps, times], how="horizontal")
    return samples.join(stamps, on=("scrape", "stamp"), how="left", nulls_equal=True, maintain_order="left")


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows by time; one without a time stands behind the one before it in the source."""
    rows = rows.sort("key", "scrape", "line", maintain_order=True)
    return (
        rows.with_columns(_at=pl.col("ts").forward_fill().over("key"))
        .sort("key", "_at", "scrape", "line", maintain_order=True, nulls_last=False)
        .drop("_at")
    )


def _by_epoch(rows: pl.DataFrame) -> pl.DataFrame:
    """Two processes that began at different times are two keys, even behind one address."""
    near = pl.col("epoch").forward_fill().over("key")
    rows = rows.with_columns(epoch=near).with_columns(epoch=pl.col("epoch").backward_fill().over("key"))
    return rows.with_columns(key=pl.struct("key", "epoch").rank("dense").cast(pl.Int64)).sort(
        "key", maintain_order=True
    )


def _falls(rows: pl.DataFrame, counters: Sequence[str]) -> pl.Series:
    """Rows at which a counter is less than it was in its key, unless an earlier row has told of that start already."""
    latest = {c: _before(pl.col(c).forward_fill().over("key")) for c in counters}
    lower = [(pl.col(c) < latest[c]).fill_null(False).alias(f"lower.{c}") for c in counters]
    work = rows.select("key", "row", *counters).with_columns(lower)
    work = work.with_columns(
        starts=pl.any_horizontal([f"lower.{c}" for c in counters] or [pl.lit(False)])
        .cast(pl.Int64)
        .cum_sum()
        .over("key")
    )
    before = _before(pl.col("starts")).fill_null(0)
    news = [
        pl.col(f"lower.{c}")
        & (before == _before(pl.when(pl.col(c).is_not_null()).then("starts").forward_fill().over("key")))
        for c in counters
    ]
    return work.select(pl.any_horizontal(news or [pl.lit(False)]).fill_null(False).alias("fell")).to_series()


def _before(column: pl.Expr, *of: str) -> pl.Expr:
    """The cell of the row before, of the same key (or `of`): a key's rows stand together, so no groups are made."""
    same = [pl.col(c) == pl.col(c).shift(1) for c in of or ("key",)]
    return pl.when(pl.all_horizontal(same)).then(column.shift(1))


def _grown(rows: pl.DataFrame, group: Group, since: str) -> pl.DataFrame:
    """Add the growth of one group, the time it is from (`since`), and whether it is from a start (`<since>.first`)."""
    needed = [c for c in group.needed if c in rows.columns]
    also = [c for c in group.also if c in rows.columns]
    whole = pl.all_horizontal([pl.col(c).is_not_null() for c in needed])
    if group.holds is not None:
        whole = whole & group.holds.fill_null(True)
    rows = rows.with_columns(_whole=whole if needed else pl.lit(False))
    last = _before(pl.when("_whole").then("row").forward_fill().over("key", "segment"), "key", "segment")
    rows = rows.with_columns(_last=pl.when("_whole").then(last))
    first = pl.col("_whole") & pl.col("_last").is_null()
    growth = {
        f"d.{c}": pl.when(first).then(c).when("_whole").then(pl.col(c) - pl.col(c).gather("_last"))
        for c in (*needed, *also)
    }
    rows = rows.with_columns(**growth)
    grew = pl.any_horizontal([pl.col(f"d.{c}") > 0 for c in needed] or [pl.lit(False)]).fill_null(False)
    return rows.with_columns(
        pl.when("_whole").then(pl.col("ts").gather("_last")).alias(since), (first & grew).alias(f"{since}.first")
    ).drop("_whole", "_last")
