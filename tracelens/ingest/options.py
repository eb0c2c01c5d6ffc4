"""What an ingest is told, and what it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelens.ingest.holdings import Held


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Options of `tracelens ingest`; see the command's help."""

    run: str | None = None
    role: str | None = None
    engine: str = "auto"
    tz: str | None = None
    year: int | None = None
    labels: Path | None = None
    rules: Path | None = None
    sets: Mapping[str, str] = field(default_factory=dict)
    jobs: int | None = None
    strict: bool = False
    replace: bool = False
    redact_ids: bool = False


@dataclass(slots=True)
class Staged:
    """One source, read and written to the staging area: what the ledger and the summary need."""

    name: str
    folder_key: str
    entry: dict[str, Any] | None
    grown_from: tuple[str, ...] = ()
    reasons: Counter[str] = field(default_factory=Counter)
    first_rejects: list[tuple[int, str]] = field(default_factory=list)
    started_runs: dict[str, list[str]] = field(default_factory=dict)
    note: str | None = None
    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """The answer of `tracelens ingest`; `remarks` are of sources that were read, `notes` of those that were not.

    `held` is what the rows of each engine hold; an engine whose rows were not looked at is not in it.
    """

    sources: int
    skipped: int
    rows: Mapping[str, int]
    rejects: int
    unrecognised: int
    surfaces: Mapping[str, int]
    reasons: Mapping[str, int]
    notes: tuple[tuple[str, str], ...]
    examples: tuple[str, ...]
    bytes: int
    seconds: float
    remarks: tuple[tuple[str, str], ...] = ()
    held: Mapping[str, Held] = field(default_factory=dict)
    copies: tuple[tuple[str, str], ...] = ()  # sources that were taken, and which of their records another one holds
    request_ids: str = "kept"  # of the whole lake: kept, redacted or mixed
    # (source, what) of parts that a fault of ours kept from being read.
    faults: tuple[tuple[str, str], ...] = ()
    files: int = 0  # of records that the whole lake has now
