"""`tracelens schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.lake.schema import TABLES


def schema(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help=f"One of {', '.join(TABLES)}.")] = None,
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
) -> None:
    """Show the canonical tables: columns, types, units and meaning.

    A column ending in _us has a twin ending in _ms in the view of the same name. NULL means not measured.
    """
    from tracelens.reporters import check, json_, rows
    from tracelens.reporters import schema as shown

    chosen = opt.chosen_format(fmt, as_json, output)
    check(chosen)
    shown.check(table)
    with opened(output) as out:
        if chosen == "json":
            json_.write(shown.document(table), out, indent=2)
        else:
            rows.render(*shown.rows(table), chosen, out)
