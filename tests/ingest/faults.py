"""Ingests in processes of their own that are killed, or whose disk fails, at any step that they take to the disk.

Run as a script it reads `KIND STEP LAKE` from stdin: it forks, and the child ingests the logs of the command line
into the lake (with `--parts` each of them in parts), or with `--forget` forgets the sources of these names. At the n-th
file that it opens to write, makes, renames, removes or waits for, it is killed as by kill -9 or gets an error from the
system. Another child looks at what is left and runs the same command again. Nothing has started a thread before the
forks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
KINDS = ("kill", *ERRORS)
# What every child needs; pyarrow looks for pandas where it is installed.
_IMPORTED_ONCE = (
    "ahocorasick_rs", "duckdb", "ingest_logs", "msgspec", "pandas", "polars", "pyarrow.dataset", "pyarrow.parquet",
    "tracelens.engines.generic", "tracelens.engines.rtp_llm", "tracelens.engines.vllm", "tracelens.lake.parquet",
)  # fmt: skip
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def arm(kind: str, at: int, lake: str) -> list[int]:
    """Let the `at`-th step fail; gives the count of them."""
    import pyarrow.parquet as pq

    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] == at:
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]))

    def hook(event: str, args: Any) -> None:
        if not args or lake not in str(args[0]):
            return
        if event in _EVENTS or (event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            step()

    def ticking(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            step()
            return real(*args, **kwargs)

        return call

    os.fsync = ticking(lambda handle: None)  # nobody pulls the plug: the disk need not be waited for
    pq.write_table = ticking(pq.write_table)
    for name in ("write_table", "close") if "--parts" in sys.argv else ():
        setattr(pq.ParquetWriter, name, ticking(getattr(pq.ParquetWriter, name)))
    sys.addaudithook(hook)
    return count


def whole(lake: Path) -> bool:
    """Whether whatever a reader finds in the ledger has all its rows, and nothing else is there."""
    import pyarrow.parquet as pq

    from tracelens.lake.schema import TABLES
    from tracelens.lake.snapshot import reading

    counts: dict[tuple[str, str], int] = {}
    with reading(lake) as found:
        for name in TABLES:
            for row in (row for path in found.of(name) for row in pq.ParquetFile(path).read().to_pylist()):
                if name == "sources":
                    for kind, n in row["rows"]:
                        counts[row["source_id"], kind] = counts.get((row["source_id"], kind), 0) - n
                elif row.get("source_id") is not None:
                    counts[row["source_id"], name] = counts.get((row["source_id"], name), 0) + 1
    return not any(counts.values())


def in_parts() -> None:
    """Put a log together some lines at a time."""
    from tracelens.ingest import parts, read
    from tracelens.sources import stream

    parts.PART, read.BATCH, read._BLOCK, stream._HEAD = 4, 1, 400, 64
    stream.BlockStream.__init__.__kwdefaults__["block_bytes"] = 400


def _act(lake: Path, asked: list[str]) -> None:
    """What the command line says: logs to ingest (behind `--parts` in parts), or `--forget` and names of sources."""
    from tracelens.ingest.options import IngestOptions
    from tracelens.ingest.run import ingest
    from tracelens.lake import ledger
    from tracelens.lake.forget import forget_named

    if asked[0] == "--parts":
        in_parts()
        asked = asked[1:]
    if asked[0] != "--forget":
        ingest(asked, lake, IngestOptions(year=2026, jobs=1))
        return
    left = {entry.name for entry in ledger.read(lake).entries}  # who runs it again may have nothing left to forget
    forget_named(lake, [name for name in asked[1:] if name in left])


def _fail(kind: str, at: int, lake: Path, asked: list[str]) -> dict[str, Any]:
    from tracelens.errors import InputError

    count = arm(kind, at, str(lake))
    try:
        _act(lake, asked)
    except (OSError, InputError) as error:
        return {"how": kind, "steps": count[0], "said": str(error)}
    return {"how": "done", "steps": count[0]}


def _again(lake: Path, asked: list[str]) -> dict[str, Any]:
    from ingest_logs import everything

    left = whole(lake)
    _act(lake, asked)
    staged = [p.name for p in (lake / ".staging").iterdir() if p.is_dir()]
    return {"whole": left, "rows": hashlib.sha256(repr(everything(lake)).encode()).hexdigest(), "staged": staged}


def _in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        answer: dict[str, Any] = json.loads(told.read() or "{}")
    if os.waitpid(pid, 0)[1] == signal.SIGKILL:
        answer["how"] = "kill"
    return answer


def main(asked: list[str]) -> None:
    """Answer each line of stdin with one of JSON."""
    for name in _IMPORTED_ONCE:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        kind, at, place = line.split()
        lake = Path(place)
        ended = _in_child(lambda: _fail(kind, int(at), lake, asked))  # noqa: B023 - called before the next line
        after = _in_child(lambda: _again(lake, asked))  # noqa: B023
        print(json.dumps(ended | after), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
