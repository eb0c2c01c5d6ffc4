"""A lake in parts: its rounds over many executors, the sums of the parts added up for the queries of one question.

The lake is read as of one commit, held by the session's own connection; its files are what the executors open, at the
same paths. Files of rounds are dealt out; requests and windows, a row for some hundred rounds, are one part of their
own, for which surfaces tell of one request is known by all of them together. What a row of rounds needs of the rest
(which grain counts, the constants of its run, what only the request knew) is worked out first and goes to every part.
So parts may be cut anywhere: all that is left are sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens import __version__
from tracelens.analysis import partials
from tracelens.analysis.matching import has_subquery
from tracelens.errors import InputError
from tracelens.executors import Executor
from tracelens.lake import progress
from tracelens.lake.connection import connect_to, keep_view, label_no_rounds
from tracelens.lake.place import path_of
from tracelens.lake.schema import FACTS, TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: A part of the rounds is about so large: a second or two of one core, bytes.
PART_BYTES = 64 << 20
_MOST_PARTS = 2000
# What a question defines, each after what it reads.
_ASKED = ("selected", "strata", "every_baseline", "baseline_facts", "every_control", "control_facts")
_VARIABLES = ("near_k_delta", "near_k_threshold", "baseline_ms", "baseline_run", "all_possible", "rounds_held")
# Small views that every row of rounds needs.
_KNOWN = ("held", "superseded", "run_traits", "request_traits")
_REST = "rest"
# By whether a part is the rest: what it holds no row of.
_ABSENT = {
    False: ("logged_windows", "logged_requests", "windows", "requests", "requests_joined"),
    True: ("logged_rounds", "rounds"),
}


@dataclass(frozen=True, slots=True)
class Common:
    """What is the same for every part of one job: where the lake lies, what is known of it, and what is asked.

    `wanted` are queries by name, `known` views as Arrow streams, `asked` statements in order, `others` the files of all
    tables but rounds, `smallest` a file of each table of facts, for its columns.
    """

    version: tuple[str, str]
    lake: str
    others: Mapping[str, Sequence[str]]
    smallest: Mapping[str, str]
    wanted: Mapping[str, str]
    known: Mapping[str, bytes] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    threads: int = 1


class Parts:
    """The parts of a lake that a connection holds open, and the executor that answers them.

    Args:
        con: a connection to the whole lake.
        lake: folder of the lake.
        executor: what answers the parts.
        where: the filter of the question.

    Raises:
        InputError: the filter asks for more than the row at hand, which a part can't answer.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, lake: Path, executor: Executor, where: str | None) -> None:
        if where is not None and has_subquery(con, where):
            raise InputError(
                f"--where {where!r} holds a query of its own, which an executor would answer from its part of the lake "
                "alone: write it without, or leave --executor out"
            )
        self._con = con
        self._lake = lake.absolute()
        self._executor = executor
        row = con.execute("select getvariable('lake_files')").fetchone()
        files: dict[str, list[str]] = row[0] if row else {}
        self._files = {name: [str(Path(path_of(path)).absolute()) for path in files[name]] for name in TABLES}
        self._rounds = _dealt(self._files["rounds"], executor.slots)

    def keep_of_lake(self) -> None:
        """Keep what the views of the lake need of its rounds, as `keep_small_tables` does for a lake in one piece."""
        self._keep(self._common(partials.of_lake()))

    def keep_of_question(self) -> None:
        """Keep the sums of the question that the connection's views are of."""
        con = self._con
        views = dict(con.execute("select view_name, sql from duckdb_views() where not internal").fetchall())
        asked = [views[name].replace("CREATE VIEW", "create or replace view", 1) for name in _ASKED]
        wanted = partials.of_question()
        asked += partials.helpers(wanted.values(), {*_ASKED, *wanted})
        values = {name: _value(con, name) for name in _VARIABLES}
        known = {name: _stream(con.cursor().sql(f"from kept_{name}").to_arrow_table()) for name in _KNOWN}
        self._keep(self._common(wanted, known, values, tuple(asked)))

    def _common(
        self,
        wanted: Mapping[str, str],
        known: Mapping[str, bytes] | None = None,
        variables: Mapping[str, Any] | None = None,
        asked: tuple[str, ...] = (),
    ) -> Common:
        others = {name: paths for name, paths in self._files.items() if name != "rounds"}
        smallest = {name: _smallest(self._files[name]) for name in FACTS}
        return Common(_versions(), str(self._lake), others, smallest, wanted, known or {}, variables or {}, asked)

    def _keep(self, common: Common) -> None:
        for name, sql in common.wanted.items():
            partials.begin(self._con, name, sql)
        tasks: list[Any] = [_REST, *self._rounds]
        progress.expect(len(tasks))
        for answered in self._executor.run(answer, common, tasks):
            for name, stream in answered.items():
                partials.add(self._con, name, _table(stream))
            progress.step()
        for name in common.wanted:
            partials.finish(self._con, name)


def answer(common: Common, part: Any) -> dict[str, bytes]:
    """In an executor: the wanted views over one part, as Arrow streams; a view without rows is left out.

    Raises:
        InputError: another tracelens or DuckDB here, or a lake that can't be seen from here.
    """
    _check(common, part)
    con = connect_to(Path(common.lake), _files_of(common, part), common.threads)
    try:
        # What the part has not is an empty table, not a view that every statement binds and plans again.
        for name in _ABSENT[part == _REST]:
            keep_view(con, name, " where false")
        for name, value in common.variables.items():
            con.execute(f"set variable {name} = $1", [value])
        for name, stream in common.known.items():
            con.register("arrived", _table(stream))
            con.execute(f"create or replace table kept_{name} as select * from arrived")
            con.execute(f"create or replace view {name} as select * from kept_{name}")
        if "request_traits" in common.known and not _table(common.known["request_traits"]).num_rows:
            label_no_rounds(con)
        for statement in common.asked:
            con.execute(statement)
        found = {name: con.sql(sql).to_arrow_table() for name, sql in common.wanted.items()}
    finally:
        con.close()
    return {name: _stream(table) for name, table in found.items() if table.num_rows}


def _files_of(common: Common, part: Any) -> dict[str, Sequence[str]]:
    """The files of a part; one without rows, or whose rows are taken out again, gives a table its columns."""
    if part == _REST:
        return {**common.others, "rounds": [common.smallest["rounds"]]}
    return {**common.others, "rounds": part, **{name: [common.smallest[name]] for name in ("windows", "requests")}}


def _check(common: Common, part: Any) -> None:
    if _versions() != common.version:
        raise InputError(
            f"the executors run tracelens {_versions()[0]} with DuckDB {_versions()[1]}, and this machine "
            f"{common.version[0]} with {common.version[1]}: sums of two versions do not add up; install the same"
        )
    paths = [common.lake, *(part if part != _REST else common.others["requests"])]
    unseen = next((path for path in paths if not Path(path).exists()), None)
    if unseen is not None:
        raise InputError(
            f"the executors do not see {unseen}: the lake must lie in a folder that is the same path on every machine "
            "(a shared disk)"
        )


def _versions() -> tuple[str, str]:
    import duckdb

    return __version__, str(duckdb.__version__)


def _dealt(files: Sequence[str], slots: int) -> list[tuple[str, ...]]:
    """Files of rounds in parts of about equal size, those of one source side by side: then few requests are cut.

    At least a part for every slot, as far as there are files.
    """
    sizes = {path: Path(path).stat().st_size for path in files}
    most = min(PART_BYTES, sum(sizes.values()) // max(1, slots) + 1)
    most = max(most, sum(sizes.values()) // _MOST_PARTS)
    parts: list[tuple[str, ...]] = []
    taken: list[str] = []
    size = 0
    for path in sorted(files, key=lambda path: (Path(path).name, path)):
        if taken and size + sizes[path] > most:
            parts.append(tuple(taken))
            taken, size = [], 0
        taken.append(path)
        size += sizes[path]
    return [*parts, tuple(taken)] if taken else parts


def _smallest(files: Sequence[str]) -> str:
    return min(files, key=lambda path: Path(path).stat().st_size)


def _value(con: duckdb.DuckDBPyConnection, name: str) -> Any:
    row = con.execute(f"select getvariable('{name}')").fetchone()
    return row[0] if row else None


def _stream(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(stream: bytes) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(stream).read_all()
