"""A fault in one reader costs the part of the source that it was reading, and no other part, source or file.

Readers refuse what they foresee. What they do not foresee is caught here, counted as a reject that names the reader,
the kind of exception and the place in our own code, never its text: that could quote a record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tracelens.engines.base import Reject
from tracelens.errors import StoppedError, TracelensError, place_of

# The beginning of the reason of every such reject.
FAULT = "a fault of tracelens"
# Set (to anything) where a fault is to end the program: in tests, and to see where one comes from.
RAISE = "TRACELENS_RAISE_FAULTS"

# Trouble of the machine or of who called, which every further part would have as well.
_PASS = (TracelensError, StoppedError, OSError, MemoryError)


@contextmanager
def guarded(reader: str, rejects: list[Reject], line: int = 0) -> Iterator[None]:
    """Turn an exception of a reader that nobody foresaw into a reject.

    Args:
        reader: who reads: the name of an engine, or the form of the source.
        rejects: gets what went wrong.
        line: the first line of what is read; 0 for the whole source.

    Raises:
        TracelensError, StoppedError, OSError, MemoryError: as they come; and anything where `RAISE` is set.
    """
    try:
        yield
    except _PASS:
        raise
    except BaseException as error:
        # A panic inside polars is no Exception, and as much a fault of one part.
        if os.environ.get(RAISE) or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        rejects.append(Reject(line, f"{FAULT}: reader {reader}: {type(error).__name__} at {place_of(error)}"))


def faults(reasons: Iterable[str]) -> list[str]:
    """Those reasons of refusals that are faults of ours."""
    return [reason for reason in reasons if reason.startswith(FAULT)]
