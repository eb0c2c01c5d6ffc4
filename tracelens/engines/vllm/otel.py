"""OpenTelemetry spans of vLLM: one row a request.

With `--otlp-traces-endpoint` vLLM sends one `llm_request` span for each finished request: V0 from 0.5, V1 from 0.10.2
(none in 0.8 to 0.10.1). Latencies are seconds. Nothing in any version tells of drafts. From 0.16 on there are spans of
the start, too (Load model, Worker init, ...): they are vLLM's, and no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines.base import Context, Parsed, Reject, Span, Surface, Tables
from tracelens.engines.versions import Range, Versions
from tracelens.engines.vllm.cells import micros, numbers
from tracelens.engines.vllm.releases import V0, v1
from tracelens.engines.vllm.startup import leaf

SURFACES: tuple[Surface, ...] = (
    Surface(
        "vllm.otel_span",
        "llm_request spans (OpenTelemetry)",
        Versions(Range("0.5", "0.9", era=V0), " (V0), ", v1("0.10.2"), " (V1)"),
        ("tpot_ms", "temperature", "top_p"),
        "--otlp-traces-endpoint, and keep what the collector receives (its file exporter, Jaeger or Tempo)",
    ),
)

_NAME = "llm_request"
_RESOURCE = "vllm.instrumenting_module_name"  # 0.16+: on every span of vLLM's own
_REAL = {
    "ttft": "gen_ai.latency.time_to_first_token",
    "e2e": "gen_ai.latency.e2e",
    "queue": "gen_ai.latency.time_in_queue",
    "decode": "gen_ai.latency.time_in_model_decode",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "prompt": "gen_ai.usage.prompt_tokens",
    "output": "gen_ai.usage.completion_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "n": "gen_ai.request.n",
    "sequences": "gen_ai.usage.num_sequences",  # V0
}
_TIMES, _COUNTS = ("ttft", "e2e", "queue", "decode"), ("prompt", "output")
_ID, _MODEL = "gen_ai.request.id", "gen_ai.response.model"
# A year in seconds; and more tokens than any context holds. Beyond, the clock or the span is broken.
_LONGEST_S, _MOST_TOKENS = 3.2e7, 2.0**40
# The engine's monotonic clock may run ahead of the front end's by what lies between them, and no further.
_SLACK_S = 1.0


def parse(spans: Sequence[Span]) -> Parsed:
    """Take the `llm_request` spans; spans of vLLM's start are claimed and left."""
    parsed = Parsed()
    wanted = [s for s in spans if s.name == _NAME]
    parsed.claimed = len({s.line for s in spans if s.name == _NAME or _RESOURCE in s.resource})
    if not wanted:
        return parsed
    has = [s.attributes for s in wanted]
    frame = pl.DataFrame(
        {
            "line": pl.Series([s.line for s in wanted], dtype=pl.Int64),
            "trace": pl.Series([s.trace_id for s in wanted], dtype=pl.String),
            "span": pl.Series([s.span_id for s in wanted], dtype=pl.String),
            "start_ns": pl.Series([s.start_ns for s in wanted], dtype=pl.Int64),
            "end_ns": pl.Series([s.end_ns for s in wanted], dtype=pl.Int64),
            "request_id": pl.Series([_text(a.get(_ID)) for a in has], dtype=pl.String),
            "model": pl.Series([_text(a.get(_MODEL)) for a in has], dtype=pl.String),
            **{name: numbers([a.get(key) for a in has]) for name, key in _REAL.items()},
        }
    )
    frame = frame.with_columns(fault=_fault())
    for line, fault in frame.filter(pl.col("fault").is_not_null()).select("line", "fault").iter_rows():
        parsed.rejects.append(Reject(line, fault, "vllm.otel_span"))
    parsed.add("vllm.otel_span", frame.filter(pl.col("fault").is_null()).drop("fault"))
    return parsed


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """Request rows; a span that was exported again counts once.

    TPOT is the decode time over the tokens behind the first. V0 logs no decode time: there it is what lies between the
    first token and the end. A span over several sequences adds their tokens, and has no TPOT.
    """
    tables = Tables()
    frame = frames["vllm.otel_span"].sort("line", maintain_order=True)
    again = (pl.col("span") != "") & ~pl.struct("trace", "span").is_first_distinct()
    frame = frame.with_columns(again=again)
    tables.rejects = [
        Reject(line, "a span that was exported before", "vllm.otel_span") for line in frame.filter("again")["line"]
    ]
    frame = frame.filter(~pl.col("again"))
    decode = pl.coalesce("decode", pl.col("e2e") - pl.col("ttft"))
    one = (pl.col("n").fill_null(1) <= 1) & (pl.col("sequences").fill_null(1) <= 1)
    start = pl.from_epoch(pl.col("start_ns") // 1000, time_unit="us")
    # An attribute is set only where it is true (0.10.2+): greedy decoding leaves the temperature out, and only that.
    sampled = pl.any_horizontal(pl.col("top_p", "max_tokens", "n").is_not_null())
    tables.requests = frame.with_columns(decode=decode, ts_start=start).select(
        "ts_start", "top_p",
        surface=pl.lit("vllm.otel_span"),
        source_line="line",
        request_id=pl.coalesce(
            "request_id", pl.when(pl.col("span") != "").then(pl.format("span-{}", pl.col("span")))
        ),
        model=leaf(pl.col("model")),
        temperature=pl.coalesce("temperature", pl.when(sampled).then(0.0)),
        ts_first_token=pl.col("ts_start") + pl.duration(microseconds=micros("ttft")),
        # The span itself ends when it is exported.
        ts_end=pl.coalesce(
            pl.col("ts_start") + pl.duration(microseconds=micros("e2e")),
            pl.from_epoch(pl.col("end_ns") // 1000, time_unit="us"),
        ),
        prompt_tokens=pl.col("prompt").cast(pl.Int64),
        output_tokens=pl.col("output").cast(pl.Int64),
        ttft_us=micros("ttft"),
        e2e_us=micros("e2e"),
        queue_us=micros("queue"),
        decode_us=micros("decode"),
        tpot_us=pl.when(one & (pl.col("output") > 1)).then(pl.col("decode") * 1e6 / (pl.col("output") - 1)),
    ).with_columns(
        ts_basis=pl.when(pl.col("ts_end").is_not_null()).then(pl.lit("absolute")).otherwise(pl.lit("none")),
        tpot_basis=pl.when(pl.col("tpot_us").is_not_null()).then(pl.lit("derived")),
    )  # fmt: skip
    return tables


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _fault() -> pl.Expr:
    """Why a span is no request that can be used; null where it is one."""
    figures = pl.all_horizontal(pl.col(*_TIMES, *_COUNTS).is_null())
    odd = pl.any_horizontal(~pl.col(*_REAL).is_finite())
    long = pl.any_horizontal(pl.col(*_TIMES) > _LONGEST_S)
    many = pl.any_horizontal(pl.col(*_COUNTS) > _MOST_TOKENS)
    uneven = pl.any_horizontal(pl.col(*_COUNTS).floor() != pl.col(*_COUNTS))
    sampling = (pl.col("temperature") >= 1e6) | (pl.col("top_p") > 1)
    checks = {
        "a request span without its figures": figures,
        "a figure that is no number": odd,
        "a negative figure": pl.any_horizontal(pl.col(*_REAL) < 0),
        "a duration out of range": long,
        "a token count that is no whole number, or out of range": uneven | many,
        "temperature or top_p out of range": sampling,
        "the span ends before it begins": pl.col("end_ns") < pl.col("start_ns"),
        "the first token comes after the end": pl.col("ttft") > pl.col("e2e") + 1e-6,
        "the decode time is longer than the request": pl.col("decode") > pl.col("e2e") + _SLACK_S,
    }
    # False where a figure is missing: what is not there is not odd.
    faults = [pl.when(check.fill_null(False)).then(pl.lit(reason)) for reason, check in checks.items()]
    return pl.coalesce(faults)
