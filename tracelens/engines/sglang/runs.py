"""What SGLang tells of its process: `server_args=ServerArgs(...)`, and the switch that simulates acceptance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

# A Python repr: `key='value'` of ServerArgs(...), or `'key': 'value'` of the dictionary that later releases print. A
# string that is no value of a key that matters is passed over whole: it may hold anything, keys among them.
_STRING = r"""(?<!\\)(?:'((?:[^'\\]|\\.)*+)'|"((?:[^"\\]|\\.)*+)")"""
_ARGUMENT = re.compile(
    rf"""(?:'(\w{{1,64}})':\ |\b(\w{{1,64}})=)(?:(-?\d{{1,18}})(?![\d.])|(None)\b|(?:{_STRING}))|(?:{_STRING})"""
)
_INTS = {
    "steps": ("speculative_num_steps",),
    "topk": ("speculative_eagle_topk",),
    "draft_tokens": ("speculative_num_draft_tokens",),
    "interval": ("decode_log_interval",),
    "tensor_parallel": ("tp_size", "tensor_parallel_size"),
    "data_parallel": ("dp_size", "data_parallel_size"),
    "max_num_seqs": ("max_running_requests",),
}
_TEXTS = ("speculative_algorithm", "served_model_name", "model_path", "speculative_draft_model_path")
_KEYS = frozenset((*_TEXTS, *(name for names in _INTS.values() for name in names)))
_MOST = 999_999
_LONGEST = 200  # characters of a name
SCHEMA: dict[str, Any] = {
    "run_key": pl.Int64, "first_line": pl.Int64, "stream": pl.String, "started": pl.Datetime("us"), "model": pl.String,
    "draft_model": pl.String, "method": pl.String, "role": pl.String, "num_speculative_tokens": pl.Int32,
    "nodes": pl.Int64, "forced_acceptance": pl.Boolean, **dict.fromkeys(_INTS, pl.Int64),
}  # fmt: skip


def _arguments(args: str) -> dict[str, Any]:
    """The arguments that matter, out of the text that a server prints at its start."""
    told: dict[str, Any] = {}
    for quoted, bare, number, none, *texts in (hit.groups() for hit in _ARGUMENT.finditer(args)):
        key = quoted or bare
        if key in _KEYS:
            told.setdefault(key, int(number) if number else None if none else texts[0] or texts[1])
    return told


def settings(told: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a run from a server's arguments, as its start or GET /server_info tells them.

    A server is a baseline only where it says that it does not speculate.
    """
    ints = {
        name: next((v for k in keys if (v := _whole(told.get(k))) is not None), None) for name, keys in _INTS.items()
    }
    method, model, served, drafter = (
        v if isinstance(v := told.get(key), str) and 0 < len(v) <= _LONGEST else None
        for key in ("speculative_algorithm", "model_path", "served_model_name", "speculative_draft_model_path")
    )
    off = "speculative_algorithm" in told and told["speculative_algorithm"] is None
    k, nodes = depth_and_nodes(method.lower(), ints) if method else (None, None)
    return {
        **ints, "method": method.lower() if method else None, "model": _leaf(served or model),
        "draft_model": _leaf(drafter), "role": "speculative" if method else "baseline" if off else None,
        "num_speculative_tokens": k, "nodes": nodes, "forced_acceptance": None,
    }  # fmt: skip


def _whole(value: Any) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
    return value if known else None


def config() -> pl.Expr:
    """Settings that say what the numbers mean, as the column `config` of `runs`."""
    pairs = [
        pl.struct(key=pl.lit(name), value=pl.col(column).cast(pl.String))
        for name, column in (
            ("speculative_eagle_topk", "topk"),
            ("speculative_num_draft_tokens", "draft_tokens"),
            ("decode_log_interval", "interval"),
        )
    ]
    return pl.concat_list(pairs).list.filter(pl.element().struct.field("value").is_not_null())


def _leaf(path: str | None) -> str | None:
    """A model's name without the folder it was loaded from: paths of a machine stay out of the lake."""
    if path is None or not re.match(r"[/\\~.]|[A-Za-z]:", path):
        return path or None
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] or None


def leaf_of(path: pl.Expr) -> pl.Expr:
    """The same of a column."""
    place = path.str.contains(r"^(?:[/\\~.]|[A-Za-z]:)")
    return pl.when(place).then(path.str.extract(r"([^/\\]+)[/\\]*$", 1)).otherwise(path)


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
        same = re.sub(r"\bnode_rank(?:=|['\"]: )\d+", "", args)
        if last.get(stream) == same:
            continue
        last[stream] = same
        told = settings(_arguments(args))
        rows.append({**told, "run_key": len(rows) + 1, "first_line": line, "stream": stream, "started": when})
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


def forced(held: Sequence[tuple[str | None, int, int | None, int]], line: str = "line") -> pl.Expr:
    """Whether a row lies under simulated acceptance: true or null."""
    hits = [
        pl.col("stream").eq_missing(pl.lit(stream, pl.String)) & (pl.col(line) >= start)
        & (pl.lit(True) if end is None else pl.col(line) < end)
        for stream, start, end, _ in held
    ]  # fmt: skip
    return pl.when(pl.any_horizontal([pl.lit(False), *hits])).then(pl.lit(True))
