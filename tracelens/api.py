"""tracelens from Python: the commands of the CLI as methods of a lake, their answers as results.

Example:
    >>> import tracelens
    >>> lake = tracelens.open("lake")
    >>> report = lake.report(by=["task_type"], run="k5", baseline="off")
    >>> round(report.total.figures["draft_accept_ratio"], 2)
    0.43
    >>> report.to_polars().select("row", "task_type", "rounds").rows()[1:3]
    [('stratum', 'chat', 48), ('stratum', 'code', 48)]

The same names, defaults and errors as on the command line; `where` is SQL over the view `facts`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.result import Result, Rows

if TYPE_CHECKING:
    from tracelens.analysis.claim import Claim
    from tracelens.analysis.compared import Comparison
    from tracelens.analysis.gate import GateResult
    from tracelens.analysis.results import GapResult, Report
    from tracelens.analysis.session import Question
    from tracelens.analysis.sweep import SweepResult

    When = date | str | None
    Names = str | Iterable[str]
    Claimed = str | Mapping[str, object] | Claim | None

_BY = ("task_type",)


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake that `tracelens ingest` wrote; every method answers one command of the CLI.

    What the methods share: `by` columns of the view `facts` (a list, or text with commas); `where` SQL over `facts`;
    `since` and `until` a datetime, a date or ISO text (UTC unless it says; a date alone is the whole day); `run` one
    run or several; `baseline` a run, or a plain decode step in ms; `claim` as on the command line
    (`alpha=.72,rho=.1,k=5`), a dict or a `Claim`.

    Example:
        >>> tracelens.open("lake").gate(run="k5", baseline="off", margin=0.05).answer.decision
        'INCONCLUSIVE'
    """

    path: Path

    def report(
        self,
        *,
        by: Names = _BY,
        where: str | None = None,
        since: When = None,
        until: When = None,
        run: Names = (),
        baseline: str | float | None = None,
        claim: Claimed = None,
        near_k: int = 1,
    ) -> Result[Report]:
        """What speculation gives and what it costs, by class of traffic.

        Raises:
            InputError: an unknown column or run, a `where`, time, baseline or claim that cannot be read.
        """
        from tracelens.analysis.report import report

        question = _question(by, where, since, until, run, baseline, claim, near_k)
        return Result("report", report(self.path, question))

    def gap(
        self,
        *,
        claim: Claimed,
        by: Names = _BY,
        where: str | None = None,
        since: When = None,
        until: When = None,
        run: Names = (),
        baseline: str | float | None = None,
    ) -> Result[GapResult]:
        """Why the observed speedup is not the claimed one: every cause as a factor, points and ms a token.

        Raises:
            InputError: no claim; as `report`.
        """
        from tracelens.analysis.gap import gap

        return Result("gap", gap(self.path, _question(by, where, since, until, run, baseline, claim)))

    def sweep(
        self,
        *,
        k: str | int | Iterable[int] | None = None,
        by: Names = _BY,
        where: str | None = None,
        since: When = None,
        until: When = None,
        run: Names = (),
        baseline: str | float | None = None,
        claim: Claimed = None,
    ) -> Result[SweepResult]:
        """The best draft length by class of traffic: as run, and replayed from the longest.

        Args:
            k: draft lengths to compare, 1 to 64, as numbers or as text with commas; by default 1, 2, 3, 5, 7. Those
                that ran are added.
            claim: its cost of a round is assumed where no times are logged.

        Raises:
            InputError: a draft length outside 1 to 64; as `report`.
        """
        from tracelens.analysis.sweep import DEFAULT_KS, sweep

        ks = DEFAULT_KS if k is None else _lengths(k)
        return Result("sweep", sweep(self.path, _question(by, where, since, until, run, baseline, claim), ks))

    def gate(
        self,
        *,
        margin: float = 0.02,
        min_requests: int = 30,
        max_near_k: float | None = None,
        by: Names = _BY,
        where: str | None = None,
        since: When = None,
        until: When = None,
        run: Names = (),
        baseline: str | float | None = None,
        near_k: int = 1,
    ) -> Result[GateResult]:
        """GO, NO_GO or INCONCLUSIVE by class of traffic; the decision over all is `.answer.decision`.

        Args:
            margin: how far from 1.0 the whole interval of the relative token time must lie.
            min_requests: fewer requests of a class decide nothing.
            max_near_k: the largest share of near-K rounds that a class may have; any by default.
            near_k: a rollback of all drafts but this many counts as near-K.

        Raises:
            InputError: a threshold out of its range; as `report`.
        """
        from tracelens.analysis.gate import GateOptions, gate

        question = _question(by, where, since, until, run, baseline, None, near_k)
        return Result("gate", gate(self.path, question, GateOptions(margin, min_requests, max_near_k)))

    def compare(
        self,
        a: str,
        b: str,
        *,
        by: Names = _BY,
        where: str | None = None,
        since: When = None,
        until: When = None,
        run: Names = (),
        baseline: str | float | None = None,
    ) -> Result[Comparison]:
        """What moved from `a` to `b`, and whether it is real.

        Args:
            a: before: a run (several: `run1+run2`), a period (`2026-05-01..2026-05-07`), `version:X` or
                `label:NAME=VALUE`.
            b: after: the same.

        Raises:
            InputError: a side that names nothing or two things; as `report`.
        """
        from tracelens.analysis.asked import word
        from tracelens.analysis.compare import compare

        question = _question(by, where, since, until, run, baseline, None)
        return Result("compare", compare(self.path, word(a), word(b), question))

    def query(self, name_or_sql: str | None = None) -> Rows:
        """A named query, or SQL over the views of the lake: one statement that only reads. Nothing lists the names.

        Raises:
            InputError: no such name, or SQL that is refused.
        """
        from tracelens.analysis import sql
        from tracelens.reporters import arrow

        if name_or_sql is None:
            names, rows = sql.listed()
            return Rows(arrow.of_rows(names, rows))
        with sql.read(self.path, sql.sql_of(name_or_sql)) as (schema, batches):
            return Rows(arrow.whole_table(schema, batches))

    def schema(self, table: str | None = None) -> Rows:
        """The columns of a canonical table with types, units and meaning; without a name, the list of tables.

        Raises:
            InputError: no such table.
        """
        from tracelens.reporters import arrow, schema

        return Rows(arrow.of_rows(*schema.rows(table)), schema.document(table))


def open_lake(lake: str | os.PathLike[str] | None = None) -> Lake:
    """Open a lake; as `tracelens.open`.

    Args:
        lake: its folder; by default $TRACELENS_LAKE, else `lake`.

    Raises:
        InputError: there is no lake at that place.

    Example:
        >>> tracelens.open("lake")
        Lake(path=PosixPath('lake'))
    """
    from tracelens.lake.connection import check

    path = Path(lake if lake is not None else os.environ.get("TRACELENS_LAKE") or "lake").expanduser()
    check(path)
    return Lake(path)


def _question(
    by: Names,
    where: str | None,
    since: When,
    until: When,
    run: Names,
    baseline: str | float | None,
    claim: Claimed,
    near_k: int = 1,
) -> Question:
    """What is asked of the lake, from what a caller may give."""
    from tracelens.analysis import asked
    from tracelens.analysis.session import Question

    return Question(
        by=asked.columns(_several(by)),
        where=where,
        since=asked.moment(since, "--since"),
        until=asked.moment(until, "--until"),
        runs=tuple(_several(run)),
        baseline=asked.run_or_ms(None if baseline is None else str(baseline)),
        claim=asked.claim_of(claim),
        near_k_delta=near_k,
    )


def _several(names: Names | None) -> Sequence[str]:
    """One name or several as a list."""
    return [names] if isinstance(names, str) else [*(names or ())]


def _lengths(k: str | int | Iterable[int]) -> list[int]:
    """Draft lengths as whole numbers."""
    if isinstance(k, str):
        from tracelens.analysis.asked import lengths

        return lengths(k)
    try:
        return list(map(index, k if isinstance(k, Iterable) else [k]))
    except TypeError as error:
        raise InputError(f"k={k!r} holds no draft length; give whole numbers such as [1, 2, 3, 5, 7]") from error
