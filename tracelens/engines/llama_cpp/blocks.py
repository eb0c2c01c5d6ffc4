"""Request blocks to requests: which lines are of one request, and what its task's life adds.

All generations print the prompt's time, then the tokens' time, then (where anything was drafted) the acceptance. Until
about 2026-02 a block was one logger call: a header with slot and task, then lines without any prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracelens.engines.base import Reject
from tracelens.engines.llama_cpp.recover import histogram, rounds_of
from tracelens.engines.llama_cpp.surfaces import REQUEST
from tracelens.engines.rows import frame_of

# Lines of one block stand together; other threads may write a few between them. Those with a task need no such limit.
_NEAR = 8

SCHEMA: Mapping[str, Any] = {
    "line": pl.Int64, "ts": pl.Datetime("us"), "ts_basis": pl.String, "stream": pl.String, "child": pl.String,
    "run_key": pl.Int64, "idle": pl.Int64, "clock": pl.Int64, "slot": pl.Int64, "task": pl.Int64,
    "request_id": pl.String,
    "prompt_tokens": pl.Int64, "cached_tokens": pl.Int64,
    "output_tokens": pl.Int64, "ttft_us": pl.Int64, "decode_us": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64,
    "emitted": pl.Int64, "rounds": pl.Int64, "accepted_hist": pl.List(pl.Int64), "counts_basis": pl.String,
    "temperature": pl.Float64, "top_p": pl.Float64,
}  # fmt: skip


@dataclass(slots=True)
class _Block:
    """The lines of one request so far."""

    slot: int | None
    task: int | None
    last: int
    lines: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    released: int | None = None
    speculates: bool = False


@dataclass(slots=True)
class _Writer:
    """One process of a source: its open block, and what its tasks said before they ended."""

    block: _Block | None = None
    sampler: tuple[float | None, float | None] = (None, None)
    sampling: dict[int, tuple[float | None, float | None]] = field(default_factory=dict)
    cached: dict[int, int | None] = field(default_factory=dict)


def requests(events: pl.DataFrame, rejects: list[Reject]) -> pl.DataFrame:
    """Requests of lines among which every task ends, in order (`SCHEMA`).

    Args:
        events: lines of blocks and tasks, and the places of statistics lines (`kind` statistics), in file order, with
            `run_key` and `idle`.
        rejects: gets the lines that belong to no block.
    """
    writers: dict[Any, _Writer] = {}
    rows: list[dict[str, Any]] = []
    for event in events.iter_rows(named=True):
        key = (event["run_key"], event["stream"], event["child"], event["idle"])
        writer = writers.setdefault(key, _Writer())
        _take(writer, event, rows, rejects)
    for writer in writers.values():
        _close(writer, rows, rejects)
    rows.sort(key=lambda row: int(row["line"]))
    return frame_of(rows, SCHEMA)


def _take(writer: _Writer, event: Mapping[str, Any], rows: list[dict[str, Any]], rejects: list[Reject]) -> None:
    kind, task, block = event["kind"], event["task"], writer.block
    if kind == "sampler":
        # Printed just before its task starts, with no task of its own.
        writer.sampler = (event["temperature"], event["top_p"])
    elif kind == "launch":
        writer.sampling[task], writer.sampler = writer.sampler, (None, None)
    elif kind == "cached":
        writer.cached[task] = event["n_tokens"]
    elif kind == "release":
        if block is not None and block.task == task:
            block.released = event["n_tokens"]
            _close(writer, rows, rejects)
    elif kind == "statistics":
        if block is not None and "eval" in block.lines:
            block.speculates = True
    elif kind == "header":
        # The acceptance of some builds comes in a second call, with a header of its own.
        if block is None or block.task != task or "acceptance" in block.lines or "eval" not in block.lines:
            _open(writer, event, rows, rejects)
    elif kind in ("prompt", "eval", "acceptance", "per_pos"):
        _line(writer, event, rows, rejects)


def _line(writer: _Writer, event: Mapping[str, Any], rows: list[dict[str, Any]], rejects: list[Reject]) -> None:
    """A line of a block: it belongs to the open one, opens one, or is no record."""
    kind, block = event["kind"], writer.block
    bare = event["task"] is None
    ours = block is not None and kind not in block.lines and (not bare or event["line"] - block.last <= _NEAR)
    if ours and block is not None and (bare or (block.slot, block.task) == (event["slot"], event["task"])):
        goes_on = kind != "prompt" or not block.lines
        if goes_on and (not bare or kind != "acceptance" or "eval" in block.lines):
            block.lines[kind], block.last = event, event["line"]
            return
    if kind == "prompt" or (not bare and kind != "per_pos"):
        _open(writer, event, rows, rejects).lines[kind] = event
    else:
        # Also what a prompt or an answer quotes: nothing of its text is kept.
        rejects.append(Reject(event["line"], "line of a request block without its block", REQUEST, event["offset"]))


def _open(writer: _Writer, event: Mapping[str, Any], rows: list[dict[str, Any]], rejects: list[Reject]) -> _Block:
    _close(writer, rows, rejects)
    writer.block = _Block(event["slot"], event["task"], event["line"])
    return writer.block


def _close(writer: _Writer, rows: list[dict[str, Any]], rejects: list[Reject]) -> None:
    block, writer.block = writer.block, None
    if block is None:
        return
    if "eval" in block.lines or "acceptance" in block.lines:
        temperature, top_p = writer.sampling.pop(block.task, (None, None)) if block.task is not None else (None, None)
        cached = writer.cached.pop(block.task, None) if block.task is not None else None
        rows.append(_row(block, cached) | {"temperature": temperature, "top_p": top_p})
    elif block.lines:
        first = next(iter(block.lines.values()))
        rejects.append(Reject(first["line"], "request block without its eval time", REQUEST, first["offset"]))


def _row(block: _Block, cached: int | None) -> dict[str, Any]:
    prompt, done, acceptance = (block.lines.get(kind) for kind in ("prompt", "eval", "acceptance"))
    at: Mapping[str, Any] = done or acceptance or {}
    row = {c: at[c] for c in ("line", "ts", "ts_basis", "stream", "child", "run_key", "idle", "clock")}
    row |= {"slot": block.slot, "task": block.task, "cached_tokens": cached}
    output, output_ms = (done["tokens"], done["ms"]) if done is not None else (None, None)
    if prompt is not None:
        row |= timed(prompt["tokens"], prompt["ms"], output, output_ms)
        row["prompt_tokens"] = _prompt_tokens(prompt["tokens"], cached, output, block.released)
        if row["prompt_tokens"] is not None:
            row["cached_tokens"] = row["prompt_tokens"] - prompt["tokens"]
    else:
        row |= timed(None, None, output, output_ms)
    if acceptance is not None:
        row |= _acceptance(acceptance, block.lines.get("per_pos"))
        row["emitted"] = after_first(output)
    elif block.speculates and done is not None:
        # A speculating server prints the acceptance of every request that drafted anything: this one did not.
        row |= {"drafted": 0, "accepted": 0, "rounds": 0, "counts_basis": "derived", "emitted": after_first(output)}
    return row


def timed(
    prompt_n: int | None, prompt_ms: float | None, output_n: int | None, output_ms: float | None
) -> dict[str, Any]:
    """What the four figures give that block and `timings` share.

    The printed ms per token is never read: it was over n tokens, and is over n - 1 since the first token is booked as
    free. `request_id` is made of the figures, in the precision of the log: no response knows the number of its task, so
    this is what log and responses of one request have in common, and by what they are counted once. All 527 requests
    of 32 measured runs had ids of their own, the same in both. The prompt's time ends with the first token; a wait for
    a slot is not in it.
    """
    row: dict[str, Any] = {"output_tokens": output_n}
    if prompt_ms is not None:
        row["ttft_us"] = _us(prompt_ms)
    # A time of 0.00 for several tokens is not measured (llama.cpp#17808).
    if output_ms is not None and (output_ms > 0 or (output_n or 0) <= 1):
        row["decode_us"] = _us(output_ms)
    if None not in (prompt_n, prompt_ms, output_n, output_ms):
        row["request_id"] = f"{prompt_n}t{prompt_ms:.2f}ms+{output_n}t{output_ms:.2f}ms"
    return row


def _us(ms: float) -> int:
    return int(ms * 1000 + 0.5)


def after_first(output_tokens: int | None) -> int | None:
    """Tokens of all rounds and plain steps: the first one comes from the prompt's pass."""
    return None if output_tokens is None else max(output_tokens - 1, 0)


def _prompt_tokens(evaluated: int, cached: int | None, output: int | None, released: int | None) -> int | None:
    """The whole prompt: the printed count leaves out what the cache held.

    Without -lv 4 it follows from the sequence's length at its end, where the last token has no place yet. A stop inside
    a round leaves drafts behind the end in it (3 of 527 requests): then it is too large by those.
    """
    if cached is not None:
        return evaluated + cached
    if released is None or output is None or released - output + 1 < evaluated:
        return None
    return released - output + 1


def _acceptance(line: Mapping[str, Any], per_pos: Mapping[str, Any] | None) -> dict[str, Any]:
    drafted, accepted = line["drafted"], line["accepted"]
    rates = line["rates"] or (per_pos and per_pos["rates"])
    shares = [float(r) for r in rates.replace(",", " ").split() if r.count(".") == 1 and r != "."] if rates else []
    rounds = rounds_of(accepted, drafted, line["mean"], shares)
    hist = histogram(accepted, rounds, shares)
    basis = "logged" if rounds is None else "exact"
    return {"drafted": drafted, "accepted": accepted, "rounds": rounds, "accepted_hist": hist, "counts_basis": basis}
