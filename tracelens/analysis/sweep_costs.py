"""What a round of another draft length would take, from the times that were logged (MODEL.md 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.figures import Row
from tracelens.model.fit import Line, fit_line, lengths_vary

Floats = NDArray[np.float64]

FITTED, PROPORTIONAL, OBSERVED, CLAIMED = "fitted", "proportional", "observed", "claim"
LOWER_BOUND = "lower_bound"

#: Lengths longer than those of this share of the rounds take no part in a line: one odd draft would turn it.
_MOST = 0.98
_PARTS = {"sample_ms": "sampling", "rollback_ms": "rollback", "repack_ms": "repacking"}

_ONE_LENGTH = (
    "cost: one draft length was timed, so draft time is taken as proportional to K and verify time as constant; a run"
    " with another K would tell both"
)
_LOWER = "cost: no whole step was timed, so a round is draft, verify{parts} alone, a lower bound"
_FROM_TPOT = (
    "cost: no step was timed, so a round is TPOT times the tokens it committed, as a line over the K that ran, and the"
    " baseline is the TPOT without speculation"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean times of a request-round at one K, ms; `draft_ms` and `target_ms` are of rounds with a draft."""

    draft_ms: float | None
    target_ms: float | None
    rest_ms: float | None
    round_ms: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Times of a round as lines over the draft length: draft, verify and a constant rest; or the `whole` round alone.

    `plain_ms` is the round without a draft. `averaged` lines are over means of whole runs, plain rounds included, so
    they take the mean draft length of all rounds. `basis` is `fitted` or `proportional`. `unit` is what C compares
    with: `step`, `lower_bound` (draft, verify and logged parts alone against the plain step; `rest_ms` are these parts)
    or `tpot` (against TPOT).
    """

    basis: str
    unit: str
    draft: Line | None = None
    target: Line | None = None
    rest_ms: float | None = None
    whole: Line | None = None
    plain_ms: float | None = None
    averaged: bool = False
    notes: tuple[str, ...] = ()

    def at(self, k: int, plain_share: float) -> Cost | None:
        """The mean round at draft length `k` where `plain_share` of all rounds have no draft; None where not above 0.

        The line gave a negative time: `k` lies too far from what was timed.
        """
        length = k * (1.0 - plain_share) if self.averaged else float(k)
        if self.draft is not None and self.target is not None:
            draft, target = float(self.draft.at(length)), float(self.target.at(length))
            drafting = draft + target + (self.rest_ms or 0.0)
            shown = Cost(draft, target, self.rest_ms, drafting)
            plain = float(self.target.at(0)) + (self.rest_ms or 0.0)
            if min(draft, target) <= 0:
                return None
        elif self.whole is not None:
            shown = Cost(None, None, None, float(self.whole.at(length)))
            plain = float(self.whole.at(0))
        else:
            return None
        if self.averaged or plain_share == 0:
            return shown if shown.round_ms > 0 else None
        plain = plain if self.plain_ms is None else self.plain_ms
        mean = (1.0 - plain_share) * shown.round_ms + plain_share * plain
        return Cost(shown.draft_ms, shown.target_ms, shown.rest_ms, mean) if mean > 0 else None


def cost_model(cells: Sequence[Row], figures: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> CostModel | None:
    """Fit the times of a stratum; None where the logs give none that K can be told from.

    Args:
        cells: rows of `round_times.sql` of the stratum.
        figures: the stratum's figures, as the report has them.
        runs: the same figures for each K that ran.
    """
    return _from_rounds(cells, figures) or _from_means(figures, runs) or _from_tpot(runs)


def logged_parts(figures: Mapping[str, Any]) -> float | None:
    """Mean time of what was logged of a round beside draft and verify, ms (MODEL.md 4); None where nothing was."""
    known = [float(figures[name]) for name in _PARTS if figures.get(name) is not None]
    return sum(known) if known else None


def _lower(figures: Mapping[str, Any]) -> str:
    return _LOWER.format(parts="".join(f", {told}" for name, told in _PARTS.items() if figures.get(name) is not None))


def _from_rounds(cells: Sequence[Row], figures: Mapping[str, Any]) -> CostModel | None:
    plain_rounds = sum(c["step_rounds"] or 0 for c in cells if c["drafted"] == 0)
    plain = sum(c["step_ms"] or 0 for c in cells if c["drafted"] == 0) / plain_rounds if plain_rounds else None
    drafting = [cell for cell in cells if cell["drafted"] > 0]
    draft, target = _line(drafting, "draft", grows=True), _line(drafting, "target", grows=False)
    if draft is not None and target is not None:
        rounds = sum(c["rest_rounds"] or 0 for c in drafting)
        rest = sum(c["rest_ms"] or 0 for c in drafting) / rounds if rounds else None
        fitted = draft[1] and target[1]
        notes = (*(() if fitted else (_ONE_LENGTH,)), *(() if rest is not None else (_lower(figures),)))
        return CostModel(
            FITTED if fitted else PROPORTIONAL,
            LOWER_BOUND if rest is None else "step",
            draft=draft[0], target=target[0], rest_ms=logged_parts(figures) if rest is None else rest,
            plain_ms=None if rest is None else plain, notes=notes,
        )  # fmt: skip
    whole = _line(drafting, "step", grows=False)
    if whole is None or not whole[1]:
        return None
    return CostModel(FITTED, "step", whole=whole[0], plain_ms=plain)


def _line(cells: Sequence[Row], name: str, *, grows: bool) -> tuple[Line, bool] | None:
    """The line of one time, and whether it was fitted; None where nothing was timed.

    Fitted within engine, model and batch bucket, as runs of different K ran in different batches. Without a choice of
    lengths, or with a line below zero at one draft, it goes through the mean: from zero where it `grows`, else flat.
    """
    kept = [cell for cell in cells if cell[f"{name}_rounds"]]
    if not kept:
        return None
    group = [repr((cell["engine"], cell["model"], cell["batch_bucket"])) for cell in kept]
    length, rounds, total = (np.array([float(cell[c]) for cell in kept]) for c in
                             ("drafted", f"{name}_rounds", f"{name}_ms"))  # fmt: skip
    return _through(group, length, rounds, total, grows=grows)


def _through(
    group: Sequence[str] | NDArray[np.str_], length: Floats, rounds: Floats, total: Floats, *, grows: bool
) -> tuple[Line, bool]:
    order = np.argsort(length, kind="stable")
    reached = np.cumsum(rounds[order]) >= _MOST * rounds.sum()
    kept = length <= length[order][np.argmax(reached)]
    group, length, rounds, total = np.asarray(group)[kept], length[kept], rounds[kept], total[kept]
    mean_length, mean = float(np.sum(rounds * length) / rounds.sum()), float(total.sum() / rounds.sum())
    line = fit_line(group, length, rounds, total) if lengths_vary(length, rounds) else None
    if line is not None and float(line.at(1.0)) > 0:
        return line, True
    slope = mean / mean_length if grows and mean_length > 0 else 0.0
    return Line(mean_length, mean, slope), False


def _from_means(figures: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> CostModel | None:
    """Lines over the means of runs, or through the one mean of the stratum: what windows and requests give."""
    lines = {name: _over_runs(runs, name, "mean_drafted") for name in ("draft_ms", "target_ms", "step_ms")}
    per_token, target, step = (figures.get(name) for name in ("draft_ms_per_token", "target_ms", "step_ms"))
    if figures.get("profiled_times") == "phases":
        # Phases of a profiler are no part of steps that were timed without it; what draft and verify cost is unknown.
        per_token = target = lines["draft_ms"] = lines["target_ms"] = None
    length = figures.get("mean_drafted")
    if lines["draft_ms"] is not None and lines["target_ms"] is not None:
        draft, verify = lines["draft_ms"], lines["target_ms"]
        rest = logged_parts(figures) if step is None else step - draft.mean_ms - verify.mean_ms
        unit = LOWER_BOUND if step is None else "step"
        lower = (_lower(figures),) if step is None else ()
        return CostModel(FITTED, unit, draft=draft, target=verify, rest_ms=rest, averaged=True, notes=lower)
    if lines["step_ms"] is not None:
        return CostModel(FITTED, "step", whole=lines["step_ms"], averaged=True)
    if per_token is None or length is None:
        return None
    draft = Line(length, per_token * length, per_token)
    if target is not None:
        rest = logged_parts(figures) if step is None else step - draft.mean_ms - target
        notes = (_ONE_LENGTH, _lower(figures)) if step is None else (_ONE_LENGTH,)
        return CostModel(
            PROPORTIONAL, LOWER_BOUND if step is None else "step",
            draft=draft, target=Line(length, target, 0.0), rest_ms=rest, averaged=True, notes=notes,
        )  # fmt: skip
    if step is None:
        return None
    return CostModel(PROPORTIONAL, "step", whole=Line(length, step, per_token), averaged=True, notes=(_ONE_LENGTH,))


def _from_tpot(runs: Sequence[Mapping[str, Any]]) -> CostModel | None:
    implied = [
        {**run, "implied_ms": run["tpot_ms"] * run["tau_committed"]}
        for run in runs
        if run.get("tpot_ms") is not None and run.get("tau_committed")
    ]
    whole = _over_runs(implied, "implied_ms", "mean_drafted")
    return None if whole is None else CostModel(FITTED, "tpot", whole=whole, averaged=True, notes=(_FROM_TPOT,))


def _over_runs(runs: Sequence[Mapping[str, Any]], name: str, length: str) -> Line | None:
    """A line over runs of different K, by their rounds; None where fewer than two of them have it."""
    known = [r for r in runs if r.get(name) is not None and r.get(length) is not None and r.get("rounds")]
    if len(known) < 2:
        return None
    d, n = np.array([float(r[length]) for r in known]), np.array([float(r["rounds"]) for r in known])
    line, fitted = _through([""] * len(known), d, n, n * np.array([float(r[name]) for r in known]), grows=False)
    return line if fitted else None
