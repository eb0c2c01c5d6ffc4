"""What `forget` took out of a lake, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tracelens.lake.schema import TABLES
from tracelens.reporters import json_
from tracelens.reporters.format import listed, shorten, visible
from tracelens.wording import many, noun

if TYPE_CHECKING:
    from tracelens.lake.forget import Forgotten

# Names that a text lists; JSON has all.
_LISTED = 20
_LONGEST = 60  # characters of a list of lines


def write_json(done: Forgotten, out: TextIO, *, dry_run: bool) -> None:
    """The sources with their rows, what counts in their place, what must be read again, and files that are gone."""
    document: dict[str, Any] = {
        "dry_run": dry_run,
        "sources": [
            {"source_id": s.source_id, "name": s.name, "rows": dict(s.rows), "also_named": list(s.also_named)}
            for s in done.sources
        ],
        "rows": _sum(done),
        "count_now": [{"name": c.name, "copy_of": c.of, "lines": c.lines} for c in done.copies],
        "lost_files": list(done.files),
        "unlisted": done.unlisted,
        "unsure": list(done.unsure),
    }
    json_.write(document, out)


def write_text(done: Forgotten, lake: Path, out: TextIO, *, dry_run: bool) -> None:
    """A line a source, and what follows of it for others."""
    _head(done, lake, out, dry_run=dry_run)
    _list((f"  {s.source_id}  {visible(s.name)}: {rows_text(s.rows)}" for s in done.sources), len(done.sources), out)
    if done.unlisted:
        out.write(f"  {many(done.unlisted, 'source')} whose row of the ledger is gone, with all that was left\n")
    if len(done.sources) > 1:
        out.write(f"in all: {rows_text(_sum(done))}\n")
    if done.files:
        out.write(f"{many(len(done.files), 'file')} of the lake {noun(len(done.files), 'is', 'are')} gone:\n")
        _list((f"  {visible(name)}" for name in done.files), len(done.files), out)
    _copies(done, out, dry_run=dry_run)
    for name in done.unsure[:_LISTED]:
        out.write(
            f"{visible(name)}: whether it has lost rows can't be told, as its rounds are rolled up and have weights; "
            "it stays, `tracelens forget` with its name takes it out\n"
        )
    if dry_run:
        out.write("nothing was written\n")
    elif done.sources or done.unlisted:
        place = visible(str(lake))
        out.write(f"`tracelens ingest PATH… --lake {place}` reads them again, and what was passed over as the same\n")


def _copies(done: Forgotten, out: TextIO, *, dry_run: bool) -> None:
    """What becomes of sources and files that were left out, wholly or in part, since a forgotten one stood for them."""
    for copy in done.copies[:_LISTED]:
        lines = shorten(copy.lines.replace(",", ", "), _LONGEST)
        others = ", where no third source has them" if copy.is_of_others else ""
        now = f"would count as its own{others}" if dry_run else f"count as its own{others} now"
        out.write(f"lines {lines} of {visible(copy.name)} were left out as records of {visible(copy.of)}: they {now}\n")
    if len(done.copies) > _LISTED:
        out.write(f"and {many(len(done.copies) - _LISTED, 'more copy', 'more copies')}\n")
    for source in done.sources[:_LISTED]:
        if source.also_named:
            names = listed([visible(name) for name in source.also_named[:_LISTED]])
            out.write(f"left out as the same as {visible(source.name)}, and to be ingested again: {names}\n")


def _head(done: Forgotten, lake: Path, out: TextIO, *, dry_run: bool) -> None:
    count = len(done.sources) + done.unlisted
    if count:
        out.write(f"{'would forget' if dry_run else 'forgot'} {many(count, 'source')} of {visible(str(lake))}:\n")
    elif not done.files:
        out.write(f"nothing is missing in {visible(str(lake))}\n")
    else:
        out.write(f"no source of {visible(str(lake))} has lost rows\n")


def _list(lines: Iterable[str], count: int, out: TextIO) -> None:
    for _, line in zip(range(_LISTED), lines, strict=False):
        out.write(f"{line}\n")
    if count > _LISTED:
        out.write(f"  and {count - _LISTED:,} more\n")


def _sum(done: Forgotten) -> dict[str, int]:
    return {t: n for t in TABLES if (n := sum(s.rows.get(t, 0) for s in done.sources))}


def rows_text(rows: Mapping[str, int]) -> str:
    """Rows by table: 120 rounds, 1 run."""
    return ", ".join(many(n, t.removesuffix("s")) for t, n in rows.items() if n) or "no rows"
