"""Statistics lines to windows: counters since the start of the server, one line a drafter at each request's end."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import polars as pl

from tracelens.engines.base import PartsError, Reject
from tracelens.engines.llama_cpp.recover import positions
from tracelens.engines.llama_cpp.surfaces import STATISTICS
from tracelens.engines.rows import frame_of

_COUNTERS = ("drafted", "accepted", "rounds", "calls", "generate_us")
_SCHEMA: Mapping[str, Any] = {
    "source_line": pl.Int64, "run_key": pl.Int64, "stream": pl.String, "child": pl.String, "method": pl.String,
    "ts_start": pl.Datetime("us"), "ts_end": pl.Datetime("us"), "ts_basis": pl.String, "window_us": pl.Int64,
    "drafted": pl.Int64, "accepted": pl.Int64, "rounds": pl.Int64, "steps": pl.Int64, "plain_steps": pl.Int64,
    "draft_us": pl.Int64, "accepted_per_pos": pl.List(pl.Int64),
}  # fmt: skip


class Windows:
    """One window between two lines of a drafter, part by part.

    `rounds` are drafts: the count of accept calls changed its meaning (once only those that accepted something). With
    several slots a line may stand between a draft and its verification, so that more may be accepted than drafted from
    it to the next one: then both intervals are one window. A draft call that gave nothing is a plain step, where there
    is one drafter (else the next one was asked) and one slot (else a call drafts for all).
    """

    def __init__(self) -> None:
        self._drafters: dict[int, set[str]] = {}
        self._before: dict[Any, Mapping[str, Any]] = {}
        self._waiting: dict[Any, Mapping[str, Any]] = {}

    def of(self, lines: pl.DataFrame, slots: int) -> pl.DataFrame:
        """The windows that end with these lines.

        Args:
            lines: statistics lines in file order, with `run_key`, `ts`, `ts_basis`, `clock` and `began` (the source
                tells of the start).
            slots: number of slots.

        Raises:
            PartsError: a drafter that the lines of its run above did not have.
        """
        alone = {}
        for run, names in lines.group_by("run_key").agg(pl.col("drafter").unique()).iter_rows():
            known = self._drafters.setdefault(run, set(names))
            if known | set(names) != known:
                raise PartsError("a drafter that is told of late")
            alone[run] = len(known) == 1
        timed = lines.with_columns(generate_us=(pl.col("generate_ms") * 1000).round().cast(pl.Int64))
        found = [self._window(now) for now in timed.iter_rows(named=True)]
        rows = [
            row | _steps(row.pop("calls"), row["rounds"], alone[row["run_key"]], slots)
            for row in found
            if row is not None
        ]
        frame = frame_of(rows, _SCHEMA)
        logged = pl.lit("logged")
        return frame.sort("source_line", maintain_order=True).with_columns(
            surface=pl.lit(STATISTICS), counts_basis=logged, rounds_basis=logged, time_basis=pl.lit("sum")
        )

    def _window(self, now: dict[str, Any]) -> dict[str, Any] | None:
        """The window that ends with a line; None where nothing happened in it, or it goes on."""
        key = (now["run_key"], now["stream"], now["child"], now["drafter"])
        now["per_pos"] = _positions(now)
        last = self._before.get(key)
        fell = last is not None and any((now[c] or 0) < (last[c] or 0) for c in _COUNTERS if c != "generate_us")
        if fell or last is None:
            last = None
        elif all(now[c] == last[c] for c in ("drafted", "accepted", "calls")):
            return None
        row = _window(now, last)
        if not _holds(row):
            self._waiting[key] = now
            if last is None:
                self._before.pop(key, None)
            return None
        self._before[key] = now
        self._waiting.pop(key, None)
        return row

    def rejects(self) -> list[Reject]:
        """Intervals that broke an identity to the end."""
        return [
            Reject(line["line"], "accepted <= drafted does not hold", STATISTICS, line["offset"])
            for line in self._waiting.values()
        ]


def _window(now: Mapping[str, Any], last: Mapping[str, Any] | None) -> dict[str, Any]:
    zero: Mapping[str, Any] = dict.fromkeys(_COUNTERS, 0)
    base = last or zero
    spent = _minus(now["generate_us"], base["generate_us"])
    # The first value counts from the start of the process, where its clock began too.
    since = base.get("clock") if last is not None else (0 if now["began"] else None)
    return {
        "source_line": now["line"], "run_key": now["run_key"], "stream": now["stream"],
        "child": now["child"], "method": now["drafter"],
        "ts_start": base.get("ts"), "ts_end": now["ts"], "ts_basis": now["ts_basis"],
        "window_us": _minus(now["clock"], since),
        "draft_us": spent,
        "accepted_per_pos": _between(now["per_pos"], base.get("per_pos") if last is not None else []),
        **{c: now[c] - base[c] for c in ("drafted", "accepted", "rounds", "calls")},
    }  # fmt: skip


def _minus(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None or now < before else now - before


def _positions(line: Mapping[str, Any]) -> list[int] | None:
    """Cumulative counts by position behind the printed rates (over verified rounds, which are the drafts)."""
    if not line["rates"]:
        return None
    shares = [float(r) for r in line["rates"].replace(",", " ").split() if r.count(".") == 1 and r != "."]
    return positions(line["accepted"], line["rounds"], shares)


def _between(now: list[int] | None, last: list[int] | None) -> list[int] | None:
    if now is None or last is None:
        return None
    counts = [a - b for a, b in zip(now, [*last, *([0] * len(now))], strict=False)]
    falls = all(b <= a for a, b in pairwise(counts))
    return counts if falls and all(c >= 0 for c in counts) else None


def _holds(row: dict[str, Any]) -> bool:
    per_pos = row["accepted_per_pos"]
    if per_pos is not None and (sum(per_pos) != row["accepted"] or (per_pos and per_pos[0] > row["rounds"])):
        row["accepted_per_pos"] = None
    return bool(0 <= row["accepted"] <= row["drafted"])


def _steps(calls: int, rounds: int, alone: bool, slots: int) -> dict[str, int | None]:
    if not alone:
        return {"steps": None, "plain_steps": None}
    if slots <= 1:
        whole = calls >= rounds
        return {"steps": calls if whole else None, "plain_steps": calls - rounds if whole else None}
    return {"steps": calls if 0 < calls <= rounds else None, "plain_steps": None}


class DraftTimes:
    """`draft_us` of requests of a server with one slot: there each interval between two lines is one request.

    Summed over the drafters; null where an interval holds another number of requests, or a drafter's is missing.
    """

    def __init__(self) -> None:
        self._drafters: dict[Any, set[str]] = {}
        self._ended: dict[Any, int] = {}  # requests of the parts before
        self._before: dict[Any, int] = {}  # of them and of this one, above the last line of a drafter

    def of(self, windows: pl.DataFrame | None, requests: pl.DataFrame) -> pl.Series:
        """Those of the next requests.

        Args:
            windows: what `Windows.of` gave; None where there are no lines.
            requests: what `blocks.requests` gave.

        Raises:
            PartsError: a drafter that the lines of its process above did not have.
        """
        places: dict[Any, list[int]] = {}
        for line, *key in requests.select("line", "run_key", "stream", "child").iter_rows():
            places.setdefault(tuple(key), []).append(line)
        spent = {} if windows is None else self._spent(windows, places)
        for writer, lines in places.items():
            self._ended[writer] = self._ended.get(writer, 0) + len(lines)
        times: list[int | None] = []
        for line, *key in requests.select("line", "run_key", "stream", "child").iter_rows():
            parts = [us for us in spent.get((*key, line), []) if us is not None]
            times.append(sum(parts) if parts and len(parts) == len(self._drafters[tuple(key)]) else None)
        return pl.Series("draft_us", times, dtype=pl.Int64)

    def _spent(self, windows: pl.DataFrame, places: Mapping[Any, list[int]]) -> dict[Any, list[int | None]]:
        """Times by process and line of a request, one a drafter."""
        told: dict[Any, set[str]] = {}
        spent: dict[Any, list[int | None]] = {}
        for line, drafter, us, *key in windows.select(
            "source_line", "method", "draft_us", "run_key", "stream", "child"
        ).iter_rows():
            writer = tuple(key)
            here = bisect(places.get(writer, []), line)
            ended = self._ended.get(writer, 0) + here
            told.setdefault(writer, set()).add(drafter)
            if here and ended == self._before.get((*key, drafter), 0) + 1:
                spent.setdefault((*key, places[writer][here - 1]), []).append(us)
            self._before[*key, drafter] = ended
        for writer, names in told.items():
            if self._drafters.setdefault(writer, names) | names != self._drafters[writer]:
                raise PartsError("a drafter that is told of late")
        return spent
