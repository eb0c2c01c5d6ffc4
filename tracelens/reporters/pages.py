"""The formats that show a whole page: HTML, and one chart of it as PNG or SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from tracelens.errors import InputError
from tracelens.reporters import PAGE_FORMATS

if TYPE_CHECKING:
    from tracelens.analysis.page import Page

_IMAGES = ("png", "svg")


def check(chosen: str, chart: str | None, *, terminal: bool) -> None:
    """Refuse what cannot be written, before any work is done.

    Args:
        chosen: the format, any of the report's.
        chart: the name of a chart, None for the default one.
        terminal: whether the output is a terminal.

    Raises:
        InputError: a chart that does not exist, or in a format that has no single chart; a page or a picture to a
            terminal.
    """
    if chart is not None:
        from tracelens.reporters import charts

        charts.check(chart)
        if chosen not in _IMAGES:
            raise InputError(f"--chart {chart} is one picture: give it a place, -o {chart}.png or -o {chart}.svg")
    if terminal and chosen == "png":
        raise InputError("--format png is binary and stdout is a terminal: give a file with -o FILE.png")
    if terminal and chosen == "html":
        raise InputError(
            "the page is too long for a terminal: give a file with -o FILE.html, or look at it with --open"
        )


def render(page: Page, chosen: str, chart: str | None, out: TextIO) -> None:
    """Write `page` to `out` in one of PAGE_FORMATS; bytes go to its buffer.

    Raises:
        InputError: a chart whose figures cannot be had, with the reason.
    """
    if chosen not in PAGE_FORMATS:
        raise InputError(f"--format {chosen} shows no page: use one of {', '.join(PAGE_FORMATS)}")
    if chosen == "html":
        from tracelens.reporters.html.page import render as write

        write(page, out)
        return
    from tracelens.reporters import charts
    from tracelens.reporters.charts.whole import image

    picture = image(charts.pick(page, chart), chosen)
    if chosen == "svg":
        out.write(picture.decode("utf-8"))
    else:
        out.buffer.write(picture)
