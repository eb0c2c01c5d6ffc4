"""A DuckDB connection onto a lake: the views of `queries/views.sql`, and nothing outside the lake."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.lake import damage, progress, views, whole
from tracelens.lake.place import pattern_of
from tracelens.lake.schema import FACTS, TABLES
from tracelens.lake.snapshot import Reading
from tracelens.lake.storage import Days

if TYPE_CHECKING:
    import duckdb


# Views of the lake itself. Every view and query above them binds all that lies below it: of a lake of a few files that
# takes ten times as long as reading it.
_OF_LAKE = (
    "logged_rounds", "logged_windows", "logged_requests", "runs", "rejects", "sources", "impossible",
    "requests_joined", "held", "grain_choice", "superseded", "run_traits", "request_traits", "facts",
)  # fmt: skip
# Those of them that have a file a commit and a row a source: of a lake of a year to read them takes no time; to bind
# them, as whatever lies above does, takes longer than to read the rounds.
_BY_COMMIT = ("runs", "sources")
_RECORDS = "list_sum(map_values(rows))"
_UNITS = "coalesce(rows['windows'], 0) + coalesce(rows['requests'], 0) + coalesce(rows['rounds'], 0) / 5"
# What lists views: it must meet all of them.
_CATALOG = re.compile(r"\b(show|describe|summarize|duckdb_\w+|information_schema|sqlite_master|pg_\w+)\b", re.I)
_VIEW = re.compile(r"^create or replace view (\w+) as", re.MULTILINE)
#: Lakes up to this size are read once and kept as tables, bytes.
TINY = 1 << 20
#: And those of no more records, however many files hold them: a file of ten records takes 10 kB, and each view that is
#: bound opens all files again.
FEW = 100_000
#: From this size on, what an analysis keeps goes to a file of its own, and DuckDB's memory is bounded, bytes.
LARGE = 1 << 24
#: And from so many windows and requests on, or five times as many rounds: each is a unit of the intervals' sums, 64
#: columns wide, however few bytes it takes in a file. It costs an eighth more time, where half of the memory is saved.
MANY = 100_000
#: Files of rounds of this size (some 150,000) are worth their statistics, bytes.
LARGE_FILE = 1 << 20
#: That bound.
MEMORY = "400MB"
TWICE = "800MB"
LITTLE = "50MB"
#: The database of that file.
SPILL = "spill"


def silent() -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that loads no extension, prints nothing, and leaves nothing behind.

    DuckDB 2.0 prints a progress bar to stdout for whatever takes two seconds, in the middle of our JSON. What outgrows
    the memory it would put into `.tmp` of the folder that the user happens to be in: rows of the lake, for everybody to
    read. They go into a folder of the connection alone, which goes with it.
    """
    import duckdb

    con = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    con.execute("set enable_progress_bar_print = false")
    # Every view that is bound reads the footers of its files again: a fifth of a report over a few hundred files.
    con.execute("set parquet_metadata_cache = true")
    con.execute("set temp_directory = $1", [_private_folder(con)])
    return con


def _private_folder(con: duckdb.DuckDBPyConnection) -> str:
    """A folder that only this user can read, as long as the connection; "" (no file at all) where there is no place."""
    try:
        folder = tempfile.mkdtemp(prefix="tracelens-")
    except OSError:  # no temporary folder that can be written, or no room in it
        return ""
    weakref.finalize(con, shutil.rmtree, folder, ignore_errors=True)
    return folder


def connect(
    lake: Path, *, lock: bool = True, grouped: bool = True, held: bool = True, keep: bool = False, bound: bool = False,
    ahead: Days | None = None,
) -> duckdb.DuckDBPyConnection:  # fmt: skip
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
        ahead: the first and the last day (UTC; None is any) whose files will be read anyway: of a lake in a bucket they
            come together, several at once, and every other file when it is asked for.

    Raises:
        InputError: there is no lake at that place, or only a part of one.
    """
    whole.check(lake)
    reading = Reading(lake)
    try:
        con = silent()
        folders = reading.attach(con, ahead)
        files = {table: reading.of(table) for table in TABLES}
        whole.check_whole(lake, files)
        if held:
            weakref.finalize(con, reading.release)
        else:
            reading.release()
        set_files(con, files)
        if bound and (
            _size(path for paths in files.values() for path in paths) >= LARGE or _recorded(con, _UNITS) >= MANY
        ):
            _bound(con)
        if bound:
            progress.opens(sum(len(files[name]) for name in FACTS))
        joined = ["rounds"] if ahead in (None, (None, None)) and _are_large(files["rounds"]) else []
        _define_tables(con, lake, files, folders if lock else None, joined, keep=keep)
    except BaseException:
        reading.release()
        raise
    if grouped:
        define_grouping(con)
    return con


def connect_to(lake: Path, files: Mapping[str, Sequence[str]], threads: int) -> duckdb.DuckDBPyConnection:
    """Open some files of a lake as if they were all: a part of it, for whoever holds the lake as of one commit.

    Args:
        lake: folder of the lake.
        files: paths by table; a table without any row has one file, too.
        threads: how many DuckDB may take.

    Returns:
        A connection with the views of the lake itself; `define_grouping` adds the others.
    """
    con = silent()
    con.execute("set threads = $1", [threads])
    con.execute("set timezone = 'UTC'")
    con.execute("set variable lake = $1", [pattern_of(str(lake))])
    set_files(con, files)
    con.execute("set allowed_directories = $1", [[str(lake), pattern_of(str(lake))]])
    con.execute("set enable_external_access = false")
    con.execute(views.of_lake(con))
    _keep_copies(con)
    return con


def _define_tables(
    con: duckdb.DuckDBPyConnection, lake: Path, files: dict[str, list[str]], folders: list[str] | None,
    joined: Collection[str], *, keep: bool,
) -> None:  # fmt: skip
    con.execute("set timezone = 'UTC'")
    con.execute("set variable lake = $lake", {"lake": pattern_of(str(lake))})
    if folders is not None:
        con.execute("set allowed_directories = $1", [[*folders, *map(pattern_of, folders)]])
        con.execute("set enable_external_access = false")
    progress.connected(con)
    whole.check_version(con, lake)
    text = views.of_lake(con, joined)
    size = _size(path for paths in files.values() for path in paths)
    tiny = keep and (size <= TINY or _recorded(con, _RECORDS) <= FEW)
    if tiny:
        # Sums come out the same to the last digit, and nothing here is worth a second thread.
        con.execute("set threads = 1")
    with _of_known_types(con):
        for statement in con.extract_statements(text):
            con.execute(statement)
            name = _VIEW.search(statement.query)
            if keep and name is not None and name[1] in (_OF_LAKE if tiny else _BY_COMMIT):
                keep_view(con, name[1])
    if not tiny:
        _keep_copies(con)


@contextmanager
def _of_known_types(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Define views; where columns are of other types than they ask for, the error names the first.

    Raises:
        InputError: so it is.
    """
    import duckdb

    try:
        yield
    except (duckdb.BinderException, duckdb.ConversionException, duckdb.TypeMismatchException) as error:
        other = whole.of_other_types(con)
        if other is None:
            raise
        raise other from error


def set_files(con: duckdb.DuckDBPyConnection, files: Mapping[str, Sequence[str]]) -> None:
    """Name the files of every table: what the views of the connection read from now on.

    The largest goes first: DuckDB takes the first for all when it guesses how many rows there are. Behind the zero-row
    file that keeps a table alive it guesses none, and makes hash tables of the rounds to look the requests up in them.
    """
    named = {table: [pattern_of(path) for path in _largest_first(paths)] for table, paths in files.items()}
    con.execute("set variable lake_files = $files", {"files": named})


def _largest_first(paths: Sequence[str]) -> list[str]:
    sizes = [_size([path]) for path in paths]
    known = [i for i, size in enumerate(sizes) if not math.isinf(size)]
    first = max(known, key=lambda i: (sizes[i], -i), default=0)
    return [*paths[first : first + 1], *paths[:first], *paths[first + 1 :]]


def _size(paths: Iterable[str]) -> float:
    """Bytes of files; infinite where one can't be looked at: whoever reads it is told."""
    try:
        return sum(Path(path).stat().st_size for path in paths)
    except OSError:
        return math.inf


def _are_large(paths: Sequence[str]) -> bool:
    """Whether files of this machine are so large that their statistics spare more than opening each of them takes."""
    size = _size(paths)
    return not math.isinf(size) and size >= LARGE_FILE * len(paths)


def _bound(con: duckdb.DuckDBPyConnection) -> None:
    """Bound the memory: what does not fit goes to the connection's private folder.

    Without such a folder memory is what it takes.
    """
    import duckdb

    found = con.execute("select current_setting('temp_directory')").fetchone()
    folder = str(found[0] or "") if found else ""
    with suppress(duckdb.Error):
        if folder:
            con.execute(f"attach {_literal(f'{folder}/{SPILL}.db')} as {SPILL}")
            limit(con)
            con.execute("set preserve_insertion_order = false")


def limit(con: duckdb.DuckDBPyConnection, raised: int = 0) -> None:
    """Bound the memory to MEMORY; raised once, to TWICE, and raised again, to what DuckDB takes by itself."""
    bounds = (MEMORY, TWICE)
    con.execute("reset memory_limit" if raised >= len(bounds) else f"set memory_limit = '{bounds[raised]}'")
    con.execute("set variable bound_raised = $1", [raised])


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def has_spill(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the connection has a file for what it keeps."""
    return con.execute("from duckdb_databases() where database_name = $1", [SPILL]).fetchone() is not None


def answered(
    con: duckdb.DuckDBPyConnection, sql: str, values: Sequence[object] = ()
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names and rows of a statement; where the bound on memory is too low for it, with twice of it, then without.

    Too low it is, too, where there is no room for what does not fit.
    """
    import duckdb

    try:
        cursor = con.execute(sql, list(values))
        return [str(column[0]) for column in cursor.description or ()], cursor.fetchall()
    except duckdb.Error as error:
        if isinstance(error, (duckdb.OutOfMemoryException, duckdb.IOException)) and _raised(con):
            return answered(con, sql, values)
        broken = damage.named("", _files_of(con)) if damage.is_sign(error) else None
        if broken is not None:
            raise broken from error
        raise


def _raised(con: duckdb.DuckDBPyConnection) -> bool:
    """Raise the bound on memory by a step; False where there is none (any more)."""
    found = con.execute("select getvariable('bound_raised')").fetchone()
    if found not in ((0,), (1,)):
        return False
    limit(con, found[0] + 1)
    return True


@contextmanager
def aside(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let a bounded connection hold next to nothing in memory, while another one is at work beside it."""
    import duckdb

    found = con.execute("select getvariable('bound_raised')").fetchone()
    bound: int | None = found[0] if found else None
    if bound is not None:
        with suppress(duckdb.OutOfMemoryException):  # not all of it can go
            con.execute(f"set memory_limit = '{LITTLE}'")
    try:
        yield
    finally:
        if bound is not None:
            limit(con, bound)


def _files_of(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Paths of the files that a connection reads and that lie on this machine."""
    found = con.execute("select getvariable('lake_files')").fetchone()
    told: Mapping[str, Sequence[str]] = found[0] if found and found[0] else {}
    return {path: path for paths in told.values() for path in paths if Path(path).is_file()}


def keep_view(con: duckdb.DuckDBPyConnection, name: str, condition: str = "") -> None:
    """Turn a view into a table of the connection, seen under the view's name."""
    answered(con, f"create or replace table kept_{name} as select * from {name}{condition}")
    con.execute(f"create or replace view {name} as select * from kept_{name}")


def label_no_rounds(con: duckdb.DuckDBPyConnection) -> None:
    """Take the joins with an empty `request_traits` out of every plan over rounds, and the columns they read."""
    con.execute("create or replace view labelled_rounds as from rounds")


def kept(con: duckdb.DuckDBPyConnection) -> set[str]:
    """The views that are tables of the connection, or of its file."""
    found = con.execute(
        "select table_name from duckdb_tables() where starts_with(table_name, 'kept_')"
        " union all select view_name from duckdb_views() where starts_with(view_name, 'kept_')"
    ).fetchall()
    return {name.removeprefix("kept_") for (name,) in found}


def _recorded(con: duckdb.DuckDBPyConnection, what: str) -> float:
    """Sum of a figure of all sources, by the ledger; infinite where it does not say."""
    import duckdb

    ledger = "read_parquet(getvariable('lake_files')['sources'], union_by_name = true)"
    with suppress(duckdb.Error):  # a ledger of somebody else, without the column or with another in its place
        found = con.execute(f"select sum({what}) from {ledger}").fetchone()
        return math.inf if found is None or found[0] is None else float(found[0])
    return math.inf


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


def define_grouping(con: duckdb.DuckDBPyConnection, asked: str | None = None) -> None:
    """Define the views that group `facts`; of these only what `asked`, a statement, needs where one is given.

    Each of them binds everything below it: much quicker where `facts` was kept as a table before. All of them take a
    second and a half of a lake that is not.
    """
    if asked is None or _CATALOG.search(asked):
        con.execute(views.texts()[1])
        return
    needed: list[str] = []
    text = asked.lower()
    for name in reversed(views.grouping_views()):  # a view stands below those that it reads
        if re.search(rf"\b{name}\b", text):
            needed.append(views.definition(name))
            text += needed[-1]
    for statement in reversed(needed):
        con.execute(statement)
