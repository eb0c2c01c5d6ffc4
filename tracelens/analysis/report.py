"""`tracelens report`: acceptance, draft cost, rollbacks, theory and observation by class of traffic."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.analysis import absent, cautions, costs, coverage, figures
from tracelens.analysis.answers import Answers, Key, ask
from tracelens.analysis.claim import Claim, parse_claim
from tracelens.analysis.costs import Priced
from tracelens.analysis.results import Report, Stratum
from tracelens.analysis.selection import Selection, define_strata, keep_small_tables, utc
from tracelens.errors import InputError
from tracelens.lake.connection import connect

if TYPE_CHECKING:
    import duckdb

__all__ = ["Claim", "ReportOptions", "parse_claim", "report"]

# A stratum is shown when it holds at least one of these.
_SUBSTANCE = ("accepted", "drafted", "plain_steps", "draft_ms_per_token", "target_ms", "step_ms", "tpot_ms")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What to report: grouping, filters, baseline and claim.

    `where` is one SQL expression over the view `facts`; `baseline` is the name of a run or a plain step in ms;
    `level` is the level of every interval.
    """

    by: tuple[str, ...] = ("task_type",)
    where: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    runs: tuple[str, ...] = ()
    baseline: str | float | None = None
    claim: Claim | None = None
    near_k_delta: int = 1
    near_k_threshold: float = 0.5
    level: float = 0.95


def report(lake: Path, options: ReportOptions | None = None) -> Report:
    """Answer the report over one lake.

    Raises:
        InputError: no lake there, an unknown column or run, a `where` that is no expression over `facts`.
    """
    options = options or ReportOptions()
    by = tuple(dict.fromkeys(options.by))
    _check(options)
    con = connect(lake)
    try:
        keep_small_tables(con)
        run = options.baseline if isinstance(options.baseline, str) else None
        _set_variables(con, options, run)
        defined = define_strata(con, Selection(by, options.where, options.since, options.until, options.runs, run))
        answers = ask(con, defined)
        total = Stratum({}, stratum_figures(answers, None, options))
        strata = [
            Stratum(dict(zip(by, key, strict=True)), stratum_figures(answers, key, options))
            for key in answers.strata()
            if by
        ]
        shown = tuple(s for s in strata if any(s.figures.get(name) is not None for name in _SUBSTANCE))
        hidden = absent.without_class(shown)
        shown = tuple(s for s in shown if s not in hidden)
        engines = [row[0] for row in con.execute("select distinct engine from unit_sums").fetchall()]
        missing = coverage.missing_figures(total, shown, engines, timed_apart=bool(hidden))
        nothing = [] if engines else absent.nothing_selected(con)
        warnings = (
            *nothing,
            *cautions.warnings(con, total, shown, defined, run),
            *absent.times_without_class(hidden),
        )
    finally:
        con.close()
    claim = None if options.claim is None else options.claim.as_mapping()
    return Report(by, shown, total, missing, warnings, claim)


def stratum_figures(answers: Answers, key: Key, options: ReportOptions) -> dict[str, Any]:
    """All figures of one stratum, under the names of the performance model."""
    rho, base, level = answers.one("rho", key), answers.one("baseline", key), options.level
    priced = Priced(base, answers.one_priced("rho", key), answers.one_priced("alpha", key),
                    answers.one_priced("speedup", key))  # fmt: skip
    out = figures.acceptance(answers.one("alpha", key), level)
    out |= figures.positions(answers.all("hazards", key), level)
    out |= figures.rollbacks(answers.one("near_k", key), answers.all("rollback", key), level)
    out |= costs.costs(rho, priced, out, level)
    out |= figures.theory(out, options.claim)
    out |= costs.observed(answers.one("speedup", key), priced, out, level)
    return out


def _check(options: ReportOptions) -> None:
    if not isinstance(options.baseline, str | None) and not options.baseline > 0:
        raise InputError(f"--baseline must be above 0 ms, not {options.baseline}")
    if options.near_k_delta < 0:
        raise InputError(f"near_k_delta must be 0 or more, not {options.near_k_delta}")
    if not 0 < options.level < 1:
        raise InputError(f"the level of intervals must lie between 0 and 1, not {options.level}")
    if options.since and options.until and utc(options.since) >= utc(options.until):
        raise InputError(f"--since {options.since} is not before --until {options.until}")


def _set_variables(con: duckdb.DuckDBPyConnection, options: ReportOptions, run: str | None) -> None:
    milliseconds = None if run is not None or options.baseline is None else float(options.baseline)
    con.execute("set variable near_k_delta = $1", [options.near_k_delta])
    con.execute("set variable near_k_threshold = $1", [options.near_k_threshold])
    con.execute("set variable baseline_ms = $1", [milliseconds])
    con.execute("set variable baseline_run = $1", [run])
