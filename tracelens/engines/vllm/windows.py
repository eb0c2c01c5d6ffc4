"""vLLM's periodic lines as canonical `windows` and `requests` rows."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracelens.engines.base import Reject, Tables
from tracelens.engines.vllm.recover import recover

# Methods that draft a chain of exactly K tokens every round; ngram and suffix stop early, trees are not chains.
FIXED_LENGTH = ("draft_model", "eagle", "eagle3", "mtp", "deepseek_mtp", "ernie_mtp", "qwen3_next_mtp", "medusa", "mlp_speculator")
_DAY_US = 86_400_000_000


def once(frame: pl.DataFrame) -> pl.DataFrame:
    """Drop repeats of one printed line: same process, same own stamp, same text. Lines without a stamp are kept."""
    stamped = pl.col("inner").is_not_null()
    return frame.filter(~stamped | pl.struct("stream", "process", "inner", "hash").is_first_distinct())


def with_replica(lines: pl.DataFrame, engine: pl.DataFrame | None) -> pl.DataFrame:
    """Add what the `Engine NNN:` line just before says: the SpecDecoding line itself names no engine.

    Columns added: `replica`, `running`, `waiting`, `kv` (state at the end of the window, null without such a line).
    """
    state = {"engine": pl.Int64, "running": pl.Int64, "waiting": pl.Int64, "kv": pl.Float64}
    if engine is None or not engine.height:
        return lines.with_columns(*(pl.lit(None, t).alias(c) for c, t in state.items())).rename({"engine": "replica"}).with_columns(pl.col("replica").cast(pl.String))
    by = ["_stream", "_process"]
    keyed = [f.with_columns(_stream=pl.col("stream").fill_null(""), _process=pl.col("process").fill_null("")) for f in (lines, engine)]
    right = keyed[1].select(*by, "line", _engine_line="line", _engine_inner="inner", *state).sort("line")
    out = keyed[0].sort("line").join_asof(right, on="line", by=by, strategy="backward", check_sortedness=False)
    # Printed together: with other processes in the same file a few lines may come between, not another second.
    near = pl.col("_engine_inner").eq_missing(pl.col("inner")) & (pl.col("line") - pl.col("_engine_line") <= 64)
    return out.with_columns(*(pl.when(near).then(pl.col(c)).alias(c) for c in state)).with_columns(
        pl.col("engine").cast(pl.String).alias("replica")
    ).drop(*by, "_engine_line", "_engine_inner", "engine")


def _stamped(frame: pl.DataFrame, ts: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(ts_end=ts["ts"], ts_basis=ts["ts_basis"])


def _start(window: pl.Expr) -> pl.Expr:
    return pl.col("ts_end") - pl.duration(microseconds=window)


def v1_windows(lines: pl.DataFrame, ts: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """One window a SpecDecoding line. Emitted tokens are not in it."""
    frame = _stamped(lines, ts).with_columns(
        _k=pl.col("rates").list.len(), _whole=pl.col("rates").list.eval(pl.element().is_not_null()).list.all()
    )
    frame = frame.with_columns(_k=pl.when(pl.col("_whole")).then("_k"))
    # Only counts over throughput tell the window: after an idle time it is far longer than the log interval.
    window = (pl.col("drafted") / pl.col("drafted_tput") * 1e6).round()
    frame = frame.with_columns(window_us=pl.when((pl.col("drafted_tput") > 0) & (window < 400 * _DAY_US)).then(window.cast(pl.Int64, strict=False)))
    broken = pl.col("accepted") > pl.col("drafted")
    for row in frame.filter(broken).iter_rows(named=True):
        tables.rejects.append(Reject(row["line"], "accepted <= drafted does not hold", "vllm.v1_line", row["offset"]))
    parts = [_recovered(part) for part in frame.filter(~broken).partition_by("_k", maintain_order=True)]
    empty = frame.clear().with_columns(rounds=pl.lit(None, pl.Int64), accepted_per_pos=pl.lit(None, pl.List(pl.Int64)), rounds_basis=pl.lit(None, pl.String))
    out = pl.concat([empty, *parts], how="diagonal").sort("line", maintain_order=True)
    return out.select(
        "run_key", "replica", "process", "ts_end", "ts_basis", "window_us", "rounds", "rounds_basis", "drafted", "accepted",
        "accepted_per_pos", "running", "waiting",
        source_line="line",
        surface=pl.lit("vllm.v1_line"),
        ts_start=_start(pl.col("window_us")),
        num_speculative_tokens=pl.col("_k").cast(pl.Int32),
        counts_basis=pl.lit("logged"),
        kv_cache_usage=pl.col("kv") / 100,
    )  # fmt: skip


def _recovered(part: pl.DataFrame) -> pl.DataFrame:
    """Rounds and per-position counts of lines with one K (null K: a form without positions)."""
    k = part["_k"][0]
    drafted = part["drafted"] > 0
    if k is None or not k or not drafted.any():
        zero = pl.when(pl.col("drafted") == 0).then(pl.lit(0, pl.Int64))
        return part.with_columns(
            rounds=zero,
            accepted_per_pos=pl.lit(None, pl.List(pl.Int64)),
            rounds_basis=pl.when(pl.col("drafted") == 0).then(pl.lit("logged")),
        )
    rates = np.array(part["rates"].to_list(), dtype=np.float64)
    mal = part["mal"].fill_null(1.0).to_numpy()
    total = rates.sum(axis=1)
    # 0.8.5 printed the mean without the target's own token, 0.9.0 and later with it, in the same words (vllm#17908):
    # the positions add up to the mean without it, whichever was printed.
    bonus = np.abs(total - (mal - 1)) <= np.abs(total - mal)
    accepted, counts = part["accepted"].to_numpy(), part["drafted"].to_numpy()
    found = recover(accepted, counts, np.maximum(np.where(bonus, mal - 1, mal), 0.0), rates)
    chain = part["method"].is_in(FIXED_LENGTH).fill_null(False).to_numpy() & (found.rounds * k == counts)
    basis = np.where(found.exact, "exact", np.where(chain, "derived", "estimated"))
    good = found.rounds > 0
    per_pos = pl.Series(found.per_pos, dtype=pl.Array(pl.Int64, k)).cast(pl.List(pl.Int64))
    per_pos_ok = good & (found.per_pos.sum(axis=1) == accepted)
    out = part.with_columns(
        rounds=pl.Series(found.rounds), accepted_per_pos=per_pos, rounds_basis=pl.Series(basis), _good=pl.Series(good), _pos=pl.Series(per_pos_ok)
    )
    idle = pl.col("drafted") == 0
    return out.with_columns(
        rounds=pl.when(idle).then(0).when(pl.col("_good")).then("rounds"),
        rounds_basis=pl.when(idle).then(pl.lit("logged")).when(pl.col("_good")).then("rounds_basis"),
        accepted_per_pos=pl.when(~idle & pl.col("_pos")).then("accepted_per_pos"),
    ).drop("_good", "_pos")


def v0_windows(lines: pl.DataFrame, ts: pl.DataFrame, started: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """V0's counters are cumulative since the engine's start: one window between consecutive lines.

    A fall of a counter, a new start or another K begins a new count, whose first window runs from its own zero.
    `accepted` is emitted - rounds: what V0 calls accepted also counts matches behind a rejection.
    """
    group = ["run_key", "stream", "process", "k"]
    frame = _stamped(lines, ts).sort("line")
    counters = ("drafted", "emitted", "matched")
    before = {c: pl.col(c).shift(1).over(group) for c in (*counters, "ts_end")}
    fell = pl.any_horizontal([pl.col(c) < before[c] for c in counters])
    fresh = pl.col("drafted").shift(1).over(group).is_null() | fell
    # Rows are independent once the previous value is beside them.
    delta = {c: pl.when(fresh).then(pl.col(c)).otherwise(pl.col(c) - before[c]) for c in counters}
    out = frame.with_columns(
        **{f"_{c}": expr for c, expr in delta.items()}, _before=pl.when(~fresh).then(before["ts_end"]), _fresh=fresh
    ).join(started, on="run_key", how="left", maintain_order="left")
    # The count that opens a start the log tells of began there; otherwise its beginning is unknown.
    first = pl.col("_fresh") & pl.int_range(pl.len()).over(group).eq(0)
    out = out.with_columns(ts_start=pl.coalesce("_before", pl.when(first & (pl.col("started") < pl.col("ts_end"))).then("started")))
    even = (pl.col("k") > 0) & (pl.col("_drafted") % pl.col("k") == 0)
    out = out.with_columns(rounds=pl.when(even).then(pl.col("_drafted") // pl.col("k")))
    accepted = pl.col("_emitted") - pl.col("rounds")
    good = (accepted >= 0) & (accepted <= pl.col("_drafted"))
    out = out.with_columns(accepted=pl.when(good).then(accepted), _bad=~good)
    for row in out.filter(pl.col("_bad")).iter_rows(named=True):
        tables.rejects.append(Reject(row["line"], "rounds <= emitted <= rounds + drafted does not hold", "vllm.v0_line", row["offset"]))
    changed = (pl.col("_drafted") > 0) | pl.col("_fresh")
    return out.filter(changed & ~pl.col("_bad").fill_null(False)).select(
        "run_key", "process", "ts_end", "ts_start", "ts_basis", "rounds", "accepted",
        source_line="line",
        surface=pl.lit("vllm.v0_line"),
        window_us=(pl.col("ts_end") - pl.col("ts_start")).dt.total_microseconds(),
        num_speculative_tokens=pl.col("k").cast(pl.Int32),
        drafted=pl.col("_drafted"),
        emitted=pl.col("_emitted"),
        v0_matched=pl.col("_matched"),
        rounds_basis=pl.when(pl.col("rounds").is_not_null()).then(pl.lit("derived")),
        counts_basis=pl.lit("derived"),
    )  # fmt: skip


def stage_windows(lines: pl.DataFrame, ts: pl.DataFrame) -> pl.DataFrame:
    """V0's stage times: one sampled step about every 5 s (vllm#6963); proposal time is given a token."""
    return _stamped(lines, ts).select(
        "run_key", "process", "ts_end", "ts_basis", "draft_ms_per_token",
        source_line="line",
        surface=pl.lit("vllm.stage_times"),
        steps=pl.lit(1, pl.Int64),
        time_basis=pl.lit("sample"),
        target_us=(pl.col("target_ms") * 1000).round().cast(pl.Int64),
        sample_us=(pl.col("sample_ms") * 1000).round().cast(pl.Int64),
    )  # fmt: skip


def engine_windows(lines: pl.DataFrame, ts: pl.DataFrame) -> pl.DataFrame:
    """The engine line: load and throughput of an interval that its neighbours' stamps tell (whole seconds)."""
    group = ["run_key", "stream", "process", "engine"]
    frame = _stamped(lines, ts).sort("line")
    window = (pl.col("ts_end") - pl.col("ts_end").shift(1).over(group)).dt.total_microseconds()
    frame = frame.with_columns(window_us=pl.when((window > 0) & (window <= _DAY_US)).then(window))
    tokens = [(pl.col(f"{c}_tput") * pl.col("window_us") / 1e6).round().cast(pl.Int64, strict=False) for c in ("generation", "prompt")]
    return frame.select(
        "run_key", "process", "ts_end", "ts_basis", "window_us", "running", "waiting",
        source_line="line",
        surface=pl.lit("vllm.engine_line"),
        replica=pl.col("engine").cast(pl.String),
        ts_start=_start(pl.col("window_us")),
        generated_tokens=tokens[0],
        prompt_tokens=tokens[1],
        counts_basis=pl.when(pl.col("window_us").is_not_null()).then(pl.lit("estimated")),
        kv_cache_usage=pl.col("kv") / 100,
    )  # fmt: skip


def iteration_windows(lines: pl.DataFrame, ts: pl.DataFrame) -> pl.DataFrame:
    """One engine step a line (0.14 and later, by flag): its batch and the host's wait for it.

    The scheduled tokens (1 + drafts to verify, each request) are the same drafts that the SpecDecoding lines of the
    run count, so they are not written as `drafted` again. With asynchronous scheduling (default since 0.14 for most
    draft methods) the elapsed time is only the rest of the wait (vllm#35072): it is kept, with its surface's name.
    """
    plain = pl.col("tokens") == pl.col("requests")
    decode_only = pl.col("context_requests") == 0
    step = (pl.col("elapsed_ms") * 1000).round().cast(pl.Int64)
    return _stamped(lines, ts).select(
        "run_key", "process", "ts_end", "ts_basis",
        source_line="line",
        surface=pl.lit("vllm.iteration_line"),
        replica=pl.col("engine").cast(pl.String),
        steps=pl.lit(1, pl.Int64),
        time_basis=pl.lit("sum"),
        step_us=step,
        plain_steps=pl.when(plain & decode_only).then("requests"),
        running=pl.col("requests"),
        prompt_tokens=pl.col("context_tokens"),
        counts_basis=pl.lit("logged"),
    )  # fmt: skip


def request_rows(lines: pl.DataFrame, ts: pl.DataFrame) -> pl.DataFrame:
    """Sampling parameters of a request at its arrival."""
    return lines.with_columns(ts_start=ts["ts"], ts_basis=ts["ts_basis"]).select(
        "run_key", "process", "request_id", "temperature", "top_p", "ts_start", "ts_basis",
        source_line="line",
        surface=pl.lit("vllm.request_line"),
    )  # fmt: skip
