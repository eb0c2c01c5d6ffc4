"""Find the files behind what a user names: files, folders, globs, `-` for standard input."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracelens.errors import InputError

STDIN = "-"
# A parameter sweep (`vllm bench sweep`) writes each run's result, and beside them all of them once more.
_RUN = re.compile(r"run=\d+\.json")
_SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read.

    `path` is None for standard input. `name` is the POSIX path below the folder that was named, or the base
    name of a file that was named. `folder_key` tells siblings without revealing where they lie. `mtime` is in
    seconds since the epoch, `size` in bytes; both are None for standard input.
    """

    path: Path | None
    name: str
    folder_key: str
    mtime: float | None
    size: int | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was met and is not read, and why."""

    name: str
    reason: str


def discover(paths: Sequence[str]) -> tuple[list[SourceFile], list[Skipped]]:
    """List the files behind `paths`, each real file once, in the order of the arguments and sorted within.

    Args:
        paths: files, folders (walked recursively; names with a leading dot are passed over), shell-style globs
            where no such path exists, `-` for standard input.

    Returns:
        The files to read, and what was met but is not read, with the reason.

    Raises:
        InputError: an argument names nothing that exists.
    """
    found = _Found()
    for argument in paths:
        if argument == STDIN:
            found.add_stdin()
            continue
        for path in _expand(argument):
            if _is_folder(path):
                found.add_folder(path)
            else:
                found.add_file(path, path.name)
    found.drop_summaries()
    return found.files, found.skipped


def _expand(argument: str) -> list[Path]:
    """The literal path, or what the glob matches."""
    if not argument.strip():
        raise InputError("an empty path was given (an unset variable?); name a file, a folder, a pattern or -")
    path = Path(argument)
    try:
        path.lstat()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise InputError(f"cannot read {argument}: {error.strerror}. Check its permissions.") from error
    else:
        return [path]
    matches = _glob(argument) if glob.has_magic(argument) else []
    if not matches:
        what = "no file matches" if glob.has_magic(argument) else "no such file or folder:"
        raise InputError(
            f"{what} {argument}. Check the path, or name a file, a folder, a glob or - for standard input."
        )
    return matches


def _glob(pattern: str) -> list[Path]:
    # glob keeps the literal prefix of the pattern, so that names read as the user typed them.
    return [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a link into a folder that may not be entered
        return False


def _kind(mode: int) -> str:
    """What a thing that is no regular file is called."""
    for test, name in (
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    ):
        if test(mode):
            return name
    return "no regular file"


def _key(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]


class _Found:
    """What was found so far; remembers real files and folders by device and inode."""

    def __init__(self) -> None:
        self.files: list[SourceFile] = []
        self.skipped: list[Skipped] = []
        self._seen: set[tuple[int, int]] = set()

    def add_stdin(self) -> None:
        if not any(file.path is None for file in self.files):
            key = hashlib.sha256(b"<stdin>").hexdigest()[:16]
            self.files.append(SourceFile(None, "<stdin>", key, None, None))

    def add_file(self, path: Path, name: str) -> None:
        name = name.encode("utf-8", "replace").decode()  # names are bytes to the system, text to the lake
        try:
            info = path.stat()
        except OSError as error:
            self.skipped.append(Skipped(name, f"cannot be read: {error.strerror}"))
            return
        if not stat.S_ISREG(info.st_mode):
            self.skipped.append(Skipped(name, f"is {_kind(info.st_mode)}"))
            return
        if (info.st_dev, info.st_ino) in self._seen:
            return
        self._seen.add((info.st_dev, info.st_ino))
        if path.suffix == ".parquet":
            self.skipped.append(Skipped(name, "is a Parquet file: a lake is read with `query`, not ingested"))
            return
        if not os.access(path, os.R_OK):
            self.skipped.append(Skipped(name, "cannot be read: Permission denied"))
            return
        self.files.append(SourceFile(path, name, _key(path.parent), info.st_mtime, info.st_size))

    def drop_summaries(self) -> None:
        """Pass over what repeats the results beside it: they would count twice."""
        told = {f.path.parent for f in self.files if f.path is not None and _RUN.fullmatch(f.path.name)}
        again = [f for f in self.files if f.path is not None and f.path.name == _SUMMARY and f.path.parent in told]
        self.files = [f for f in self.files if f not in again]
        self.skipped += [Skipped(f.name, "repeats the results of run=*.json beside it") for f in again]

    def add_folder(self, root: Path) -> None:
        for path in self._walk(root):
            self.add_file(path, path.relative_to(root).as_posix())

    def _walk(self, root: Path) -> Iterator[Path]:
        def refused(error: OSError) -> None:
            where = Path(os.fsdecode(error.filename or root))
            name = where.relative_to(root).as_posix() if where.is_relative_to(root) else where.name
            self.skipped.append(Skipped(root.name if name == "." else name, f"cannot be read: {error.strerror}"))

        folders: set[tuple[int, int]] = set()  # a link back to a folder above would never end
        for folder, names, files in os.walk(root, onerror=refused, followlinks=True):
            here = Path(folder)
            try:
                info = here.stat()
            except OSError as error:  # gone since it was listed
                refused(error)
                continue
            if (info.st_dev, info.st_ino) in folders:
                names.clear()
                continue
            folders.add((info.st_dev, info.st_ino))
            if {"sources", "rounds"} <= set(names):
                name = root.name if here == root else here.relative_to(root).as_posix()
                self.skipped.append(Skipped(name, "is a tracelens lake, not a log"))
                names.clear()
                continue
            names[:] = sorted(name for name in names if not name.startswith("."))
            yield from (here / name for name in sorted(files) if not name.startswith("."))
