"""`tracelens report`: acceptance, draft cost, rollbacks, theory and observation by class of traffic."""

from __future__ import annotations

from pathlib import Path

from tracelens.analysis.claim import Claim, parse_claim
from tracelens.analysis.results import Report
from tracelens.analysis.session import Question, Session, opened
from tracelens.executors import Executor

__all__ = ["Claim", "ReportOptions", "parse_claim", "report"]

ReportOptions = Question


def report(lake: Path, options: Question | None = None, executor: Executor | None = None) -> Report:
    """Answer the report over one lake; with an executor its rounds are read there.

    Raises:
        InputError: no lake there, an unknown column or run, a `where` that is no expression over `facts`.
    """
    with opened(lake, options or Question(), executor=executor) as session:
        return report_of(session)


def report_of(session: Session) -> Report:
    """The same over an open session."""
    question = session.question
    return Report(
        tuple(dict.fromkeys(question.by)),
        session.strata,
        session.total,
        session.missing(),
        session.warnings(),
        None if question.claim is None else question.claim.as_mapping(),
        question.selection(),
        _setting(session),
        contains(session),
    )


def contains(session: Session) -> dict[str, str]:
    """What the whole lake holds of persons, whatever was selected: request ids as logged, hashed, or both."""
    marks = "select bool_or({0} like 'redacted:%'), bool_or({0} not like 'redacted:%') from sources"
    found = session.con.execute(marks.format("coalesce(request_ids, 'kept')")).fetchone()
    redacted, kept = found or (None, None)
    return {"request_ids": ("mixed" if kept else "redacted") if redacted else "kept"}


def _setting(session: Session) -> dict[str, str]:
    """Run, engine and model of the selection, those alone of which it has one."""
    names = ("run", "engine", "model")
    values = session.con.execute(
        "select case when count(distinct run_id) = 1 then min(run_id) end,"
        " case when count(distinct engine) = 1 then min(engine) end,"
        " case when count(distinct model) = 1 then min(model) end from unit_sums"
    ).fetchone()
    return {name: value for name, value in zip(names, values or (), strict=True) if value is not None}
