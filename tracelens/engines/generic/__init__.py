"""Generic canonical JSON lines: the way to bring an engine that tracelens does not know.

Whoever can print one JSON object a round (or request, window, run) with the names of SCHEMA.md is read. Durations
may be spelled `_us`, `_ms` or `_s`, stamps `ts` (ISO text, or an epoch number by its magnitude) or `ts_s`, `ts_ms`,
`ts_us`, `ts_ns`. `engine` in the record names the engine. What is unknown is ignored, and never stored.

The rules (`KINDS`, `KIND_RULES`, `time_columns`, `stamp_columns`, `LIST_FACTS`, `IDENTITIES`) are data, so
that DuckDB (as SQL text) and polars (`pl.sql_expr`) read the same file in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.generic.block import Block, broken_identities
from tracelens.engines.generic.rules import (
    DERIVED,
    IDENTITIES,
    INTERVAL,
    KIND_RULES,
    KINDS,
    LIST_FACTS,
    NOT_READ,
    REQUEST_ONLY,
    RUN_ONLY,
    kind_of,
    stamp_columns,
    time_columns,
)
from tracelens.lake.schema import DAY_OF, FACTS, table

__all__ = [
    "DERIVED",
    "ENGINE",
    "IDENTITIES",
    "KINDS",
    "KIND_RULES",
    "LIST_FACTS",
    "NOT_READ",
    "kind_of",
    "stamp_columns",
    "time_columns",
]


def _read(name: str, records: Sequence[JsonRecord]) -> tuple[pl.DataFrame, list[Reject]]:
    """The rows of one table whose cells have the right types, and what was refused."""
    block = Block(name, records)
    block.read()
    faults = sorted(block.faults.items())
    rejects = [Reject(records[row].line, why, _surface(name), records[row].offset) for row, why in faults]
    good = pl.Series([row not in block.faults for row in range(len(records))], dtype=pl.Boolean)
    return block.frame().filter(good), rejects


def _surface(name: str) -> str:
    return f"generic.{name.removesuffix('s')}"


_NO_STAMP = pl.lit(None, pl.String).alias("stamp")
_ZONED = r"\d(?: ?[zZ]| ?[+-]\d\d:?\d\d)$"


class GenericEngine:
    """Canonical JSON lines of any engine."""

    name = "generic"
    needles: Sequence[bytes] = ()
    json_keys: Sequence[bytes] = tuple(
        sorted(f'"{key}"'.encode() for key in REQUEST_ONLY | INTERVAL | RUN_ONLY | {"accepted", "record", "table"})
    )
    surfaces: Sequence[Surface] = (
        Surface(
            "generic.round",
            "canonical JSON lines, one object a request and speculation round",
            "any engine",
            (
                "draft_accept_ratio",
                "token_accept_prob",
                "hazard",
                "rollback_len",
                "near_k_request_share",
                "tau_committed",
                "rho",
                "rho_verify",
                "temperature",
            ),
            'print {"record":"round","request_id":…,"drafted":…,"accepted":…,"draft_ms":…,"target_ms":…} a round',
        ),
        Surface(
            "generic.window",
            "canonical JSON lines, one object an interval",
            "any engine",
            ("draft_accept_ratio", "rho", "rho_verify"),
            'print {"record":"window","ts_end":…,"window_s":…,"rounds":…,"drafted":…,"accepted":…} an interval',
        ),
        Surface(
            "generic.request",
            "canonical JSON lines, one object a finished request",
            "any engine",
            (
                "draft_accept_ratio",
                "hazard",
                "rollback_len",
                "near_k_request_share",
                "tau_committed",
                "tpot",
                "temperature",
            ),
            'print {"record":"request","request_id":…,"output_tokens":…,"decode_ms":…,"accepted_hist":[…]} a request',
        ),
        Surface(
            "generic.run",
            "canonical JSON lines, one object a serving process",
            "any engine",
            ("model", "method", "num_speculative_tokens"),
            'print {"record":"run","run_id":…,"engine":…,"model":…,"num_speculative_tokens":…} at the start',
        ),
    )

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """No text lines: everything generic is JSON."""
        return Parsed()

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Read canonical records; types are strict and every identity of SCHEMA.md is checked."""
        parsed = Parsed()
        kinds: dict[str, list[JsonRecord]] = {}
        for record in records:
            kind = kind_of(record.value)
            if kind is not None:
                kinds.setdefault(kind, []).append(record)
        for kind, mine in kinds.items():
            frame, rejects = _read(kind, mine)
            parsed.add(_surface(kind), frame)
            parsed.rejects.extend(rejects)
            parsed.claimed += len(mine)
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Resolve the stamps; everything else is canonical already."""
        tables = Tables()
        for name in (*FACTS, "runs"):
            parts = frames.get(_surface(name), ())
            if parts:
                setattr(tables, name, _finish(name, pl.concat(parts).sort("line"), context, tables.rejects))
        if tables.runs is not None:
            for name in FACTS:
                rows = getattr(tables, name)
                if rows is not None:
                    setattr(tables, name, _governed(rows, tables.runs))
            tables.runs = tables.runs.drop("line")
        for name in (*FACTS, "runs"):
            rows = getattr(tables, name)
            if rows is not None:
                setattr(tables, name, rows.with_columns(pl.col("engine").fill_null("generic")))
        return tables


def _finish(name: str, frame: pl.DataFrame, context: Context, rejects: list[Reject]) -> pl.DataFrame | None:
    """Canonical rows of a table; what breaks an identity, and a stamp that is text and no time, is refused."""
    frame = _stamped(name, frame, context)
    broken = "identity broken: " + broken_identities(name, frame)
    frame = frame.with_columns(pl.coalesce("@no_time", broken).alias("@fault"))
    for line, offset, why in frame.filter(pl.col("@fault").is_not_null()).select("line", "offset", "@fault").rows():
        rejects.append(Reject(line, why, _surface(name), offset))
    frame = frame.filter(pl.col("@fault").is_null())
    if frame.is_empty():
        return None
    frame = frame.with_columns(pl.col("engine").str.to_lowercase())
    frame = frame.with_columns(pl.sql_expr(how).alias(column) for column, how in DERIVED.get(name, {}).items())
    if name == "runs":
        own = [pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias("run_key"), pl.col("line")]
    else:
        own = [pl.col("line").alias("source_line"), pl.lit(_surface(name)).alias("surface")]
    return frame.select(*own, "engine", *_given(name, frame))


def _governed(rows: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Rows that name no run are of the run whose record stands last above them; a single one speaks for the file."""
    nothing = pl.lit(None, pl.String)
    first = pl.lit(0) if runs.height == 1 else pl.col("line")
    name = pl.col("run_id") if "run_id" in runs.columns else nothing
    starts = runs.select("run_key", _above=first.cast(pl.Int64), _name=name).sort("_above")
    if "run_id" not in rows.columns:
        rows = rows.with_columns(run_id=nothing)
    found = rows.join_asof(starts, left_on="source_line", right_on="_above", strategy="backward")
    # A run with a name is told by it; one without is named where its start is.
    unnamed = pl.col("run_id").is_null() & pl.col("_name").is_null()
    key = pl.when(unnamed).then("run_key").fill_null(0)
    found = found.with_columns(run_key=key, run_id=pl.coalesce("run_id", "_name")).drop("_above", "_name", strict=False)
    return _of_engine(found, runs)


def _of_engine(rows: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Rows that name no engine have that of their run's record."""
    if not rows["engine"].has_nulls() or runs["engine"].null_count() == runs.height:
        return rows
    found = [pl.col("engine")]
    for name in ("run_id", "run_key"):
        # Of two records of a run the first counts.
        told = runs.select(name, "engine").drop_nulls().reverse().rows() if name in runs.columns else []
        if told:
            found.append(pl.col(name).replace_strict(dict(told), default=None, return_dtype=pl.String))
    return rows.with_columns(engine=pl.coalesce(found))


def _stamped(name: str, frame: pl.DataFrame, context: Context) -> pl.DataFrame:
    """The frame with all stamps in UTC, `ts_basis`, and in `@no_time` what is wrong with a text that is no time."""
    main = DAY_OF.get(name)
    fault: pl.Expr = pl.lit(None, pl.String)
    for column in dict.fromkeys(c for c, _ in stamp_columns(name).values()):
        stamps = frame.select(_outer(frame, column, context) if column == main else _NO_STAMP, inner=f"{column}@text")
        found = context.resolve(stamps)
        frame = frame.with_columns(found["ts"].alias("@ts"), found["ts_basis"].alias("@basis"))
        if column == main:
            # A number of the record's own is exact.
            given = pl.when(pl.col(column).is_not_null()).then(pl.lit("absolute"))
            basis = given.when(pl.col("@ts").is_null() & pl.col(f"{column}@relative")).then(pl.lit("relative"))
            frame = frame.with_columns(basis.otherwise(pl.col("@basis")).alias("ts_basis"))
        frame = frame.with_columns(pl.coalesce(column, "@ts").alias(column)).drop("@ts", "@basis")
        no_time = pl.col(f"{column}@text").is_not_null() & pl.col(column).is_null()
        fault = pl.coalesce(fault, pl.when(no_time).then(pl.lit(f"{column}: not a time")))
    return frame.with_columns(fault.alias("@no_time"))


def _outer(frame: pl.DataFrame, column: str, context: Context) -> pl.Series:
    """The envelopes' stamps, which win over texts that don't name their zone (SCHEMA.md, Time).

    A text that does says when the round was, as a number does, and the envelope only when somebody wrote it down.
    """
    texts = frame.select(_NO_STAMP, inner=f"{column}@text")
    zoned = texts["inner"].str.contains(_ZONED).fill_null(False)
    if not zoned.any() or frame["stamp"].null_count() == frame.height:
        return frame["stamp"]
    own = zoned & context.resolve(texts)["ts"].is_not_null()
    return frame.select(pl.when(~own).then("stamp").alias("stamp")).to_series()


def _given(name: str, frame: pl.DataFrame) -> list[str]:
    """The columns of the table that some record gave."""
    given = {column for column in frame.columns if frame[column].null_count() < frame.height}
    names = [c for c in table(name).names if c in given and c != "engine"]
    return names + (["accepted"] if name == "rounds" and "accepted" not in names else [])


ENGINE = GenericEngine()
