"""`tracelens schema`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.errors import InputError
from tracelens.lake.schema import SCHEMA_VERSION, TABLES, Table
from tracelens.lake.schema import table as load


def schema(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help=f"One of {', '.join(TABLES)}.")] = None,
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
) -> None:
    """Show the canonical tables: columns, types, units and meaning.

    A column ending in _us has a twin ending in _ms in the view of the same name. NULL means not measured.
    """
    from tracelens.reporters import json_, rows

    chosen = opt.chosen_format(fmt, as_json, output)
    rows.check(chosen)
    if table is not None and table not in TABLES:
        raise InputError(f"no table is named {table!r}: the tables are {', '.join(TABLES)}")
    tables = [load(name) for name in (TABLES if table is None else (table,))]
    with opened(output) as out:
        if chosen == "json":
            told = [_document(one) for one in tables]
            whole = told[0] if table is not None else {"schema_version": SCHEMA_VERSION, "tables": told}
            json_.write(whole, out, indent=2)
        elif table is None:
            listed = [(one.name, len(one.columns), one.description) for one in tables]
            rows.render(["table", "columns", "one row is"], listed, chosen, out)
        else:
            rows.render(["column", "type", "unit", "meaning"], _columns(tables[0]), chosen, out)


def _columns(table: Table) -> list[tuple[str, str, str, str]]:
    types = table.duckdb_types()
    return [
        (c.name, types[c.name] + (" not null" if c.required else ""), c.unit or "", c.description)
        for c in table.columns
    ]


def _document(table: Table) -> dict[str, Any]:
    types = table.duckdb_types()
    return {
        "name": table.name,
        "description": table.description,
        "columns": [
            {
                "name": c.name,
                "type": types[c.name],
                "arrow": c.arrow,
                "unit": c.unit,
                "required": c.required,
                "description": c.description,
            }
            for c in table.columns
        ],
    }
