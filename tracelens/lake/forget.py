"""Sources taken out of a lake again: chosen by name, or because their files are gone.

A source goes as a whole and in one commit: its rows, what was refused of it, and its row of the ledger. Files that hold
other sources, too, are written anew without it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens import logs
from tracelens.errors import InputError
from tracelens.lake import damage, ledger, missing, shared
from tracelens.lake.parquet import write_empty
from tracelens.lake.snapshot import reading
from tracelens.lake.store import EMPTY, Store, Transaction
from tracelens.lake.whole import check
from tracelens.wording import in_a_line, many

log = logging.getLogger(__name__)
_COLUMNS = ("source_id", "name", "rows", "also_named", "same_as")
# Sources that a message lists.
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Source:
    """A source that was, or would be, forgotten: the rows that it brought, by table, and its copies' names."""

    source_id: str
    name: str
    rows: Mapping[str, int]
    also_named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """A source that stays: lines of it were another one's records, and count as its own now.

    `is_of_others`: some of them may be records of a third source, which still stands for them.
    """

    name: str
    of: str
    lines: str
    is_of_others: bool


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What `forget_named` and `forget_missing` did, or would do.

    Attributes:
        sources: what was forgotten.
        copies: what counts in their place now.
        files: names of files that are gone, where the lake knows of them.
        unlisted: how many sources were taken out whose row of the ledger is gone.
        unsure: names of sources of which nobody can tell whether they lost rows.
    """

    sources: tuple[Source, ...] = ()
    copies: tuple[Copy, ...] = ()
    files: tuple[str, ...] = ()
    unlisted: int = 0
    unsure: tuple[str, ...] = ()


_TOLD = 10  # names that a lake does not know
_Row = dict[str, Any]
# From the ledger's rows and the files that are gone (None: nobody can tell) to what goes.
_Choice = Callable[[Sequence[_Row], "frozenset[str] | None"], missing.Missing]


def forget(store: Store, source_ids: Sequence[str]) -> None:
    """Take sources out of a lake, with their rows, as one commit; unknown ones are passed over."""
    with store.transaction() as txn, txn.locked():
        gone = [e for e in ledger.read(store.root).entries if e.source_id in set(source_ids)]
        if gone:
            _take_out(txn, gone)


def forget_named(root: Path, wanted: Sequence[str], *, dry_run: bool = False) -> Forgotten:
    """Take sources out of a lake by their names or ids.

    Args:
        root: the lake.
        wanted: names or ids, as the ledger has them.
        dry_run: write nothing.

    Raises:
        InputError: no lake there; an unknown or ambiguous name; a file is broken or gone, or its rows can't be told
            apart.
    """

    def choose(rows: Sequence[_Row], lost: frozenset[str] | None) -> missing.Missing:
        found, unknown = set(), []
        for one in wanted:
            try:
                found.add(_named(root, rows, one))
            except InputError as error:
                unknown.append(str(error))
        if unknown:  # all of them at once, and nothing is taken out
            more = f"\nand {len(unknown) - _TOLD} more" if len(unknown) > _TOLD else ""
            raise InputError("\n".join(unknown[:_TOLD]) + more)
        return missing.Missing(sources=frozenset(found))

    return _forget(root, choose, dry_run=dry_run, look=False)


def forget_missing(root: Path, *, dry_run: bool = False) -> Forgotten:
    """Take the sources out of a lake whose rows are not all there any more.

    Args:
        root: the lake.
        dry_run: write nothing.

    Raises:
        InputError: no lake there, or a file is broken.
    """

    def choose(rows: Sequence[_Row], lost: frozenset[str] | None) -> missing.Missing:
        return missing.find(root, {row["source_id"]: dict(row["rows"] or ()) for row in rows}, lost)

    return _forget(root, choose, dry_run=dry_run, look=True)


def _forget(root: Path, choose: _Choice, *, dry_run: bool, look: bool) -> Forgotten:
    """Choose, and take out what was chosen; with `look` files may be gone."""
    check(root)

    def chosen() -> tuple[missing.Missing, Sequence[_Row], Sequence[ledger.Entry]]:
        lost = missing.lost_files(root) if look else frozenset()
        known = ledger.read(root, lost or ())  # first, as it refuses a lake of a newer tracelens
        rows = [row for _, row in ledger.rows_of(root, "sources", _COLUMNS, lost or ())]
        return choose(rows, lost), rows, known.entries

    with damage.naming(root):
        if dry_run:
            with reading(root):
                return _told(*chosen()[:2])
        with Store(root).transaction() as txn, txn.locked():
            plan, rows, known = chosen()
            gone = [e for e in known if e.source_id in plan.sources]
            gone += [ledger.Entry(s, "", "", 0, "", is_merged=True) for s in sorted(plan.unlisted)]
            if gone or plan.files:
                _check_told_apart(root, gone, plan.files)
                _take_out(txn, gone, plan.files)
    done = _told(plan, rows)
    logs.info(log, "forgot", sources=len(done.sources) + done.unlisted, lost=len(done.files))
    return done


def _take_out(txn: Transaction, gone: Sequence[ledger.Entry], lost: Collection[str] = ()) -> None:
    """Commit the lake without some sources, and without files that are gone."""
    root, ids = txn.store.root, tuple(e.source_id for e in gone)
    delete = [*lost, *shared.take_out(root, gone, txn.path, lost)]
    for number, file in enumerate(sorted({e.file for e in gone if e.file})):
        ledger.rewrite_without(root, file, ids, txn.path(f"sources/{txn.folder.name}-{number}.parquet"))
        delete.append(file)
    for table, name in EMPTY.items():
        if name in lost:
            write_empty(table, txn.path(name))
    txn.commit(delete=tuple(delete), have_lock=True)


def _named(root: Path, rows: Sequence[_Row], wanted: str) -> str:
    """The one source of a name or id.

    Raises:
        InputError: none or several.
    """
    if any(row["source_id"] == wanted for row in rows):
        return wanted
    found = sorted((row for row in rows if row["name"] == wanted), key=lambda row: str(row["source_id"]))
    if len(found) == 1:
        return str(found[0]["source_id"])
    if found:
        listed = "".join(f"\n  {row['source_id']}  {_size(row)}" for row in found[:_LISTED])
        more = f"\n  and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
        raise InputError(
            f"{len(found)} sources of the lake at {root} are named {in_a_line(wanted)}: name one by its id"
            f"{listed}{more}"
        )
    holder = next((row for row in rows if wanted in (row["also_named"] or ())), None)
    if holder is not None:
        raise InputError(
            f"{in_a_line(wanted)} is in the lake at {root} as {in_a_line(holder['name'])}, whose copy it is: name that "
            f"one ({holder['source_id']})"
        )
    known = dict.fromkeys(str(row[column] or "") for column in ("name", "source_id") for row in rows)
    near = difflib.get_close_matches(wanted, list(known), n=3)
    hint = f"did you mean {' or '.join(map(in_a_line, near))}?" if near else "`tracelens query sources` lists them"
    raise InputError(f"no source {in_a_line(wanted)} in the lake at {root}: {hint}")


def _size(row: _Row) -> str:
    return ", ".join(many(n, table.removesuffix("s")) for table, n in row["rows"] or () if n) or "no rows"


def _check_told_apart(root: Path, gone: Sequence[ledger.Entry], lost: Collection[str]) -> None:
    """Refuse to leave rolled-up rows behind that say of no source: they may be those of one that goes.

    Raises:
        InputError: there are such rows.
    """
    import pyarrow.parquet as pq

    merged = [e.source_id for e in gone if e.is_merged]
    for name, path in shared.holding(root, merged, ("rounds",), lost).items() if merged else ():
        if shared.head_of(name) == shared.ROLLED and pq.ParquetFile(path).read(["source_id"])["source_id"].null_count:
            raise InputError(
                f"{name} of the lake at {root} holds rolled-up rounds that say of no source, so those of one can't be "
                "taken out: remove that file, then `tracelens forget --missing` forgets every source that was in it"
            )


def _told(plan: missing.Missing, rows: Sequence[_Row]) -> Forgotten:
    """What is said of it."""
    rows = sorted(rows, key=lambda row: (row["name"] or "", row["source_id"]))
    gone = [row for row in rows if row["source_id"] in plan.sources]
    names = {row["source_id"]: str(row["name"] or "") for row in rows}
    left = names.keys() - plan.sources
    sources = [
        Source(r["source_id"], names[r["source_id"]], {t: n for t, n in r["rows"] or () if n},
               tuple(r["also_named"] or ()))
        for r in gone
    ]  # fmt: skip
    copies = [
        Copy(
            names[row["source_id"]], names[other], lines,
            any(third in left and third != row["source_id"] for third, _ in row["same_as"]),
        )
        for row in rows
        if row["source_id"] in left
        for other, lines in row["same_as"] or ()
        if other in plan.sources
    ]  # fmt: skip
    unsure = sorted(names[source] for source in plan.unsure)
    return Forgotten(tuple(sources), tuple(copies), tuple(sorted(plan.files)), len(plan.unlisted), tuple(unsure))
