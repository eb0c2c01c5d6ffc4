"""What the alarms say about a lake, without the figures of a report: for tests that make many lakes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.analysis.alarms import collect
from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.results import Stratum, Warning
from tracelens.analysis.selection import Selection, define_strata, keep, keep_small_tables
from tracelens.lake.connection import connect, define_grouping

DAY = dt.datetime(2026, 11, 1, 10)
ALL = ReportOptions(by=())
Rows = list[dict[str, Any]]


def said(lake: Path, figures: Mapping[str, Any] | None = None) -> dict[str, Warning]:
    """Alarms by code, over the whole lake; `figures` are those of the total."""
    con = connect(lake, grouped=False, keep=True)
    for name, kind in (("baseline_run", "varchar"), ("baseline_ms", "double")):
        con.execute(f"set variable {name} = null::{kind}")
    keep_small_tables(con)
    define_grouping(con)
    defined = define_strata(con, Selection(()))
    keep(con, "unit_sums")
    con.execute("create or replace temp table chosen_runs as select distinct run_id from unit_sums")
    total = Stratum({}, figures or {})
    return by_code([*collect.counted_wrongly(con, total, [], defined), *collect.timed_wrongly(con, total)])


def reported(lake: Path, options: ReportOptions = ALL) -> dict[str, Warning]:
    """All warnings of a report by code."""
    return by_code(report(lake, options).warnings)


def by_code(found: Any) -> dict[str, Warning]:
    assert len({w.code for w in found}) == len(found), "one warning a code"
    for warning in found:
        assert all(value == value for value in warning.evidence.values()), "no NaN"
    return {w.code: w for w in found}


def drawn(p: float, n: int, k: int = 4, seed: int = 1) -> np.ndarray:
    """Accepted lengths of n rounds, i.i.d. with p."""
    return np.minimum(np.random.default_rng(seed).geometric(1 - p, n) - 1, k)


def rounds(accepted: np.ndarray, *, k: int = 4, each: int = 25, **columns: Any) -> Rows:
    """Rounds of requests of `each` rounds, with these accepted lengths, one every 30 ms."""
    return [
        {"ts": DAY + dt.timedelta(milliseconds=30 * i), "request_id": f"req-{i // each:04}", "round_index": i % each,
         "task_type": "code", "temperature": 0.0, "top_p": 1.0, "drafted": k, "accepted": int(a),
         "emitted": int(a) + 1, **columns} for i, a in enumerate(accepted)
    ]  # fmt: skip


def windows(counts: np.ndarray, surface: str = "generic.window", **columns: Any) -> Rows:
    """Windows of 10 s: `counts` rounds each with four drafts, of which half is accepted."""
    return [
        {"surface": surface, "source_line": i, "ts_end": DAY + dt.timedelta(seconds=10 * i), "window_us": 10_000_000,
         "rounds": int(c), "drafted": 4 * int(c), "accepted": 2 * int(c), **columns} for i, c in enumerate(counts)
    ]  # fmt: skip


def timed_requests(n: int = 40, **columns: Any) -> Rows:
    """Requests with counts, decode time and TPOT, one a second."""
    return [
        {"request_id": f"cmpl-{i:05}", "surface": "vllm.response", "ts_end": DAY + dt.timedelta(seconds=i),
         "prompt_tokens": 100, "output_tokens": 60 + i, "rounds": 100, "drafted": 400, "accepted": 34 + i,
         "decode_us": 700_000 + 13 * i, "tpot_us": 11_000.0, "tpot_basis": "derived", **columns} for i in range(n)
    ]  # fmt: skip
