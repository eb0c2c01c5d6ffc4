"""How well every figure of one side of a comparison is known, and in which convention it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tracelens.analysis.answers import Key
from tracelens.analysis.costs import Priced
from tracelens.analysis.session import Session
from tracelens.model.changes import Spread, ratio_spread, share_spread
from tracelens.model.intervals import RatioSums, ratio_estimate

#: Queries that a comparison asks beyond those of a report.
QUERIES = ("step_times", "mix")

_COSTS = {
    "rho": "rho_relvar",
    "verify_inflation": "verify_inflation_relvar",
    "round_cost": "round_cost_relvar",
    "relative_token_time": "token_relvar",
}
_TIMES = {"draft_ms": "draft_var", "target_ms": "target_var", "step_ms": "step_var"}
# The figure that says in which convention another one stands: two conventions are not compared.
_BASES = {
    "tau_committed": "tau_committed_basis",
    "rho": "draft_cost_basis",
    "rho_verify": "draft_cost_basis",
    "relative_token_time": "relative_token_time_basis",
    "speedup_observed": "speedup_observed_basis",
}
_ONE_BASELINE = 0.8  # share of the traffic that must meet the same plain steps on both sides
_SAME_MEAN = 0.02
_FEWEST_UNITS = 1.5  # an effective number, as for the intervals of costs

Row = Mapping[str, Any]


def basis_of(figures: Row, name: str) -> str:
    """The convention of a figure and of the baseline under it, in words; empty where it has one only."""
    parts = [figures.get(_BASES[name])] if name in _BASES else []
    if name in (*_COSTS, "overhead") or (name == "speedup_observed" and parts == ["step"]):
        parts.append(figures.get("baseline_basis"))
    elif name == "speedup_observed":
        parts.append(figures.get("baseline_tpot_basis"))
    return ", ".join(str(part) for part in parts if part is not None)


def spreads(session: Session, key: Key, figures: Row) -> dict[str, Spread]:
    """Spread of every figure of a stratum that has one; the others cannot be tested."""
    answers, level = session.answers, session.question.level
    alpha, near, speed = answers.one("alpha", key), answers.one("near_k", key), answers.one("speedup", key)
    rho, times, priced = answers.one("rho", key), answers.one("step_times", key), session.priced(key)
    found: dict[str, Spread | None] = {
        name: share_spread(RatioSums.of(row.get(f"{name}_sums")), level)
        for name, row in (("draft_accept_ratio", alpha), ("token_accept_prob", alpha), ("near_k_round_share", near))
    }
    found["tau_verified"] = ratio_spread(RatioSums.of(alpha.get("tau_verified_sums")), shift=1.0)
    found["tau_committed"] = ratio_spread(RatioSums.of(alpha.get("tau_committed_sums")))
    found["tpot_ms"] = ratio_spread(RatioSums.of(speed.get("tpot_sums")))
    found["rho_verify"] = _relative(figures.get("rho_verify"), rho.get("rho_verify_relvar"), rho.get("units"))
    for name, column in _TIMES.items():
        found[name] = _absolute(times.get(name), times.get(column), times.get("units"))
    for name, column in _COSTS.items():
        own = _relative(figures.get(name), priced.rho.get(column), priced.rho.get("units"))
        found[name] = _scaled(own, priced, "baseline")
    if priced.base.get("baseline_basis") == "verify_pass":  # V over itself is 1 by construction
        found["verify_inflation"] = None
    found["overhead"] = _overhead(figures, priced, answers.one_priced("step_times", key))
    found["speedup_observed"] = _speedup(figures, priced, found["relative_token_time"])
    return {name: spread for name, spread in found.items() if spread is not None}


def shared_baseline(a: Session, b: Session, key: Key, *, tpot: bool = False) -> float:
    """How much of the baseline of both sides is one measurement, 0 to 1: the overlap of the plain steps they meet.

    Plain steps taken from a side's own records are its own.
    """
    name = "baseline_tpot_basis" if tpot else "baseline_basis"
    if all(session.priced(key).base.get(name) == "value" for session in (a, b)):
        return 1.0
    one, other = (_weights(session, key, tpot=tpot) for session in (a, b))
    return min(sum(min(share, other.get(place, 0.0)) for place, share in one.items()), 1.0)


def same_baseline(a: Session, b: Session, key: Key, *, tpot: bool = False) -> bool:
    """Whether both sides stand over what is to all purposes one baseline.

    So they do where they meet the same plain steps; also where they meet them in other shares, as the total does when
    the mix of traffic moved, but come to the same mean of the same engines and models.
    """
    if shared_baseline(a, b, key, tpot=tpot) >= _ONE_BASELINE:
        return True
    setups = []
    for session in (a, b):
        found: dict[tuple[object, ...], float] = {}
        for (engine, model, *_), weight in _weights(session, key, tpot=tpot).items():
            found[engine, model] = found.get((engine, model), 0.0) + weight
        setups.append(found)
    one, other = ((s.priced(key).tpot if tpot else s.priced(key).baseline) for s in (a, b))
    alike = sum(min(weight, setups[1].get(setup, 0.0)) for setup, weight in setups[0].items()) >= _ONE_BASELINE
    return alike and one is not None and other is not None and math.isclose(one, other, rel_tol=_SAME_MEAN)


def _weights(session: Session, key: Key, *, tpot: bool) -> dict[tuple[object, ...], float]:
    rows = (session.answers.priced_tpot if tpot else session.answers.priced)["mix"].get(key, [])
    found: dict[tuple[object, ...], float] = {}
    total = 0.0
    for row in rows:
        weight, price = float((row["tokens"] if tpot else row["rounds"]) or 0.0), row["tpot" if tpot else "price"]
        if not weight or price is None:
            continue
        total += weight
        # One cell of the baseline has one price; a TPOT that stands in for a step is a mean over context ranges.
        place: tuple[object, ...] = (row["engine"], row["model"], f"{price:.9g}")
        if not tpot and row["basis"] == "run_tpot":
            place = (row["engine"], row["model"], str(row["traffic"]))
        if tpot or str(row["basis"]).startswith("run_"):
            found[place] = found.get(place, 0.0) + weight
    return {place: weight / total for place, weight in found.items()}


def _overhead(figures: Row, priced: Priced, times: Row) -> Spread | None:
    plain = priced.baseline
    own = _absolute(times.get("other_ms"), times.get("other_var"), times.get("units"))
    if own is None or plain is None or figures.get("overhead") is None:
        return None
    return _scaled(Spread(figures["overhead"], own.variance / plain**2, own.freedom), priced, "baseline")


def _speedup(figures: Row, priced: Priced, token: Spread | None) -> Spread | None:
    value = figures.get("speedup_observed")
    if value is None:
        return None
    if figures.get("speedup_observed_basis") == "step":
        # The inverse of relative_token_time: relative variances stay.
        relative = None if token is None else token.variance / token.value**2
        return None if token is None or relative is None else Spread(
            value, relative * value**2, token.freedom, token.scale_variance, token.scale_freedom)  # fmt: skip
    given = priced.base.get("baseline_tpot_basis") == "value"
    ratio = ratio_estimate(RatioSums.of(priced.speedup.get("tpot_sums" if given else "priced_sums")))
    if ratio is None:
        return None
    return _scaled(Spread(value, ratio.relative_variance * value**2, ratio.freedom), priced, "baseline_tpot")


def _scaled(own: Spread | None, priced: Priced, name: str) -> Spread | None:
    """Add what is not known of the baseline; None where it is measured and nobody knows how well."""
    basis = priced.base.get(f"{name}_basis")
    if own is None or basis in ("value", "verify_pass"):
        return own
    relvar, units = priced.base.get(f"{name}_relvar"), priced.base.get(f"{name}_units")
    if not _known(relvar, units):
        return None
    return Spread(own.value, own.variance, own.freedom, max(float(relvar or 0), 0.0), _freedom(units))


def _relative(value: float | None, relvar: float | None, units: float | None) -> Spread | None:
    return None if value is None or relvar is None else _absolute(value, relvar * value**2, units)


def _absolute(value: float | None, variance: float | None, units: float | None) -> Spread | None:
    if value is None or not _known(variance, units):
        return None
    return Spread(value, max(float(variance or 0), 0.0), _freedom(units))


def _known(variance: float | None, units: float | None) -> bool:
    return variance is not None and math.isfinite(variance) and bool(units) and float(units or 0) >= _FEWEST_UNITS


def _freedom(units: float | None) -> float:
    return max(float(units or 0) - 1.0, 1.0)
