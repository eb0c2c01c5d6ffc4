"""The ratios that composite figures are made of, in one stratum, and the sources of their chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.answers import Answers, Key
from tracelens.analysis.costs import Priced
from tracelens.model.linear import FEWEST_UNITS, Ratio, Source, unit_source

Floats = NDArray[np.float64]

#: Queries that `stratum_ratios` reads beyond those of a report.
QUERIES = ("spread", "rollback")

# Ratio by name: numerator and denominator among the columns of spread.sql, and what is added to the ratio.
_COLUMNS: Mapping[str, tuple[str, str, float]] = {
    "draft_accept_ratio": ("a_of_d", "d", 0.0),
    "token_accept_prob": ("a_of_p", "trials", 0.0),
    "tau_verified": ("a_of_n", "n_of_a", 1.0),
    "tau_drafted": ("e_of_n", "n_of_e", 0.0),
    "tau_committed": ("e_all", "n_all", 0.0),
    "mean_drafted": ("d_of_n", "n_of_d", 0.0),
    "drafting_share": ("n", "all_rounds", 0.0),
    "draft_ms_per_token": ("dt", "dn", 0.0),
    "target_ms": ("v", "vn", 0.0),
    "step_ms": ("t", "tn", 0.0),
    "sample_ms": ("sample", "sample_n", 0.0),
    "rollback_ms": ("rollback", "rollback_n", 0.0),
    "repack_ms": ("repack", "repack_n", 0.0),
    "emit_lag_ms": ("lag", "lag_n", 0.0),
    "every_step_ms": ("every_t", "every_n", 0.0),
    "plain_ms": ("b", "w", 0.0),
    "tpot_ms": ("decode", "tokens", 0.0),
    "plain_tpot_ms": ("plain", "tokens", 0.0),
}
NAMES = tuple(_COLUMNS)
#: The largest that a ratio can be.
MOST = {"draft_accept_ratio": 1.0, "token_accept_prob": 1.0, "drafting_share": 1.0}
# Letters of rho.sql's step_spread, and the ratios they are of. TPOT is of all steps that its requests went through: it
# shares with others what the mean over every step does, so that their difference has none of it.
_SHARED = {
    "d": ("draft_ms_per_token",), "v": ("target_ms",), "t": ("step_ms",), "b": ("plain_ms",),
    "e": ("every_step_ms", "tpot_ms"),
}  # fmt: skip
_TPOT_SIDE = ("decode", "tokens", "plain")


@dataclass(frozen=True, slots=True)
class Ratios:
    """Values by name (None: not measured), in the order of NAMES, and the sources of chance of their logarithms."""

    values: Mapping[str, float | None]
    sources: tuple[Source, ...]

    def known(self) -> list[str]:
        """Names of the ratios that are there and above 0."""
        return [name for name in NAMES if (self.values.get(name) or 0.0) > 0]

    def part(self, names: list[str]) -> tuple[Source, ...]:
        """The sources for some of the ratios."""
        index = np.array([NAMES.index(name) for name in names], dtype=np.int64)
        return tuple(Source(s.covariance[np.ix_(index, index)], s.freedom) for s in self.sources)


def stratum_ratios(answers: Answers, key: Key, priced: Priced) -> Ratios:
    """Ratios of a stratum over the rows that its baseline prices, as the report prints them."""
    alpha, rho, base = priced.alpha, priced.rho, priced.base
    values: dict[str, float | None] = {name: alpha.get(name) for name in NAMES if name in alpha}
    drafting, rounds = alpha.get("rounds"), alpha.get("all_rounds")
    values["drafting_share"] = drafting / rounds if drafting is not None and rounds else None
    values |= {name: rho.get(name) for name in NAMES if name in rho}
    values["plain_ms"], values["plain_tpot_ms"] = priced.baseline, priced.tpot
    values["tpot_ms"] = priced.speedup.get("tpot_ms")
    sums = _sums(answers, key)
    values["every_step_ms"] = _every_step(rho, sums)
    return Ratios(values, _sources(sums, rho, base))


def _every_step(rho: Mapping[str, Any], sums: Mapping[str, Floats]) -> float | None:
    """Mean step with those that hold prefill; None where no step says whether it does."""
    step, rounds = rho.get("step_ms"), rho.get("step_rounds")
    if step is None or not rounds or not sums.get("prefill_known", np.zeros(1))[0]:
        return None
    more = rho.get("prefill_rounds") or 0.0
    return float((step * rounds + (rho.get("prefill_step_ms") or 0.0) * more) / (rounds + more))


def _sums(answers: Answers, key: Key) -> dict[str, Floats]:
    """Columns of spread.sql with one element a unit; times of requests over what a baseline TPOT prices."""
    row, other = answers.one_priced("spread", key), answers.one_priced("spread", key, tpot=True)
    if not row:
        return {}
    buckets = np.union1d(np.asarray(row["buckets"], np.uint64), np.asarray(other.get("buckets") or [], np.uint64))
    found: dict[str, Floats] = {"prefill_known": np.array([bool(row.get("prefill_known"))], dtype=np.float64)}
    for source, is_tpot in ((row, False), (other, True)):
        if not source:
            continue
        place = np.searchsorted(buckets, np.asarray(source["buckets"], np.uint64))
        for name, values in source.items():
            if name in ("buckets", "prefill_known") or (name in _TPOT_SIDE) is not is_tpot:
                continue
            found[name] = np.zeros(buckets.size)
            found[name][place] = values
    for name in _TPOT_SIDE:
        found.setdefault(name, np.zeros(buckets.size))
    found["trials"] = found["a_of_p"] + found["rejections"]
    found["every_t"] = found["t"] + found["prefill_t"]
    found["every_n"] = found["tn"] + found["prefill_n"]
    return found


def _sources(sums: Mapping[str, Floats], rho: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[Source, ...]:
    if not sums:
        return ()
    # With V itself as the plain step the two are one ratio.
    is_verify = base.get("baseline_basis") == "verify_pass"
    columns = {**_COLUMNS, "plain_ms": _COLUMNS["target_ms"]} if is_verify else _COLUMNS
    ratios = [Ratio(sums[above], sums[below], shift) for above, below, shift in columns.values()]
    sizes = next((sums[name] for name in ("n_all", "d", "tokens", "w") if sums[name].sum() > 0), None)
    unit = None if sizes is None else unit_source(ratios, sizes)
    if unit is None:
        return ()
    found = [Source(unit.covariance + _shared(rho), unit.freedom), *_baselines(base)]
    if rho.get("draft_cost_basis") == "logged_mean":
        # The engine printed a mean: how it spreads over requests nobody can tell.
        found.append(_alone("draft_ms_per_token", math.inf, 1.0))
    return tuple(found)


def _shared(rho: Mapping[str, Any]) -> Floats:
    """What rows of one step share on top of their units, without negative variances that chance can give."""
    matrix = np.zeros((len(NAMES), len(NAMES)))
    for pair, value in (rho.get("step_spread") or {}).items():
        if value is not None and math.isfinite(value):
            for one, other in itertools.product(*(_SHARED[letter] for letter in pair)):
                i, j = NAMES.index(one), NAMES.index(other)
                matrix[i, j] = matrix[j, i] = value
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T, dtype=np.float64)


def _baselines(base: Mapping[str, Any]) -> list[Source]:
    """The baseline's own measurement: its step, its TPOT; one source where the TPOT stands in for the step."""
    step = _measured(base, "baseline", base.get("baseline_basis") not in (None, "value", "verify_pass"))
    tpot = _measured(base, "baseline_tpot", base.get("baseline_tpot_basis") not in (None, "value"))
    i, j = NAMES.index("plain_ms"), NAMES.index("plain_tpot_ms")
    found = []
    if base.get("baseline_basis") == "run_tpot" and step is not None and tpot is not None:
        matrix = np.zeros((len(NAMES), len(NAMES)))
        matrix[i, i], matrix[j, j] = step[0], tpot[0]
        matrix[i, j] = matrix[j, i] = math.sqrt(step[0] * tpot[0])
        return [Source(matrix, min(step[1], tpot[1]))]
    for name, measured in (("plain_ms", step), ("plain_tpot_ms", tpot)):
        if measured is not None:
            found.append(_alone(name, *measured))
    return found


def _alone(name: str, variance: float, freedom: float) -> Source:
    matrix = np.zeros((len(NAMES), len(NAMES)))
    matrix[NAMES.index(name), NAMES.index(name)] = variance
    return Source(matrix, freedom)


def _measured(base: Mapping[str, Any], name: str, is_measured: bool) -> tuple[float, float] | None:
    """Relative variance of a baseline and its freedom; infinite where it was measured and its spread is not known."""
    if not is_measured or base.get(f"{name}_ms") is None:
        return None
    relvar, units = base.get(f"{name}_relvar"), base.get(f"{name}_units")
    if relvar is None or not math.isfinite(relvar) or not units or units < FEWEST_UNITS:
        return math.inf, 1.0
    return max(relvar, 0.0), max(units - 1.0, 1.0)
