"""What a source tells of the serving process: generation of the engine, method, K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracelens.engines.base import Tables
from tracelens.engines.rtp_llm.debug import MTP, SP

_ERAS = {SP: "sp_engine", MTP: "mtp_executor"}


@dataclass(slots=True)
class _Run:
    line: int
    method: str | None = None
    k: int | None = None
    era: str | None = None


def with_runs(tables: Tables, config: Sequence[pl.DataFrame]) -> Tables:
    """Add the run of the source and name it in the rows.

    A configuration dump starts a run, unless it repeats the one before (every rank prints its own). Rows before the
    first dump, or of a source without one, are of a first run when their surface tells the engine's generation.
    """
    frames = [f for f in (tables.rounds, tables.windows) if f is not None]
    eras = pl.concat([f.select("source_line", "surface") for f in frames]) if frames else None
    if eras is not None:
        eras = eras.filter(pl.col("surface").is_in(list(_ERAS))).sort("source_line")
    runs = _dumps(pl.concat(config).sort("line")) if config else []
    if eras is not None and eras.height and (not runs or eras["source_line"][0] < runs[0].line):
        runs.insert(0, _Run(0))
    if not runs:
        return tables
    starts = [run.line for run in runs]
    for name in ("rounds", "windows", "requests"):
        frame = getattr(tables, name)
        if frame is not None:
            setattr(tables, name, frame.with_columns(_run_key(starts)))
    if eras is not None:
        seen = eras.with_columns(_run_key(starts)).unique("run_key", keep="last", maintain_order=True)
        for key, surface in seen.select("run_key", "surface").rows():
            runs[key - 1].era = _ERAS[surface]
    _guess_k(runs, tables.rounds)
    tables.runs = pl.DataFrame(
        {
            "run_key": range(1, len(runs) + 1),
            "engine": ["rtp-llm"] * len(runs),
            "engine_era": [run.era for run in runs],
            "method": [run.method for run in runs],
            "num_speculative_tokens": [run.k for run in runs],
            "role": ["speculative" if run.method not in (None, "none") else None for run in runs],
        },
        schema={
            "run_key": pl.Int64,
            "engine": pl.String,
            "engine_era": pl.String,
            "method": pl.String,
            "num_speculative_tokens": pl.Int32,
            "role": pl.String,
        },
    )
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
    """Number of runs that have started at a line."""
    return pl.sum_horizontal([(pl.col("source_line") >= s).cast(pl.Int64) for s in starts]).alias("run_key")


def _guess_k(runs: list[_Run], rounds: pl.DataFrame | None) -> None:
    """K of a run without a dump: the largest draft, when most rounds that drafted have just that length.

    `propose_token_num` is K, but for the first round after a separate prefill (1), prefill (0), and the deterministic
    drafter, whose length varies.
    """
    if rounds is None or "drafted" not in rounds.columns:
        return
    drafted = rounds.filter(pl.col("surface").is_in(list(_ERAS)) & (pl.col("drafted") > 0))
    for (key,), some in drafted.group_by("run_key"):
        run = runs[int(str(key)) - 1] if int(str(key)) > 0 else None
        longest = some["drafted"].max()
        if run is not None and run.k is None and isinstance(longest, int):
            run.k = longest if (some["drafted"] == longest).sum() * 2 > some.height else None
