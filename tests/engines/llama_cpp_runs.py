"""Help for the tests of llama.cpp: lines and records as one source, and the real runs beside the project."""

from pathlib import Path
from typing import Any

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.llama_cpp import ENGINE
from tracelens.ingest.read import read
from tracelens.lake.schema import table
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import discover

RUNS = Path(__file__).parents[2].parent / "shared" / "real" / "llamacpp" / "runs"
LINES = {"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String}
CONTEXT = Context("src", lambda frame: resolve(frame, tz=None, year=None, mtime=0.0))


def ingest(*entries: str | dict[str, Any], stamp: str | None = None) -> tuple[Tables, list[Reject]]:
    """Text lines (in one block, where they hold a needle) and records (dicts) as one source."""
    needles = [n.decode() for n in ENGINE.needles]
    parsed = Parsed()
    texts = [(i, 10 * i, t, stamp, None) for i, t in enumerate(entries, 1) if isinstance(t, str)]
    texts = [t for t in texts if any(n in t[2] for n in needles)]
    if texts:
        parsed.merge(ENGINE.lines(pl.DataFrame(texts, schema=LINES, orient="row")))
    records = [JsonRecord(i, 10 * i, stamp, None, r) for i, r in enumerate(entries, 1) if isinstance(r, dict)]
    parsed.merge(ENGINE.records(records))
    tables = ENGINE.assemble(parsed.frames, CONTEXT)
    check(tables)
    return tables, parsed.rejects + tables.rejects


def check(tables: Tables) -> None:
    """Columns are canonical and of the right type, and rounds keep the identities (the pipeline sees to the rest)."""
    for name in ("rounds", "windows", "requests", "runs"):
        frame = getattr(tables, name)
        if frame is None:
            continue
        types = table(name).polars_schema()
        own = {c: t for c, t in frame.schema.items() if c != "run_key"}
        assert set(own) <= set(types), name
        full = frame.drop("run_key", strict=False).cast(
            {c: types[c] for c in own}
        )  # a number too large for its column raises
        full = full.with_columns(pl.lit(None, t).alias(c) for c, t in types.items() if c not in own)
        if name in ("rounds", "windows"):
            assert full.select(broken_identities(name, full).alias("fault"))["fault"].null_count() == full.height


def rows(frame: pl.DataFrame | None) -> list[dict[str, Any]]:
    """Rows without what is null."""
    assert frame is not None
    return [{k: v for k, v in row.items() if v is not None} for row in frame.iter_rows(named=True)]


def shown(frame: pl.DataFrame | None, *columns: str) -> list[tuple[Any, ...]]:
    """The columns' values; null for one that is missing."""
    assert frame is not None
    missing = [pl.lit(None).alias(c) for c in columns if c not in frame.columns]
    return frame.with_columns(missing).select(columns).rows()


def ingest_file(folder: Path, pattern: str) -> tuple[Tables, list[Reject]]:
    """The one file of a run that fits, as the pipeline reads it."""
    files, _ = discover([str(next(folder.glob(pattern)))])
    reading = read(files[0], [ENGINE])
    parsed = reading.parsed[ENGINE.name]
    tables = ENGINE.assemble(parsed.frames, CONTEXT)
    check(tables)
    return tables, reading.rejects + parsed.rejects + tables.rejects
