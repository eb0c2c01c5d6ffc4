"""What an engine's response said of a request's acceptance, as benchmarks keep it beside their own figures.

The object is vLLM's `metrics.speculative_decoding`, which AIPerf and GuideLLM pass on, and vLLM's reader checks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.engines.base import JsonRecord
from tracelens.engines.units import LONGEST_DRAFT, BrokenError
from tracelens.engines.vllm import responses

HISTOGRAM = "acceptance_histogram"
# What is made of it, with the rounds of the request still as lists.
COLUMNS: Mapping[str, Any] = {
    "rounds": pl.Int64, "drafted": pl.Int64, "accepted": pl.Int64, "emitted": pl.Int64, "iterations": pl.Int64,
    "accepted_hist": pl.List(pl.Int64), "num_speculative_tokens": pl.Int32, "counts_basis": pl.String,
    "step_drafted": pl.List(pl.Int64), "step_accepted": pl.List(pl.Int64), "step_emitted": pl.List(pl.Int64),
}  # fmt: skip

Object = Mapping[str, Any]


def read(said: Sequence[tuple[Object | None, int | None]]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Read what was said of N requests.

    Args:
        said: the object of each request, or None, and its output tokens, or None.

    Returns:
        The columns of each request (nothing where nothing was said), and by number why one can't be used.
    """
    records = [
        JsonRecord(i, 0, None, None, {
            "metrics": {"speculative_decoding": spec}, "usage": {"completion_tokens": output},
        })
        for i, (spec, output) in enumerate(said)
        if spec is not None
    ]  # fmt: skip
    parsed = responses.parse(records)
    faults = {reject.line: reject.reason for reject in parsed.rejects}
    found: list[dict[str, Any]] = [{} for _ in said]
    for frame in parsed.frames.get("vllm.response", ()):
        for i, row in zip(frame["line"].to_list(), frame.select(list(COLUMNS)).iter_rows(named=True), strict=True):
            found[i] = row
    return found, faults


def dense(histogram: Any) -> Any:
    """`{"0": 39, "3": 3}` as a list by length; what is no mapping stays as it is, for its reader to refuse.

    Raises:
        BrokenError: a length that is no number of tokens.
    """
    if not isinstance(histogram, Mapping):
        return histogram
    by_length: dict[int, Any] = {}
    for key, count in histogram.items():
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 7):
            raise BrokenError(f"{HISTOGRAM}: a length that is no number of tokens")
        by_length[int(key)] = count
    if max(by_length, default=0) > LONGEST_DRAFT:
        raise BrokenError(f"{HISTOGRAM}: a length out of range")
    return [by_length.get(j, 0) for j in range(max(by_length, default=-1) + 1)]


def rounds_of(requests: pl.DataFrame, shared: Sequence[str]) -> pl.DataFrame | None:
    """The rounds of requests that list them, in order, or None where none does.

    Args:
        requests: the lists of `COLUMNS`, `shared`, and, where a request's rounds have times, `step_us` and `ts` as
            lists as long as them (null otherwise).
        shared: columns that a round has from its request.
    """
    listed = requests.filter(pl.col("step_drafted").list.len() > 0)
    if not listed.height:
        return None
    size = pl.col("step_drafted").list.len()
    lists = {"drafted": "step_drafted", "accepted": "step_accepted", "emitted": "step_emitted"}
    # Lists of nulls where a request's rounds have no times: all lists of a row are as long as each other.
    extra = [c for c in ("step_us", "ts") if c in listed.columns]
    nothing = [pl.coalesce(c, pl.lit(None, pl.Int64).repeat_by(size).cast(listed.schema[c])).alias(c) for c in extra]
    out = listed.with_columns(nothing).select(
        *shared, *extra, round_index=pl.int_ranges(0, size), **{c: pl.col(source) for c, source in lists.items()}
    )
    return out.explode("round_index", *lists, *extra)
