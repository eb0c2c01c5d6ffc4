"""What all processes that read logs have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


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
