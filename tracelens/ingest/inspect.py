"""`inspect`: what is in these files, without writing anything."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.analysis.results import Missing
from tracelens.engines.base import Context, Engine, Reject, Tables
from tracelens.ingest import advice, names
from tracelens.ingest.guard import guarded
from tracelens.ingest.holdings import Held, held_by
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.read import Reading, read
from tracelens.lake.schema import DAY_OF
from tracelens.sources.clocks import resolve
from tracelens.sources.discover import SourceFile, discover
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import polars as pl


# A speculation profile (Model-Optimizer's specdec_bench) is no log: acceptance that was measured elsewhere.
REFERENCE = "a speculation profile, an offline reference and no log: compare with it by `--claim @FILE`"
_PROFILE = (b'"mean_accept_length"', b'"marginal_accept_rates"', b'"conditional_accept_rates"')
_LARGEST_PROFILE = 4 << 20


@dataclass(frozen=True, slots=True)
class Inspected:
    """One source: what it is and what was recognised in it.

    `size` is in what it is made of: lines, JSON objects, events, or bytes. `is_reference`: no log, but a file that
    `--claim` takes.
    """

    name: str
    note: str | None
    size: str
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
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """A surface that was found: what it is, which versions write it, and what these records of it give.

    `gives` and `lacks` are all of `advice.FIGURES`; `unfilled` those of `lacks` that other records of its kind hold.
    """

    title: str
    versions: str
    gives: tuple[str, ...]
    lacks: tuple[str, ...]
    unfilled: tuple[str, ...]


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
    held: dict[str, Held] = {e.name: Held() for e in engines}
    sources = tuple(_inspect(f, engines, options, held) for f in files)
    found = {s for one in sources for s in one.surfaces}
    return Inspection(
        sources,
        tuple((s.name, s.reason) for s in skipped),
        {
            s.name: Known(s.title, str(s.versions), *advice.of_surface(s, held[e.name]))
            for e in engines
            for s in e.surfaces
            if s.name in found or s.name in held[e.name].needs
        },
        tuple(advice.allowed(engines, found, held)),
        tuple(advice.missing(engines, found, held)),
    )


def _inspect(
    file: SourceFile, engines: Sequence[Engine], options: IngestOptions, held: Mapping[str, Held]
) -> Inspected:
    """One source; what its rows hold is added to `held`, by engine."""
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
        held[engine.name].add(held_by(made))
        # What ingest would not keep is not shown either.
        runs, requests = (
            f if f is None else names.cleaned(engine.name, n, f)
            for n, f in (("runs", made.runs), ("requests", made.requests))
        )
        versions |= _values(runs, "engine_version")
        models |= _values(runs, "model") | _values(requests, "model")
        stamps += _range(made)
    note, is_reference = (None, False) if surfaces else _unrecognised(reading, file)
    return Inspected(
        file.name, note, _size(reading), reading.compression, reading.encoding, reading.envelopes, reading.lines,
        surfaces, tuple(sorted(versions)), tuple(sorted(models)), min(stamps, default=None), max(stamps, default=None),
        rejects, is_reference,
    )  # fmt: skip


def _unrecognised(reading: Reading, file: SourceFile) -> tuple[str, bool]:
    """What there is to say of a source without a record, and whether it is a reference."""
    if reading.binary:
        return "not text", False
    if not reading.bytes:
        return "empty", False
    if file.path is not None and reading.bytes <= _LARGEST_PROFILE:
        with BlockStream(file) as stream:
            text = b"".join(block.data for block in stream)
        if text.lstrip()[:1] == b"{" and any(key in text for key in _PROFILE):
            return REFERENCE, True
    refused = [r.reason for parsed in reading.parsed.values() for r in parsed.rejects] + [
        r.reason for r in reading.rejects
    ]
    return f"nothing recognised: {refused[0]}" if refused else "nothing recognised", False


def _size(reading: Reading) -> str:
    for count, one in ((reading.events, "event"), (reading.elements, "JSON object"), (reading.lines or None, "line")):
        if count is not None:
            return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"
    return "1 byte" if reading.bytes == 1 else f"{reading.bytes:,} bytes"


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
