"""Which records a source holds more than once: a shipper sent them again, or logs were put together.

Requests and rounds only, and of them those with a stamp and an id that is a name in all the world: two windows of one
second that count alike may be of two servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tracelens.ingest.copies_sql import IDENTITY
from tracelens.lake.connection import answered

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# The column whose values tell how many records of one id there can be; of a request there is one.
_INDEX = {"rounds": "round_index", "requests": None}


def suspects(files: Mapping[str, Iterable[tuple[str, str]]]) -> dict[str, list[str]]:
    """Files of sources in which some id has more records than it can have, by counts alone.

    A day at a time, as a record that is sent again keeps its stamp; and a row group at a time, as a file has no bound.

    Args:
        files: by table the source and the path of each new file.

    Returns:
        All files of those sources, by table.
    """
    every = {table: list(found) for table, found in files.items()}
    found = {s for table, index in _INDEX.items() for s, path in every.get(table, ()) if _has_more(path, index)}
    return {table: [path for s, path in paths if s in found] for table, paths in every.items()} if found else {}


def _has_more(path: str, index: str | None) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, read_dictionary=["request_id"])
    columns = ["request_id", *([index] if index else [])]
    groups = (file.read_row_group(i, columns=columns, use_threads=False) for i in range(file.num_row_groups))
    ends = [(index, "min"), (index, "max")] if index else []
    counted = [_counted(group, [*ends, ([], "count_all")]) for group in groups]
    if not counted:
        return False
    ends = [("low", "min"), ("high", "max")] if index else []
    every = _counted(pa.concat_tables(counted).unify_dictionaries(), [*ends, ("records", "sum")])
    most = pc.add(pc.subtract(every["high"], every["low"]), 1) if index else pa.scalar(1)
    named = pc.is_valid(every["request_id"])
    return bool(pc.any(pc.and_(named, pc.greater(every["records"], most))).as_py())


def _counted(rows: pa.Table, what: list[tuple[object, str]]) -> pa.Table:
    """Records of every id, and the least and the greatest of their numbers where they have some."""
    ends = ["low", "high"] if len(what) > 1 else []
    found = rows.group_by("request_id", use_threads=False).aggregate(what)
    return found.rename_columns(["request_id", *ends, "records"])


def repeated(con: duckdb.DuckDBPyConnection, files: Mapping[str, Sequence[str]]) -> list[tuple[str, str, int, int]]:
    """Lines that hold nothing but records which an earlier line of the same source holds.

    Args:
        con: any connection.
        files: by table the Parquet files of the sources to look through.

    Returns:
        Source, once more, and the first and the last of lines that are all repetitions.
    """
    told = " union all ".join(f"({_told(table)})" for table, paths in files.items() if paths)
    values = {table: list(paths) for table, paths in files.items() if paths}
    answered(con, "set variable again_files = $1", [values])
    return [(source, source, first, last) for source, first, last in answered(con, _LINES.format(told=told))[1]]


def _told(table: str) -> str:
    """Source and line of every row of a table, and whether an earlier line has it."""
    files = f"read_parquet(getvariable('again_files')['{table}'], union_by_name = true)"
    if table not in _INDEX:
        return f"select source_id as source, source_line as line, false as again from {files}"
    identity = IDENTITY[table]
    usable = f"{identity.at} is not null and {identity.eligible} and {identity.named}"
    return (_ROUNDS if table == "rounds" else _REQUESTS).format(files=files, usable=usable)


# The same in all columns, in whatever run, class and step: a repetition.
_REQUESTS = """
with every as (
  select source_id as source, source_line as line, coalesce({usable}, false) as usable,
         hash(*columns(* exclude (source_line))) as form
  from {files} where source_line is not null
)
select source, line, usable and row_number() over (partition by source, usable, form order by line) > 1 as again
from every
"""
# Choices of one request (n > 1) have rounds of the same number in the same step, and may do alike there. So rounds that
# were there before are a repetition only where one follows the other, of several requests and several moments: choices
# of one step are of one moment, and those of one request of one request.
_ROUNDS = """
with every as (
  select source_id as source, source_line as line, request_id as id, ts as moment, round_index as nth,
         coalesce({usable}, false) as usable, hash(*columns(* exclude (source_line))) as form
  from {files} where source_line is not null
), compared as (
  select *, usable and row_number() over (partition by source, usable, form order by line) > 1 as there from every
), strung as (
  -- Not with filter (…): DuckDB 2.0 goes through the frame of every row then.
  select *, count(case when not there then 1 end) over (partition by source order by line, nth
                                                        rows between unbounded preceding and current row) as string
  from compared
)
select source, line,
       there and min(id) over whole <> max(id) over whole
         and min(moment) over whole <> max(moment) over whole as again
from strung window whole as (partition by source, string, there)
"""
_LINES = """
with told as ({told}), whole as (
  select source, line from told group by source, line having bool_and(again)
), placed as (
  select source, line, line - row_number() over (partition by source order by line) as island from whole
)
select source, min(line), max(line) from placed group by source, island
"""
