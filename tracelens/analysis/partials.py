"""The views that make sums of single rounds: those of the parts of a lake add up to that of the whole.

Every query of `queries/` reads single rounds through these views alone, or asks so little of them that it may read
them itself. So an executor computes them over a part of the rounds, and the same queries run over what adds up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracelens.analysis.alarms import looked_at
from tracelens.lake.connection import kept
from tracelens.lake.views import definition, grouping_views

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Views of the lake itself, before any question.
OF_LAKE = ("held", "impossible")
#: Views of one question: over what speculates, and all.
OF_STRATA = ("unit_sums", "round_shapes", "shared_steps")
OF_QUESTION = (*OF_STRATA, "plain_units", "control_sums", *looked_at.NAMES)
# Those of them that hold rows and no sums.
_ROWS = ("shared_steps",)
# Numbers that tell groups apart; text, structs, times and truth of unlike names do by themselves.
_KEYS = {"held": {"grain_order"}, "round_shapes": {"bucket", "drafted", "accepted"}, "step_parts": {"part"}}
# What is no sum.
_OTHERWISE = {
    "k_min": "min", "k_max": "max", "fixed_share": "max", "low": "min", "high": "max", "source": "min",
    "other": "max", "rolled_longest": "max", "last_index": "max",
}  # fmt: skip
_NUMBERS = ("INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "DOUBLE", "DECIMAL")


def of_lake() -> dict[str, str]:
    """The views of the lake itself as queries, by name."""
    return {name: f"from {name}" for name in OF_LAKE}


def of_question() -> dict[str, str]:
    """The views of one question as queries, by name; they read `strata` and the like, and not each other."""
    names = [name for name in OF_QUESTION if name not in looked_at.NAMES]
    # As queries: to define a view and to ask it binds all that lies below it twice.
    return {name: definition(name).partition(" as\n")[2].rstrip(";") for name in names} | looked_at.of_parts()


def helpers(wanted: Iterable[str], there: Iterable[str]) -> list[str]:
    """The statements that define what these queries read of the views that group `facts`, beside those that are there.

    In the order of `queries/views.sql`, where a view stands behind what it reads.
    """
    found: list[str] = []
    texts = list(wanted)
    for name in reversed(grouping_views()):
        if name not in there and any(re.search(rf"\b{name}\b", text) for text in texts):
            texts.append(definition(name))
            found.append(definition(name))
    return found[::-1]


def begin(con: duckdb.DuckDBPyConnection, name: str, sql: str) -> None:
    """Make the empty table that takes the parts of a view."""
    con.execute(f"create or replace table kept_{name} as select * from ({sql}) limit 0")


def add(con: duckdb.DuckDBPyConnection, name: str, part: pa.Table) -> None:
    """Take the rows of one part."""
    con.register("arrived", part)
    try:
        con.execute(f"insert into kept_{name} by name select * from arrived")
    finally:
        con.unregister("arrived")


def finish(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Add up the parts and let the table stand for the view."""
    if name not in _ROWS:
        columns = con.execute(f"describe kept_{name}").fetchall()
        keys = [str(column[0]) for column in columns if _is_key(name, str(column[0]), str(column[1]))]
        added = [_added(str(column[0]), str(column[1])) for column in columns if column[0] not in keys]
        con.execute(
            f"create or replace table kept_{name} as select {', '.join([*keys, *added])} from kept_{name}"
            f" group by {', '.join(keys)}"
        )
    con.execute(f"create or replace view {name} as select * from kept_{name}")


def _is_key(view: str, column: str, kind: str) -> bool:
    if column in _OTHERWISE:
        return False
    return column in _KEYS.get(view, ()) or not (kind == "BOOLEAN" or kind.startswith(_NUMBERS)) or "[" in kind


def _added(column: str, kind: str) -> str:
    how = _OTHERWISE.get(column) or ("bool_or" if kind == "BOOLEAN" else "sum")
    return f"{how}({column})::{kind} as {column}"


def narrow(con: duckdb.DuckDBPyConnection, condition: str | None) -> None:
    """Leave in the kept views over `strata` only what meets a condition over engine, model and run_id.

    A view without these columns is asked of the lake again, by its definition: `strata` was narrowed before.
    """
    there = kept(con)
    for name in (name for name in OF_STRATA if name in there):
        columns = {str(row[0]) for row in con.execute(f"describe kept_{name}").fetchall()}
        if condition is not None and not {"engine", "model", "run_id"} <= columns:
            con.execute(definition(name))
        else:
            con.execute(f"create or replace view {name} as select * from kept_{name} where {condition or 'true'}")
