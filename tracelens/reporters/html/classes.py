"""The classes of traffic on a page: the tables of the report, the gate's decisions and advice, and which are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracelens.analysis.gate import GateStratum
from tracelens.analysis.page import Page
from tracelens.analysis.results import Stratum
from tracelens.model.decision import LEAST_EFFECTIVE
from tracelens.reporters import format as fmt
from tracelens.reporters import tables
from tracelens.reporters.charts.drawn import Head, Numbers
from tracelens.reporters.html.markup import Markup, join, tag
from tracelens.reporters.html.parts import sql_button, table
from tracelens.reporters.sheet import name_of
from tracelens.reporters.verdicts import gate_apart, verdict
from tracelens.wording import many

#: Classes that a page keeps of each end: it is for reading, and a file for every class is one command away.
MOST_OF_AN_END = 40
#: Marks of verdicts in tables: the text says the same as the colour.
MARKS = {"yes": "pays", "no": "loses", "open": "open", "pays": "pays", "costs more": "loses", "GO": "pays",
         "NO_GO": "loses", "INCONCLUSIVE": "open"}  # fmt: skip
#: Tables of the report that are open: what speculation gives, and acceptance.
_OPEN_TABLES = 2
_REPORT_SQL = ("outcome",)


def bounded(page: Page) -> Page:
    """The page with the slowest and the fastest classes alone, where there are many; all in their order.

    Those without a relative token time are kept last, the ones with most rounds first.
    """
    strata = page.report.strata
    if len(strata) <= 2 * MOST_OF_AN_END:
        return page
    timed = sorted(
        (i for i, s in enumerate(page.gate.strata) if s.relative_token_time is not None),
        key=lambda i: page.gate.strata[i].relative_token_time or 0.0,
    )
    kept = {*timed[:MOST_OF_AN_END], *timed[-MOST_OF_AN_END:]}
    untimed = sorted(set(range(len(strata))) - set(timed), key=lambda i: -(strata[i].figures.get("rounds") or 0))
    kept.update(untimed[: 2 * MOST_OF_AN_END - len(kept)])

    def cut(answer: Any) -> Any:
        chosen = tuple(s for i, s in enumerate(answer.strata) if i in kept) if answer is not None else ()
        return None if answer is None else replace(answer, strata=chosen)

    return replace(page, report=cut(page.report), gap=cut(page.gap), gate=cut(page.gate), sweep=cut(page.sweep))


def advice(page: Page) -> Markup | str:
    """What the gate advises, by class."""
    told = [(name_of(s.key), text) for s in (*page.gate.strata, page.gate.total) for text in s.advice]
    if not told:
        return ""
    shown = told[:12]
    items = [tag("li", tag("b", name), ": ", text, ".") for name, text in shown]
    more = f" ({len(told) - len(shown)} more: tracelens gate)" if len(told) > len(shown) else ""
    return tag("div", tag("h3", f"What follows{more}"), tag("ul", *items), class_="card wide advice")


def strata(page: Page) -> Markup:
    """The tables of the report, one row a class; cost and formulas are folded."""
    report, rows = page.report, tables.rows_of(page.report)
    shown = [(t, columns) for t in tables.NARROW if (columns := tables.present(t, rows))]
    blocks, margin = [], page.gate.options.margin
    for i, (told, columns) in enumerate(shown):
        gated = tables.VERDICT in columns
        heads = (*(Head(name) for name in report.by or ("",)), *(Head(c.head, _definition(c)) for c in columns),
                 *([Head("gate", "decision")] if gated else ()))  # fmt: skip
        every = [
            (*_cells(page, s, columns), *([_gate(s, g, margin)] if gated else ()))
            for s, g in zip((*report.strata, report.total), (*page.gate.strata, page.gate.total), strict=True)
        ]
        numbers = Numbers(heads, tuple(every[:-1]), every[-1])
        body = join(
            (
                table(numbers, told.title, keys=max(len(report.by), 1), marks=MARKS),
                tag(
                    "details",
                    tag("summary", "Conventions"),
                    tag(
                        "ul",
                        *(tag("li", note) for note in [*tables.notes(columns, rows), *_rule(page, gated)]),
                        class_="note",
                    ),
                ),
            )
        )
        folded = i >= _OPEN_TABLES
        blocks.append(
            tag("details", tag("summary", told.title), body) if folded else tag("div", tag("h3", told.title), body)
        )
    foot = tag("div", tag("span"), sql_button(page.statements.parts(_REPORT_SQL), "the tables"), class_="foot")
    return tag("div", *blocks, foot, class_="card wide stack")


def _gate(stratum: Stratum, gate: GateStratum, margin: float) -> str:
    """The gate's decision, and why where the verdict beside it says otherwise."""
    _, why = gate_apart(verdict(stratum.figures), gate, margin)
    return f"{gate.decision}{f': {why}' if why else ''}"


def _rule(page: Page, gated: bool) -> list[str]:
    options = page.gate.options
    rule = (
        f"gate: what tracelens gate decides: GO or NO_GO where the whole interval lies {100 * options.margin:.3g} % or "
        f"more from 1.0, from {many(options.min_requests, 'request')} worth {LEAST_EFFECTIVE:g} of equal length on"
    )
    return [rule] if gated else []


def _definition(column: tables.Column) -> str:
    return "verdict" if column is tables.VERDICT else column.names[0]


def _cells(page: Page, stratum: Stratum, columns: Sequence[tables.Column]) -> tuple[str, ...]:
    by = page.report.by
    if stratum is page.report.total:
        key = ["all traffic", *[""] * (len(by) - 1)]
    else:
        key = [fmt.label(stratum.key.get(name), 80, name) for name in by]
    return (*key, *(" ".join(filter(None, c.cell(stratum.figures))) for c in columns))
