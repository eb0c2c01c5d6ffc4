"""Requests of the log and of saved responses as canonical rows."""

from __future__ import annotations

import polars as pl


def request_rows(found: pl.DataFrame, surface: str, source_id: str, *, counted: bool = False) -> pl.DataFrame:
    """Canonical requests. The stamp is the end; what the parts of the time tell is counted back from it.

    Args:
        found: with `ts` and `ts_basis`.
        surface: of all of them.
        source_id: what those without an id are named after.
        counted: see `basis`.
    """
    unnamed = pl.format("{}#{}", pl.lit(source_id), "line")
    rows = found.with_columns(
        ts_end="ts",
        ts_basis=basis(found["ts_basis"], counted),
        e2e_us=pl.col("ttft_us") + pl.col("decode_us"),
        source_line="line",
        surface=pl.lit(surface),
        request_id=pl.coalesce("request_id", *[c for c in ("id",) if c in found.columns], unnamed),
        process=process() if "child" in found.columns else pl.lit(None, pl.String),
    )
    several = pl.col("decode_us").is_not_null() & (pl.col("output_tokens") > 1)
    rows = rows.with_columns(
        ts_start=pl.col("ts_end") - pl.duration(microseconds="e2e_us"),
        ts_first_token=pl.col("ts_end") - pl.duration(microseconds="decode_us"),
        tpot_us=pl.when(several).then(pl.col("decode_us") / (pl.col("output_tokens") - 1)),
        tpot_basis=pl.when(several).then(pl.lit("derived")),
    )
    drop = ("line", "offset", "stamp", "inner", "stream", "child", "clock", "slot", "task", "closes", "id", "prompt_n")
    return rows.drop(*drop, "ts", "idle", strict=False)


def basis(stamps: pl.Series, counted: bool) -> pl.Series:
    """`relative` where the only time is that since the start of the process: of no day, but it orders and measures."""
    return stamps.replace("none", "relative") if counted else stamps


def process() -> pl.Expr:
    """The child of a router that wrote a line."""
    return pl.when(pl.col("child").fill_null("") != "").then(pl.concat_str(pl.lit("child "), "child"))
