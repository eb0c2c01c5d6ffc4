"""Tables that several readers of one engine made from one source, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.engines.base import Tables

if TYPE_CHECKING:
    import polars as pl


def stacked(parts: Sequence[Tables]) -> Tables:
    """One set of tables: rows of all parts, each part's runs numbered behind those of the parts before it."""
    if len(parts) == 1:
        return parts[0]
    out = Tables()
    runs = 0
    frames: dict[str, list[pl.DataFrame]] = {}
    for part in parts:
        for name in ("rounds", "windows", "requests", "runs"):
            frame: pl.DataFrame | None = getattr(part, name)
            if frame is not None:
                frames.setdefault(name, []).append(_shifted(frame, runs))
        runs += 0 if part.runs is None else part.runs.height
        out.rejects += part.rejects
    for name, found in frames.items():
        setattr(out, name, _concat(found))
    return out


def _shifted(frame: pl.DataFrame, by: int) -> pl.DataFrame:
    """Rows of the k-th run of a part are those of run k + `by`; 0 is what ran before any start, and stays."""
    import polars as pl

    if not by or "run_key" not in frame.columns:
        return frame
    key = pl.col("run_key")
    return frame.with_columns(run_key=pl.when(key > 0).then(key + by).otherwise(key))


def _concat(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    return frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")
