"""Refusals of what is no lake, of one that is not whole or holds columns of other kinds, and of a newer one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.lake.place import path_of
from tracelens.lake.schema import SCHEMA_VERSION, TABLES, newer, table
from tracelens.lake.storage import storage_of

if TYPE_CHECKING:
    import duckdb


def check(lake: Path) -> None:
    """Refuse a folder that holds no lake.

    Raises:
        InputError: there is no lake at that place.
    """
    if storage_of(lake).identity() is None:
        raise InputError(
            f"no lake at {lake}: run `tracelens ingest PATH… --lake {lake}` first, or name another with --lake"
        )


def check_whole(lake: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Every table of a lake has a file, if only one without rows."""
    missing = [table for table in TABLES if not files[table]]
    if missing:
        # Without its ledger nobody knows what the lake held.
        remedy = "" if "sources" in missing else ", or run `tracelens forget --missing`, which takes out what lost rows"
        raise InputError(
            f"the lake at {lake} is not whole: no file in {', '.join(f'{table}/' for table in missing)}. "
            f"Copy it again with all of its folders{remedy}, or ingest its logs into a new one (--lake)"
        )


def of_other_types(con: duckdb.DuckDBPyConnection) -> InputError | None:
    """An error that names the first column of a file that is not of the kind that tracelens writes; None: none is.

    Numbers of other widths, and columns that nobody knows, are none of its business.
    """
    import duckdb

    for name in TABLES:
        types = table(name).duckdb_types()
        paths = con.execute("select unnest(getvariable('lake_files')[$1]) order by all", [name]).fetchall()
        for (path,) in paths:
            columns: list[tuple[str, ...]] = []
            with suppress(duckdb.Error):  # a broken file, which is told where it is read
                columns = con.execute("describe from read_parquet($1, hive_partitioning = false)", [path]).fetchall()
            for column, kind, *_ in columns:
                if column in types and _kind(kind) != _kind(types[column]):
                    return InputError(
                        f"{path_of(path)}: its column {column} is {kind} where a lake has {types[column]}: it is not"
                        " tracelens' own; move it away, or write it anew with the types that `tracelens schema` names"
                    )
    return None


def _kind(type_: str) -> str:
    is_number = not type_.endswith("]") and type_.rstrip("0123456789(,) ").endswith(
        ("INT", "INTEGER", "FLOAT", "DOUBLE", "DECIMAL")
    )
    return "number" if is_number else type_


def check_version(con: duckdb.DuckDBPyConnection, lake: Path) -> None:
    """Refuse a lake of a newer tracelens before its columns are asked for what they may not hold any more."""
    import duckdb

    with suppress(duckdb.BinderException):  # a ledger of somebody else, without the column
        found = con.execute(
            "select max(schema_version) from read_parquet(getvariable('lake_files')['sources'], union_by_name = true)"
        ).fetchone()
        if found and (found[0] or 0) > SCHEMA_VERSION:
            raise InputError(newer(lake, found[0]))
