"""The ledger: which sources are in the lake, and with what."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.lake import journal
from tracelens.lake.parquet import to_arrow
from tracelens.lake.schema import OWN_FILES, SCHEMA_VERSION, TABLES, newer, table
from tracelens.lake.snapshot import reading

_WANTED = ["source_id", "name", "sha256", "bytes", "schema_version", "text_sha256", "prefixes", "surfaces", "same_as",
           "request_ids"]  # fmt: skip
# Columns of `sources` and `runs` that lakes of older versions have not.
_LATER = ("request_ids", "scope", "text_sha256", "prefixes", "same_as")
_HOLD_ROWS = tuple(name for name in TABLES if name != "sources")
_TRIES = 20
_PAUSE = 0.05
_MADE = "_entry"  # in a remembered row: what was made of it


@dataclass(frozen=True, slots=True)
class Entry:
    """One source of the ledger, and the ledger file that holds its row."""

    source_id: str
    name: str
    sha256: str
    bytes: int
    file: str
    text_sha256: str | None = None  # where the text is not what the file holds
    prefixes: Mapping[int, str] = field(default_factory=dict, hash=False, compare=False)
    surfaces: frozenset[str] = frozenset()
    same_as: frozenset[str] = frozenset()  # sources whose records some of its own are
    request_ids: str | None = None
    is_merged: bool = False  # some of its rows may lie in files that hold several sources


@dataclass(frozen=True)
class Ledger:
    """What was ingested so far. Whatever is asked for each file of an ingest is looked up, in a lake of any size."""

    entries: tuple[Entry, ...]

    def by_sha256(self) -> Mapping[str, Entry]:
        """Sources by the digest of their content."""
        return self._by_digest

    @cached_property
    def _by_digest(self) -> Mapping[str, Entry]:
        return {digest: e for e in self.entries for digest in (e.text_sha256, e.sha256) if digest}

    @cached_property
    def _by_bytes(self) -> Mapping[str, Sequence[Entry]]:
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.sha256, []).append(entry)
        return found

    def of_bytes(self, sha256: str) -> Sequence[Entry]:
        """Sources whose bytes have this digest."""
        return self._by_bytes.get(sha256, ())

    @cached_property
    def _sizes(self) -> frozenset[int]:
        return frozenset(e.bytes for e in self.entries if e.bytes)

    def sizes(self) -> tuple[int, ...]:
        """Sizes at which a longer file may turn out to be a grown version of a known one."""
        return tuple(sorted(self._sizes))

    def has_size(self, size: int | None) -> bool:
        """Whether some source is of that size."""
        return size in self._sizes

    def request_ids(self) -> frozenset[str]:
        """How the sources hold request ids: `kept`, `redacted:<which salt>`; what older versions wrote is kept."""
        return frozenset(e.request_ids or "kept" for e in self.entries)

    def grown_from(self, prefixes: Mapping[int, str]) -> tuple[Entry, ...]:
        """Sources whose whole content is the beginning of a file with these prefix digests."""
        return tuple(e for n, digest in prefixes.items() for e in self.of_bytes(digest) if e.bytes and e.bytes == n)


def read(root: Path, lost: Collection[str] = ()) -> Ledger:
    """Read the ledger of a lake; `lost` are files that are gone, and passed over.

    Raises:
        InputError: a ledger file is unreadable, or a newer tracelens wrote it.
    """
    rows = rows_of(root, "sources", _WANTED, lost)
    version = max((row["schema_version"] or 0 for _, row in rows), default=0)
    if version > SCHEMA_VERSION:
        raise InputError(newer(root, version))
    return Ledger(tuple(_entry(name, row) for name, row in rows))


def _entry(file: str, row: dict[str, Any]) -> Entry:
    """The entry of a row; with the row it is remembered."""
    entry = row.get(_MADE)
    if not isinstance(entry, Entry):
        row[_MADE] = entry = _made(file, row)
    return entry


def _made(file: str, row: Mapping[str, Any]) -> Entry:
    surfaces, same = (frozenset(k for k, _ in row.get(c) or ()) for c in ("surfaces", "same_as"))
    size, text = row["bytes"] or 0, row.get("text_sha256")
    prefixes = {int(n): digest for n, digest in row.get("prefixes") or ()}
    return Entry(row["source_id"], row["name"] or "", row["sha256"], size, file, text, prefixes, surfaces, same,
                 row.get("request_ids"), (row["schema_version"] or 0) > OWN_FILES)  # fmt: skip


def rows_of(
    root: Path, table: str, columns: Sequence[str], lost: Collection[str] = ()
) -> list[tuple[str, dict[str, Any]]]:
    """Read a small table as of the last commit: for each row its file's name in the lake, and its cells.

    `lost` are files that are gone, and passed over.

    Raises:
        InputError: a file is broken, or none of tracelens.
    """
    for _ in range(_TRIES):
        with reading(root, (table,)) as lake, suppress(FileNotFoundError):
            return _remembered((root, table, *columns), sorted(journal.there(lake.files, lost).items()), columns)
        time.sleep(_PAUSE)  # only where readers can't be registered: a commit took a file away
    raise InputError(f"the lake at {root} changes faster than it can be read: try again")


# Rows of the last reading of a table, by file: an ingest reads the ledger several times, and its files stay.
_Read = tuple[tuple[int, ...] | None, list[dict[str, Any]]]
_KEPT: dict[tuple[object, ...], dict[str, _Read]] = {}
_KEPT_TABLES = 4
_KEPT_FILES = 20_000


def _remembered(
    key: tuple[object, ...], files: Sequence[tuple[str, str]], columns: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Rows of all files; those that have been read before, and have not changed, are not read again."""
    before = _KEPT.pop(key, {})
    now: dict[str, _Read] = {}
    for _, path in files:
        stamp, old = _stamp(path), before.get(path)
        now[path] = old if old and stamp and old[0] == stamp else (stamp, _rows(path, columns))
    if len(now) <= _KEPT_FILES:
        if len(_KEPT) >= _KEPT_TABLES:
            _KEPT.clear()
        _KEPT[key] = now
    return [(name, row) for name, path in files for row in now[path][1]]


def _stamp(path: str) -> tuple[int, ...] | None:
    """What a file that was written anew has another of; None where nobody can look, and reading it says why."""
    try:
        stat = Path(path).stat()
    except FileNotFoundError:
        raise
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _rows(path: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not by read_table: wherever pandas is installed, that imports it, which takes longer than a small file.
        with pq.ParquetFile(path) as file:
            there = set(file.schema_arrow.names)
            absent = [c for c in columns if c in _LATER and c not in there]
            wanted = [c for c in columns if c not in absent]
            if not there.issuperset(wanted):
                raise KeyError(path)
            found: list[dict[str, Any]] = file.read(columns=wanted).to_pylist()
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's trouble, not the file's
            raise InputError(f"{path} can't be read: {os.strerror(error.errno)}; try again") from error
        raise InputError(
            f"{path} can't be read ({type(error).__name__}): it is broken or not tracelens' own; move it away, "
            "then `tracelens forget --missing` takes out the rows of the sources that only it lists"
        ) from error
    return [row | dict.fromkeys(absent) for row in found] if absent else found


def files_of(root: Path, source_ids: Sequence[str]) -> tuple[str, ...]:
    """Names in the lake of the data files that hold rows of some sources and of no others; the ledger's not among them.

    Rows of theirs in files of several sources: see `shared`.
    """
    ids = set(source_ids)
    return tuple(name for name in journal.live(root, _HOLD_ROWS) if name.rpartition("/")[2].partition("-")[0] in ids)


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write ledger rows (maps as dicts) to one file."""
    import polars as pl
    import pyarrow.parquet as pq

    types = table("sources").polars_schema()
    cells = {name: [_cell(row.get(name)) for row in rows] for name in types}
    pq.write_table(to_arrow("sources", pl.DataFrame(cells, schema=types)), path, compression="zstd")


def _cell(value: Any) -> Any:
    return [{"key": k, "value": v} for k, v in value.items()] if isinstance(value, Mapping) else value


def row_of(root: Path, entry: Entry) -> dict[str, Any]:
    """The whole row of a source, as `write` takes it. Needs the lake's lock."""
    import pyarrow.parquet as pq

    rows = pq.ParquetFile(journal.live(root, ("sources",))[entry.file]).read().to_pylist()
    found = next(row for row in rows if row["source_id"] == entry.source_id)
    maps = {name: dict(found[name]) for name in ("same_as", "prefixes") if found.get(name) is not None}
    return {**found, "surfaces": dict(found["surfaces"] or ()), "rows": dict(found["rows"] or ()), **maps}


def rewrite_without(root: Path, file: str, source_ids: Sequence[str], path: Path) -> bool:
    """Write a ledger file anew without some sources; False when nothing would be left of it. Needs the lake's lock."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = pq.read_table(journal.live(root, ("sources",))[file])
    kept = rows.filter(pc.invert(pc.is_in(rows["source_id"], value_set=_strings(source_ids))))
    if kept.num_rows:
        pq.write_table(kept, path, compression="zstd")
    return bool(kept.num_rows)


def _strings(values: Sequence[str]) -> Any:
    import pyarrow as pa

    return pa.array(list(values), pa.string())
