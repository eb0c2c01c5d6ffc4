"""Which files of a lake are merged with which."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracelens.lake import shared
from tracelens.lake.parquet import statistics
from tracelens.lake.schema import DAY_OF

#: A merged file has about this size; a file of less than half of it is small. Bytes.
TARGET = 64 << 20
#: One merge takes so many files at most: DuckDB keeps them open.
MOST_FILES = 400
# A large file is not written again for a few small ones beside it.
_ENOUGH = 8
_EMPTY = "empty.parquet"


@dataclass(frozen=True, slots=True)
class File:
    """A data file of a lake: its name there, where it lies, and its size in bytes."""

    name: str
    path: str
    size: int

    @property
    def folder(self) -> str:
        """Table and partition."""
        return self.name.rpartition("/")[0]

    @property
    def is_rolled(self) -> bool:
        """Whether its rows are rolled up."""
        return shared.head_of(self.name) == shared.ROLLED


def own_files(files: Mapping[str, str], sources: Iterable[str]) -> list[File]:
    """The files among those of a lake that tracelens wrote, the zero-row ones left out.

    Args:
        files: name in the lake -> path.
        sources: the sources of the ledger.
    """
    heads = {*sources, shared.MERGED, shared.ROLLED}
    return [
        File(name, path, Path(path).stat().st_size)
        for name, path in sorted(files.items())
        if shared.head_of(name) in heads and not name.endswith(f"/{_EMPTY}")
    ]


def groups(files: Sequence[File]) -> Iterator[list[File]]:
    """Files to merge into one each: small ones of one table and day, rolled-up ones by themselves, in order of time."""
    shelves: dict[tuple[str, bool], list[File]] = {}
    for file in files:
        if file.size < TARGET // 2:
            shelves.setdefault((file.folder, file.is_rolled), []).append(file)
    for (folder, _), small in sorted(shelves.items()):
        if len(small) > 1:
            yield from (group for group in _packed(_in_time(folder, small)) if _pays(group))


def _packed(files: Iterable[File]) -> Iterator[list[File]]:
    group: list[File] = []
    size = 0
    for file in files:
        if group and (size + file.size > TARGET or len(group) == MOST_FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    yield group


def _pays(group: Sequence[File]) -> bool:
    sizes = [file.size for file in group]
    return len(group) > 1 and (len(group) >= _ENOUGH or max(sizes) * 2 <= sum(sizes))


def _in_time(folder: str, files: Sequence[File]) -> list[File]:
    """By their first stamps, so that a file's row groups are periods and a filter by time passes over most of them."""
    column = DAY_OF.get(folder.partition("/")[0])
    if column is None:
        return list(files)
    return sorted(files, key=lambda f: (_begins(f.path, column), f.name))


def _begins(path: str, column: str) -> dt.datetime:
    import pyarrow.parquet as pq

    told = [p.min for p in statistics(pq.read_metadata(path), column) if p is not None and p.has_min_max]
    return min(told, default=dt.datetime.min)
