"""What `ingest` and `inspect` answer, as text and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tracelens.lake import progress
from tracelens.reporters import json_
from tracelens.reporters.format import visible
from tracelens.wording import many, noun

if TYPE_CHECKING:
    from tracelens.analysis.results import Missing
    from tracelens.ingest.inspect import Inspection
    from tracelens.ingest.options import Summary

_IDS = {
    "redacted": "Request ids are redacted to keyed hashes. Keep the salt: labels and further logs need it.\n",
    "mixed": "Request ids are redacted in some sources and kept in others, and do not match across them: "
    "`tracelens ingest --replace --redact-ids` reads the others again.\n",
}


def write_json(summary: Summary, gaps: Sequence[Missing], out: TextIO) -> None:
    """The shape of CLI.md, with the reasons beside it."""
    document = {
        "sources": summary.sources,
        "skipped": summary.skipped,
        "rows": dict(summary.rows),
        "rejects": summary.rejects,
        "unrecognised": summary.unrecognised,
        "surfaces": dict(summary.surfaces),
        "missing": [dataclasses.asdict(g) for g in gaps],
        "reject_reasons": dict(summary.reasons),
        "notes": [{"source": name, "note": note} for name, note in (*summary.notes, *summary.remarks)],
        "faults": [{"source": name, "fault": what} for name, what in summary.faults],
        "copies": [{"source": name, "note": note} for name, note in summary.copies],
        "request_ids": summary.request_ids,
    }
    json_.write(document, out)


def place_option(lake: Path) -> str:
    """What a command needs to find the lake, behind its other words; nothing where it would be looked for."""
    return "" if lake == Path("lake") else f" --lake {visible(shlex.quote(str(lake)))}"


def write_text(summary: Summary, gaps: Sequence[Missing], lake: Path, out: TextIO) -> None:
    """A summary that ends with what to do next."""
    counts = ", ".join(
        many(n, table.removesuffix("s"))
        for table, n in summary.rows.items()
        if table in ("rounds", "windows", "requests")
    )
    rate = (
        f" ({summary.bytes / 1e6 / summary.seconds:,.0f} MB/s)" if summary.bytes > 20e6 and summary.seconds > 0 else ""
    )
    sources = many(summary.sources, "source")
    out.write(f"{sources}, {size_text(summary.bytes)}{rate}: {counts or 'no rows'} -> {visible(str(lake))}\n")
    for surface, n in summary.surfaces.items():
        out.write(f"  {surface:<22} {n:>12,} {noun(n, 'record')}\n")
    if summary.rejects:
        out.write(f"{many(summary.rejects, 'record')} refused (kept in the table rejects):\n")
        reasons = list(summary.reasons.items())
        for reason, n in reasons[:5]:
            out.write(f"  {n:>8,} x {visible(reason)}\n")
        if len(reasons) > 5:
            out.write(f"  {sum(n for _, n in reasons[5:]):>8,} x {many(len(reasons) - 5, 'other reason')}\n")
        for example in summary.examples[:3]:
            out.write(f"           e.g. {visible(example)}\n")
    for name, what in summary.faults[:10]:
        out.write(f"a part of {visible(name)} could not be read: {visible(what)}\n")
    if summary.unrecognised and summary.surfaces:
        out.write(f"{many(summary.unrecognised, 'other line holds', 'other lines hold')} no record of an engine.\n")
    for name, remark in summary.remarks[:10]:
        _wrapped(f"{visible(name)}: {remark}", "", out)
    if len(summary.remarks) > 10:
        out.write(f"and {many(len(summary.remarks) - 10, 'more file')} of that kind\n")
    for name, note in summary.copies[:10]:
        out.write(f"{visible(name)}: {visible(note)}\n")
    if len(summary.copies) > 10:
        out.write(f"so in {many(len(summary.copies) - 10, 'more source')}\n")
    for name, note in summary.notes[:10]:
        out.write(f"skipped {visible(name)}: {visible(note)}\n")
    if len(summary.notes) > 10:
        out.write(f"skipped {len(summary.notes) - 10} more\n")
    if any("already in the lake" in note for _, note in summary.notes):
        out.write("What is in the lake keeps its run, role and labels; --replace reads it again.\n")
    if summary.request_ids != "kept":
        out.write(_IDS[summary.request_ids])
    _gaps(gaps, out)
    if summary.surfaces:
        place = place_option(lake)
        if summary.files >= progress.MANY_FILES:
            out.write(f"{summary.files:,} files: tracelens compact{place} makes few of them, and reports quick\n")
        out.write(f"Next: tracelens report --by task_type{place}\n")


def _gaps(gaps: Sequence[Missing], out: TextIO) -> None:
    """What can't be had, figures with one remedy together."""
    if not gaps:
        return
    together: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        together.setdefault((gap.because, gap.switch_on), []).append(gap.figure)
    out.write("These logs cannot give:\n")
    for (because, switch_on), figures in together.items():
        for text, indent in ((f"{', '.join(figures)}: {because}", "  "), (f"switch on: {switch_on}", "      ")):
            _wrapped(text, indent, out)


def _wrapped(text: str, indent: str, out: TextIO) -> None:
    out.write(textwrap.fill(text, _width(), initial_indent=indent, subsequent_indent="      ") + "\n")


def _width() -> int:
    """Columns of the terminal; 100 where the output goes elsewhere."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def size_text(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def inspection_json(found: Inspection, out: TextIO) -> None:
    """Every figure of an inspection; times are ISO text, UTC."""
    sources = []
    for one in found.sources:
        row = dataclasses.asdict(one)
        row |= {k: row[k].isoformat() if row[k] else None for k in ("first", "last")}
        sources.append(row)
    document = {
        "sources": sources,
        "skipped": [{"source": name, "note": note} for name, note in found.skipped],
        "surfaces": {name: dataclasses.asdict(known) for name, known in found.titles.items()},
        "allowed": list(found.allowed),
        "missing": [dataclasses.asdict(m) for m in found.missing],
    }
    json_.write(document, out)


def inspection_text(found: Inspection, out: TextIO) -> None:
    """One paragraph a source, then what the files allow together."""
    for one in found.sources:
        how = [w for w in (one.compression, one.encoding, *one.envelopes) if w not in ("none", "utf-8")]
        what = visible(one.note or one.size)
        out.write(f"{visible(one.name)}: {what}{' (' + ', '.join(how) + ')' if how else ''}\n")
        for surface, n in one.surfaces.items():
            out.write(f"  {surface:<24} {n:>12,} {noun(n, 'record')}\n")
        told = [
            f"version {', '.join(one.versions)}" if one.versions else "",
            f"model {', '.join(one.models[:4])}" if one.models else "",
        ]
        if one.first and one.last:
            told.append(f"{one.first:%Y-%m-%d %H:%M:%S} to {one.last:%Y-%m-%d %H:%M:%S} UTC")
        if one.rejects:
            told.append(f"{many(one.rejects, 'record')} can't be read")
        if any(told):
            out.write(f"  {visible('; '.join(t for t in told if t))}\n")
    for name, note in found.skipped:
        out.write(f"skipped {visible(name)}: {visible(note)}\n")
    if found.titles:
        out.write("What these records are, and what each gives by itself:\n")
    for surface, known in found.titles.items():
        # A surface that can give nothing by itself describes what others count: a server's start, a request's id.
        none = "gives nothing with what these records hold" if known.unfilled else "context only"
        gives = f"gives {', '.join(known.gives)}" if known.gives else none
        lacks = f"not {', '.join(known.lacks)}" if (known.gives or known.unfilled) and known.lacks else ""
        _wrapped(f"{surface}: {known.title}; {known.versions}", "  ", out)
        for text in filter(None, (gives, lacks)):
            _wrapped(text, "      ", out)
    if found.allowed:
        _wrapped(f"Together they allow: {', '.join(found.allowed)}", "", out)
    _gaps(found.missing, out)
