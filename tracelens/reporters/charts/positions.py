"""Acceptance along the draft: hazard, survival, and how many tokens a round loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tracelens.analysis.results import Report, Stratum
from tracelens.reporters import format as fmt
from tracelens.reporters.charts.drawn import (
    MOST_CURVES,
    MOST_ROWS,
    Absent,
    Drawn,
    Head,
    Numbers,
    Row,
    finite,
    labels,
    layered,
    legend,
    whole_ticks,
)

_WHY = "no record tells which draft positions were accepted (rounds, histograms, or counts of fixed draft length)"


def named(report: Report) -> list[tuple[str, Stratum]]:
    """All traffic first, then the classes in the order of the report."""
    names = labels([s.key for s in report.strata])
    found = list(zip(names, report.strata, strict=True))
    return [("all traffic", report.total), *(found if len(found) > 1 else ())]


def _most(found: Sequence[tuple[str, Stratum]], figure: str, most: int) -> list[tuple[str, Stratum]]:
    """The classes with this figure; beyond `most` those with most rounds, in the same order."""
    told = [(name, s) for name, s in found if s.figures.get(figure)]
    kept = sorted(told[1:], key=lambda pair: -(pair[1].figures.get("rounds") or 0))[:most]
    return [*told[:1], *(pair for pair in told[1:] if pair in kept)]


def hazard(report: Report) -> Drawn | Absent:
    """Chance that a draft token is accepted once all before it were, by position."""
    return _curves(report, "hazard", "Acceptance at each draft position (hazard)",
                   "accepted once all before it were", first=1)  # fmt: skip


def survival(report: Report) -> Drawn | Absent:
    """Share of rounds whose first j draft tokens were all accepted."""
    return _curves(report, "survival", "Drafts that survive up to each position",
                   "rounds with all drafts up to here accepted", first=0)  # fmt: skip


def _curves(report: Report, name: str, title: str, axis: str, *, first: int) -> Drawn | Absent:
    found = named(report)
    shown = _most(found, name, MOST_CURVES)
    if not shown:
        return Absent(name, title, _WHY, (name,))
    rows = [row for label, stratum in shown for row in _points(label, stratum, name, first)]
    names = [label for label, _ in shown]
    says = f"{title}: {'; '.join(_told(label, s, name) for label, s in shown)}. The target's own token is excluded."
    longest = max(row["position"] for row in rows)
    x = alt.X("position:Q", title="draft position").axis(whole_ticks(range(first, longest + 1)))
    y = alt.Y("value:Q", title=axis).scale(domain=[0, 1]).axis(format="%", tickCount=5)
    color = alt.Color("series:N", sort=None, legend=legend(names)).scale(domain=names)
    band = (
        alt.Chart()
        .transform_filter("isValid(datum.low)")
        .mark_area(opacity=0.12)
        .encode(x=x, y=alt.Y("low:Q", title=axis), y2="high:Q", color=color)
    )
    line = alt.Chart().mark_line().encode(x=x, y=y, color=color)
    dots = (
        alt.Chart()
        .mark_point(filled=True, size=46, opacity=1)
        .encode(x=x, y=y, color=color, tooltip=[alt.Tooltip("series:N", title="class"), "position:Q",
                                                alt.Tooltip("text:N", title=name)])
    )  # fmt: skip
    left_out = sum(1 for _, s in found if s.figures.get(name)) - len(shown)
    notes = ["Band: 95 % interval by request."] if any(row["low"] is not None for row in rows) else []
    notes += [f"All traffic and the {MOST_CURVES} classes with most rounds are drawn; the table has all."] * (
        left_out > 0
    )
    return Drawn(
        name, title, says, (layered(rows, band, line, dots, height=240, says=says),), _numbers(found, name, first),
        ("hazards",), (name,), tuple(notes),
    )  # fmt: skip


def _points(label: str, stratum: Stratum, name: str, first: int) -> list[Row]:
    figures = stratum.figures
    values = figures[name]
    low: Sequence[Any] = figures.get(f"{name}_low") or [None] * len(values)
    high: Sequence[Any] = figures.get(f"{name}_high") or [None] * len(values)
    return [
        {
            "series": label, "position": j, "value": finite(v), "low": finite(lo), "high": finite(hi),
            "text": f"{fmt.ratio(v)} {fmt.interval(lo, hi)}".strip(),
        }
        for j, (v, lo, hi) in enumerate(zip(values, low, high, strict=True), start=first)
    ]  # fmt: skip


def _told(label: str, stratum: Stratum, name: str) -> str:
    return f"{label} {', '.join(fmt.tokens(v) for v in stratum.figures[name])}"


def _numbers(found: Sequence[tuple[str, Stratum]], name: str, first: int) -> Numbers:
    rows = [
        (label, str(row["position"]), fmt.ratio(row["value"]), fmt.interval(row["low"], row["high"]))
        for label, stratum in found
        if stratum.figures.get(name)
        for row in _points(label, stratum, name, first)
    ]
    heads = (Head("class"), Head("position"), Head(name, name), Head("95 %", "interval"))
    return Numbers(heads, tuple(rows))


def rollback(report: Report, delta: int) -> Drawn | Absent:
    """Rounds by the number of draft tokens they lost, the near-K ones apart."""
    title = "Tokens lost in a round (rollback length)"
    found = named(report)
    shown = _most(found, "rollback_len", MOST_ROWS - 1)
    if not shown:
        return Absent("rollback", title, _WHY, ("rollback_len",))
    choices = {label: _lengths(stratum.figures["rollback_len"], delta) for label, stratum in shown}
    first, rows = next(iter(choices.items()))
    near = shown[0][1].figures.get("near_k_round_share")
    shares = "; ".join(f"{row['text']} lose {row['lost']}" for row in rows if row["kind"] == "top")
    says = f"{title}, {first}: {shares}; {fmt.percent(near)} of rounds lose (almost) the whole draft (near-K)"
    x = alt.X("lost:O", title="draft tokens lost in a round").axis(labelAngle=0).scale(paddingInner=0, paddingOuter=0)
    share = alt.Axis(format="%", tickCount=5, titleY=-20)
    y = alt.Y("share:Q", title="rounds with a draft", axis=share).scale(zero=True)
    near_text = f"near-K (at most {delta} kept)"
    bars = [
        alt.Chart()
        .transform_filter(alt.datum.kind == kind)
        .mark_bar(style=style, cornerRadius=1, width=alt.RelativeBandSize(0.72))
        .encode(x=x, y=alt.Y("from:Q", title="rounds with a draft", axis=share), y2="to:Q",
                tooltip=[alt.Tooltip("lost:O", title="tokens lost"), alt.Tooltip("text:N", title="rounds"),
                         alt.Tooltip("word:N", title="kind")])
        for kind, style in (("other", "soft"), ("near", "accent"))
    ]  # fmt: skip
    band = (
        alt.Chart()
        .transform_filter(alt.datum.kind == "band")
        .mark_bar(style="band", width=alt.RelativeBandSize(1))
        .encode(x=x, y=alt.value(0), y2=alt.value("height"))
    )
    words = (
        alt.Chart()
        .transform_filter("datum.kind == 'band' && datum.first")
        .mark_text(style="quiet", baseline="top", dy=4)
        .encode(x=x, y=alt.value(0), text=alt.value("near-K"))
    )
    top = alt.Chart().mark_text(style="label", dy=-7).encode(x=x, y=y, text="text:N")
    return Drawn(
        "rollback", title, says,
        (layered(rows, band, *bars, top.transform_filter(alt.datum.kind == "top"), words, height=220, says=says),),
        _length_numbers(found, delta), ("rollback",), ("rollback_len", "near_k_round_share", "near_k_excess"),
        (f"Strong: {near_text}; on the shaded band all are. Over rounds with a draft.",),
        choices if len(choices) > 1 else None,
    )  # fmt: skip


def _lengths(histogram: Mapping[int, Sequence[Any]], delta: int) -> list[Row]:
    """Bars by tokens lost, stacked: not near-K, then near-K; draft lengths are taken together."""
    counts: dict[int, list[float]] = {}
    for d, rounds in histogram.items():
        for lost, n in enumerate(rounds):
            counts.setdefault(lost, [0.0, 0.0])[int(_is_near(d, lost, delta))] += float(n or 0)
    every = sum(map(sum, counts.values())) or 1.0
    rows: list[Row] = []
    first = True
    for lost, (other, near) in sorted(counts.items()):
        words: Row = {"lost": lost, "text": fmt.percent((other + near) / every)}
        if near and not other:
            rows.append({**words, "kind": "band", "first": first})
            first = False
        rows.append({**words, "kind": "other", "from": 0.0, "to": other / every, "word": "others"})
        rows.append({**words, "kind": "near", "from": other / every, "to": (other + near) / every, "word": "near-K"})
        rows.append({**words, "kind": "top", "share": (other + near) / every})
    return rows


def _is_near(drafted: int, lost: int, delta: int) -> bool:
    return lost >= drafted - delta and lost > 0


def _length_numbers(found: Sequence[tuple[str, Stratum]], delta: int) -> Numbers:
    heads = (
        Head("class"), Head("drafted"), Head("tokens lost", "rollback_len"), Head("rounds", "rounds"),
        Head("near-K", "near_k_round_share"),
    )  # fmt: skip
    rows = tuple(
        (label, str(d), str(lost), fmt.count(n), "yes" if _is_near(d, lost, delta) else "")
        for label, stratum in found
        for d, rounds in (stratum.figures.get("rollback_len") or {}).items()
        for lost, n in enumerate(rounds)
    )
    return Numbers(heads, rows)
