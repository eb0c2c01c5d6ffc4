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

from tracelens.engines.base import PartsError
from tracelens.engines.parted import LastOf, LowestRank
from tracelens.engines.rows import Once
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
_SERVER = ["run_key", "_stream"]
_SIDE = [*_SERVER, "_dp"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def fitting(lengths: Floats, rates: Floats) -> Bools:
    """Which numbers (from 1) of drafted tokens a round are behind `accept rate` on all of N lines.

    The rate's denominator is fixed by the configuration, its numerator by the release: with the target's own token
    accept_len / (n + 1) (0.5.4-0.5.10), without it (accept_len - 1) / n (0.5.11+, sglang#23530). Both are printed
    with two decimals. Nothing else is ever read from the rate.

    Args:
        lengths: shape (N,), `accept len` as printed.
        rates: shape (N,), `accept rate` as printed.
    """
    n = np.arange(1, _MOST_NODES + 1)[:, None]
    with_own = np.abs(rates - lengths / (n + 1)) <= _HALF + _HALF / (n + 1)
    without = np.abs(rates - (lengths - 1) / n) <= _HALF + _HALF / n
    fits: Bools = np.logical_and.reduce((with_own | without) & (lengths - 1 <= n + _HALF), axis=1)
    return fits


def identified(fits: Bools) -> int | None:
    """The drafted tokens a round, or None where several numbers or none are left of `fitting`."""
    found = np.flatnonzero(fits) + 1
    return int(found[0]) if found.size == 1 else None


def _sided(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(_stream=pl.col("stream").fill_null(""), _dp=pl.col("dp").fill_null(""))


class FirstRank:
    """One record a batch: the tensor-parallel ranks of a data-parallel rank print the same; repeats of a line too."""

    def __init__(self) -> None:
        self._ranks = LowestRank(*_SIDE)
        self._once = Once()

    def of(self, lines: pl.DataFrame) -> pl.DataFrame:
        """The lines of the next part that count.

        Raises:
            PartsError: those of the parts before were of another rank.
        """
        return self._once(self._ranks.of(_sided(lines)))


class Decode:
    """Windows of decode lines, one a line, part by part."""

    def __init__(self) -> None:
        self._ranks = FirstRank()
        self._lines = LastOf(*_SIDE)
        self._prefills, self._changes = LastOf(*_SIDE), LastOf(*_SIDE)
        self._line = 0  # the last of them
        self._steps: dict[tuple[object, ...], int] = {}  # decode passes a line, by scheduler
        self._shown: set[tuple[object, ...]] = set()  # schedulers that print their prefills
        self._fits: dict[tuple[object, ...], Bools] = {}  # by server

    def windows(
        self, lines: pl.DataFrame | None, prefills: pl.DataFrame | None, adaptive: pl.DataFrame | None
    ) -> pl.DataFrame | None:
        """Windows of the next part.

        Args:
            lines: decode lines with `ts`, `ts_basis`, `run_key` and what the run told (`runs.with_run`), or None.
            prefills: prefill lines, or None.
            adaptive: changes of K (`k` from that line on), or None.

        Raises:
            PartsError: those of the parts before would be others if the log came in one go.
        """
        marks = None if prefills is None else _sided(prefills).select(*_SIDE, "line", _prefill="line")
        changes = None if adaptive is None else _sided(adaptive).select(*_SIDE, "line", _changed="line", _now="k")
        marks, changes = (
            last.rows if new is None else last.before(new.sort("line", maintain_order=True))
            for last, new in ((self._prefills, marks), (self._changes, changes))
        )
        self._show(marks)
        if lines is None:
            return None
        rows = self._lines.before(self._ranks.of(lines))
        rows = _canonical(_counted(self._drafts(self._between(rows, marks), changes)))
        rows = rows.filter(pl.col("source_line") > self._line)
        self._line = lines["line"][-1]
        return rows

    def _show(self, marks: pl.DataFrame | None) -> None:
        if marks is None:
            return
        new = set(marks.select(_SIDE).unique().rows()) - self._shown
        if new & self._steps.keys():
            raise PartsError("prefills that are told of late")
        self._shown |= new

    def _between(self, rows: pl.DataFrame, marks: pl.DataFrame | None) -> pl.DataFrame:
        """Add `_steps` (decode passes of the window), and what happened since the line before of the same scheduler.

        `_steady`: the batch can't have changed. Without a prefill pass requests only leave, so the same number at both
        ends means the same requests all along. That no prefill ran is told by prefill lines (where the log has any), or
        by the forward counter. A decode server of a P/D pair gets requests without either.
        """
        before = {c: pl.col(c).shift(1).over(_SIDE) for c in ("line", "running", "iter", "ts")}
        rows = rows.with_columns(**{f"_{c}": e for c, e in before.items()}).with_columns(
            _passed=pl.col("iter") - pl.col("_iter"), _gap=(pl.col("ts") - pl.col("_ts")).dt.total_microseconds()
        )
        rows = rows.join(self._passes(rows), on=_SIDE, how="left", maintain_order="left")
        rows = rows.with_columns(_steps=pl.coalesce("interval", "_fewest"))
        if marks is None:
            rows = rows.with_columns(_prefill=pl.lit(None, pl.Int64))
        else:
            rows = rows.join_asof(marks, on="line", by=_SIDE, strategy="backward", check_sortedness=False)
        shown = pl.DataFrame(
            list(self._shown), schema=dict.fromkeys(_SIDE, pl.String) | {"run_key": pl.Int64}, orient="row"
        )
        rows = rows.join(shown.with_columns(_shown=pl.lit(True)), on=_SIDE, how="left", maintain_order="left")
        no_prefill = pl.col("_shown") & (pl.col("_prefill").is_null() | (pl.col("_prefill") < pl.col("_line")))
        counted = pl.col("_passed") == pl.col("_steps")
        steady = (pl.col("running") == pl.col("_running")) & (no_prefill.fill_null(False) | counted.fill_null(False))
        return rows.with_columns(_steady=(steady & pl.col("transfer").is_null()).fill_null(False))

    def _passes(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Decode passes between two lines of each scheduler where no start tells them: the fewest, 40 at most."""
        fewest = pl.when(pl.col("_passed") > 0).then("_passed").min().fill_null(INTERVAL).clip(upper_bound=INTERVAL)
        found = rows.group_by(_SIDE).agg(fewest.alias("_fewest"), _open=pl.col("interval").is_null().any())
        for *key, steps, is_open in found.iter_rows():
            side = tuple(key)
            if is_open and steps < self._steps.get(side, steps):
                raise PartsError("lines that come more often than those before")
            self._steps[side] = min(steps, self._steps.get(side, steps))
        return found.with_columns(
            _fewest=pl.Series([self._steps[key] for key in found.select(_SIDE).iter_rows()], dtype=pl.Int64)
        ).drop("_open")

    def _drafts(self, rows: pl.DataFrame, changes: pl.DataFrame | None) -> pl.DataFrame:
        """Add `_depth`, drafts a round: by the line that changed it, else the run's, else by the accept rate."""
        types = {"run_key": pl.Int64, "_stream": pl.String, "_nodes": pl.Int64}
        nodes = pl.DataFrame([(*key, n) for key, n in self._nodes(rows).items()], schema=types, orient="row")
        rows = rows.join(nodes, on=_SERVER, how="left", maintain_order="left")
        chain = pl.when(pl.col("_nodes") <= LONGEST_CHAIN).then("_nodes")
        rows = rows.with_columns(_depth=pl.coalesce(pl.col("_k").cast(pl.Int64), chain))
        if changes is None:
            return rows
        # --speculative-adaptive (0.5.11+). A window in which K changed has rounds of both.
        rows = rows.join_asof(changes, on="line", by=_SIDE, strategy="backward", check_sortedness=False)
        mixed = pl.col("_changed") > pl.col("_line").fill_null(0)
        now = pl.when(~mixed).then("_now")
        return rows.with_columns(_depth=pl.when(pl.col("_changed").is_not_null()).then(now).otherwise("_depth"))

    def _nodes(self, rows: pl.DataFrame) -> dict[tuple[object, ...], int | None]:
        """What the accept rates of all lines tell, by server."""
        usable = rows.filter(
            (pl.col("accept_len") >= 1) & pl.col("accept_rate").is_not_null() & pl.col("_method").is_null()
        )
        # Both have two decimals: many lines print the same.
        pairs = usable.select(*_SERVER, "accept_len", "accept_rate").unique().partition_by(_SERVER, as_dict=True)
        for key in rows.select(_SERVER).unique().iter_rows():
            before = fits = self._fits.get(key, np.ones(_MOST_NODES, np.bool_))
            if key in pairs:
                fits = before & fitting(pairs[key]["accept_len"].to_numpy(), pairs[key]["accept_rate"].to_numpy())
            if key in self._fits and identified(before) != identified(fits):
                raise PartsError("a number of drafts that is told of late")
            self._fits[key] = fits
        return {key: identified(fits) for key, fits in self._fits.items()}


def _counted(rows: pl.DataFrame) -> pl.DataFrame:
    """Add rounds and tokens, and the window that they took."""
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
    return _timed(rows.with_columns(drafted=pl.when(pl.col("accepted") <= pl.col("drafted")).then("drafted")))


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


def _canonical(rows: pl.DataFrame) -> pl.DataFrame:
    speculating = pl.col("accept_len").is_not_null()
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
    """One prefill pass a line (of `FirstRank`), as context: prompt tokens and load. Its time is not logged."""
    return lines.select(
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
