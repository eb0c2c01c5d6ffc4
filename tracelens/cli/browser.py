"""`--open`: a place for a page, and the browser that shows it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tracelens.errors import InputError


def check(output: Path | None, fmt: str | None, *, as_json: bool) -> None:
    """Refuse what no browser shows.

    Raises:
        InputError: another format than html, or stdout.
    """
    if as_json or (fmt or "html").lower() != "html":
        raise InputError("--open shows the page, which is html: leave --format and --json out")
    if output is not None and str(output) == "-":
        raise InputError("--open shows a file: give its name with -o, or leave -o out")


def place(output: Path | None) -> Path:
    """The file that the browser will read: the user's own, else a new temporary one that only the user can read."""
    if output is not None:
        return output
    handle, name = tempfile.mkstemp(prefix="tracelens-report-", suffix=".html")
    os.close(handle)
    return Path(name)


def show(path: Path) -> None:
    """Open the file in the user's browser and say on stderr where it lies."""
    import webbrowser

    try:
        shown = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        shown = False
    told = "opened in your browser" if shown else "no browser could be opened: open it yourself"
    print(f"{path}: {told}", file=sys.stderr)
