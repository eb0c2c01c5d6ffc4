"""Pieces of the page: tables that sort and filter, figures with their numbers and SQL, links to definitions."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.analysis.results import Missing
from tracelens.reporters.charts.drawn import Absent, Drawn, Head, Numbers
from tracelens.reporters.definitions import DEFINITIONS
from tracelens.reporters.html.markup import Markup, join, tag
from tracelens.wording import many

# Tables shorter than this need no filter.
_FILTER_FROM = 6


def term(name: str, words: object) -> Markup:
    """Words that lead to the definition of a number; plain words where there is none."""
    if name not in DEFINITIONS:
        return tag("span", words)
    return tag("a", words, href=f"#def-{name}", class_="term", data_term=name, title=DEFINITIONS[name].title)


def table(numbers: Numbers, caption: str, *, keys: int = 1, marks: dict[str, str] | None = None) -> Markup:
    """A table whose columns sort and whose rows filter; the first `keys` columns are text.

    `marks` give cells of that text a class, such as the colour of a verdict.
    """
    heads = [_head(head, i, i < keys) for i, head in enumerate(numbers.heads)]
    rows = [_row(row, keys, marks or {}) for row in numbers.rows]
    body = tag(
        "table", tag("caption", caption, class_="sr"), tag("thead", tag("tr", *heads)), tag("tbody", *rows),
        tag("tfoot", _row(numbers.foot, keys, marks or {})) if numbers.foot else "", class_="numbers",
    )  # fmt: skip
    tools = _filter(caption) if len(rows) >= _FILTER_FROM else ""
    return tag("div", tools, tag("div", body, class_="scroll", tabindex="0", role="region", aria_label=caption),
               class_="tablebox")  # fmt: skip


def _row(row: Sequence[str], keys: int, marks: dict[str, str]) -> Markup:
    return tag("tr", *(_cell(cell, i < keys, marks.get(cell)) for i, cell in enumerate(row)))


def _head(head: Head, column: int, key: bool) -> Markup:
    lines = (head.text or "class").split("\n")
    words = [piece for line in lines for piece in (tag("br"), line)][1:]
    sort = tag("button", *words, type="button", class_="sort", data_column=column)
    definition = (
        tag("a", "?", href=f"#def-{head.name}", class_="what", data_term=head.name,
            aria_label=f"what is {DEFINITIONS[head.name].title}?")
        if head.name in DEFINITIONS
        else ""
    )  # fmt: skip
    return tag("th", tag("span", sort, definition), scope="col", class_="key" if key else None)


def _cell(cell: str, key: bool, mark: str | None) -> Markup:
    if key:
        return tag("th", cell, scope="row", class_="key")
    return tag("td", tag("span", cell, class_=f"chip {mark}") if mark else cell)


def _filter(caption: str) -> Markup:
    return tag(
        "div",
        tag("input", type="search", class_="filter", placeholder="Filter rows", aria_label=f"filter rows of {caption}"),
        tag("span", class_="count", role="status"),
        class_="tools js",
    )


def sql_button(parts: Sequence[str], of: str) -> Markup:
    """A button that copies the queries behind a figure."""
    return tag("button", "Copy as SQL", type="button", class_="quiet sql js", data_sql=" ".join(parts),
               aria_label=f"copy the SQL of {of}")  # fmt: skip


def absent(found: Absent, coverage: Sequence[Missing], *, wide: bool) -> Markup:
    """Why there is no chart, in one line, and what would give it."""
    switch = next((m.switch_on for m in coverage for name in found.needs if name in m.figure.split(", ")), "")
    line = join((f"Not shown: {found.because}.", f"To get it: {switch}." if switch else ""), " ")
    return tag(
        "figure", tag("figcaption", tag("h3", found.title)), tag("p", line, class_="none"),
        class_="card wide" if wide else "card", id=f"chart-{found.name}",
    )  # fmt: skip


def figure(found: Drawn, parts: Sequence[str], *, wide: bool = False) -> Markup:
    """A chart with title, choice of a class, notes, SQL and its numbers."""
    choice = ""
    if found.choices is not None:
        options = (tag("option", name, value=i) for i, name in enumerate(found.choices))
        choice = tag("label", tag("span", "Class of traffic", class_="sr"), tag("select", *options, class_="choice"),
                     class_="js")  # fmt: skip
    numbers = tag(
        "details", tag("summary", f"Numbers ({many(len(found.numbers.rows), 'row')})"),
        table(found.numbers, found.title), class_="numbers-of",
    )  # fmt: skip
    terms = join((term(name, DEFINITIONS[name].title) for name in found.terms if name in DEFINITIONS), " · ")
    return tag(
        "figure",
        tag("figcaption", tag("h3", found.title), choice),
        tag("div", *(tag("div", class_="panel") for _ in found.panels), class_="chart", data_chart=found.name,
            role="img", aria_label=found.says),
        tag("p", *(join((note, " ")) for note in found.notes), class_="note") if found.notes else "",
        tag("div", tag("p", terms, class_="terms"), sql_button(parts, found.title), class_="foot"),
        numbers,
        class_="card wide" if wide else "card",
        id=f"chart-{found.name}",
    )  # fmt: skip


def definitions() -> Markup:
    """The definitions of every number, as a list that a script also opens one by one."""
    items = [
        join(
            (
                tag("dt", tag("b", d.title), " ", tag("code", d.formula), id=f"def-{name}"),
                tag("dd", d.text, " ", tag("span", name, class_="name")),
            )
        )
        for name, d in DEFINITIONS.items()
    ]
    return tag("dl", *items, class_="definitions")
