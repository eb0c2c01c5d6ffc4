"""What a watch outlives, and what it does not: a full disk, a disk that is away, a lake that is gone."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

from tracelens.lake.bucket_errors import AwayError
from tracelens.lake.disk import DiskFullError
from tracelens.lake.storage import storage_of


def place_of(lake: Path) -> Hashable | None:
    """What tells a lake from another one at the same path."""
    return storage_of(lake).identity()


def passes(error: Exception) -> bool:
    """Whether the next look may do better: a disk is full or away, and nobody gave a wrong argument."""
    return isinstance(error, OSError | DiskFullError | AwayError) or isinstance(error.__cause__, OSError)


def trouble(error: Exception) -> str:
    """What stood in the way of a look, in words that stay the same while it does."""
    if isinstance(error, DiskFullError):
        return f"{error.what}: nothing was read, the next look tries again"
    return f"nothing was read, the next look tries again: {error}"
