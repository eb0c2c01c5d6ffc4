"""Sources taken out of a lake again."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.lake import ledger, shared
from tracelens.lake.store import Store


def forget(store: Store, source_ids: Sequence[str]) -> None:
    """Take sources out of a lake, with their rows, as one commit; unknown ones are passed over."""
    with store.transaction() as txn, txn.locked():
        gone = [e for e in ledger.read(store.root).entries if e.source_id in set(source_ids)]
        if not gone:
            return
        ids = tuple(e.source_id for e in gone)
        delete = list(shared.take_out(store.root, gone, txn.path))
        for number, file in enumerate(sorted({e.file for e in gone})):
            ledger.rewrite_without(store.root, file, ids, txn.path(f"sources/{txn.folder.name}-{number}.parquet"))
            delete.append(file)
        txn.commit(delete=tuple(delete), have_lock=True)
