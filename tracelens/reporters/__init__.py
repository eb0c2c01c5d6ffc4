"""Reporters: results in, text out. They compute no figure and run no query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.errors import InputError

if TYPE_CHECKING:
    from tracelens.reporters.base import Reporter

FORMATS = ("table", "json", "csv", "markdown")


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
    later = ("html", "png", "svg", "parquet")
    why = "is not in this version" if fmt in later else "is not known"
    raise InputError(f"--format {fmt} {why}: use one of {', '.join(FORMATS)}")
