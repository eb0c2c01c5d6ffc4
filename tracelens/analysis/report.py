"""`tracelens report`: acceptance, draft cost, rollbacks, theory and observation by class of traffic."""

from __future__ import annotations

from pathlib import Path

from tracelens.analysis.claim import Claim, parse_claim
from tracelens.analysis.results import Report
from tracelens.analysis.session import Question, opened

__all__ = ["Claim", "ReportOptions", "parse_claim", "report"]

ReportOptions = Question


def report(lake: Path, options: Question | None = None) -> Report:
    """Answer the report over one lake.

    Raises:
        InputError: no lake there, an unknown column or run, a `where` that is no expression over `facts`.
    """
    question = options or Question()
    with opened(lake, question) as session:
        claim = None if question.claim is None else question.claim.as_mapping()
        by = tuple(dict.fromkeys(question.by))
        return Report(by, session.strata, session.total, session.missing(), session.warnings(), claim)
