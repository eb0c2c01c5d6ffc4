"""What an ingest took, refused and passed over, until it is a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tracelens.ingest.holdings import Held
from tracelens.ingest.options import Staged, Summary
from tracelens.sources.discover import Skipped

#: Wrong lines that a summary shows.
EXAMPLES = 5


def _few(lines: str) -> str:
    """Ranges of lines, the first of many."""
    ranges = lines.split(",")
    return ", ".join(ranges[:3]) + (f" and {len(ranges) - 3:,} more places" if len(ranges) > 3 else "")


class Tally:
    """The summary as it grows."""

    def __init__(self, skipped: Sequence[Skipped]) -> None:
        self.notes: list[tuple[str, str]] = [(s.name, s.reason) for s in skipped]
        self.remarks: list[tuple[str, str]] = []
        self.held: dict[str, Held] = {}
        self.unheld: set[str] = set()  # engines with rows that were not looked at (by the fast road)
        self.copies: list[tuple[str, str]] = []
        self.sources = 0
        self.rows: Counter[str] = Counter()
        self.surfaces: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.examples: list[str] = []
        self.faults: list[tuple[str, str]] = []
        self.rejects = 0
        self.unrecognised = 0
        self.bytes = 0

    def skip(self, name: str, why: str) -> None:
        """A source that was passed over."""
        self.notes.append((name, why))

    def take(self, one: Staged) -> None:
        """A source whose rows go into the lake."""
        assert one.entry is not None
        self._add(one.entry, 1)
        self.remarks += [(one.name, remark) for remark in one.remarks]
        for engine, columns in one.held.items():
            self.held.setdefault(engine, Held()).add(columns)
        if "generic" not in one.held and any(s.startswith("generic.") for s in one.entry["surfaces"]):
            self.unheld.add("generic")
        self.reasons.update(one.reasons)
        self.faults += [(one.name, what) for what in one.faults]
        self.examples += [f"{one.name}:{line}: {why}" for line, why in one.first_rejects][
            : max(0, EXAMPLES - len(self.examples))
        ]

    def copied(self, entry: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """A source that was taken, and whose records are in part another one's, or stand in it twice."""
        for other, lines in (entry["same_as"] or {}).items():
            of = "that stand before them" if other == entry["source_id"] else f"of {names[other]}"
            self.copies.append((entry["name"], f"lines {_few(lines)} hold records {of}: counted once"))

    def beside_rolled(
        self, entries: Iterable[Mapping[str, Any]], days: Mapping[str, str], again: Collection[str]
    ) -> None:
        """Sources with rounds of days that others have rolled up; those that are read again were compared before."""
        self.remarks += [
            (
                e["name"],
                f"has rounds of {days[e['source_id']]}, a day that is rolled up (`tracelens compact`): whether another "
                "source holds the same rounds, too, cannot be told; if one does, they count twice",
            )
            for e in entries
            if e["source_id"] in days and e["source_id"] not in again and not {*e["replaces"]} & {*again}
        ]

    def untake(self, entry: Mapping[str, Any], why: str) -> None:
        """A source that was taken, and then found to be in the lake."""
        self._add(entry, -1)
        self.remarks = [r for r in self.remarks if r[0] != entry["name"]]
        self.skip(entry["name"], why)

    def _add(self, entry: Mapping[str, Any], sign: int) -> None:
        self.sources += sign
        self.bytes += sign * entry["bytes"]
        self.rejects += sign * entry["rejects"]
        self.unrecognised += sign * entry["unrecognised"]
        for table, count in entry["rows"].items():
            self.rows[table] += sign * count
        for surface, count in entry["surfaces"].items():
            self.surfaces[surface] += sign * count

    def summary(self, seconds: float, request_ids: str) -> Summary:
        """All of it, for whoever shows it."""
        return Summary(
            self.sources, len(self.notes), {k: v for k, v in self.rows.items() if v}, self.rejects, self.unrecognised,
            {k: v for k, v in sorted(self.surfaces.items()) if v}, dict(self.reasons.most_common()), tuple(self.notes),
            tuple(self.examples), self.bytes, seconds, tuple(self.remarks),
            {engine: held for engine, held in self.held.items() if engine not in self.unheld}, tuple(self.copies),
            request_ids, tuple(self.faults),
        )  # fmt: skip
