"""Results of SGLang's benchmarks: bench_serving, bench_speculative and one_batch_server, one JSON object a run.

None of them counts acceptance itself: `accept_length` and `acc_length` are the mean since the server was started, of
one of its schedulers, with the warm-up in it. It is (accepted + rounds) / rounds before anything is cut at the end of
a request, so tokens verified a round, not tokens committed. Rounds are the run's own tokens over that mean, so they are
estimated: too few by what was cut (2 % at 64 tokens a request), and as wrong as earlier traffic differed. Accepted
tokens go by the same rounds, so that the mean itself comes back; what the rounds committed is not told, and null. Time
a round is too long by the share that rounds are too few, and time a token right again. Times are the client's:

* bench_serving: TPOT is (latency - TTFT) / (tokens - 1). Its mean over requests is taken only without the sums behind
  the means: completed x (mean latency - mean TTFT) is the decode time of all requests. `--output-details` lists them;
  the gaps in `itls` add up to a request's decode time, whether a backend divides them by the tokens of a chunk or not.
* bench_speculative (scripts/playground): a row is a configuration, steps = 0 the one without speculation. `step_time`
  is the 20th percentile of the mean steps of decode intervals (on purpose: the undisturbed ones), `completion_tokens`
  the mean output of a request. How many requests there were is not told: a row stands for one.
* one_batch_server: `latency` - `last_ttft` is the decode time of a batch that was sent at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines import bench_means
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.sglang import info, runs
from tracelens.engines.sglang.bench_requests import REQUEST, request_frame, requests
from tracelens.engines.sglang.releases import since
from tracelens.engines.units import INT32_MAX, BrokenError, finite, whole
from tracelens.engines.versions import Versions

SERVING, SPECULATIVE, BATCH = "sglang.bench_serving", "sglang.bench_speculative", "sglang.bench_batch"
_GIVES = ("draft_accept_ratio", "tau_committed", "step_ms")
SURFACES: tuple[Surface, ...] = (
    Surface(
        SERVING,
        "bench_serving (a run; its accept length is the server's since its start)",
        Versions(since("0.5.8")),
        (*_GIVES, "tpot_ms"),
        "python -m sglang.bench_serving --output-file FILE",
    ),
    Surface(
        REQUEST,
        "bench_serving (its requests)",
        Versions(since("0.5.8")),
        ("tpot_ms",),
        "bench_serving --output-details",
    ),
    Surface(
        SPECULATIVE,
        "bench_speculative (a configuration of drafting)",
        "a script of the repository",
        _GIVES,
        "scripts/playground/bench_speculative.py, with --steps 0 among the others for the baseline",
    ),
    Surface(
        BATCH,
        "one_batch_server (a batch; its accept length is the server's since its start)",
        Versions(since("0.5.8")),
        _GIVES,
        "python -m sglang.bench_one_batch_server --result-filename FILE",
    ),
)  # fmt: skip
KEYS: Sequence[bytes] = (b'"total_output_tokens_retokenized"', b'"acc_length"')

_NEEDED: Mapping[str, frozenset[str]] = {
    SERVING: frozenset({"duration", "completed", "total_output_tokens", "total_output_tokens_retokenized"}),
    SPECULATIVE: frozenset({"batch_size", "steps", "topk", "num_draft_tokens", "acc_length", "step_time"}),
    BATCH: frozenset({"run_name", "batch_size", "output_len", "latency", "acc_length"}),
}
_LONGEST_S = 3.2e7  # a year
_MOST = 2**40
_WORD = re.compile(r"[A-Za-z0-9][\w.+=-]{0,63}")
_TRAFFIC = ("backend", "dataset_name", "request_rate", "max_concurrency", "tag", "run_name", "batch_size", "input_len")

Object = Mapping[str, Any]

_CONFIG = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))
_RUN: dict[str, Any] = {
    "engine_version": pl.String, "model": pl.String, "draft_model": pl.String, "method": pl.String, "role": pl.String,
    "num_speculative_tokens": pl.Int32, "forced_acceptance": pl.Boolean, "tensor_parallel": pl.Int64,
    "data_parallel": pl.Int64, "max_num_seqs": pl.Int64, "config": _CONFIG,
}  # fmt: skip
_RESULT: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, "stamp": pl.String, "inner": pl.String, "stream": pl.String,
    "run_id": pl.String, **_RUN, "num_draft_nodes": pl.Int32, "window_us": pl.Int64, "rounds": pl.Int64,
    "plain_steps": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64, "emitted": pl.Int64, "step_us": pl.Int64,
    "round_us": pl.Int64, "rounds_timed": pl.Int64, "time_basis": pl.String, "running": pl.Int64,
    "generated_tokens": pl.Int64, "prompt_tokens": pl.Int64, "counts_basis": pl.String,
    **bench_means.COLUMNS,
}  # fmt: skip


def surface_of(value: Object) -> str | None:
    """Which benchmark a JSON object is a result of, or None."""
    return next((name for name, keys in _NEEDED.items() if value.keys() >= keys), None)


def parse(records: Sequence[JsonRecord]) -> Parsed:
    """Take results of which `surface_of` knows the benchmark."""
    parsed = Parsed()
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:  # a handful a file; their requests are read by the column
        surface = surface_of(record.value)
        if surface is None:
            continue
        parsed.claimed += 1
        at = {"line": record.line, "offset": record.offset, "stamp": record.stamp, "stream": record.stream}
        try:
            row = _READ[surface](record.value)
        except BrokenError as fault:
            parsed.rejects.append(Reject(record.line, str(fault), surface, record.offset))
            continue
        rows.setdefault(surface, []).append({**row, **at, "run_id": _name(record.value, surface)})
        if surface == SERVING:
            found = request_frame(record.value, record.line, record.offset, parsed.rejects)
            parsed.add(REQUEST, found)
    for surface, found_rows in rows.items():
        parsed.add(surface, pl.DataFrame(found_rows, schema=_RESULT))
    return parsed


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """A run and a window each result, and its requests. A result that is there twice counts once."""
    tables = Tables()
    order = [s for s in (SERVING, SPECULATIVE, BATCH) if s in frames]
    if not order:
        return tables
    results = pl.concat([frames[s].with_columns(surface=pl.lit(s)) for s in order]).sort("line", maintain_order=True)
    first = pl.col("run_id").is_first_distinct()
    for line, surface in results.filter(~first).select("line", "surface").iter_rows():
        tables.rejects.append(Reject(line, "a result that is in this source already", surface))
    results = results.filter(first).with_row_index("run_key", 1).with_columns(pl.col("run_key").cast(pl.Int64))
    results = results.with_columns(context.resolve(results.select("stamp", "inner")))
    tables.runs = results.select("run_key", "run_id", *_RUN, is_result=True)
    tables.windows = results.select(
        "run_key", "surface", "ts_basis", "window_us", "num_speculative_tokens", "num_draft_nodes", "rounds",
        "plain_steps", "drafted", "accepted", "emitted", "step_us", "round_us", "rounds_timed", "time_basis", "running",
        "generated_tokens", "prompt_tokens", "counts_basis",
        source_line="line",
        ts_start=pl.col("ts") - pl.duration(microseconds="window_us"),
        ts_end="ts",
        rounds_basis=pl.when(pl.col("rounds").is_not_null()).then("counts_basis"),
    )  # fmt: skip
    # Where requests are listed, their means are theirs.
    listed = frames[REQUEST]["line"].unique().to_list() if REQUEST in frames else []
    of_all = results.filter(~pl.col("line").is_in(listed)).with_columns(ts_basis=pl.lit("none"))
    parts = [bench_means.requests(of_all, context.source_id, "run_key", "ts_basis")]
    if REQUEST in frames:
        parts.append(requests(frames[REQUEST], results.select("run_key", "line", "ts_basis"), context.source_id))
    found = pl.concat([p for p in parts if p.height] or parts[:1], how="diagonal")
    tables.requests = found if found.height else None
    return tables


def _serving(result: Object) -> dict[str, Any]:
    backend = result.get("backend")
    if isinstance(backend, str) and not backend.startswith("sglang"):
        raise BrokenError("a result of another engine")
    completed = whole(result["completed"], "completed", _MOST)
    made = whole(result["total_output_tokens"], "total_output_tokens", _MOST)
    length = _length(result.get("accept_length"), "accept_length")
    server = result.get("server_info")
    told = info.told(server) if isinstance(server, dict) else {**runs.settings({}), "engine_version": None}
    row = _run(told, result) | _counts(max(made - completed, 0), length, told)
    row |= {
        "window_us": round(_seconds(result["duration"], "duration") * 1e6),
        "generated_tokens": made,
        "prompt_tokens": None if (n := result.get("total_input_tokens")) is None else whole(n, "total_input_tokens"),
    }
    latency, ttft = (_mean(result.get(f"mean_{name}_ms"), name) for name in ("e2e_latency", "ttft"))
    steps = row["rounds"] or row["plain_steps"]
    if latency is not None and ttft is not None and latency >= ttft > 0 and steps:
        spent = round(completed * (latency - ttft) * 1e3)
        row |= {"round_us": spent, "rounds_timed": steps, "time_basis": "sum"}
    return row | bench_means.told(result, completed, made, "mean_e2e_latency_ms")


def _speculative(result: Object) -> dict[str, Any]:
    steps, topk, tokens, batch = (
        whole(result[key], key, INT32_MAX) for key in ("steps", "topk", "num_draft_tokens", "batch_size")
    )
    told = {
        **runs.settings(
            {
                "speculative_algorithm": "EAGLE" if steps else None, "speculative_num_steps": steps or None,
                "speculative_eagle_topk": topk or None, "speculative_num_draft_tokens": tokens or None,
                "max_running_requests": batch,
            }
        ),
        "engine_version": None,
    }  # fmt: skip
    output = result.get("completion_tokens")
    made = 0 if output is None else max(round(finite(output, "completion_tokens")) - 1, 0)
    if made > _MOST:
        raise BrokenError("completion_tokens: out of range")
    # 1.0 is written where the server told none.
    length = _length(result["acc_length"], "acc_length") if steps else None
    step = round(_seconds(result["step_time"], "step_time") * 1e6)
    return {
        **_run(told, result), **_counts(made, length, told), "running": batch,
        "step_us": step or None, "time_basis": "mean" if step else None,
    }  # fmt: skip


def _batch(result: Object) -> dict[str, Any]:
    batch, output = (whole(result[key], key, INT32_MAX) for key in ("batch_size", "output_len"))
    total = result.get("total_output_tokens")
    made = batch * output if total is None else whole(total, "total_output_tokens", _MOST)
    length = _length(result["acc_length"], "acc_length")
    told = {**runs.settings({}), "engine_version": None}
    row = _run(told, result) | _counts(max(made - batch, 0), length, told)
    latency = _seconds(result["latency"], "latency")
    row |= {"window_us": round(latency * 1e6), "generated_tokens": made, "running": batch}
    if (prompt := result.get("input_len")) is not None:
        row["prompt_tokens"] = batch * whole(prompt, "input_len", INT32_MAX)
    ttft = result.get("last_ttft")
    decode = latency - _seconds(ttft, "last_ttft") if ttft is not None and ttft != -1 else -1.0
    # All requests of the batch run from the last first token to the end.
    if decode > 0 and row["rounds"] and total is None:
        row |= {"round_us": round(decode * batch * 1e6), "rounds_timed": row["rounds"], "time_basis": "sum"}
    return row


_READ = {SERVING: _serving, SPECULATIVE: _speculative, BATCH: _batch}


def _run(told: Mapping[str, Any], result: Object) -> dict[str, Any]:
    """Columns of the run; `config` holds what was sent and what the server's figures depend on."""
    kept = {
        "speculative_eagle_topk": told["topk"],
        "speculative_num_draft_tokens": told["draft_tokens"],
        **{key: result.get(key) for key in _TRAFFIC},
    }
    config = [{"key": key, "value": text} for key, value in kept.items() if (text := _setting(value)) is not None]
    row = {name: told.get(name) for name in _RUN if name != "config"}
    return {**row, "config": config, "num_draft_nodes": told["nodes"]}


def _counts(made: int, length: float | None, told: Mapping[str, Any]) -> dict[str, Any]:
    """Counts from the tokens behind the first of each request and the tokens a round, where there is such a mean."""
    if told["role"] == "baseline":
        return {
            "rounds": 0, "plain_steps": made, "drafted": 0, "accepted": 0, "emitted": made, "counts_basis": "logged",
        }  # fmt: skip
    out: dict[str, Any] = {"rounds": None, "plain_steps": None, "counts_basis": None}
    if length is not None:
        rounds = round(made / length)
        k = told["num_speculative_tokens"]
        drafted = None if k is None or made - rounds > rounds * k else rounds * k
        out |= {"rounds": rounds, "accepted": made - rounds, "drafted": drafted}
        out["counts_basis"] = "estimated"
    return out


def _length(value: Any, name: str) -> float | None:
    """Tokens a round; null, 0 and -1 stand for a server that told none."""
    if value is None:
        return None
    length = finite(value, name)
    return length if length >= 1 else None


def _mean(value: Any, name: str) -> float | None:
    return None if value is None or value != value else _seconds(value, name)


def _seconds(value: Any, name: str) -> float:
    number = finite(value, name)
    if not 0 <= number < _LONGEST_S:
        raise BrokenError(f"{name}: out of range")
    return number


def _setting(value: Any) -> str | None:
    """A number or one plain word, never a path, an address or a sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = str(value)
    return text if _WORD.fullmatch(text) else None


def _name(result: Object, surface: str) -> str:
    """A run's name from what it measured: the same when its file was copied or has grown."""
    told = [result.get(key) for key in sorted(_NEEDED[surface])]
    server = result.get("server_info")
    k = server.get("speculative_num_steps") if isinstance(server, dict) else None
    digest = hashlib.sha256(repr([*told, k, result.get("completion_tokens")]).encode("utf-8", "replace")).hexdigest()
    return f"{surface.replace('.', '-').replace('_', '-')}-{digest[:8]}"
