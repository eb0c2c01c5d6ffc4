"""How AIPerf writes a metric: a bare number, or one with its unit and its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.engines.rows import MOST
from tracelens.engines.units import BrokenError, finite, whole

Object = Mapping[str, Any]
_UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}
_LONGEST_US = 1e14


def child(value: Object, key: str) -> Object:
    """The object under the key, an empty one where there is none."""
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else {}


def metric(metrics: Object, name: str, statistic: str = "value") -> Any:
    """A metric as it stands, its statistic (`value` of one request, `avg` of a run) if it has such; None without."""
    told = metrics.get(name)
    return told.get(statistic) if isinstance(told, Mapping) else told


def first(values: Sequence[Any]) -> int | None:
    """The first count that is told.

    Raises:
        BrokenError: it is none.
    """
    return next((whole(v, "tokens", MOST) for v in values if v is not None), None)


def total(value: Object, name: str) -> int | None:
    """A sum of a run, which AIPerf writes as the average of one.

    Raises:
        BrokenError: no count.
    """
    told = metric(value, name, "avg")
    return None if told is None else whole(told, name, MOST)


def real_micros(metrics: Object, name: str, statistic: str = "value", unit: str = "ms") -> float | None:
    """A duration in us; `unit` is that of a metric which names none.

    Raises:
        BrokenError: a unit that is not known, or no duration.
    """
    told = metric(metrics, name, statistic)
    if told is None:
        return None
    said = metrics[name].get("unit") if isinstance(metrics[name], Mapping) else None
    factor = _UNITS.get(unit if said is None else str(said))
    if factor is None:
        raise BrokenError(f"{name}: an unknown unit")
    number = finite(told, name) * factor
    if not 0 <= number < _LONGEST_US:
        raise BrokenError(f"{name}: no duration")
    return number


def micros(metrics: Object, name: str, statistic: str = "value", unit: str = "ms") -> int | None:
    """`real_micros` as a whole number."""
    number = real_micros(metrics, name, statistic, unit)
    return None if number is None else round(number)


def gaps(metrics: Object) -> list[int] | None:
    """The gaps between chunks in us, or None where they are no list of durations: they are nothing but an addition."""
    told = child(metrics, "inter_chunk_latency")
    factor = _UNITS.get(str(told.get("unit", "ms")))
    values = told.get("value")
    if factor is None or not isinstance(values, list):
        return None
    try:
        numbers = [finite(v, "gap") * factor for v in values]
    except BrokenError:
        return None
    return [round(n) for n in numbers] if all(0 <= n < _LONGEST_US for n in numbers) else None
