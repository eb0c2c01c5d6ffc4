"""What a comparison returns: frozen dataclasses that any reporter can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracelens.analysis.mixing import Mix
from tracelens.analysis.results import Missing, Value, Warning
from tracelens.analysis.sides import Side

#: How `because` of a change ends where another figure tells the same and is tested.
IN_ITS_PLACE = "in its place"
#: How `because` of a change begins where the sides have a figure in two conventions.
TWO_CONVENTIONS = "two conventions"


@dataclass(frozen=True, slots=True)
class Change:
    """B - A of one figure. `ratio` is B / A; `p_adjusted` and `significant` are after the correction of Holm.

    `within_noise` says that a time changed by no more than runs without speculation differ among themselves
    (`control_spread`); None where the sides are of the same runs, the figure is no time or nobody knows.

    What is None cannot be told, and `because` says why.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    significant: bool | None = None
    because: str | None = None
    within_noise: bool | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """A class of traffic on both sides. `a`, `b` and with them `change` are None where a side has none of it."""

    key: Mapping[str, Value]
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None
    change: Mapping[str, Change] | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer of `tracelens compare`. `tested` changes have a p-value, `real` of them are significant.

    A class that is all of the traffic shows the changes of the total, which are tested once.
    """

    by: tuple[str, ...]
    a: Side
    b: Side
    level: float
    strata: tuple[Compared, ...]
    total: Compared
    tested: int
    real: int
    mix_effect: Mapping[str, Mix]
    coverage: tuple[Missing, ...]
    warnings: tuple[Warning, ...]
    selection: Mapping[str, Any] = field(default_factory=dict)
