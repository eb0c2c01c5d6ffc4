"""`inspect`: what is in these files, without writing anything."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.analysis.results import Missing
from tracelens.engines.base import Context, Engine, Reject, Tables
from tracelens.ingest import advice
from tracelens.ingest.guard import guarded
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.read import read
from tracelens.lake.schema import DAY_OF
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile, discover

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Inspected:
    """One source: what it is and what was recognised in it."""

    name: str
    note: str | None
    compression: str
    encoding: str
    envelopes: tuple[str, ...]
    lines: int
    surfaces: Mapping[str, int]
    versions: tuple[str, ...]
    models: tuple[str, ...]
    first: dt.datetime | None
    last: dt.datetime | None
    rejects: int


@dataclass(frozen=True, slots=True)
class Known:
    """A surface that was found: what it is, which versions write it, and what it gives of `advice.FIGURES`."""

    title: str
    versions: str
    gives: tuple[str, ...]
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The answer of `tracelens inspect`."""

    sources: tuple[Inspected, ...]
    skipped: tuple[tuple[str, str], ...]
    titles: Mapping[str, Known]
    allowed: tuple[str, ...]
    missing: tuple[Missing, ...]


def inspect(paths: Sequence[str], options: IngestOptions) -> Inspection:
    """Read sources and say what they hold.

    Raises:
        InputError: a missing path or an unusable option.
    """
    from tracelens.engines import load

    engines = load(options.engine)
    files, skipped = discover(paths)
    sources = tuple(_inspect(f, engines, options) for f in files)
    found = {s for one in sources for s in one.surfaces}
    return Inspection(
        sources,
        tuple((s.name, s.reason) for s in skipped),
        {
            s.name: Known(s.title, s.versions, *advice.of_surface(s))
            for e in engines
            for s in e.surfaces
            if s.name in found
        },
        tuple(advice.allowed(engines, found)),
        tuple(advice.missing(engines, found)),
    )


def _inspect(file: SourceFile, engines: Sequence[Engine], options: IngestOptions) -> Inspected:
    reading = read(file, engines)
    context = Context("inspect", lambda f: resolve(f, tz=options.tz, year=options.year, mtime=file.mtime))
    surfaces: dict[str, int] = {}
    versions: set[str] = set()
    models: set[str] = set()
    stamps: list[dt.datetime] = []
    rejects = len(reading.rejects)
    for engine in engines:
        parsed = reading.parsed[engine.name]
        rejects += len(parsed.rejects)
        if not parsed.frames:
            continue
        for surface, frames in parsed.frames.items():
            surfaces[surface] = surfaces.get(surface, 0) + sum(f.height for f in frames)
        made, broken = Tables(), list[Reject]()
        with guarded(engine.name, broken):
            made = engine.assemble(parsed.frames, context)
        rejects += len(broken)
        rejects += len(made.rejects)
        versions |= _values(made.runs, "engine_version")
        models |= _values(made.runs, "model") | _values(made.requests, "model")
        stamps += _range(made)
    note = (
        "not text" if reading.binary else "empty" if not reading.bytes else None if surfaces else "nothing recognised"
    )
    return Inspected(
        file.name, note, reading.compression, reading.encoding, reading.envelopes, reading.lines, surfaces,
        tuple(sorted(versions)), tuple(sorted(models)), min(stamps, default=None), max(stamps, default=None), rejects,
    )  # fmt: skip


def _values(frame: pl.DataFrame | None, column: str) -> set[str]:
    if frame is None or column not in frame.columns:
        return set()
    return set(frame[column].drop_nulls().unique().to_list())


def _range(made: Tables) -> list[dt.datetime]:
    found: list[dt.datetime] = []
    for name, column in DAY_OF.items():
        frame: pl.DataFrame | None = getattr(made, name)
        if frame is not None and column in frame.columns and frame[column].dtype.is_temporal():
            stamps = frame[column].drop_nulls()
            if len(stamps):
                low, high = stamps.min(), stamps.max()
                if isinstance(low, dt.datetime) and isinstance(high, dt.datetime):
                    found += [low, high]
    return found
