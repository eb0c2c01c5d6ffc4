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
from tracelens.reporters.tables import RHO_SIGN, k_text, rho
from tracelens.reporters.verdicts import OPEN, Figures, TokenTime, disagreement, gate_apart, token_times

VERDICTS = {"pays": "pays", "loses": "costs more", "open": "open"}
_SHAPES = {"pays": "circle", "loses": "square", "open": "diamond"}
_BASES = {"step": "by steps", "tpot": "by TPOT", "lower_bound": "at least: no whole step is logged"}
_STEP = 34
_NAMED = 6


@dataclass(frozen=True, slots=True)
class Class:
    """A class of traffic as both charts show it; `time` is None where it cannot be told.

    `basis` is that of its time; `mixed` says that other classes have another one, so that it must be told. `apart` is
    what the other basis says where it says otherwise. `decision` and `why` are the gate's, where it decides otherwise.
    """

    label: str
    is_total: bool
    time: float | None
    low: float | None
    high: float | None
    basis: str | None
    mixed: bool
    verdict: str
    apart: str
    decision: str
    why: str
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    break_even: float | None
    k: str
    rho: str
    rho_kind: str
    rounds: Any

    @property
    def told(self) -> str:
        """The time with the mark of its basis: t for TPOT where others are by steps, ≥ for a lower bound."""
        sign = "≥ " if self.basis == "lower_bound" else "t " if self.mixed and self.basis == "tpot" else ""
        return sign + fmt.tokens(self.time)


def classes(report: Report, gate: GateResult | None) -> list[Class]:
    """All traffic, then the classes by relative token time, the worst first; those without one at the end.

    All times are of one basis where all classes have it, steps before TPOT.
    """
    names = labels([s.key for s in report.strata])
    of_gate: Sequence[GateStratum | None] = gate.strata if gate is not None else [None] * len(report.strata)
    total = ("all traffic", report.total, gate.total if gate is not None else None)
    every = [total, *zip(names, report.strata, of_gate, strict=True)]
    # One class alone is all traffic.
    return _in_order(every[1:] if len(every) == 2 else every, 0.0 if gate is None else gate.options.margin)


def of_gate(gate: GateResult) -> list[Class]:
    """The classes of a gate alone: without ρ, and with the decision's own interval."""
    names = labels([s.key for s in gate.strata])
    every = list(zip(["all traffic", *names], [gate.total, *gate.strata], strict=True))
    named = [(name, Stratum(s.key, _as_figures(s)), s) for name, s in every]
    return _in_order(named[:1] if len(named) == 2 else named, gate.options.margin)


def _as_figures(stratum: GateStratum) -> dict[str, Any]:
    found = {f.name: getattr(stratum, f.name) for f in dataclasses.fields(stratum)}
    return {**found, "relative_token_time_basis": stratum.basis}


def _in_order(named: Sequence[tuple[str, Stratum, GateStratum | None]], margin: float) -> list[Class]:
    """The first one first, then the others; their times on one basis if there is one."""
    times = [token_times(stratum.figures) for _, stratum, _ in named]
    known = [found for found in times if found]
    common = next((basis for basis in _BASES if known and all(basis in found for found in known)), None)
    # Without a basis that all have each shows its own best, marked.
    chosen = [found.get(common or next((b for b in _BASES if b in found), "")) for found in times]
    mixed = len({t.basis for t in chosen if t is not None}) > 1
    first, *rest = (_class(*one, time, margin, mixed=mixed) for one, time in zip(named, chosen, strict=True))
    return [first, *sorted(rest, key=lambda c: (c.time is None, -(c.time or 0.0), c.label))]


def _class(
    label: str, stratum: Stratum, gate: GateStratum | None, time: TokenTime | None, margin: float, *, mixed: bool
) -> Class:
    figures = stratum.figures
    cost, kind = rho(figures)
    found = OPEN if time is None else time.verdict
    decision, why = ("", "") if gate is None or time is None else gate_apart(found, gate, margin)
    even = figures.get("break_even_alpha") if gate is None else gate.break_even_alpha
    return Class(
        label=label,
        is_total=not stratum.key,
        time=None if time is None else time.value,
        low=None if time is None else time.low,
        high=None if time is None else time.high,
        basis=None if time is None else time.basis,
        mixed=mixed,
        verdict=found,
        apart=_apart(figures, time),
        decision=decision,
        why=why,
        alpha=finite(figures.get("draft_accept_ratio")),
        alpha_low=finite(figures.get("draft_accept_ratio_low")),
        alpha_high=finite(figures.get("draft_accept_ratio_high")),
        break_even=finite(even),
        k=k_text(figures),
        rho=f"{fmt.ratio(cost)}{RHO_SIGN[kind]}",
        rho_kind=kind or "rho",
        rounds=figures.get("rounds"),
    )


def _apart(figures: Figures, time: TokenTime | None) -> str:
    told = disagreement(figures)
    if not told or time is None:
        return ""
    other, words = ("step", "by steps") if time.basis == "tpot" else ("tpot", "by TPOT")
    return f"{words} {VERDICTS[told[other]]}"


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
    basis = _basis_notes(told)
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
        .encode(
            y=y, x=x, tooltip=_tips(("label", "class"), ("text", "token time"), ("basis", "measured"), ("apart", "but"))
        )
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
        ("outcome",),
        ("relative_token_time", "interval", "verdict"),
        ("Line: 95 % interval by request. Circle pays, square costs more, diamond open (the interval holds 1.0).",
         *basis, *_cut(found)),
    )  # fmt: skip


def _time_row(c: Class) -> Row:
    return {
        "label": c.label, "time": c.time, "low": c.low, "high": c.high, "verdict": c.verdict,
        "text": f"{c.told} {VERDICTS[c.verdict]}", "basis": _BASES.get(c.basis or "", ""), "apart": c.apart,
    }  # fmt: skip


def _basis_notes(told: Sequence[Class]) -> list[str]:
    """What the times are measured by, and where the other basis says otherwise."""
    bases = {c.basis for c in told}
    if len(bases) > 1:
        notes = ["t: by TPOT over the baseline's; the others by steps: marks of two bases do not compare."]
    else:
        notes = [{"tpot": "By TPOT over the baseline's.", "step": "By steps."}.get(next(iter(bases)) or "", "")]
    apart = [f"{c.label} {c.apart}" for c in told if c.apart]
    more = f" and {len(apart) - _NAMED} more" if len(apart) > _NAMED else ""
    notes += [f"The other basis says otherwise of {'; '.join(apart[:_NAMED])}{more}."] * bool(apart)
    return [note for note in notes if note]


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
        ("outcome",),
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
        Head("measured"), Head("pays?", "verdict"), Head("α", "draft_accept_ratio"), Head("95 % of α", "interval"),
        Head("break-even α", "break_even_alpha"), Head("K", "num_speculative_tokens"), Head("ρ", "rho"),
        Head("rounds", "rounds"),
    )  # fmt: skip
    rows = tuple(
        (
            c.label, ("≥ " if c.basis == "lower_bound" else "") + fmt.ratio(c.time), fmt.interval(c.low, c.high),
            _BASES.get(c.basis or "", fmt.DASH).partition(":")[0],
            VERDICTS[c.verdict] if c.time is not None else fmt.DASH, fmt.ratio(c.alpha),
            fmt.interval(c.alpha_low, c.alpha_high), even_text(c.break_even), c.k, c.rho, fmt.count(c.rounds),
        )
        for c in found
    )  # fmt: skip
    return Numbers(heads, rows)


def _tips(*fields: tuple[str, str]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in fields]
