"""What readers of few and small records share: rows as frames, their place in the source, their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.engines.base import Context, JsonRecord, Surface, Tables

# Where a record stands. A frame that a reader keeps begins with these columns.
PLACE: Mapping[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
}  # fmt: skip

_SEVERAL = 64  # fewer are not worth it
MOST = 10**15  # microseconds (31 years), and counts: sums of more would not fit their type


def place(record: JsonRecord) -> dict[str, Any]:
    """The columns of `PLACE` that the record knows; its own stamp (`inner`) is its reader's affair."""
    return {"line": record.line, "offset": record.offset, "stamp": record.stamp, "stream": record.stream}


def frame_of(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Rows as a frame with the columns of the schema; what a row lacks is null, what it has besides is left."""
    return frame_by_column({c: [row.get(c) for row in rows] for c in schema}, schema)


def frame_by_column(columns: Mapping[str, Sequence[Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Columns as a frame: as polars makes it, but for lists of numbers, of which polars makes a series each."""
    quick = {c: made for c, kind in schema.items() if (made := _lists(columns[c], kind)) is not None}
    return pl.DataFrame({**columns, **quick}, schema=dict(schema))


def _lists(cells: Sequence[Any], kind: Any) -> pl.Series | None:
    """Lists of numbers as a column; None where they are something else."""
    if kind not in (pl.List(pl.Int64), pl.List(pl.Float64)) or len(cells) < _SEVERAL:
        return None
    import pyarrow as pa

    try:
        # Not with its type given: Arrow cuts 1.5 down to 1.
        found = pa.array(cells)
    except (pa.ArrowException, OverflowError):
        return None
    made = pl.Series(found) if found.type in (pa.list_(pa.int64()), pa.list_(pa.float64())) else None
    return made if made is not None and made.dtype == kind else None


def whole(
    frames: Mapping[str, Sequence[pl.DataFrame]], surfaces: Sequence[Surface], context: Context
) -> dict[str, pl.DataFrame]:
    """The frames of each of an engine's surfaces as one, in the order of lines, with `ts` and `ts_basis`.

    All of them are timed together: the year of one line follows from its neighbours' of any kind.
    """
    found = {
        s.name: pl.concat(frames[s.name], how="diagonal_relaxed").sort("line", maintain_order=True)
        for s in surfaces
        if frames.get(s.name)
    }
    if not found:
        return {}
    marks = pl.concat([
        f.select("line", "stamp", "inner", surface=pl.lit(s), row=pl.int_range(pl.len())) for s, f in found.items()
    ]).sort("line", maintain_order=True)  # fmt: skip
    times = context.resolve(marks.select("stamp", "inner")).select("ts", "ts_basis")
    marks = pl.concat([marks.select("surface", "row"), times], how="horizontal").sort("row", maintain_order=True)
    return {
        s: pl.concat([f, marks.filter(pl.col("surface") == s).select("ts", "ts_basis")], how="horizontal")
        for s, f in found.items()
    }


def unnamed(context: Context) -> pl.Expr:
    """The id of a request whose record has none."""
    return pl.format("{}#{}", pl.lit(context.source_id), "line")


def of_server(tables: Tables, client: str) -> Tables:
    """Rows of a measuring client under the name of the engine that it measured, where `runs` says which.

    So they meet that engine's own logs: one request seen by both is one. What names no engine stays the client's.
    """
    if tables.runs is None or "engine_flavour" not in tables.runs.columns:
        return tables
    names = tables.runs.select("run_key", engine=pl.col("engine_flavour").fill_null(client))

    def named(frame: pl.DataFrame | None) -> pl.DataFrame | None:
        if frame is None:
            return None
        keyed = frame if "run_key" in frame.columns else frame.with_columns(run_key=pl.lit(0, pl.Int64))
        joined = keyed.join(names, on="run_key", how="left", maintain_order="left")
        return joined.with_columns(pl.col("engine").fill_null(client))

    return replace(
        tables, rounds=named(tables.rounds), windows=named(tables.windows), requests=named(tables.requests),
        runs=tables.runs.drop("engine_flavour").join(names, on="run_key", how="left", maintain_order="left"),
    )  # fmt: skip


_PRINTED = ("stream", "inner", "hash")
_STAMPED = pl.col("inner").is_not_null()


def once(lines: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Lines without repeats: the same text with the same stamp of its own. Lines without a stamp are kept.

    Two handlers print a line twice, and logs are copied into themselves.

    Args:
        lines: `inner`, `hash` (of the text) and `stream`.
        keys: further columns that tell records apart.
    """
    return lines.filter(~_STAMPED | pl.struct(*_PRINTED, *keys).is_first_distinct())


class Once:
    """The same over the parts of a log: 8 bytes of memory a line.

    Args:
        keys: as in `once`.
        printed: what a repeat has in common with the first.
        told: whether a line can be a repeat.
    """

    def __init__(self, *keys: str, printed: Sequence[str] = _PRINTED, told: pl.Expr = _STAMPED) -> None:
        self._keys = (*printed, *keys)
        self._told = told
        self._all = told is not _STAMPED  # what can't be a repeat itself may be repeated
        # Digests in order, in arrays of falling lengths: few to look at, and cheap to join.
        self._seen: list[npt.NDArray[np.uint64]] = []

    def __call__(self, lines: pl.DataFrame) -> pl.DataFrame:
        """The lines of the next part that no part has yet."""
        found = lines.select(pl.struct(*self._keys).hash().alias("digest"), stamped=self._told)
        new = (found["digest"].is_first_distinct() | ~found["stamped"]).to_numpy().copy()
        digests, stamped = found["digest"].to_numpy(), found["stamped"].to_numpy()
        new &= ~stamped | ~self._has(digests)
        self._add(digests[new] if self._all else digests[new & stamped])
        return lines if new.all() else lines.filter(pl.Series(new))

    def _has(self, digests: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which digests were seen."""
        # Searched for in order, each is near the one before it: a third of the time.
        order = np.argsort(digests)
        ordered = digests[order]
        known = np.zeros(len(digests), np.bool_)
        for seen in self._seen:
            at = np.minimum(np.searchsorted(seen, ordered), len(seen) - 1)
            known[order] |= seen[at] == ordered
        return known

    def _add(self, digests: npt.NDArray[np.uint64]) -> None:
        if not len(digests):
            return
        joined = np.sort(digests)
        while self._seen and len(self._seen[-1]) <= len(joined):
            joined = np.sort(np.concatenate((self._seen.pop(), joined)), kind="stable")
        self._seen.append(joined)
