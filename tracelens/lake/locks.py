"""Advisory locks of files. Where there are none (Windows, some network disks) nobody waits for anybody."""

from __future__ import annotations

import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no locks of this kind; there one process at a time is the user's care
    fcntl = None  # type: ignore[assignment]

_STEP = 0.01  # seconds between two tries


class Lock:
    """A lock that is held until `release` or the end of the process, however that comes."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def release(self) -> None:
        """Let others have it; a second time is none."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def shared(path: Path, patience: float) -> Lock | None:
    """Hold a file together with others; None when it can't be had within so many seconds, or is not there.

    Nothing is written: whoever may read the file may hold it.
    """
    if fcntl is None:
        return None
    try:
        return _taken(path, os.O_RDONLY, fcntl.LOCK_SH, patience)
    except OSError:
        return None


def exclusive(path: Path, patience: float) -> Lock | None:
    """Hold a file alone, and make it where there is none; None when others hold it for more than so many seconds.

    Raises:
        OSError: the file can't be opened for writing.
    """
    if fcntl is None:
        return Lock(None)
    return _taken(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, patience)


def take_over(path: Path) -> Lock:
    """Hold a new file under the name of one that others would not let go: they hold what nobody looks at any more."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    lock = exclusive(new, 0.0)
    new.replace(path)
    return lock or Lock(None)


def _taken(path: Path, flags: int, how: int, patience: float) -> Lock | None:
    until = time.monotonic() + patience
    while True:
        handle = os.open(path, flags, 0o666)
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
            if _is_at(path, handle):
                return Lock(handle)
        except BlockingIOError:
            pass
        except OSError:  # this disk has no locks: nobody can hold one
            os.close(handle)
            return Lock(None) if how == fcntl.LOCK_EX else None
        os.close(handle)
        if time.monotonic() >= until:
            return None
        time.sleep(_STEP)


def _is_at(path: Path, handle: int) -> bool:
    """Whether the open file still has its name: somebody may have taken it over since."""
    mine = os.fstat(handle)
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (now.st_dev, now.st_ino)
