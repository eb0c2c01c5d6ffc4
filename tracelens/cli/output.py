"""Where results go: stdout, or a file that is either the whole result or what it was before."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tracelens.errors import InputError


@contextmanager
def _through(path: Path) -> Iterator[TextIO]:
    try:
        with path.open("w", encoding="utf-8", newline="") as out:
            yield out
    except IsADirectoryError as error:
        raise InputError(f"cannot write {path}: it is a folder; give a file with -o") from error
    except PermissionError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give another place with -o") from error


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Give stdout (`path` None or `-`), or a UTF-8 file that takes the place of `path` once all is written.

    Raises:
        InputError: the file cannot be written there.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = path.resolve() if path.is_symlink() else path  # the file a link points to, and not the link
    if path.exists() and not path.is_file():
        with _through(path) as out:  # a device or a pipe is written to, never replaced
            yield out
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give another place with -o") from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as out:
            yield out
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~mask)
        temporary.replace(path)
    except IsADirectoryError as error:
        raise InputError(f"cannot write {path}: it is a folder; give a file with -o") from error
    finally:
        temporary.unlink(missing_ok=True)
