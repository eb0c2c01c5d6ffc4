"""The gap as a waterfall: planned speedup, every cause that moved it, observed speedup."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import altair as alt

from tracelens.analysis.results import GapResult, GapStratum, GapTerm
from tracelens.analysis.verdict import cause
from tracelens.reporters import format as fmt
from tracelens.reporters.charts.drawn import (
    MOST_ROWS,
    Absent,
    Drawn,
    Head,
    Numbers,
    Row,
    cut_note,
    label_axis,
    labels,
    layered,
    words,
)
from tracelens.reporters.gap import LEAST_MOVED, moved, signed

NBSP = "\u00a0"
_NARROW = 19  # letters that a phone shows beside the bars
_STYLES = {"total": "ink", "loss": "accent", "gain": "soft"}
_OPEN = ("* holds causes that nobody logged apart: the numbers name them.",)
_SHORT = {
    "convention": "target's own token",
    "k_shift": "draft length",
    "shape": "shape of acceptance",
    "terminal_cuts": "cuts at a stop",
    "plain_steps": "plain rounds",
    "verify_inflation": "verify pass",
    "repack": "candidate assembly",
    "rollback": "KV repair",
    "unattributed": "rest of the round",
    "prefill_interference": "prefill in the steps",
    "emit_lag": "tokens sent late",
    "other": "beyond the steps",
    "baseline_beyond_steps": "baseline beyond steps",
}


def waterfall(result: GapResult | None) -> Drawn | Absent:
    """From planned to observed, cause by cause; one class of traffic at a time, all traffic first."""
    title = "From planned to observed speedup"
    if result is None:
        return Absent(
            "waterfall", title, "give what was planned: --claim alpha=.72,rho=.1,k=5 (α, ρ and K of the offline test)"
        )
    every = [result.total, *(result.strata if len(result.strata) > 1 else ())]
    names = ["all traffic", *labels([s.key for s in every[1:]])]
    named = list(zip(names, every, strict=True))
    told = [(name, s) for name, s in named if s.speedup_observed is not None]
    if not told:
        return Absent("waterfall", title, result.total.verdict.rstrip("."))
    kept = sorted(told[1:], key=lambda pair: -(pair[1].figures.get("rounds") or 0))[: MOST_ROWS - 1]
    drawn = [told[0], *(pair for pair in told[1:] if pair in kept)]
    choices = {name: _rows(stratum, result) for name, stratum in drawn}
    says = f"{title}, {drawn[0][0]}: {drawn[0][1].verdict}"
    return Drawn(
        "waterfall",
        title,
        says,
        (_chart(next(iter(choices.values())), says),),
        _numbers(named, result),
        ("outcome",),
        ("speedup_claimed", "speedup_observed", "gap_term", "interval"),
        ("From 0: planned and observed. From bar to bar: a strong one took speedup, a pale one gave. Thin lines: 95 %"
         " intervals by request (or interval of the log). The points add up exactly.",
         *(_OPEN if _any_open(drawn) else ()),
         *cut_note(len(drawn) - 1, len(told) - 1)),
        choices if len(choices) > 1 else None,
    )  # fmt: skip


def _chart(rows: list[Row], says: str) -> alt.LayerChart:
    y = alt.Y("label:N", sort=None, title=None, axis=label_axis())
    x = alt.X("start:Q", title="speedup over plain decoding").scale(zero=True).axis(tickCount=6)
    # The first layer sets the order of the rows, so it has all of them.
    order = alt.Chart().mark_tick(opacity=0).encode(y=y)
    told = [t.encode(y=y, x=alt.X("at:Q"), text="text:N") for t in words(alt.Chart(), align="left", dx=7)]
    bars = [
        alt.Chart()
        .transform_filter(alt.datum.kind == kind)
        .mark_bar(style=style, height=18, cornerRadius=1)
        .encode(
            y=y,
            x=x,
            x2="end:Q",
            tooltip=[alt.Tooltip("name:N", title="cause"), alt.Tooltip("text:N", title="points of speedup"),
                     alt.Tooltip("factor:N", title="factor"), alt.Tooltip("ms:N", title="ms / token")],
        )
        for kind, style in _STYLES.items()
    ]  # fmt: skip
    spread = (
        alt.Chart()
        .transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_rule(style="interval")
        .encode(y=y, x=alt.X("low:Q"), x2="high:Q")
    )
    line = alt.Chart().mark_rule(style="reference").encode(x=alt.datum(1.0))
    return layered(rows, order, line, *bars, spread, *told, height=alt.Step(34), says=says)


def _rows(stratum: GapStratum, result: GapResult) -> list[Row]:
    """Bars in order: each cause starts where the one before it ended."""
    rows = [_whole("planned", stratum.speedup_claimed, None, None)]
    at = stratum.speedup_claimed
    for term in _moving(stratum):
        points = term.points or 0.0
        low, high = (None if end is None else at + end for end in (term.points_low, term.points_high))
        most = max(at, at + points, *(v for v in (low, high) if v is not None))
        rows.append({
            "label": _label(term, result), "name": cause(term.name), "kind": "loss" if points < 0 else "gain",
            "start": at, "end": at + points, "low": low, "high": high, "at": most, "text": signed(term.points),
            "factor": fmt.ratio(term.factor), "ms": signed(term.ms_per_token),
        })  # fmt: skip
        at += points
    low, high = stratum.speedup_observed_low, stratum.speedup_observed_high
    rows.append(_whole("observed", stratum.speedup_observed or 0.0, low, high))
    return rows


def _whole(name: str, speedup: float, low: float | None, high: float | None) -> Row:
    return {
        "label": name, "name": name, "kind": "total", "start": 0.0, "end": speedup, "low": low, "high": high,
        "at": max(speedup, high or 0.0), "text": fmt.times(speedup), "factor": fmt.DASH, "ms": fmt.DASH,
    }  # fmt: skip


def _moving(stratum: GapStratum) -> list[GapTerm]:
    return [t for t in stratum.terms if abs(t.factor - 1.0) >= LEAST_MOVED]


def _any_open(drawn: Sequence[tuple[str, GapStratum]]) -> bool:
    return any(not term.measured for _, stratum in drawn for term in _moving(stratum))


def _label(term: GapTerm, result: GapResult) -> str:
    name = _SHORT.get(term.name) or cause(term.name)
    told = moved(term, result.claim).strip(" ,")
    text = f"{name}{'' if term.measured else NBSP + '*'}"
    # A name alone takes both lines, so that a phone shows all of it.
    return f"{text}\n{told}" if told else "\n".join(textwrap.wrap(text, _NARROW, max_lines=2))


def _numbers(named: list[tuple[str, GapStratum]], result: GapResult) -> Numbers:
    heads = (
        Head("class"), Head("cause", "gap_term"), Head("from → to"), Head("factor", "gap_term"),
        Head("points of speedup", "gap_term"), Head("95 %", "interval"), Head("ms / token", "gap_term"),
        Head("measured", "gap_term"),
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for name, s in named:
        rows.append((name, "planned", "", "", fmt.times(s.speedup_claimed), "", fmt.number_ms(s.token_claimed_ms), ""))
        rows += [
            (
                name, cause(t.name), moved(t, result.claim).strip(" ,"), fmt.ratio(t.factor), signed(t.points),
                fmt.interval(t.points_low, t.points_high, signed), signed(t.ms_per_token),
                "yes" if t.measured else f"no: holds {', '.join(map(cause, t.includes)) or 'what is left'}",
            )
            for t in s.terms
        ]  # fmt: skip
        bounds = fmt.interval(s.speedup_observed_low, s.speedup_observed_high, fmt.tokens)
        least = "≤ " if s.speedup_observed_basis == "upper_bound" else ""
        rows.append((name, "observed", "", "", least + fmt.times(s.speedup_observed), bounds,
                     fmt.number_ms(s.token_ms), ""))  # fmt: skip
    return Numbers(heads, tuple(rows))
