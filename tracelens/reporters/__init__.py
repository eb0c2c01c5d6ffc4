"""Reporters: results in, text (or Parquet) out. They compute no figure and run no query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.errors import InputError

if TYPE_CHECKING:
    from tracelens.reporters.base import Reporter

FORMATS = ("table", "json", "csv", "markdown")
#: Formats that are no text: for a file or a pipe, never for a terminal.
BINARY_FORMATS = ("parquet",)
#: Formats of the report alone: the page, and one chart of it. They show a `Page` (reporters/pages.py).
PAGE_FORMATS = ("html", "png", "svg")


def check(chosen: str) -> None:
    """Refuse a format that is no text and no Parquet before any work is done.

    Raises:
        InputError: it is of the report alone, or not known.
    """
    known = (*FORMATS, *BINARY_FORMATS)
    if chosen in PAGE_FORMATS:
        raise InputError(f"--format {chosen} is of `tracelens report` alone; here use one of {', '.join(known)}")
    if chosen not in known:
        raise InputError(f"--format {chosen} is not known: use one of {', '.join(known)}")


def reporter(fmt: str) -> Reporter:
    """The reporter of a format; its module is loaded only now.

    Raises:
        InputError: this version has no such format.
    """
    match fmt:
        case "table":
            from tracelens.reporters.terminal import TerminalReporter

            return TerminalReporter()
        case "json":
            from tracelens.reporters.json_ import JsonReporter

            return JsonReporter()
        case "csv":
            from tracelens.reporters.csv_ import CsvReporter

            return CsvReporter()
        case "markdown":
            from tracelens.reporters.markdown import MarkdownReporter

            return MarkdownReporter()
        case "parquet":
            from tracelens.reporters.parquet_ import ParquetReporter

            return ParquetReporter()
    if fmt in PAGE_FORMATS:
        raise InputError(f"--format {fmt} shows a whole page, which `tracelens report` makes")
    known = ", ".join((*FORMATS, *BINARY_FORMATS, *PAGE_FORMATS))
    raise InputError(f"--format {fmt} is not known: use one of {known}")
