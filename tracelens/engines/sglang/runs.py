"""What SGLang tells of its process: `server_args=ServerArgs(...)`, and the switch that simulates acceptance."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

# A Python repr; later releases print only what differs from the defaults. Strings may hold anything, so a key counts
# only at the beginning of an argument.
_TEXT = r"""(?:^|, ){}=['"]([^'"]{{0,200}})['"]"""
_INT = r"(?:^|, ){}=(\d{{1,6}})\b"
_INTS = {
    "steps": "speculative_num_steps",
    "topk": "speculative_eagle_topk",
    "draft_tokens": "speculative_num_draft_tokens",
    "interval": "decode_log_interval",
    "tensor_parallel": "(?:tp_size|tensor_parallel_size)",
    "data_parallel": "(?:dp_size|data_parallel_size)",
    "max_num_seqs": "max_running_requests",
}
SCHEMA: dict[str, Any] = {
    "run_key": pl.Int64, "first_line": pl.Int64, "stream": pl.String, "started": pl.Datetime("us"), "model": pl.String,
    "draft_model": pl.String, "method": pl.String, "role": pl.String, "num_speculative_tokens": pl.Int32,
    "nodes": pl.Int64, "forced_acceptance": pl.Boolean, **dict.fromkeys(_INTS, pl.Int64),
}  # fmt: skip


def _text(key: str, args: str) -> str | None:
    found = re.search(_TEXT.format(key), args)
    return found.group(1) if found else None


def _leaf(path: str | None) -> str | None:
    """A model's name without the folder it was loaded from: paths of a machine stay out of the lake."""
    if path is None or not re.match(r"[/\\~.]|[A-Za-z]:", path):
        return path or None
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] or None


def depth_and_nodes(method: str | None, told: dict[str, int | None]) -> tuple[int | None, int | None]:
    """Draft depth K, and verified nodes without the root where drafting is a tree.

    `speculative_num_draft_tokens` counts nodes with the root: K + 1 in a chain (topk = 1), 8 to 64 in a tree.
    """
    steps, topk, tokens = told["steps"], told["topk"], told["draft_tokens"]
    nodes = tokens - 1 if tokens else None
    if topk is not None and topk > 1:
        return steps, nodes
    if steps is None and method == "ngram":
        return None, nodes  # matches of any length, in a tree
    return (steps if steps is not None else nodes), None


def of(starts: pl.DataFrame, ts: pl.Series) -> pl.DataFrame:
    """One row a start, with the columns of `SCHEMA`; `run_key` counts from 1.

    The nodes of one server print the same arguments but for their rank. A restart has another `random_seed`.
    """
    rows: list[dict[str, Any]] = []
    last: dict[str | None, str] = {}
    for line, stream, args, when in starts.select("line", "stream", "args", ts).iter_rows():
        same = re.sub(r"\bnode_rank=\d+", "", args)
        if last.get(stream) == same:
            continue
        last[stream] = same
        found = {name: re.search(_INT.format(arg), args) for name, arg in _INTS.items()}
        told = {name: int(hit.group(1)) if hit else None for name, hit in found.items()}
        method = _text("speculative_algorithm", args)
        method = method.lower() if method else None
        k, nodes = depth_and_nodes(method, told) if method else (None, None)
        off = re.search(r"(?:^|, )speculative_algorithm=None\b", args) is not None
        rows.append({
            **told, "run_key": len(rows) + 1, "first_line": line, "stream": stream, "started": when, "method": method,
            "model": _leaf(_text("served_model_name", args) or _text("model_path", args)),
            "draft_model": _leaf(_text("speculative_draft_model_path", args)),
            "role": "speculative" if method else "baseline" if off else None,
            "num_speculative_tokens": k, "nodes": nodes, "forced_acceptance": None,
        })  # fmt: skip
    return pl.DataFrame(rows, schema=SCHEMA)


def with_run(frame: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Add `run_key` (0 before the first start) and what the run told: the latest start above, in the same stream."""
    told = runs.select(
        "run_key", "steps", "topk", "nodes", "interval", _method="method", _line="first_line",
        _k="num_speculative_tokens", _stream=pl.col("stream").fill_null(""),
    ).sort("_line")  # fmt: skip
    keyed = frame.with_columns(_stream=pl.col("stream").fill_null("")).sort("line", maintain_order=True)
    out = keyed.join_asof(
        told, left_on="line", right_on="_line", by="_stream", strategy="backward", check_sortedness=False
    )
    return out.drop("_stream", "_line", strict=False).with_columns(pl.col("run_key").fill_null(0))


def spans(simulated: pl.DataFrame, runs: pl.DataFrame) -> list[tuple[str | None, int, int | None, int]]:
    """(stream, first line, end line, run_key) under simulated acceptance.

    A shell prints the switch before the server starts: it holds for that start (run_key), up to the next one.
    """
    out = []
    for line, stream in simulated.select("line", "stream").iter_rows():
        later = runs.filter(pl.col("stream").eq_missing(pl.lit(stream, pl.String)) & (pl.col("first_line") >= line))
        begun = later.sort("first_line").select("first_line", "run_key").rows()
        out.append((stream, line, begun[1][0] if len(begun) > 1 else None, begun[0][1] if begun else 0))
    return out


def forced(held: list[tuple[str | None, int, int | None, int]], line: str = "line") -> pl.Expr:
    """Whether a row lies under simulated acceptance: true or null."""
    hits = [
        pl.col("stream").eq_missing(pl.lit(stream, pl.String)) & (pl.col(line) >= start)
        & (pl.lit(True) if end is None else pl.col(line) < end)
        for stream, start, end, _ in held
    ]  # fmt: skip
    return pl.when(pl.any_horizontal([pl.lit(False), *hits])).then(pl.lit(True))
