"""Files that hold the rows of several sources: what `tracelens compact` makes of many small ones.

A source that is ingested has files of its own, named after it. Merged (`merged-`) and rolled-up (`rolled-`) files hold
whatever they were made of; their footer lists the sources. To take a source out of a lake, they are written anew
without it, in the same commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.lake import journal, ledger
from tracelens.lake.parquet import ROW_GROUP, arrow_writer
from tracelens.lake.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

MERGED, ROLLED = "merged", "rolled"
#: Key of the list of sources in the footer.
SOURCES = "tracelens.sources"
_HOLD_ROWS = tuple(name for name in TABLES if name != "sources")


def head_of(name: str) -> str:
    """What a file of the lake is named after: its source, `merged` or `rolled`."""
    return name.rpartition("/")[2].partition("-")[0]


def is_shared(name: str) -> bool:
    """Whether a file may hold rows of several sources, by its name."""
    return head_of(name) in (MERGED, ROLLED)


def sources_in(path: str | Path) -> frozenset[str]:
    """The sources whose rows a file holds: of its footer, else of its rows."""
    import pyarrow.parquet as pq

    told = (pq.read_metadata(path).metadata or {}).get(SOURCES.encode())
    if told is not None:
        return frozenset(json.loads(told))
    return _listed(pq.ParquetFile(path).read(columns=["source_id"]))


def _listed(rows: pa.Table) -> frozenset[str]:
    return frozenset(rows["source_id"].unique().to_pylist()) - {None}


def note_of(sources: Iterable[str]) -> str:
    """What the footer of a file says of the sources in it."""
    return json.dumps(sorted(sources))


def holding(
    root: Path, source_ids: Collection[str], tables: Iterable[str] = _HOLD_ROWS, lost: Collection[str] = ()
) -> dict[str, str]:
    """Shared files that hold rows of some sources: name in the lake -> path. Needs the lake's lock.

    `lost` are files that are gone, and passed over.
    """
    ids = frozenset(source_ids)
    found = {name: path for name, path in journal.there(journal.live(root, tables), lost).items() if is_shared(name)}
    return {name: path for name, path in found.items() if ids & sources_in(path)}


def take_out(
    root: Path, entries: Sequence[ledger.Entry], place: Callable[[str], Path], lost: Collection[str] = ()
) -> tuple[str, ...]:
    """Take the rows of some sources out of a lake: shared files are staged without them. Needs the lake's lock.

    Args:
        root: folder of the lake.
        entries: the sources, as the ledger has them.
        place: where to write the file that will lie at a path in the lake.
        lost: names of files that are gone, and can't be read.

    Returns:
        Names of the files to delete with the commit; one that is staged anew may be among them.
    """
    ids = tuple(e.source_id for e in entries)
    delete = list(ledger.files_of(root, ids))
    merged = [e.source_id for e in entries if e.is_merged]
    for name, path in holding(root, merged, lost=lost).items() if merged else ():
        _without(path, merged, place(name))
        delete.append(name)
    return tuple(delete)


def _without(path: str, source_ids: Sequence[str], to: Path) -> None:
    """Write the rows of all other sources of a file; nothing where there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    left = sources_in(path) - set(source_ids)
    ids = pa.array(source_ids, pa.string())
    if left:
        _filtered(path, to, lambda column: pc.invert(pc.is_in(column, value_set=ids)), {SOURCES: note_of(left)})


def extract(path: str, source_id: str, to: Path) -> None:
    """Write the rows of one source of a shared file."""
    import pyarrow.compute as pc

    _filtered(path, to, lambda column: pc.equal(column, source_id), {})


def _filtered(path: str, to: Path, test: Callable[[Any], Any], told: Mapping[str, str]) -> None:
    """Copy the rows whose source meets a test, one row group at a time."""
    import pyarrow.parquet as pq

    written = False
    with pq.ParquetFile(path) as file, arrow_writer(file.schema_arrow.with_metadata(dict(told)), to) as out:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group)
            kept = rows.filter(test(rows["source_id"])).replace_schema_metadata(dict(told))
            if kept.num_rows:
                out.write_table(kept, ROW_GROUP)
                written = True
    if not written:
        to.unlink()
