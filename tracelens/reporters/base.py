"""What every reporter is: one method."""

from __future__ import annotations

from typing import Protocol, TextIO

from tracelens.analysis.results import Report


class Reporter(Protocol):
    """Shows a report in one format."""

    def render(self, report: Report, out: TextIO) -> None:
        """Write `report` to `out`."""
