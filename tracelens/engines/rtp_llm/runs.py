"""What a source tells of the serving process: generation of the engine, method, K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracelens.engines.base import Tables
from tracelens.engines.rtp_llm.debug import MTP, SP

_ERAS = {SP: "sp_engine", MTP: "mtp_executor"}
_SCHEMA = {
    "run_key": pl.Int64,
    "engine": pl.String,
    "engine_era": pl.String,
    "method": pl.String,
    "num_speculative_tokens": pl.Int32,
    "role": pl.String,
}


@dataclass(slots=True)
class _Run:
    line: int
    method: str | None
    k: int
    era: str | None = None


def with_runs(tables: Tables, config: Sequence[pl.DataFrame]) -> Tables:
    """Add the runs of the source, name them in the rows, and K in the rounds that do not know theirs.

    The first configuration dump (main_0.log) tells of the run that all logs of the folder share: engine.log and the
    access log tell of no start, and their rounds and requests must be of one run to be counted once. A dump that
    differs from the one before (every rank prints its own) is a restart, and starts another run.
    """
    runs = _dumps(pl.concat(config).sort("line")) if config else []
    key = _run_key([run.line for run in runs[1:]])
    if tables.rounds is not None:
        tables.rounds = _with_k(tables.rounds, guess=not runs)
    for name in ("rounds", "windows", "requests") if runs else ():
        frame = getattr(tables, name)
        if frame is not None:
            setattr(tables, name, frame.with_columns(key))
    if runs:
        _name_eras(runs, tables)
        told = [
            ("rtp-llm", run.era, run.method, run.k, None if run.method in (None, "none") else "speculative")
            for run in runs
        ]
        tables.runs = pl.DataFrame([(i, *run) for i, run in enumerate(told)], schema=_SCHEMA, orient="row")
    return tables


def _dumps(config: pl.DataFrame) -> list[_Run]:
    """One run a `gen_num_per_cycle`, with the `type` that stands before it in the dump."""
    runs: list[_Run] = []
    method: str | None = None
    for line, k, word in config.select("line", "k", "method").rows():
        if word is not None:
            method = word
        if k is not None:
            if not runs or (runs[-1].method, runs[-1].k) != (method, k):
                runs.append(_Run(line, method, k))
            method = None
    return runs


def _run_key(starts: Sequence[int]) -> pl.Expr:
    """Number of restarts above a line."""
    begun = [(pl.col("source_line") >= start).cast(pl.Int64) for start in starts]
    return pl.sum_horizontal([pl.lit(0, pl.Int64), *begun]).alias("run_key")


def _name_eras(runs: list[_Run], tables: Tables) -> None:
    """The generation of the engine, by the lines it wrote."""
    for frame in (tables.rounds, tables.windows):
        if frame is not None:
            for key, surface in frame.select("run_key", "surface").unique().sort("surface").rows():
                if surface in _ERAS:
                    runs[key].era = _ERAS[surface]


def _with_k(rounds: pl.DataFrame, guess: bool) -> pl.DataFrame:
    """K of the old engine's rounds without a dump: the longest draft, where most drafts have just that length.

    `propose_token_num` is K, but for prefill (0), the first round after a separate prefill (1), and the deterministic
    drafter, whose length varies.
    """
    if "num_speculative_tokens" not in rounds.columns:
        rounds = rounds.with_columns(pl.lit(None, pl.Int32).alias("num_speculative_tokens"))
    if not guess:
        return rounds
    own = pl.col("surface") == SP
    drafted = pl.when(own & (pl.col("drafted") > 0)).then("drafted")
    longest = drafted.max()
    most = (drafted == longest).sum() * 2 > drafted.count()
    unknown = own & most & pl.col("num_speculative_tokens").is_null()
    return rounds.with_columns(
        pl.when(unknown).then(longest).otherwise("num_speculative_tokens").alias("num_speculative_tokens")
    )
