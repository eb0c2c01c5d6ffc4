"""Which records of new sources are in the lake already, in another source: other bytes, the same records.

And which one of them holds twice itself, as a shipper sent them again: `again.py` says where to look.

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
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.ingest import again, copies_sql
from tracelens.lake import journal, ledger, shared
from tracelens.lake.parquet import statistics
from tracelens.lake.schema import DAY_OF, FACTS

if TYPE_CHECKING:
    import duckdb

# Two gateways stamp one request so far apart at most; a wrapping's stamp is no further from the log's own.
_APART = 5_000_000  # us
_EPOCH, _MICROSECOND = dt.datetime(1970, 1, 1), dt.timedelta(microseconds=1)
_EVER = 1 << 62
# Footers that are remembered: each commit of an ingest asks for those of all files of its days.
_FOOTERS = 1 << 15

Found = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a table: its source, its place, and the stamps that it covers (None where nobody can tell)."""

    source: str
    path: str
    day: str
    low: dt.datetime | None
    high: dt.datetime | None

    def begins(self) -> int:
        """Microseconds since 1970 from which on it may have records."""
        return -_EVER if self.low is None or self.high is None else (self.low - _EPOCH) // _MICROSECOND

    def ends(self) -> int:
        """Microseconds since 1970 until which it may have records."""
        return _EVER if self.low is None or self.high is None else (self.high - _EPOCH) // _MICROSECOND


def find(root: Path, staged: Path, rows: Sequence[Mapping[str, Any]], left: Iterable[ledger.Entry]) -> Found:
    """Records of new sources that another source holds, too. Needs the lake's lock.

    Args:
        root: folder of the lake.
        staged: folder where the files of the new sources lie.
        rows: ledger rows of the new sources, with their `_files`; of two new ones the later is the copy.
        left: sources that stay in the lake.

    Returns:
        Source -> other source -> lines of the first, as `lines_of` writes them; those without copies are left out. What
        a source holds twice has itself as the other one, and the lines behind the first of each record.
    """
    pairing = _Pairing(rows, left)
    order = list(pairing.order)
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    con: duckdb.DuckDBPyConnection | None = None
    every: dict[str, list[_File]] = {}
    for table in FACTS:
        mine = [f for r in rows for f in _files(table, r["source_id"], {n: str(staged / n) for n in r["_files"]})]
        if not mine:
            continue
        every[table] = mine
        meeting, files = _meeting(mine, _theirs(mine, root, table, pairing.wanted), pairing)
        if not meeting:
            continue
        con = con or _connection(staged)
        begun = _begun(rows, pairing.others, meeting)
        merged = [path for path in files if shared.is_shared(path)]
        for source, other, *lines in copies_sql.same(con, table, sorted(files), sorted(meeting), begun, merged, order):
            found.setdefault((source, other), []).append((lines[0], lines[1]))
    twice = again.suspects({table: [(f.source, f.path) for f in mine] for table, mine in every.items()})
    if twice:
        con = con or _connection(staged)
        for source, other, *lines in again.repeated(con, twice):
            found.setdefault((source, other), []).append((lines[0], lines[1]))
    if con is not None:
        con.close()
    out: Found = {}
    for (source, other), ranges in sorted(found.items()):
        out.setdefault(source, {})[other] = lines_of(ranges)
    return out


class _Pairing:
    """Which sources may be copies of which; never as a list of pairs: a lake of 10,000 files has fifty million.

    Attributes:
        order: the new sources and their places; of two of them the later is the copy.
        others: sources that stay in the lake.
        wanted: those of them that have a surface of some new source.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], left: Iterable[ledger.Entry]) -> None:
        self.order = {r["source_id"]: i for i, r in enumerate(rows)}
        self.others = {e.source_id: e for e in left}
        self._surfaces = {r["source_id"]: frozenset(r["surfaces"]) for r in rows}
        every = frozenset[str]().union(*self._surfaces.values())
        self.wanted = {o for o, e in self.others.items() if o not in self.order and e.surfaces & every}

    def has(self, one: str, other: str) -> bool:
        """Whether the new source `one` may be a copy of the other one."""
        if other in self.order:
            return self.order[other] < self.order[one] and not self._surfaces[one].isdisjoint(self._surfaces[other])
        # A source that is read again keeps its name: what was found to be a copy of it is no original of it.
        entry = self.others.get(other)
        return entry is not None and one not in entry.same_as and not self._surfaces[one].isdisjoint(entry.surfaces)


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


def _theirs(mine: Sequence[_File], root: Path, table: str, wanted: set[str]) -> list[_File]:
    """Files of a table in the lake that are of some sources, of the days of the new ones."""
    days = {f.day for f in mine}
    names: dict[str, dict[str, str]] = {}
    theirs: list[_File] = []
    live = journal.live(root, (table,))
    for name in live:
        if _day_of(name) not in days:
            continue
        source = shared.head_of(name)
        if source in wanted:
            names.setdefault(source, {})[name] = live[name]
        elif source == shared.MERGED:  # rolled-up rows are of no line, and like no record
            theirs += _parts(table, name, live[name], wanted)
    return theirs + [f for source, found in names.items() for f in _files(table, source, found)]


def _meeting(
    mine: Sequence[_File], theirs: Sequence[_File], pairing: _Pairing
) -> tuple[set[tuple[str, str]], set[str]]:
    """The pairs of sources that may hold the same record of a table, and their files."""
    import numpy as np

    days: dict[str, tuple[list[_File], list[_File]]] = {}
    for one in mine:
        days.setdefault(one.day, ([], []))[0].append(one)
    for other in (*theirs, *mine):
        if other.day in days:
            days[other.day][1].append(other)
    meeting: set[tuple[str, str]] = set()
    files: set[str] = set()
    for new, every in days.values():
        # Most files of a day are of other hours: of ten thousand a few meet.
        lows, highs = (np.asarray([edge(f) for f in every]) for edge in (_File.begins, _File.ends))
        for one in new:
            for i in np.flatnonzero((lows <= one.ends() + _APART) & (highs >= one.begins() - _APART)).tolist():
                other = every[i]
                if other.source != one.source and pairing.has(one.source, other.source):
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
    stat = Path(path).stat()
    return _extent_of(path, column, (stat.st_ino, stat.st_size, stat.st_mtime_ns))


@lru_cache(_FOOTERS)
def _extent_of(path: str, column: str, of: tuple[int, ...]) -> tuple[dt.datetime | None, dt.datetime | None]:
    import pyarrow.parquet as pq

    parts = statistics(pq.read_metadata(path), column)
    told = [p for p in parts if p is not None and p.has_min_max and not p.null_count]
    if not parts or len(told) < len(parts):
        return None, None
    return min(p.min for p in told), max(p.max for p in told)
