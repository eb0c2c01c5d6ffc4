"""Where results go: stdout, or a file that is either the whole result or what it was before."""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tracelens.errors import InputError


class _Told(io.FileIO):
    """A file whose errors of writing name the place that the user gave, and not its own temporary name or none."""

    def __init__(self, file: int | Path, place: Path) -> None:
        super().__init__(file, "wb")
        self._place = place

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _not_written(self._place, error) from error


def _not_written(place: Path, error: OSError) -> InputError:
    if isinstance(error, IsADirectoryError):
        return InputError(f"cannot write {place}: it is a folder; give a file with -o")
    return InputError(f"cannot write {place}: {error.strerror or error}; give another place with -o")


def _text(file: int | Path, place: Path) -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(_Told(file, place)), encoding="utf-8", newline="")


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Give stdout (`path` None or `-`), or a UTF-8 file that takes the place of `path` once all is written.

    Raises:
        InputError: the file cannot be written there.
    """
    if path is None or str(path) == "-":
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.filename is not None:  # of a file that is read
                raise
            raise InputError(f"cannot write to stdout: {error.strerror or error}") from error
        return
    target = _target(path)
    if target.exists() and not target.is_file():
        try:
            out = _text(target, path)
        except OSError as error:
            raise _not_written(path, error) from error
        with out:  # a device or a pipe is written to, never replaced
            yield out
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    temporary = Path(name)
    try:
        with _text(handle, path) as out:
            yield out
        _take_place(temporary, target, path)
    finally:
        temporary.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """The file that a link points to, and not the link."""
    if not path.is_symlink():
        return path
    try:
        found = path.resolve()
    except (OSError, RuntimeError):  # a loop is the one or the other, or none, by the version of Python
        found = path
    if found.is_symlink():
        raise InputError(f"cannot write {path}: it is a link that leads to itself; give another place with -o")
    return found


def _take_place(temporary: Path, target: Path, place: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    try:
        temporary.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~mask)
        temporary.replace(target)
    except OSError as error:
        raise _not_written(place, error) from error
