"""llama-server's start-up lines: build, model, drafters, K, and whether acceptance is made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracelens.engines.rows import frame_of

_SCHEMA: Mapping[str, Any] = {
    "run_key": pl.Int64, "first_line": pl.Int64, "stamp": pl.String, "stream": pl.String, "child": pl.String,
    "engine_version": pl.String, "model": pl.String, "draft_model": pl.String, "method": pl.String,
    "num_speculative_tokens": pl.Int32, "role": pl.String, "forced_acceptance": pl.Boolean,
    "config": pl.List(pl.Struct({"key": pl.String, "value": pl.String})),
}  # fmt: skip
# The longest draft of a drafter, by the key that its own line has: draft models and n-gram maps, simple n-gram, cache.
_K = ("n_max", "size_m", "n_draft")
_TOLD = {"build", "model", "draft_model", "method", "settings", "none", "synthetic"}
_KEPT = ("n_min", "p_min", "size_n", "n_match", "min_hits")


def runs(starts: pl.DataFrame) -> tuple[pl.DataFrame, dict[tuple[int, str], int]]:
    """One row a start (`stamp` is that of its first line), and K by run and drafter.

    The build's line comes first in a start, then the model's, then the rest; level 3 prints no build.
    """
    rows: list[dict[str, Any]] = []
    current: dict[Any, dict[str, Any]] = {}
    for line in starts.iter_rows(named=True):
        key, kind = (line["stream"], line["child"]), line["kind"]
        run = current.get(key)
        told = _TOLD & run.keys() if run is not None else set()
        if run is None or (kind == "build" and told) or (kind == "model" and told - {"build"}):
            run = {
                "run_key": len(rows) + 1,
                "first_line": line["line"],
                "stamp": line["stamp"],
                "stream": line["stream"],
                "child": line["child"],
            }
            run["drafters"] = []
            current[key] = run
            rows.append(run)
        _told(run, kind, line["value"])
    longest: dict[tuple[int, str], int] = {}
    done = [_finished(run, longest) for run in rows]
    return frame_of(done, _SCHEMA), longest


def _told(run: dict[str, Any], kind: str, value: str) -> None:
    if kind == "method":
        run["method"] = value
        run["drafters"].append((value, {}))
    elif kind == "settings":
        # The settings stand right behind the drafter that has them.
        if run["drafters"]:
            run["drafters"][-1][1].update(part.split("=", 1) for part in value.split(", ") if "=" in part)
    elif kind in ("model", "draft_model"):
        run.setdefault(kind, leaf(value))
    else:
        run.setdefault(kind, value)


def leaf(path: str) -> str:
    """A model's file without the folder it lies in: paths of a machine stay out of the lake."""
    is_path = path.endswith(".gguf") or path[:1] in "/\\~." or path[1:2] == ":"
    return path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if is_path else path


def _finished(run: Mapping[str, Any], longest: dict[tuple[int, str], int]) -> dict[str, Any]:
    config: list[dict[str, str]] = []
    for name, settings in run["drafters"]:
        k = next((settings[key] for key in _K if settings.get(key, "").isdigit() and len(settings[key]) < 7), None)
        if k is not None:
            longest[run["run_key"], name] = int(k)
        config += [{"key": f"{name}.{key}", "value": settings[key][:20]} for key in _KEPT if key in settings]
    names = [name for name, _ in run["drafters"]]
    alone = longest.get((run["run_key"], names[0])) if len(names) == 1 else None
    speculative = bool(names) or "draft_model" in run or "synthetic" in run
    build = run.get("build")
    return {
        **{c: run.get(c) for c in ("run_key", "first_line", "stamp", "stream", "child", "model", "draft_model")},
        "engine_version": f"b{build}" if build and build.strip("0") else None,
        "method": ",".join(names) or None,
        # Several drafters are tried in turn, each with a K of its own.
        "num_speculative_tokens": alone,
        "role": "speculative" if speculative else "baseline" if "none" in run else None,
        "forced_acceptance": True if "synthetic" in run else None,
        "config": config or None,
    }


def with_run(frame: pl.DataFrame, runs: pl.DataFrame | None) -> pl.DataFrame:
    """Add `run_key`: the latest start above the line, of the same stream and child."""
    if runs is None:
        return frame.with_columns(run_key=pl.lit(0, pl.Int64))
    writer = {"_stream": pl.col("stream").fill_null(""), "_child": pl.col("child").fill_null("")}
    starts = runs.select("run_key", _at="first_line", **writer).sort("_at")
    lines = frame.with_columns(**writer).sort("line", maintain_order=True)
    options: Mapping[str, Any] = {"by": list(writer), "strategy": "backward", "check_sortedness": False}
    out = lines.join_asof(starts, left_on="line", right_on="_at", **options)
    return out.drop(*writer, "_at").with_columns(pl.col("run_key").fill_null(0))
