"""Markdown for a pull request: the answer, one table a question, and the rest folded away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from tracelens.analysis.results import Report, Stratum
from tracelens.reporters import answer, selected
from tracelens.reporters import format as fmt
from tracelens.reporters.sheet import Cell, Grid, Sheet
from tracelens.reporters.tables import NARROW, VERDICT, Column, notes, present, rows_of

# What Markdown, its tables, HTML in it, or a forge (mentions, issue numbers, formulas) would take for more than text.
_SPECIAL = re.compile(r"[\\`*|#~@$&<>]|(?<!\w)_|_(?!\w)|^[-+]|(?<=\])[(\[]")
_LINK = re.compile(r"\b(https?|ftp|www)(?=[:.])", re.IGNORECASE)


def escape(value: object) -> str:
    """Text that shows as it is inside a Markdown table or paragraph, and links, formats or runs nothing."""
    text = fmt.visible(value).replace("\\n", " ")
    text = _SPECIAL.sub(lambda m: _HTML.get(m[0]) or f"&#{ord(m[0])};", text)
    return _LINK.sub(lambda m: f"{m[0]}&#8203;", text)


_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> str:
    """A pipe table of cells that are already escaped."""
    lines = [heads, ["---:" if r else "---" for r in right], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sheet(shown: Sheet) -> str:
    """A sheet as Markdown: the first paragraph is bold, folded lists are closed."""
    first, *rest = map(escape, shown.lead)
    blocks = [f"**{first}**", _quiet(shown.selected), *rest]
    for grid in shown.grids:
        blocks += [f"### {escape(grid.title)}" if grid.title else "", _grid(grid)]
        blocks.append(f"<sub>{escape('. '.join(grid.notes))}.</sub>" if grid.notes else "")
    for bullets in shown.bullets:
        title = f"{bullets.title} ({bullets.counted})"
        blocks.append(_list(title, bullets.items, fold=bullets.folded))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _quiet(text: str) -> str:
    return f"<sub>{escape(text)}</sub>" if text else ""


def _grid(grid: Grid) -> str:
    right = [i >= grid.keys and i not in grid.left for i in range(len(grid.heads))]
    heads = [escape(" ".join(head.split())) for head in grid.heads]
    return table(heads, ([_cell(cell) for cell in row] for row in grid.rows), right)


def _cell(cell: Cell) -> str:
    # A sign is a list item at the start of a line alone, never in a cell.
    text = escape("|" + " ".join(filter(None, (cell.text.strip(), cell.quiet)))).removeprefix(escape("|"))
    return f"**{text}**" if cell.style in ("green", "red", "bold") and text else text


class MarkdownReporter:
    """The report as Markdown."""

    def render(self, report: Report, out: TextIO) -> None:
        """Write `report` to `out`."""
        text = "\n\n".join(block for block in _blocks(report) if block) + "\n"
        out.write(fmt.fold(text, getattr(out, "encoding", None)))


def _blocks(report: Report) -> Iterable[str]:
    first, *rest = map(escape, answer.answer(report))
    yield f"**{first}**"
    yield _quiet(selected.of(report.selection, report.contains))
    yield from rest
    rows, told = rows_of(report), set[str]()
    for shown in NARROW:
        columns = present(shown, rows)
        if columns:
            new = [note for note in notes(columns, rows) if note not in told]
            told.update(new)
            yield f"### {escape(shown.title)}"
            yield _strata(report, rows, columns)
            yield f"<sub>{escape('. '.join(new))}.</sub>" if new else ""
    words = answer.rollbacks(report.total.figures)
    yield f"**Rollbacks.** {escape(words)}." if words else ""
    warnings, missing = answer.warnings(report), answer.missing(report)
    yield _list(f"Warnings ({len(warnings)})", warnings, fold=False)
    count = answer.figures_told(answer.lacking(report.coverage))
    yield _list(f"What these logs cannot tell ({count}), and what gives it", missing, fold=True)


def _strata(report: Report, rows: Sequence[Stratum], columns: Sequence[Column]) -> str:
    keys = list(report.by) or [""]
    heads = [*map(escape, keys), *(escape(" ".join(c.head.split())) for c in columns)]
    right = [*(False for _ in keys), *(c is not VERDICT for c in columns)]
    return table(heads, (_row(report, row, columns) for row in rows), right)


def _row(report: Report, row: Stratum, columns: Sequence[Column]) -> list[str]:
    if row is report.total:
        key = ["**all**", *[""] * (len(report.by) - 1)]
    else:
        key = [escape(fmt.label(row.key.get(c), column=c)) for c in report.by]
    return [*key, *(escape(" ".join(filter(None, c.cell(row.figures)))) for c in columns)]


def _list(title: str, items: Iterable[str], *, fold: bool) -> str:
    lines = "\n".join(f"- {escape(item)}" for item in items)
    if not lines:
        return ""
    return f"<details><summary>{title}</summary>\n\n{lines}\n\n</details>" if fold else f"**{title}**\n\n{lines}"
