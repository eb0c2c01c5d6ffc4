"""Results of `vllm bench`: requests and sums of one run each.

`bench serve --save-result` writes one object, `--append-result` one a line, `--save-detailed` lists by request beside
the sums; `bench sweep serve` writes such an object a run (`run=0.json`), with the parameters it varied in it, and the
same objects again as an array (`summary.json`). `bench throughput --output-json` writes five numbers.

TPOT is (latency - TTFT) / (output tokens - 1). What vLLM calls ITL here is the gap between two received chunks: with
speculation a chunk holds several tokens, so it is no TPOT, and in general no round either (the front end merges outputs
when it falls behind, and sends empty chunks for tokens without text). It is taken as round time only where the counts
prove it: as many gaps as drafts that the server counted, or one gap a token in a result without drafts. A result that
does not list its requests has their means (`bench_means`).

Acceptance is the server's counters after the run less those before (0.14+): other traffic of that time is in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines import bench_means
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.units import INT32_MAX, LONGEST_DRAFT, BrokenError, finite, nearest, whole
from tracelens.engines.versions import Range, Versions
from tracelens.engines.vllm.bench_told import server
from tracelens.engines.vllm.cells import micros, numbers
from tracelens.engines.vllm.releases import since
from tracelens.engines.vllm.startup import leaf

SERVE, REQUEST, THROUGHPUT = "vllm.bench_serve", "vllm.bench_request", "vllm.bench_throughput"
_ACCEPTANCE = ("draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share")
SURFACES: tuple[Surface, ...] = (
    Surface(
        SERVE,
        "vllm bench serve (sums and means of a run)",
        Versions(since("0.4"), " (acceptance ", Range("0.14", form="{first}+", of=_ACCEPTANCE), ")"),
        (*_ACCEPTANCE, "tpot_ms"),
        "vllm bench serve --save-result, with the server's /metrics in reach",
    ),
    Surface(
        REQUEST,
        "vllm bench serve (its requests)",
        Versions(since("0.4")),
        ("tpot_ms",),
        "vllm bench serve --save-result --save-detailed",
    ),
    Surface(
        THROUGHPUT,
        "vllm bench throughput (the length of a run; its tokens are not told apart)",
        Versions(since("0.6")),
        (),
        "vllm bench throughput --output-json",
    ),
)
# "elapsed_time" alone is a word of many logs.
KEYS: Sequence[bytes] = (b'"request_throughput"', b'"requests_per_second"')

_SERVE_KEYS = frozenset({"model_id", "duration", "completed", "total_output_tokens", "request_throughput"})
_THROUGHPUT_KEYS = frozenset({"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second"})
# `vllm bench serve --backend` measures other engines, too; `vllm`, `openai`, `openai-chat` ... are taken for vLLM.
_OTHERS = frozenset(
    {"tgi", "sglang", "sglang-native", "tensorrt-llm", "deepspeed-mii", "lmdeploy", "scalellm", "llama.cpp"}
)
_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")
_LONGEST_S = 3.2e7  # a year
_EPS = 1e-6

Object = Mapping[str, Any]

_CONFIG = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))
_RUN: dict[str, Any] = {
    "model": pl.String, "draft_model": pl.String, "method": pl.String, "num_speculative_tokens": pl.Int32,
    "tensor_parallel": pl.Int32, "data_parallel": pl.Int32, "max_num_seqs": pl.Int32, "role": pl.String,
    "config": _CONFIG,
}  # fmt: skip
_RESULT: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "run_id": pl.String, **_RUN, "task_type": pl.String, "temperature": pl.Float64, "top_p": pl.Float64,
    "window_us": pl.Int64, "rounds": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64,
    "accepted_per_pos": pl.List(pl.Int64), "generated_tokens": pl.Int64, "prompt_tokens": pl.Int64,
    "round_us": pl.Int64, "rounds_timed": pl.Int64, **bench_means.COLUMNS,
}  # fmt: skip


def holds(value: Object) -> bool:
    """Whether a JSON object is a result of `vllm bench`."""
    return value.keys() >= _SERVE_KEYS or value.keys() >= _THROUGHPUT_KEYS


def parse(records: Sequence[JsonRecord]) -> Parsed:
    """Take results for which `holds` is true."""
    parsed = Parsed()
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:  # a handful a file; their requests are read by the column
        parsed.claimed += 1
        surface = SERVE if record.value.keys() >= _SERVE_KEYS else THROUGHPUT
        where = {"line": record.line, "offset": record.offset, "stamp": record.stamp, "stream": record.stream}
        try:
            row = _serve(record.value, record, parsed) if surface == SERVE else _throughput(record.value)
        except BrokenError as error:
            parsed.rejects.append(Reject(record.line, str(error), surface, record.offset))
            continue
        rows.setdefault(surface, []).append({**row, **where})
    for surface, found in rows.items():
        parsed.add(surface, pl.DataFrame(found, schema=_RESULT))
    return parsed


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """A run and a window each result, and its requests. A result that is there twice counts once."""
    tables = Tables()
    results = pl.concat([frames[s].with_columns(surface=pl.lit(s)) for s in (SERVE, THROUGHPUT) if s in frames]).sort(
        "line", maintain_order=True
    )
    first = pl.col("run_id").is_first_distinct()
    for line, surface in results.filter(~first).select("line", "surface").iter_rows():
        tables.rejects.append(Reject(line, "a result that is in this source already", surface))
    results = results.filter(first).with_row_index("run_key", 1).with_columns(pl.col("run_key").cast(pl.Int64))
    results = results.with_columns(context.resolve(results.select("stamp", "inner")), model=leaf(pl.col("model")))
    # No start is told, only an end: a run that knew its start would keep other records of its folder from finding the
    # one server that was started there.
    tables.runs = results.select("run_key", "run_id", *_RUN, is_result=True).with_columns(
        draft_model=leaf(pl.col("draft_model"))
    )
    start = pl.col("ts") - pl.duration(microseconds="window_us")
    shared = ("run_key", "task_type", "temperature", "top_p")
    counted = pl.col("accepted").is_not_null() | pl.col("generated_tokens").is_not_null()
    tables.windows = results.select(
        *shared, "surface", "ts_basis", "window_us", "rounds", "drafted", "accepted", "accepted_per_pos",
        "generated_tokens", "prompt_tokens", "round_us", "rounds_timed",
        source_line="line",
        ts_start=start,
        ts_end="ts",
        counts_basis=pl.when(counted).then(pl.lit("logged")),
        # Rounds are logged; the counts by position are the whole numbers behind unrounded rates.
        rounds_basis=pl.when(pl.col("accepted_per_pos").is_not_null())
        .then(pl.lit("exact"))
        .when(pl.col("rounds").is_not_null())
        .then(pl.lit("logged")),
    )  # fmt: skip
    of_all = results.with_columns(ts_start=start, ts_end="ts")
    parts = [bench_means.requests(of_all, context.source_id, *shared, "ts_start", "ts_end", "ts_basis")]
    if REQUEST in frames:
        parts.append(_requests(frames[REQUEST], results.select(*shared, "line", "ts", "ts_basis"), context))
    found = pl.concat([p for p in parts if p.height] or parts[:1], how="diagonal")
    tables.requests = found if found.height else None
    return tables


def _requests(frame: pl.DataFrame, results: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Requests of the results that count. Their clock is the client's own: its last answer was the end of the run."""
    out = frame.join(results, on="line", how="inner", maintain_order="left")
    ago = (pl.col("last_s") - pl.col("start_s")) * 1e6
    out = out.with_columns(ts_start=pl.col("ts") - pl.duration(microseconds=ago.round().cast(pl.Int64, strict=False)))
    decode = pl.col("latency_s") - pl.col("ttft_s")
    return out.with_columns(decode_s=pl.when(decode >= 0).then(decode)).select(
        "run_key", "task_type", "temperature", "top_p", "ts_start", "prompt_tokens", "output_tokens", "error",
        surface=pl.lit(REQUEST),
        source_line="line",
        request_id=pl.format("{}#{}.{}", pl.lit(context.source_id), "line", "index"),
        ts_first_token=pl.col("ts_start") + pl.duration(microseconds=micros("ttft_s")),
        ts_end=pl.coalesce(pl.col("ts_start") + pl.duration(microseconds=micros("latency_s")), "ts"),
        ts_basis="ts_basis",
        ttft_us=micros("ttft_s"),
        decode_us=micros("decode_s"),
        e2e_us=micros("latency_s"),
        queue_us=micros("queue_s"),
        tpot_us=pl.when(pl.col("output_tokens") > 1).then(pl.col("decode_s") * 1e6 / (pl.col("output_tokens") - 1)),
    ).with_columns(tpot_basis=pl.when(pl.col("tpot_us").is_not_null()).then(pl.lit("derived")))  # fmt: skip


def _throughput(result: Object) -> dict[str, Any]:
    seconds = _seconds(result, "elapsed_time")
    whole(result["num_requests"], "num_requests")
    whole(result["total_num_tokens"], "total_num_tokens")
    row = {"run_id": _name(result, None, *sorted(_THROUGHPUT_KEYS)), "window_us": round(seconds * 1e6)}
    told = server(result, 0, None)
    settings = [{"key": key, "value": str(result[key])} for key in ("num_requests", "total_num_tokens")]
    return {**row, **told, "config": [*told["config"], *settings]}


def _serve(result: Object, record: JsonRecord, parsed: Parsed) -> dict[str, Any]:
    """The row of a result; its requests go to `parsed`.

    Raises:
        BrokenError: a sum that is none, or a result that must not be counted.
    """
    if str(result.get("backend", result.get("endpoint_type"))) in _OTHERS:
        raise BrokenError("a result of another engine")
    if result.get("run_number") == -1:
        raise BrokenError("a sweep's warm-up run: not counted")
    date = _date(result.get("date"))
    row: dict[str, Any] = {
        "run_id": _name(result, date, "date", "model_id", "duration", "total_input_tokens", "total_output_tokens"),
        "inner": date,
        "window_us": round(_seconds(result, "duration") * 1e6),
        "generated_tokens": whole(result["total_output_tokens"], "total_output_tokens"),
        "prompt_tokens": _count(result, "total_input_tokens"),
    }
    completed = whole(result["completed"], "completed")
    counts = _acceptance(result, record, parsed)
    row |= {**counts, **server(result, len(counts.get("accepted_per_pos") or ()), counts.get("rounds"))}
    row["model"] = result["model_id"] if isinstance(result["model_id"], str) else None
    requests = _request_frame(result, record, parsed)
    if requests is not None:
        parsed.add(REQUEST, requests)
        return row | _round_time(result, requests, counts.get("rounds"))
    made = row["generated_tokens"]
    means = bench_means.told(result, completed, made, "mean_e2el_ms")
    return row | means | bench_means.round_time(result, means, counts.get("rounds"), made)


def _name(result: Object, date: str | None, *keys: str) -> str:
    """A run's name from what a result measured: the same in `run=0.json` and in the sweep's `summary.json`."""
    digest = hashlib.sha256(repr([result.get(key) for key in keys]).encode("utf-8", "replace")).hexdigest()
    when = "" if date is None else re.sub(r"\D", "", date)[:8] + "T" + re.sub(r"\D", "", date)[8:] + "-"
    return f"vllm-bench-{when}{digest[:8]}"


def _date(value: Any) -> str | None:
    """The end of the run as vLLM writes it (`20261129-121525`, local time of the client), as a stamp."""
    match = _DATE.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else "{}-{}-{} {}:{}:{}".format(*match.groups())


def _seconds(result: Object, key: str) -> float:
    value = finite(result[key], key)
    if not 0 <= value < _LONGEST_S:
        raise BrokenError(f"{key}: out of range")
    return value


def _count(result: Object, key: str) -> int | None:
    return None if result.get(key) is None else whole(result[key], key)


def _acceptance(result: Object, record: JsonRecord, parsed: Parsed) -> dict[str, Any]:
    """The counts of the run (0.14+); where they break an identity they are refused, and the rest stays."""
    if result.get("spec_decode_num_drafts") is None:
        return {}
    try:
        rounds = whole(result["spec_decode_num_drafts"], "spec_decode_num_drafts")
        drafted = _count(result, "spec_decode_draft_tokens")
        accepted = _count(result, "spec_decode_accepted_tokens")
        per_pos = _positions(result.get("spec_decode_per_position_acceptance_rates"), rounds)
        if drafted is not None and accepted is not None and accepted > drafted:
            raise BrokenError("accepted <= drafted does not hold")
        if drafted is not None and drafted > rounds * LONGEST_DRAFT:
            raise BrokenError(f"drafted <= {LONGEST_DRAFT} a round does not hold")
        if per_pos is not None and accepted is not None and sum(per_pos) != accepted:
            raise BrokenError("sum(accepted_per_pos) = accepted does not hold")
    except BrokenError as error:
        parsed.rejects.append(Reject(record.line, f"acceptance not counted: {error}", SERVE, record.offset))
        return {}
    return {"rounds": rounds, "drafted": drafted, "accepted": accepted, "accepted_per_pos": per_pos}


def _positions(rates: Any, rounds: int) -> list[int] | None:
    """Rounds by position from their share of all rounds: unrounded, so the whole numbers are exact."""
    name = "spec_decode_per_position_acceptance_rates"
    if not rates:
        return None
    if not isinstance(rates, list):
        raise BrokenError(f"{name}: wrong type")
    counts = [finite(rate, name) * rounds for rate in rates]
    out = [nearest(count, name) for count in counts]
    if any(abs(count - n) > _EPS * max(1, rounds) for count, n in zip(counts, out, strict=True)):
        raise BrokenError(f"{name}: no share of the drafts")
    if any(not 0 <= after <= before for before, after in zip([rounds, *out], out, strict=False)):
        raise BrokenError("accepted_per_pos does not fall")
    return out


def _request_frame(result: Object, record: JsonRecord, parsed: Parsed) -> pl.DataFrame | None:
    """Requests of a detailed result: times in s, null where a request failed; broken ones are refused."""
    lists = {
        name: result[key]
        for name, key in (
            ("prompt_tokens", "input_lens"), ("output_tokens", "output_lens"), ("ttft_s", "ttfts"),
            ("latency_s", "latencies"), ("start_s", "start_times"), ("queue_s", "server_queue_times"),
        )
        if isinstance(result.get(key), list)
    }  # fmt: skip
    if "output_tokens" not in lists or "ttft_s" not in lists:
        return None
    size = len(lists["output_tokens"])
    gaps = result.get("itls")
    if "latency_s" not in lists and isinstance(gaps, list) and len(gaps) == size:
        lists["latency_s"] = _latencies(lists["ttft_s"], gaps)  # older releases: what their own plots take for it
    errors = result.get("errors")
    if isinstance(errors, list):
        lists["told"] = [1 if error else 0 for error in errors]
    if any(len(values) != size for values in lists.values()):
        parsed.rejects.append(Reject(record.line, "lists of requests of different lengths", REQUEST, record.offset))
        return None
    frame = pl.DataFrame({name: numbers(values) for name, values in lists.items()})
    absent = [pl.lit(None, pl.Float64).alias(c) for c in _REQUEST_FIGURES if c not in frame.columns]
    frame = frame.with_columns(absent).with_row_index("index").with_columns(fault=_request_fault())
    for (fault,) in frame.filter(pl.col("fault").is_not_null()).select("fault").iter_rows():
        parsed.rejects.append(Reject(record.line, fault, REQUEST, record.offset))
    return frame.filter(pl.col("fault").is_null()).drop("fault").pipe(_without_placeholders, record.line)


_REQUEST_FIGURES = ("prompt_tokens", "output_tokens", "ttft_s", "latency_s", "start_s", "queue_s", "told")
_TIMES = ("ttft_s", "latency_s", "queue_s")
_LENGTHS = ("prompt_tokens", "output_tokens")


def _request_fault() -> pl.Expr:
    checks = {
        "a figure of a request that is no number": pl.any_horizontal(~pl.col(*_REQUEST_FIGURES).is_finite()),
        "a negative figure of a request": pl.any_horizontal(pl.col(*_REQUEST_FIGURES) < 0),
        "a request's duration out of range": pl.any_horizontal(pl.col(*_TIMES) > _LONGEST_S),
        "a length that is no whole number, or out of range": pl.any_horizontal(
            (pl.col(*_LENGTHS).floor() != pl.col(*_LENGTHS)) | (pl.col(*_LENGTHS) > INT32_MAX)
        ),
        "the first token comes after the end": pl.col("ttft_s") > pl.col("latency_s") + _EPS,
    }
    return pl.coalesce([pl.when(check.fill_null(False)).then(pl.lit(why)) for why, check in checks.items()])


def _without_placeholders(frame: pl.DataFrame, line: int) -> pl.DataFrame:
    """vLLM writes 0 for what a failed request has not, and for the TTFT of a reply that was not streamed."""
    failed = (pl.col("told").fill_null(0) > 0) | (
        (pl.col("output_tokens") == 0) & (pl.col("latency_s").fill_null(0) == 0)
    )
    last = (pl.col("start_s") + pl.col("latency_s")).max()
    return frame.with_columns(error=failed).select(
        "index", "error",
        line=pl.lit(line, pl.Int64),
        prompt_tokens=pl.col("prompt_tokens").cast(pl.Int64),
        output_tokens=pl.when(~pl.col("error")).then("output_tokens").cast(pl.Int64),
        ttft_s=pl.when(~pl.col("error") & (pl.col("ttft_s") > 0)).then("ttft_s"),
        latency_s=pl.when(~pl.col("error") & (pl.col("latency_s") > 0)).then("latency_s"),
        queue_s=pl.when(~pl.col("error")).then("queue_s"),
        start_s=pl.when(pl.col("start_s") > 0).then("start_s"),
        last_s=last,
    )  # fmt: skip


def _latencies(ttfts: list[Any], gaps: list[Any]) -> list[Any]:
    try:
        return [ttft + sum(each) for ttft, each in zip(ttfts, gaps, strict=False)]
    except (TypeError, OverflowError):
        return []  # of another length: refused


def _round_time(result: Object, requests: pl.DataFrame, rounds: int | None) -> dict[str, int]:
    """The sum and number of the gaps between chunks, where each is proved to be one round."""
    gaps = result.get("itls")
    if not isinstance(gaps, list):
        return {}
    try:
        sizes = [len(each) for each in gaps]
        seconds = sum(sum(each) for each in gaps)
    except (TypeError, OverflowError):
        return {}
    known = requests.filter(~pl.col("error"))
    by_token = known.height == len(sizes) and (known["output_tokens"] - 1).to_list() == sizes
    proved = sum(sizes) == rounds if rounds is not None else by_token
    if not proved or not sum(sizes) or not 0 <= seconds < _LONGEST_S * len(sizes):
        return {}
    return {"round_us": round(seconds * 1e6), "rounds_timed": sum(sizes)}
