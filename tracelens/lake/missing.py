"""Which files and rows of a lake are gone: an object that a bucket has lost, a file that somebody deleted.

The manifest of a bucket names every object. A folder is what lies in it, so there the ledger tells: it says how many
rows of each table a source brought, and whoever has fewer has lost some. A file of several sources takes its list of
them along; they are found by their rows, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelens.lake import journal, shared
from tracelens.lake.schema import TABLES
from tracelens.lake.storage import storage_of
from tracelens.lake.store import EMPTY

_DATA = tuple(name for name in TABLES if name != "sources")
_OWN = re.compile(r"[0-9a-f]{16}-")


@dataclass(slots=True)
class _Found:
    """Rows of a source in a table; of rolled-up ones the rounds that they stand for: more where those had weights."""

    rows: float = 0.0
    is_rolled: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """What is gone.

    Attributes:
        files: names of files that the lake should have, where that can be known.
        sources: sources of the ledger that have lost rows.
        unlisted: sources whose row of the ledger is lost, and whose own rows are there.
        unsure: sources of which nobody can tell, since a row of theirs stands for many.
    """

    files: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    unsure: frozenset[str] = field(default=frozenset())


def lost_files(root: Path) -> frozenset[str] | None:
    """Names of the files that a lake should have and that are gone; None where a folder can't tell."""
    return storage_of(root).lost()


def find(root: Path, brought: Mapping[str, Mapping[str, int]], lost: frozenset[str] | None) -> Missing:
    """What is gone of a lake. Needs the lake's lock, or a reading of it.

    Args:
        root: the lake.
        brought: rows by table that each source of the ledger brought, as it says.
        lost: see `lost_files`.
    """
    files = lost or frozenset()
    # What a file of several sources held is told by nothing but the rows of the others.
    tables = _DATA if lost is None else {name.partition("/")[0] for name in files if shared.is_shared(name)}
    gone = {shared.head_of(name) for name in files} & brought.keys()
    unsure: set[str] = set()
    for table in sorted(tables):
        found = _counted(root, table, brought.keys(), files)
        has_lost_rolled = any(n.startswith(f"{table}/") and shared.head_of(n) == shared.ROLLED for n in files)
        for source, rows in brought.items():
            here, expected = found.get(source, _Found()), rows.get(table, 0)
            if expected - here.rows > 0.5:  # a weight is 1 at least: rolled-up rows never stand for less than they were
                gone.add(source)
            elif has_lost_rolled and here.is_rolled and here.rows - expected > 0.5:
                unsure.add(source)
    no_ledger = lost is None or any(name.startswith("sources/") and name not in EMPTY.values() for name in files)
    unlisted = _unlisted(root, brought.keys(), files) if no_ledger else frozenset()
    return Missing(files, frozenset(gone), unlisted, frozenset(unsure - gone))


def _counted(root: Path, table: str, sources: Collection[str], lost: Collection[str]) -> dict[str, _Found]:
    """Rows of sources in the files of a table that tracelens wrote."""
    import pyarrow.parquet as pq

    found: dict[str, _Found] = {}
    for name, path in journal.there(journal.live(root, (table,)), lost).items():
        head = shared.head_of(name)
        if head in sources:
            found.setdefault(head, _Found()).rows += pq.read_metadata(path).num_rows
        elif shared.is_shared(name):
            is_rolled = head == shared.ROLLED
            for source, rows in _by_source(path, is_rolled=is_rolled):
                one = found.setdefault(source, _Found())
                one.rows += rows
                one.is_rolled |= is_rolled
    return found


def _by_source(path: str, *, is_rolled: bool) -> Iterator[tuple[str, float]]:
    """Rows of each source in a file of several, a row group at a time; rolled-up ones by their weight."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = ["source_id", "weight"] if is_rolled else ["source_id"]
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows: Any = file.read_row_group(group, columns=columns)
            if is_rolled:
                rows = rows.set_column(1, "weight", pc.fill_null(rows["weight"], 1.0))
            asked: Any = ("weight", "sum") if is_rolled else ([], "count_all")
            told = rows.group_by("source_id").aggregate([asked]).rename_columns(["source", "rows"])
            yield from ((one["source"], one["rows"]) for one in told.to_pylist() if one["source"] is not None)


def _unlisted(root: Path, sources: Collection[str], lost: Collection[str]) -> frozenset[str]:
    """Sources with rows of their own in the lake that no file of the ledger names any more."""
    found: set[str] = set()
    for name, path in journal.there(journal.live(root, _DATA), lost).items():
        if shared.is_shared(name):
            found |= shared.sources_in(path)
        elif _OWN.match(name.rpartition("/")[2]):
            found.add(shared.head_of(name))
    return frozenset(found - set(sources))
