"""Which records of new sources are in the lake already, in another source: other bytes, the same records.

Copies that the ledger cannot know by their content: logs that overlap, a tail of a log, a log in another wrapping
(docker JSON and plain text), one request in the logs of two gateways. Records are the same where engine, surface,
replica, stamp and all measured values are: ids alone are used again, counts alone are alike by chance. Two sources are
taken for copies of each other only where most records of the time that both cover are the same; a few equal ones are
retries or chance. Nothing is taken away: the ledger's `same_as` names the lines, and views pass over them while the
other source is there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.ingest import copies_sql
from tracelens.lake import journal, ledger, shared
from tracelens.lake.schema import DAY_OF, FACTS

if TYPE_CHECKING:
    import duckdb

# Two gateways stamp one request so far apart at most; a wrapping's stamp is no further from the log's own.
_APART = dt.timedelta(seconds=5)

Found = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a table: its source, its place, and the stamps that it covers (None where nobody can tell)."""

    source: str
    path: str
    day: str
    low: dt.datetime | None
    high: dt.datetime | None

    def meets(self, other: _File) -> bool:
        """Whether both may hold the same record."""
        if self.day != other.day or self.source == other.source:
            return False
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return True
        return self.low <= other.high + _APART and other.low <= self.high + _APART


def find(root: Path, staged: Path, rows: Sequence[Mapping[str, Any]], left: Iterable[ledger.Entry]) -> Found:
    """Records of new sources that another source holds, too. Needs the lake's lock.

    Args:
        root: folder of the lake.
        staged: folder where the files of the new sources lie.
        rows: ledger rows of the new sources, with their `_files`; of two new ones the later is the copy.
        left: sources that stay in the lake.

    Returns:
        Source -> other source -> lines of the first, as `lines_of` writes them; those without copies are left out.
    """
    others = {e.source_id: e for e in left}
    order = [r["source_id"] for r in rows]
    surfaces = {r["source_id"]: frozenset(r["surfaces"]) for r in rows}
    pairs: set[tuple[str, str]] = set()
    for i, one in enumerate(order):
        # A source that is read again keeps its name: what was found to be a copy of it is no original of it.
        old = [e.source_id for e in others.values() if one not in e.same_as and e.source_id not in surfaces]
        pairs |= {(one, o) for o in old if others[o].surfaces & surfaces[one]}
        pairs |= {(one, o) for o in order[:i] if surfaces[o] & surfaces[one]}
    begun = _begun(rows, others, pairs)
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    con: duckdb.DuckDBPyConnection | None = None
    for table in FACTS if pairs else ():
        mine = [f for r in rows for f in _files(table, r["source_id"], {n: str(staged / n) for n in r["_files"]})]
        meeting, files = _meeting(mine, root, table, pairs)
        if not meeting:
            continue
        con = con or _connection(staged)
        merged = [path for path in files if shared.is_shared(path)]
        for source, other, *lines in copies_sql.same(con, table, sorted(files), sorted(meeting), begun, merged, order):
            found.setdefault((source, other), []).append((lines[0], lines[1]))
    if con is not None:
        con.close()
    out: Found = {}
    for (source, other), ranges in sorted(found.items()):
        out.setdefault(source, {})[other] = lines_of(ranges)
    return out


def unseen(root: Path, rows: Sequence[Mapping[str, Any]], left: Iterable[ledger.Entry]) -> dict[str, str]:
    """New sources with rounds of a day that other sources of their kind have rolled up. Needs the lake's lock.

    Rolled-up rounds have no line and no time of their own, so no record of a new source is known among them.

    Returns:
        Source -> the first such day.
    """
    merged = [e for e in left if e.is_merged]
    days = {_day_of(n) for r in rows for n in r["_files"] if n.startswith("rounds/")} if merged else set()
    names = journal.live(root, ("rounds",)) if days else {}
    files = [(n, path) for n, path in names.items() if shared.head_of(n) == shared.ROLLED and _day_of(n) in days]
    found: dict[str, str] = {}
    for row in rows if files else ():
        alike = {e.source_id for e in merged if e.surfaces & set(row["surfaces"])}
        mine = {_day_of(n) for n in row["_files"] if n.startswith("rounds/")}
        there = [_day_of(n) for n, path in files if _day_of(n) in mine and alike & shared.sources_in(path)]
        if there:
            found[row["source_id"]] = min(there).removeprefix("date=")
    return found


def _begun(
    rows: Sequence[Mapping[str, Any]], others: Mapping[str, ledger.Entry], pairs: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Pairs of which one is a shorter copy of the other, as far as the ledger's digests of beginnings tell.

    They are four an octave: at least five sixths of the shorter one. What is behind them is compared record by record.
    """
    found = set()
    prefixes = {r["source_id"]: {int(n): d for n, d in r["prefixes"].items()} for r in rows}
    prefixes |= {name: dict(e.prefixes) for name, e in others.items() if name not in prefixes}
    for one, other in pairs:
        mine, theirs = prefixes[one], prefixes[other]
        last = min(max(mine, default=0), max(theirs, default=0))
        if last and mine.get(last) == theirs.get(last):
            found.add((one, other))
    return found


def lines_of(ranges: Iterable[tuple[int, int]]) -> str:
    """Lines, from one to another, as the ledger writes them: `1-40,52`."""
    joined: list[list[int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in joined)


def _connection(staged: Path) -> duckdb.DuckDBPyConnection:
    from tracelens.lake.connection import limit, silent

    con = silent()
    con.execute("set timezone = 'UTC'")
    # What outgrows the memory goes where rows are staged.
    con.execute("set temp_directory = $1", [str(staged / "spill")])
    limit(con)
    return con


def _meeting(
    mine: Sequence[_File], root: Path, table: str, pairs: set[tuple[str, str]]
) -> tuple[set[tuple[str, str]], set[str]]:
    """The pairs of sources that may hold the same record of a table, and their files."""
    days = {f.day for f in mine}
    wanted = {other for _, other in pairs}
    names: dict[str, dict[str, str]] = {}
    theirs: list[_File] = []
    live = journal.live(root, (table,)) if mine else {}
    for name in live:
        if _day_of(name) not in days:
            continue
        source = shared.head_of(name)
        if source in wanted:
            names.setdefault(source, {})[name] = live[name]
        elif source == shared.MERGED:  # rolled-up rows are of no line, and like no record
            theirs += _parts(table, name, live[name], wanted)
    theirs += [f for source, found in names.items() for f in _files(table, source, found)]
    meeting: set[tuple[str, str]] = set()
    files: set[str] = set()
    for one in mine:
        for other in (*theirs, *mine):
            if (one.source, other.source) in pairs and one.meets(other):
                meeting.add((one.source, other.source))
                files |= {one.path, other.path}
    return meeting, files


def _day_of(name: str) -> str:
    return name.split("/")[-2]


def _files(table: str, source: str, paths: Mapping[str, str]) -> list[_File]:
    """The files of one source and table among some, by their names in the lake, with what their footers say."""
    return [
        _File(source, path, _day_of(name), *_extent(path, DAY_OF[table]))
        for name, path in paths.items()
        if name.startswith(f"{table}/")
    ]


def _parts(table: str, name: str, path: str, wanted: set[str]) -> list[_File]:
    """The parts of a merged file that are of some sources, as if each were a file."""
    import pyarrow.parquet as pq

    here = wanted & shared.sources_in(path)
    if not here:
        return []
    rows = pq.ParquetFile(path).read(columns=["source_id", DAY_OF[table]]).rename_columns(["source", "at"])
    found = rows.group_by("source").aggregate([("at", "min"), ("at", "max"), ("at", "count"), ([], "count_all")])
    parts = []
    for part in found.to_pylist():
        if part["source"] in here:
            told = part["at_count"] == part["count_all"]
            low, high = (part["at_min"], part["at_max"]) if told else (None, None)
            parts.append(_File(part["source"], path, _day_of(name), low, high))
    return parts


def _extent(path: str, column: str) -> tuple[dt.datetime | None, dt.datetime | None]:
    """The first and the last stamp of a file; None where its footer does not tell or some rows have none."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    at = footer.schema.names.index(column) if column in footer.schema.names else -1
    parts = [footer.row_group(i).column(at).statistics for i in range(footer.num_row_groups)] if at >= 0 else [None]
    told = [p for p in parts if p is not None and p.has_min_max and not p.null_count]
    if not parts or len(told) < len(parts):
        return None, None
    return min(p.min for p in told), max(p.max for p in told)
