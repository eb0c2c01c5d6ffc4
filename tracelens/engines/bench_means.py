"""Means over the requests of a benchmark, of a result that does not list them: one row that stands for all of them.

A mean TPOT over requests gives every request the same say; the TPOT of a report is decode time over tokens. So where
the result has the sums (mean latency and mean time to the first token, with the tokens) the row holds decode time over
tokens (`derived`), else the mean as it is printed (`logged`), without output tokens: it then counts once a request.
The row has the requests' number for its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracelens.engines.units import BrokenError, finite

COLUMNS: Mapping[str, Any] = {
    "completed": pl.Int64, "tpot_us": pl.Float64, "tpot_basis": pl.String, "ttft_us": pl.Int64,
    "decode_sum_us": pl.Float64,
}  # fmt: skip
_LONGEST_MS = 3.2e10  # a year
_SAME = 1e-9


def told(result: Mapping[str, Any], completed: int, made: int, latency: str) -> dict[str, Any]:
    """The columns of `COLUMNS` that a result tells.

    Args:
        result: holds `mean_tpot_ms`, `mean_ttft_ms` and the mean latency, or some of them.
        completed: requests behind the means.
        made: output tokens of all of them.
        latency: the name of the mean latency.

    Raises:
        BrokenError: a mean that is no number, or out of range.
    """
    tpot, ttft, whole = (_mean(result, name) for name in ("mean_tpot_ms", "mean_ttft_ms", latency))
    # A reply that was not streamed has a TTFT of 0, and its time to the first token in what is called its TPOT.
    if not completed or ttft is None:
        return {}
    out: dict[str, Any] = {"completed": completed, "ttft_us": round(ttft * 1e3)}
    steps = made - completed
    if whole is not None and whole > ttft and steps > 0:
        decode = completed * (whole - ttft) * 1e3
        return out | {"tpot_us": decode / steps, "tpot_basis": "derived", "decode_sum_us": decode}
    if tpot is not None and steps > 0:
        # The sum, too, where all requests gave as many tokens: the gaps prove that, or nothing does.
        out |= {"tpot_us": tpot * 1e3, "tpot_basis": "logged", "decode_sum_us": tpot * 1e3 * steps}
    return out


def round_time(result: Mapping[str, Any], means: Mapping[str, Any], rounds: int | None, made: int) -> dict[str, int]:
    """Sum and number of the gaps between chunks where mean gap and decode time prove that each gap is one round.

    Args:
        result: holds `mean_itl_ms`.
        means: what `told` found.
        rounds: rounds with a draft, or None where none were counted: then each gap must be one token.
        made: output tokens of all requests.
    """
    gap, decode = _mean(result, "mean_itl_ms"), means.get("decode_sum_us")
    steps = made - int(means.get("completed", made)) if rounds is None else rounds
    if gap is None or decode is None or steps <= 0 or abs(gap * 1e3 * steps / decode - 1) > _SAME:
        return {}
    return {"round_us": round(decode), "rounds_timed": steps}


def requests(results: pl.DataFrame, source_id: str, *shared: str) -> pl.DataFrame:
    """One canonical request a result that has means.

    Args:
        results: `COLUMNS`, `line`, `surface`, and the columns `shared`.
        source_id: for its id.
        shared: columns to keep as they are.
    """
    return results.filter(pl.col("ttft_us").is_not_null()).select(
        *shared, "surface", "tpot_us", "tpot_basis", "ttft_us",
        source_line="line",
        request_id=pl.format("{}#{}", pl.lit(source_id), "line"),
        weight=pl.col("completed").cast(pl.Float64),
    )  # fmt: skip


def _mean(result: Mapping[str, Any], name: str) -> float | None:
    value = result.get(name)
    if value is None or value != value:  # the mean of nothing
        return None
    number = finite(value, name)
    if not 0 <= number < _LONGEST_MS:
        raise BrokenError(f"{name}: out of range")
    return number or None
