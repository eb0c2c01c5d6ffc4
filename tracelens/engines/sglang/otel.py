"""OpenTelemetry spans of SGLang (`--enable-trace`): requests, and rounds where draft and verify have spans.

A request's root span has its id (`rid`) and, from 0.5.10, latencies in seconds under `gen_ai.latency.*`. Under it each
thread that served it has a span with its ranks, and under that stages: `decode_forward` around `decode_loop` (a step),
`spec_draft`, `spec_verify` with `num_correct_drafts` (drafts that were accepted, the target's own token not among them;
`accepted_tokens` in 0.5.11) and `spec_draft_extend` (the drafter catches up). Only the workers of 0.5.11 and 0.5.12
without the overlap scheduler send the last three, and no release tells what was drafted.

The clock is the host's and the kernels run behind it: a draft's work may end in the verify span, which waits for it.
All requests of a batch get the same start of a stage, to the nanosecond: that tells the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines.base import Context, Parsed, Reject, Span, Surface, Tables
from tracelens.engines.rows import frame_of
from tracelens.engines.sglang.releases import since
from tracelens.engines.sglang.runs import leaf_of
from tracelens.engines.units import finish_reason, integer, real
from tracelens.engines.versions import Range, Versions

REQUEST, STAGE = "sglang.otel_request", "sglang.otel_spans"
SURFACES: tuple[Surface, ...] = (
    Surface(
        REQUEST,
        "request spans (OpenTelemetry)",
        Versions(since("0.5.10")),
        ("tpot_ms", "temperature", "top_p"),
        "--enable-trace --otlp-traces-endpoint HOST:PORT, and keep what the collector receives",
    ),
    Surface(
        STAGE,
        "spec_draft, spec_verify and spec_draft_extend spans (a round of a request)",
        Versions(Range("0.5.11", "0.5.12"), ", without the overlap scheduler"),
        ("rho", "rho_verify", "draft_ms", "target_ms", "step_ms", "tau_verified", "batch_size"),
        "--enable-trace with SGLANG_TRACE_LEVEL=3 and the worker without overlap (SGLANG_ENABLE_SPEC_V2=0); releases "
        "without these spans: the device timer of /metrics",
    ),
)
_STAGES = ("spec_draft", "spec_verify", "spec_draft_extend", "decode_loop")
_MODULE = "sglang::"
_WORDS = re.compile(r"\w+")
_ROOT = re.compile(r"\bReq \S")
_REAL = {
    "ttft": "gen_ai.latency.time_to_first_token",
    "e2e": "gen_ai.latency.e2e",
    "decode": "gen_ai.latency.time_in_model_decode",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "prompt": "gen_ai.usage.prompt_tokens",
    "output": "gen_ai.usage.completion_tokens",
    "cached": "gen_ai.usage.cached_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "n": "gen_ai.request.n",
}
_COUNTS = ("prompt", "output", "cached")
_LONGEST_S, _MOST = 3.2e7, 2.0**40
_SPANS: dict[str, Any] = {
    "line": pl.Int64, "kind": pl.String, "trace": pl.String, "span": pl.String, "parent": pl.String,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "tp": pl.Int64, "dp": pl.Int64, "rid": pl.String, "accepted": pl.Int64,
    "model": pl.String, "finish_reason": pl.String, **dict.fromkeys(_REAL, pl.Float64),
}  # fmt: skip


def parse(spans: Sequence[Span]) -> Parsed:
    """Take the spans that are SGLang's; `claimed` counts the lines they came in."""
    parsed = Parsed()
    rows = [row for s in spans if (row := _row(s)) is not None]
    parsed.claimed = len({r["line"] for r in rows if r["kind"] != "thread"})
    if rows:
        parsed.add(STAGE, frame_of(rows, _SPANS))
    return parsed


def _row(span: Span) -> dict[str, Any] | None:
    """A span as a row, or None where it is none of ours. `thread` spans tell ranks, `inner` ones their parents."""
    has = span.attributes
    at = {
        "line": span.line, "trace": span.trace_id, "span": span.span_id, "parent": span.parent_id,
        "start_ns": span.start_ns, "end_ns": span.end_ns,
    }  # fmt: skip
    if span.name in _STAGES:
        told = (integer(has.get(k)) for k in ("num_correct_drafts", "accepted_tokens"))
        return {**at, "kind": span.name, "accepted": next((n for n in told if n is not None), None)}
    if span.name == "decode_forward":
        return {**at, "kind": "inner"}
    if "thread_label" in has:
        return {**at, "kind": "thread", "tp": _rank(has, "tp_rank"), "dp": _rank(has, "dp_rank")}
    if (
        isinstance(has.get("rid"), str)
        and str(has.get("module", _MODULE)).startswith(_MODULE)
        and _ROOT.search(span.name)
    ):
        rid = has.get("gen_ai.request.id") or has["rid"]
        return {
            **at, "kind": "root", "rid": rid if isinstance(rid, str) else None,
            "model": _text(has, "gen_ai.response.model"),
            "finish_reason": _reason(has.get("gen_ai.response.finish_reasons")),
            **{k: _real(has.get(name)) for k, name in _REAL.items()},
        }  # fmt: skip
    return None


def _rank(has: Mapping[str, Any], name: str) -> int | None:
    return integer(has.get(name), 0, 999_999)


def _reason(reasons: Any) -> str | None:
    """The first of some reasons, as the text of a list (`["length"]`) or as a list."""
    words = _WORDS.findall(reasons[:200]) if isinstance(reasons, str) else reasons
    known = [finish_reason(word) for word in words] if isinstance(words, list) else []
    return known[0] if known and None not in known else None


def _text(has: Mapping[str, Any], name: str) -> str | None:
    value = has.get(name)
    return value if isinstance(value, str) and value else None


def _real(value: Any) -> float | None:
    """A figure; NaN where something else stands in its place."""
    if value is None:
        return None
    number = real(value)
    return float("nan") if number is None else number


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """Requests and rounds; a span that was exported again counts once."""
    tables = Tables()
    every = frames[STAGE].sort("line", maintain_order=True)
    again = (pl.col("span") != "") & ~pl.struct("trace", "span").is_first_distinct()
    every = every.with_columns(again=again)
    dropped = every.filter("again", pl.col("kind") != "thread")
    tables.rejects = [Reject(line, "a span that was exported before", STAGE) for line in dropped["line"]]
    every = every.filter(~pl.col("again")).drop("again")
    roots = _sound_roots(every.filter(pl.col("kind") == "root"), tables)
    stages = _placed(every)
    if stages.height:
        tables.rounds = _rounds(stages, roots, tables)
    if roots.height:
        tables.requests = _requests(roots)
    return tables


def _sound_roots(roots: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Request spans whose figures can be; the others are refused."""
    figures = pl.col(*_REAL)
    counts = pl.col(*_COUNTS)
    checks = {
        "a figure that is no number": pl.any_horizontal(~figures.is_finite()),
        "a negative figure": pl.any_horizontal(figures < 0),
        "a duration out of range": pl.any_horizontal(pl.col("ttft", "e2e", "decode") > _LONGEST_S),
        "a token count that is no whole number, or out of range": pl.any_horizontal(
            (counts.floor() != counts) | (counts > _MOST)
        ),
        "temperature or top_p out of range": (pl.col("temperature") >= 1e6) | (pl.col("top_p") > 1),
        "the span ends before it begins": pl.col("end_ns") < pl.col("start_ns"),
        "the first token comes after the end": pl.col("ttft") > pl.col("e2e") + 1e-6,
    }
    fault = pl.coalesce([pl.when(check.fill_null(False)).then(pl.lit(why)) for why, check in checks.items()])
    roots = roots.with_columns(fault=fault)
    bad = roots.filter(pl.col("fault").is_not_null())
    tables.rejects += [Reject(line, why, REQUEST) for line, why in bad.select("line", "fault").iter_rows()]
    return roots.filter(pl.col("fault").is_null()).drop("fault")


def _requests(roots: pl.DataFrame) -> pl.DataFrame:
    start = pl.from_epoch(pl.col("start_ns") // 1000, time_unit="us")
    told = roots.filter(pl.any_horizontal(pl.col("e2e", "output", "prompt").is_not_null()))
    decode = pl.coalesce("decode", pl.col("e2e") - pl.col("ttft"))
    one = (pl.col("n").fill_null(1) <= 1) & (pl.col("output") > 1)
    # An attribute is set only where it is not zero: a request that names other settings and no temperature is greedy.
    sampled = pl.any_horizontal(pl.col("top_p", "max_tokens", "n").is_not_null())
    return told.with_columns(decode=decode, ts_start=start).select(
        "ts_start", "top_p", "finish_reason",
        surface=pl.lit(REQUEST),
        source_line="line",
        request_id=pl.coalesce("rid", pl.format("span-{}", "span")),
        model=leaf_of(pl.col("model")),
        temperature=pl.coalesce("temperature", pl.when(sampled).then(0.0)),
        ts_first_token=pl.col("ts_start") + pl.duration(microseconds=_us("ttft")),
        ts_end=pl.coalesce(
            pl.col("ts_start") + pl.duration(microseconds=_us("e2e")),
            pl.from_epoch(pl.col("end_ns") // 1000, time_unit="us"),
        ),
        prompt_tokens=pl.col("prompt").cast(pl.Int64),
        output_tokens=pl.col("output").cast(pl.Int64),
        cached_tokens=pl.col("cached").cast(pl.Int64),
        ttft_us=_us("ttft"),
        e2e_us=_us("e2e"),
        decode_us=_us("decode"),
        tpot_us=pl.when(one).then(pl.col("decode") * 1e6 / (pl.col("output") - 1)),
        error=pl.col("finish_reason") == "abort",
    ).with_columns(
        ts_basis=pl.when(pl.col("ts_end").is_not_null()).then(pl.lit("absolute")).otherwise(pl.lit("none")),
        tpot_basis=pl.when(pl.col("tpot_us").is_not_null()).then(pl.lit("derived")),
    )  # fmt: skip


def _placed(every: pl.DataFrame) -> pl.DataFrame:
    """Stages with the ranks of their thread; of the tensor-parallel ranks, which all send the same, the first."""
    stages = every.filter(
        pl.col("kind").is_in(_STAGES), pl.col("start_ns").is_not_null(), pl.col("end_ns").is_not_null()
    )
    stages = stages.filter(pl.col("end_ns") >= pl.col("start_ns")).drop("tp", "dp", "rid")
    inner = every.filter(pl.col("kind") == "inner").select("trace", parent="span", _outer="parent")
    stages = stages.join(inner, on=("trace", "parent"), how="left", maintain_order="left")
    stages = stages.with_columns(thread=pl.coalesce("_outer", "parent")).drop("_outer")
    threads = every.filter(pl.col("kind") == "thread").select("trace", "tp", "dp", root="parent", thread="span")
    stages = stages.join(threads, on=("trace", "thread"), how="left", maintain_order="left")
    tp = pl.col("tp").fill_null(0)
    return stages.filter(tp == tp.min().over("trace", "dp"))


def _rounds(stages: pl.DataFrame, roots: pl.DataFrame, tables: Tables) -> pl.DataFrame | None:
    """One round a verify span, with the draft before it, the drafter's extension behind it and the step around it."""
    side = ("trace", "thread")
    frames = {k: stages.filter(pl.col("kind") == k).sort("start_ns", maintain_order=True) for k in _STAGES}
    rows = frames["spec_verify"].with_columns(_at="start_ns").set_sorted("_at")
    bad = rows.filter(~pl.col("accepted").is_between(0, 65_536).fill_null(False))
    tables.rejects += [Reject(line, "a verify span without its accepted tokens", STAGE) for line in bad["line"]]
    rows = rows.join(bad.select("trace", "span"), on=("trace", "span"), how="anti", maintain_order="left")
    if not rows.height:
        return None
    before = pl.col("start_ns").shift(1).over(side)
    rows = rows.with_columns(_before=before, round_index=pl.int_range(pl.len()).over(side))
    for kind, name in (("spec_draft", "draft"), ("decode_loop", "loop")):
        other = frames[kind].select(
            *side, pl.col("start_ns").alias(f"{name}_start"), pl.col("end_ns").alias(f"{name}_end")
        )
        rows = rows.join_asof(
            other, left_on="start_ns", right_on=f"{name}_start", by=side, strategy="backward", check_sortedness=False
        )
    own = (pl.col("draft_end") <= pl.col("start_ns")) & (pl.col("draft_start") > pl.col("_before").fill_null(0))
    around = pl.col("loop_end") >= pl.col("end_ns")
    extend = frames["spec_draft_extend"].join_asof(
        rows.select(*side, _of="start_ns", _span="span").sort("_of"),
        left_on="start_ns", right_on="_of", by=side, strategy="backward", check_sortedness=False,
    )  # fmt: skip
    took = extend.group_by("trace", "_span").agg(extend_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    rows = rows.join(took, left_on=("trace", "span"), right_on=("trace", "_span"), how="left", maintain_order="left")
    draft = pl.when(own).then(pl.col("draft_end") - pl.col("draft_start") + pl.col("extend_ns").fill_null(0))
    named = roots.select("trace", "rid", root="span")
    rows = rows.join(named, on=("trace", "root"), how="left", maintain_order="left").sort("line", maintain_order=True)
    # Requests of one batch begin a stage together.
    batch = pl.len().over("dp", "start_ns")
    return rows.select(
        "round_index",
        ts=pl.from_epoch(pl.col("end_ns") // 1000, time_unit="us"),
        ts_basis=pl.lit("absolute"),
        surface=pl.lit(STAGE),
        source_line="line",
        replica=pl.col("dp").cast(pl.String),
        request_id=pl.coalesce("rid", pl.format("{}-{}", "trace", pl.col("thread"))),
        step_id=pl.col("start_ns").cast(pl.String),
        step_share=1.0 / batch,
        batch_size=batch.cast(pl.Int32),
        accepted=pl.col("accepted").cast(pl.Int32),
        emitted=(pl.col("accepted") + 1).cast(pl.Int32),
        draft_us=_ns(draft),
        target_us=_ns(pl.col("end_ns") - pl.col("start_ns")),
        step_us=_ns(pl.when(around).then(pl.col("loop_end") - pl.col("loop_start"))),
        timing_basis=pl.lit("host"),
    )


def _us(seconds: str) -> pl.Expr:
    return (pl.col(seconds) * 1e6 + 0.5).floor().cast(pl.Int64, strict=False)


def _ns(nanoseconds: pl.Expr) -> pl.Expr:
    return (nanoseconds / 1000 + 0.5).floor().cast(pl.Int64, strict=False)
