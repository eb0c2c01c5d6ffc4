"""Relative token time and α of every class of traffic: one row a class, all traffic first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from tracelens.analysis.gate import GateResult, GateStratum
from tracelens.analysis.results import Report, Stratum
from tracelens.reporters import format as fmt
from tracelens.reporters.charts.drawn import (
    MOST_ROWS,
    Absent,
    Drawn,
    Head,
    Numbers,
    Row,
    cut_note,
    finite,
    label_axis,
    labels,
    layered,
)
from tracelens.reporters.tables import RHO_SIGN, k_text, rho, verdict

VERDICTS = {"pays": "pays", "loses": "costs more", "open": "open"}
_SHAPES = {"pays": "circle", "loses": "square", "open": "diamond"}
_BASES = {"step": "by steps", "tpot": "by TPOT", "lower_bound": "at least: no whole step is logged"}
_STEP = 34


@dataclass(frozen=True, slots=True)
class Class:
    """A class of traffic as both charts show it; `time` is None where it cannot be told."""

    label: str
    is_total: bool
    time: float | None
    low: float | None
    high: float | None
    basis: str | None
    verdict: str
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    break_even: float | None
    k: str
    rho: str
    rho_kind: str
    rounds: Any


def classes(report: Report, gate: GateResult | None) -> list[Class]:
    """All traffic, then the classes by relative token time, the best first; those without one at the end."""
    names = labels([tuple(s.key.values()) for s in report.strata])
    of_gate: Sequence[GateStratum | None] = gate.strata if gate is not None else [None] * len(report.strata)
    found = [_class(n, s, g) for n, s, g in zip(names, report.strata, of_gate, strict=True)]
    found.sort(key=lambda c: (c.time is None, c.time or 0.0, c.label))
    total = _class("all traffic", report.total, gate.total if gate is not None else None)
    return [total, *found] if len(found) != 1 else found


def _class(label: str, stratum: Stratum, gate: GateStratum | None) -> Class:
    figures = stratum.figures
    source: Any = figures.get if gate is None else lambda name: getattr(gate, name)
    cost, kind = rho(figures)
    return Class(
        label=label,
        is_total=not stratum.key,
        time=finite(source("relative_token_time")),
        low=finite(source("relative_token_time_low")),
        high=finite(source("relative_token_time_high")),
        basis=figures.get("relative_token_time_basis") if gate is None else gate.basis,
        verdict=verdict(figures) if verdict(figures) in VERDICTS else "open",
        alpha=finite(figures.get("draft_accept_ratio")),
        alpha_low=finite(figures.get("draft_accept_ratio_low")),
        alpha_high=finite(figures.get("draft_accept_ratio_high")),
        break_even=finite(source("break_even_alpha")),
        k=k_text(figures),
        rho=f"{fmt.ratio(cost)}{RHO_SIGN[kind]}",
        rho_kind=kind or "rho",
        rounds=figures.get("rounds"),
    )


def of_gate(gate: GateResult) -> list[Class]:
    """The classes of a gate alone: without ρ, and with the decision's own interval."""
    names = labels([tuple(s.key.values()) for s in gate.strata])
    found = [_gated(name, s) for name, s in zip(names, gate.strata, strict=True)]
    return [_gated("all traffic", gate.total), *(found if len(found) > 1 else ())]


def _gated(label: str, stratum: GateStratum) -> Class:
    names = [f.name for f in dataclasses.fields(stratum)]
    as_figures = {name: getattr(stratum, name) for name in names}
    figures = {**as_figures, "relative_token_time_basis": stratum.basis}
    return _class(label, Stratum(stratum.key, figures), stratum)


def shown(found: Sequence[Class]) -> list[Class]:
    """The classes that a chart draws: all, or the first and those with most rounds in the same order."""
    first, rest = found[:1], found[1:]
    kept = sorted(rest, key=lambda c: -(c.rounds or 0))[:MOST_ROWS]
    return [*first, *(c for c in rest if c in kept)]


def token_time(found: Sequence[Class]) -> Drawn | Absent:
    """Relative token time by class with its interval, and the line where speculation breaks even."""
    title = "Relative token time by class of traffic"
    told = [c for c in shown(found) if c.time is not None]
    if not told:
        return Absent(
            "token-time",
            title,
            "no time of a token with and without speculation is in these records",
            ("relative_token_time", "speedup_tpot", "baseline_ms"),
        )
    rows = [_time_row(c) for c in told]
    first = "; ".join(f"{row['label']} {row['text']}" for row in rows[:12])
    says = f"{title}: {first}. Below 1.0 speculation pays."
    y = alt.Y("label:N", sort=None, title=None, axis=label_axis())
    x = alt.X("time:Q", title="time of a token / plain decoding (1.0)").scale(zero=True).axis(tickCount=5)
    spread = alt.Chart().mark_rule(style="interval").encode(y=y, x=alt.X("low:Q"), x2="high:Q")
    line = alt.Chart().mark_rule(style="reference").encode(x=alt.datum(1.0))
    # The paper under each mark keeps the line of its interval out of a hollow one.
    paper = alt.Chart().mark_point(style="paper", filled=True, size=110, opacity=1).encode(y=y, x=x)
    marks = [
        alt.Chart()
        .transform_filter(alt.datum.verdict == name)
        .mark_point(style=f"mark-{name}", shape=shape, size=80, opacity=1, filled=name != "open")
        .encode(y=y, x=x, tooltip=_tips(("label", "class"), ("text", "token time"), ("basis", "measured")))
        for name, shape in _SHAPES.items()
    ]
    words = [
        alt.Chart()
        .transform_filter(alt.datum.verdict == name)
        .mark_text(style=f"text-{name}", align="left", dx=8)
        .encode(y=y, x=alt.value("width"), text="text:N")
        for name in _SHAPES
    ]
    return Drawn(
        "token-time",
        title,
        says,
        (layered(rows, spread, line, paper, *marks, *words, height=alt.Step(_STEP), says=says),),
        _numbers(found),
        ("baseline", "alpha", "rho", "speedup"),
        ("relative_token_time", "interval", "verdict"),
        ("Line: 95 % interval by request. Circle pays, square costs more, diamond open (the interval holds 1.0).",
         *_cut(found)),
    )  # fmt: skip


def _time_row(c: Class) -> Row:
    least = "≥ " if c.basis == "lower_bound" else ""
    return {
        "label": c.label, "time": c.time, "low": c.low, "high": c.high, "verdict": c.verdict,
        "text": f"{least}{fmt.tokens(c.time)} {VERDICTS[c.verdict]}", "basis": _BASES.get(c.basis or "", ""),
    }  # fmt: skip


def alpha(found: Sequence[Class]) -> Drawn | Absent:
    """α by class with its interval, K and ρ, and the α at which the class would break even."""
    title = "Acceptance α by class of traffic, with break-even"
    told = [c for c in shown(found) if c.alpha is not None]
    if not told:
        return Absent("alpha", title, "no record counts drafted and accepted tokens", ("draft_accept_ratio",))
    rows = [_alpha_row(c) for c in told]
    first = "; ".join(f"{c.label}, K {c.k}, ρ {c.rho}: {fmt.ratio(c.alpha)}" for c in told[:12])
    says = f"{title}: {first}. The target's own token is excluded."
    y = alt.Y("label:N", sort=None, title=None, axis=label_axis())
    x = alt.X("alpha:Q", title="α, accepted / drafted tokens").scale(domain=[0, 1]).axis(format=".1f", tickCount=5)
    spread = alt.Chart().mark_rule(style="interval").encode(y=y, x=alt.X("low:Q"), x2="high:Q")
    dot = (
        alt.Chart()
        .mark_point(style="accent", size=80, opacity=1, filled=True)
        .encode(y=y, x=x, tooltip=_tips(("name", "class"), ("text", "α"), ("even_text", "break-even")))
    )
    even = (
        alt.Chart()
        .transform_filter("isValid(datum.even)")
        .mark_tick(style="ink", thickness=2.5, size=20, opacity=1)
        .encode(y=y, x=alt.X("even:Q"))
    )
    never = (
        alt.Chart()
        .transform_filter(alt.datum.never)
        .mark_text(style="quiet", align="right", dy=-13)
        .encode(y=y, x=alt.datum(1.0), text=alt.value("no α breaks even"))
    )
    words = alt.Chart().mark_text(style="label", align="left", dx=8).encode(y=y, x=alt.value("width"), text="text:N")
    chart = layered(rows, spread, even, dot, never, words, height=alt.Step(_STEP + 8), says=says)
    return Drawn(
        "alpha",
        title,
        says,
        (chart,),
        _numbers(found),
        ("alpha", "baseline", "rho"),
        ("draft_accept_ratio", "break_even_alpha", "num_speculative_tokens", *dict.fromkeys(c.rho_kind for c in told)),
        ("Dot: α with its 95 % interval by request. Upright bar: the α at which this class would break even at its own"
         " cost of a round.", *_cut(found)),
    )  # fmt: skip


def _alpha_row(c: Class) -> Row:
    even = c.break_even
    return {
        "label": f"{c.label}\nK {c.k} · ρ {c.rho}", "name": c.label, "alpha": c.alpha, "low": c.alpha_low,
        "high": c.alpha_high, "even": even if even is not None and even <= 1 else None,
        "never": even is not None and even > 1, "even_text": even_text(even),
        "text": f"{fmt.tokens(c.alpha)}{'' if even is None else f' · even {even:.2f}' if even <= 1 else ''}",
    }  # fmt: skip


def _cut(found: Sequence[Class]) -> tuple[str, ...]:
    return cut_note(*(sum(not c.is_total for c in some) for some in (shown(found), found)))


def even_text(value: float | None) -> str:
    """A break-even α; above 1 no acceptance is enough."""
    return "never" if value is not None and value > 1 else fmt.ratio(value)


def _numbers(found: Sequence[Class]) -> Numbers:
    heads = (
        Head("class"), Head("token time / plain", "relative_token_time"), Head("95 %", "interval"),
        Head("pays?", "verdict"), Head("α", "draft_accept_ratio"), Head("95 % of α", "interval"),
        Head("break-even α", "break_even_alpha"), Head("K", "num_speculative_tokens"), Head("ρ", "rho"),
        Head("rounds", "rounds"),
    )  # fmt: skip
    rows = tuple(
        (
            c.label, ("≥ " if c.basis == "lower_bound" else "") + fmt.ratio(c.time), fmt.interval(c.low, c.high),
            VERDICTS[c.verdict] if c.time is not None else fmt.DASH, fmt.ratio(c.alpha),
            fmt.interval(c.alpha_low, c.alpha_high), even_text(c.break_even), c.k, c.rho, fmt.count(c.rounds),
        )
        for c in found
    )  # fmt: skip
    return Numbers(heads, rows)


def _tips(*fields: tuple[str, str]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in fields]
