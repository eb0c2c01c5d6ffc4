"""A DuckDB connection onto a lake: the views of `queries/views.sql`, and nothing outside the lake."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError
from tracelens.lake import progress
from tracelens.lake.schema import SCHEMA_VERSION, TABLES, newer
from tracelens.lake.snapshot import Reading
from tracelens.resources import room

if TYPE_CHECKING:
    import duckdb


# Where views.sql turns from the tables and `facts` to what groups them.
_GROUPING = "-- ---------------------------------------------------------------- what the queries read"
# Views of the lake itself. Every view and query above them binds all that lies below it: of a lake of a few files that
# takes ten times as long as reading it.
_OF_LAKE = (
    "logged_rounds", "logged_windows", "logged_requests", "runs", "rejects", "sources", "impossible",
    "requests_joined", "held", "grain_choice", "superseded", "run_traits", "request_traits", "facts",
)  # fmt: skip
_VIEW = re.compile(r"^create or replace view (\w+) as", re.MULTILINE)
#: Lakes up to this size are read once and kept as tables, bytes.
TINY = 1 << 20
#: From this size on, what an analysis keeps goes to a file of its own, and DuckDB's memory is bounded, bytes.
LARGE = 209_715_200
#: That bound.
MEMORY = "400MB"
#: The database of that file.
SPILL = "spill"


def silent() -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that loads no extension and prints nothing.

    DuckDB 2.0 prints a progress bar to stdout for whatever takes two seconds, in the middle of our JSON.
    """
    import duckdb

    con = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    con.execute("set enable_progress_bar_print = false")
    return con


def connect(
    lake: Path, *, lock: bool = True, grouped: bool = True, held: bool = True, keep: bool = False, bound: bool = False
) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB with the canonical views over `lake`, as of its last commit.

    The connection can read the lake and nothing else: no other file, no extension, no network. Until it is given up,
    commits of others do not touch the files that it reads.

    Args:
        lake: folder of the lake.
        lock: close the connection to the outside. Left open only by code that writes Parquet itself.
        grouped: define the views that group `facts`, too; without, `define_grouping` does it later.
        held: keep the files as they are. Not where the caller holds the lake's lock, as his own commit moves them.
        keep: read a tiny lake once, and keep its views as tables.
        bound: of a large lake take no more memory than MEMORY; what does not fit goes to a private folder.

    Raises:
        InputError: there is no lake at that place, or only a part of one.
    """
    check(lake)
    reading = Reading(lake)
    try:
        files = {table: reading.of(table) for table in TABLES}
        _check_whole(lake, files)
        con = silent()
        if held:
            weakref.finalize(con, reading.release)
        else:
            reading.release()
        _define_tables(con, lake, files, lock=lock, keep=keep, bound=bound)
    except BaseException:
        reading.release()
        raise
    if grouped:
        define_grouping(con)
    return con


def _define_tables(
    con: duckdb.DuckDBPyConnection, lake: Path, files: dict[str, list[str]], *, lock: bool, keep: bool, bound: bool
) -> None:
    con.execute("set timezone = 'UTC'")
    con.execute("set variable lake = $lake", {"lake": _plain(str(lake))})
    con.execute("set variable lake_files = $files", {"files": {t: [_plain(p) for p in files[t]] for t in files}})
    if bound and _size(path for paths in files.values() for path in paths) >= LARGE:
        _bound(con)
    if lock:
        con.execute("set allowed_directories = $1", [[str(lake), _plain(str(lake))]])
        con.execute("set enable_external_access = false")
    progress.connected(con)
    _check_version(con, lake)
    if not keep or not _is_tiny(path for paths in files.values() for path in paths):
        con.execute(_views()[0])
        _keep_copies(con)
        return
    con.execute("set threads = 1")  # sums come out the same to the last digit, and nothing here is worth a second one
    for statement in con.extract_statements(_views()[0]):
        con.execute(statement)
        name = _VIEW.search(statement.query)
        if name is not None and name[1] in _OF_LAKE:
            keep_view(con, name[1])


def _is_tiny(paths: Iterable[str]) -> bool:
    return _size(paths) <= TINY


def _size(paths: Iterable[str]) -> float:
    """Bytes of files; infinite where one can't be looked at: whoever reads it is told."""
    try:
        return sum(Path(path).stat().st_size for path in paths)
    except OSError:
        return math.inf


def _bound(con: duckdb.DuckDBPyConnection) -> None:
    """Bound the memory: what does not fit goes to a private folder, which goes with the connection.

    Without room for such a folder memory is what it takes.
    """
    import duckdb

    with suppress(OSError, duckdb.Error):
        folder = tempfile.mkdtemp(prefix="tracelens-")
        weakref.finalize(con, shutil.rmtree, folder, ignore_errors=True)
        con.execute("set temp_directory = $1", [folder])
        con.execute(f"attach '{folder.replace(chr(39), chr(39) * 2)}/{SPILL}.db' as {SPILL}")
        con.execute(f"set memory_limit = '{MEMORY}'")
        con.execute("set preserve_insertion_order = false")


def has_spill(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the connection has a file for what it keeps."""
    return con.execute("from duckdb_databases() where database_name = $1", [SPILL]).fetchone() is not None


def answered(
    con: duckdb.DuckDBPyConnection, sql: str, values: Sequence[object] = ()
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names and rows of a statement; where the bound on memory is too low for it, without that bound from here on."""
    import duckdb

    try:
        cursor = con.execute(sql, list(values))
        return [str(column[0]) for column in cursor.description or ()], cursor.fetchall()
    except duckdb.OutOfMemoryException:
        if not has_spill(con) or con.execute("select getvariable('unbound')").fetchone() == (True,):
            raise
        con.execute("set variable unbound = true")
        con.execute("reset memory_limit")
        return answered(con, sql, values)


def keep_view(con: duckdb.DuckDBPyConnection, name: str, condition: str = "") -> None:
    """Turn a view into a table of the connection, seen under the view's name."""
    answered(con, f"create or replace table kept_{name} as select * from {name}{condition}")
    con.execute(f"create or replace view {name} as select * from kept_{name}")


def kept(con: duckdb.DuckDBPyConnection) -> set[str]:
    """The views that are tables of the connection."""
    found = con.execute("select table_name from duckdb_tables() where starts_with(table_name, 'kept_')").fetchall()
    return {name.removeprefix("kept_") for (name,) in found}


def _keep_copies(con: duckdb.DuckDBPyConnection) -> None:
    """Take the join with copied lines out of every plan where there are none.

    The optimizer does that with what is empty by its definition; with an empty table it does not.
    """
    found = con.execute("select exists(from copied_lines)").fetchone()
    if found and not found[0]:
        con.execute("drop table copied_lines")
        con.execute(
            "create view copied_lines as select null::varchar as source_id, null::bigint as source_line where false"
        )


def _check_version(con: duckdb.DuckDBPyConnection, lake: Path) -> None:
    """Refuse a lake of a newer tracelens before its columns are asked for what they may not hold any more."""
    import duckdb

    with suppress(duckdb.BinderException):  # a ledger of somebody else, without the column
        found = con.execute(
            "select max(schema_version) from read_parquet(getvariable('lake_files')['sources'], union_by_name = true)"
        ).fetchone()
        if found and (found[0] or 0) > SCHEMA_VERSION:
            raise InputError(newer(lake, found[0]))


def _plain(path: str) -> str:
    """A path as the pattern that finds it alone: what is special in one stands for itself here."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def check(lake: Path) -> None:
    """Refuse a folder that holds no lake.

    Raises:
        InputError: there is no lake at that place.
    """
    if not (lake / "sources").is_dir():
        raise InputError(
            f"no lake at {lake}: run `tracelens ingest PATH… --lake {lake}` first, or name another with --lake"
        )


def _check_whole(lake: Path, files: dict[str, list[str]]) -> None:
    """Every table of a lake has a file, if only one without rows."""
    missing = [table for table in TABLES if not files[table]]
    if missing:
        raise InputError(
            f"the lake at {lake} is not whole: no file in {', '.join(f'{table}/' for table in missing)}. "
            "Copy it again with all of its folders, or ingest its logs into a new one (--lake)"
        )


def define_grouping(con: duckdb.DuckDBPyConnection) -> None:
    """Define the views that group `facts`.

    Each of them binds everything below it: much quicker where `facts` was kept as a table before.
    """
    con.execute(_views()[1])


def _views() -> tuple[str, str]:
    first, mark, second = (room("queries") / "views.sql").read_text(encoding="utf-8").partition(_GROUPING)
    return first, mark + second
