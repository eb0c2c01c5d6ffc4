"""One question to one lake: the rows it is about, how they are grouped, and the figures of every stratum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.analysis import absent, cautions, costs, coverage, figures, sql
from tracelens.analysis.answers import Answers, Key, ask
from tracelens.analysis.asked import encodable
from tracelens.analysis.claim import Claim
from tracelens.analysis.costs import Priced, comparable
from tracelens.analysis.parts import Parts
from tracelens.analysis.results import Missing, Stratum, Warning
from tracelens.analysis.selection import Defined, Selection, define_strata, keep_small_tables, utc
from tracelens.engines.versions import Build, newest
from tracelens.errors import InputError
from tracelens.executors import Executor
from tracelens.lake import progress
from tracelens.lake.connection import connect, define_grouping
from tracelens.lake.place import check_shared

if TYPE_CHECKING:
    import duckdb

#: About how many queries a session takes, those behind its warnings included: for the bar of whoever waits.
ASKED = 41
# No draft is longer.
LONGEST_DELTA = 65_536
# A stratum is shown when it holds at least one of these.
_SUBSTANCE = ("accepted", "drafted", "plain_steps", "draft_ms_per_token", "target_ms", "step_ms", "tpot_ms")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: grouping, filters, baseline and claim.

    `where` is one SQL expression over the view `facts`; `label` is the name and value of a label; `baseline` is the
    name of a run or a plain step in ms; `level` is the level of every interval.
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
    label: tuple[str, str] | None = None

    def filters(self) -> list[str]:
        """The options that narrow the selection, those alone that were given."""
        given = {"--where": self.where, "--since": self.since, "--until": self.until, "--run": self.runs or None,
                 "the label": self.label}  # fmt: skip
        return [name for name, value in given.items() if value is not None]

    def selection(self) -> dict[str, Any]:
        """What was asked for beside the grouping and the claim, as every answer tells it; None where not given.

        Times are ISO text in UTC, `until` is exclusive. `near_k` is how many drafts a near-K rollback may keep.
        """
        since, until = (None if t is None else f"{utc(t):%Y-%m-%dT%H:%M:%SZ}" for t in (self.since, self.until))
        return {
            "run": list(self.runs), "where": self.where, "since": since, "until": until, "baseline": self.baseline,
            "near_k": self.near_k_delta,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Session:
    """A connection whose views `selected`, `strata`, `unit_sums` and `prices` are those of one question."""

    con: duckdb.DuckDBPyConnection
    question: Question
    defined: Defined
    answers: Answers
    strata: tuple[Stratum, ...]
    total: Stratum
    hidden: tuple[Stratum, ...]
    engines: tuple[str, ...]
    canonical: frozenset[str]  # those of them whose logs are canonical JSON lines
    _told: list[tuple[Warning, ...]] = field(default_factory=list, repr=False, compare=False)

    def every_key(self) -> list[Key]:
        """Key of every stratum shown, in order, and None for the total at the end."""
        return [*(tuple(s.key.values()) for s in self.strata), None]

    def stratum(self, key: Key) -> Stratum:
        """The stratum of a key of `every_key`."""
        return self.total if key is None else self.strata[self.every_key().index(key)]

    def priced(self, key: Key) -> Priced:
        """Baseline, costs and acceptance of a stratum over the rows that the baseline prices."""
        return _priced(self.answers, key)

    def missing(self) -> tuple[Missing, ...]:
        """Figures that these records cannot give."""
        return coverage.missing_figures(
            self.total,
            self.strata,
            self.engines,
            canonical=self.canonical,
            timed_apart=absent.has_step_times(self.hidden),
            builds=_builds(self.con),
        )

    def warnings(self) -> tuple[Warning, ...]:
        """What a reader of the figures must know, what touches every figure first; several answers share it."""
        if not self._told:
            self._told.append(self._warnings())
        return self._told[0]

    def _warnings(self) -> tuple[Warning, ...]:
        nothing = (
            [] if self.engines else absent.nothing_selected(self.con, self.question.filters(), self.question.where)
        )
        named = self.question.baseline if isinstance(self.question.baseline, str) else None
        return (
            *nothing,
            *cautions.warnings(self.con, self.total, self.strata, self.defined, named),
            *absent.times_without_class(self.hidden),
        )


@contextmanager
def opened(
    lake: Path, question: Question, more: Sequence[str] = (), executor: Executor | None = None
) -> Iterator[Session]:
    """Open a lake for one question and answer the queries that every analysis needs, and `more`.

    With an executor it is that which reads the rounds, in parts; the queries and the figures are the same.
    A `where` is anybody's SQL, and has the time of a `query`; what else is asked takes as long as the lake is large.

    Raises:
        InputError: no lake there, one in a bucket for an executor, an unknown column or run, a `where` that is no
            expression over `facts` or takes too long, more memory than there is.
    """
    import duckdb

    _check(question)
    if executor is not None:
        check_shared(lake)
    progress.expect(ASKED + len(more))
    days = [None if moment is None else utc(moment).date() for moment in (question.since, question.until)]
    con = connect(lake, grouped=False, keep=executor is None, bound=True, ahead=(days[0], days[1]))
    try:
        with sql.Clock(con, sql.Limits(None if question.where is None else sql.SECONDS)):
            parts = None if executor is None else Parts(con, lake, executor, question.where)
            yield _session(con, question, more, parts)
    except duckdb.InterruptException as error:
        if question.where is None:
            raise
        raise InputError(f"--where: stopped after {sql.SECONDS:g} s; narrow it by --since, --until, --run") from error
    except duckdb.OutOfMemoryException as error:
        raise InputError(f"{error}\nnarrow the question (--since, --until, --run)") from error
    finally:
        con.close()


def _session(con: duckdb.DuckDBPyConnection, question: Question, more: Sequence[str], parts: Parts | None) -> Session:
    by = tuple(dict.fromkeys(question.by))
    keep_small_tables(con, parts)
    define_grouping(con)
    run = question.baseline if isinstance(question.baseline, str) else None
    _set_variables(con, question, run)
    chosen = Selection(by, question.where, question.since, question.until, question.runs, run, question.label)
    defined = define_strata(con, chosen)
    if parts is not None:
        parts.keep_of_question()
    answers = ask(con, defined, more)
    strata = [
        Stratum(dict(zip(by, key, strict=True)), stratum_figures(answers, key, question))
        for key in answers.strata()
        if by
    ]
    shown = tuple(s for s in strata if any(s.figures.get(name) is not None for name in _SUBSTANCE))
    hidden = absent.without_class(shown)
    engines = con.execute(
        "select engine, bool_or(run_id in (select run_id from held where starts_with(surface, 'generic.')))"
        " from unit_sums group by engine"
    ).fetchall()
    return Session(
        con,
        question,
        defined,
        answers,
        tuple(s for s in shown if s not in hidden),
        Stratum({}, stratum_figures(answers, None, question)),
        hidden,
        tuple(engine for engine, _ in engines),
        frozenset(engine for engine, is_canonical in engines if is_canonical),
    )


def _builds(con: duckdb.DuckDBPyConnection) -> dict[str, Build]:
    """The version of each engine that the selected runs tell, the newest of several."""
    told: dict[str, list[tuple[str | None, str | None]]] = {}
    rows = con.execute(
        "select distinct engine, engine_version, engine_era from runs where engine_version is not null"
        " and run_id in (select run_id from unit_sums)"
    ).fetchall()
    for engine, version, era in rows:
        told.setdefault(engine, []).append((version, era))
    found = {engine: newest(engine, versions) for engine, versions in told.items()}
    return {engine: build for engine, build in found.items() if build is not None}


def stratum_figures(answers: Answers, key: Key, question: Question) -> dict[str, Any]:
    """All figures of one stratum, under the names of the performance model."""
    rho, priced, level = answers.one("rho", key), _priced(answers, key), question.level
    out = figures.acceptance(answers.one("alpha", key), level)
    out |= figures.positions(answers.all("hazards", key), level)
    out |= figures.rollbacks(answers.one("near_k", key), answers.all("rollback", key), level)
    out |= costs.costs(rho, priced, out, level)
    out |= figures.theory(out, question.claim)
    out |= costs.observed(answers.one("speedup", key), priced, out, level)
    noise = answers.one("control_noise", key)
    out |= {name: noise.get(name) for name in ("control_runs", "control_spread", "control_low_ms", "control_high_ms")}
    return out


def _priced(answers: Answers, key: Key) -> Priced:
    base = answers.one("baseline", key)
    return Priced(
        base,
        comparable(answers.one_priced("rho", key), base),
        answers.one_priced("alpha", key),
        answers.one_priced("speedup", key),
    )


def _check(question: Question) -> None:
    texts: dict[str, Sequence[object]] = {
        "--where": [question.where], "--baseline": [question.baseline], "--by": question.by,
        "--run": question.runs, "the label": question.label or (),
    }  # fmt: skip
    for option, given in texts.items():
        for text in given:
            if isinstance(text, str):
                encodable(text, option)
    if not isinstance(question.baseline, str | None) and not question.baseline > 0:
        raise InputError(f"--baseline must be above 0 ms, not {question.baseline}")
    if not 0 <= question.near_k_delta <= LONGEST_DELTA:
        raise InputError(f"--near-k must be 0 to {LONGEST_DELTA}, not {question.near_k_delta}")
    if not 0 < question.level < 1:
        raise InputError(f"the level of intervals must lie between 0 and 1, not {question.level}")
    if question.since and question.until and utc(question.since) >= utc(question.until):
        raise InputError(f"--since {question.since} is not before --until {question.until}")


def _set_variables(con: duckdb.DuckDBPyConnection, question: Question, run: str | None) -> None:
    milliseconds = None if run is not None or question.baseline is None else float(question.baseline)
    con.execute("set variable near_k_delta = $1", [question.near_k_delta])
    con.execute("set variable near_k_threshold = $1", [question.near_k_threshold])
    con.execute("set variable baseline_ms = $1", [milliseconds])
    con.execute("set variable baseline_run = $1", [run])
