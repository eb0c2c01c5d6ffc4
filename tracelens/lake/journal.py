"""Commits on their way into a lake: journals, what the lake is with them, and when their files are moved.

A commit is done as soon as its journal is durable. Its files are moved then, unless somebody reads the lake: what a
reader has listed stays where it is until he is done. So there may be journals whose files still lie in the staging
area, by a reader or by a crash. Who reads a lake takes it as it would be after them (`live`), in their order.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake import locks
from tracelens.lake.place import is_remote
from tracelens.lake.schema import TABLES, is_in_a_table
from tracelens.lake.storage import storage_of

STAGING = ".staging"
JOURNAL = "commit.json"
READERS = "readers.lock"
# A commit waits so long for readers to be done, and leaves the moves to the next one then, seconds.
PATIENCE = 2.0
# Nobody reads for longer than this: somebody sits before a pager, while each commit needs more of the disk.
LONGEST = 600.0


@dataclass(frozen=True, slots=True)
class Journal:
    """A commit: files that come (below `folder`, under their names in the lake) and files that go.

    `number` orders the commits that wait; `written` is when it was made, seconds since the epoch.
    """

    folder: Path
    number: int
    add: tuple[str, ...]
    delete: tuple[str, ...]
    written: float


def pending(root: Path) -> list[Journal]:
    """The commits of a lake whose files are not all moved yet, in their order.

    Raises:
        InputError: one of them is broken, or names a file outside of the lake's tables.
    """
    try:
        with os.scandir(root / STAGING) as entries:
            folders = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for folder in folders:
        path = folder / JOURNAL
        try:
            told, written = json.loads(path.read_text(encoding="utf-8")), path.stat().st_mtime
            add, delete = ([str(name) for name in told[key]] for key in ("add", "delete"))
            number = int(told.get("number", 0))
        except FileNotFoundError:
            continue  # not committed, or finished just now
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} can't be read ({type(error).__name__}): it is broken or not tracelens' own; move it away"
            ) from error
        # Whoever wrote it: nothing is moved to a place outside of the lake, nor removed there.
        strange = [name for name in (*add, *delete) if not is_in_a_table(name)]
        if strange:
            raise InputError(
                f"{path} names a file outside of the lake's tables ({strange[0][:200]}): tracelens writes no such "
                "thing; where you did not make that file, don't use this lake"
            )
        found.append(Journal(folder, number, tuple(add), tuple(delete), written))
    return sorted(found, key=lambda j: (j.number, j.folder.name))


def write(root: Path, folder: Path, add: Sequence[str], delete: Iterable[str]) -> None:
    """Commit the files `add` below `folder`: once this is done there is no way back. Needs the lake's lock."""
    for name in add:
        (root / name).parent.mkdir(parents=True, exist_ok=True)  # so that the moves need no room on the disk
        sync_file(folder / name)
    inner = {parent for name in add for parent in (folder / name).parents if parent.is_relative_to(folder)}
    for parent in sorted(inner, reverse=True):
        sync_folder(parent)
    number = max((j.number for j in pending(root)), default=0) + 1
    journal = {"number": number, "add": list(add), "delete": [d for d in delete if d not in set(add)]}
    part = folder / f"{JOURNAL}.part"
    part.write_text(json.dumps(journal), encoding="utf-8")
    sync_file(part)
    sync_folder(folder.parent)
    part.replace(folder / JOURNAL)
    sync_folder(folder)


def live(root: Path, tables: Iterable[str] = TABLES) -> Mapping[str, str]:
    """The files of a lake as of its last commit: name in the lake -> path where it lies now.

    Right as long as nobody moves files: for the holder of the lake's lock, and for a registered reader. Of a lake in a
    bucket a file comes to this machine when it is asked for by its name.
    """
    if is_remote(root):
        return storage_of(root).live(tables)
    wanted = set(tables)
    found = {name: path for table in sorted(wanted) for name, path in _below(f"{root}/{table}", table)}
    for journal in pending(root):
        for name in journal.delete:
            found.pop(name, None)
        for name in journal.add:
            if name.partition("/")[0] in wanted:
                staged = journal.folder / name
                found[name] = str(staged if staged.exists() else root / name)
    return found


def there(files: Mapping[str, str], lost: Collection[str]) -> dict[str, str]:
    """The files of a lake but for those that are gone, which nobody may ask for: of a bucket they can't be fetched."""
    return {name: files[name] for name in files if name not in lost} if lost else dict(files.items())


def _below(folder: str, name: str) -> list[tuple[str, str]]:
    """Names and paths of the Parquet files that DuckDB's `**/*.parquet` finds below a folder, links to folders not."""
    found: list[tuple[str, str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found += _below(entry.path, f"{name}/{entry.name}")
                elif entry.name.endswith(".parquet") and entry.is_file():
                    found.append((f"{name}/{entry.name}", entry.path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def settle(root: Path, patience: float = 0.0) -> bool:
    """Move the files of all commits, when nobody reads or all are done within so many seconds. Needs the lake's lock.

    Returns:
        Whether the lake's folders are what its last commit says.

    Raises:
        OSError: a file can't be moved; the commits stand, and the next settling goes on.
    """
    waiting = pending(root)
    if not waiting:
        return True
    readers = root / STAGING / READERS
    alone = locks.exclusive(readers, patience)
    if alone is None:
        if time.time() - waiting[0].written < LONGEST:
            return False
        alone = locks.take_over(readers)
    try:
        for journal in waiting:
            _finish(root, journal)
    finally:
        alone.release()
    return True


def _finish(root: Path, journal: Journal) -> None:
    """Carry out a journal; every step may have been done already."""
    folders: set[Path] = set()
    for name in journal.delete:
        folders.add((root / name).parent)
        with suppress(FileNotFoundError):
            (root / name).unlink()
    for name in journal.add:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        folders.add(target.parent)
        with suppress(FileNotFoundError):
            (journal.folder / name).replace(target)
    for parent in folders:
        with suppress(FileNotFoundError):
            sync_folder(parent)
    with suppress(FileNotFoundError):
        (journal.folder / JOURNAL).unlink()
    shutil.rmtree(journal.folder, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
