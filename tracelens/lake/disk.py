"""A disk that is full, told by the lake and the place where room is needed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracelens.errors import InputError

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
# Libraries that write by themselves quote the system's words, or wrap them.
_WORDS = ("no space left on device", "disk quota exceeded")


class DiskFullError(InputError):
    """There is no room for the lake; nothing of what was to be written is in it.

    Args:
        root: folder of the lake.
        of: the lake in a bucket for which `root` is the temporary folder.
        error: what told of it.

    Attributes:
        what: that there is no room, in a few words that stay the same while it is so.
    """

    def __init__(self, root: Path, of: Path | None = None, error: BaseException | None = None) -> None:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            self.what = "a file is larger than this process may write (ulimit -f)"
            super().__init__(f"no room for the lake at {of or root}: {self.what}; raise the limit and run it again")
            return
        place, free = _disk_of(root)
        self.what = f"no room on its disk ({place})"
        if of is not None:
            super().__init__(
                f"no room for files of the lake at {of}: {free / 1e6:,.1f} MB are free in {root}, where they lie while "
                f"this runs (disk {place}); make room there, or set $TMPDIR to another disk's folder"
            )
            return
        super().__init__(
            f"no room for the lake at {root}: {free / 1e6:,.1f} MB are free on its disk ({place}); "
            "make room there, or name a lake on another disk with --lake"
        )


def is_full(error: BaseException) -> bool:
    """Whether something failed because a disk is full."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(words in str(error).lower() for words in _WORDS)


@contextmanager
def told(root: Path) -> Iterator[None]:
    """Within it a full disk is an error that names the lake and its disk.

    Raises:
        DiskFullError: something failed because the disk is full.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        if not is_full(error):
            raise
        raise DiskFullError(root, error=error) from error


def _disk_of(path: Path) -> tuple[Path, int]:
    """Where the disk of a path is mounted, and how many bytes are free on it."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    while not os.path.ismount(place):
        place = place.parent
    return place, free
