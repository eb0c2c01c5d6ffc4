"""GuideLLM: `benchmarks.json`, the requests of one or several benchmarks of a server, seen from the client.

Its `inter_token_latency_ms` is (last - first token) / (tokens - 1), which is TPOT here; its `time_per_output_token_ms`
has the time to the first token in it, and is not read. `iter_tokens_per_iteration` are tokens a received chunk, which
need not be a round, and are not read either. From 0.8 a request has `response_metrics`: what vLLM said of it. Up to
0.3 the times stood in the request itself, since 0.4 in `info.timings`. A prompt and an output stand beside them and are
never looked at.

Each benchmark of a file (a rate, a number of streams) is a run of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracelens.engines import acceptance, rows
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.units import BrokenError, finite, text, whole
from tracelens.engines.vllm.startup import leaf

__all__ = ["ENGINE"]

REQUEST = "guidellm.request"
SURFACES: tuple[Surface, ...] = (
    Surface(
        REQUEST,
        "benchmarks.json (requests of a benchmark)",
        "0.2 and later (acceptance 0.8+, of vLLM)",
        (
            "tpot_ms",
            "speedup_tpot",
            "ttft_ms",
            "draft_accept_ratio",
            "hazard",
            "rollback_len",
            "near_k_request_share",
            "tau_committed",
            "temperature",
        ),
        "guidellm benchmark … --output-path benchmarks.json; acceptance with vLLM's --enable-per-request-metrics "
        "--per-request-spec-decode-metrics detailed",
    ),
)
KEYS: Sequence[bytes] = (b'"generative_benchmark"', b'"generative_request_stats"', b'"guidellm_version"')
_STATUSES = {"successful": None, "incomplete": "incomplete", "errored": "errored"}
_TYPE = "generative_benchmark"
_NO_METRICS = "a benchmark of GuideLLM without `metrics`: it did not end, or something else wrote it"
_LONGEST_S = 1e8
_EPOCH_S = (1e9, 4e9)
_SETTINGS = ("type_", "kind", "streams", "max_concurrency", "rate", "initial_rate")

Object = Mapping[str, Any]
_ROW: Mapping[str, Any] = {
    **rows.PLACE, "run_key": pl.Int64, "run_id": pl.String, "config": pl.List(
        pl.Struct({"key": pl.String, "value": pl.String})
    ), "request_id": pl.String, "model": pl.String, "temperature": pl.Float64, "top_p": pl.Float64,
    "start_s": pl.Float64, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "cached_tokens": pl.Int64,
    "ttft_us": pl.Int64, "decode_us": pl.Int64, "e2e_us": pl.Int64, "finish_reason": pl.String, "error": pl.Boolean,
    **acceptance.COLUMNS,
}  # fmt: skip


class GuideLLM:
    """The GuideLLM reader."""

    name = "guidellm"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = ()
    json_keys: Sequence[bytes] = KEYS

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """No text lines."""
        return Parsed()

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Reports; one holds all requests of its benchmarks."""
        parsed = Parsed()
        made: list[dict[str, Any]] = []
        specs: list[Object | None] = []
        for record in records:
            benchmarks = record.value.get("benchmarks")
            if not isinstance(benchmarks, list) or not any(map(_is_benchmark, benchmarks)):
                if isinstance(benchmarks, list) and any(map(_is_nearly, benchmarks)):
                    parsed.claimed += 1
                    parsed.rejects.append(Reject(record.line, _NO_METRICS, REQUEST, record.offset))
                continue
            parsed.claimed += 1
            shared = rows.place(record) | {"model": _model(record.value)}
            for benchmark in filter(_is_benchmark, benchmarks):
                told = shared | _benchmark(benchmark)
                for status, request in _requests_of(benchmark):
                    try:
                        row = told | _request(request, status)
                    except BrokenError as error:
                        parsed.rejects.append(Reject(record.line, str(error), REQUEST, record.offset))
                        continue
                    made.append(row)
                    specs.append(_said(request))
        found, faults = acceptance.read([(s, row["output_tokens"]) for s, row in zip(specs, made, strict=True)])
        for i, why in faults.items():
            row = made[i]
            parsed.rejects.append(Reject(row["line"], f"acceptance not counted: {why}", REQUEST, row["offset"]))
        parsed.add(REQUEST, rows.frame_of([row | said for row, said in zip(made, found, strict=True)], _ROW))
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Requests with their rounds where they are listed, and a run a benchmark."""
        whole_frames = rows.whole(frames, SURFACES, context)
        if not whole_frames:
            return Tables()
        found = whole_frames[REQUEST].with_columns(model=leaf(pl.col("model")))
        found = found.with_columns(run_key=pl.col("run_id").rank("dense").cast(pl.Int64))
        # Only vLLM says that of a request; without it nothing tells which engine was measured.
        said = pl.any_horizontal(pl.col("accepted", "drafted", "rounds").is_not_null()).any()
        runs = found.group_by("run_key", maintain_order=True).agg(
            pl.col("run_id", "config").first(),
            pl.col("model").drop_nulls().first(),
            engine_flavour=pl.when(said).then(pl.lit("vllm")),
        )
        requests = _canonical(found, context)
        shared = (
            "run_key", "request_id", "model", "temperature", "top_p", "num_speculative_tokens", "source_line",
            "ts_basis", "surface", "ts_end",
        )  # fmt: skip
        rounds = acceptance.rounds_of(requests, shared)
        tables = Tables(
            requests=requests.drop("step_drafted", "step_accepted", "step_emitted"),
            # A report gives no time a round: its day is its request's.
            rounds=None if rounds is None else rounds.rename({"ts_end": "ts"}),
            runs=runs.sort("run_key"),
        )
        return rows.of_server(tables, self.name)


def _is_benchmark(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("requests"), Mapping) and "metrics" in value


def _is_nearly(value: Any) -> bool:
    """What calls itself a benchmark of GuideLLM, whole or not."""
    return isinstance(value, Mapping) and isinstance(value.get("requests"), Mapping) and value.get("type_") == _TYPE


def _requests_of(benchmark: Object) -> Iterator[tuple[str, Object]]:
    for status in _STATUSES:
        listed = benchmark["requests"].get(status)
        for request in listed if isinstance(listed, list) else ():
            if isinstance(request, Mapping):
                yield status, request


def _benchmark(benchmark: Object) -> dict[str, Any]:
    """The name of a benchmark's run, and the settings of its traffic."""
    told = [benchmark, benchmark.get("config"), benchmark.get("args")]
    strategies = [t["strategy"] for t in told if isinstance(t, Mapping) and isinstance(t.get("strategy"), Mapping)]
    strategy: Object = strategies[0] if strategies else {}
    marks = [benchmark.get(key) for key in ("id_", "run_id", "run_index", "start_time", "end_time")]
    nested = benchmark.get("config")
    marks += [nested.get("id_"), nested.get("run_id")] if isinstance(nested, Mapping) else []
    digest = hashlib.sha256(repr([marks, sorted(strategy.items(), key=str)]).encode("utf-8", "replace")).hexdigest()
    config = [
        {"key": key.strip("_"), "value": str(value)[:32]}
        for key in _SETTINGS
        if isinstance(value := strategy.get(key), (int, float)) or (isinstance(value, str) and value.isalpha())
    ]
    return {"run_id": f"guidellm-{digest[:10]}", "config": config}


def _model(report: Object) -> str | None:
    args = report.get("args")
    name = args.get("model") if isinstance(args, Mapping) else None
    return _name(name)


def _name(value: Any) -> str | None:
    return text(value, "model")[:200] if isinstance(value, str) and value else None


def _request(request: Object, status: str) -> dict[str, Any]:
    """One request; seconds of the client's clock.

    Raises:
        BrokenError: a figure that is none.
    """
    info = request.get("info")
    timings = info.get("timings") if isinstance(info, Mapping) else None
    if isinstance(timings, Mapping):
        at = {name: _stamp(timings, key) for name, key in (
            ("start", "request_start"), ("first", "first_token_iteration"), ("last", "last_token_iteration"),
            ("end", "request_end"),
        )}  # fmt: skip
    else:
        at = {name: _stamp(request, key) for name, key in (
            ("start", "start_time"), ("first", "first_token_time"), ("last", "last_token_time"), ("end", "end_time"),
        )}  # fmt: skip
    known = request.get("response_id") or request.get("request_id")
    row: dict[str, Any] = {
        "request_id": None if known in (None, "") else text(known, "request_id", is_id=True)[:200],
        "start_s": at["start"],
        "prompt_tokens": _count(request, "prompt_tokens"),
        "output_tokens": _count(request, "output_tokens"),
        "cached_tokens": _count(request, "cached_tokens"),
        "ttft_us": _between(at, "start", "first"),
        "decode_us": _between(at, "first", "last"),
        "e2e_us": _between(at, "start", "end"),
        "finish_reason": _STATUSES[status],
        # One that the end of the benchmark cut off is no request to compare.
        "error": status != "successful",
    }
    return row | {k: v for k, v in _asked(request.get("request_args")).items() if v is not None}


def _stamp(source: Object, name: str) -> float | None:
    value = source.get(name)
    if value is None:
        return None
    number = finite(value, name)
    return number if _EPOCH_S[0] < number < _EPOCH_S[1] else None  # -1 and 0 are stamps that were never taken


def _between(at: Mapping[str, float | None], start: str, end: str) -> int | None:
    a, b = at[start], at[end]
    if a is None or b is None:
        return None
    if not 0 <= b - a < _LONGEST_S:
        raise BrokenError(f"times of a request: {start} <= {end} does not hold")
    return round((b - a) * 1e6)


def _count(source: Object, name: str) -> int | None:
    return None if source.get(name) is None else whole(source[name], name, 2**53)


def _asked(args: Any) -> dict[str, Any]:
    """Model and sampling parameters of the request as it was sent: an object, or the JSON text of one."""
    if isinstance(args, str) and args.lstrip().startswith("{"):
        try:
            args = msgspec.json.decode(args)
        except (msgspec.DecodeError, RecursionError):
            return {}
    body = args.get("body", args.get("payload", args)) if isinstance(args, Mapping) else None
    if not isinstance(body, Mapping):
        return {}
    return {
        "model": _name(body.get("model")),
        "temperature": _setting(body.get("temperature"), 1e6),
        "top_p": _setting(body.get("top_p"), 1.0),
    }


def _setting(value: Any, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= high else None


def _said(request: Object) -> Object | None:
    metrics = request.get("response_metrics")
    spec = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    return spec if isinstance(spec, Mapping) else None


def _canonical(found: pl.DataFrame, context: Context) -> pl.DataFrame:
    start = pl.from_epoch((pl.col("start_s") * 1e6).round().cast(pl.Int64), time_unit="us")
    tokens = pl.col("output_tokens")
    parts = pl.col("decode_us").is_not_null() & (tokens > 1)
    # All requests of a report stand on its line: their place among them tells them apart.
    number = pl.int_range(1, pl.len() + 1)
    unnamed = pl.format("{}#{}", pl.lit(context.source_id), number)
    return found.with_columns(
        request_id=pl.coalesce("request_id", unnamed),
        source_line=number.cast(pl.Int64),
        surface=pl.lit(REQUEST),
        ts_start=start,
        ts_first_token=start + pl.duration(microseconds="ttft_us"),
        ts_end=start + pl.duration(microseconds=pl.coalesce("e2e_us", pl.col("ttft_us") + pl.col("decode_us"))),
        ts_basis=pl.when(pl.col("start_s").is_not_null()).then(pl.lit("absolute")).otherwise("ts_basis"),
        tpot_us=pl.when(parts).then(pl.col("decode_us") / (tokens - 1)),
        tpot_basis=pl.when(parts).then(pl.lit("derived")),
    ).drop("line", "offset", "stamp", "inner", "stream", "run_id", "config", "start_s", "ts")


ENGINE = GuideLLM()
