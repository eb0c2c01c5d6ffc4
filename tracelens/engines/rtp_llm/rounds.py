"""Events of engine.log to canonical rounds: which lines make a step, and whose times are whose."""

from __future__ import annotations

import polars as pl

from tracelens.engines.base import Reject
from tracelens.engines.rtp_llm.debug import MTP, SP

# One process writes its rounds with one thread (old engine); MtpExecutor may report streams from a worker thread
# (RTP_LLM_STREAM_ASYNC=1), so the thread is no part of its key.
_WRITER = {SP: ("stream", "pid", "tid", "rank"), MTP: ("stream", "pid", "rank")}
_INT32_MAX = 2**31 - 1


def _with_columns(events: pl.DataFrame, texts: tuple[str, ...], numbers: tuple[str, ...]) -> pl.DataFrame:
    """Columns of forms that did not occur, as nulls."""
    missing = [pl.lit(None, pl.String).alias(n) for n in texts if n not in events.columns]
    missing += [pl.lit(None, pl.Int64).alias(n) for n in numbers if n not in events.columns]
    return events.with_columns(missing)


def _split(events: pl.DataFrame, writer: tuple[str, ...]) -> pl.DataFrame:
    """Split steps in which a request occurs twice: a closing line was lost between them.

    The last piece keeps the closing lines. Adds `part` and `parts`.
    """
    key = [*writer, "step"]
    nth = pl.when(pl.col("kind").is_in(["stream", "plain"])).then(pl.int_range(pl.len()).over([*key, "request_id"]))
    events = events.with_columns(nth.alias("part"))
    last = pl.col("part").max().over(key).fill_null(0)
    return events.with_columns(pl.col("part").fill_null(last).alias("part"))


def sp_rounds(events: pl.DataFrame, rejects: list[Reject]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rounds and windows of the old engine's DEBUG triple (rtp-llm.md 3.1), from events with `ts` and `ts_basis`.

    Per round and writer: a line a stream, then the totals (since 2025-09-04), then the times. Steps without stream
    lines (before 2025-02-25 there were none) become windows of one step.
    """
    writer = _WRITER[SP]
    events = _with_columns(
        events, ("id",), ("propose", "accept", "streams", "total", "draft", "target", "sample", "update")
    )
    closing = pl.col("kind").is_in(["totals", "times"])
    before = closing.shift(1).over(writer)
    # Another line after the times opens a step, and so does a stream after the totals.
    opens = pl.col("kind").eq("times").shift(1).over(writer) | (before & ~closing)
    events = events.with_columns(pl.col("id").alias("request_id"), opens.fill_null(False).alias("opens"))
    events = events.with_columns(pl.col("opens").cast(pl.Int64).cum_sum().over(writer).alias("step"))
    events = _split(events, writer)
    key = [*writer, "step", "part"]
    is_stream = pl.col("kind").is_in(["stream", "plain"])
    events = events.with_columns(
        is_stream.sum().over(key).alias("lines"),
        *_of("totals", key, ("propose", "accept", "streams", "line", "offset")),
        *_of("times", key, ("total", "draft", "target", "sample", "update")),
        # A proposal of 0 is a prefill round; a plain step of speculation switched off has a line of another form.
        ((pl.col("kind") == "stream") & (pl.col("propose") == 0)).any().over(key).alias("has_prefill"),
        pl.col("propose").filter(is_stream).sum().over(key).alias("step_propose"),
        pl.col("cut").any().over(key).alias("step_cut"),
    )
    _check_totals(events, key, rejects)
    return _sp_rows(events.filter(is_stream), key, rejects), _sp_windows(events.filter(pl.col("lines") == 0), key)


def _of(kind: str, key: list[str], names: tuple[str, ...]) -> list[pl.Expr]:
    """Fields of the step's line of a kind, for all lines of the step."""
    return [pl.col(n).filter(pl.col("kind") == kind).first().over(key).alias(f"{kind}_{n}") for n in names]


def _phases() -> list[pl.Expr]:
    """Times of a step as canonical columns; a zero that cannot be is not measured (see steps.phase_times)."""
    draft, target, sample = (pl.col(f"times_{n}") for n in ("draft", "target", "sample"))
    none = (draft == 0) & (target == 0) & (sample == 0)
    no_draft = none | ((draft == 0) & (pl.col("step_propose") > 0))
    return [
        pl.when(~no_draft).then(draft).alias("draft_us"),
        pl.when(target > 0).then(target).alias("target_us"),
        pl.when(sample > 0).then(sample).alias("sample_us"),
        # Stream and KV bookkeeping after the sampling, apart only until 2025-06-02 (later it is inside sampler_time).
        # It is no repair after a rejection: every stream pays it. So it is batch re-arrangement, not rollback.
        pl.when(pl.col("times_update") > 0).then(pl.col("times_update")).alias("repack_us"),
        pl.when(pl.col("times_total") > 0).then(pl.col("times_total")).alias("step_us"),
        pl.when(pl.col("times_total") > 0).then(pl.lit("host")).alias("timing_basis"),
    ]


def _check_totals(events: pl.DataFrame, key: list[str], rejects: list[Reject]) -> None:
    """Note totals that are not the sums over the streams that proposed something; the rows stay."""
    real = pl.col("kind").is_in(["stream", "plain"]) & (pl.col("propose") > 0)
    sums = events.filter((pl.col("lines") > 0) & pl.col("totals_line").is_not_null() & ~pl.col("step_cut"))
    sums = sums.group_by(key, maintain_order=True).agg(
        pl.col("totals_line", "totals_offset", "totals_propose", "totals_accept", "totals_streams").first(),
        pl.col("propose").filter(real).sum().alias("p"),
        pl.col("accept").filter(real).sum().alias("a"),
        real.sum().cast(pl.Int64).alias("n"),
    )
    for row in sums.iter_rows(named=True):
        for name, total, found in (
            ("propose_token_num", row["totals_propose"], row["p"]),
            ("accept_token_num", row["totals_accept"], row["a"]),
            ("stream_num", row["totals_streams"], row["n"]),
        ):
            if total is not None and total != found:
                why = f"totals differ from the stream lines: {name} {total}, their sum {found}"
                rejects.append(Reject(row["totals_line"], why, SP, row["totals_offset"]))
                break


def _sp_rows(streams: pl.DataFrame, key: list[str], rejects: list[Reject]) -> pl.DataFrame:
    broken = ~pl.col("accept").is_between(1, pl.col("propose") + 1) | (pl.col("propose") >= _INT32_MAX)
    bad = ~pl.col("cut") & (broken | pl.col("accept").is_null() | pl.col("propose").is_null()).fill_null(True)
    why = "identity broken: 1 <= accept_token_num <= propose_token_num + 1"
    rejects.extend(
        Reject(line, why, SP, offset) for line, offset in streams.filter(bad).select("line", "offset").rows()
    )
    # A stream's first token is the prefill's and no round: propose 0, and the first line of a stream that only has
    # plain steps. Its step is flagged all the same, since the others waited for the prefill in it.
    first = pl.int_range(pl.len()).over("stream", "pid", "request_id") == 0
    prefill = (pl.col("propose") == 0) & ((pl.col("kind") == "stream") | first)
    rows = streams.with_columns(pl.len().over(key).alias("batch"), prefill.alias("prefill"))
    rows = rows.with_columns((pl.col("has_prefill") | pl.col("prefill").any().over(key)).alias("has_prefill"))
    rows = rows.filter(~bad & ~pl.col("cut") & ~pl.col("prefill").fill_null(False))
    return rows.select(
        pl.col("line").alias("source_line"),
        pl.lit(SP).alias("surface"),
        *("ts", "ts_basis", "request_id", "has_prefill"),
        pl.int_range(pl.len(), dtype=pl.Int64).over("stream", "pid", "request_id").alias("round_index"),
        _step_id(key),
        (1.0 / pl.len().over(key)).alias("step_share"),
        pl.col("batch").cast(pl.Int32).alias("batch_size"),
        pl.when(pl.col("top_p").is_between(0, 1)).then("top_p").alias("top_p"),
        pl.col("propose").cast(pl.Int32).alias("drafted"),
        (pl.col("accept") - 1).cast(pl.Int32).alias("accepted"),
        pl.col("accept").cast(pl.Int32).alias("emitted"),
        *_phases(),
    )


def _step_id(key: list[str]) -> pl.Expr:
    """A name that no other step of the source has: writers are told apart, steps and their pieces numbered."""
    thread = pl.col(key[2]) if key[2] == "tid" else pl.col("pid")
    first = pl.col("line").min().over(key).cast(pl.String)
    return pl.concat_str([thread, first], separator=":").alias("step_id")


def _sp_windows(events: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Steps of which no stream was logged: times alone are a sample, times with totals a window of one step."""
    steps = events.filter(pl.col("kind") == "times", ~pl.col("cut")).unique(key, keep="last", maintain_order=True)
    good = (pl.col("totals_accept") - pl.col("totals_streams")).is_between(0, pl.col("totals_propose")).fill_null(False)

    def counted(expr: pl.Expr) -> pl.Expr:
        return pl.when(good).then(expr)

    steps = steps.with_columns(pl.col("totals_propose").alias("step_propose"))
    return steps.select(
        pl.col("line").alias("source_line"),
        pl.lit(SP).alias("surface"),
        pl.col("ts").alias("ts_end"),
        "ts_basis",
        pl.lit(1, pl.Int64).alias("steps"),
        counted(pl.col("totals_streams")).alias("rounds"),
        counted(pl.col("totals_propose")).alias("drafted"),
        counted(pl.col("totals_accept") - pl.col("totals_streams")).alias("accepted"),
        counted(pl.col("totals_accept")).alias("emitted"),
        counted(pl.lit("logged")).alias("rounds_basis"),
        counted(pl.lit("derived")).alias("counts_basis"),
        *_phases()[:-1],
        pl.when(good).then(pl.lit("sum")).otherwise(pl.lit("sample")).alias("time_basis"),
    )


def mtp_rounds(events: pl.DataFrame, rejects: list[Reject]) -> pl.DataFrame:
    """Rounds of MtpExecutor's DEBUG lines (rtp-llm.md 3.2), from events with `ts` and `ts_basis`.

    No phase has a time: the lines between start and end are host launch times (CUDA graphs run on), no durations.
    """
    writer = _WRITER[MTP]
    events = _with_columns(events, ("id", "rid"), ("loops", "batch", "before", "after"))
    done = pl.col("kind") == "done"
    events = events.with_columns(
        pl.coalesce("rid", "id").alias("request_id"),
        done.cast(pl.Int64).cum_sum().shift(1).over(writer).fill_null(0).alias("step"),
        # Its own clock, not the outer one: that of a log collector may know whole seconds only.
        pl.col("inner").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False).alias("clock"),
    )
    events = _split(events, writer)
    key = [*writer, "step", "part"]
    events = _mtp_steps(events, writer)
    streams = events.filter((pl.col("kind") == "stream") & ~pl.col("cut"))
    tokens = pl.col("after") - pl.col("before")
    k = pl.col("loops") + 1
    bad = ~((tokens >= 1) & (tokens < _INT32_MAX) & (tokens <= k + 1).fill_null(True)).fill_null(False)
    why = "identity broken: 1 <= tokens of a round <= K + 1"
    rejects.extend(
        Reject(line, why, MTP, offset) for line, offset in streams.filter(bad).select("line", "offset").rows()
    )
    rows = streams.with_columns(pl.len().over(key).alias("size")).filter(~bad)
    return rows.select(
        pl.col("line").alias("source_line"),
        pl.lit(MTP).alias("surface"),
        *("ts", "ts_basis", "request_id"),
        pl.int_range(pl.len(), dtype=pl.Int64).over("stream", "pid", "request_id").alias("round_index"),
        _step_id(key),
        (1.0 / pl.len().over(key)).alias("step_share"),
        pl.coalesce("batch", "size").clip(0, _INT32_MAX).cast(pl.Int32).alias("batch_size"),
        pl.col("before").clip(0, _INT32_MAX).cast(pl.Int32).alias("context_len"),
        k.cast(pl.Int32).alias("num_speculative_tokens"),
        k.cast(pl.Int32).alias("drafted"),
        # Tokens after trimming (max_new_tokens): in the last round of a request the accepted may have been more.
        (tokens - 1).cast(pl.Int32).alias("accepted"),
        tokens.cast(pl.Int32).alias("emitted"),
        "step_us",
        pl.when(pl.col("step_us").is_not_null()).then(pl.lit("derived")).alias("timing_basis"),
    )


def _mtp_steps(events: pl.DataFrame, writer: tuple[str, ...]) -> pl.DataFrame:
    """Add `loops` (K - 1), `batch` and `step_us` of the step to all its lines.

    K drafts are K - 1 passes of the loop and one at the tail of the round before; a process has one K. The step lasts
    from one `dispatch decode done` to the next, and only where a request was in both: else the engine may have idled.
    """
    key = [*writer, "step"]
    is_stream = pl.col("kind") == "stream"
    loops = pl.when(pl.col("loops").is_between(0, 1023)).then("loops")
    events = events.with_columns(
        pl.coalesce(
            loops.max().over(key),
            pl.when(loops.drop_nulls().n_unique().over(writer) == 1).then(loops.max().over(writer)),
        ).alias("loops"),
        pl.col("batch").max().over(key).alias("batch"),
        pl.when(is_stream).then(pl.col("step").shift(1).over([*writer, "kind", "request_id"])).alias("last_seen"),
    )
    goes_on = (is_stream & (pl.col("last_seen") == pl.col("step") - 1)).any().over(key)
    events = events.with_columns(goes_on.alias("goes_on"))
    done = events.filter(pl.col("kind") == "done").select(
        *key, (pl.col("clock") - pl.col("clock").shift(1).over(writer)).dt.total_microseconds().alias("period")
    )
    events = events.join(done, on=key, how="left", nulls_equal=True, maintain_order="left")
    return events.with_columns(pl.when(pl.col("goes_on") & (pl.col("period") > 0)).then("period").alias("step_us"))
