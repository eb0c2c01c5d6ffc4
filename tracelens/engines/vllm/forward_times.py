"""Draft and verify times from vLLM's table of forward times (VLLM_LOG_BATCHSIZE_INTERVAL, 0.7 to 0.33).

The table is of the process: tokens in a forward, how many such forwards there were since its start, their median. The
V1 model runner counts the drafter's forwards in it, too. With a draft model and B requests in decode, a step is

    one verify pass of B (K + 1) tokens, one first draft pass of B (K + 2) tokens, K - 1 further ones of B tokens,

so the three sizes and the numbers of their passes show that hardly anything else had such sizes. EAGLE and MTP draft
from B (K + 1) tokens as well: draft and verify passes share a size there, and cannot be told apart. Nor can they where
CUDA graphs pad sizes, where K changes, or where prefills mix in.
"""

from __future__ import annotations

import polars as pl

from tracelens.engines.base import Reject, Tables
from tracelens.engines.units import LONGEST_DRAFT

# Fewer passes of a size prove nothing.
_FEWEST = 16
# Of all passes of a size, so many may be another's: a median moves little by them. One step may be half done.
_STRAY = 0.05
_METHOD = "draft_model"
_MOST_COMMON = 32  # tables list the most common sizes first; those of decode steps are among them
_BY = ["run_key", "stream", "process"]
_LISTS = ("sizes", "passes", "medians")


def with_patterns(tables: pl.DataFrame) -> pl.DataFrame:
    """Replace the tables by what decode steps of some B and K explain in them: columns `b`, `k`, `verified`, and ms.

    Args:
        tables: `sizes` (tokens), `passes`, `medians` (ms), lists, one table a row.

    Returns:
        The other columns, and lists of equal length: `b`, `k`, `verified` (verify passes), `verify_ms` (one verify
        pass), `draft_ms` (all draft passes of a step). Null where no K has its pattern.
    """
    heads = tables.select(pl.col(_LISTS).list.head(_MOST_COMMON)).with_row_index("_row")
    table = heads.explode(_LISTS).filter((pl.col("passes") >= _FEWEST) & pl.col("medians").is_not_nan())
    table = table.filter(pl.col("sizes") > 0)
    # The first draft pass has B tokens more than the verify pass, and that B (K + 1).
    verify = table.select("_row", verify_size="sizes", verified="passes", verify_ms="medians")
    first = table.select("_row", first_size="sizes", drafts="passes", first_ms="medians")
    pairs = verify.join(first, on="_row", how="inner").with_columns(b=pl.col("first_size") - pl.col("verify_size"))
    pairs = pairs.filter((pl.col("b") > 0) & (pl.col("verify_size") % pl.col("b") == 0))
    pairs = pairs.with_columns(k=pl.col("verify_size") // pl.col("b") - 1)
    pairs = pairs.filter(pl.col("k").is_between(1, LONGEST_DRAFT))
    next_pass = table.select("_row", b="sizes", later="passes", next_ms="medians")
    found = pairs.join(next_pass, on=["_row", "b"], how="left")
    more, slack = pl.col("k") - 1, 1 + _STRAY * pl.col("drafts")
    same = (pl.col("verified") - pl.col("drafts")).abs() <= slack
    chain = (pl.col("later") - more * pl.col("drafts")).abs() <= more * slack
    found = found.filter(same & ((more == 0) | chain)).sort("_row", "b", "k")
    draft = pl.when(more == 0).then("first_ms").otherwise(pl.col("first_ms") + more * pl.col("next_ms"))
    lists = found.group_by("_row", maintain_order=True).agg("b", "k", "verified", "verify_ms", draft_ms=draft)
    rows = tables.drop(_LISTS).with_row_index("_row")
    return rows.join(lists, on="_row", how="left", maintain_order="left").drop("_row")


def forward_windows(lines: pl.DataFrame, surface: str, runs: pl.DataFrame | None, tables: Tables) -> pl.DataFrame:
    """Windows of the tables in which the run's own K has its pattern, one a line and concurrency.

    `steps` are the verify passes since the line before; the times are medians over the life of the process, which no
    difference of lines undoes, as a mean a step. Rounds and drafts are not written: the run's own lines count them.

    Args:
        lines: as from `with_patterns`, with time and run, in file order.
        surface: name for the rows.
        runs: the starts above the lines, or None.
        tables: a reject goes here for each process of which nothing could be used, with the reason.
    """
    frame = _with_settings(_first_ranks(lines), runs)
    fits = frame.explode("b", "k", "verified", "verify_ms", "draft_ms").filter(pl.col("k") == pl.col("own_k"))
    _explain(frame, fits, surface, tables)
    before = {c: pl.col(c).shift(1).over([*_BY, "b"]) for c in ("verified", "ts")}
    goes_on = (pl.col("verified") >= before["verified"]).fill_null(False)
    rows = fits.with_columns(
        steps=pl.when(goes_on).then(pl.col("verified") - before["verified"]).otherwise("verified"),
        # A clock that was set back tells no length.
        ts_start=pl.when(goes_on & (before["ts"] <= pl.col("ts"))).then(before["ts"]),
    )
    return rows.filter(pl.col("steps") > 0).select(
        "run_key", "process", "ts_basis", "ts_start", "steps",
        source_line="line",
        surface=pl.lit(surface),
        replica=pl.col("process").str.extract(r"_DP(\d+)"),
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("ts_start")).dt.total_microseconds(),
        num_speculative_tokens=pl.col("k").cast(pl.Int32),
        draft_us=_micros("draft_ms"),
        target_us=_micros("verify_ms"),
        draft_ms_per_token=pl.col("draft_ms") / pl.col("k"),
        time_basis=pl.lit("mean"),
        running="b",
    )  # fmt: skip


def _micros(ms: str) -> pl.Expr:
    return (pl.col(ms) * 1000 + 0.5).floor().cast(pl.Int64)


def _first_ranks(lines: pl.DataFrame) -> pl.DataFrame:
    """Tensor-parallel ranks run the same passes: the first one's lines count."""
    ranked = lines.with_columns(_tp=pl.col("process").str.extract(r"_TP(\d+)").cast(pl.Int64))
    data = pl.col("process").str.extract(r"_DP(\d+)")
    first = pl.col("_tp").min().over("run_key", "stream", data)
    return ranked.filter(pl.col("_tp").is_null() | (pl.col("_tp") == first)).drop("_tp")


def _with_settings(lines: pl.DataFrame, runs: pl.DataFrame | None) -> pl.DataFrame:
    """Add `own_k`, the run's K, where its pattern may be looked for, and `why` where it may not."""
    types = pl.Schema({"run_key": pl.Int64(), "_k": pl.Int64(), "_varies": pl.Boolean()})
    told = pl.DataFrame(schema=types)
    if runs is not None:
        keys = pl.col("config").list.eval(pl.element().struct.field("key"))
        told = runs.select("run_key", _k="num_speculative_tokens", _varies=keys.list.contains("dynamic_k")).cast(types)
    # A pipeline's stage runs a part of the target, and the drafter runs on the last one.
    staged = pl.col("process").str.contains(r"_PP\d")
    why = (
        pl.when(pl.col("_k").is_null())
        .then(pl.lit("K is not known: no start line with a draft above"))
        .when(pl.col("method").ne_missing(_METHOD))
        .then(pl.lit("only a draft model's passes differ in size from the target's"))
        .when(pl.col("_varies"))
        .then(pl.lit("K changes with the batch"))
        .when(staged)
        .then(pl.lit("a pipeline stage runs a part of the target"))
    )
    out = lines.join(told, on="run_key", how="left", maintain_order="left").with_columns(why=why)
    return out.with_columns(own_k=pl.when(pl.col("why").is_null()).then("_k")).drop("_k", "_varies")


def _explain(frame: pl.DataFrame, fits: pl.DataFrame, surface: str, tables: Tables) -> None:
    """One reject a process of which nothing could be used: its last line holds all the lines before it."""
    silent = frame.join(fits.select(_BY).unique(), on=_BY, how="anti", nulls_equal=True, maintain_order="left")
    last = silent.unique(_BY, keep="last", maintain_order=True)
    mixed = "sizes are not those of decode steps with the K of the start lines"
    for line, offset, why in last.select("line", "offset", "why").iter_rows():
        tables.rejects.append(Reject(line, f"forward times not used: {why or mixed}", surface, offset))
