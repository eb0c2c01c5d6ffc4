"""GET /metrics to windows: counters since the start of the server, added at a release (llama.cpp#26389, 2026-08)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracelens.engines.base import Reject
from tracelens.engines.llama_cpp.surfaces import METRICS

_COUNTERS = {"draft_tokens": "drafted", "accepted_tokens": "accepted", "drafts": "rounds"}
_SCHEMA: Mapping[str, Any] = {
    "source_line": pl.Int64, "stamp": pl.String, "before": pl.String, "run_key": pl.Int64, "drafted": pl.Int64,
    "accepted": pl.Int64, "rounds": pl.Int64, "accepted_per_pos": pl.List(pl.Int64),
}  # fmt: skip


@dataclass(slots=True)
class _Scrape:
    """The samples of one scrape."""

    line: int
    offset: int
    stamp: str | None
    run_key: int
    counts: dict[str, int] = field(default_factory=dict)
    per_pos: dict[int, int] = field(default_factory=dict)


def windows(samples: pl.DataFrame, rejects: list[Reject]) -> pl.DataFrame:
    """One window between two scrapes of a stream; the first one counts from the server's start.

    `before` is the stamp of the scrape before. Scrapes between which nothing was counted give none.

    Args:
        samples: what `lines` found, in the order of the source, with `run_key`.
        rejects: gets scrapes without the counters.
    """
    last: dict[Any, _Scrape] = {}
    rows: list[dict[str, Any]] = []
    for key, scrape in _scrapes(samples):
        if set(scrape.counts) != set(_COUNTERS.values()):
            rejects.append(Reject(scrape.line, "scrape without its counters", METRICS, scrape.offset))
            continue
        base = last.get(key)
        if base is not None and any(scrape.counts[c] < base.counts[c] for c in scrape.counts):
            base = None  # a new start
        last[key] = scrape
        counts = {c: n - (base.counts[c] if base is not None else 0) for c, n in scrape.counts.items()}
        if any(counts.values()):
            own = {"source_line": scrape.line, "stamp": scrape.stamp, "run_key": scrape.run_key}
            before = {"before": base.stamp if base is not None else None}
            rows.append(own | before | counts | {"accepted_per_pos": _per_pos(scrape, base, counts)})
    return pl.DataFrame({c: [row[c] for row in rows] for c in _SCHEMA}, schema=_SCHEMA)


def _scrapes(samples: pl.DataFrame) -> Iterator[tuple[Any, _Scrape]]:
    """Samples by scrape: one that repeats a sample of its stream begins the next."""
    current: dict[Any, _Scrape] = {}
    for row in samples.iter_rows(named=True):
        key, name, place = (row["stream"], row["child"]), row["name"], row["position"]
        scrape = current.get(key)
        counter = _COUNTERS.get(name)
        if scrape is not None and (counter in scrape.counts or (counter is None and place in scrape.per_pos)):
            yield key, scrape
            scrape = None
        if scrape is None:
            scrape = current[key] = _Scrape(row["line"], row["offset"], row["stamp"], row["run_key"])
        if counter is not None:
            scrape.counts[counter] = row["value"]
        elif place is not None:
            scrape.per_pos[place] = row["value"]
    yield from current.items()


def _per_pos(scrape: _Scrape, base: _Scrape | None, counts: Mapping[str, int]) -> list[int] | None:
    """Rounds by position, where all positions were scraped and they add up (a scrape is no snapshot)."""
    if sorted(scrape.per_pos) != list(range(len(scrape.per_pos))):
        return None
    before = base.per_pos if base is not None else {}
    found = [n - before.get(i, 0) for i, n in sorted(scrape.per_pos.items())]
    bounds = [counts["rounds"], *found]
    falls = all(0 <= n <= most for n, most in zip(found, bounds, strict=False))
    return found if found and falls and sum(found) == counts["accepted"] else None
