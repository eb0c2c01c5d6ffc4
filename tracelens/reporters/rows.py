"""Rows of a query in every format: names and values come from the user and the logs, so nothing of them is obeyed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TextIO

from tracelens.reporters import format as fmt
from tracelens.reporters.json_ import dumps, plain

TABLE_ROWS = 1000  # more rows are for a file, not for a person

Rows = Iterable[Sequence[Any]]


def unique(names: Sequence[str]) -> list[str]:
    """Column names made unique (`a`, `a_1`), as an object has each key once."""
    seen: set[str] = set()
    told: list[str] = []
    for name in names:
        candidate, n = name, 0
        while candidate in seen:
            n += 1
            candidate = f"{name}_{n}"
        seen.add(candidate)
        told.append(candidate)
    return told


def render(names: Sequence[str], rows: Rows, chosen: str, out: TextIO) -> None:
    """Write rows in the format `chosen`."""
    names = unique(names)
    match chosen:
        case "json":
            _json(names, rows, out)
        case "csv":
            from tracelens.reporters import csv_

            csv_.write(names, rows, out)
        case "markdown":
            _markdown(names, rows, out)
        case "parquet":
            from tracelens.reporters import arrow, parquet_

            parquet_.check_output(out)
            parquet_.write(arrow.of_rows(names, rows), out)
        case _:
            _table(names, rows, out)


def _json(names: Sequence[str], rows: Rows, out: TextIO) -> None:
    from tracelens.reporters.json_ import ascii_only

    ascii_ = ascii_only(out)
    before = "[\n "
    for row in rows:
        out.write(before + dumps(dict(zip(names, row, strict=True)), ascii_only=ascii_))
        before = ",\n "
    out.write("[]\n" if before.startswith("[") else "\n]\n")


def text(value: Any) -> str:
    """A value as a person reads it; the sign for what is missing."""
    value = plain(value)
    match value:
        case None:
            return fmt.DASH
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.6g}" if abs(value) < 1e6 else f"{value:,.2f}"
        case int():
            return str(value)
        case str():
            return fmt.visible(value)
    return dumps(value)


def _limited(rows: Rows) -> tuple[list[Sequence[Any]], bool]:
    iterator: Iterator[Sequence[Any]] = iter(rows)
    first = list(islice(iterator, TABLE_ROWS))
    return first, next(iterator, None) is not None


def numeric(rows: Sequence[Sequence[Any]], column: int) -> bool:
    """Whether a column holds numbers, and nothing else but NULL."""
    values = [plain(row[column]) for row in rows]
    return all(v is None or fmt.is_number(v) for v in values) and any(v is not None for v in values)


def _markdown(names: Sequence[str], rows: Rows, out: TextIO) -> None:
    from tracelens.reporters.markdown import escape, table

    shown = [list(row) for row in rows]
    right = [numeric(shown, i) for i in range(len(names))]
    drawn = table([escape(n) for n in names], ([escape(text(v)) for v in row] for row in shown), right)
    out.write(fmt.fold(drawn + "\n", getattr(out, "encoding", None)))


def _table(names: Sequence[str], rows: Rows, out: TextIO) -> None:
    from tracelens.reporters.terminal import Page, plain_grid

    page = Page(out)
    shown, more = _limited(rows)
    if not shown:
        page.say(("no rows; columns: ", "dim"), ", ".join(map(fmt.label, names)))
        page.flush()
        return
    grid = plain_grid(page)
    for i, name in enumerate(names):
        right = numeric(shown, i)
        grid.add_column(page.text(fmt.label(name)), justify="right" if right else "left", no_wrap=right)
    for row in shown:
        grid.add_row(*(page.text((told, "dim" if told == fmt.DASH else "")) for told in map(text, row)))
    if page.needs(grid) <= page.width or len(names) == 1:
        page.console.print(grid)
    else:
        _records(names, shown, page)
    if more:
        page.say((f"only the first {TABLE_ROWS:,} rows are shown; --format csv or json gives all", "yellow"))
    page.flush()


def _records(names: Sequence[str], rows: Sequence[Sequence[Any]], page: Any) -> None:
    """Show each row as a list of its columns: a table of them would not fit, and no number is ever cut."""
    for i, row in enumerate(rows, start=1):
        if i > 1:
            page.gap()
        page.say((f"row {i:,}", "bold"))
        pairs = ((fmt.label(name), text(value)) for name, value in zip(names, row, strict=True))
        page.pairs(pairs)
