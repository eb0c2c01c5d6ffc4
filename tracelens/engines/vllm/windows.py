"""vLLM's periodic lines as canonical `windows` and `requests` rows.

Every frame comes with its lines' time (`ts`, `ts_basis`) and run (`run_key`, `method`).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracelens.engines.base import Reject, Tables
from tracelens.engines.units import LONGEST_DRAFT
from tracelens.engines.vllm.recover import recover

# Methods that draft a chain of exactly K tokens every round; ngram and suffix stop early, trees are not chains.
FIXED_LENGTH = (
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "deepseek_mtp",
    "ernie_mtp",
    "qwen3_next_mtp",
    "medusa",
    "mlp_speculator",
)
_DAY_US = 86_400_000_000
# A SpecDecoding line follows its Engine line at once; several processes writing to one file may put lines between.
NEAR_LINES = 64
_NEAR_US = 1_000_000  # the pair may lie on both sides of a full second


def with_replica(lines: pl.DataFrame, engine: pl.DataFrame | None) -> pl.DataFrame:
    """Add what the `Engine NNN:` line just before says: the SpecDecoding line itself names no engine.

    Columns added: `replica`, `running`, `waiting`, `kv` (state at the end of the window, null without such a line).
    """
    state = {"engine": pl.Int64, "running": pl.Int64, "waiting": pl.Int64, "kv": pl.Float64}
    if engine is None or not engine.height:
        engine = lines.clear().with_columns(pl.lit(None, kind).alias(name) for name, kind in state.items())
    by = ["_stream", "_process"]
    left, right = (
        f.with_columns(_stream=pl.col("stream").fill_null(""), _process=pl.col("process").fill_null(""))
        for f in (lines, engine)
    )
    right = right.select(*by, "line", *state, _line="line", _inner="inner", _ts="ts").sort("line")
    out = left.sort("line", maintain_order=True).join_asof(
        right, on="line", by=by, strategy="backward", check_sortedness=False
    )
    gap = (pl.col("ts") - pl.col("_ts")).dt.total_microseconds().abs() <= _NEAR_US
    together = pl.col("_inner").eq_missing(pl.col("inner")) | gap.fill_null(False)
    near = together & (pl.col("line") - pl.col("_line") <= NEAR_LINES)
    return (
        out.with_columns(pl.when(near).then(pl.col(c)).alias(c) for c in state)
        .with_columns(replica=pl.col("engine").cast(pl.String))
        .drop(*by, "_line", "_inner", "_ts", "engine")
    )


def _start(window: pl.Expr) -> pl.Expr:
    return pl.col("ts") - pl.duration(microseconds=window)


def _micros(column: str) -> pl.Expr:
    """Milliseconds as whole microseconds; null where no int64 holds them."""
    return (pl.col(column) * 1000).round().cast(pl.Int64, strict=False)


def v1_windows(lines: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """One window a SpecDecoding line. Emitted tokens are not in it."""
    frame = lines.with_columns(_k=pl.col("rates").list.len())
    # Only counts over throughput tell the window: after an idle time it is far longer than the log interval.
    window = (pl.col("drafted") / pl.col("drafted_tput") * 1e6).round()
    told = (pl.col("drafted_tput") > 0) & (window < 400 * _DAY_US)
    frame = frame.with_columns(window_us=pl.when(told).then(window).cast(pl.Int64, strict=False))
    broken = pl.col("accepted") > pl.col("drafted")
    for line, offset in frame.filter(broken).select("line", "offset").iter_rows():
        tables.rejects.append(Reject(line, "accepted <= drafted does not hold", "vllm.v1_line", offset))
    idle = pl.col("drafted") == 0
    counted = frame.filter(~broken & ~idle & (pl.col("_k") > 0))
    other = frame.filter(~broken & (idle | pl.col("_k").is_null())).with_columns(
        rounds=pl.when(idle).then(pl.lit(0, pl.Int64)),
        accepted_per_pos=pl.lit(None, pl.List(pl.Int64)),
        rounds_basis=pl.when(idle).then(pl.lit("logged")),
    )
    parts = [_recovered(part) for part in counted.partition_by("_k", maintain_order=True)]
    out = pl.concat([other, *parts], how="diagonal").sort("line", maintain_order=True)
    return out.select(
        "run_key", "replica", "process", "ts_basis", "window_us", "rounds", "rounds_basis", "drafted", "accepted",
        "accepted_per_pos", "running", "waiting",
        source_line="line",
        surface=pl.lit("vllm.v1_line"),
        ts_end="ts",
        ts_start=_start(pl.col("window_us")),
        num_speculative_tokens=pl.col("_k").cast(pl.Int32),
        counts_basis=pl.lit("logged"),
        kv_cache_usage=pl.col("kv") / 100,
    )  # fmt: skip


def _recovered(part: pl.DataFrame) -> pl.DataFrame:
    """Rounds and per-position counts of lines with one K and at least one drafted token."""
    k = part["_k"][0]
    rates = part["rates"].list.to_array(k).to_numpy()
    total = rates.sum(axis=1)
    mal = part["mal"].to_numpy()
    # 0.8.5 printed the mean without the target's own token, 0.9.0 and later with it, in the same words (vllm#17908):
    # the positions add up to the mean without it, whichever was printed.
    bonus = np.abs(total - (mal - 1)) <= np.abs(total - mal)
    accepted, drafted = part["accepted"].to_numpy(), part["drafted"].to_numpy()
    found = recover(accepted, drafted, np.maximum(np.where(bonus, mal - 1, mal), 0.0), rates)
    chain = part["method"].is_in(FIXED_LENGTH).fill_null(False).to_numpy() & (found.rounds * k == drafted)
    basis = np.where(found.exact, "exact", np.where(chain, "derived", "estimated"))
    good = found.rounds > 0
    whole = good & (found.per_pos.sum(axis=1) == accepted)
    out = part.with_columns(
        rounds=pl.Series(found.rounds),
        rounds_basis=pl.Series(basis),
        accepted_per_pos=pl.Series(found.per_pos, dtype=pl.Array(pl.Int64, k)).cast(pl.List(pl.Int64)),
        _good=pl.Series(good),
        _whole=pl.Series(whole),
    )
    return out.with_columns(
        rounds=pl.when("_good").then("rounds"),
        rounds_basis=pl.when("_good").then("rounds_basis"),
        accepted_per_pos=pl.when("_whole").then("accepted_per_pos"),
    ).drop("_good", "_whole")


def v0_windows(lines: pl.DataFrame, started: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """V0's counters are cumulative since the engine's start: one window between consecutive lines.

    A fall of a counter, a new start or another K begins a new count, whose first window runs from its own zero.
    `accepted` is emitted - rounds: what V0 calls accepted also counts matches behind a rejection.
    """
    group = ["run_key", "stream", "process"]
    counters = ("drafted", "emitted", "matched")
    before = {c: pl.col(c).shift(1).over(group) for c in (*counters, "ts", "k")}
    first = before["drafted"].is_null()
    fresh = first | (pl.col("k") != before["k"]) | pl.any_horizontal([pl.col(c) < before[c] for c in counters])
    frame = lines.sort("line", maintain_order=True).with_columns(_first=first, _fresh=fresh)
    # Rows are independent once the previous value is beside them.
    fresh = pl.col("_fresh")
    delta = {f"_{c}": pl.when(fresh).then(pl.col(c)).otherwise(pl.col(c) - before[c]) for c in counters}
    out = frame.with_columns(**delta, _before=pl.when(~fresh).then(before["ts"])).join(
        started, on="run_key", how="left", maintain_order="left"
    )
    # The count that opens a start the log tells of began there; otherwise its beginning is unknown.
    known = pl.col("_first") & (pl.col("started") < pl.col("ts"))
    even = pl.col("k").is_between(1, LONGEST_DRAFT) & (pl.col("_drafted") % pl.col("k") == 0)
    out = out.with_columns(
        ts_start=pl.coalesce("_before", pl.when(known).then("started")),
        rounds=pl.when(even).then(pl.col("_drafted") // pl.col("k")),
    )
    accepted = pl.col("_emitted") - pl.col("rounds")
    good = (accepted >= 0) & (accepted <= pl.col("_drafted"))
    out = out.with_columns(accepted=pl.when(good).then(accepted), _bad=(~good).fill_null(False))
    for line, offset in out.filter("_bad").select("line", "offset").iter_rows():
        why = "rounds <= emitted <= rounds + drafted does not hold"
        tables.rejects.append(Reject(line, why, "vllm.v0_line", offset))
    changed = (pl.col("_drafted") > 0) | fresh
    return out.filter(changed & ~pl.col("_bad")).select(
        "run_key", "process", "ts_start", "ts_basis", "rounds", "accepted",
        source_line="line",
        surface=pl.lit("vllm.v0_line"),
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("ts_start")).dt.total_microseconds(),
        num_speculative_tokens=pl.col("k").cast(pl.Int32, strict=False),
        drafted="_drafted",
        emitted="_emitted",
        v0_matched="_matched",
        rounds_basis=pl.when(pl.col("rounds").is_not_null()).then(pl.lit("derived")),
        counts_basis=pl.lit("derived"),
    )  # fmt: skip


def stage_windows(lines: pl.DataFrame) -> pl.DataFrame:
    """V0's stage times: one sampled step about every 5 s (vllm#6963); proposal time is given a token."""
    return lines.select(
        "run_key", "process", "ts_basis", "draft_ms_per_token",
        source_line="line",
        surface=pl.lit("vllm.stage_times"),
        ts_end="ts",
        steps=pl.lit(1, pl.Int64),
        time_basis=pl.lit("sample"),
        target_us=_micros("target_ms"),
        sample_us=_micros("sample_ms"),
    )  # fmt: skip


def engine_windows(lines: pl.DataFrame) -> pl.DataFrame:
    """The engine line: load and throughput of an interval that its neighbours' stamps tell (whole seconds)."""
    group = ["run_key", "stream", "process", "engine"]
    frame = lines.sort("line", maintain_order=True)
    window = (pl.col("ts") - pl.col("ts").shift(1).over(group)).dt.total_microseconds()
    frame = frame.with_columns(window_us=pl.when((window > 0) & (window <= _DAY_US)).then(window))
    tokens = [
        (pl.col(f"{c}_tput") * pl.col("window_us") / 1e6).round().cast(pl.Int64, strict=False)
        for c in ("generation", "prompt")
    ]
    return frame.select(
        "run_key", "process", "ts_basis", "window_us", "running", "waiting",
        source_line="line",
        surface=pl.lit("vllm.engine_line"),
        replica=pl.col("engine").cast(pl.String),
        ts_end="ts",
        ts_start=_start(pl.col("window_us")),
        generated_tokens=tokens[0],
        prompt_tokens=tokens[1],
        counts_basis=pl.when(pl.col("window_us").is_not_null()).then(pl.lit("estimated")),
        kv_cache_usage=pl.col("kv") / 100,
    )  # fmt: skip


def iteration_windows(lines: pl.DataFrame) -> pl.DataFrame:
    """One engine step a line (0.14 and later, by flag): its batch and the host's wait for it.

    The scheduled tokens (1 + drafts to verify, each request) are the same drafts that the SpecDecoding lines of the
    run count, so they are not written as `drafted` again. With asynchronous scheduling the elapsed time is only the
    rest of the wait (vllm#35072), nearly none: no step's time. Where nobody can tell how steps were scheduled it is
    kept, and the warning `async_steps` looks at the stamps.
    """
    plain = pl.col("tokens") == pl.col("requests")
    decode_only = pl.col("context_requests") == 0
    # Up to 0.25 the engine core itself prints the line, and its process names the engine.
    own = pl.col("process").str.extract(r"^EngineCore_(?:DP)?(\d+)\b", 1)
    return lines.select(
        "run_key", "process", "ts_basis",
        source_line="line",
        surface=pl.lit("vllm.iteration_line"),
        replica=pl.coalesce(pl.col("engine").cast(pl.String), own),
        ts_end="ts",
        steps=pl.lit(1, pl.Int64),
        time_basis=pl.lit("sum"),
        step_us=pl.when(~pl.col("is_async").fill_null(False)).then(_micros("elapsed_ms")),
        plain_steps=pl.when(plain & decode_only).then("requests"),
        running="requests",
        prompt_tokens="context_tokens",
        counts_basis=pl.lit("logged"),
    )  # fmt: skip


def request_rows(lines: pl.DataFrame) -> pl.DataFrame:
    """Sampling parameters of a request at its arrival."""
    return lines.select(
        "run_key", "process", "request_id", "temperature", "top_p", "ts_basis",
        source_line="line",
        surface=pl.lit("vllm.request_line"),
        ts_start="ts",
    )  # fmt: skip
