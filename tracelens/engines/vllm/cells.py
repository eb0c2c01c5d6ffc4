"""Figures of many records as one column, whatever stands in their places."""

from __future__ import annotations

import math
from typing import Any

import polars as pl


def numbers(values: list[Any]) -> pl.Series:
    """A column of numbers, shape (N,): null where there is none, NaN where something else stands in its place.

    Text that reads as a number is one: some exports write every value as text.
    """
    if not set(map(type, values)) <= {float, int, type(None)}:
        values = [_number(value) for value in values]
    return pl.Series(values, dtype=pl.Float64, strict=False)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def micros(seconds: str) -> pl.Expr:
    """A column of seconds as whole microseconds; half of one goes up, as everywhere."""
    return (pl.col(seconds) * 1e6 + 0.5).floor().cast(pl.Int64, strict=False)
