"""CSV: one row a stratum and one for the total, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from tracelens.analysis.results import Report
from tracelens.reporters.format import fold, visible
from tracelens.reporters.json_ import document, dumps, plain

if TYPE_CHECKING:
    import pyarrow as pa

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
    return _safe(dumps(value))


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


def write_table(found: pa.Table, out: TextIO) -> None:
    """Write the columns of Parquet; lists of text become one text, other lists and maps JSON."""
    columns = [[_flat(value) for value in column.to_pylist(maps_as_pydicts="strict")] for column in found.columns]
    write(found.schema.names, zip(*columns, strict=True), out)


def _flat(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "; ".join(value) if value else None
    return value


class CsvReporter:
    """The report as CSV."""

    def render(self, report: Report, out: TextIO) -> None:
        """Write `report` to `out`."""
        from tracelens.reporters import arrow

        write_table(arrow.table(report, document(report)), out)
