"""llama.cpp: llama-server's log of all generations, the speculative examples, saved responses, /slots and /metrics.

Read from llama.cpp b11434 (2026-10), earlier forms from public threads (see the pull requests named beside them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Surface, Tables
from tracelens.engines.llama_cpp import (
    blocks,
    examples,
    lines,
    metrics,
    responses,
    rounds,
    startup,
    statistics,
    surfaces,
)
from tracelens.engines.stacking import stacked

__all__ = ["ENGINE"]


class LlamaCpp:
    """The llama.cpp reader."""

    name = "llama.cpp"
    surfaces: Sequence[Surface] = surfaces.SURFACES
    needles: Sequence[bytes] = lines.NEEDLES
    json_keys: Sequence[bytes] = responses.KEYS
    metric_prefixes: Sequence[str] = metrics.PREFIXES

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Text lines; see `tracelens.engines.llama_cpp.lines`."""
        return lines.parse(frame)

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Responses, chunks of them, and slots; see `tracelens.engines.llama_cpp.responses`."""
        return responses.parse(records)

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Prometheus samples; see `tracelens.engines.llama_cpp.metrics`."""
        return metrics.parse(frame)

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        whole = {surface: lines.once(parts) for surface, parts in frames.items() if parts}
        samples = whole.pop(surfaces.METRICS, None)
        parts = [self._logged(whole, context)] if whole else []
        if samples is not None:
            parts.append(metrics.assemble(samples, context))
        return stacked(parts) if parts else Tables()

    def _logged(self, whole: dict[str, pl.DataFrame], context: Context) -> Tables:
        """Rows of lines and of JSON."""
        tables = Tables()
        longest: dict[tuple[int, str], int] = {}
        if surfaces.START in whole:
            tables.runs, longest = startup.runs(whole[surfaces.START])
        text = {s: startup.with_run(f, tables.runs) for s, f in whole.items() if "child" in f.columns}
        slots = _slots(text)
        found = _requests(text, tables)
        if surfaces.ROUND in text:
            found = _with_rounds(text, found, slots, context, tables)
        windows = []
        if surfaces.STATISTICS in text:
            said = _statistics(text[surfaces.STATISTICS], slots, longest, context, tables)
            if slots == 1:
                found = found.with_columns(statistics.draft_times(said, found))
            windows.append(said.drop("stream", "child"))
        if surfaces.SLOTS in whole:
            windows.append(_snapshots(whole[surfaces.SLOTS], context))
        requests = [_request_rows(found, surfaces.REQUEST, context)] if found.height else []
        if surfaces.TIMINGS in whole:
            answered = responses.requests(whole[surfaces.TIMINGS])
            requests.append(_request_rows(answered, surfaces.TIMINGS, context))
        if surfaces.EXAMPLE in text:
            requests.append(examples.requests(text[surfaces.EXAMPLE], context.source_id, tables.rejects))
        tables.requests = pl.concat(requests, how="diagonal") if requests else None
        tables.windows = pl.concat(windows, how="diagonal") if windows else None
        if tables.runs is not None:
            stamps = context.resolve(tables.runs.select("stamp", inner=pl.lit(None, pl.String)))
            tables.runs = tables.runs.with_columns(started=stamps["ts"]).drop("first_line", "stamp", "stream", "child")
        return tables


def _slots(text: Mapping[str, pl.DataFrame]) -> int:
    """Number of slots: one more than the highest that any line names."""
    named = [f["slot"].max() for f in text.values() if "slot" in f.columns]
    return 1 + max((n for n in named if isinstance(n, int)), default=0)


def _typed(texts: Sequence[str], numbers: Sequence[str], counts: Sequence[str]) -> pl.DataFrame:
    """No rows, with columns that some surfaces have and others have not."""
    kinds = ((texts, pl.String()), (numbers, pl.Float64()), (counts, pl.Int64()))
    return pl.DataFrame(schema={column: kind for columns, kind in kinds for column in columns})


_EVENT = ("line", "offset", "clock", "run_key", "slot", "task", "accepted", "drafted", "n_tokens")


def _requests(text: Mapping[str, pl.DataFrame], tables: Tables) -> pl.DataFrame:
    """Requests of the log's blocks."""
    parts = [text[s] for s in (surfaces.REQUEST, surfaces.TASK) if s in text]
    if surfaces.STATISTICS in text:
        marks = text[surfaces.STATISTICS].select("line", "stream", "child", "run_key", kind=pl.lit("statistics"))
        parts.append(marks)
    texts, numbers = ("stamp", "stream", "child", "kind", "rates"), ("ms", "mean", "temperature", "top_p")
    events = pl.concat([_typed(texts, numbers, (*_EVENT, "tokens")), *parts], how="diagonal")
    return blocks.requests(events.sort("line", maintain_order=True), tables.rejects)


def _with_rounds(
    text: Mapping[str, pl.DataFrame], found: pl.DataFrame, slots: int, context: Context, tables: Tables
) -> pl.DataFrame:
    """Make the rounds; the requests come back with what their round lines add up to, where both agree."""
    used = [s for s in (surfaces.ROUND, surfaces.DRAFTING) if s in text]
    parts = [text[s].with_columns(drafting=pl.lit(s == surfaces.DRAFTING)) for s in used]
    events = pl.concat([_typed((), (), _EVENT), *parts], how="diagonal").sort("line", maintain_order=True)
    each = rounds.of_tasks(events, found, tables.rejects)
    launches = text[surfaces.TASK].filter(pl.col("kind") == "launch") if surfaces.TASK in text else events.clear()
    rows = rounds.canonical(each, found, slots, launches).sort("line", maintain_order=True)
    stamps = context.resolve(rows.select("stamp", inner=pl.lit(None, pl.String)))
    tables.rounds = rows.select(
        pl.exclude("line", "stamp", "child"),
        ts=stamps["ts"],
        ts_basis=_basis(stamps, each["clock"].is_not_null().any()),
        process=_process(),
        source_line="line",
        surface=pl.lit(surfaces.ROUND),
    )
    sums = rounds.by_request(each)
    found = found.with_row_index("request").with_columns(pl.col("request").cast(pl.Int64))
    found = found.join(sums, on="request", how="left", maintain_order="left", suffix="_seen")
    same = (pl.col("drafted") == pl.col("drafted_seen")) & (pl.col("accepted") == pl.col("accepted_seen"))
    return found.with_columns(
        counts_basis=pl.when(same).then(pl.lit("logged")).otherwise("counts_basis"),
        **{c: pl.when(same).then(f"{c}_seen").otherwise(c) for c in ("rounds", "accepted_hist")},
    ).drop("request", *(f"{c}_seen" for c in ("drafted", "accepted", "rounds", "accepted_hist")))


def _request_rows(found: pl.DataFrame, surface: str, context: Context) -> pl.DataFrame:
    """Canonical requests. The stamp is the end; what the parts of the time tell is counted back from it."""
    inner = "inner" if "inner" in found.columns else pl.lit(None, pl.String).alias("inner")
    stamps = context.resolve(found.select("stamp", inner))
    counted = "clock" in found.columns and found["clock"].is_not_null().any()
    rows = found.with_columns(
        ts_end=stamps["ts"],
        ts_basis=_basis(stamps, counted),
        e2e_us=pl.col("ttft_us") + pl.col("decode_us"),
        source_line="line",
        surface=pl.lit(surface),
        request_id=pl.coalesce("request_id", *[c for c in ("id",) if c in found.columns], _unnamed(context)),
        process=_process() if "child" in found.columns else pl.lit(None, pl.String),
    )
    several = pl.col("decode_us").is_not_null() & (pl.col("output_tokens") > 1)
    rows = rows.with_columns(
        ts_start=pl.col("ts_end") - pl.duration(microseconds="e2e_us"),
        ts_first_token=pl.col("ts_end") - pl.duration(microseconds="decode_us"),
        tpot_us=pl.when(several).then(pl.col("decode_us") / (pl.col("output_tokens") - 1)),
        tpot_basis=pl.when(several).then(pl.lit("derived")),
    )
    drop = ("line", "offset", "stamp", "inner", "stream", "child", "clock", "slot", "task", "closes", "id", "prompt_n")
    return rows.drop(drop, strict=False)


def _statistics(
    said: pl.DataFrame, slots: int, longest: Mapping[tuple[int, str], int], context: Context, tables: Tables
) -> pl.DataFrame:
    """Windows between statistics lines, each with the K of its own drafter."""
    stamps = context.resolve(said.select("stamp", inner=pl.lit(None, pl.String)))
    basis = _basis(stamps, said["clock"].is_not_null().any())
    said = said.with_columns(ts=stamps["ts"], ts_basis=basis, began=pl.col("run_key") > 0)
    rows = statistics.windows(said, slots, tables.rejects)
    k = [longest.get((run, drafter)) for run, drafter in rows.select("run_key", "method").iter_rows()]
    return rows.with_columns(num_speculative_tokens=pl.Series(k, dtype=pl.Int32), process=_process())


def _snapshots(slots: pl.DataFrame, context: Context) -> pl.DataFrame:
    rows = responses.slot_windows(slots)
    stamps = context.resolve(rows.select("stamp", "inner"))
    rows = rows.with_columns(ts_end=stamps["ts"], ts_basis=stamps["ts_basis"], run_key=pl.lit(0, pl.Int64))
    return rows.rename({"line": "source_line"}).drop("stamp", "inner", "stream")


def _unnamed(context: Context) -> pl.Expr:
    return pl.format("{}#{}", pl.lit(context.source_id), "line")


def _basis(stamps: pl.DataFrame, counted: bool) -> pl.Series:
    """`relative` where the only time is that since the start of the process: of no day, but it orders and measures."""
    basis = stamps["ts_basis"]
    return basis.replace("none", "relative") if counted else basis


def _process() -> pl.Expr:
    return pl.when(pl.col("child").fill_null("") != "").then(pl.concat_str(pl.lit("child "), "child"))


ENGINE = LlamaCpp()
