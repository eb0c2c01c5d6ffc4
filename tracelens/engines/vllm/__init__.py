"""vLLM, 0.4.2 to 0.33: text logs (V0 and V1) and logged HTTP responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Surface, Tables
from tracelens.engines.vllm import lines, responses, startup, windows

_LOG_STATS = (
    "on by default; VLLM_LOG_STATS_INTERVAL=1 (0.10.1+) gives near-step resolution; off with --disable-log-stats"
)
_STATS = "on by default; off with --disable-log-stats"
SURFACES = (
    Surface(
        "vllm.v1_line",
        "SpecDecoding metrics (an interval of one engine)",
        "0.8.3-0.33",
        ("draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share"),
        _LOG_STATS,
    ),
    Surface(
        "vllm.v0_line",
        "Speculative metrics (cumulative)",
        "0.4.2-0.9.2",
        ("draft_accept_ratio", "tau_drafted"),
        _STATS,
    ),
    Surface(
        "vllm.stage_times",
        "SpecDecodeWorker stage times (one sampled step)",
        "0.5.4-0.9.2",
        ("rho_verify",),
        "on by default in these versions; 0.10 and later log no draft time: print canonical JSON lines from a plug-in "
        "of your own (README, 'Any other engine')",
    ),
    Surface("vllm.engine_line", "Engine line (load and throughput)", "0.4.2-0.33", ("running",), _LOG_STATS),
    Surface(
        "vllm.iteration_line",
        "Iteration(n) (one engine step)",
        "0.14-0.33",
        ("step_ms", "batch_size"),
        "--enable-logging-iteration-details; its time is a step's only with --no-async-scheduling",
    ),
    Surface(
        "vllm.request_line",
        "Received request (sampling parameters)",
        "0.4.2-0.33",
        ("temperature", "top_p"),
        "--enable-log-requests (by default before 0.10.1)",
    ),
    Surface(
        "vllm.start",
        "start-up lines (version, model, drafter, K)",
        "0.4.2-0.33",
        ("engine_version", "method", "num_speculative_tokens"),
        "on by default",
    ),
    Surface(
        "vllm.response",
        "HTTP responses with metrics",
        "0.25-0.33 (acceptance 0.29+)",
        (
            "draft_accept_ratio",
            "token_accept_prob",
            "hazard",
            "rollback_len",
            "near_k_request_share",
            "tau_committed",
            "tpot_ms",
            "speedup_tpot",
            "temperature",
        ),
        "--enable-per-request-metrics (0.25+) and --per-request-spec-decode-metrics detailed (0.29+), and log the "
        "responses at the gateway",
    ),
)


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
        whole = {surface: pl.concat(parts, how="diagonal") for surface, parts in frames.items() if parts}
        responded = whole.pop("vllm.response", None)
        text = _timed(whole, context)
        starts = text.pop("vllm.start", None)
        runs = None if starts is None else startup.runs(windows.once(starts))
        text = {surface: _with_run(frame, runs) for surface, frame in text.items()}
        tables = Tables(runs=runs)
        tables.windows = _windows(text, runs, tables)
        requests: list[pl.DataFrame] = []
        if "vllm.request_line" in text:
            requests.append(windows.request_rows(windows.once(text["vllm.request_line"])))
        if responded is not None:
            rows, tables.rounds = responses.rows(responded, context)
            requests.append(rows)
        tables.requests = pl.concat(requests, how="diagonal") if requests else None
        return tables


def _timed(text: Mapping[str, pl.DataFrame], context: Context) -> dict[str, pl.DataFrame]:
    """Frames in file order with `ts` and `ts_basis`; the year of one line follows from its neighbours' of any kind."""
    if not text:
        return {}
    frames = {
        surface: frame.sort("line", maintain_order=True).with_row_index("_row") for surface, frame in text.items()
    }
    stamps = pl.concat([f.select("line", "stamp", "inner", "_row", _surface=pl.lit(s)) for s, f in frames.items()])
    stamps = stamps.sort("line", maintain_order=True)
    stamps = pl.concat(
        [stamps.select("_surface", "_row"), context.resolve(stamps.select("stamp", "inner"))], how="horizontal"
    )
    parts = stamps.partition_by("_surface", as_dict=True, include_key=False)
    return {
        s: f.join(parts[(s,)], on="_row", how="left", maintain_order="left").drop("_row") for s, f in frames.items()
    }


def _with_run(frame: pl.DataFrame, runs: pl.DataFrame | None) -> pl.DataFrame:
    """Add `run_key` and the run's `method`: the latest start above the line, in the same stream."""
    if runs is None:
        return frame.with_columns(run_key=pl.lit(0, pl.Int64), method=pl.lit(None, pl.String))
    stream = pl.col("stream").fill_null("")
    starts = runs.select("run_key", "method", _line="first_line", _stream=stream).sort("_line")
    out = frame.with_columns(_stream=stream).join_asof(
        starts, left_on="line", right_on="_line", by="_stream", strategy="backward", check_sortedness=False
    )
    return out.drop("_stream", "_line", strict=False).with_columns(pl.col("run_key").fill_null(0))


def _windows(text: Mapping[str, pl.DataFrame], runs: pl.DataFrame | None, tables: Tables) -> pl.DataFrame | None:
    parts: list[pl.DataFrame] = []
    if "vllm.v1_line" in text:
        # Engines of one process may print the same figures in the same second: they differ by their replica.
        lines = windows.with_replica(text["vllm.v1_line"], text.get("vllm.engine_line"))
        parts.append(windows.v1_windows(windows.once(lines, "replica"), tables))
    if "vllm.v0_line" in text:
        nothing = pl.DataFrame(schema={"run_key": pl.Int64, "started": pl.Datetime("us")})
        started = nothing if runs is None else runs.select("run_key", "started")
        parts.append(windows.v0_windows(windows.once(text["vllm.v0_line"]), started, tables))
    for surface, build in (
        ("vllm.stage_times", windows.stage_windows),
        ("vllm.engine_line", windows.engine_windows),
        ("vllm.iteration_line", windows.iteration_windows),
    ):
        if surface in text:
            parts.append(build(windows.once(text[surface])))
    return pl.concat(parts, how="diagonal_relaxed").sort("source_line", maintain_order=True) if parts else None


ENGINE = VLLM()
