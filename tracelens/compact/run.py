"""`compact`: a lake with fewer and larger files, and with sums in place of the single rounds of old days."""

from __future__ import annotations

import datetime as dt
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracelens import logs
from tracelens.compact import plan
from tracelens.compact.merge import merge, sources_of
from tracelens.compact.roll import Rolled, days_of, foreign_of, roll
from tracelens.errors import InputError
from tracelens.lake import damage, journal, ledger
from tracelens.lake.schema import TABLES
from tracelens.lake.store import Store, is_lake

log = logging.getLogger(__name__)
_AGE = re.compile(r"(\d{1,5})([dw])")

#: Called with what is worked at and the bytes done since the last call.
Told = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Size:
    """Files of a table, and their bytes."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """What `compact` did, or would do (`dry_run`).

    `before` and `after` are by table; `after` is None for a dry run, which tells `merged` (files that would be merged,
    and the files that would come of them). `until` is the first day that is not rolled up, `rolled` what was; a dry run
    knows the days, and counts the rounds of their files without a look at which must stay. `foreign` are the files of
    another writer that keep days from being rolled up.
    """

    before: Mapping[str, Size]
    after: Mapping[str, Size] | None
    until: dt.date | None
    rolled: Rolled
    merged: tuple[int, int] | None = None
    seconds: float = 0.0
    foreign: tuple[str, ...] = ()


def day_before(older_than: str | None, before: str | None, today: dt.date) -> dt.date | None:
    """The first day that is not rolled up; None where nothing is.

    Args:
        older_than: an age in days or weeks, `30d` or `4w`.
        before: a date, `2026-11-01`.
        today: the UTC day.

    Raises:
        InputError: both, or a text of another form, or a day that is not over.
    """
    if older_than is not None and before is not None:
        raise InputError("--older-than and --before say the same: give one of them")
    if older_than is not None:
        age = _AGE.fullmatch(older_than.strip())
        if age is None:
            raise InputError(f"--older-than {older_than}: write days or weeks, e.g. 30d or 4w")
        days = int(age[1]) * (7 if age[2] == "w" else 1)
        return today - dt.timedelta(days=min(days, (today - dt.date.min).days))
    if before is None:
        return None
    try:
        day = dt.date.fromisoformat(before.strip())
    except ValueError as error:
        raise InputError(f"--before {before}: write a UTC date, e.g. 2026-11-01") from error
    if day > today:
        raise InputError(f"--before {before}: only days that are over can be rolled up; today is {today} (UTC)")
    return day


def compact(root: Path, until: dt.date | None = None, told: Told | None = None, *, dry_run: bool = False) -> Compacted:
    """Roll up the rounds of old days, then merge small files.

    Every commit leaves a whole lake: whoever reads sees it before or after, and what is killed in the middle can be run
    again.

    Args:
        root: the lake.
        until: the first day that keeps its single rounds; None rolls nothing up.
        told: see `Told`.
        dry_run: write nothing.

    Raises:
        InputError: no lake there, it can't be written, or a file of it is broken.
    """
    begun = time.monotonic()
    if not is_lake(root):
        raise InputError(f"no lake at {root}: run `tracelens ingest PATH… --lake {root}` first")
    with damage.naming(root):
        if dry_run:
            return _planned(root, until)
        store = Store(root)
        before = _sizes(root)
        rolled = Rolled() if until is None else roll(store, until, told)
        merge(store, told)
    seconds = time.monotonic() - begun
    done = Compacted(before, _sizes(root), until, rolled, seconds=seconds, foreign=_foreign(root, until))
    files = {name: size.files for name, size in (("before", _sum(before)), ("after", _sum(done.after or {})))}
    logs.info(log, "compacted", **files, rounds=rolled.rounds, rows=rolled.rows, seconds=done.seconds)
    return done


def _planned(root: Path, until: dt.date | None) -> Compacted:
    import pyarrow.parquet as pq

    files = journal.live(root)
    own = plan.own_files({n: p for n, p in files.items() if not n.startswith("sources/")}, sources_of(root))
    days = {} if until is None else days_of(root, until)
    gone = {file.name for group in days.values() for file in group}
    groups = list(plan.groups([file for file in own if file.name not in gone]))
    rounds = sum(pq.read_metadata(file.path).num_rows for group in days.values() for file in group)
    merged = (sum(map(len, groups)), len(groups))
    return Compacted(_sizes(root), None, until, Rolled(len(days), rounds), merged, foreign=_foreign(root, until))


def _foreign(root: Path, until: dt.date | None) -> tuple[str, ...]:
    return () if until is None else tuple(foreign_of(root, until))


def _sizes(root: Path) -> dict[str, Size]:
    """Files with rows, by table; the one without rows that each table of a lake has is not counted."""
    ledger.read(root)  # refuses a lake of a newer tracelens
    found: dict[str, list[int]] = {name: [] for name in TABLES}
    for name, path in journal.live(root).items():
        if not name.endswith("/empty.parquet"):
            found[name.partition("/")[0]].append(Path(path).stat().st_size)
    return {name: Size(len(sizes), sum(sizes)) for name, sizes in found.items()}


def _sum(sizes: Mapping[str, Size]) -> Size:
    return Size(sum(s.files for s in sizes.values()), sum(s.bytes for s in sizes.values()))
