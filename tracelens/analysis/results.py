"""What the analyses return: frozen dataclasses that any reporter can show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

Value = float | int | str | bool | None


#: Code of the warning that says why a report holds nothing.
NOTHING = "nothing_selected"
#: What a key without a value is called everywhere.
UNKNOWN = "(not known)"


#: Columns whose values have zeros that make them sort.
BUCKETS = ("batch_bucket", "context_bucket")


def label(value: object, column: str = "") -> str:
    """A value of a stratum's key in a sentence; a bucket of batch or context without the zeros that make it sort."""
    if value is None:
        return UNKNOWN
    return bucket(str(value)) if column in BUCKETS else str(value)


def named(key: Mapping[str, object]) -> str:
    """A stratum in a sentence: `task_type=chat, batch_bucket=3–4`; empty for all traffic."""
    return ", ".join(f"{column}={label(value, column)}" for column, value in key.items())


def bucket(name: str) -> str:
    """A bucket as a person writes it: `0003-0004` is 3–4, `< 0.5k` is < 512."""
    plain = re.sub(r"\b0+(?=\d)(?!\.)", "", name)
    return re.sub(r"(?<=\w)-(?=\d)", "–", plain).replace("< 0.5k", "< 512")


class Figured:
    """A row with `figures`: each of them is an attribute, too, for whoever explores an answer in Python.

    Raises:
        AttributeError: no figure is called so; the message has the nearest names.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # the project itself takes `figures`, where a wrong name is a wrong key

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or name == "figures":
                raise AttributeError(name)
            if name in self.figures:
                return self.figures[name]
            from tracelens.analysis.similar import did_you_mean

            begun = [
                one for one in self.figures if one.startswith(name) and not one.endswith(("_low", "_high", "_basis"))
            ]
            hint = f"there are {', '.join(begun)}; " if begun else did_you_mean([name], self.figures)
            raise AttributeError(f"no figure is called {name!r}: {hint}`.figures` has all {len(self.figures)} of them")

    def __dir__(self) -> list[str]:
        figures: Mapping[str, Any] = getattr(self, "figures", {})
        return [*object.__dir__(self), *figures]


@dataclass(frozen=True, slots=True)
class Stratum(Figured):
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
    """The answer of `tracelens report`; `selection` is what was asked for (`Question.selection`).

    `setting` holds `run`, `engine` and `model` of what was found, each only where there is one. `contains` says what
    the lake holds of persons: `request_ids` is kept, redacted or mixed.
    """

    by: tuple[str, ...]
    strata: tuple[Stratum, ...]
    total: Stratum
    coverage: tuple[Missing, ...]
    warnings: tuple[Warning, ...]
    claim: Mapping[str, Value] | None = None
    selection: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, str] = field(default_factory=dict)
    contains: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GapTerm:
    """One cause of a gap: a factor of the speedup, points of speedup, ms a token; each with its interval.

    `includes` names causes that lie in it because nobody logged them; `planned` and `observed` are what moved.
    """

    name: str
    factor: float
    factor_low: float | None
    factor_high: float | None
    points: float | None
    points_low: float | None
    points_high: float | None
    ms_per_token: float | None
    ms_per_token_low: float | None
    ms_per_token_high: float | None
    measured: bool
    includes: tuple[str, ...] = ()
    planned: float | None = None
    observed: float | None = None


@dataclass(frozen=True, slots=True)
class BaselineTerm:
    """The plain step that was planned with over the measured one: a factor of the absolute view alone.

    Its ms a token close with those of the terms. Without a planned baseline it is 1 and not measured.
    """

    factor: float
    ms_per_token: float
    measured: bool


@dataclass(frozen=True, slots=True)
class GapStratum(Figured):
    """The gap of one class of traffic: its terms multiply to speedup_observed / speedup_claimed.

    `speedup_observed_basis` is tpot, step, upper_bound (no whole step is logged) or None (no times: the terms are those
    of the yield, without points). `baseline_ms` is what a token takes without speculation; `token_claimed_ms` and
    `token_ms` the planned and the observed time of a token. `figures` are those of the report.
    """

    key: Mapping[str, Value]
    speedup_claimed: float
    speedup_observed: float | None
    speedup_observed_low: float | None
    speedup_observed_high: float | None
    speedup_observed_basis: str | None
    baseline_basis: str | None
    baseline_ms: float | None
    token_ms: float | None
    token_claimed_ms: float | None
    baseline: BaselineTerm
    terms: tuple[GapTerm, ...]
    unmeasured: tuple[str, ...]
    figures: Mapping[str, Any]
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class GapResult:
    """The answer of `tracelens gap`."""

    by: tuple[str, ...]
    claim: Mapping[str, Value]
    strata: tuple[GapStratum, ...]
    total: GapStratum
    coverage: tuple[Missing, ...]
    warnings: tuple[Warning, ...]
    selection: Mapping[str, Any] = field(default_factory=dict)
