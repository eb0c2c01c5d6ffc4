"""Where the top-level rooms `queries/`, `schemas/` and `samples/` lie: in the wheel, or beside the package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def room(name: str) -> Path:
    """Return the folder of a top-level room.

    Args:
        name: `queries`, `schemas` or `samples`.

    Raises:
        FileNotFoundError: the installation is broken: neither layout holds the room.
    """
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}/ is missing from this installation of tracelens; install it again")
