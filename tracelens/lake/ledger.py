"""The ledger: which sources are in the lake, and with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.lake.schema import SCHEMA_VERSION, table


@dataclass(frozen=True, slots=True)
class Entry:
    """One source of the ledger, and the ledger file that holds its row."""

    source_id: str
    name: str
    sha256: str
    bytes: int
    file: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was ingested so far."""

    entries: tuple[Entry, ...]

    def by_sha256(self) -> Mapping[str, Entry]:
        """Sources by the digest of their content."""
        return {e.sha256: e for e in self.entries}

    def sizes(self) -> tuple[int, ...]:
        """Sizes at which a longer file may turn out to be a grown version of a known one."""
        return tuple(sorted({e.bytes for e in self.entries if e.bytes}))

    def grown_from(self, prefixes: Mapping[int, str]) -> tuple[Entry, ...]:
        """Sources whose whole content is the beginning of a file with these prefix digests."""
        return tuple(e for e in self.entries if e.bytes and prefixes.get(e.bytes) == e.sha256)


def read(root: Path) -> Ledger:
    """Read the ledger of a lake.

    Raises:
        InputError: a ledger file is unreadable, or a newer tracelens wrote it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = ["source_id", "name", "sha256", "bytes", "schema_version"]
    entries: list[Entry] = []
    for path in sorted((root / "sources").glob("*.parquet")):
        try:
            rows = pq.read_table(path, columns=wanted).to_pylist()
        except FileNotFoundError:
            continue  # another process replaced it just now; its rows stand in a newer file or nowhere
        except (pa.ArrowException, OSError, KeyError) as error:
            raise InputError(
                f"ledger file {path} can't be read ({type(error).__name__}): move it away and ingest again"
            ) from error
        for row in rows:
            version = row.get("schema_version") or 0
            if version > SCHEMA_VERSION:
                raise InputError(
                    f"the lake at {root} was written by a newer tracelens (schema {version}): upgrade tracelens"
                )
            entries.append(
                Entry(row["source_id"], row["name"] or "", row["sha256"], row["bytes"] or 0, f"sources/{path.name}")
            )
    return Ledger(tuple(entries))


def files_of(root: Path, source_ids: Sequence[str]) -> tuple[str, ...]:
    """Paths (relative to the lake) of all data files of some sources; the ledger's own file is not among them."""
    ids = set(source_ids)
    return tuple(
        p.relative_to(root).as_posix()
        for kind in ("rounds", "windows", "requests", "runs", "rejects")
        for p in sorted((root / kind).rglob("*.parquet"))
        if p.name.split("-")[0] in ids
    )


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write ledger rows (maps as dicts) to one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = table("sources").arrow_schema()
    data = [{**r, "surfaces": list(r["surfaces"].items()), "rows": list(r["rows"].items())} for r in rows]
    pq.write_table(pa.Table.from_pylist(data, schema=schema), path, compression="zstd")


def rewrite_without(root: Path, file: str, source_ids: Sequence[str], path: Path) -> bool:
    """Write a ledger file anew without some sources; False when nothing would be left of it."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = pq.read_table(root / file)
    kept = rows.filter(pc.invert(pc.is_in(rows["source_id"], value_set=_strings(source_ids))))
    if kept.num_rows:
        pq.write_table(kept, path, compression="zstd")
    return bool(kept.num_rows)


def _strings(values: Sequence[str]) -> Any:
    import pyarrow as pa

    return pa.array(list(values), pa.string())
