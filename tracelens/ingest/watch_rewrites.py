"""A log that was written anew in its place: which of the rows that were read of it before stay in the lake.

A file may hold other content than before under the same name and inode: somebody edited or cut it, or it was truncated
and begun anew. Bytes do not tell the one from the other, as the earlier content is gone; the records do, by their times
and ids. Where the new reading holds records of the old one, it is the same log, and the old reading gives way. Only
where the new reading begins in the middle of the old one (somebody kept the end of the log) the rows before that stay:
they are nowhere else. Where no record of the old reading is in the new one, the log was begun anew, and both stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.ingest.watch_state import Changed, Note, State
from tracelens.lake import journal, ledger, shared
from tracelens.lake.connection import silent
from tracelens.lake.schema import DAY_OF
from tracelens.lake.store import Transaction
from tracelens.sources.discover import SourceFile
from tracelens.sources.follow import begins_with
from tracelens.wording import many, noun

Alike = Callable[[bytes, Path | None], list[SourceFile]]

# What tells a record apart, its time and its name in the log; the place in a file does not.
_NAME = "case when request_id = source_id || '#' || source_line then null else request_id end"
_KEYS = {
    "rounds": {"stamp": "ts", "a": _NAME, "b": "round_index", "c": "step_id"},
    "windows": {"stamp": "ts_end", "a": "ts_start"},
    "requests": {"stamp": "ts_end", "a": _NAME, "b": "ts_start"},
}
_SAME_EVERYWHERE = {"surface": "surface", "replica": "replica", "process": "process"}
_DATED = ("absolute", "year_inferred")


@dataclass(frozen=True, slots=True)
class _News:
    """A source that a file is with the next commit, and what is to be told of it."""

    state: State
    one: Changed
    source: str
    note: Note | None


class Rewrites:
    """Which source each file of a watch was, and what becomes of it when the file holds other content."""

    def __init__(self) -> None:
        self._states: Mapping[tuple[int, int], State] = {}
        self._alike: Callable[[], Alike] = lambda: lambda head, path: []
        self._apart: float | None = None
        self._reads: dict[Path, Changed] = {}
        self._news: list[_News] = []
        self._alone: list[SourceFile] = []

    def look(self, states: Mapping[tuple[int, int], State], alike: Callable[[], Alike], apart: float | None) -> None:
        """A look begins, so many seconds after the one before; `alike` makes what finds the files that begin alike."""
        self._states, self._alike, self._apart = states, alike, apart
        self._reads, self._news, self._alone = {}, [], []

    def reads(self, group: Sequence[Changed]) -> None:
        """The files of the next reading."""
        self._reads = {one.file.path.absolute(): one for one in group if one.file.path is not None}

    def amend(self, txn: Transaction, rows: Sequence[Mapping[str, Any]], left: ledger.Ledger) -> list[ledger.Entry]:
        """Sources that a commit is to take out of the lake: readings of a file whose content is another one now."""
        known = {e.source_id: e for e in left.entries}
        gone: list[ledger.Entry] = []
        for row in rows:
            one = self._reads.get(row["_file"].path)
            state = None if one is None else self._states.get(one.mark.file)
            if one is None or state is None:
                continue
            old, note = known.get(state.source or ""), None
            is_other = old is not None and old.sha256 != row["sha256"] and state.path == one.file.path
            if old is not None and is_other:
                alike = self._alike()(state.was, one.file.path)
                if not any(begins_with(file, old.bytes, old.sha256) for file in alike):  # else it was rotated
                    found = superseded(txn, old, row)
                    note = (one.file.name, _told(found, self._apart))
                    if found is not None:
                        gone.append(old)
                        row["replaces"].append(old.source_id)
                        self._alone += alike if not found.kept else ()
            self._news.append(_News(state, one, row["source_id"], note))
        return gone

    def told(self, lake: Path) -> list[Note]:
        """What a reading that has ended has to tell, however it ended: the ledger says what was committed."""
        if not self._news:
            return []
        sources = {e.source_id for e in ledger.read(lake).entries}
        news = [n for n in self._news if n.source in sources]
        for one in news:
            self.is_now(one.state, one.one, one.source)
        self._news = []
        return [n.note for n in news if n.note is not None]

    def alone(self) -> list[SourceFile]:
        """Files that may hold what has left the lake with another file's reading: its beginning was no source."""
        return self._alone

    def is_now(self, state: State, one: Changed, source: str) -> None:
        """A file is this source now."""
        state.source, state.path, state.was = source, one.file.path, state.head


def _told(found: Rewritten | None, apart: float | None) -> str:
    if found is None:
        when = "between two looks" if apart is None else f"between two looks, {apart:.1f} s apart"
        return (
            f"holds other records than before, or none with a date: taken for begun anew {when}; "
            "what was read stays, what was written and gone meanwhile is lost"
        )
    if found.kept:
        kept = f"the {many(found.kept, 'row')} of its lost beginning {noun(found.kept, 'stays', 'stay')} in the lake"
        return f"was cut to its end in its place: {many(found.gone, 'row was', 'rows were')} read again, {kept}"
    gone = many(found.gone, "row that was", "rows that were")
    return f"was written anew in its place: the {gone} read of it before gave way"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of an earlier reading: the rows of it that gave way to the new one, and those that stay."""

    gone: int
    kept: int


@dataclass(frozen=True, slots=True)
class _Overlap:
    """Records that are in both readings: the first line of one in the old, and whether the new begins with one."""

    first: int
    at_once: bool


def superseded(txn: Transaction, old: ledger.Entry, new: Mapping[str, Any]) -> Rewritten | None:
    """Judge an earlier reading of a file whose content is another one now; what stays of it is staged.

    Args:
        txn: holds the new reading; its lock is held.
        old: the earlier reading, which the caller takes out of the lake when this is not None.
        new: ledger row of the new one, with the files staged for it.

    Returns:
        None when no record of the old reading is in the new one, or no record has a date.
    """
    before = _files_of(txn, old)
    overlap = _overlap(before, {name: str(txn.folder / name) for name in new["_files"]})
    if overlap is None:
        return None
    kept: dict[str, int] = {}
    if overlap.at_once:
        kept = {name: _cut(name, path, overlap.first, txn.path(name)) for name, path in before.items()}
    stays = _facts(kept)
    if stays:
        told = ledger.row_of(txn.store.root, old)
        rows = Counter[str]()
        for name, count in kept.items():
            rows[_table(name)] += count
        told |= {"rows": dict(+rows), "rejects": rows["rejects"], "lines": overlap.first - 1}
        ledger.write([told], txn.path(f"sources/{txn.folder.name}-{old.source_id}.parquet"))
    else:
        for name in kept:
            txn.path(name).unlink(missing_ok=True)
    return Rewritten(_facts({name: _count(path) for name, path in before.items()}) - stays, stays)


def _facts(rows: Mapping[str, int]) -> int:
    """Rows of fact tables, from rows by file."""
    return sum(count for name, count in rows.items() if _table(name) in DAY_OF)


def _table(name: str) -> str:
    return name.partition("/")[0]


def _files_of(txn: Transaction, old: ledger.Entry) -> dict[str, str]:
    """The rows of a source, as files by the names that they have, or would have, in the lake.

    Rows in files of several sources are copied out of these.
    """
    root = txn.store.root
    live = journal.live(root)
    found = {name: live[name] for name in live if shared.head_of(name) == old.source_id}
    if old.is_merged:
        for number, (name, path) in enumerate(sorted(shared.holding(root, [old.source_id]).items())):
            # Beside the folders of the tables: no part of the commit.
            alone = txn.folder / f"{old.source_id}-{number}.rows"
            shared.extract(path, old.source_id, alone)
            found[f"{name.rpartition('/')[0]}/{old.source_id}-m{number}.parquet"] = str(alone)
    return found


def _overlap(old: Mapping[str, str], new: Mapping[str, str]) -> _Overlap | None:
    """Look for records of an old reading in a new one; a record without a date is never the same as another."""
    firsts: list[int] = []
    in_new: list[int] = []
    begins: list[int] = []
    con = silent()
    try:
        for kind, keys in _KEYS.items():
            sides = [[path for name, path in side.items() if _table(name) == kind] for side in (old, new)]
            if sides[1]:
                begins += _lines(con, f"select min(source_line) from ({_ROWS})", sides[1:])
            if all(sides):
                found = _lines(con, _shared({**keys, **_SAME_EVERYWHERE}), sides)
                firsts += found[:1]
                in_new += found[1:]
    finally:
        con.close()
    return _Overlap(min(firsts), min(in_new) == min(begins)) if firsts else None


_ROWS = "from read_parquet($1, union_by_name = true, hive_partitioning = false)"


def _shared(keys: Mapping[str, str]) -> str:
    """The first lines, in either reading, of the records that are in both."""
    columns = ", ".join(f"{sql} as {name}" for name, sql in keys.items())
    dated = f"{keys['stamp']} is not null and ts_basis in ({', '.join(repr(b) for b in _DATED)})"
    sides = (
        f"select {columns}, min(source_line) as line from ({_ROWS.replace('$1', f'${n}')}) where {dated} group by all"
        for n in (1, 2)
    )
    on = " and ".join(f"o.{name} is not distinct from n.{name}" for name in keys)
    old, new = sides
    return f"select min(o.line), min(n.line) from ({old}) o join ({new}) n on {on}"


def _lines(con: Any, sql: str, sides: Sequence[Sequence[str]]) -> list[int]:
    row = con.execute(sql, [list(side) for side in sides]).fetchone()
    return [line for line in row or () if line is not None]


def _count(path: str) -> int:
    import pyarrow.parquet as pq

    return int(pq.ParquetFile(path).metadata.num_rows)


def _cut(name: str, path: str, line: int, to: Path) -> int:
    """Write the rows of a file that come from before a line; how many. Rows of no line (runs, rolled up) all stay."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from tracelens.lake.parquet import write_arrow

    rows = pq.ParquetFile(path).read()
    column = {"rejects": "line", "runs": None}.get(_table(name), "source_line")
    if column is not None:
        rows = rows.filter(pc.fill_null(pc.less(rows[column], line), _table(name) == "rounds"))
    if rows.num_rows:
        write_arrow(rows, to)
    return int(rows.num_rows)
