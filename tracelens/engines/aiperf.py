"""AIPerf: records by request (`profile_export.jsonl`) and the sums of a run (`profile_export_aiperf.json`).

A benchmark of any engine, seen from the client. `spec_decode_acceptance` (0.13 and later) is what the engine said of a
request in its response: vLLM's shape for all of them, with the histogram as a mapping. `request_latency` and
`time_to_first_token` are the client's clock; `inter_token_latency` is (latency - TTFT) / (tokens - 1), so TPOT, and
`inter_chunk_latency` lists the gaps between received chunks: with speculation a chunk is a round, where the counts
prove it.

llama.cpp says no more than totals, from which AIPerf's adapter makes a histogram as flat as can be, and takes all
output tokens without an accepted draft for rounds, the prefill's own among them. Neither is read. In the sums of a run
no engine is named: acceptance by length is taken from them only if the drafts are a whole number a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines import acceptance, rows
from tracelens.engines import aiperf_metrics as figures
from tracelens.engines.acceptance import HISTOGRAM, dense
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.units import INT32_MAX, LONGEST_DRAFT, BrokenError, counts, text
from tracelens.engines.vllm.startup import leaf

__all__ = ["ENGINE"]

REQUEST, RUN = "aiperf.request", "aiperf.run"
SURFACES: tuple[Surface, ...] = (
    Surface(
        RUN,
        "profile_export_aiperf.json (sums of a run)",
        "0.8 and later (acceptance 0.13+)",
        ("draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share"),
        "written by every `aiperf profile`",
    ),
    Surface(
        REQUEST,
        "profile_export.jsonl (its requests)",
        "0.8 and later (acceptance 0.13+)",
        (
            "draft_accept_ratio",
            "token_accept_prob",
            "hazard",
            "rollback_len",
            "near_k_request_share",
            "tau_committed",
            "tpot_ms",
            "speedup_tpot",
            "ttft_ms",
        ),
        "aiperf profile --streaming --export-level records, against a server that reports acceptance (vLLM: "
        "--enable-per-request-metrics --per-request-spec-decode-metrics detailed)",
    ),
)
_SPEC = "spec_decode_acceptance"
_POOLED = "pooled_spec_decode_acceptance_histogram"
_TOTALS = ("total_spec_decode_steps", "total_draft_tokens", "total_accepted_draft_tokens")
# The server's own count first.
_OUTPUT = ("total_usage_completion_tokens", "total_output_tokens", "total_osl")
_INPUT = ("total_usage_prompt_tokens", "total_isl")
# A record names its phase, the sums their count; what an issue quotes is the acceptance alone.
KEYS: Sequence[bytes] = (
    b'"spec_decode_acceptance"', b'"benchmark_phase"', b'"request_start_ns"', b'"acceptance_histogram"',
    b'"total_spec_decode_steps"', b'"aiperf_version"',
)  # fmt: skip
_EPOCH_NS = (10**18, 4 * 10**18)  # 2001 to 2096
_LLAMA = ("llamacpp", "llama.cpp", "llama_cpp", "llama-cpp")
# Names of engines as AIPerf's adapters may spell them, and as the lake does.
_NAMES = {
    **dict.fromkeys(_LLAMA, "llama.cpp"),
    **dict.fromkeys(("trtllm", "trt-llm", "tensorrtllm", "tensorrt_llm"), "tensorrt-llm"),
}
# A histogram of totals says nothing if the totals leave one possibility; of so many others one would not be flat.
_FLAT_REQUESTS, _FLAT_STEPS = 3, 8
_FABRICATED = "acceptance by length is made of totals (llama.cpp reports no more): not used"
_FLAT = "acceptance by length is as flat as can be in every request, as if made of totals: not used"
_LENGTHS = "acceptance by length: drafts are no whole number a round, and the engine is not named: not used"

Object = Mapping[str, Any]
_REQUEST: Mapping[str, Any] = {
    **rows.PLACE, "request_id": pl.String, "flavour": pl.String, "start_us": pl.Int64, "end_us": pl.Int64,
    "prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "ttft_us": pl.Int64, "e2e_us": pl.Int64,
    "tpot_us": pl.Float64, "finish_reason": pl.String, "error": pl.Boolean, "gaps_us": pl.List(pl.Int64),
    **acceptance.COLUMNS,
}  # fmt: skip
_RUN: Mapping[str, Any] = {
    **rows.PLACE, "model": pl.String, "window_us": pl.Int64, "rounds": pl.Int64, "drafted": pl.Int64,
    "accepted": pl.Int64, "accepted_per_pos": pl.List(pl.Int64), "num_speculative_tokens": pl.Int32,
    "generated_tokens": pl.Int64, "prompt_tokens": pl.Int64, "ended": pl.String, "note": pl.String,
}  # fmt: skip


class AIPerf:
    """The AIPerf reader."""

    name = "aiperf"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = ()
    json_keys: Sequence[bytes] = KEYS

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """No text lines."""
        return Parsed()

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Records of requests, quoted acceptance, and sums of runs."""
        parsed = Parsed()
        requests: list[tuple[JsonRecord, dict[str, Any]]] = []
        sums: list[dict[str, Any]] = []
        for record in records:
            kind = _kind(record.value)
            if kind is None:
                continue
            parsed.claimed += 1
            try:
                row = (_run if kind == RUN else _request)(record.value)
            except BrokenError as error:
                parsed.rejects.append(Reject(record.line, str(error), kind, record.offset))
                continue
            if row.get("note"):
                parsed.rejects.append(Reject(record.line, row["note"], kind, record.offset))
            if kind == RUN:
                sums.append(row | rows.place(record))
            else:
                requests.append((record, row))
        parsed.add(REQUEST, rows.frame_of(_with_acceptance(requests, parsed), _REQUEST))
        parsed.add(RUN, rows.frame_of(sums, _RUN))
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Requests, their rounds in order where they are listed, and one window for the sums of a run."""
        found = rows.whole(frames, SURFACES, context)
        tables = Tables()
        if REQUEST in found:
            tables.requests, tables.rounds = _requests(_counted(found[REQUEST], tables), context)
        if RUN in found:
            tables.windows = _sums(found[RUN])
        tables.runs = _about(found)
        return rows.of_server(tables, self.name)


def _kind(value: Object) -> str | None:
    metadata = value.get("metadata")
    if isinstance(metadata, Mapping) and ("benchmark_phase" in metadata or "request_start_ns" in metadata):
        return REQUEST if isinstance(value.get("metrics"), Mapping) else None
    if isinstance(value.get(_SPEC), Mapping) or (
        isinstance(value.get(HISTOGRAM), Mapping) and "num_spec_steps" in value
    ):
        return REQUEST
    if "aiperf_version" in value or _POOLED in value or _TOTALS[0] in value:
        return (
            RUN
            if any(isinstance(value.get(k), Mapping) for k in (*_TOTALS, "request_count", "request_latency"))
            else None
        )
    return None


def _request(value: Object) -> dict[str, Any]:
    """One request.

    Raises:
        BrokenError: a figure that is none, an identity that does not hold, or a request of the warm-up.
    """
    metadata, metrics = figures.child(value, "metadata"), figures.child(value, "metrics")
    if metadata.get("benchmark_phase") == "warmup":
        raise BrokenError("a request of the warm-up: not counted")
    quoted = HISTOGRAM in value and _SPEC not in value
    spec = value if quoted else figures.child(value, _SPEC)
    tokens = [
        spec.get("completion_tokens"), figures.metric(metrics, "usage_completion_tokens"),
        figures.metric(metrics, "output_sequence_length"),
    ]  # fmt: skip
    known_id = next((metadata[k] for k in ("x_request_id", "request_id") if metadata.get(k)), None)
    cancelled = metadata.get("was_cancelled") is True
    row: dict[str, Any] = {
        "request_id": None if known_id is None else text(known_id, "x_request_id", is_id=True)[:200],
        "flavour": _flavour(spec.get("engine")),
        "start_us": _epoch(metadata, "request_start_ns"),
        "end_us": _epoch(metadata, "request_end_ns"),
        "prompt_tokens": figures.first(
            [figures.metric(metrics, "usage_prompt_tokens"), figures.metric(metrics, "input_sequence_length")]
        ),
        "output_tokens": figures.first(tokens),
        "ttft_us": figures.micros(metrics, "time_to_first_token"),
        "e2e_us": figures.micros(metrics, "request_latency"),
        "tpot_us": figures.real_micros(metrics, "inter_token_latency"),
        "finish_reason": "cancelled" if cancelled else None,
        "error": bool(cancelled or value.get("error")) if metadata else None,
        "gaps_us": figures.gaps(metrics),
    }
    if spec and row["flavour"] in _LLAMA:
        told = {name: spec.get(name) for name in ("num_draft_tokens", "num_accepted_draft_tokens")}
        row |= {"spec": told, "note": _FABRICATED}
    elif spec:
        row["spec"] = {**spec, HISTOGRAM: dense(spec.get(HISTOGRAM))}
    return row


def _with_acceptance(requests: Sequence[tuple[JsonRecord, dict[str, Any]]], parsed: Parsed) -> list[dict[str, Any]]:
    """The rows of requests with what the engine said of each; one that contradicts itself is refused."""
    said, faults = acceptance.read([(row.get("spec"), row["output_tokens"]) for _, row in requests])
    made = []
    for i, (record, row) in enumerate(requests):
        if i in faults:
            parsed.rejects.append(Reject(record.line, faults[i], REQUEST, record.offset))
            continue
        told = dict(said[i])
        if row.get("note") and row["output_tokens"] is not None:
            told["emitted"] = max(row["output_tokens"] - 1, 0)  # the prefill gives the first
        made.append(row | told | rows.place(record))
    return made


def _run(value: Object) -> dict[str, Any]:
    """The sums of a run.

    Raises:
        BrokenError: a figure that is none, or an identity that does not hold.
    """
    rounds, drafted, accepted = (figures.total(value, name) for name in _TOTALS)
    row: dict[str, Any] = {
        "rounds": rounds, "drafted": drafted, "accepted": accepted, "model": _model(value),
        "generated_tokens": figures.first([figures.total(value, n) for n in _OUTPUT]),
        "prompt_tokens": figures.first([figures.total(value, n) for n in _INPUT]),
        "inner": value["end_time"] if isinstance(value.get("end_time"), str) else None,
        "window_us": figures.micros(value, "benchmark_duration", "avg", "sec"),
    }  # fmt: skip
    if drafted is not None and accepted is not None and accepted > drafted:
        raise BrokenError("total_accepted_draft_tokens <= total_draft_tokens does not hold")
    if drafted and rounds is not None and drafted > rounds * LONGEST_DRAFT:
        raise BrokenError("total_draft_tokens: longer than any draft")
    hist = dense(value.get(_POOLED))
    if not hist:
        return row
    lengths = counts(hist, _POOLED)
    if rounds is not None and sum(lengths) != rounds:
        raise BrokenError(f"sum({_POOLED}) = total_spec_decode_steps does not hold")
    if accepted is not None and sum(j * n for j, n in enumerate(lengths)) != accepted:
        raise BrokenError(f"sum(j * {_POOLED}[j]) = total_accepted_draft_tokens does not hold")
    k = drafted // rounds if rounds and drafted and drafted % rounds == 0 else None
    if k is None or len(lengths) - 1 > k:
        return row | {"note": _LENGTHS}
    lengths += [0] * (k + 1 - len(lengths))
    return row | {"num_speculative_tokens": k, "accepted_per_pos": [sum(lengths[i:]) for i in range(1, k + 1)]}


def _epoch(metadata: Object, name: str) -> int | None:
    value = metadata.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not _EPOCH_NS[0] <= value <= _EPOCH_NS[1]:
        return None
    return value // 1000


def _flavour(engine: Any) -> str | None:
    """The engine that was measured, as one plain word."""
    word = engine.lower() if isinstance(engine, str) else ""
    return word if 0 < len(word) <= 32 and word.replace("_", "").replace(".", "").replace("-", "").isalnum() else None


def _model(value: Object) -> str | None:
    """The model, where the settings name one; `input_config` is the settings as they were given."""
    endpoint = figures.child(figures.child(value, "input_config"), "endpoint")
    names = endpoint.get("model_names") or endpoint.get("models") or []
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    return text(name, "model")[:200] if isinstance(name, str) else None


def _counted(found: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """The requests without histograms that are flat in each of them, where that can't be chance."""
    rounds, accepted, hist = pl.col("rounds"), pl.col("accepted"), pl.col("accepted_hist")
    k = pl.col("num_speculative_tokens").fill_null(INT32_MAX).cast(pl.Int64)
    telling = (rounds >= _FLAT_STEPS) & (k > 1) & (accepted > 0) & (accepted % rounds > 0) & (hist.list.len() > 0)
    base = accepted // rounds
    in_two = hist.list.get(base, null_on_oob=True).fill_null(0) + hist.list.get(base + 1, null_on_oob=True).fill_null(0)
    seen = found.filter(telling).select(flat=in_two == rounds, line="line")
    if seen.height < _FLAT_REQUESTS or not seen["flat"].all():
        return found
    tables.rejects.append(Reject(seen["line"][0], _FLAT, REQUEST))
    return found.with_columns(accepted_hist=pl.lit(None, pl.List(pl.Int64)))


def _requests(found: pl.DataFrame, context: Context) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    start, end = (pl.col(c).cast(pl.Datetime("us")) for c in ("start_us", "end_us"))
    e2e = pl.coalesce(
        "e2e_us", pl.when(pl.col("end_us") >= pl.col("start_us")).then(pl.col("end_us") - pl.col("start_us"))
    )
    decode = pl.col("e2e_us") - pl.col("ttft_us")
    found = found.with_columns(
        request_id=pl.coalesce("request_id", rows.unnamed(context)),
        ts_start=start,
        ts_end=pl.coalesce(start + pl.duration(microseconds=e2e), end, "ts"),
        ts_basis=pl.when(pl.coalesce(start, end).is_not_null()).then(pl.lit("absolute")).otherwise("ts_basis"),
        e2e_us=e2e,
        decode_us=pl.when(decode >= 0).then(decode),
        source_line="line",
        surface=pl.lit(REQUEST),
    )
    tokens = pl.col("output_tokens")
    parts = pl.col("decode_us").is_not_null() & (tokens > 1)
    derived = pl.when(parts).then(pl.col("decode_us") / (tokens - 1))
    found = found.with_columns(
        ts_first_token=pl.col("ts_start") + pl.duration(microseconds=pl.min_horizontal("ttft_us", "e2e_us")),
        tpot_basis=pl.when(parts).then(pl.lit("derived")).when(pl.col("tpot_us").is_not_null()).then(pl.lit("logged")),
        tpot_us=pl.coalesce(derived, "tpot_us"),
    )
    working = (
        "line", "offset", "stamp", "inner", "stream", "flavour", "start_us", "end_us", "ts", "gaps_us",
        "step_drafted", "step_accepted", "step_emitted",
    )  # fmt: skip
    return found.drop(working), _rounds(found)


def _rounds(requests: pl.DataFrame) -> pl.DataFrame | None:
    """Rounds in order. A gap between chunks is a round's time where there are as many, and no plain step is hidden.

    Then a request's rounds gave all its tokens but the first, up to what a stop cut from the last one.
    """
    made = pl.col("step_accepted").list.sum() + pl.col("step_accepted").list.len().cast(pl.Int64)
    cut = made - (pl.col("output_tokens") - 1)
    last = pl.col("step_accepted").list.last()
    proved = (pl.col("gaps_us").list.len() == pl.col("step_drafted").list.len()) & (cut >= 0) & (cut <= last)
    requests = requests.with_columns(
        step_us=pl.when(proved).then("gaps_us"),
        ts=pl.when(proved).then(pl.col("gaps_us").list.eval(pl.element().cum_sum())),
    )
    shared = (
        "request_id", "num_speculative_tokens", "source_line", "ts_basis", "surface", "ts_first_token", "ts_end",
    )  # fmt: skip
    found = acceptance.rounds_of(requests, shared)
    if found is None:
        return None
    at = pl.col("ts_first_token") + pl.duration(microseconds="ts")
    return found.with_columns(
        ts=pl.coalesce(at, "ts_end"),  # without times of its own a round's day is its request's
        timing_basis=pl.when(pl.col("step_us").is_not_null()).then(pl.lit("derived")),
    ).drop("ts_first_token", "ts_end")


def _sums(found: pl.DataFrame) -> pl.DataFrame:
    counted = pl.col("accepted").is_not_null() | pl.col("generated_tokens").is_not_null()
    return found.select(
        "ts_basis", "window_us", "rounds", "drafted", "accepted", "accepted_per_pos", "generated_tokens",
        "prompt_tokens", "num_speculative_tokens",
        source_line="line",
        surface=pl.lit(RUN),
        model=leaf(pl.col("model")),
        ts_end="ts",
        ts_start=pl.col("ts") - pl.duration(microseconds="window_us"),
        rounds_basis=pl.when(pl.col("rounds").is_not_null()).then(pl.lit("logged")),
        counts_basis=pl.when(counted).then(pl.lit("logged")),
    )  # fmt: skip


def _about(found: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """What the source tells of the server that it measured, if it is one."""
    told: dict[str, Any] = {"run_key": 0}
    for surface, column, name in ((REQUEST, "flavour", "engine_flavour"), (RUN, "model", "model")):
        values = found[surface][column].drop_nulls().unique().to_list() if surface in found else []
        values = list({_NAMES.get(v, v) if column == "flavour" else v for v in values})
        told |= {name: values[0]} if len(values) == 1 else {}
    kinds = {"run_key": pl.Int64, "engine_flavour": pl.String, "model": pl.String}
    if len(told) == 1:
        return None
    frame = pl.DataFrame([told], schema={c: kinds[c] for c in told})
    return frame.with_columns(leaf(pl.col("model"))) if "model" in told else frame


ENGINE = AIPerf()
