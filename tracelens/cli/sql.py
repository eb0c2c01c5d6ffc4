"""A question in SQL over the views of a lake: one statement that only reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.resources import room

_CHUNK = 10_000
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
    text = what.strip()
    if not text.replace("-", "_").isidentifier():
        return text
    names = named()
    name = text if text in names else text.replace("-", "_")
    if name in names:
        return (room("queries") / f"{name}.sql").read_text(encoding="utf-8")
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError(f'no query is named {text!r}: {hint}named queries: {", ".join(names)}; or write SQL: "FROM facts"')


def ask(lake: Path, sql: str) -> tuple[list[str], Iterator[Sequence[Any]]]:
    """Run one reading statement on the lake; returns its column names and its rows, read as they are asked for.

    Raises:
        InputError: no lake, no or several statements, a statement that writes, or SQL that DuckDB refuses.
    """
    import duckdb

    from tracelens.lake.connection import connect

    con = connect(lake)
    try:
        statements = con.extract_statements(sql)
        if len(statements) != 1:
            raise InputError(f"one statement is needed and {len(statements)} were given: write one SELECT")
        kind = statements[0].type
        # EXPLAIN is none: with ANALYZE it carries out what it explains, also a COPY into the lake.
        if kind != duckdb.StatementType.SELECT:
            raise InputError(f"query only reads: {kind.name} is not allowed; write a SELECT")
        cursor = con.execute(statements[0])
        names = [str(column[0]) for column in cursor.description or ()]
        first = cursor.fetchmany(_CHUNK)
    except duckdb.Error as error:
        raise _refused(error, con) from error
    return names, _rows(con, first)


def _rows(con: Any, first: list[Any]) -> Iterator[Sequence[Any]]:
    import duckdb

    chunk = first
    while chunk:
        yield from chunk
        try:
            chunk = con.fetchmany(_CHUNK)
        except duckdb.Error as error:
            raise InputError(f"SQL: {error}") from error


def _refused(error: Exception, con: Any) -> InputError:
    import duckdb

    try:
        views = [row[0] for row in con.execute("select view_name from duckdb_views() where not internal").fetchall()]
    except duckdb.Error:
        views = []
    return InputError(f"SQL: {error}\nViews: {', '.join(sorted(views))}\nNamed queries: {', '.join(named())}")
