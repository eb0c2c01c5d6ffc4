"""Which records a source holds more than once: a shipper sent them again, or logs were put together.

Requests and rounds only, and of them those with an id that is a name in all the world: two windows of one second that
count alike may be of two servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tracelens.ingest.copies_sql import IDENTITY
from tracelens.lake.connection import answered

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# The column whose values 0, 1, 2 … tell how many records of one id there can be; of a request there is one.
_INDEX = {"rounds": "round_index", "requests": None}
# Choices of one request (n > 1) have rounds of the same number, and of the same moment where they went through one
# step: only where every round of a request is told in one form, however often, it is a repetition. A request's id may
# be used again later, and each of its uses be told twice.
_ONE_FORM = {"rounds": "count(distinct (nth, form)) = count(distinct nth)", "requests": "true"}


def suspects(table: str, files: Iterable[tuple[str, str]]) -> list[str]:
    """Files of sources in which some id has more records than it can have, by counts alone.

    A day at a time, as a record that is sent again keeps its stamp; and a row group at a time, as a file has no bound.

    Args:
        table: rounds, windows or requests.
        files: source and path of each new file.

    Returns:
        All files of those sources.
    """
    if table not in _INDEX:
        return []
    files = list(files)
    found = {source for source, path in files if _has_more(path, _INDEX[table])}
    return [path for source, path in files if source in found]


def _has_more(path: str, index: str | None) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, read_dictionary=["request_id"])
    columns = ["request_id", *([index] if index else [])]
    groups = (file.read_row_group(i, columns=columns, use_threads=False) for i in range(file.num_row_groups))
    counted = [_counted(group, index, [([], "count_all")]) for group in groups]
    if not counted:
        return False
    every = _counted(pa.concat_tables(counted).unify_dictionaries(), index, [("records", "sum")])
    most = pc.add(every["last"], 1) if index else pa.scalar(1)
    named = pc.is_valid(every["request_id"])
    return bool(pc.any(pc.and_(named, pc.greater(every["records"], most))).as_py())


def _counted(rows: pa.Table, index: str | None, count: list[tuple[object, str]]) -> pa.Table:
    """Records of every id, and the highest of their numbers."""
    last = "last" if "last" in rows.column_names else index
    found = rows.group_by("request_id", use_threads=False).aggregate([*([(last, "max")] if last else []), *count])
    return found.rename_columns(["request_id", *(["last"] if last else []), "records"])


def repeated(con: duckdb.DuckDBPyConnection, table: str, files: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Lines that hold nothing but records which an earlier line of the same source holds.

    Args:
        con: any connection.
        table: rounds or requests.
        files: the Parquet files of the sources to look through.

    Returns:
        Source, once more, and the first and the last of lines that are all repetitions.
    """
    identity = IDENTITY[table]
    sql = _REPEATED.format(
        nth=_INDEX[table] or "0", at=identity.at, values=identity.values, one_form=_ONE_FORM[table],
        usable=f"{identity.eligible} and ({identity.strong}) and {identity.named}",
    )  # fmt: skip
    return [(source, source, first, last) for source, first, last in answered(con, sql, [list(files)])[1]]


_REPEATED = """
with every as (
  select source_id as source, source_line as line, request_id as id, {nth} as nth,
         ({at}, hash({values})) as form, coalesce({usable}, false) as usable
  from read_parquet($1, union_by_name = true) where source_line is not null
), told as (
  select source, id from every where usable group by source, id
  having count(*) > count(distinct (nth, form)) and {one_form}
), numbered as (
  select source, line, row_number() over (partition by source, id, nth, form order by line) > 1 as again
  from every semi join told using (source, id) where usable
), repeating as (
  select source, line, count(*) as records from numbered where again group by source, line
), whole as (
  select source, line, any_value(r.records) = count(*) as again
  from every join repeating r using (source, line) group by source, line
), placed as (
  select source, line, line - row_number() over (partition by source order by line) as island from whole where again
)
select source, min(line), max(line) from placed group by source, island
"""
