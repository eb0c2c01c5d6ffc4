"""What a user may have meant by a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(names: Iterable[str], known: Iterable[str]) -> str:
    """`did you mean task_type? ` with the nearest known name of every one that is not there; empty without any.

    Upper and lower case are one; a name of another kind (`temperature` for `temp`) is near as its start.
    """
    there = {name.casefold(): name for name in sorted(known, reverse=True)}
    near = [found for name in names if (found := _nearest(name.casefold(), there)) is not None]
    return f"did you mean {', '.join(dict.fromkeys(near))}? " if near else ""


def _nearest(name: str, there: dict[str, str]) -> str | None:
    close = difflib.get_close_matches(name, there, n=1)
    if not close:
        close = [one for one in sorted(there, key=len) if len(name) > 2 and one.startswith(name)][:1]
    return there[close[0]] if close else None
