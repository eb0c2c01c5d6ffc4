"""The gate: a decision a class of traffic, what it hangs on, and what would make it pay."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tracelens.analysis.gate import GateResult, GateStratum
from tracelens.analysis.results import NOTHING
from tracelens.model.decision import LEAST_EFFECTIVE
from tracelens.reporters import format as fmt
from tracelens.reporters import selected
from tracelens.reporters.sheet import Bullets, Cell, Grid, Sheet, View, endnotes, name_of
from tracelens.reporters.tables import CONTROL
from tracelens.wording import many

_STYLES = {"GO": "green", "NO_GO": "red", "INCONCLUSIVE": ""}
_NOTES = (
    "token time: relative_token_time C, one committed token over one plain decode step, by steps; t: by TPOT over the "
    "baseline's; ≥: a lower bound",
    "α: draft_accept_ratio, accepted over drafted tokens, the target's own token excluded; break-even α: where C would "
    "be 1.0 at this cost of a round (never: above 1)",
)
_OF_TPOT = "requests: those whose TPOT is logged, where no record counts the rounds of any"
_WASTE_NOTES = (
    "verify waste: verified positions that gave no token; padding: positions computed to pad drafts to the longest of "
    "their step, by engines that do so",
    "drag: share of verified positions over share of tokens in steps shared with other classes; above 1 the others pay",
    "off: engine time that plain decoding of the same tokens would save (+) or cost (-)",
    "-1 / +1 token: speedup with one committed token a round less or more, at the same cost",
)


def sheet(result: GateResult) -> Sheet:
    """The decision first, then what it hangs on, waste, and the advice."""
    nothing = next((w.text for w in result.warnings if w.code == NOTHING), "")
    if nothing:
        return Sheet((nothing,), selected=selected.line(result.selection))
    rows = (*result.strata, result.total)
    advice = [f"{name_of(s.key)}: {text}" for s in rows for text in s.advice]
    reasons = [f"{name_of(s.key)}: {s.decision}: {'; '.join(s.reasons)}" for s in rows]
    bullets = (Bullets("What follows", tuple(advice)), Bullets("Why", tuple(reasons)))
    warnings = [w for w in result.warnings if w.code != NOTHING]
    return Sheet(
        _lead(result),
        (_decisions(result, rows), _waste(result, rows)),
        (*(b for b in bullets if b.items), *endnotes(warnings, result.coverage)),
        selected.line(result.selection),
    )


def _lead(result: GateResult) -> tuple[str, ...]:
    strata = result.strata or (result.total,)
    counts = [(name, sum(s.decision == name for s in strata)) for name in ("GO", "NO_GO", "INCONCLUSIVE")]
    told = ", ".join(f"{n} {name}" for name, n in counts if n)
    classes = f"{many(len(strata), 'class', 'classes')} of traffic" if result.strata else "all traffic"
    options = result.options
    limits = (
        f"margin {options.margin:g}, at least {many(options.min_requests, 'request')} worth {LEAST_EFFECTIVE:g} of "
        "equal length"
    )
    if options.max_near_k is not None:
        limits += f", near-K rounds up to {options.max_near_k:.0%}"
    total = f"; in total {result.total.decision}" if result.strata else ""
    rule = f"Rule: {limits}; the whole 95 % interval must lie on one side of 1, further than control noise."
    return (f"{result.decision}: {told} of {classes}{total}.", rule)


def _key(result: GateResult, stratum: GateStratum) -> tuple[Cell, ...]:
    if stratum is result.total:
        return (Cell("all"), *(Cell("") for _ in result.by[1:]))
    return tuple(Cell(fmt.label(stratum.key.get(name), column=name)) for name in result.by)


def _decisions(result: GateResult, rows: Sequence[GateStratum]) -> Grid:
    noisy = any(s.control_spread is not None for s in rows)
    heads = (*(result.by or ("",)), "decision", "token time\n/ plain  [95 %]", *(("control\nnoise",) if noisy else ()),
             "α", "break\neven α", "K", "requests")  # fmt: skip
    cells = tuple(
        (
            *_key(result, s),
            Cell(s.decision, style=_STYLES[s.decision]),
            _time(s),
            *((Cell(fmt.percent(s.control_spread)),) if noisy else ()),
            Cell(fmt.ratio(s.draft_accept_ratio)),
            Cell(
                "never" if s.break_even_alpha is not None and s.break_even_alpha > 1 else fmt.ratio(s.break_even_alpha)
            ),
            Cell(fmt.count(s.num_speculative_tokens)),
            Cell(fmt.count(s.requests)),
        )
        for s in rows
    )
    by_tpot = any(s.basis == "tpot" and s.requests is not None and s.draft_accept_ratio is None for s in rows)
    notes = (*_NOTES, *((CONTROL.note,) if noisy else ()), *((_OF_TPOT,) if by_tpot else ()))
    keys, last = max(len(result.by), 1), frozenset({len(rows) - 1} if result.strata else ())
    return Grid("Decision", heads, cells, keys, last, notes, frozenset({keys}))


def _time(stratum: GateStratum) -> Cell:
    sign = {"tpot": "t ", "lower_bound": "≥ "}.get(stratum.basis or "", "")
    bounds = fmt.interval(stratum.relative_token_time_low, stratum.relative_token_time_high, lambda v: f"{v:.2f}")
    if stratum.relative_token_time is None:
        return Cell(fmt.DASH)
    return Cell(sign + fmt.ratio(stratum.relative_token_time), bounds)


def _waste(result: GateResult, rows: Sequence[GateStratum]) -> Grid:
    heads = (*(result.by or ("",)), "near-K\nrounds", "verify\nwaste", "padding", "drag", "off", "speedup\n-1 token",
             "speedup\n+1 token")  # fmt: skip
    cells = tuple(
        (
            *_key(result, s),
            Cell(fmt.percent(s.near_k_round_share)),
            Cell(fmt.percent(s.verify_waste)),
            Cell(fmt.percent(s.padding_waste)),
            Cell(fmt.tokens(s.drag)),
            Cell(f"{100 * s.off_gain_share:+.0f} %" if s.off_gain_share is not None else fmt.DASH),
            Cell(fmt.times(s.speedup_one_token_less)),
            Cell(fmt.times(s.speedup_one_token_more)),
        )
        for s in rows
    )
    last = frozenset({len(rows) - 1} if result.strata else ())
    return Grid("Waste, and what one token is worth", heads, cells, max(len(result.by), 1), last, _WASTE_NOTES)


def document(result: GateResult) -> dict[str, Any]:
    """The JSON of the contract."""
    from tracelens.reporters import json_

    return {
        "schema_version": json_.SCHEMA_VERSION,
        "by": list(result.by),
        "options": dataclasses.asdict(result.options),
        "selection": dict(result.selection),
        "strata": [_stratum(s) for s in result.strata],
        "total": _stratum(result.total),
        "decision": result.decision,
        "coverage": json_.missing(result.coverage),
        "warnings": json_.warnings(result.warnings),
    }


def _stratum(stratum: GateStratum) -> dict[str, Any]:
    told = dataclasses.asdict(stratum)
    return {**told, "key": dict(stratum.key), "reasons": list(stratum.reasons), "advice": list(stratum.advice)}


VIEW: View[GateResult] = View(sheet, document)
