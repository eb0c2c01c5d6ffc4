"""Figures of a comparison that tell the same as another one: which of them are tested, the same way in every class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracelens.analysis.answers import Key
from tracelens.analysis.compared import IN_ITS_PLACE, Change, Compared
from tracelens.analysis.session import Session
from tracelens.analysis.spreads import same_baseline

# Tested in the place of the first, in this order, where both sides meet one baseline; or every change would count
# twice.
_TWINS = {
    "tau_verified": ("tau_committed",),
    "rho_verify": ("rho",),
    "speedup_observed": ("relative_token_time", "tpot_ms"),
    "draft_ms": ("rho",),
    "target_ms": ("verify_inflation",),
    "step_ms": ("round_cost",),
}
_WITHOUT_BASELINE = ("tau_verified", "rho_verify")


def stand_ins(rows: Sequence[Compared], a: Session, b: Session) -> list[Compared]:
    """Leave out the tests of figures that another one stands for.

    One does in every class and in total, or nowhere: a figure that is tested in total and not in its classes would
    seem to say two things.
    """
    changes = [None if row.change is None else dict(row.change) for row in rows]
    for name, twins in _TWINS.items():
        tested = [i for i, change in enumerate(changes) if change is not None and _is_tested(change[name])]
        twin = next((t for t in twins if all(_stands(t, name, rows[i], a, b) for i in tested)), None)
        for i in tested if twin is not None else []:
            change = changes[i] or {}
            change[name] = replace(change[name], p_value=None, because=f"{twin} is tested {IN_ITS_PLACE}")
    return [row if change is None else replace(row, change=change) for row, change in zip(rows, changes, strict=True)]


def _is_tested(change: Change) -> bool:
    return change.p_value is not None


def _stands(twin: str, name: str, row: Compared, a: Session, b: Session) -> bool:
    """Whether `twin` tells in this class what `name` does."""
    if row.change is None or not _is_tested(row.change[twin]):
        return False
    if name in _WITHOUT_BASELINE:
        return True
    key: Key = tuple(row.key.values()) or None
    if name != "speedup_observed":
        return same_baseline(a, b, key)
    # By steps the speedup is 1 / C whatever the baseline is; by TPOT it is a baseline's TPOT over the own.
    by_step = all((side or {}).get("speedup_observed_basis") == "step" for side in (row.a, row.b))
    if twin == "relative_token_time" or by_step:
        return by_step and twin == "relative_token_time"
    return same_baseline(a, b, key, tpot=True)
