"""Relative token time over the draft length K: as run, replayed, geometric, and the best K."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import altair as alt

from tracelens.analysis.sweep import SweepEntry, SweepResult, SweepStratum
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
    labels,
    layered,
    whole_ticks,
    words,
)

_SOURCES = ("observed", "replayed", "extrapolated", "geometric")


def sweep(result: SweepResult | None, because: str | None) -> Drawn | Absent:
    """Every K of one class of traffic at a time, all traffic first."""
    title = "Which draft length K is best"
    if result is None:
        return Absent("sweep", title, because or "no sweep was made")
    every = [result.total, *(result.strata if len(result.strata) > 1 else ())]
    named = list(zip(["all traffic", *labels([s.key for s in every[1:]])], every, strict=True))
    told = [(name, s) for name, s in named if any(e.relative_token_time is not None for e in s.entries)]
    if not told:
        return Absent("sweep", title, result.total.why or "no K has a relative token time")
    kept = sorted(told[1:], key=lambda pair: -max((e.rounds or 0) for e in pair[1].entries))[: MOST_ROWS - 1]
    drawn = [told[0], *(pair for pair in told[1:] if pair in kept)]
    choices = {name: [_row(e, s) for e in s.entries if e.relative_token_time is not None] for name, s in drawn}
    says = f"{title}: {'; '.join(f'{name} {_best(s)}' for name, s in drawn[:12])}"
    ks = {row["k"] for rows in choices.values() for row in rows}
    sources = [s for s in _SOURCES if any(row["source"] == s for rows in choices.values() for row in rows)]
    return Drawn(
        "sweep", title, says, (_chart(next(iter(choices.values())), ks, sources, says),), _numbers(named),
        ("round_times", "replay_domain", "run_lengths"),
        ("relative_token_time", "replay", "best_k", "tau_verified"),
        ("Ring: the best K. Thin lines: 95 % intervals. The dashed line is plain decoding (K 0); below it speculation"
         " pays.", *cut_note(len(drawn) - 1, len(told) - 1)),
        choices if len(choices) > 1 else None,
    )  # fmt: skip


def _chart(rows: Sequence[Row], ks: Iterable[int], sources: list[str], says: str) -> alt.LayerChart:
    x = alt.X("k:Q", title="draft length K, tokens").axis(whole_ticks(ks))
    x = x.scale(zero=False, padding=14)
    y = alt.Y("time:Q", title="time of a token / plain decoding").scale(zero=False, nice=True).axis(tickCount=5)
    color = alt.Color("source:N", sort=None).scale(domain=sources)
    shape = alt.Shape("source:N", sort=None).scale(
        domain=sources, range=["circle", "diamond", "triangle-up", "square"][: len(sources)]
    )
    spread = (
        alt.Chart()
        .transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, opacity=0.55)
        .encode(x=x, y=alt.Y("low:Q", title="time of a token / plain decoding"), y2="high:Q", color=color)
    )
    line = (
        alt.Chart()
        .transform_filter("datum.source != 'observed'")
        .mark_line(style="interval", strokeWidth=1.2)
        .encode(x=x, y=y)
    )
    # What ran lies above what was replayed of the same K.
    dots = [
        alt.Chart()
        .transform_filter(f"datum.source {sign} 'observed'")
        .mark_point(filled=True, size=74, opacity=1)
        .encode(x=x, y=y, color=color, shape=shape,
                tooltip=[alt.Tooltip("k:Q", title="K"), alt.Tooltip("source:N"),
                         alt.Tooltip("text:N", title="token time / plain"), alt.Tooltip("tau:N", title="τ verified")])
        for sign in ("!=", "==")
    ]  # fmt: skip
    ring = (
        alt.Chart()
        .transform_filter(alt.datum.best)
        .mark_point(style="ink", filled=False, size=260, opacity=1)
        .encode(x=x, y=y)
    )
    told = [t.encode(x=x, y=y, text="word:N") for t in words(alt.Chart().transform_filter(alt.datum.best), dy=22)]
    plain = alt.Chart().mark_rule(style="reference").encode(y=alt.datum(1.0))
    return layered(rows, line, plain, spread, *dots, ring, *told, height=260, says=says)


def _row(entry: SweepEntry, stratum: SweepStratum) -> Row:
    best = entry is _best_entry(stratum)
    bounds = fmt.interval(entry.relative_token_time_low, entry.relative_token_time_high, fmt.tokens)
    return {
        "k": entry.k, "source": _source(entry), "time": finite(entry.relative_token_time),
        "low": finite(entry.relative_token_time_low), "high": finite(entry.relative_token_time_high),
        "text": f"{fmt.ratio(entry.relative_token_time)} {bounds}".strip(), "tau": fmt.tokens(entry.tau_verified),
        "best": best, "word": f"best K {entry.k}" if best else "",
    }  # fmt: skip


def _best_entry(stratum: SweepStratum) -> SweepEntry | None:
    return None if stratum.best_k is None else stratum.compared.get(stratum.best_k)


def _source(entry: SweepEntry) -> str:
    return "extrapolated" if entry.extrapolated and entry.source == "replayed" else entry.source


def _best(stratum: SweepStratum) -> str:
    if stratum.best_k is None:
        return "best K not to be told"
    off = " (off)" if stratum.best_k == 0 else ""
    return f"best K {stratum.best_k}{off} at token time {fmt.tokens(stratum.best_relative_token_time)}"


def _numbers(named: Sequence[tuple[str, SweepStratum]]) -> Numbers:
    heads = (
        Head("class"), Head("K", "num_speculative_tokens"), Head("source", "replay"),
        Head("token time / plain", "relative_token_time"), Head("95 %", "interval"),
        Head("τ verified", "tau_verified"), Head("τ committed", "tau_committed"), Head("round ms", "step_ms"),
        Head("TPOT ms", "tpot_ms"), Head("replay error", "replay"), Head("best", "best_k"),
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for name, s in named:
        best = _best_entry(s)
        if s.best_k is not None:
            rows.append((name, "0", "off", "1.000", *[""] * 6, "best" if s.best_k == 0 else ""))
        rows += [
            (
                name, str(e.k), _source(e), fmt.ratio(e.relative_token_time),
                fmt.interval(e.relative_token_time_low, e.relative_token_time_high), fmt.tokens(e.tau_verified),
                fmt.tokens(e.tau_committed), fmt.number_ms(e.round_ms), fmt.number_ms(e.tpot_ms),
                fmt.percent(e.replay_error), "best" if e is best else "",
            )
            for e in s.entries
        ]  # fmt: skip
    return Numbers(heads, tuple(rows))
