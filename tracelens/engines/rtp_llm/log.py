"""RTP-LLM's request records and steps of one source as canonical rows, in one go or part by part.

They are whole by themselves, but for the number of a request's round and the times of a step that the next line tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import polars as pl

from tracelens.engines.base import Tables
from tracelens.engines.parted import Lines
from tracelens.engines.rtp_llm import access, steps

REQUESTS = (access.ACCESS, access.QUERY, access.DASH, access.AUX)
SURFACES: Collection[str] = (*REQUESTS, steps.SURFACE)


class Records:
    """Takes the records of a log, in order.

    Args:
        resolve: as `Context.resolve`, of a clock that goes on from part to part.

    Attributes:
        parted: whether some part was taken before the last one.
    """

    def __init__(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self.parted = False
        self._lines = Lines(resolve)
        self._rounds = steps.Rounds()

    def part(self, whole: Mapping[str, pl.DataFrame], source_id: str) -> Tables:
        """The rows of the next records; `whole` is by surface.

        Raises:
            PartsError: a record stands above one of an earlier part.
        """
        self.parted = True
        return self.rest(whole, source_id)

    def rest(self, whole: Mapping[str, pl.DataFrame], source_id: str) -> Tables:
        """The rows of the last records; as `part`."""
        none = pl.lit(None, pl.String).alias("inner")
        stamped = {s: f if "inner" in f.columns else f.with_columns(none) for s, f in whole.items()}
        records, self._lines.last = self._lines.take(stamped)
        made = Tables(requests=joined([_requests(s, records[s], source_id) for s in REQUESTS if s in records]))
        if steps.SURFACE in records:
            found = _own(records[steps.SURFACE], "at").with_columns(ts="at")
            made.rounds, made.windows = joined([self._rounds.of(found)]), joined([steps.windows_of(found)])
        return made


def joined(parts: Sequence[pl.DataFrame | None]) -> pl.DataFrame | None:
    """Rows of all parts, with the engine."""
    some = [part for part in parts if part is not None and part.height]
    return pl.concat(some, how="diagonal").with_columns(pl.lit("rtp-llm").alias("engine")) if some else None


def _own(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The frame with `column` and `ts_basis`: an epoch of the record's own, else the resolved stamp."""
    basis = pl.when(pl.col(column).is_not_null()).then(pl.lit("absolute")).otherwise("ts_basis")
    return frame.with_columns(basis.alias("ts_basis"), pl.coalesce(column, "ts").alias(column))


def _requests(surface: str, frame: pl.DataFrame, source_id: str) -> pl.DataFrame:
    """Canonical requests of one surface. A query line is written at arrival, all others at the end."""
    frame = _own(frame, "ts_start" if surface == access.QUERY else "ts_end")
    unnamed = pl.format("{}#{}", pl.lit(source_id), pl.col("line"))
    keep = [name for name in access.SCHEMA if name not in ("line", "stamp", "inner", "stream", "request_id")]
    given = [name for name in keep if frame[name].null_count() < frame.height]
    return frame.select(
        pl.col("line").alias("source_line"),
        pl.lit(surface).alias("surface"),
        "ts_basis",
        pl.coalesce("request_id", unnamed).alias("request_id"),
        *given,
    )
