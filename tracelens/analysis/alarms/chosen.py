"""The records behind the rows of a question, as they were logged: what `facts` leaves out (stamps, bases, copies)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracelens.analysis.alarms import looked_at
from tracelens.analysis.selection import Defined
from tracelens.lake import progress
from tracelens.lake.connection import answered
from tracelens.wording import many

if TYPE_CHECKING:
    import duckdb

# As the view `requests_joined` makes it; an id that is unique to one process only (llama.cpp's tasks) names nobody.
_KEY = (
    "case when request_id = source_id || '#' || source_line then request_id else request_key(request_id) end as key,"
    " request_id <> source_id || '#' || coalesce(source_line, 0) and is_global_id(engine, key) as named"
)


def define(con: duckdb.DuckDBPyConnection, defined: Defined) -> None:
    """Define `chosen_windows` and `chosen_requests` (with `key` and `named`): the records of the runs in `chosen_runs`.

    A filter of rows holds for them too: windows by source and line, requests by their id.
    """
    of_windows = of_requests = ""
    if defined.filtered:
        con.execute(
            "create or replace temp table chosen_lines as select distinct source_id, surface,"
            " coalesce(source_line, 0) as line from selected where grain = 'window'"
        )
        con.execute(
            "create or replace temp table chosen_keys as select distinct engine, unit from selected"
            " where grain = 'request'"
        )
        of_windows = " and (source_id, surface, coalesce(source_line, 0)) in (from chosen_lines)"
        of_requests = " where (engine, key) in (from chosen_keys)"
    looked_at.define(con)
    runs = "where run_id in (from chosen_runs)"
    con.execute(f"create or replace temp view chosen_windows as select * from windows {runs}{of_windows}")
    con.execute(
        f"create or replace temp view chosen_requests as select * from (select *, {_KEY} from requests {runs})"
        f"{of_requests}"
    )


def rows(con: duckdb.DuckDBPyConnection, sql: str, values: Sequence[object] = ()) -> list[Mapping[str, Any]]:
    """Rows of a query as dicts."""
    names, told = answered(con, sql, values)
    found: list[Mapping[str, Any]] = [dict(zip(names, row, strict=True)) for row in told]
    progress.step()
    return found


def count(con: duckdb.DuckDBPyConnection, sql: str) -> int:
    """The first value of the first row of a query, a whole number."""
    row = con.execute(sql).fetchone()
    progress.step()
    return int(row[0]) if row else 0


def more(count: int, what: str = "run") -> str:
    """Of how many others the same is true, as the end of a sentence's first part."""
    return f" (so in {many(count - 1, f'more {what}')})" if count > 1 else ""
