"""What the analyses return: frozen dataclasses that any reporter can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = float | int | str | bool | None


#: Code of the warning that says why a report holds nothing.
NOTHING = "nothing_selected"
#: What a key without a value is called everywhere.
UNKNOWN = "(not known)"


def label(value: object) -> str:
    """A value of a stratum's key in a sentence."""
    return UNKNOWN if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Stratum:
    """One row of a report: a class of traffic and its figures.

    `figures` maps the names of the performance model (and `<name>_low`, `<name>_high` where a figure has an
    interval) to numbers, lists (per position) or text (`baseline_basis`, `grain`); a figure that cannot be had is None.
    """

    key: Mapping[str, Value]
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that these logs cannot give."""

    figure: str
    because: str
    switch_on: str


@dataclass(frozen=True, slots=True)
class Warning:
    """Something in the data that the reader must know: the evidence and the way out."""

    code: str
    text: str
    evidence: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of `tracelens report`."""

    by: tuple[str, ...]
    strata: tuple[Stratum, ...]
    total: Stratum
    coverage: tuple[Missing, ...]
    warnings: tuple[Warning, ...]
    claim: Mapping[str, Value] | None = None
