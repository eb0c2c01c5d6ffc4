"""A DuckDB connection onto a lake: the views of `queries/views.sql`, and nothing outside the lake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.lake import progress
from tracelens.resources import room

if TYPE_CHECKING:
    import duckdb


# Where views.sql turns from the tables and `facts` to what groups them.
_GROUPING = "-- ---------------------------------------------------------------- what the queries read"


def silent() -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that loads no extension and prints nothing.

    DuckDB 2.0 prints a progress bar to stdout for whatever takes two seconds, in the middle of our JSON.
    """
    import duckdb

    con = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    con.execute("set enable_progress_bar_print = false")
    return con


def connect(lake: Path, *, lock: bool = True, grouped: bool = True) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB with the canonical views over `lake`.

    The connection can read the lake and nothing else: no other file, no extension, no network.

    Args:
        lake: folder of the lake.
        lock: close the connection to the outside. Left open only by code that writes Parquet itself.
        grouped: define the views that group `facts`, too; without, `define_grouping` does it later.

    Raises:
        InputError: there is no lake at that place.
    """
    check(lake)
    con = silent()
    con.execute("set timezone = 'UTC'")
    # The views look for files by a pattern: what is special in one stands for itself here.
    pattern = re.sub(r"([*?\[])", r"[\1]", str(lake))
    con.execute("set variable lake = $lake", {"lake": pattern})
    if lock:
        con.execute("set allowed_directories = $1", [[str(lake), pattern]])
        con.execute("set enable_external_access = false")
    progress.connected(con)
    con.execute(_views()[0])
    if grouped:
        define_grouping(con)
    return con


def check(lake: Path) -> None:
    """Refuse a folder that holds no lake.

    Raises:
        InputError: there is no lake at that place.
    """
    if not (lake / "sources").is_dir():
        raise InputError(
            f"no lake at {lake}: run `tracelens ingest PATH… --lake {lake}` first, or name another with --lake"
        )


def define_grouping(con: duckdb.DuckDBPyConnection) -> None:
    """Define the views that group `facts`.

    Each of them binds everything below it: much quicker where `facts` was kept as a table before.
    """
    con.execute(_views()[1])


def _views() -> tuple[str, str]:
    first, mark, second = (room("queries") / "views.sql").read_text(encoding="utf-8").partition(_GROUPING)
    return first, mark + second
