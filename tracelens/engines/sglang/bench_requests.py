"""Requests of a bench_serving result (`--output-details`): lists, one element a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracelens.engines.base import Reject
from tracelens.engines.units import INT32_MAX

REQUEST = "sglang.bench_request"
_LISTS = (("output_tokens", "output_lens"), ("ttft_s", "ttfts"), ("prompt_tokens", "input_lens"))
_LONGEST_S = 3.2e7  # a year


def request_frame(result: Mapping[str, Any], line: int, offset: int, rejects: list[Reject]) -> pl.DataFrame:
    """Requests of one result: `index`, lengths, `ttft_s`, `decode_s` (the sum of the gaps) and `error`; maybe none.

    Failed requests have an output of 0 and an error; a broken one is refused, the others stay.
    """
    lists = {name: result[key] for name, key in _LISTS if isinstance(result.get(key), list)}
    gaps = result.get("itls")
    if "output_tokens" not in lists or len(lists) < 2 or not isinstance(gaps, list):
        return pl.DataFrame()
    size = len(lists["output_tokens"])
    if len(gaps) != size or any(len(values) != size for values in lists.values()):
        rejects.append(Reject(line, "lists of requests of different lengths", REQUEST, offset))
        return pl.DataFrame()
    columns = {name: [_number(v) for v in lists.get(name, [None] * size)] for name, _ in _LISTS}
    columns["decode_s"] = [_total(each) for each in gaps]
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Float64)).with_row_index("index")
    frame = frame.with_columns(fault=_fault(), line=pl.lit(line, pl.Int64))
    for (fault,) in frame.filter(pl.col("fault").is_not_null()).select("fault").iter_rows():
        rejects.append(Reject(line, fault, REQUEST, offset))
    failed = pl.col("output_tokens") == 0
    return frame.filter(pl.col("fault").is_null()).select(
        "line", "index",
        pl.col("prompt_tokens", "output_tokens").cast(pl.Int64),
        error=failed,
        ttft_s=pl.when(~failed & (pl.col("ttft_s") > 0)).then("ttft_s"),
        decode_s=pl.when(~failed & (pl.col("output_tokens") > 1) & (pl.col("decode_s") > 0)).then("decode_s"),
    )  # fmt: skip


def requests(frame: pl.DataFrame, results: pl.DataFrame, source_id: str) -> pl.DataFrame:
    """Canonical requests of the results that count; bench_serving tells no time of day.

    Args:
        frame: rows of `request_frame`.
        results: `line`, `run_key` and `ts_basis` of those results.
        source_id: for the ids, which requests of a benchmark do not have.
    """
    rows = frame.join(results, on="line", how="inner", maintain_order="left")
    e2e = pl.col("ttft_s") + pl.col("decode_s")
    return rows.select(
        "run_key", "prompt_tokens", "output_tokens", "error",
        ts_basis=pl.lit("none"),
        surface=pl.lit(REQUEST),
        source_line="line",
        request_id=pl.format("{}#{}.{}", pl.lit(source_id), "line", "index"),
        ttft_us=_us(pl.col("ttft_s")),
        decode_us=_us(pl.col("decode_s")),
        e2e_us=_us(e2e),
        tpot_us=pl.col("decode_s") * 1e6 / (pl.col("output_tokens") - 1),
    ).with_columns(tpot_basis=pl.when(pl.col("tpot_us").is_not_null()).then(pl.lit("derived")))  # fmt: skip


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        return float("nan")
    return float(value)


def _total(gaps: Any) -> float | None:
    """The sum of a request's gaps; NaN where they are none."""
    if not isinstance(gaps, list):
        return float("nan")
    numbers = [_number(gap) for gap in gaps]
    return sum(n if n is not None else float("nan") for n in numbers)


def _fault() -> pl.Expr:
    every = pl.col("output_tokens", "ttft_s", "prompt_tokens", "decode_s")
    lengths = pl.col("output_tokens", "prompt_tokens")
    checks = {
        "a figure of a request that is no number": pl.any_horizontal(~every.is_finite()),
        "a negative figure of a request": pl.any_horizontal(every < 0),
        "a request's duration out of range": pl.any_horizontal(pl.col("ttft_s", "decode_s") > _LONGEST_S),
        "a length that is no whole number, or out of range": pl.any_horizontal(
            (lengths.floor() != lengths) | (lengths > INT32_MAX)
        ),
        "a request without its length": pl.col("output_tokens").is_null(),
    }
    return pl.coalesce([pl.when(check.fill_null(False)).then(pl.lit(why)) for why, check in checks.items()])


def _us(seconds: pl.Expr) -> pl.Expr:
    return (seconds * 1e6 + 0.5).floor().cast(pl.Int64, strict=False)
