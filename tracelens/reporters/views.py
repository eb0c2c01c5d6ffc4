"""How the answer of each command is shown; its module is loaded only when it is asked for."""

from __future__ import annotations

from typing import Any, TextIO

from tracelens.analysis.results import Report
from tracelens.reporters.sheet import View


class ReportView(View[Report]):
    """The report: its text formats have reporters of their own."""

    def render(self, result: Report, chosen: str, out: TextIO, *, width: int | None = None) -> None:
        """Write `result` to `out` in the format `chosen`."""
        from tracelens.reporters import reporter
        from tracelens.reporters.terminal import TerminalReporter

        (TerminalReporter(width) if chosen == "table" else reporter(chosen)).render(result, out)


def view(command: str) -> View[Any]:
    """The view of a command that answers: report, gap, sweep, gate or compare.

    Raises:
        KeyError: no such command.
    """
    match command:
        case "report":
            from tracelens.reporters import json_, notebook

            return ReportView(notebook.report_sheet, json_.document)
        case "gap":
            from tracelens.reporters import gap

            return gap.VIEW
        case "sweep":
            from tracelens.reporters import sweep

            return sweep.VIEW
        case "gate":
            from tracelens.reporters import gate

            return gate.VIEW
        case "compare":
            from tracelens.reporters import compare

            return compare.VIEW
    raise KeyError(command)
