"""What the rows of a source hold: the needs of `tracelens.analysis.coverage`, told from the columns that are filled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from tracelens.lake.schema import FACTS, table

if TYPE_CHECKING:
    import polars as pl

    from tracelens.engines.base import Tables

NOTHING_DRAFTED = "nothing_drafted"
LEAST_FIXED = 0.8  # as in views.sql


@dataclass(slots=True)
class Held:
    """Needs that rows of one engine meet, by the surface of the rows; `plain` where some are steps without a draft.

    `versions` are those that its runs tell of themselves, each with its era.

    `lengths` are the rounds of rows that list lengths of drafts of one length, and of all rows, by their surface: only
    all rows of a source together tell whether the one are most of the other.
    """

    needs: dict[str, set[str]] = field(default_factory=dict)
    plain: bool = False
    lengths: dict[str, tuple[int, int]] = field(default_factory=dict)
    versions: set[tuple[str, str | None]] = field(default_factory=set)

    def of(self, surface: str) -> set[str]:
        """The needs that a surface meets; one without rows of its own is part of what others' rows tell."""
        return self.own(surface) or self.all()

    def all(self) -> set[str]:
        """The needs that any row meets."""
        return reduce(or_, map(self.own, self.needs), set[str]())

    def add(self, other: Held) -> None:
        """Take in what the rows of another source hold."""
        for surface in other.needs:
            self.needs.setdefault(surface, set()).update(other.own(surface))
        self.plain |= other.plain
        self.versions |= other.versions

    def more(self, other: Held) -> None:
        """Take in what more rows of the same source hold."""
        for surface, needs in other.needs.items():
            self.needs.setdefault(surface, set()).update(needs)
        for surface, (told, rounds) in other.lengths.items():
            before = self.lengths.get(surface, (0, 0))
            self.lengths[surface] = (before[0] + told, before[1] + rounds)
        self.plain |= other.plain
        self.versions |= other.versions

    def own(self, surface: str) -> set[str]:
        """The needs that the rows of a surface meet."""
        told, rounds = self.lengths.get(surface, (0, 0))
        most = told > 0 and told >= LEAST_FIXED * rounds
        return self.needs.get(surface, set()) | ({"draft_lengths"} if most else set())


def held_by(made: Tables) -> Held:
    """What canonical rows hold, whatever engine they are of."""
    found = Held()
    for name in FACTS:
        frame: pl.DataFrame | None = getattr(made, name)
        if frame is not None and frame.height and "surface" in frame.columns:
            _add(found, name, frame)
    found.versions = _versions(made.runs)
    return found


def _versions(runs: pl.DataFrame | None) -> set[tuple[str, str | None]]:
    if runs is None or "engine_version" not in runs.columns:
        return set()
    told = runs.filter(runs["engine_version"].is_not_null())
    eras = told["engine_era"].to_list() if "engine_era" in told.columns else [None] * told.height
    return set(zip(told["engine_version"].to_list(), eras, strict=True))


def _add(found: Held, name: str, frame: pl.DataFrame) -> None:
    import polars as pl

    types = table(name).polars_schema()
    full = frame.with_columns(pl.lit(None, t).alias(c) for c, t in types.items() if c not in frame.columns)
    told = full.group_by("surface").agg(
        **{need: rule.fill_null(False).any() for need, rule in _rules(name)},
        **(_lengths(name) if name != "rounds" else {}),
        # What is no need, but the reason for one that is not met.
        _plain=_is_plain(name).fill_null(False).any(),
    )
    for row in told.iter_rows(named=True):
        surface, plain = row.pop("surface"), row.pop("_plain")
        if name != "rounds":
            one = Held({surface: set()}, lengths={surface: (row.pop("_told") or 0, row.pop("_rounds") or 0)})
            found.more(one)
        found.needs.setdefault(surface, set()).update(need for need, met in row.items() if met)
        found.plain |= plain


def _is_plain(name: str) -> pl.Expr:
    import polars as pl

    if name == "rounds":
        return pl.col("drafted") == 0
    return (pl.col("plain_steps") if name == "windows" else pl.col("iterations") - pl.col("rounds")) > 0


def _rules(name: str) -> Iterator[tuple[str, pl.Expr]]:
    """Each need, and when a row of a table meets it."""
    import polars as pl

    def known(*columns: str) -> pl.Expr:
        return pl.any_horizontal(pl.col(c).is_not_null() for c in columns)

    counts, drafts = known("accepted"), pl.col("drafted") > 0
    yield "counts", counts
    yield "drafted", counts & drafts
    yield "draft_time", known("draft_us", *(["draft_ms_per_token"] if name == "windows" else []))
    yield "target_time", known("target_us")
    if name != "requests":
        yield "step_time", known("step_us", *(["round_us"] if name == "windows" else []))
    yield "temperature", known("temperature")
    if name == "rounds":
        yield "draft_lengths", counts & drafts
        yield "rounds", counts
        yield "emitted", known("emitted")
        yield "requests", counts & known("request_id")
        return
    yield "rounds", counts & (pl.col("rounds") > 0)
    yield "emitted", counts & (pl.col("rounds") > 0) & known("emitted")
    if name == "requests":
        yield "requests", counts
        several, failed = pl.col("output_tokens") > 1, pl.col("error").fill_null(False)
        # Views take the time between stamps that are finer than a second.
        stamped = pl.all_horizontal(pl.col(c).dt.microsecond() != 0 for c in ("ts_first_token", "ts_end"))
        yield "tpot", (((known("decode_us") | stamped) & several) | known("tpot_us")) & ~failed


def _lengths(name: str) -> dict[str, pl.Expr]:
    """Rounds of rows that list lengths and whose rounds all drafted as many tokens (`_told`), and of all (`_rounds`).

    Where most rows have drafts of several lengths, the few that have not are no fair sample (`views.sql`, `loose`).
    """
    import polars as pl

    lengths = pl.col("accepted_per_pos" if name == "windows" else "accepted_hist")
    size = lengths.list.len().cast(pl.Int64) - (0 if name == "windows" else 1)
    k = pl.coalesce(pl.col("num_speculative_tokens").cast(pl.Int64), size)
    tells = (pl.col("drafted") > 0) & (size >= k) & (pl.col("drafted") == pl.col("rounds") * k)
    return {"_told": pl.col("rounds").filter(tells.fill_null(False)).sum(), "_rounds": pl.col("rounds").sum()}
