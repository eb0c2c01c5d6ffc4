"""Everything that one page shows: the report, the gap, the gate, the sweep, and what moves over time and load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.analysis import gap, gate, page_sql, sweep
from tracelens.analysis.gate import GateOptions, GateResult
from tracelens.analysis.page_sql import Statements
from tracelens.analysis.report import report_of
from tracelens.analysis.results import GapResult, Report
from tracelens.analysis.session import ASKED, Question, Session, opened
from tracelens.analysis.sweep import SweepResult
from tracelens.executors import Executor
from tracelens.lake import progress

if TYPE_CHECKING:
    import duckdb

_K = "num_speculative_tokens"
#: Points of time that are kept, the newest; a lake of many runs has more even at the widest bucket.
MOST_POINTS = 240
_SHOWN_NAMES = 6


@dataclass(frozen=True, slots=True)
class Moment:
    """One bucket of time of one run and setting, a row of `over_time.sql`.

    `started` is UTC without a zone. `rho`, `verify_inflation` and `overhead` are over one plain step; None without a
    baseline. `is_first`: the first bucket of this run with this setting.
    """

    started: datetime
    bucket_seconds: int
    run_id: str
    num_speculative_tokens: int | None
    method: str | None
    model: str | None
    engine_version: str | None
    is_first: bool
    rounds: float | None
    draft_accept_ratio: float | None
    rho_verify: float | None
    rho: float | None
    verify_inflation: float | None
    overhead: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch and context bucket of all traffic, a row of `heat_map.sql`."""

    batch_bucket: str | None
    context_bucket: str | None
    rounds: float
    draft_accept_ratio: float | None
    tau_committed: float | None
    step_ms: float | None
    baseline_ms: float | None
    relative_token_time: float | None
    relative_token_time_basis: str | None


@dataclass(frozen=True, slots=True)
class Wasteful:
    """One request whose drafts were thrown away, a row of `top_requests.sql`; times are engine time in ms."""

    run_id: str
    request_id: str | None
    task_type: str | None
    temperature: float | None
    rounds: float | None
    drafted: float | None
    accepted: float | None
    rejected: float | None
    draft_accept_ratio: float | None
    near_k_round_share: float | None
    wasted_draft_ms: float | None
    draft_ms: float | None


@dataclass(frozen=True, slots=True)
class Covered:
    """What the figures are about: runs and models that speculate, and the span of their records (UTC, no zone)."""

    runs: int
    run_names: tuple[str, ...]
    engines: tuple[str, ...]
    models: tuple[str, ...]
    first: datetime | None
    last: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """The answer of `tracelens report --format html`: aggregates only, so it does not grow with the rounds.

    `gap` is None without a claim. `sweep` is None where strata are by K, and `no_sweep` says so. `times_cut` tells
    that older points of time were left out.
    """

    question: Question
    covered: Covered
    report: Report
    gap: GapResult | None
    gate: GateResult
    sweep: SweepResult | None
    no_sweep: str | None
    times: tuple[Moment, ...]
    times_cut: bool
    heat: tuple[Cell, ...]
    top: tuple[Wasteful, ...]
    statements: Statements


def page(lake: Path, question: Question | None = None, executor: Executor | None = None) -> Page:
    """Answer all questions of a page over one lake; with an executor the sums of its report are made there.

    Raises:
        InputError: no lake there, an unknown column or run, a `where` that is no expression over `facts`.
    """
    question = question or Question()
    by = tuple(dict.fromkeys(question.by))
    by_k = _K in by
    planned = question.claim is not None
    progress.expect(2 * ASKED)
    more = (*(gap.QUERIES if planned else ()), *gate.QUERIES)
    with opened(lake, question, more, executor) as session:
        report = report_of(session)
        covered = _covered(session)
        times = [Moment(**_chosen(row, Moment)) for row in _rows(session.con, "over_time")]
        heat = tuple(Cell(**_chosen(row, Cell)) for row in _rows(session.con, "heat_map"))
        top = tuple(Wasteful(**_chosen(row, Wasteful)) for row in _rows(session.con, "top_requests"))
        split = gap.gap_of(session) if planned else None
        gated = gate.gate_of(session, GateOptions())
        swept = None if by_k else sweep.sweep_of(session, lake)
        statements = page_sql.statements(session.con, question)
    return Page(
        question=question,
        covered=covered,
        report=report,
        gap=split,
        gate=gated,
        sweep=swept,
        no_sweep=f"strata are by {_K}, and a sweep compares these: leave it out of --by" if by_k else None,
        times=tuple(times[-MOST_POINTS:]),
        times_cut=len(times) > MOST_POINTS,
        heat=heat,
        top=top,
        statements=statements,
    )


def _covered(session: Session) -> Covered:
    row = session.con.execute(
        "select count(distinct run_id), list_sort(list(distinct run_id)), list_sort(list(distinct engine)),"
        " list_sort(list(distinct model) filter (model is not null)), min(ts), max(ts) from strata"
    ).fetchone()
    runs, names, engines, models, first, last = row or (0, None, None, None, None, None)
    shown = tuple(names or ())[:_SHOWN_NAMES]
    return Covered(int(runs), shown, tuple(engines or ()), tuple(models or ())[:_SHOWN_NAMES], first, last)


def _rows(con: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    cursor = con.execute(page_sql.text(name))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


def _chosen(row: Mapping[str, Any], kind: type[Moment] | type[Cell] | type[Wasteful]) -> dict[str, Any]:
    return {name: row[name] for name in kind.__dataclass_fields__}
