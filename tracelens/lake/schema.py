"""The canonical tables, read from `schemas/*.json`: the only place where the code takes names and types from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tracelens.resources import room

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

TABLES = ("rounds", "windows", "requests", "runs", "rejects", "sources")
FACTS = ("rounds", "windows", "requests")
# The column whose UTC day is the partition `date=` of a table; the other tables are not partitioned.
DAY_OF = {"rounds": "ts", "windows": "ts_end", "requests": "ts_end"}
# The value of that partition for a row without a time: the name every Hive-style reader takes for NULL.
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
# Raised when an older tracelens would misread the lake. A new column does not: it is NULL where it is missing.
# 2: files that hold several sources (`tracelens compact`). A lake without such files is of version 1.
SCHEMA_VERSION = 2
#: What the ledger says of a source whose rows lie in files of its own.
OWN_FILES = 1


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a canonical table."""

    name: str
    arrow: str
    unit: str | None
    description: str
    required: bool


@dataclass(frozen=True, slots=True)
class Table:
    """One canonical table: its columns in order."""

    name: str
    description: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(c.name for c in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the table, in the order of the file."""
        import pyarrow as pa

        types = {
            "string": pa.string(),
            "int32": pa.int32(),
            "int64": pa.int64(),
            "double": pa.float64(),
            "bool": pa.bool_(),
            "timestamp[us]": pa.timestamp("us"),
            "list<int64>": pa.list_(pa.int64()),
            "list<double>": pa.list_(pa.float64()),
            "list<string>": pa.list_(pa.string()),
            "map<string,string>": pa.map_(pa.string(), pa.string()),
            "map<string,int64>": pa.map_(pa.string(), pa.int64()),
        }
        return pa.schema([pa.field(c.name, types[c.arrow], nullable=not c.required) for c in self.columns])

    def polars_schema(self) -> dict[str, pl.DataType]:
        """The polars types of the table; maps are lists of key/value structs, as polars has no map type."""
        import polars as pl

        pair = {"string": pl.String(), "int64": pl.Int64()}
        types: dict[str, pl.DataType] = {
            "string": pl.String(),
            "int32": pl.Int32(),
            "int64": pl.Int64(),
            "double": pl.Float64(),
            "bool": pl.Boolean(),
            "timestamp[us]": pl.Datetime("us"),
            "list<int64>": pl.List(pl.Int64()),
            "list<double>": pl.List(pl.Float64()),
            "list<string>": pl.List(pl.String()),
            "map<string,string>": pl.List(pl.Struct({"key": pair["string"], "value": pair["string"]})),
            "map<string,int64>": pl.List(pl.Struct({"key": pair["string"], "value": pair["int64"]})),
        }
        return {c.name: types[c.arrow] for c in self.columns}

    def duckdb_types(self) -> dict[str, str]:
        """The DuckDB type of every column."""
        types = {
            "string": "VARCHAR",
            "int32": "INTEGER",
            "int64": "BIGINT",
            "double": "DOUBLE",
            "bool": "BOOLEAN",
            "timestamp[us]": "TIMESTAMP",
            "list<int64>": "BIGINT[]",
            "list<double>": "DOUBLE[]",
            "list<string>": "VARCHAR[]",
            "map<string,string>": "MAP(VARCHAR, VARCHAR)",
            "map<string,int64>": "MAP(VARCHAR, BIGINT)",
        }
        return {c.name: types[c.arrow] for c in self.columns}


@cache
def table(name: str) -> Table:
    """Load one canonical table.

    Raises:
        KeyError: no such table.
    """
    if name not in TABLES:
        raise KeyError(name)
    document = json.loads((room("schemas") / f"{name}.json").read_text(encoding="utf-8"))
    required = set(document["required"])
    columns = tuple(
        Column(key, spec["arrow"], spec.get("unit"), spec["description"], key in required)
        for key, spec in document["properties"].items()
    )
    return Table(name, document["description"], columns)


def is_in_a_table(name: str) -> bool:
    """Whether a name of a file in a lake (`rounds/date=…/x.parquet`) is one below a table, and nowhere else."""
    first, *rest = name.split("/")
    return first in TABLES and bool(rest) and {"", ".", ".."}.isdisjoint(rest) and "\0" not in name and "\\" not in name


def newer(lake: object, version: int) -> str:
    """What is said of a lake of a later version than this code knows."""
    return (
        f"the lake at {lake} was written by a newer tracelens (schema {version}, this one knows {SCHEMA_VERSION}): "
        "upgrade tracelens, or ingest the logs into a new lake (--lake)"
    )
