"""vLLM, 0.4.2 to 0.33: text logs (V0 and V1) and logged HTTP responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Surface, Tables
from tracelens.engines.vllm import lines, responses, startup, windows

_LOG_STATS = "on by default; VLLM_LOG_STATS_INTERVAL=1 (0.10.1+) gives near-step resolution; off with --disable-log-stats"
_RESPONSES = (
    "--enable-per-request-metrics (0.25+) and --per-request-spec-decode-metrics detailed (0.29+), and log the responses at the gateway"
)
SURFACES = (
    Surface("vllm.v1_line", "SpecDecoding metrics (an interval of one engine)", "0.8.3-0.33", ("draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share"), _LOG_STATS),
    Surface("vllm.v0_line", "Speculative metrics (cumulative)", "0.4.2-0.9.2", ("draft_accept_ratio", "tau_drafted"), "on by default; off with --disable-log-stats"),
    Surface("vllm.stage_times", "SpecDecodeWorker stage times (one sampled step)", "0.5.4-0.9.2", ("rho_verify",), "on by default; off with --disable-log-stats"),
    Surface("vllm.engine_line", "Engine line (load and throughput)", "0.4.2-0.33", ("running",), _LOG_STATS),
    Surface("vllm.iteration_line", "Iteration(n) (one engine step)", "0.14-0.33", ("step_ms", "batch_size"), "--enable-logging-iteration-details; its time is a step's only with --no-async-scheduling"),
    Surface("vllm.request_line", "Received request (sampling parameters)", "0.4.2-0.33", ("temperature", "top_p"), "--enable-log-requests (by default before 0.10.1)"),
    Surface("vllm.start", "start-up lines (version, model, drafter, K)", "0.4.2-0.33", ("engine_version", "method", "num_speculative_tokens"), "on by default"),
    Surface("vllm.response", "HTTP responses with metrics", "0.25-0.33 (acceptance 0.29+)", ("draft_accept_ratio", "token_accept_prob", "hazard", "rollback_len", "near_k_request_share", "tau_committed", "tpot_ms", "speedup_tpot"), _RESPONSES),
)  # fmt: skip


class VLLM:
    """The vLLM reader."""

    name = "vllm"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = lines.NEEDLES
    json_keys: Sequence[bytes] = responses.KEYS

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Text lines; see `tracelens.engines.vllm.lines`."""
        return lines.parse(frame)

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Logged responses; see `tracelens.engines.vllm.responses`."""
        return responses.parse(records)

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        whole = {surface: pl.concat(parts, how="vertical") for surface, parts in frames.items() if parts}
        tables = Tables()
        text = {s: windows.once(f.sort("line", maintain_order=True)) for s, f in whole.items() if s != "vllm.response"}
        stamps = _resolve(text, context)
        runs = self._runs(text, stamps)
        text = {s: _with_run(f, runs) for s, f in text.items()}
        tables.runs = runs
        tables.windows = self._windows(text, stamps, runs, tables)
        requests: list[pl.DataFrame] = []
        if "vllm.request_line" in text:
            requests.append(windows.request_rows(text["vllm.request_line"], stamps["vllm.request_line"]))
        if "vllm.response" in whole:
            rows, tables.rounds = _response_rows(whole["vllm.response"], context)
            requests.append(rows)
        tables.requests = pl.concat(requests, how="diagonal") if requests else None
        return tables

    @staticmethod
    def _runs(text: Mapping[str, pl.DataFrame], stamps: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
        starts = text.get("vllm.start")
        if starts is None or not starts.height:
            return None
        return startup.runs(starts, stamps["vllm.start"])

    @staticmethod
    def _windows(
        text: Mapping[str, pl.DataFrame], stamps: Mapping[str, pl.DataFrame], runs: pl.DataFrame | None, tables: Tables
    ) -> pl.DataFrame | None:
        parts: list[pl.DataFrame] = []
        engine = text.get("vllm.engine_line")
        if "vllm.v1_line" in text:
            order = windows.with_replica(text["vllm.v1_line"].with_row_index("_row"), engine)
            stamped = stamps["vllm.v1_line"][order["_row"]]
            parts.append(windows.v1_windows(order.drop("_row"), stamped, tables))
        started = pl.DataFrame(schema={"run_key": pl.Int64, "started": pl.Datetime("us")}) if runs is None else runs.select("run_key", "started")
        if "vllm.v0_line" in text:
            parts.append(windows.v0_windows(text["vllm.v0_line"], stamps["vllm.v0_line"], started, tables))
        for surface, build in (
            ("vllm.stage_times", windows.stage_windows),
            ("vllm.engine_line", windows.engine_windows),
            ("vllm.iteration_line", windows.iteration_windows),
        ):
            if surface in text:
                parts.append(build(text[surface], stamps[surface]))
        return pl.concat(parts, how="diagonal_relaxed").sort("source_line", maintain_order=True) if parts else None


def _resolve(text: Mapping[str, pl.DataFrame], context: Context) -> dict[str, pl.DataFrame]:
    """Time stamps of all surfaces together, in file order: the year of one line follows from its neighbours."""
    if not text:
        return {}
    together = pl.concat([f.select("line", "stamp", "inner", surface=pl.lit(s), row=pl.int_range(pl.len())) for s, f in text.items()])
    together = together.sort("line", maintain_order=True)
    resolved = pl.concat([together.select("surface", "row"), context.resolve(together.select("stamp", "inner"))], how="horizontal")
    parts = resolved.partition_by("surface", as_dict=True)
    empty = resolved.clear()
    return {s: parts.get((s,), empty).sort("row") for s in text}


def _with_run(frame: pl.DataFrame, runs: pl.DataFrame | None) -> pl.DataFrame:
    """Add `run_key` and the run's `method`: the latest start above the line, in the same stream."""
    if runs is None:
        return frame.with_columns(run_key=pl.lit(0, pl.Int64), method=pl.lit(None, pl.String))
    starts = runs.select(_line="first_line", _stream=pl.col("stream").fill_null(""), run_key="run_key", method="method").sort("_line")
    keyed = frame.with_columns(_stream=pl.col("stream").fill_null("")).sort("line", maintain_order=True)
    out = keyed.join_asof(starts, left_on="line", right_on="_line", by="_stream", strategy="backward", check_sortedness=False)
    return out.drop("_stream", "_line", strict=False).with_columns(pl.col("run_key").fill_null(0))


def _response_rows(frame: pl.DataFrame, context: Context) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Request rows, and their rounds in order where the response lists them."""
    resolved = context.resolve(frame.select("stamp", "inner"))
    begun = pl.from_epoch((pl.col("start_s") * 1e6).round().cast(pl.Int64), time_unit="us")
    waits = pl.col("queue_us").fill_null(0) + pl.col("ttft_us") + pl.col("decode_us")
    rows = frame.with_columns(_ts=resolved["ts"], _basis=resolved["ts_basis"], ts_start=begun, e2e_us=waits)
    rows = rows.with_columns(
        # The stamp of a logged response is its end; a stamp of the record itself tells the arrival.
        ts_end=pl.coalesce(pl.col("ts_start") + pl.duration(microseconds="e2e_us"), "_ts", "ts_start"),
        ts_basis=pl.when(pl.col("ts_start").is_not_null()).then(pl.lit("absolute")).otherwise("_basis"),
        request_id=pl.coalesce("request_id", pl.concat_str(pl.lit(context.source_id + "#"), pl.col("line"))),
        source_line="line",
        surface=pl.lit("vllm.response"),
        run_key=pl.lit(0, pl.Int64),
    )
    rows = rows.with_columns(ts_first_token=pl.when(pl.col("ts_start").is_not_null()).then(pl.col("ts_end") - pl.duration(microseconds="decode_us")))
    shared = ("run_key", "request_id", "task_type", "model", "temperature", "top_p", "num_speculative_tokens", "source_line", "ts_basis")
    steps = rows.filter(pl.col("step_drafted").list.len() > 0)
    rounds = None
    if steps.height:
        rounds = steps.select(
            *shared,
            ts="ts_end",  # the response gives no time a step: the round's day is its request's
            surface=pl.lit("vllm.response"),
            drafted="step_drafted", accepted="step_accepted", emitted="step_emitted",
            round_index=pl.int_ranges(0, pl.col("step_drafted").list.len()),
        ).explode("drafted", "accepted", "emitted", "round_index")  # fmt: skip
    keep = [c for c in rows.columns if not c.startswith(("_", "step_")) and c not in ("line", "offset", "stamp", "inner", "stream", "start_s")]
    return rows.select(keep), rounds


ENGINE = VLLM()
