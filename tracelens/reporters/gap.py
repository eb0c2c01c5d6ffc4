"""The gap waterfall: every cause as a factor, as points of speedup and as ms a token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.analysis.results import GapResult, GapStratum, GapTerm
from tracelens.analysis.verdict import apart, cause
from tracelens.reporters import answer, selected
from tracelens.reporters import format as fmt
from tracelens.reporters.sheet import Cell, Grid, Sheet, View, endnotes, name_of
from tracelens.reporters.tables import CONTROL

_FIGURES = (
    "draft_accept_ratio", "token_accept_prob", "tau_verified", "tau_drafted", "tau_committed", "mean_drafted", "rho",
    "verify_inflation", "overhead", "round_cost", "relative_token_time", "tpot_ms", "step_ms", "requests", "rounds",
    "num_speculative_tokens", "control_runs", "control_spread",
)  # fmt: skip
_NOTES = (
    "factor: of the speedup; the factors multiply to observed / planned",
    "points: of speedup, with 95 % intervals by request (or interval of the log); ms / token: of the time of a token;"
    " each column adds up",
    "α: draft_accept_ratio, accepted over drafted tokens, the target's own token excluded",
    "ρ: rho, one draft token over one plain step",
)
_BAR = 8
_SHORT = {"unattributed": "cost of a round", "k_shift": "draft length", "terminal_cuts": "cuts at a stop",
          "shape": "shape of acceptance", "other": "beyond the steps"}  # fmt: skip
_SIGNS = {"alpha_shift": "α", "rho_drift": "ρ", "k_shift": "", "verify_inflation": "v", "plain_steps": "τ",
          "terminal_cuts": "τ", "unattributed": "R"}  # fmt: skip


def sheet(result: GapResult) -> Sheet:
    """The total's verdict first, a waterfall a stratum, the causes that were not logged, warnings."""
    nothing = next((w.text for w in result.warnings if w.code == "nothing_selected"), "")
    if nothing:
        return Sheet((nothing,), selected=selected.line(result.selection))
    rows = (*result.strata, result.total)
    lead = [_upper(result.total.verdict), _basis(result.total)]
    # One class alone is all traffic: once is enough.
    drawn = result.strata if len(result.strata) == 1 else rows
    grids = [_overview(result, rows)] if len(drawn) > 1 else []
    grids += [waterfall(s, result.claim, last=s is drawn[-1]) for s in drawn]
    ends = endnotes([w for w in result.warnings if w.code != "nothing_selected"], result.coverage)
    return Sheet(tuple(filter(None, lead)), tuple(grids), ends, selected.line(result.selection))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _basis(stratum: GapStratum) -> str:
    if stratum.speedup_observed_basis is None:
        return ""
    name = stratum.baseline_basis
    what = answer.BASELINES.get(name or "") or fmt.visible(name or "not known")
    text = f"Baseline: {fmt.ms(stratum.baseline_ms)} a token, {what}"
    return f"{text}.{answer.control(stratum.figures)}"


def _overview(result: GapResult, rows: Sequence[GapStratum]) -> Grid:
    keys = list(result.by)
    noisy = any(fmt.is_number(s.figures.get("control_spread")) for s in rows)
    heads = [*keys, "planned", "observed\nspeedup  [95 %]", *(["control\nnoise"] if noisy else []), "largest loss"]
    cells = []
    for stratum in rows:
        total = stratum is result.total
        key = (
            [Cell("all"), *(Cell("") for _ in keys[1:])]
            if total
            else [Cell(fmt.label(stratum.key[k], column=k)) for k in keys]
        )
        largest = min(stratum.terms, key=lambda t: t.points or 0.0, default=None)
        bounds = fmt.interval(stratum.speedup_observed_low, stratum.speedup_observed_high, lambda v: f"{v:.2f}")
        least = "≤ " if stratum.speedup_observed_basis == "upper_bound" else ""
        cells.append(
            (
                *key,
                Cell(fmt.times(stratum.speedup_claimed)),
                Cell(least + fmt.times(stratum.speedup_observed), bounds),
                *([Cell(fmt.percent(stratum.figures.get("control_spread")))] if noisy else []),
                Cell(
                    f"{_SHORT.get(largest.name) or cause(largest.name)} {signed(largest.points)}"
                    if largest and (largest.points or 0.0) < 0
                    else fmt.DASH
                ),
            )
        )
    note = (CONTROL.note,) if noisy else ()
    last = frozenset({len(rows) - 1})
    return Grid("Planned and observed", tuple(heads), tuple(cells), keys=len(keys), sections=last, notes=note)


def waterfall(stratum: GapStratum, claim: Mapping[str, Any], *, last: bool) -> Grid:
    """Planned, every cause that moved the speedup, observed; `last` adds the conventions."""
    moving = [t for t in stratum.terms if abs(t.factor - 1.0) >= LEAST_MOVED]
    scale = max((abs(t.points) for t in moving if t.points is not None), default=0.0)
    rows = [
        _whole("planned", stratum.speedup_claimed, stratum.token_claimed_ms),
        *(_row(term, scale, claim) for term in moving),
    ]
    if stratum.baseline.measured:
        ms = signed(stratum.baseline.ms_per_token)
        steps = f"plain step {fmt.number_ms(claim.get('baseline_ms'))} → {fmt.number_ms(stratum.baseline_ms)} ms"
        rows.append((Cell(steps), Cell(""), Cell(""), Cell(ms), Cell("")))
    rows.append(_whole("observed", stratum.speedup_observed, stratum.token_ms))
    still = [cause(t.name) for t in stratum.terms if t not in moving]
    notes = [f"moved nothing here: {', '.join(still)}"] if still else []
    notes += [
        f"* {cause(t.name)}: holds {', '.join(map(cause, t.includes))}, not told apart" for t in moving if t.includes
    ]
    return Grid(
        f"Why: {name_of(stratum.key)}",
        ("cause", "factor", "points  [95 %]", "ms /\ntoken", "size"),
        tuple(rows),
        sections=frozenset({1, len(rows) - 1}),
        notes=(*notes, *(_NOTES if last else ())),
        left=frozenset({4}),
    )


LEAST_MOVED = 2e-3  # of a factor: smaller causes are listed below the table, so that what moved stands out


def _whole(name: str, speedup: float | None, token_ms: float | None) -> tuple[Cell, ...]:
    return (Cell(name, style="bold"), Cell(""), Cell(fmt.times(speedup)), Cell(fmt.number_ms(token_ms)), Cell(""))


def _row(term: GapTerm, scale: float, claim: Mapping[str, Any]) -> tuple[Cell, ...]:
    spread = fmt.interval(term.points_low, term.points_high, lambda v: f"{v:+.2f}")
    certain = term.points_low is not None and term.points_high is not None and term.points_low * term.points_high > 0
    style = ("red" if (term.points or 0) < 0 else "green") if certain and abs(term.points or 0) >= 0.005 else ""
    bar = "█" * round(_BAR * abs(term.points or 0) / scale) if scale > 0 else ""
    return (
        Cell(f"{cause(term.name)}{moved(term, claim)}{'' if term.measured else ' *'}"),
        Cell(fmt.ratio(term.factor)),
        Cell(signed(term.points), spread, style),
        Cell(signed(term.ms_per_token)),
        Cell(bar, style=style),
    )


def moved(term: GapTerm, claim: Mapping[str, Any]) -> str:
    """What a cause moved, from planned to observed, with its sign; empty where that is no one number."""
    sign = _SIGNS.get(term.name)
    if sign is None or term.planned is None or term.observed is None:
        return ""
    sign = "p" if term.name == "alpha_shift" and claim.get("form") == "iid" else sign
    numbers = apart(term.planned, term.observed)
    return f" {sign} {numbers}" if sign else f", {numbers}"


def signed(value: float | None) -> str:
    """A number with its sign; 0.00 without one."""
    if not fmt.is_number(value):
        return fmt.DASH
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def document(result: GapResult) -> dict[str, Any]:
    """The JSON of the contract: the product of a stratum's factors is speedup_observed / speedup_claimed."""
    from tracelens.reporters import json_

    return {
        "schema_version": json_.SCHEMA_VERSION,
        "by": list(result.by),
        "claim": dict(result.claim),
        "selection": dict(result.selection),
        "strata": [_stratum(s) for s in result.strata],
        "total": _stratum(result.total),
        "coverage": json_.missing(result.coverage),
        "warnings": json_.warnings(result.warnings),
    }


def _stratum(stratum: GapStratum) -> dict[str, Any]:
    told = {
        field.name: getattr(stratum, field.name)
        for field in dataclasses.fields(stratum)
        if field.name not in ("key", "terms", "figures", "verdict", "baseline", "unmeasured")
    }
    return {
        "key": dict(stratum.key),
        **told,
        "terms": [{**dataclasses.asdict(t), "includes": list(t.includes)} for t in stratum.terms],
        "baseline": dataclasses.asdict(stratum.baseline),
        "unmeasured": list(stratum.unmeasured),
        "figures": {name: stratum.figures.get(name) for name in _FIGURES},
        "verdict": stratum.verdict,
    }


VIEW: View[GapResult] = View(sheet, document)
