"""What engines have in common whose text logs are put together in parts (`tracelens.engines.base.PartsReader`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import polars as pl

from tracelens.engines.base import Context, PartsError, Surface, Tables
from tracelens.engines.stacking import stacked

Frames = dict[str, pl.DataFrame]


class Lines:
    """The lines of a log in their order, with their times.

    Args:
        resolve: as `Context.resolve`, of a clock that goes on from part to part.

    Attributes:
        last: the number of the last line of the parts so far.
    """

    def __init__(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self.last = 0
        self._resolve = resolve

    def take(self, whole: Mapping[str, pl.DataFrame]) -> tuple[Frames, int]:
        """The next part.

        Args:
            whole: frames by surface, with `line`, `stamp` and `inner`.

        Returns:
            The frames in the order of their lines, with `ts` and `ts_basis`; and the number of the last line, which is
            to be `last` when the part is done with.

        Raises:
            PartsError: a line stands above one of an earlier part.
        """
        frames = self._timed(whole)
        if min((frame["line"][0] for frame in frames.values()), default=self.last + 1) <= self.last:
            raise PartsError("a line that begins above the last part's")
        return frames, max((frame["line"][-1] for frame in frames.values()), default=self.last)

    def _timed(self, whole: Mapping[str, pl.DataFrame]) -> Frames:
        """The year of one line follows from its neighbours' of any kind."""
        frames = {surface: _in_order(frame) for surface, frame in whole.items() if frame.height}
        if not frames:
            return {}
        numbers = {surface: number for number, surface in enumerate(frames)}
        stamps = pl.concat([
            f.select("line", "stamp", "inner", _surface=pl.lit(numbers[s], pl.Int32)) for s, f in frames.items()
        ])  # fmt: skip
        stamps = stamps.sort("line", maintain_order=True)
        times = self._resolve(stamps.select("stamp", "inner"))
        # Stable all the way: the times of a surface come in the order of its rows.
        return {s: f.hstack(times.filter(stamps["_surface"] == numbers[s])) for s, f in frames.items()}


class Runs:
    """The runs that were told of so far: a later part may add some, and change none."""

    def __init__(self) -> None:
        self._told: pl.DataFrame | None = None

    def told(self, runs: pl.DataFrame | None) -> pl.DataFrame | None:
        """The runs, as this part has them.

        Raises:
            PartsError: they are not those of the parts before.
        """
        if self._told is not None and (runs is None or not runs.head(self._told.height).equals(self._told)):
            raise PartsError("a start that is told of in two parts")
        self._told = runs
        return runs


class TextLog(Protocol):
    """What takes the lines of a log, whole or in parts; as `tracelens.engines.base.Assembly` with a frame a surface."""

    def part(self, whole: Frames, source_id: str) -> Tables:
        """The next lines."""
        ...

    def rest(self, whole: Frames, context: Context) -> Tables:
        """The last lines, and all that waited."""
        ...


class OtherReader(Protocol):
    """A module of an engine that reads other surfaces of a source in one go."""

    SURFACES: Sequence[Surface]

    def assemble(self, frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
        """Their rows."""
        ...


# What makes rows of the surfaces that do not come in parts.
Others = Callable[[Mapping[str, pl.DataFrame], Context], Iterable[Tables]]


def of_modules(*modules: Any) -> Others:
    """Each module makes the rows of its own surfaces."""
    readers: Sequence[OtherReader] = modules

    def made(whole: Mapping[str, pl.DataFrame], context: Context) -> Iterable[Tables]:
        for module in readers:
            own = {s.name: whole[s.name] for s in module.SURFACES if s.name in whole}
            if own:
                yield module.assemble(own, context)

    return made


class Assembled:
    """A source of an engine (`tracelens.engines.base.Assembly`): its log, and what else is in it.

    Args:
        log: the log.
        surfaces: those of the log.
        others: makes the rows of the others.
        whole: frames of the surfaces that came so far, one a surface.
    """

    def __init__(
        self, log: TextLog, surfaces: Collection[str], others: Others,
        whole: Callable[[Mapping[str, Sequence[pl.DataFrame]]], Frames],
    ) -> None:  # fmt: skip
        self.surfaces = surfaces
        self._log = log
        self._others = others
        self._whole = whole

    def part(self, frames: Mapping[str, Sequence[pl.DataFrame]], source_id: str) -> Tables:
        """The next lines."""
        return self._log.part(self._whole(frames), source_id)

    def rest(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """All that is left of the source."""
        whole = self._whole(frames)
        logged = self._log.rest({s: whole[s] for s in self.surfaces if s in whole}, context)
        return stacked([logged, *self._others(whole, context)])


class LowestRank:
    """The lines of the lowest rank of each group: the others of a server print the same.

    Args:
        group: columns.
    """

    def __init__(self, *group: str) -> None:
        self._group = group
        self._lowest: pl.DataFrame | None = None

    def of(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Those of the next part.

        Raises:
            PartsError: those of the parts before were of another rank.
        """
        before = self._lowest
        own = lines.group_by(self._group).agg(_lowest=pl.col("rank").min())
        every = own if before is None else pl.concat([before, own])
        self._lowest = every.group_by(self._group).agg(pl.col("_lowest").min())
        on = [*self._group, "_lowest"]
        if before is not None and before.join(self._lowest, on=on, how="anti", nulls_equal=True).height:
            raise PartsError("a rank that comes late")
        lines = lines.join(self._lowest, on=self._group, how="left", maintain_order="left", nulls_equal=True)
        return lines.filter(pl.col("rank") == pl.col("_lowest")).drop("_lowest")


class LastOf:
    """The last row of each group of the parts so far, which the rows of the next part are compared with.

    Attributes:
        rows: these rows; None before the first part.
    """

    def __init__(self, *group: str) -> None:
        self._group = group
        self.rows: pl.DataFrame | None = None

    def before(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the last ones of the parts before above them."""
        rows = rows if self.rows is None else pl.concat([self.rows, rows], how="diagonal_relaxed")
        self.rows = rows.filter(pl.struct(*self._group).is_last_distinct())
        return rows


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """In the order of lines, and marked so: later sorts have nothing to do."""
    if not frame["line"].is_sorted():
        frame = frame.sort("line", maintain_order=True)
    return frame.with_columns(pl.col("line").set_sorted())
