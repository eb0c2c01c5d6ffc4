"""What all processes that read logs have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


def begin() -> None:
    """What a process does before it reads: Ctrl-C ends it at once, and only the first process says something."""
    from tracelens.cli import without_pandas

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    without_pandas()


@contextmanager
def shared_cores(workers: int) -> Iterator[None]:
    """Processes that are started within it use as many threads as each has cores: more would only wait."""
    name, before = "POLARS_MAX_THREADS", os.environ.get("POLARS_MAX_THREADS")
    os.environ[name] = before or str(max(1, (os.cpu_count() or 1) // workers))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
