"""What `compact` did, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tracelens.reporters import json_
from tracelens.reporters.format import visible
from tracelens.reporters.ingested import size_text
from tracelens.wording import many

if TYPE_CHECKING:
    from tracelens.compact.run import Compacted, Size


def write_json(done: Compacted, out: TextIO) -> None:
    """Files and bytes by table before and after, and what was rolled up; `after` is null for a dry run."""
    document: dict[str, Any] = {
        "before": _sizes(done.before),
        "after": None if done.after is None else _sizes(done.after),
        "rolled_up": {
            "before_day": None if done.until is None else done.until.isoformat(),
            "days": done.rolled.days,
            "rounds": done.rolled.rounds,
            "rows": None if done.after is None else done.rolled.rows,
            "single": None if done.after is None else done.rolled.single,
        },
        "foreign_files": list(done.foreign),
        "to_merge": None if done.merged is None else {"files": done.merged[0], "into": done.merged[1]},
    }
    json_.write(document, out)


def write_text(done: Compacted, lake: Path, out: TextIO) -> None:
    """A line a table that changed, and one for what was rolled up."""
    if done.after is None:
        _plan(done, lake, out)
        return
    for name, before in done.before.items():
        after = done.after[name]
        if before != after:
            out.write(f"  {name:<9} {_size(before):>24} -> {_size(after)}\n")
    if done.before == done.after:
        out.write(f"nothing to do: the files of {visible(str(lake))} are as large as they should be\n")
    rolled = done.rolled
    if done.until is not None and not rolled.days and not rolled.single:
        out.write(_none(done))
    out.write(_foreign(done))
    if rolled.days:
        out.write(
            f"rolled up {many(rolled.days, 'day')} before {done.until}: {many(rolled.rounds, 'round')} "
            f"{'is' if rolled.rounds == 1 else 'are'} {many(rolled.rows, 'row')} now\n"
        )
    if rolled.single:
        out.write(
            f"{many(rolled.single, 'round')} of days before {done.until} stay single: copies of another source's "
            "records, requests that go on in a day that is not rolled up, or records that no log can hold\n"
        )


def _plan(done: Compacted, lake: Path, out: TextIO) -> None:
    count, into = done.merged or (0, 0)
    bytes_ = sum(s.bytes for s in done.before.values())
    files = sum(s.files for s in done.before.values())
    out.write(f"{visible(str(lake))}: {many(files, 'file')}, {size_text(bytes_)}; nothing was written\n")
    if done.rolled.days:
        out.write(
            f"would roll up {many(done.rolled.days, 'day')} before {done.until}, with "
            f"{many(done.rolled.rounds, 'round')}\n"
        )
    elif done.until is not None:
        out.write(_none(done))
    out.write(_foreign(done))
    if count:
        out.write(f"would merge {many(count, 'file')} into {into:,}\n")
    if not count and not done.rolled.days:
        out.write("nothing to do\n")


def _none(done: Compacted) -> str:
    return f"no day before {done.until} has rounds to roll up\n"


def _foreign(done: Compacted) -> str:
    if not done.foreign:
        return ""
    days = {name.split("/")[1] for name in done.foreign}
    return (
        f"{many(len(days), 'day')} with files of another writer can't be rolled up: {visible(done.foreign[0])}"
        f"{f' and {len(done.foreign) - 1:,} more' if len(done.foreign) > 1 else ''}; move them out of the lake\n"
    )


def _sizes(sizes: Mapping[str, Size]) -> dict[str, dict[str, int]]:
    return {name: {"files": size.files, "bytes": size.bytes} for name, size in sizes.items()}


def _size(size: Size) -> str:
    return f"{many(size.files, 'file')}, {size_text(size.bytes)}"
