"""Small files of a table and day into larger ones, some of them with every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.compact import plan
from tracelens.lake import journal, ledger, shared
from tracelens.lake.connection import silent
from tracelens.lake.parquet import COMPRESSION, LEVEL, ROW_GROUP
from tracelens.lake.schema import SCHEMA_VERSION, TABLES
from tracelens.lake.store import Store, Transaction

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MEMORY = "1GB"
#: One commit merges about so many bytes: others can't commit meanwhile.
_BATCH = 512 << 20
_DATA = tuple(name for name in TABLES if name != "sources")
# So many files of the ledger are no trouble to any reader.
_FEW = 8

Told = Callable[[str, int], None]


def merge(store: Store, told: Told | None = None) -> None:
    """Merge what is small until nothing is left that pays.

    Args:
        store: the lake.
        told: called after each commit with the folder that was merged last and the bytes merged since the last call.
    """
    while True:
        with store.transaction() as txn, txn.locked():
            batch = _batch(plan.groups(plan.own_files(journal.live(store.root, _DATA), sources_of(store.root))))
            if not batch:
                break
            delete = []
            with workshop(txn) as con:
                for number, group in enumerate(batch):
                    write(con, group, txn.path(name_of(txn, group[0], number)))
                    delete += [file.name for file in group]
            txn.commit(delete=(*delete, *mark(txn)), have_lock=True)
        if told is not None:
            told(batch[-1][0].folder, sum(file.size for group in batch for file in group))
    _merge_ledger(store)


def sources_of(root: Path) -> list[str]:
    """The sources of the ledger."""
    return [entry.source_id for entry in ledger.read(root).entries]


def _batch(groups: Iterator[list[plan.File]]) -> list[list[plan.File]]:
    batch, size = [], 0
    for group in groups:
        batch.append(group)
        size += sum(file.size for file in group)
        if size >= _BATCH:
            break
    return batch


def name_of(txn: Transaction, file: plan.File, number: int) -> str:
    """The name in the lake of a file made of `file` and others, unlike any that is there."""
    return f"{file.folder}/{shared.ROLLED if file.is_rolled else shared.MERGED}-{txn.folder.name}-{number}.parquet"


@contextmanager
def workshop(txn: Transaction) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that writes files of a transaction; what outgrows its memory goes where rows are staged."""
    with closing(silent()) as con:
        limit(con, txn)
        yield con


def limit(con: duckdb.DuckDBPyConnection, txn: Transaction) -> None:
    """Bound the memory of a connection."""
    con.execute(f"set memory_limit = '{MEMORY}'; set timezone = 'UTC'")
    con.execute("set temp_directory = $1", [str(txn.folder / "spill")])


def write(con: duckdb.DuckDBPyConnection, group: Sequence[plan.File], to: Path) -> None:
    """Write the rows of some files to one, in their order."""
    con.execute("set variable paths = $1", [[file.path for file in group]])
    rows = "select * from read_parquet(getvariable('paths'), union_by_name = true, hive_partitioning = false)"
    copy(con, rows, to, {s for file in group for s in sources_of_file(file)})


def sources_of_file(file: plan.File) -> frozenset[str]:
    """The sources whose rows a file may hold."""
    return shared.sources_in(file.path) if shared.is_shared(file.name) else frozenset([shared.head_of(file.name)])


def copy(con: duckdb.DuckDBPyConnection, rows: str, to: Path, sources: set[str]) -> None:
    """Write the rows of a query as a file of several sources."""
    target = str(to).replace("'", "''")
    note = shared.note_of(sources).replace("'", "''")
    con.execute(
        f"copy ({rows}) to '{target}' (format parquet, compression {COMPRESSION}, compression_level {LEVEL},"
        f" row_group_size {ROW_GROUP}, kv_metadata {{'{shared.SOURCES}': '{note}'}})"
    )


def mark(txn: Transaction) -> list[str]:
    """Write into the ledger that rows of its sources may lie in shared files; gives the files that this replaces.

    An older tracelens refuses the lake then: it would not find these rows when a source is replaced.
    """
    entries = ledger.read(txn.store.root).entries
    if all(entry.is_merged for entry in entries):
        return []
    return _rewrite(txn, marked=True)


def _merge_ledger(store: Store) -> None:
    with store.transaction() as txn, txn.locked():
        if len({entry.file for entry in ledger.read(store.root).entries}) > _FEW:
            txn.commit(delete=tuple(_rewrite(txn, marked=False)), have_lock=True)


def _rewrite(txn: Transaction, *, marked: bool) -> list[str]:
    """The ledger as one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = {
        n: path for n, path in journal.live(txn.store.root, ("sources",)).items() if not n.endswith("/empty.parquet")
    }
    rows = pa.concat_tables([pq.ParquetFile(path).read() for path in files.values()], promote_options="default")
    if marked:
        rows = _with_version(rows)
    pq.write_table(rows, txn.path(f"sources/{txn.folder.name}-ledger.parquet"), compression=COMPRESSION)
    return list(files)


def _with_version(rows: pa.Table) -> pa.Table:
    import pyarrow as pa

    at = rows.schema.get_field_index("schema_version")
    field = rows.schema.field(at)
    return rows.set_column(at, field, pa.array([SCHEMA_VERSION] * rows.num_rows, field.type))
