"""Time of the device by what it ran: draft and verify of a window, where the timer tells them apart.

`forward_execution_seconds{category}` (0.5.11+) times CUDA graphs under their own names: `eagle_draft` (the draft
steps), `eagle_draft_extend` and `frozen_kv_draft`, `target_verify`. What runs outside graphs is counted under its
forward mode: draft steps as `decode`, the drafter's extension as `extend`, where prefill is, too; in 0.5.11 and 0.5.12
a verify pass as well. And only the drafters of the overlap scheduler are timed at all. So draft time is taken where
nothing of it can have gone elsewhere. `gpu_execution_seconds{category="forward_decode"}` (0.5.8-0.5.10) is the whole
round, draft and verify together.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracelens.engines.base import Reject, Tables

_CATEGORIES = {
    "eagle_draft": "t.draft",
    "eagle_draft_extend": "t.draft_extend",
    "frozen_kv_draft": "t.draft_frozen",
    "target_verify": "t.verify",
    "decode": "t.decode",
}
_WHOLE = {"forward_decode": "t.step", "forward_target_verify": "t.step_verify"}
COLUMNS: Mapping[str, str] = {
    f"sglang:{family}.{category}{end}": column
    for family, categories in (("forward_execution_seconds", _CATEGORIES), ("gpu_execution_seconds", _WHOLE))
    for category, column in categories.items()
    for end in ("", "_total")
}
_DRAFTS = ("d.t.draft", "d.t.draft_extend", "d.t.draft_frozen")
# So much of the draft time may have run outside graphs (a first pass of a new size) before it is given up.
_STRAY = 0.01

_NO_DRAFT = "verify time without draft time: only drafters of the overlap scheduler are timed, and only in CUDA graphs"
_EAGER = "draft time not used: a part of the drafter ran outside CUDA graphs, where its time is mixed with others'"


def with_times(rows: pl.DataFrame, tables: Tables, surface: str) -> pl.DataFrame:
    """Add `draft_us`, `target_us`, `step_us` (sums over the window) and `time_basis`.

    Args:
        rows: scrapes with growth (`counters.differences`), `none` and `passes`.
        tables: a reject goes here for each process whose draft time could not be used, with the reason.
        surface: what it is counted under.
    """
    sound = {c: pl.when(pl.col(c) >= 0).then(c) for c in rows.columns if c.startswith("d.t.")}
    rows = rows.with_columns(**sound)
    graphed = pl.any_horizontal(pl.col(c).is_not_null() for c in _DRAFTS)
    draft = pl.when(graphed).then(pl.sum_horizontal(_DRAFTS))
    decode, verify = pl.col("d.t.decode"), pl.col("d.t.verify")
    eager = (decode.fill_null(0) > _STRAY * draft) & ~pl.col("none")
    running = (verify > 0).fill_null(False) & ~pl.col("none")
    rows = rows.with_columns(_untimed=running & ~(draft > 0).fill_null(False), _eager=running & eager.fill_null(False))
    for column, why in (("_untimed", _NO_DRAFT), ("_eager", _EAGER)):
        hit = rows.filter(column).group_by("key", maintain_order=True).agg(pl.col("line").first(), pl.len())
        every = rows.filter(running).group_by("key").agg(_all=pl.len())
        # Of single windows (a first pass, a scrape in the middle of one) nothing is said.
        often = hit.join(every, on="key", how="left").filter(pl.col("len") * 2 > pl.col("_all"))
        tables.rejects += [Reject(line, why, surface) for line in often["line"]]
    usable = ~pl.col("_untimed") & ~pl.col("_eager") & ~pl.col("none")
    step = pl.when(pl.col("none")).then("d.t.step").otherwise(
        pl.when(pl.any_horizontal(pl.col("d.t.step", "d.t.step_verify").is_not_null())).then(
            pl.sum_horizontal("d.t.step", "d.t.step_verify")
        )
    )  # fmt: skip
    rows = rows.with_columns(
        draft_us=_us(pl.when(usable).then(draft)),
        target_us=_us(pl.when("none").then(pl.coalesce(decode, "d.t.step")).otherwise(verify)),
        step_us=_us(step),
    )
    timed = pl.any_horizontal(pl.col("draft_us", "target_us", "step_us").is_not_null())
    return rows.with_columns(time_basis=pl.when(timed).then(pl.lit("sum")))


def stood() -> dict[str, pl.Expr]:
    """What the timers stand at, us, as `with_times` takes their growth."""
    told = {
        "draft_us": pl.sum_horizontal("t.draft", "t.draft_extend", "t.draft_frozen"),
        "target_us": pl.when("none").then(pl.coalesce("t.decode", "t.step")).otherwise("t.verify"),
        "step_us": pl.when("none").then("t.step").otherwise(pl.sum_horizontal("t.step", "t.step_verify")),
    }
    return {name: seconds * 1e6 for name, seconds in told.items()}


def _us(seconds: pl.Expr) -> pl.Expr:
    """Whole microseconds, half up; null where nothing ran."""
    return pl.when(seconds > 0).then((seconds * 1e6 + 0.5).floor()).cast(pl.Int64, strict=False)
