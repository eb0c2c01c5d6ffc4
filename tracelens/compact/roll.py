"""Old days of rounds, rolled up: rows of equal rounds with their number as weight."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.compact import merge, roll_sql
from tracelens.compact.plan import File, own_files
from tracelens.lake import journal, shared
from tracelens.lake.connection import connect, set_files
from tracelens.lake.schema import NO_DAY, TABLES
from tracelens.lake.store import Store, Transaction

if TYPE_CHECKING:
    import duckdb

#: One commit rolls up about so many bytes of single rounds: others can't commit meanwhile.
BATCH = 1 << 30
_PREFIX = "rounds/date="

Told = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Rolled:
    """What was rolled up: days, rounds, the rows that stand for them now, and rounds of these days that stay single."""

    days: int = 0
    rounds: int = 0
    rows: int = 0
    single: int = 0

    def __add__(self, other: Rolled) -> Rolled:
        return Rolled(
            self.days + other.days, self.rounds + other.rounds, self.rows + other.rows, self.single + other.single
        )


def days_of(root: Path, before: dt.date) -> dict[str, list[File]]:
    """Days before a date with single rounds in files of tracelens alone: day -> these files, in order."""
    found, foreign = _days(root, before)
    return {day: group for day, group in found.items() if day not in foreign}


def foreign_of(root: Path, before: dt.date) -> list[str]:
    """Files of another writer that keep their days, with single rounds of ours, from being rolled up; by name."""
    found, foreign = _days(root, before)
    return [name for day, names in sorted(foreign.items()) if day in found for name in names]


def _days(root: Path, before: dt.date) -> tuple[dict[str, list[File]], dict[str, list[str]]]:
    files = journal.live(root, ("rounds",))
    own = {file.name: file for file in own_files(files, merge.sources_of(root))}
    found: dict[str, list[File]] = {}
    foreign: dict[str, list[str]] = {}
    for name in sorted(files):
        day = name.removeprefix(_PREFIX).partition("/")[0]
        if day == NO_DAY or not _is_before(day, before):
            continue
        if name not in own:
            # Whether its rounds belong to the same requests nobody can tell.
            foreign.setdefault(day, []).append(name)
        elif not own[name].is_rolled:
            found.setdefault(day, []).append(own[name])
    return found, foreign


def _is_before(day: str, date: dt.date) -> bool:
    try:
        return dt.date.fromisoformat(day) < date
    except ValueError:
        return False


def roll(store: Store, before: dt.date, told: Told | None = None) -> Rolled:
    """Roll up the rounds of whole days before a date; batch after batch of days, each as one commit.

    Args:
        store: the lake.
        before: the first day that stays as it is.
        told: called after each commit with the last day and the bytes read since the last call.
    """
    done = Rolled()
    for days in _batches(days_of(store.root, before)):
        with store.transaction() as txn, txn.locked():
            files = {day: group for day, group in days_of(store.root, before).items() if day in days}
            if files:
                done += _roll(txn, files)
        if told is not None:
            told(f"{_PREFIX}{max(days)}", sum(f.size for group in files.values() for f in group))
    return done


def _batches(days: dict[str, list[File]]) -> Iterator[list[str]]:
    """Days in order; each batch begins with the last day of the one before: requests over midnight are whole in one."""
    batch: list[str] = []
    size = 0
    for day, group in sorted(days.items()):
        batch.append(day)
        size += sum(file.size for file in group)
        if size >= BATCH:
            yield batch
            batch, size = [day], 0
    if batch:
        yield batch


def _roll(txn: Transaction, files: dict[str, list[File]]) -> Rolled:
    root = txn.store.root
    paths = {table: list(journal.live(root, (table,)).values()) for table in TABLES}
    done, delete = Rolled(), list[str]()
    with closing(connect(root, lock=False, held=False, grouped=False)) as con:
        merge.limit(con, txn)
        con.execute(roll_sql.spans(list(files)))
        con.execute(roll_sql.SPREADS)
        set_files(con, {**paths, "rounds": [file.path for group in files.values() for file in group]})
        con.execute(roll_sql.LABELLED if _one(con, roll_sql.GAPS)[0] else roll_sql.NOT_LABELLED)
        for number, (day, group) in enumerate(files.items()):
            set_files(con, {**paths, "rounds": [file.path for file in group]})
            con.execute(roll_sql.JUDGED)
            of_day = _roll_day(con, txn, day, group, number)
            done += of_day
            delete += [file.name for file in group] if of_day.days else []
    if delete:
        txn.commit(delete=(*delete, *merge.mark(txn)), have_lock=True)
    return done


def _roll_day(con: duckdb.DuckDBPyConnection, txn: Transaction, day: str, group: Sequence[File], number: int) -> Rolled:
    """Stage a day's rolled-up rows, and the rest of its rounds; nothing where none can be rolled up."""
    rollable, every = _one(con, roll_sql.COUNTS)
    if not rollable:
        return Rolled(single=every)
    sources = {s for file in group for s in merge.sources_of_file(file)}
    to = txn.path(f"{_PREFIX}{day}/{shared.ROLLED}-{txn.folder.name}-{number}.parquet")
    merge.copy(con, roll_sql.rolled(), to, sources)
    made = "read_parquet(getvariable('made'))"
    con.execute("set variable made = $1", [str(to)])
    _check(day, _one(con, roll_sql.sums("judged where is_rollable")), _one(con, roll_sql.sums(made)))
    if every > rollable:
        rest = txn.path(f"{_PREFIX}{day}/{shared.MERGED}-{txn.folder.name}-{number}.parquet")
        merge.copy(con, roll_sql.REST, rest, sources)
    return Rolled(1, rollable, _one(con, f"select count(*) from {made}")[0], every - rollable)


def _one(con: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    row = con.execute(sql).fetchone()
    return row or (None,)


def _check(day: str, before: Sequence[float | None], after: Sequence[float | None]) -> None:
    """Nothing is committed that does not add up to what it stands for."""
    same = all(
        (a is None and b is None) or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9))
        for a, b in zip(before, after, strict=True)
    )
    if not same:
        raise RuntimeError(f"{day} rolled up does not add up to its rounds: {before} became {after}")
