"""A question in SQL over the views of a lake: one statement that only reads."""

from __future__ import annotations

import difflib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tracelens.analysis.asked import encodable
from tracelens.analysis.selection import steady
from tracelens.errors import InputError
from tracelens.lake import progress
from tracelens.resources import room

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Answer = TypeVar("Answer")
#: A question may take so long, where nobody says otherwise.
SECONDS = 600.0
_AGAIN = 0.02
_CHUNK = 10_000
_BATCH = 122_880  # a row group of Parquet, as in the lake
# Types of DuckDB that become other bytes or nothing at all in Arrow.
_ODD = ("BIT", "UNION", "VARIANT", "TIME WITH TIME ZONE", "BIGNUM", "GEOMETRY")
_VIEWS = "views"  # queries/views.sql makes the views and is no question


def named() -> dict[str, str]:
    """The named queries: file stem and the question of its header."""
    return {p.stem: _question(p) for p in sorted(room("queries").glob("*.sql")) if p.stem != _VIEWS}


def listed() -> tuple[list[str], Iterator[Sequence[Any]]]:
    """The named queries as rows."""
    return ["query", "question"], iter(named().items())


def _question(path: Path) -> str:
    """The first paragraph of the header comment, without its tag."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("--").strip()
        if not line.startswith("--") or (not text and words):
            break
        if words and ":" in text.split(" ")[0]:
            break
        words.append(text)
    first = " ".join(filter(None, words))
    return first[len("question:") :].strip() if first.lower().startswith("question:") else first


def sql_of(what: str) -> str:
    """The SQL of a named query, or the text itself.

    Raises:
        InputError: one word that names no query.
    """
    text = encodable(what, "SQL").strip()
    if not text.replace("-", "_").isidentifier():
        return text
    names = named()
    name = text if text in names else text.replace("-", "_")
    if name in names:
        return (room("queries") / f"{name}.sql").read_text(encoding="utf-8")
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError(f'no query is named {text!r}: {hint}named queries: {", ".join(names)}; or write SQL: "FROM facts"')


@dataclass(frozen=True, slots=True)
class Limits:
    """What one question may take: seconds until its last row (None: no end), and memory as DuckDB writes it (4GB)."""

    seconds: float | None = SECONDS
    memory: str | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds <= threading.TIMEOUT_MAX:
            raise InputError(f"--time-limit is a number of seconds above 0, not {self.seconds:g}; 0 is no limit")
        if self.memory is not None and not re.fullmatch(r"[1-9][0-9]{0,8} ?(KB|MB|GB|TB|KiB|MiB|GiB|TiB)", self.memory):
            raise InputError(f"--memory-limit is a size such as 4GB or 512MiB, not {self.memory!r}")


DEFAULT = Limits()


def ask(lake: Path, sql: str, limits: Limits = DEFAULT) -> tuple[list[str], Iterator[Sequence[Any]]]:
    """Run one reading statement on the lake; returns its column names and its rows, read as they are asked for.

    Raises:
        InputError: no lake, no or several statements, a statement that writes, SQL that DuckDB refuses, or a question
            that takes more than its limits (also while the rows are read).
    """
    import duckdb

    con = _opened(lake, sql)
    clock = Clock(con, limits)
    try:
        with clock:
            steady(con)
            cursor = _bound(con, sql, con.execute)
            names = [str(column[0]) for column in cursor.description or ()]
            first = cursor.fetchmany(_CHUNK)
    except duckdb.Error as error:
        raise _refused(error, con, limits) from error
    return names, _rows(con, first, clock, limits)


def _opened(lake: Path, sql: str) -> duckdb.DuckDBPyConnection:
    from tracelens.lake.connection import connect, define_grouping

    con = connect(lake, keep=True, grouped=False)
    define_grouping(con, sql)
    if _counts_rows(sql) and con.execute(_ROLLED).fetchone() == (True,):
        progress.notice(
            "rounds of old days are rolled up: a row stands for `weight` of them; sum(drafted * weight) counts all"
        )
    return con


# Rolled-up files are named so (`lake.shared`).
_ROLLED = "select len(list_filter(getvariable('lake_files')['rounds'], lambda f: f like '%/rolled-%')) > 0"


def _counts_rows(sql: str) -> bool:
    """Whether the rounds in it are counted, as it seems, a row each."""
    if sql.lstrip().startswith("--"):  # a named query, which begins with its question
        return False
    words = set(re.findall(r"\w+", sql.lower()))
    return bool(words & {"rounds", "facts"}) and not words & {"weight", "strata"}


def _bound(con: duckdb.DuckDBPyConnection, sql: str, run: Callable[[duckdb.Statement], Answer]) -> Answer:
    """Run the statement; where it names what is not there, with all views there, so that DuckDB can say what is."""
    import duckdb

    from tracelens.lake.connection import define_grouping

    try:
        return run(_statement(con, sql))
    except duckdb.CatalogException:
        define_grouping(con)
        return run(_statement(con, sql))


class Clock:
    """Holds a connection to its limits: the time that DuckDB works, not that of whoever reads the rows.

    Its thread lives while DuckDB works, so that an answer nobody reads to its end leaves none behind.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, limits: Limits) -> None:
        if limits.memory is not None:
            con.execute("set memory_limit = $1", [limits.memory])
        self._con, self._left = con, limits.seconds
        self._watch: threading.Thread | None = None
        self._done = threading.Event()
        self._begun = 0.0

    def __enter__(self) -> None:
        if self._left is not None:
            self._begun = time.monotonic()
            self._done.clear()
            self._watch = threading.Thread(target=self._interrupt, args=(max(self._left, 0.0),), daemon=True)
            self._watch.start()

    def _interrupt(self, seconds: float) -> None:
        """Interrupt again and again: between two statements there is nothing that an interrupt would end."""
        wait = seconds
        while not self._done.wait(wait):
            self._con.interrupt()
            wait = _AGAIN

    def __exit__(self, *_: object) -> None:
        if self._watch is not None and self._left is not None:
            self._done.set()
            self._watch.join()
            self._left -= time.monotonic() - self._begun

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._left is not None and self._left <= 0


def _stopped(limits: Limits) -> str:
    if limits.seconds is None:
        return "stopped"
    return f"stopped after {limits.seconds:g} s: narrow the question (--time-limit allows more; 0 has no end)"


def reason(error: Exception, limits: Limits) -> str | None:
    """What was too much of a question; None where it is another error."""
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return _stopped(limits)
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"SQL: {error}\nnarrow the question, or allow more by --memory-limit"
    return None


@contextmanager
def read(lake: Path, sql: str, limits: Limits = DEFAULT) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Run one reading statement on the lake; gives its Arrow schema and its batches, read as they are asked for.

    Raises:
        InputError: as `ask`; a column of a type that Arrow tells otherwise than SQL does.
    """
    import duckdb

    con = _opened(lake, sql)
    try:
        clock = Clock(con, limits)
        with clock:
            steady(con)
            relation = _bound(con, sql, con.sql)
            _check_types(relation)
            reader = relation.to_arrow_reader(_BATCH)
        yield reader.schema, _batches(reader, clock, limits)
    except duckdb.Error as error:
        raise _refused(error, con, limits) from error
    finally:
        con.close()


def _batches(reader: pa.RecordBatchReader, clock: Clock, limits: Limits) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    while True:
        try:
            with clock:
                batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:  # what Arrow makes of an error of DuckDB
            raise InputError(_stopped(limits) if clock.is_over else f"SQL: {error}") from error
        yield batch


def _statement(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    import duckdb

    statements = con.extract_statements(sql)
    if len(statements) != 1:
        raise InputError(f"one statement is needed and {len(statements)} were given: write one SELECT")
    kind = statements[0].type
    # EXPLAIN is none: with ANALYZE it carries out what it explains, also a COPY into the lake.
    if kind != duckdb.StatementType.SELECT:
        raise InputError(f"query only reads: {kind.name} is not allowed; write a SELECT")
    return statements[0]


def _check_types(relation: duckdb.DuckDBPyRelation) -> None:
    for name, kind in zip(relation.columns, map(str, relation.types), strict=True):
        told = re.sub("'[^']*'|\"[^\"]*\"", "", kind)  # without the values of an ENUM and quoted names
        odd = next((word for word in _ODD if re.search(rf"\b{word}\b", told)), None)
        odd = "nested INTERVAL" if odd is None and "INTERVAL" in told and told != "INTERVAL" else odd
        if odd is not None:
            raise InputError(f"SQL: column {name} is a {odd}, which Parquet and Arrow do not have: cast it to VARCHAR")


def _rows(con: Any, first: list[Any], clock: Clock, limits: Limits) -> Iterator[Sequence[Any]]:
    import duckdb

    chunk = first
    while chunk:
        yield from chunk
        try:
            with clock:
                chunk = con.fetchmany(_CHUNK)
        except duckdb.Error as error:
            raise InputError(reason(error, limits) or f"SQL: {error}") from error


def _refused(error: Exception, con: Any, limits: Limits) -> InputError:
    import duckdb

    too_much = reason(error, limits)
    if too_much is not None:
        return InputError(too_much)
    from tracelens.lake.connection import define_grouping

    try:
        define_grouping(con)
        views = [row[0] for row in con.execute("select view_name from duckdb_views() where not internal").fetchall()]
    except duckdb.Error:
        views = []
    return InputError(f"SQL: {error}\nViews: {', '.join(sorted(views))}\nNamed queries: {', '.join(named())}")
