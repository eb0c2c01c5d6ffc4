"""What moves: ρ, v and o over time, and relative token time over batch size and context length."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from tracelens.analysis import results
from tracelens.analysis.page import Cell, Moment
from tracelens.reporters import format as fmt
from tracelens.reporters.charts.drawn import Absent, Drawn, Head, Numbers, Row, finite, layered
from tracelens.wording import many, noun

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PANELS = (
    ("rho", "ρ, one draft token / plain step"),
    ("rho_verify", "ρ v, one draft token / verify pass"),
    ("verify_inflation", "v, verify pass / plain step"),
    ("overhead", "o, rest of the round / plain step"),
)


def over_time(times: Sequence[Moment], *, cut: bool) -> Drawn | Absent:
    """Draft cost, verify inflation and overhead by time, with a line where a run or its setting changes."""
    title = "Draft cost ρ, verify v and overhead o over time"
    told = [panel for panel in _PANELS if any(fmt.is_number(getattr(m, panel[0])) for m in times)]
    if any(name == "rho" for name, _ in told):
        told = [panel for panel in told if panel[0] != "rho_verify"]
    if not told:
        return Absent(
            "over-time",
            title,
            "no record with a time of day holds draft, verify or step time",
            ("rho", "rho_verify", "verify_inflation"),
        )
    # A run without any of these times has no point here; the table has it.
    every, times = times, [m for m in times if any(fmt.is_number(getattr(m, name)) for name, _ in told)]
    one_day = len({m.started.date() for m in times}) == 1
    stamp = "%H:%M:%S" if one_day else "%m-%d %H:%M"
    first, last = times[0].started, times[-1].started
    day = f"time on {first:%Y-%m-%d}, UTC" if one_day else f"time, {first:%Y-%m-%d} to {last:%Y-%m-%d}, UTC"
    changes = [m for m in times if m.is_first]
    many = len(changes) > 1
    marks = {id(m): _mark(i) for i, m in enumerate(changes)} if many else {}
    rows: list[Row] = [
        {
            "when": f"{m.started:%Y-%m-%dT%H:%M:%S}", "word": f"{m.started:{stamp}}", "run": _setting(m),
            "mark": marks.get(id(m), ""), **{name: finite(getattr(m, name)) for name, _ in told},
            **{f"{name}_text": fmt.ratio(getattr(m, name)) for name, _ in told},
        }
        for m in times
    ]  # fmt: skip
    says = f"{title}, {len(times)} points from {times[0].started:%Y-%m-%d %H:%M} to {times[-1].started:%Y-%m-%d %H:%M}"
    panels = tuple(
        _panel(rows, name, axis, title=day, last=i == len(told) - 1, first=i == 0, stamp=stamp, says=f"{axis}. {says}")
        for i, (name, axis) in enumerate(told)
    )
    notes = [f"One point: {_width(times[0].bucket_seconds)} (UTC). Time without records is left out."]
    settings = "; ".join(f"{_mark(i)} {_setting(m)}" for i, m in enumerate(changes[:26]))
    notes += [f"Dashed lines: {settings}."] * many
    notes += [f"{len(changes) - 26} later changes are in the table."] * (len(changes) > 26)
    notes += ["Older points are left out: group or filter by run to see them."] * cut
    if len(told) < 3 and not any(name == "verify_inflation" for name, _ in told):
        notes.append("v and o need a baseline: a run without speculation (--baseline RUN) or its plain step in ms.")
    return Drawn("over-time", title, says, panels, _numbers(every), ("over_time",),
                 tuple(name for name, _ in told), tuple(notes))  # fmt: skip


def _panel(
    rows: Sequence[Row], name: str, axis: str, *, title: str, first: bool, last: bool, stamp: str, says: str
) -> alt.LayerChart:
    # Labels are cut from the text of the moment: it sorts, and two points of one time share a place.
    cut = "slice(datum.label, 11)" if stamp == "%H:%M:%S" else "replace(slice(datum.label, 5, 16), 'T', ' ')"
    shown = alt.Axis(
        labelExpr=cut, labelAngle=0, labelOverlap="greedy", labelSeparation=12, labelBound=True, title=title
    )
    x = alt.X("when:O", axis=shown if last else None)
    y = alt.Y(f"{name}:Q", title=axis).scale(zero=False).axis(tickCount=3, minExtent=42)
    line = alt.Chart().mark_line(style="accent", strokeWidth=1.5).encode(x=x, y=y, detail="run:N")
    dots = (
        alt.Chart()
        .mark_point(style="accent", size=28, opacity=1, filled=True)
        .encode(x=x, y=y, tooltip=[alt.Tooltip("word:N", title="from"), alt.Tooltip("run:N", title="run"),
                                   alt.Tooltip(f"{name}_text:N", title=axis.partition(",")[0])])
    )  # fmt: skip
    changed = alt.Chart().transform_filter("datum.mark != ''")
    rule = changed.mark_rule(style="change").encode(x=x)
    words = changed.mark_text(style="quiet", dx=4, dy=3, align="left", baseline="top").encode(
        x=x, y=alt.value(0), text="mark:N"
    )
    layers = (line, rule, dots, words) if first else (line, rule, dots)
    return layered(rows, *layers, height=92, says=says).properties(
        padding={"left": 2, "right": 12, "top": 6 if first else 2, "bottom": 2}
    )


def _mark(i: int) -> str:
    return _LETTERS[i] if i < len(_LETTERS) else "+"


def _setting(m: Moment) -> str:
    k = "" if m.num_speculative_tokens is None else f"K {m.num_speculative_tokens}"
    told = ", ".join(fmt.label(text, 40) for text in (k, m.method, m.model, m.engine_version) if text)
    return f"{fmt.label(m.run_id, 40)}{f' ({told})' if told else ''}"


def _width(seconds: int) -> str:
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            return many(seconds // size, unit)
    return f"{seconds} seconds"


def _numbers(times: Sequence[Moment]) -> Numbers:
    heads = (
        Head("from (UTC)"), Head("run and setting"), Head("rounds", "rounds"), Head("α", "draft_accept_ratio"),
        Head("ρ", "rho"), Head("ρ v", "rho_verify"), Head("v", "verify_inflation"), Head("o", "overhead"),
    )  # fmt: skip
    rows = tuple(
        (
            f"{m.started:%Y-%m-%d %H:%M:%S}", _setting(m), fmt.count(m.rounds), fmt.ratio(m.draft_accept_ratio),
            fmt.ratio(m.rho), fmt.ratio(m.rho_verify), fmt.ratio(m.verify_inflation), fmt.ratio(m.overhead),
        )
        for m in times
    )  # fmt: skip
    return Numbers(heads, rows)


def heat_map(cells: Sequence[Cell]) -> Drawn | Absent:
    """Relative token time by batch size and context length, all traffic."""
    title = "Relative token time by batch size and context length"
    told = [c for c in cells if c.relative_token_time is not None]
    if not told:
        why = (
            "no record tells the batch size or context length of its rounds"
            if not cells
            else "no step time and plain step are known for any batch size or context length"
        )
        return Absent("heat-map", title, why, ("relative_token_time",) if cells else ())
    # In order of size, which the names of the buckets sort by.
    batches = list(dict.fromkeys(bucket(c.batch_bucket) for c in sorted(told, key=lambda c: c.batch_bucket or "~")))
    contexts = list(
        dict.fromkeys(bucket(c.context_bucket) for c in sorted(told, key=lambda c: c.context_bucket or "~"))
    )
    rows: list[Row] = [
        {
            "label": bucket(c.batch_bucket), "context": bucket(c.context_bucket), "time": c.relative_token_time,
            "text": _least(c) + fmt.tokens(c.relative_token_time),
            "rounds": f"{fmt.count(c.rounds)} {noun(c.rounds, 'round')}",
        }
        for c in told
    ]  # fmt: skip
    says = f"{title}: " + "; ".join(f"batch {r['label']}, context {r['context']}: {r['text']}" for r in rows[:16])
    x = alt.X("context:N", sort=contexts, title="context length, tokens").axis(labelAngle=0)
    y = alt.Y("label:N", sort=batches, title="requests in the step")
    far = max(abs((c.relative_token_time or 1.0) - 1.0) for c in told)
    color = alt.Color("time:Q", legend=None).scale(domain=[1 - far, 1 + far], domainMid=1, range="diverging")
    words = (("label", "batch"), ("context", "context"), ("text", "token time / plain"), ("rounds", "rounds"))
    tips = [alt.Tooltip(f"{name}:N", title=title) for name, title in words]
    tiles = alt.Chart().mark_rect(cornerRadius=2).encode(x=x, y=y, color=color, tooltip=tips)
    value = alt.Chart().mark_text(style="label", fontWeight=600, dy=-7).encode(x=x, y=y, text="text:N")
    count = alt.Chart().mark_text(style="label", fontSize=11, dy=9, opacity=0.75).encode(x=x, y=y, text="rounds:N")
    return Drawn(
        "heat-map", title, says, (layered(rows, tiles, value, count, height=alt.Step(52), says=says),),
        _cells(cells), ("heat_map",), ("relative_token_time", "batch_bucket", "context_bucket"),
        ("Blue below 1.0: speculation pays; orange above. All classes of traffic together.",),
    )  # fmt: skip


def _least(cell: Cell) -> str:
    return "≥ " if cell.relative_token_time_basis == "lower_bound" else ""


def bucket(name: str | None) -> str:
    """A bucket of batch or context as a person writes it."""
    if name is None:
        return "not logged"
    return results.bucket(name)


def _cells(cells: Sequence[Cell]) -> Numbers:
    heads = (
        Head("batch size", "batch_bucket"), Head("context", "context_bucket"), Head("rounds", "rounds"),
        Head("token time / plain", "relative_token_time"), Head("α", "draft_accept_ratio"),
        Head("τ tokens / round", "tau_committed"), Head("round ms", "step_ms"), Head("plain step ms", "baseline_ms"),
    )  # fmt: skip
    rows = tuple(
        (
            bucket(c.batch_bucket), bucket(c.context_bucket), fmt.count(c.rounds),
            _least(c) + fmt.ratio(c.relative_token_time), fmt.ratio(c.draft_accept_ratio), fmt.tokens(c.tau_committed),
            fmt.number_ms(c.step_ms), fmt.number_ms(c.baseline_ms),
        )
        for c in cells
    )  # fmt: skip
    return Numbers(heads, rows)
