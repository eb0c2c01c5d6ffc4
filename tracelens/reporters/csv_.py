"""CSV: one row a stratum and one for the total, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from tracelens.analysis.results import Report
from tracelens.reporters.format import fold, visible
from tracelens.reporters.json_ import plain

# A spreadsheet takes a cell that starts so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def cell(value: Any) -> str:
    """One cell: numbers bare, null empty, lists and maps as JSON text, text that could be a formula quoted with '."""
    value = plain(value)
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _safe(value)
    return _safe(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _safe(text: str) -> str:
    risky = text.lstrip(" ").startswith(_FORMULA)
    lines = (visible(line) for line in text.replace("\r\n", "\n").split("\n"))
    return ("'" if risky else "") + "\n".join(lines)


def write(names: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Write a header and rows of cells."""
    writer = csv.writer(out, lineterminator="\n")
    encoding = getattr(out, "encoding", None)
    writer.writerow([fold(cell(name), encoding) for name in names])
    writer.writerows([fold(cell(value), encoding) for value in row] for row in rows)


def cells(report: Report) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Header and rows of a report; the column `row` tells the strata from the total."""
    rows = (*report.strata, report.total)
    names = list(dict.fromkeys(name for row in (report.total, *report.strata) for name in row.figures))
    names = [name for name in names if name not in report.by]
    return ["row", *report.by, *names], [
        [
            "total" if row is report.total else "stratum",
            *(row.key.get(column) for column in report.by),
            *(row.figures.get(name) for name in names),
        ]
        for row in rows
    ]


class CsvReporter:
    """The report as CSV."""

    def render(self, report: Report, out: TextIO) -> None:
        """Write `report` to `out`."""
        write(*cells(report), out)
