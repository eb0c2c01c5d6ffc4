"""The views of `queries/views.sql`, as a lake needs them."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from tracelens.lake.schema import FACTS
from tracelens.resources import room

if TYPE_CHECKING:
    import duckdb

# Where views.sql turns from the tables and `facts` to what groups them.
_GROUPING = "-- ---------------------------------------------------------------- what the queries read"
# What puts counters of several sources together: half of the work of opening a lake, and of most lakes for nothing.
_COUNTERS = re.compile(r"^-- -+ counters that several sources scraped\n.*?(?=^-- -+ what counts$)", re.M | re.S)
_APART = """
create view continued as
select null::varchar as source_id, null::bigint as source_line, null::varchar as surface, null::varchar as other_id,
       null::timestamp as since, false as continues, false as grew, false as by_name
where false;
create view counted_windows as from logged_windows;
"""
_SCRAPED = """
select count(*) from read_parquet(getvariable('lake_files')['sources'], union_by_name = true)
where len(list_filter(map_keys(surfaces), lambda s: contains(s, 'metrics'))) > 0
"""


def of_lake(con: duckdb.DuckDBPyConnection, joined: Collection[str] = ()) -> str:
    """The statements that define the tables of a lake, whose files `lake_files` names.

    Args:
        con: a connection to the lake.
        joined: tables whose files are joined by name though they are alike. Then every view that is bound opens all of
            them (0.3 ms each), and whatever their statistics tell need not be computed: that no number is too large or
            missing, that a column holds nothing.
    """
    views = texts()[0] if _several_scraped(con) else _COUNTERS.sub(lambda _: _APART, texts()[0])
    for table in FACTS:
        if table not in joined and _alike(con, table):
            files = f"read_parquet(lake_files('{table}'), union_by_name"
            views = views.replace(f"{files} = true", f"{files} = false")
    return views


def _alike(con: duckdb.DuckDBPyConnection, table: str) -> bool:
    """Whether all files of a table have the same columns of the same types, as they have that one version wrote.

    Then nobody needs to join their columns by name, for which every view that is bound opens all of them: only those
    are opened that a query reads, and none of a day that it leaves out.
    """
    import duckdb

    with suppress(duckdb.Error, OSError):  # a file is broken, which is told where it is read
        found = con.execute(
            "select count(distinct columns) from (select file_name, list_sort(list((name, duckdb_type))) as columns"
            " from parquet_schema(getvariable('lake_files')[$1]) where duckdb_type is not null group by file_name)",
            [table],
        ).fetchone()
        return found == (1,)
    return False


def _several_scraped(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether more than one source holds counters, by the ledger."""
    import duckdb

    with suppress(duckdb.BinderException):  # a ledger of somebody else, without the column
        found = con.execute(_SCRAPED).fetchone()
        return bool(found and found[0] > 1)
    return False


@functools.cache
def texts() -> tuple[str, str]:
    """Statements over the lake itself, and those that group `facts`."""
    first, mark, second = (room("queries") / "views.sql").read_text(encoding="utf-8").partition(_GROUPING)
    return first, mark + second


def grouping_views() -> list[str]:
    """Names of the views that group `facts`, in their order."""
    return re.findall(r"^create or replace view (\w+) as", texts()[1], re.MULTILINE)


def definition(view: str) -> str:
    """The statement of `queries/views.sql` that defines a view."""
    found = re.search(rf"^create or replace view {view} as$.*?;$", "".join(texts()), re.MULTILINE | re.DOTALL)
    if found is None:
        raise KeyError(view)
    return found[0]
