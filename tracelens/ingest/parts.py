"""A long text log in parts: rows are written while it is read, and its memory no longer grows with it.

A row names its source by the digest of the whole file, and what a line says may depend on lines far from it. So the
file is read for its digest once it has shown to be long, and each part is checked: where its rows could differ from
those of the log in one go, or anything else is out of the ordinary, `Unproved` sends the file to that road.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.engines.base import Assembly, Context, Engine, Parsed, PartsError, PartsReader, Reject, Tables
from tracelens.ingest.digest import Digest
from tracelens.ingest.fast import Unproved
from tracelens.ingest.guard import guarded
from tracelens.ingest.holdings import Held, held_by
from tracelens.ingest.refused import Refused
from tracelens.ingest.rows import Finished, Naming, finish, told_by
from tracelens.lake.parquet import DayWriters
from tracelens.lake.schema import FACTS
from tracelens.sources.clocks import Clock
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import polars as pl

    from tracelens.ingest.labels import Labels
    from tracelens.ingest.read import Reading
    from tracelens.ingest.redact import Redaction

# Lines that are put together at once: some 100 MB while it is done. A line of some surfaces holds many rounds.
PART = 40_960
PART_BYTES = 4 << 20


@dataclass(slots=True)
class Begun:
    """What was written before the end of a source was seen."""

    digest: Digest
    rows: Counter[str] = field(default_factory=Counter)
    surfaces: Counter[str] = field(default_factory=Counter)
    rejects: Refused = field(default_factory=Refused)
    held: dict[str, Held] = field(default_factory=dict)


class InParts:
    """Writes the rows of a log as it is read.

    Args:
        file: the log, which can be read twice.
        engines: readers; those that can put a log together in parts do.
        checkpoints: as `BlockStream`.
        known: digests of what is in the lake, with names.
        naming: names the runs, by the digest of the file.
        clock: makes a clock for its stamps.
        columns, labels, redaction: as `finish`.
        place: gives the path to write for a path in the lake.
    """

    def __init__(
        self,
        file: SourceFile,
        engines: Sequence[Engine],
        *,
        checkpoints: Sequence[int],
        known: Mapping[str, str],
        naming: Callable[[str], Naming],
        clock: Callable[[], Clock],
        columns: Mapping[str, Any],
        labels: Labels,
        redaction: Redaction | None,
        place: Callable[[str], Path],
    ) -> None:
        self._file, self._checkpoints, self._known = file, checkpoints, known
        self._naming, self._columns, self._labels, self._redaction = naming, columns, labels, redaction
        self._place = place
        self._paths: list[Path] = []
        self._assemblies: dict[str, Assembly] = {}
        self._clocks: dict[str, Clock] = {}
        for engine in engines:
            if isinstance(engine, PartsReader):
                self._clocks[engine.name] = clock()
                self._assemblies[engine.name] = engine.parts(self._clocks[engine.name].resolve)
        self._writers: dict[str, DayWriters] = {}
        self._told: dict[tuple[str, str], list[pl.DataFrame]] = {}
        self.written: Begun | None = None

    def offer(self, parsed: Mapping[str, Parsed], stream: BlockStream | None = None) -> None:
        """Take what was found so far where it is a part's worth.

        Raises:
            Unproved: the source is to be put together in one go.
        """
        for engine, assembly in self._assemblies.items():
            frames = parsed[engine].frames
            mine = {surface: frames[surface] for surface in assembly.surfaces if surface in frames}
            if not _is_part([frame for parts in mine.values() for frame in parts]):
                continue
            written = self.written or self.begin(stream)
            for surface, parts in mine.items():
                written.surfaces[surface] += sum(frame.height for frame in parts)
                del frames[surface]
            source_id = self._naming(written.digest.scan.sha256).source_id
            made = self._finished(engine, partial(assembly.part, mine, source_id), is_last=False)
            self._keep(engine, made, written)

    def begin(self, stream: BlockStream | None = None, limit: int | None = None) -> Begun:
        """Learn the digest of the whole, as it is now: a log of a server that runs grows while it is read.

        Args:
            stream: what is being read; it makes no digest any more, and ends where the whole did.
            limit: bytes of the whole.

        Raises:
            Unproved: the source is in the lake, no text in UTF-8, or no more what was read.
        """
        sizes = self._checkpoints if stream is None else (*self._checkpoints, stream.bytes)
        digest = Digest.of(self._file, sizes, limit)
        scan = digest.scan
        if scan.sha256 in self._known:
            raise Unproved("a source that is in the lake")
        if stream is not None:
            if scan.prefixes.get(stream.bytes) != stream.sha256:
                raise Unproved("a file that changes")
            stream.without_figures(scan.bytes)
        prefixes = {n: digest for n, digest in scan.prefixes.items() if n in self._checkpoints}
        self.written = Begun(Digest(replace(scan, prefixes=prefixes), digest.look))
        return self.written

    def _keep(self, engine: str, made: Finished, written: Begun) -> None:
        written.rejects += made.rejects
        for name in FACTS:
            if name in made.tables:
                self._told.setdefault((engine, name), []).extend(told_by(name, made.tables))
                self.write(name, made.tables[name])
        rounds, windows, requests = map(made.tables.get, FACTS)
        written.held.setdefault(engine, Held()).more(held_by(Tables(rounds, windows, requests)))

    def rest(self, engine: str, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Finished | None:
        """What is left of a source that came in parts, with its runs; None where it did not come so.

        Raises:
            Unproved: see `offer`.
        """
        if self.written is None or engine not in self._assemblies or not (frames or engine in self.written.held):
            return None
        made = self._finished(engine, partial(self._assemblies[engine].rest, frames, context))
        if not self._clocks[engine].holds:
            raise Unproved("a new year")
        return made

    def _finished(self, engine: str, make: Callable[[], Tables], *, is_last: bool = True) -> Finished:
        """Rows that are named and checked; what goes wrong on the way, on this road alone, is no fault yet."""
        assert self.written is not None
        faults: list[Reject] = []
        told = {name: self._told.get((engine, name), []) for name in FACTS}
        naming = self._naming(self.written.digest.scan.sha256)
        try:
            with guarded(engine, faults):
                return finish(engine, make(), naming, self._columns, self._labels, self._redaction, told, is_last)
        except PartsError as why:
            raise Unproved(str(why)) from why
        raise Unproved("; ".join(fault.reason for fault in faults))

    @property
    def engines(self) -> Collection[str]:
        """Names of the engines whose lines come in parts."""
        return self._assemblies.keys()

    def write(self, name: str, frame: pl.DataFrame) -> None:
        """Write rows of a table that has days."""
        assert self.written is not None
        if name not in self._writers:
            self._writers[name] = DayWriters(name, self._placed, self.written.digest.scan.sha256[:16])
        self._writers[name].write(frame)
        self.written.rows[name] += frame.height

    def _placed(self, relative: str) -> Path:
        self._paths.append(self._place(relative))
        return self._paths[-1]

    def checked(self, reading: Reading) -> Reading:
        """A reading with the figures of the whole.

        Raises:
            Unproved: the file is no more what it was.
        """
        if self.written is None:
            return reading
        self.written.digest.check(self._file, reading.bytes)
        scan = self.written.digest.scan
        return replace(reading, sha256=scan.sha256, prefixes=scan.prefixes, text_sha256=scan.text_sha256)

    def close(self) -> None:
        """Finish all files."""
        for writer in self._writers.values():
            writer.close()

    def drop(self) -> None:
        """Take away all files."""
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)


def _is_part(frames: Sequence[pl.DataFrame]) -> bool:
    return sum(f.height for f in frames) >= PART or sum(f.estimated_size() for f in frames) >= PART_BYTES
