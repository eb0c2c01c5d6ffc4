"""SGLang's batch lines as canonical `windows`.

A decode line is printed every `decode_log_interval` decode passes of a scheduler (40 unless told), not every so many
seconds. It holds the batch size at that instant, tokens a round (`accept len`, the target's own token in it) and
tokens a second since the line before. Rounds are running requests x passes; the rest follows from them. Where stamps
have fractions of a second, tokens a second x the time between two lines are the tokens themselves, and rounds follow
from those although the batch has changed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.engines.sglang.lines import DECODE, PREFILL

INTERVAL = 40
# Up to here drafted tokens behind the root are a chain. Trees verify 8 nodes and more (0.4.3's default was 5 steps,
# topk 4, 8 tokens; the documentation has 16 to 64), and a depth can't be told from a number of nodes.
LONGEST_CHAIN = 6
_MOST_NODES = 128
_DAY_US = 86_400_000_000
# A batch may have been larger between two lines than at either, but hardly so much.
_CROWD = 1.5
_HALF = 0.005 + 1e-9
_SIDE = ["run_key", "_stream", "_dp"]

Floats = npt.NDArray[np.float64]


def identified(lengths: Floats, rates: Floats) -> int | None:
    """Drafted tokens a round behind `accept rate`, or None where several or none fit every line.

    The rate's denominator is fixed by the configuration, its numerator by the release: with the target's own token
    accept_len / (n + 1) (0.5.4-0.5.10), without it (accept_len - 1) / n (0.5.11+, sglang#23530). Both are printed
    with two decimals. Nothing else is ever read from the rate.

    Args:
        lengths: shape (N,), `accept len` as printed.
        rates: shape (N,), `accept rate` as printed.
    """
    if not lengths.size:
        return None
    n = np.arange(1, _MOST_NODES + 1)[:, None]
    with_own = np.abs(rates - lengths / (n + 1)) <= _HALF + _HALF / (n + 1)
    without = np.abs(rates - (lengths - 1) / n) <= _HALF + _HALF / n
    fits = (with_own | without) & (lengths - 1 <= n + _HALF)
    found = np.flatnonzero(fits.all(axis=1)) + 1
    return int(found[0]) if found.size == 1 else None


def first_rank(frame: pl.DataFrame) -> pl.DataFrame:
    """One record a batch: the tensor-parallel ranks of a data-parallel rank print the same; repeats of a line too."""
    frame = frame.with_columns(_stream=pl.col("stream").fill_null(""), _dp=pl.col("dp").fill_null(""))
    frame = frame.filter(pl.col("rank") == pl.col("rank").min().over(_SIDE))
    stamped = pl.col("inner").is_not_null()
    return frame.filter(~stamped | pl.struct("_stream", "hash").is_first_distinct())


def decode(lines: pl.DataFrame, prefills: pl.DataFrame | None, adaptive: pl.DataFrame | None) -> pl.DataFrame:
    """One window a decode line.

    Args:
        lines: decode lines with `ts`, `ts_basis`, `run_key` and what the run told (`runs.with_run`).
        prefills: prefill lines, or None.
        adaptive: changes of K (`k` from that line on), or None.
    """
    rows = _between(first_rank(lines).sort("line", maintain_order=True), prefills)
    rows = _drafts(rows, adaptive)
    speculating = pl.col("accept_len").is_not_null()
    measured = pl.col("accept_len") >= 1  # 0.00 is printed when nothing was verified since the last line
    rows = rows.with_columns(_clocked=pl.when(~pl.col("_steady")).then(_by_clock()))
    passes = pl.coalesce("_clocked", pl.col("running") * pl.col("_steps"))
    rows = rows.with_columns(
        rounds=pl.when(measured).then(passes).when(~speculating).then(0),
        plain_steps=pl.when(~speculating).then(passes),
        emitted=pl.when(measured)
        .then((passes * pl.col("accept_len")).round().cast(pl.Int64, strict=False))
        .when(~speculating)
        .then(passes),
    )
    rows = rows.with_columns(
        accepted=pl.when(measured).then(pl.col("emitted") - pl.col("rounds")).when(~speculating).then(0)
    )
    drafted = pl.when(measured).then(pl.col("rounds") * pl.col("_depth")).when(~speculating).then(0)
    rows = rows.with_columns(drafted=drafted)
    # A depth that the accepted tokens exceed is not this line's.
    rows = rows.with_columns(drafted=pl.when(pl.col("accepted") <= pl.col("drafted")).then("drafted"))
    return _canonical(_timed(rows), speculating)


def _between(rows: pl.DataFrame, prefills: pl.DataFrame | None) -> pl.DataFrame:
    """Add `_steps` (decode passes of the window), and what happened since the line before of the same scheduler.

    `_steady`: the batch can't have changed. Without a prefill pass requests only leave, so the same number at both
    ends means the same requests all along. That no prefill ran is told by prefill lines (where the log has any), or
    by the forward counter. A decode server of a P/D pair gets requests without either.
    """
    before = {c: pl.col(c).shift(1).over(_SIDE) for c in ("line", "running", "iter", "ts")}
    rows = rows.with_columns(**{f"_{c}": e for c, e in before.items()}).with_columns(
        _passed=pl.col("iter") - pl.col("_iter"), _gap=(pl.col("ts") - pl.col("_ts")).dt.total_microseconds()
    )
    fewest = pl.when(pl.col("_passed") > 0).then("_passed").min().over(_SIDE)
    rows = rows.with_columns(_steps=pl.coalesce("interval", pl.min_horizontal(pl.lit(INTERVAL, pl.Int64), fewest)))
    if prefills is None:
        rows = rows.with_columns(_prefill=pl.lit(None, pl.Int64), _shown=pl.lit(False))
    else:
        marks = prefills.with_columns(_stream=pl.col("stream").fill_null(""), _dp=pl.col("dp").fill_null(""))
        marks = marks.select(*_SIDE, "line", _prefill="line").sort("line")
        rows = rows.join_asof(marks, on="line", by=_SIDE, strategy="backward", check_sortedness=False)
        shown = marks.select(_SIDE).unique().with_columns(_shown=pl.lit(True))
        rows = rows.join(shown, on=_SIDE, how="left", maintain_order="left")
    no_prefill = pl.col("_shown") & (pl.col("_prefill").is_null() | (pl.col("_prefill") < pl.col("_line")))
    counted = pl.col("_passed") == pl.col("_steps")
    steady = (pl.col("running") == pl.col("_running")) & (no_prefill.fill_null(False) | counted.fill_null(False))
    return rows.with_columns(_steady=(steady & pl.col("transfer").is_null()).fill_null(False))


def _drafts(rows: pl.DataFrame, adaptive: pl.DataFrame | None) -> pl.DataFrame:
    """Add `_depth`, drafted tokens a round: by the line that changed it, else the run's, else by the accept rate."""
    sides = ["run_key", "_stream"]
    usable = rows.filter(
        (pl.col("accept_len") >= 1) & pl.col("accept_rate").is_not_null() & pl.col("_method").is_null()
    )
    found = [
        (*key, identified(part["accept_len"].to_numpy(), part["accept_rate"].to_numpy()))
        for key, part in usable.partition_by(sides, as_dict=True).items()
    ]
    types = {"run_key": pl.Int64, "_stream": pl.String, "_nodes": pl.Int64}
    rows = rows.join(pl.DataFrame(found, schema=types, orient="row"), on=sides, how="left", maintain_order="left")
    chain = pl.when(pl.col("_nodes") <= LONGEST_CHAIN).then("_nodes")
    rows = rows.with_columns(_depth=pl.coalesce(pl.col("_k").cast(pl.Int64), chain))
    if adaptive is None:
        return rows
    # --speculative-adaptive (0.5.11+). A window in which K changed has rounds of both.
    changes = adaptive.with_columns(_stream=pl.col("stream").fill_null(""), _dp=pl.col("dp").fill_null(""))
    changes = changes.select(*_SIDE, "line", _changed="line", _now="k").sort("line", maintain_order=True)
    rows = rows.join_asof(changes, on="line", by=_SIDE, strategy="backward", check_sortedness=False)
    mixed = pl.col("_changed") > pl.col("_line").fill_null(0)
    now = pl.when(~mixed).then("_now")
    return rows.with_columns(_depth=pl.when(pl.col("_changed").is_not_null()).then(now).otherwise("_depth"))


def _by_clock() -> pl.Expr:
    """Request-steps of a window by its tokens: tokens a second x seconds; null where the stamps are too coarse.

    More than the passes could have given says that lines between are missing: the tokens are those since the last of
    them, and the time is not.
    """
    fine = (pl.col("ts").dt.microsecond() > 0) | (pl.col("_ts").dt.microsecond() > 0)
    known = fine & (pl.col("_gap") > 0) & (pl.col("_gap") <= _DAY_US) & (pl.col("throughput") > 0)
    each = pl.when(pl.col("accept_len") >= 1).then("accept_len").otherwise(1.0)
    steps = (pl.col("throughput") * pl.col("_gap") / 1e6 / each).round()
    most = _CROWD * pl.col("_steps") * pl.max_horizontal("running", "_running")
    return pl.when(known & (steps >= pl.col("_steps")) & (steps <= most)).then(steps.cast(pl.Int64, strict=False))


def _timed(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `window_us` and `_exact`: whether rounds are known and not estimated.

    Tokens over throughput is the window to a fraction of a second; the stamps (whole seconds, unless SGLANG_LOG_MS)
    must agree, or lines between are missing. Where the batch changed, only the stamps tell the window.
    """
    tokens = pl.when(pl.col("throughput") > 0).then(pl.col("emitted") / pl.col("throughput") * 1e6)
    slack = pl.when(pl.col("inner").str.contains(".", literal=True)).then(20_000).otherwise(1_100_000) + 0.02 * tokens
    exact = pl.col("_steady") & (tokens > 0) & ((pl.col("_gap") - tokens).abs() <= slack)
    rows = rows.with_columns(_exact=exact.fill_null(False), _tokens_us=tokens)
    gap = pl.when((pl.col("_gap") > 0) & (pl.col("_gap") <= _DAY_US)).then("_gap")
    return rows.with_columns(
        window_us=pl.when("_exact").then(pl.col("_tokens_us").round().cast(pl.Int64, strict=False)).otherwise(gap)
    )


def _canonical(rows: pl.DataFrame, speculating: pl.Expr) -> pl.DataFrame:
    basis = (
        pl.when(pl.col("_exact") | pl.col("_clocked").is_not_null())
        .then(pl.lit("derived"))
        .otherwise(pl.lit("estimated"))
    )
    known = pl.when(pl.col("rounds").is_not_null()).then(basis)
    return rows.select(
        "run_key", "stream", "window_us", "ts_basis", "rounds", "plain_steps", "drafted", "accepted", "emitted",
        "running",
        source_line="line",
        surface=pl.lit(DECODE),
        replica="dp",
        ts_end="ts",
        ts_start=pl.col("ts") - pl.duration(microseconds="window_us"),
        steps="_steps",
        rounds_basis=known,
        counts_basis=known,
        num_speculative_tokens=pl.when(speculating).then(pl.col("_depth")).cast(pl.Int32, strict=False),
        num_draft_nodes=pl.when(speculating).then(pl.col("nodes")).cast(pl.Int32, strict=False),
        # The window is the passes' own time only when nothing else ran in it.
        step_us=pl.when("_exact").then("window_us"),
        time_basis=pl.when("_exact").then(pl.lit("sum")),
        generated_tokens="emitted",
        waiting="queue",
        kv_cache_usage=_usage(),
    )  # fmt: skip


def _usage() -> pl.Expr:
    return pl.when(pl.col("usage") <= 1).then("usage")


def prefill(lines: pl.DataFrame) -> pl.DataFrame:
    """One prefill pass a line, as context: prompt tokens and load. Its time is not logged."""
    return first_rank(lines).sort("line", maintain_order=True).select(
        "run_key", "stream", "running", "ts_basis",
        source_line="line",
        surface=pl.lit(PREFILL),
        replica="dp",
        ts_end="ts",
        steps=pl.lit(1, pl.Int64),
        prompt_tokens="new_token",
        waiting="queue",
        kv_cache_usage=_usage(),
    )  # fmt: skip
