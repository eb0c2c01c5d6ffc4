"""The canonical tables as rows and as the JSON document of the CLI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracelens.errors import InputError
from tracelens.lake.schema import SCHEMA_VERSION, TABLES, Table
from tracelens.lake.schema import table as load


def check(table: str | None) -> None:
    """Refuse a name that no table has.

    Raises:
        InputError: no such table.
    """
    if table is not None and table not in TABLES:
        raise InputError(f"no table is named {table!r}: the tables are {', '.join(TABLES)}")


def rows(table: str | None) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Header and rows: the columns of a table, or the tables.

    Raises:
        InputError: no such table.
    """
    check(table)
    if table is None:
        return ["table", "columns", "one row is"], [(t.name, len(t.columns), t.description) for t in map(load, TABLES)]
    one = load(table)
    types = one.duckdb_types()
    return ["column", "type", "unit", "meaning"], [
        (c.name, types[c.name] + (" not null" if c.required else ""), c.unit or "", c.description) for c in one.columns
    ]


def document(table: str | None) -> dict[str, Any]:
    """The JSON document of a table, or of all.

    Raises:
        InputError: no such table.
    """
    check(table)
    if table is not None:
        return _document(load(table))
    return {"schema_version": SCHEMA_VERSION, "tables": [_document(load(name)) for name in TABLES]}


def _document(table: Table) -> dict[str, Any]:
    types = table.duckdb_types()
    columns: Sequence[dict[str, Any]] = [
        {
            "name": c.name,
            "type": types[c.name],
            "arrow": c.arrow,
            "unit": c.unit,
            "required": c.required,
            "description": c.description,
        }
        for c in table.columns
    ]
    return {"name": table.name, "description": table.description, "columns": columns}
