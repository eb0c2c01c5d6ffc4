"""`tracelens query`."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.analysis import sql
from tracelens.cli import options as opt
from tracelens.cli.output import opened


def query(
    what: Annotated[
        str | None, typer.Argument(metavar='[NAME|"SQL"]', help="A named query or one SELECT; nothing lists the names.")
    ] = None,
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="Stop after so long; 0: never.")
    ] = sql.SECONDS,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", metavar="SIZE", help="Memory of the query, such as 4GB.")
    ] = None,
) -> None:
    """Answer a named query, or SQL over the views of the lake.

    The views are rounds, windows, requests, runs, rejects, sources (the tables, durations also in _ms),
    requests_joined and facts. DuckDB's SQL; one statement that only reads. JSON is an array of objects.
    """
    from tracelens.reporters import check, rows

    limits = sql.Limits(time_limit or None, memory_limit)
    chosen = opt.chosen_format(fmt, as_json, output)
    check(chosen)
    if what is not None and chosen == "parquet":
        from tracelens.reporters import parquet_

        text = sql.sql_of(what)
        with sql.read(lake, text, limits) as (schema, batches), opened(output) as out:
            parquet_.write_rows(schema, batches, text, out)
        return
    names, values = sql.listed() if what is None else sql.ask(lake, sql.sql_of(what), limits)
    with opened(output) as out:
        rows.render(names, values, chosen, out)
