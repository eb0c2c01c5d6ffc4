"""`tracelens forget`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tracelens.cli import options as opt


def forget(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE…]", help="Names or ids of sources, as `tracelens query sources` lists them."),
    ] = None,
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    missing: Annotated[
        bool, typer.Option("--missing", help="Forget every source whose files are gone, all or some of them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be forgotten; write nothing.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Take sources out of the lake: their rows, what was refused of them, and their row of the ledger.

    All in one commit; the logs themselves are not touched, and can be ingested again. With --missing: a lake that has
    lost files (an object of a bucket, a file that somebody deleted) is whole again, without what these held.
    """
    from tracelens.errors import InputError
    from tracelens.lake.forget import forget_missing, forget_named
    from tracelens.reporters import forgotten

    if missing and sources:
        raise InputError("--missing chooses the sources itself: leave the names out, or --missing")
    if not missing and not sources:
        raise InputError("name the sources to forget (`tracelens query sources` lists them), or give --missing")
    done = forget_missing(lake, dry_run=dry_run) if missing else forget_named(lake, sources or [], dry_run=dry_run)
    if as_json:
        forgotten.write_json(done, sys.stdout, dry_run=dry_run)
    else:
        forgotten.write_text(done, lake, sys.stdout, dry_run=dry_run)
