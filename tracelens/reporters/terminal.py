"""The report on a terminal: the answer first, then narrow tables at 80 columns or wide ones at 140 and more."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tracelens.analysis.results import Report, Stratum
from tracelens.reporters import answer, selected
from tracelens.reporters import format as fmt
from tracelens.reporters.sheet import Grid, Sheet
from tracelens.reporters.tables import ALPHA, NARROW, RHO, VERDICT, WIDE, Column, K, Table, notes, present, rows_of

_WIDE_FROM = 140
_QUIET = "dim"
_VERDICT_STYLE = {"yes": "green", "no": "red"}
_LINE = box.Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")
_ASCII_LINE = box.Box("    \n    \n -- \n    \n -- \n -- \n    \n    \n", ascii=True)


class Page:
    """A console whose text can be carried by the output, whatever its encoding, and drives no terminal."""

    def __init__(self, out: TextIO, width: int | None = None) -> None:
        """Take width and colour from `out`: no colour where it is no terminal or NO_COLOR is set."""
        self.out = out
        self.encoding = getattr(out, "encoding", None) or "utf-8"
        terminal = bool(getattr(out, "isatty", lambda: False)())
        self.width = width or shutil.get_terminal_size((80, 24)).columns
        self._buffer = io.StringIO()
        self.console = Console(
            file=self._buffer,
            width=self.width,
            force_terminal=terminal,
            color_system="auto" if terminal else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def text(self, *parts: tuple[str, str] | str) -> Text:
        """Styled text, spelled for the encoding; nothing in it is read as markup."""
        pairs = ((p, "") if isinstance(p, str) else p for p in parts)
        return Text.assemble(*((fmt.fold(text, self.encoding), style) for text, style in pairs))

    def carries(self, char: str) -> bool:
        """Whether the output can show `char`."""
        return fmt.fold(char, self.encoding) == char

    def say(self, *parts: tuple[str, str] | str, indent: int = 0) -> None:
        """Print one paragraph, wrapped."""
        self.console.print(Padding(self.text(*parts), (0, 0, 0, indent)))

    def item(self, mark: str, *parts: tuple[str, str] | str) -> None:
        """Print one item of a list with a hanging indent."""
        grid = RichTable.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self.text(mark), self.text(*parts))
        self.console.print(Padding(grid, (0, 0, 0, 2)))

    def pairs(self, items: Iterable[tuple[str, str]]) -> None:
        """Print names and values in two columns."""
        grid = RichTable.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style=_QUIET)
        grid.add_column(overflow="fold")
        for name, value in items:
            grid.add_row(self.text(name), self.text(value))
        self.console.print(Padding(grid, (0, 0, 0, 2)))

    def needs(self, grid: RichTable) -> int:
        """The least width at which no number of `grid` is cut and its texts can be folded.

        Rich's own minimum is that of the longest word, also where a column must not wrap.
        """
        widths = []
        for column in grid.columns:
            cells = (str(cell) for cell in (column.header, *column.cells))
            longest = max(cell_len(line) for cell in cells for line in cell.split("\n"))
            # What may be folded is drawn as wide as its least width, however short its cells are.
            widths.append(longest if column.no_wrap else column.min_width or min(longest, 16))
        return sum(widths) + 2 * (len(widths) - 1)

    def gap(self) -> None:
        """Print an empty line."""
        self.console.print()

    def flush(self) -> None:
        """Hand everything to the output, without trailing blanks."""
        lines = self._buffer.getvalue().split("\n")
        self.out.write("\n".join(line.rstrip() for line in lines))
        self._buffer.seek(0)
        self._buffer.truncate()


def plain_grid(page: Page) -> RichTable:
    """A table without frame: a line under the header, two blanks between columns."""
    return RichTable(
        box=_LINE if page.carries("─") else _ASCII_LINE,
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
        header_style="",
        collapse_padding=True,
    )


class TerminalReporter:
    """The report as text for a person."""

    def __init__(self, width: int | None = None) -> None:
        """Use `width` columns; by default those of the terminal (or $COLUMNS), else 80."""
        self.width = width

    def render(self, report: Report, out: TextIO) -> None:
        """Write `report` to `out`."""
        page = Page(out, self.width)
        _answer(page, report)
        told: set[str] = set()
        for table in WIDE if page.width >= _WIDE_FROM else NARROW:
            told.update(_table(page, table, report, told))
        _rollbacks(page, report.total)
        _positions(page, report.total)
        _list(page, "What these logs cannot tell, and what gives it", "-", answer.missing(report))
        _list(page, "Warnings", "!", answer.warnings(report), "yellow")
        page.flush()


def _answer(page: Page, report: Report) -> None:
    first, *rest = answer.answer(report)
    page.say((first, "bold"))
    selection = selected.of(report.selection, report.contains)
    if selection:
        page.say((selection, _QUIET))
    for line in rest:
        page.say(line)
    lacking = 0 if answer.nothing(report) else answer.lacking(report.coverage)
    counts = [(len(answer.warnings(report)), "warning"), (lacking, "figure not to be had")]
    told = ", ".join(f"{n} {what if n == 1 else _plural(what)}" for n, what in counts if n)
    if told:
        page.say((f"{told}: see the end.", _QUIET))


def _plural(what: str) -> str:
    head, _, tail = what.partition(" ")
    return f"{head}s {tail}".rstrip()


def _table(page: Page, table: Table, report: Report, told: set[str]) -> list[str]:
    """Print one table and the conventions that no table before it has told; return these."""
    rows = rows_of(report)
    columns = present(table, rows)
    if not columns:
        return []
    page.gap()
    page.say((table.title, "bold"))
    for part in _fitting(page, report, rows, columns):
        page.console.print(_grid(page, report, rows, part))
    new = [note for note in notes(columns, rows) if note not in told]
    if new:
        page.say((f"{'. '.join(new)}.", _QUIET), indent=2)
    return new


def _fitting(
    page: Page, report: Report, rows: Sequence[Stratum], columns: Sequence[Column]
) -> list[tuple[Column, ...]]:
    """The columns in as many tables as the width asks for: a number is never cut. K and ρ stay beside α."""
    grid = _grid(page, report, rows, columns)
    units: list[tuple[Column, ...]] = [(c,) for c in columns]
    if ALPHA in columns:
        units = [(K, RHO, ALPHA) if c is ALPHA else (c,) for c in columns if c not in (K, RHO)]
    if page.needs(grid) <= page.width or len(units) == 1:
        return [tuple(columns)]
    middle = (len(units) + 1) // 2
    halves = (tuple(c for unit in half for c in unit) for half in (units[:middle], units[middle:]))
    return [part for half in halves for part in _fitting(page, report, rows, half)]


def _split(page: Page, report: Report) -> bool:
    """Whether each column of the key gets a column of its own."""
    return len(report.by) <= (3 if page.width >= _WIDE_FROM else 1)


def _grid(page: Page, report: Report, rows: Sequence[Stratum], columns: Sequence[Column]) -> RichTable:
    split = _split(page, report)
    grid = plain_grid(page)
    heads = list(report.by) if split else [" / ".join("K" if c == "num_speculative_tokens" else c for c in report.by)]
    for head in heads or [""]:
        # Words of the header are never broken.
        least = max([8, *(cell_len(word) for word in fmt.label(head).split())] if head else [8])
        grid.add_column(
            page.text(fmt.label(head) if head else ""),
            vertical="top",
            overflow="fold",
            min_width=least,
            max_width=max(20, page.width // 4, least),
        )
    for column in columns:
        left = column is VERDICT
        grid.add_column(page.text(column.head), justify="left" if left else "right", no_wrap=True, vertical="top")
    for row in rows:
        if row is report.total and report.strata:
            grid.add_section()
        key = _key(page, report, row, split)
        grid.add_row(*key, *(_cell(page, column, row) for column in columns), style="bold" if not report.strata else "")
    return grid


def _key(page: Page, report: Report, row: Stratum, split: bool) -> list[Text]:
    if row is report.total:
        blanks = max(len(report.by) - 1, 0) if split else 0
        return [page.text("all"), *[page.text("")] * blanks]
    parts = [(fmt.label(row.key.get(c), column=c), _QUIET if row.key.get(c) is None else "") for c in report.by]
    if split:
        return [page.text(part) for part in parts]
    joined: list[tuple[str, str]] = []
    for part in parts:
        joined.extend([(" / ", _QUIET), part] if joined else [part])
    return [page.text(*joined)]


def _cell(page: Page, column: Column, row: Stratum) -> Text:
    main, quiet = column.cell(row.figures)
    style = _VERDICT_STYLE.get(main, "") if column is VERDICT else _QUIET if main == fmt.DASH else ""
    return page.text((main, style), (f" {quiet}", _QUIET)) if quiet else page.text((main, style))


def _rollbacks(page: Page, total: Stratum) -> None:
    words = answer.rollbacks(total.figures)
    histogram = histogram_of(total.figures.get("rollback_len"))
    if not words and not histogram:
        return
    page.gap()
    page.say(("Rollbacks (rollback length = drafted − accepted, over rounds with drafts)", "bold"))
    if words:
        page.say(f"{words}.")
    whole = sum(histogram)
    if not whole:
        return
    room = max(10, min(50, page.width - 40))
    block = "█" if page.carries("█") else "#"
    for length, n in enumerate(histogram):
        bar = block * round(room * n / max(histogram)) or ("▏" if n and block == "█" else "")
        name = "all accepted" if length == 0 else f"{length} lost"
        page.say(f"{name:>14}  {bar:<{room}} {fmt.count(n):>10} {fmt.percent(n / whole):>8}")


def histogram_of(value: Any) -> list[float]:
    """Rounds by rollback length 0, 1, …, summed over the draft lengths; empty when not known."""
    if isinstance(value, dict):
        lists = [histogram_of(v) for v in value.values()]
        longest = max(map(len, lists), default=0)
        return [sum(one[i] for one in lists if i < len(one)) for i in range(longest)]
    if isinstance(value, list | tuple) and all(fmt.is_number(v) for v in value):
        return list(value)
    return []


def _positions(page: Page, total: Stratum) -> None:
    hazard = total.figures.get("hazard")
    if not isinstance(hazard, list | tuple) or not any(fmt.is_number(h) for h in hazard):
        return
    page.gap()
    page.say(
        ("Acceptance by draft position, once all before it were accepted (hazard; target's token excluded)", "bold")
    )
    page.say("  ".join(f"{j}: {fmt.ratio(h)}" for j, h in enumerate(hazard, start=1)), indent=2)


def _list(page: Page, title: str, mark: str, items: Iterable[str], style: str = "") -> None:
    told = list(items)
    if not told:
        return
    page.gap()
    page.say((title, f"bold {style}".strip()))
    for text in told:
        page.item(mark, text)


def sheet(shown: Sheet, out: TextIO, width: int | None = None) -> None:
    """Draw a sheet: the first paragraph is bold; a table that is too wide is split, and no number is ever cut."""
    page = Page(out, width)
    first, *rest = shown.lead
    page.say((first, "bold"))
    if shown.selected:
        page.say((shown.selected, _QUIET))
    for line in rest:
        page.say(line)
    told: set[str] = set()
    for grid in shown.grids:
        page.gap()
        if grid.title:
            page.say((grid.title, "bold"))
        for columns in _parts(page, grid, tuple(range(grid.keys, len(grid.heads)))):
            page.console.print(_drawn(page, grid, columns))
        new = [note for note in grid.notes if note not in told]
        told.update(new)
        if new:
            page.say((f"{'. '.join(new)}.", _QUIET), indent=2)
    for bullets in shown.bullets:
        _list(page, bullets.title, "!" if bullets.warn else "-", bullets.items, "yellow" if bullets.warn else "")
    page.flush()


def _parts(page: Page, grid: Grid, columns: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(columns) <= 1 or page.needs(_drawn(page, grid, columns)) <= page.width:
        return [columns]
    middle = (len(columns) + 1) // 2
    return [part for half in (columns[:middle], columns[middle:]) for part in _parts(page, grid, half)]


def _drawn(page: Page, grid: Grid, columns: Sequence[int]) -> RichTable:
    drawn = plain_grid(page)
    for i in range(grid.keys):
        least = max([8, *(cell_len(word) for word in grid.heads[i].split())])
        drawn.add_column(
            page.text(fmt.visible(grid.heads[i])),
            vertical="top",
            overflow="fold",
            min_width=least,
            max_width=max(28, page.width // (2 if grid.keys == 1 else 4), least),
        )
    for i in columns:
        side: Literal["left", "right"] = "left" if i in grid.left else "right"
        drawn.add_column(page.text(grid.heads[i]), justify=side, no_wrap=True, vertical="top")
    for i, row in enumerate(grid.rows):
        if i in grid.sections:
            drawn.add_section()
        cells = (row[j] for j in (*range(grid.keys), *columns))
        drawn.add_row(
            *(
                page.text(
                    (c.text, c.style or (_QUIET if c.text == fmt.DASH else "")),
                    *([(f" {c.quiet}", _QUIET)] if c.quiet else []),
                )
                for c in cells
            )
        )
    return drawn
