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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens import arguments
from tracelens.arguments import named_in_python
from tracelens.errors import InputError
from tracelens.result import Later, Result, Rows

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
_WHERE = "SQL over the view facts such as \"task_type = 'chat'\""
_SIDE = "a run, a period such as 2026-05-01..2026-05-07, version:X or label:NAME=VALUE"
_NO_CLAIM = (
    "gap needs what was planned: give claim, as text ('alpha=.72,rho=.1,k=5'), a dict with these names, "
    "or '@speculation_profile.json'"
)


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake that `tracelens ingest` wrote; every method answers one command of the CLI.

    What the methods share: `by` columns of the view `facts` (a list, or text with commas); `where` SQL over `facts`;
    `since` and `until` a datetime, a date or ISO text (UTC unless it says; a date alone is the whole day); `run` one
    run or several (a list, or text with commas; a name that holds a comma goes into a list); `baseline` a run, or a
    plain decode step in ms; `claim` as on the command line (`alpha=.72,rho=.1,k=5`), a dict or a `Claim`.

    Errors are those of the command line with the names of arguments. Nothing stays open between two calls, so that
    `with tracelens.open(…) as lake` is allowed and not needed.

    Example:
        >>> tracelens.open("lake").gate(run="k5", baseline="off", margin=0.05).decision
        'INCONCLUSIVE'
    """

    path: Path

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is open."""

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

        with named_in_python():
            question = _question(by, where, since, until, run, baseline, claim, near_k)
            return Result("report", report(self.path, question), Later(self.path, question))

    def gap(
        self,
        *,
        claim: Claimed = None,
        by: Names = _BY,
        where: str | None = None,
        since: When = None,
        until: When = None,
        run: Names = (),
        baseline: str | float | None = None,
    ) -> Result[GapResult]:
        """Why the observed speedup is not the claimed one: every cause as a factor, points and ms a token.

        Args:
            claim: what was planned; there is no gap without it.

        Raises:
            InputError: no claim; as `report`.
        """
        from tracelens.analysis.gap import gap

        with named_in_python():
            if claim is None:
                raise InputError(_NO_CLAIM)
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

        with named_in_python():
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
        """GO, NO_GO or INCONCLUSIVE by class of traffic; the decision over all is `.decision`.

        Args:
            margin: how far from 1.0 the whole interval of the relative token time must lie.
            min_requests: fewer requests of a class decide nothing.
            max_near_k: the largest share of near-K rounds that a class may have; any by default.
            near_k: a rollback of all drafts but this many counts as near-K.

        Raises:
            InputError: a threshold out of its range; as `report`.
        """
        from tracelens.analysis.gate import GateOptions, gate

        with named_in_python():
            question = _question(by, where, since, until, run, baseline, None, near_k)
            options = GateOptions(
                arguments.number("margin", margin),
                arguments.whole("min_requests", min_requests),
                None if max_near_k is None else arguments.number("max_near_k", max_near_k),
            )
            return Result("gate", gate(self.path, question, options))

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

        with named_in_python():
            question = _question(by, where, since, until, run, baseline, None)
            before, after = word(arguments.text("a", a, _SIDE)), word(arguments.text("b", b, _SIDE))
            return Result("compare", compare(self.path, before, after, question))

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
        asked = arguments.text("name_or_sql", name_or_sql, "the name of a query or SQL such as 'FROM facts'")
        with named_in_python(), sql.read(self.path, sql.sql_of(asked)) as (schema, batches):
            return Rows(arrow.whole_table(schema, batches))

    def schema(self, table: str | None = None) -> Rows:
        """The columns of a canonical table with types, units and meaning; without a name, the list of tables.

        Raises:
            InputError: no such table.
        """
        from tracelens.reporters import arrow, schema

        if table is not None:
            table = arguments.text("table", table, "the name of a table such as 'rounds'")
        return Rows(arrow.of_rows(*schema.rows(table)), schema.document(table))


def open_lake(lake: str | os.PathLike[str] | None = None) -> Lake:
    """Open a lake; as `tracelens.open`.

    Args:
        lake: its folder, or `s3://bucket/prefix`; by default $TRACELENS_LAKE, else `lake`.

    Raises:
        InputError: there is no lake at that place.

    Example:
        >>> tracelens.open("lake")
        Lake(path=PosixPath('lake'))
    """
    from tracelens.lake.place import is_remote, lake_path
    from tracelens.lake.whole import check

    place = lake if lake is not None else os.environ.get("TRACELENS_LAKE") or "lake"
    try:
        path = lake_path(place)
        path = path if is_remote(path) else path.expanduser()
    except TypeError as error:
        raise InputError(f"lake must be the path of a folder, not {place!r}") from error
    except RuntimeError as error:
        raise InputError(f"no lake at {place}: there is no such user") from error
    with named_in_python():
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
        by=asked.columns(arguments.names("by", by)),
        where=None if where is None else arguments.text("where", where, _WHERE),
        since=asked.moment(since, "--since"),
        until=asked.moment(until, "--until"),
        runs=asked.columns([run]) if isinstance(run, str) else tuple(arguments.names("run", run)),
        baseline=asked.run_or_ms(_run_or_ms(baseline)),
        claim=asked.claim_of(claim),
        near_k_delta=arguments.whole("near_k", near_k),
    )


def _run_or_ms(baseline: str | float | None) -> str | None:
    """A baseline as the command line has it."""
    if baseline is None:
        return None
    return baseline if isinstance(baseline, str) else repr(arguments.number("baseline", baseline))


def _lengths(k: str | int | Iterable[int]) -> list[int]:
    """Draft lengths as whole numbers."""
    if isinstance(k, str):
        from tracelens.analysis.asked import lengths

        return lengths(k)
    return [arguments.whole("k", one) for one in (k if isinstance(k, Iterable) else [k])]
