"""Reads the text log of an engine that tracelens has never heard of.

Three things make a reader: what to look for (`needles`: bytes that stand in every line of ours and in few others), how
to take a line apart (`lines`), and how canonical rows come of it (`assemble`). Files, compression, envelopes, clocks,
time zones, the lake and every figure are tracelens' affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables

ROUND, START = "acme.round", "acme.start"
# Named groups are canonical column names (`tracelens schema rounds`); times of this engine are in ms.
_STAMP = r"(?P<inner>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) acme\[\d+\] "
_ROUND = (
    _STAMP + r"round request=(?P<request_id>\S+) n=(?P<round_index>\d+) drafted=(?P<drafted>\d+) kept=(?P<accepted>\d+)"
    r" out=(?P<emitted>\d+) draft=(?P<draft>[\d.]+)ms verify=(?P<target>[\d.]+)ms step=(?P<step>[\d.]+)ms"
)
_START = (
    _STAMP + r"start version=(?P<engine_version>\S+) model=(?P<model>\S+) drafter=(?P<draft_model>\S+) k=(?P<k>\d+)"
)


class Acme:
    """The reader; one instance of it is what the entry point names."""

    name = "acme"
    needles: Sequence[bytes] = (b"] round request=", b"] start version=")
    json_keys: Sequence[bytes] = ()
    surfaces: Sequence[Surface] = (
        Surface(
            ROUND,
            "one line a request and speculation round",
            "all",
            ("draft_accept_ratio", "hazard", "rollback_len", "near_k_request_share", "tau_committed", "rho_verify"),
            "ACME_LOG=rounds",
        ),
        Surface(START, "start-up line", "all", ("engine_version", "num_speculative_tokens"), "on by default"),
    )

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Take lines apart, all at once; a line that is meant to be ours and is not whole is refused, not lost."""
        parsed = Parsed(claimed=frame.height)
        for surface, mark, pattern in ((ROUND, "] round request=", _ROUND), (START, "] start version=", _START)):
            mine = frame.filter(pl.col("text").str.contains(mark, literal=True))
            found = mine.with_columns(pl.col("text").str.extract_groups(pattern).alias("_g")).unnest("_g")
            whole = pl.col("inner").is_not_null()
            parsed.add(surface, found.filter(whole).drop("text"))
            for line, offset in found.filter(~whole).select("line", "offset").iter_rows():
                parsed.rejects.append(Reject(line, "a line that is cut or has other fields", surface, offset))
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """This engine writes no JSON."""
        return Parsed()

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows: rounds, and one run for each start."""
        tables = Tables()
        starts = _timed(frames.get(START, ()), context)
        if starts is not None:
            tables.runs = starts.select(
                run_key=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
                started="ts",
                num_speculative_tokens=pl.col("k").cast(pl.Int32, strict=False),
                method=pl.lit("draft_model"),
                **{name: pl.col(name) for name in ("engine_version", "model", "draft_model")},
            )
        rounds = _timed(frames.get(ROUND, ()), context)
        if rounds is not None:
            counts = ("round_index", "drafted", "accepted", "emitted")
            times = {f"{name}_us": pl.col(name).cast(pl.Float64) * 1000 for name in ("draft", "target", "step")}
            tables.rounds = _with_run(rounds, starts).select(
                "run_key", "ts", "ts_basis", "request_id", "source_line",
                *(pl.col(name).cast(pl.Int64, strict=False) for name in counts),
                surface=pl.lit(ROUND),
                timing_basis=pl.lit("host"),
                **{name: value.round().cast(pl.Int64) for name, value in times.items()},
            )  # fmt: skip
        return tables


def _timed(parts: Sequence[pl.DataFrame], context: Context) -> pl.DataFrame | None:
    """The lines of one surface in file order, with `ts` and `ts_basis`: tracelens knows the clocks."""
    if not parts:
        return None
    frame = pl.concat(parts).sort("line").rename({"line": "source_line"})
    return frame.with_columns(context.resolve(frame.select("stamp", "inner")))


def _with_run(rounds: pl.DataFrame, starts: pl.DataFrame | None) -> pl.DataFrame:
    """Every round with the number of the start above it; 0 is what ran before the first one."""
    if starts is None:
        return rounds.with_columns(run_key=pl.lit(0, pl.Int64))
    numbered = starts.select("source_line", run_key=pl.int_range(1, pl.len() + 1, dtype=pl.Int64))
    return rounds.join_asof(numbered, on="source_line").with_columns(pl.col("run_key").fill_null(0))


ENGINE = Acme()
