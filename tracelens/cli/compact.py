"""`tracelens compact`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from tracelens.cli import options as opt


def compact(
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Roll up the rounds of days older than this: 30d, 4w."),
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="DATE", help="Roll up the rounds of days before this UTC date.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be merged and rolled up; write nothing.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Merge small files of the lake, and roll up the rounds of old days.

    Merging changes no figure. With --older-than or --before the single rounds of whole days become rows of equal rounds
    by the minute (docs/compact.md): counts, sums and means stay as they are, single requests and replay are gone, and
    every answer that meets such rows says so. `tracelens ingest --replace LOG` brings the single rounds back.
    """
    from tracelens.compact import run
    from tracelens.reporters import compacted

    until = run.day_before(older_than, before, datetime.now(UTC).date())
    with _progress() as told:
        done = run.compact(lake, until, told, dry_run=dry_run)
    if as_json:
        compacted.write_json(done, sys.stdout)
    else:
        compacted.write_text(done, lake, sys.stdout)


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None] | None]:
    """What is being worked at, on stderr; nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compacting", total=None)
        done = 0

        def told(place: str, size: int) -> None:
            nonlocal done
            done += size
            bar.update(task, description=f"{place}: {done / 1e6:,.0f} MB")

        yield told
