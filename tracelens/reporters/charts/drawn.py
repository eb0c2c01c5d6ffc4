"""What a chart is: Altair specs, its numbers as a table, the queries behind it, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import altair as alt

from tracelens.reporters import format as fmt

Row: TypeAlias = dict[str, Any]
Panel: TypeAlias = alt.LayerChart | alt.Chart

#: Name of the rows of a chart inside its spec; a page swaps them when another class of traffic is chosen.
ROWS = "rows"
#: Classes of traffic that a chart with one row each draws; the tables have all.
MOST_ROWS = 40
#: Curves that one chart can hold and still be read.
MOST_CURVES = 7
#: Width of a chart outside a page, px.
WIDTH = 640
_SHORT = 12  # characters of a label with which three stand beside each other


@dataclass(frozen=True, slots=True)
class Head:
    """Header of a column of numbers; `name` is that of its definition."""

    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a chart as text: what a screen reader reads, and what sorts and filters.

    `foot` is a last row that stays where it is, such as all traffic.
    """

    heads: tuple[Head, ...]
    rows: tuple[tuple[str, ...], ...]
    foot: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """One chart.

    `panels` stand below each other. `choices` are rows by class of traffic where one is chosen, the first is shown.
    `about` are lines that a picture which stands alone needs: runs, period, what was selected.
    `says` describes the chart in a sentence. `queries` are files of `queries/`, `terms` names of definitions.
    """

    name: str
    title: str
    says: str
    panels: tuple[Panel, ...]
    numbers: Numbers
    queries: tuple[str, ...]
    terms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    choices: Mapping[str, Sequence[Row]] | None = None
    about: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a chart cannot be drawn; `needs` are the figures whose coverage says what would give them."""

    name: str
    title: str
    because: str
    needs: tuple[str, ...] = ()


# A label may have a second, shorter line; both together stand in the middle of their row. The first is cut in its
# middle where it is too long: what tells two classes apart is at the end as often as at the start.
_LIMIT = "(isValid(containerSize()[0]) ? max(124, 0.34 * containerSize()[0]) : 240)"
_LETTER = 6.4  # mean width of a letter of 12 px; wide ones get a quarter more room before they are cut by width
_LETTERS = f"floor({_LIMIT} / {_LETTER})"
_FIRST = f"truncate(split(datum.label, '\\n')[0], {_LETTERS}, 'center')"
_LINES = f"indexof(datum.label, '\\n') >= 0 ? [{_FIRST}, split(datum.label, '\\n')[1]] : {_FIRST}"
_LEGEND_LETTERS = 16
_MIDDLE = {"condition": {"test": "indexof(datum.label, '\\n') >= 0", "value": -7}, "value": 0}


def label_axis() -> alt.Axis:
    """An axis whose labels may have two lines and take about a third of the chart."""
    return alt.Axis(
        labelLimit=alt.ExprRef(f"1.25 * {_LIMIT}"), labelExpr=_LINES, labelLineHeight=14, labelOffset=_MIDDLE
    )


def legend(names: Sequence[str]) -> alt.Legend:
    """A legend whose long names are cut in their middle, in three columns where all are short."""
    columns = 3 if max(map(len, names)) <= _SHORT else 2
    return alt.Legend(columns=columns, labelExpr=f"truncate(datum.label, {_LEGEND_LETTERS}, 'center')", labelLimit=132)


def words(base: alt.Chart, *, dx: int = 0, dy: int = 0, align: Literal["left", "center"] = "center") -> list[alt.Chart]:
    """Text over a rim of paper, so that no line strikes it through; `base` holds its filter, encodings come after."""
    return [base.mark_text(style=style, align=align, dx=dx, dy=dy) for style in ("halo", "label")]


def whole_ticks(positions: Iterable[int]) -> alt.Axis:
    """An axis with a tick at each of these whole numbers and none between; where they are many some have no label."""
    return alt.Axis(values=sorted(set(positions)), format="d", grid=False, labelOverlap="greedy")


def layered(rows: Sequence[Row], *layers: alt.Chart, height: float | alt.Step = 220, says: str) -> alt.LayerChart:
    """Layers over the same rows, which any of them may filter."""
    data = alt.InlineData(values=list(rows), name=ROWS)
    chart = alt.layer(*layers, data=data, width=WIDTH, height=height, description=says)
    return cast(alt.LayerChart, chart)


def labels(keys: Sequence[Mapping[str, Any]], limit: int = 48) -> list[str]:
    """One label a key, each once: two classes must never share a row of a chart."""
    found: dict[str, None] = {}
    for key in keys:
        text = " / ".join(fmt.label(value, limit, column) for column, value in key.items()) or "all"
        n = 2
        unique = text
        while unique in found:
            unique, n = f"{text} ({n})", n + 1
        found[unique] = None
    return list(found)


def cut_note(drawn: int, every: int) -> tuple[str, ...]:
    """A sentence where a chart leaves classes out; nothing where it has all."""
    if drawn >= every:
        return ()
    return (f"The {drawn} classes with most rounds are drawn; the table has all {every}.",)


def finite(value: Any) -> float | None:
    """A number that a chart can place, else None."""
    return float(value) if fmt.is_number(value) else None
