"""Files that change while we look: what grew, what was rotated, truncated or compressed, and what is not whole yet."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracelens.errors import InputError
from tracelens.sources.discover import STDIN, Skipped, SourceFile, discover
from tracelens.sources.stream import BlockStream

# Two logs of a server differ by the stamp of their first line.
_HEAD = 1024
# A rotation may compress later than it renames: looks after which the rest of a rotated log is given up.
_TRIES = 20
_LOST = "was rotated, and where it went is not found: what was written since it was read last may be missing"


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells without reading that a file is the one it was: device and inode, size (bytes), mtime (ns)."""

    file: tuple[int, int]
    size: int
    mtime: int


@dataclass(frozen=True, slots=True)
class Content:
    """What is in a file: digest and bytes (decompressed), the digests of beginnings, and whether it is cut short.

    `cut` is only known of a compressed file: it ends before its end mark, as while a compressor writes it.
    """

    sha256: str
    bytes: int
    prefixes: dict[int, str]
    compression: str
    cut: bool


def mark_of(path: Path | None) -> Mark | None:
    """The mark of a file; None when it is not there (any more)."""
    if path is None:
        return None
    try:
        info = path.stat()
    except OSError:
        return None
    return Mark((info.st_dev, info.st_ino), info.st_size, info.st_mtime_ns)


def content_of(file: SourceFile, sizes: Sequence[int] = ()) -> Content:
    """Read a file through; `sizes` are the beginnings whose digests are wanted."""
    with BlockStream(file, checkpoints=sizes) as stream:
        for _ in stream:
            pass
        cut = stream.compression != "none" and any("compressed stream" in p.reason for p in stream.problems)
        return Content(stream.sha256, stream.bytes, dict(stream.prefix_sha256), stream.compression, cut)


def head_of(file: SourceFile) -> bytes:
    """The first bytes of a file, decompressed; empty when there are none or they can't be read."""
    with BlockStream(file, block_bytes=1 << 16) as stream:
        return next((block.data[:_HEAD] for block in stream), b"")


def compressed(file: SourceFile) -> bool:
    """Whether the first bytes of a file are those of a compressed one."""
    with BlockStream(file, block_bytes=1 << 16) as stream:
        next(iter(stream), None)
        return stream.compression != "none"


def begins_with(longer: SourceFile, size: int, sha256: str, *, and_goes_on: bool = False) -> bool:
    """Whether the first `size` bytes (decompressed) of a file have this digest, `and_goes_on` behind them."""
    end = size + and_goes_on
    with BlockStream(longer, checkpoints=(size, end)) as stream:
        for _ in stream:
            if end in stream.prefix_sha256:
                break
        return stream.prefix_sha256.get(size) == sha256 and end in stream.prefix_sha256


@dataclass(slots=True)
class _Named:
    """A file that was named by its path, as it was at the last look.

    `beside` are the rotated logs of its name that were there then.
    """

    path: Path
    base: str
    mark: Mark
    head: bytes
    beside: frozenset[tuple[int, int]]


@dataclass(slots=True)
class _Lost:
    """What was under a name before it was rotated, while nobody knows where it is now."""

    last: _Named
    tries: int = 0

    def is_another(self) -> bool:
        """Whether its name is that of the log itself, and stands for no file or another one now.

        A log that was rotated before was read before: that somebody throws it away is as it should be.
        """
        now = mark_of(self.last.path)
        return self.last.path.name == self.last.base and (now is None or now.file != self.last.mark.file)


class Follower:
    """The files behind what a user named, look after look.

    A folder or a pattern finds rotated files itself. A file that was named alone is followed through its rotation: the
    file of its folder that has its inode, or its name with something behind it and its first bytes, is read as well,
    as it may hold lines that nobody has read yet. So are the files of a rotated log's name that came to the folder
    since the last look, as there may have been several rotations.

    Args:
        paths: files, folders, patterns.

    Raises:
        InputError: standard input, which can't be looked at twice.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        if STDIN in paths:
            raise InputError("watch follows files; for a stream use `tracelens ingest -`")
        self._paths = tuple(paths)
        self._named: dict[str, _Named] = {}
        self._rotated: dict[str, str] = {}  # path -> the name it had when it was written to
        self._lost: list[_Lost] = []
        self._given_up: list[Skipped] = []
        self._looked = False

    def look(self) -> tuple[list[SourceFile], list[Skipped]]:
        """The files there are now; at the first look every argument must be there, later one may be missing for a time.

        Raises:
            InputError: at the first look, an argument names nothing that exists.
        """
        if not self._looked:
            discover(self._paths)
            self._looked = True
        here = [path for path in self._paths if _is_there(path)]
        missing = [Skipped(path, "is not there now") for path in self._paths if path not in here]
        self._follow([*here, *self._rotated])
        missing += self._given_up
        self._given_up = []
        try:
            files, skipped = discover([*here, *(path for path in self._rotated if _is_there(path))])
        except InputError:  # gone since we asked: the next look finds what took its place
            return [], missing
        return files, [*skipped, *missing]

    def _follow(self, here: Sequence[str]) -> None:
        for path, last in list(self._named.items()):
            mark = mark_of(last.path)
            if mark == last.mark:
                last.beside = _beside(last.path, last.base)
            elif mark is None or mark.file != last.mark.file or mark.size < last.mark.size or not _goes_on(last):
                self._lost.append(_Lost(last))
                del self._named[path]
                self._take_beside(last)
            else:
                last.mark, last.head = mark, head_of(_source(last.path))
                last.beside = _beside(last.path, last.base)
        for path in here:
            if path not in self._named:
                self._remember(path, self._rotated.get(path, Path(path).name))
        self._find()

    def _remember(self, path: str, base: str) -> None:
        mark = mark_of(Path(path))
        if mark is not None and Path(path).is_file():
            self._named[path] = _Named(Path(path), base, mark, head_of(_source(Path(path))), _beside(Path(path), base))

    def _take_beside(self, last: _Named) -> None:
        """Logs that were begun and rotated between two looks; an older one that was compressed keeps its time."""
        for path, mark in _rotations(last.path, last.base).items():
            is_new = mark.file not in last.beside and mark.file != last.mark.file and mark.mtime >= last.mark.mtime
            if is_new and str(path) not in self._named:
                self._rotated[str(path)] = last.base
                self._remember(str(path), last.base)

    def _find(self) -> None:
        """Look for rotated logs by inode, then by name and first bytes."""
        for lost in list(self._lost):
            lost.tries += 1
            found = _moved_to(lost.last)
            if found is not None and str(found) not in self._named:
                self._rotated[str(found)] = lost.last.base
                self._remember(str(found), lost.last.base)
            if found is None and lost.tries > _TRIES and lost.is_another():
                self._given_up.append(Skipped(lost.last.base, _LOST))
            if found is not None or lost.tries > _TRIES:
                self._lost.remove(lost)
        self._rotated = {path: base for path, base in self._rotated.items() if path in self._named}


def _is_there(argument: str) -> bool:
    """Whether a path exists, or a pattern matches anything."""
    try:
        Path(argument).lstat()
    except OSError:
        return glob.has_magic(argument) and next(glob.iglob(argument, recursive=True), None) is not None  # noqa: PTH207
    return True


def _source(path: Path) -> SourceFile:
    return SourceFile(path, path.name, "", None, None)


def _goes_on(last: _Named) -> bool:
    """Whether the file still begins as it did: a copy may be made and the log begin anew between two looks."""
    return head_of(_source(last.path)).startswith(last.head)


def _rotations(path: Path, base: str) -> dict[Path, Mark]:
    """The files of a folder that have a rotated log's name: `a.log.1`, `a.log-20260506.gz`, `a-2026-05-06.log`."""
    stem = re.escape(Path(base).stem)
    name = re.compile(rf"{re.escape(base)}[.~_-].+|{stem}[._-]\d.*", re.DOTALL)
    try:
        siblings = sorted(p for p in path.parent.iterdir() if p.name != base and name.fullmatch(p.name))
    except OSError:
        return {}
    return {p: mark for p in siblings if (mark := mark_of(p)) is not None and p.is_file()}


def _beside(path: Path, base: str) -> frozenset[tuple[int, int]]:
    return frozenset(mark.file for mark in _rotations(path, base).values())


def _moved_to(last: _Named) -> Path | None:
    try:
        siblings = sorted(p for p in last.path.parent.iterdir() if p.name != last.path.name)
    except OSError:
        return None
    marks = {path: mark for path in siblings if (mark := mark_of(path)) is not None and path.is_file()}
    same = [path for path, mark in marks.items() if mark.file == last.mark.file and mark.size >= last.mark.size]
    stem = Path(last.base).stem
    named = (path for path in marks if path.name.startswith(stem) and path.name != last.base and last.head)
    return next((path for path in (*same, *named) if head_of(_source(path)).startswith(last.head)), None)
