"""What a watch shows after a change: the report, and up to when the lake knows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tracelens.analysis.report import report
from tracelens.analysis.results import Report
from tracelens.analysis.session import Question
from tracelens.errors import InputError
from tracelens.lake.connection import connect
from tracelens.resources import room


@dataclass(frozen=True, slots=True)
class Freshness:
    """Up to when a lake knows (UTC; None where no record has a time) and the rows of its tables: `freshness.sql`."""

    last_record: datetime | None = None
    sources: int = 0
    rounds: int = 0
    windows: int = 0
    requests: int = 0
    rejects: int = 0


@dataclass(frozen=True, slots=True)
class Watched:
    """The report over the lake as it is now; None where there is none, and `problem` says why.

    `fitted` says that the question has fitted the records at some time.
    """

    fresh: Freshness
    report: Report | None
    problem: str = ""
    fitted: bool = False


def freshness(lake: Path) -> Freshness:
    """Up to when a lake knows, and how much.

    Raises:
        InputError: no lake there.
    """
    con = connect(lake, grouped=False, keep=True)
    try:
        row = con.execute((room("queries") / "freshness.sql").read_text(encoding="utf-8")).fetchone()
    finally:
        con.close()
    return Freshness(*row) if row else Freshness()


def watched(lake: Path, question: Question, before: Watched | None = None) -> Watched:
    """Look at a lake between two commits.

    Args:
        lake: folder of the lake.
        question: what is asked of it.
        before: what was seen last. Once there was a report, a question that does not fit any more (a label that is
            gone) and a file that another process replaces under our hands are no end of the watch.

    Raises:
        InputError: the question does not fit the records of the lake, and never did.
    """
    import duckdb

    had = before is not None and before.fitted
    fresh = before.fresh if before is not None else Freshness()
    try:
        fresh = freshness(lake)
        if not (fresh.rounds or fresh.windows or fresh.requests):
            return Watched(fresh, None, "no record yet", had)
        return Watched(fresh, report(lake, question), fitted=True)
    except InputError as error:
        if not had:
            raise
        return Watched(fresh, None, str(error), had)
    except duckdb.IOException:
        if not had:
            raise
        return Watched(fresh, None, "another process writes to the lake: the next look tells more", had)
