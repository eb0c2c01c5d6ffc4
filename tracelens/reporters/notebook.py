"""An answer as a small table for a notebook: escaped, without a script, and in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from tracelens.analysis.results import NOTHING, Report, Stratum
from tracelens.reporters import answer, selected
from tracelens.reporters import format as fmt
from tracelens.reporters.rows import numeric, text
from tracelens.reporters.sheet import Bullets, Cell, Grid, Sheet, endnotes, key_cells
from tracelens.reporters.tables import NARROW, VERDICT, Column, notes, present, rows_of
from tracelens.wording import many

#: More rows are for a data frame.
MOST_ROWS = 50
# Greys are shares of the notebook's own colour; the two colours are legible on white and on black.
_QUIET = "opacity:.65"
_STYLES = {"green": "color:#1a8f4c;font-weight:600", "red": "color:#d9443f;font-weight:600", "bold": "font-weight:600",
           "dim": _QUIET}  # fmt: skip
_VERDICT_STYLES = {"yes": "green", "no": "red"}
_LINE = "1px solid rgba(128,128,128,.35)"
_TABLE = "border-collapse:collapse;color:inherit;font-size:inherit"
_BOX = "overflow-x:auto;font-variant-numeric:tabular-nums"


def report_sheet(report: Report) -> Sheet:
    """The report as a sheet: the tables and conventions of the terminal."""
    lead = tuple(answer.answer(report))
    rows, told, grids = rows_of(report), set[str](), []
    for shown in () if answer.nothing(report) else NARROW:
        columns = present(shown, rows)
        if columns:
            new = tuple(note for note in notes(columns, rows) if note not in told)
            told.update(new)
            grids.append(_report_grid(report, shown.title, columns, new))
    words = answer.rollbacks(report.total.figures)
    bullets = (Bullets("Rollbacks", (f"{words}.",)),) if words else ()
    warnings = [w for w in report.warnings if w.code != NOTHING]
    missing = () if answer.nothing(report) else report.coverage
    return Sheet(
        lead, tuple(grids), (*bullets, *endnotes(warnings, missing)), selected.of(report.selection, report.contains)
    )


def _report_grid(report: Report, title: str, columns: Sequence[Column], told: tuple[str, ...]) -> Grid:
    rows = rows_of(report)
    keys = max(len(report.by), 1)
    cells = tuple(
        (
            *key_cells(row, report.by, total=row is report.total),
            *(_figure(column, row) for column in columns),
        )
        for row in rows
    )
    verdicts = frozenset(keys + i for i, column in enumerate(columns) if column is VERDICT)
    heads = (*(report.by or ("",)), *(column.head for column in columns))
    last = frozenset({len(rows) - 1} if report.strata else ())
    return Grid(title, heads, cells, keys=keys, sections=last, notes=told, left=verdicts)


def _figure(column: Column, row: Stratum) -> Cell:
    text, quiet = column.cell(row.figures)
    return Cell(text, quiet, _VERDICT_STYLES.get(text, "") if column is VERDICT else "")


def html(sheet: Sheet) -> str:
    """A sheet as HTML: the answer and its first table are open, the rest is folded."""
    first, *rest = sheet.lead
    parts = [f'<p style="margin:.2em 0"><strong>{_text(first)}</strong></p>']
    if sheet.selected:
        parts.append(f'<p style="margin:.2em 0;{_QUIET};font-size:.85em">{_text(sheet.selected)}</p>')
    parts += [f'<p style="margin:.2em 0">{_text(line)}</p>' for line in rest]
    parts += [_grid(grid, folded=i > 0) for i, grid in enumerate(sheet.grids)]
    parts += [_bullets(bullets) for bullets in sheet.bullets]
    return f'<div class="tracelens">{"".join(parts)}</div>'


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], total: int) -> str:
    """Rows of a query as HTML: the first ones, and how many there are of `total`."""
    body = [[Cell(text(value)) for value in row] for row in rows]
    left = frozenset(i for i in range(len(names)) if not numeric(rows, i))
    more = f"the first {len(rows):,} of {total:,} rows" if len(rows) < total else many(total, "row")
    grid = Grid("", tuple(names), tuple(map(tuple, body)), keys=0, notes=(more,), left=left)
    return f'<div class="tracelens">{_grid(grid, folded=False)}</div>'


def _text(value: object) -> str:
    return escape(fmt.visible(value))


def _head(text: str) -> str:
    return escape(fmt.visible(" ".join(text.replace("-\n", "-").split())))


def _grid(grid: Grid, *, folded: bool) -> str:
    left = [i < grid.keys or i in grid.left for i in range(len(grid.heads))]
    heads = "".join(_cell("th", _head(head), left[i]) for i, head in enumerate(grid.heads))
    body, hidden = _body(grid, left)
    more = f"{hidden:,} more rows: to_polars() has them" if hidden else ""
    told = ". ".join(filter(None, (*grid.notes, more)))
    caption = f'<strong style="{_QUIET}">{_text(grid.title)}</strong>' if grid.title and not folded else ""
    table = (
        f'{caption}<div style="{_BOX}"><table style="{_TABLE}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    if told:
        table += f'<div style="{_QUIET};font-size:.85em;max-width:80em">{_text(told)}.</div>'
    return _folded(grid.title, table) if folded else table


def _body(grid: Grid, left: Sequence[bool]) -> tuple[str, int]:
    """The rows, and how many are left out; the last one is the total where a line stands before it."""
    rows = list(enumerate(grid.rows))
    shown = rows
    if len(rows) > MOST_ROWS:
        end = rows[-1:] if len(rows) - 1 in grid.sections else []
        shown = rows[: MOST_ROWS - len(end)] + end
    return "".join(_row(row, left, i in grid.sections) for i, row in shown), len(rows) - len(shown)


def _row(cells: Iterable[Cell], left: Sequence[bool], line: bool) -> str:
    inner = "".join(_cell("td", _of(cell), left[i]) for i, cell in enumerate(cells))
    return f'<tr style="border-top:{_LINE}">{inner}</tr>' if line else f"<tr>{inner}</tr>"


def _of(cell: Cell) -> str:
    style = _STYLES.get(cell.style, _QUIET if cell.text == fmt.DASH else "")
    text = f'<span style="{style}">{_text(cell.text)}</span>' if style else _text(cell.text)
    return f'{text} <span style="{_QUIET}">{_text(cell.quiet)}</span>' if cell.quiet else text


def _cell(tag: str, inner: str, left: bool) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    style = f"text-align:{'left' if left else 'right'};padding:.15em .6em"
    if tag == "td" and not left:
        style += ";white-space:nowrap"
    return f'<{tag}{scope} style="{style}">{inner}</{tag}>'


def _bullets(bullets: Bullets) -> str:
    items = "".join(f"<li>{_text(item)}</li>" for item in bullets.items)
    title = f"{bullets.title} ({bullets.counted})" if bullets.count or len(bullets.items) > 1 else bullets.title
    return _folded(title, f"<ul>{items}</ul>")


def _folded(title: str, inner: str) -> str:
    return f'<details style="margin:.2em 0"><summary>{_text(title)}</summary>{inner}</details>'
