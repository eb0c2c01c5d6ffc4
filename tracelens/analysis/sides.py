"""The two sides of a comparison: what the user's words name, and the question that each of them asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.analysis.asked import encodable
from tracelens.analysis.selection import Selection, filters_of, utc
from tracelens.analysis.session import Question
from tracelens.analysis.similar import did_you_mean
from tracelens.errors import InputError
from tracelens.lake.connection import connect

if TYPE_CHECKING:
    import duckdb

_SHOWN = 20
_KINDS = (
    "name a run (vllm-k5, or several: run1+run2), a period (2026-05-01..2026-05-07; one end may be empty), "
    "a build (version:0.29.1) or a label (label:NAME=VALUE)"
)
_RUN, _VERSION, _LABEL = "run:", "version:", "label:"


@dataclass(frozen=True, slots=True)
class Word:
    """What the user wrote for a side; `period` where it can be read as one, `why_not` where it only looks like one."""

    text: str
    period: tuple[datetime | None, datetime | None] | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its name (A or B), the user's word, what kind of thing it is, and what it selects."""

    name: str
    text: str
    kind: str
    runs: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    label: tuple[str, str] | None = None

    def question(self, common: Question) -> Question:
        """The common question, narrowed to this side.

        Raises:
            InputError: --run, --since or --until leave nothing of the side.
        """
        runs = self.runs or common.runs
        if self.runs and common.runs:
            runs = tuple(run for run in self.runs if run in common.runs)
        since = _pick(max, self.since, common.since)
        until = _pick(min, self.until, common.until)
        if (self.runs and not runs) or (since is not None and until is not None and utc(since) >= utc(until)):
            raise InputError(
                f"nothing is left of {self.name} ({self.text}) after --run, --since and --until: both sides keep these"
            )
        return dataclasses.replace(common, runs=runs, since=since, until=until, label=self.label)


def condition(question: Question) -> str:
    """The selection of a question as one SQL condition over `facts`."""
    chosen = Selection((), None, question.since, question.until, question.runs, None, question.label)
    parts = filters_of(chosen) + ([f"({question.where}\n)"] if question.where is not None else [])
    return " and ".join(parts) or "true"


def resolve(lake: Path, a: Word, b: Word) -> tuple[Side, Side]:
    """Find in a lake what the words of both sides name.

    Raises:
        InputError: no lake there; a word that names nothing there, or two things.
    """
    for name, word in (("A", a), ("B", b)):
        encodable(word.text, name)
    con = connect(lake, grouped=False)  # the tables say enough, and the other views take longer than all of it
    try:
        runs = {str(row[0]) for row in con.execute(
            "select run_id from runs union select run_id from rounds union select run_id from requests"
            " union select run_id from windows").fetchall()}  # fmt: skip
        return _resolve(con, "A", a, runs), _resolve(con, "B", b, runs)
    finally:
        con.close()


def _resolve(con: duckdb.DuckDBPyConnection, name: str, word: Word, runs: set[str]) -> Side:
    text = word.text.strip()
    found = []
    explicit = text.removeprefix(_RUN)
    named = [explicit] if explicit in runs else explicit.split("+")
    if explicit and all(run in runs for run in named):
        found.append(Side(name, text, "run", tuple(dict.fromkeys(named))))
    elif text in runs:
        found.append(Side(name, text, "run", (text,)))
    if word.period is not None:
        since, until = word.period
        found.append(Side(name, text, "period", since=since, until=until))
    if text.startswith(_VERSION):
        builds = _versions(con).get(text.removeprefix(_VERSION))
        found += [Side(name, text, "build", builds)] if builds else []
    if text.startswith(_LABEL) and "=" in text:
        key, _, value = text.removeprefix(_LABEL).partition("=")
        found += [Side(name, text, "label", label=(key, value))] if (key, value) in _labels(con, key) else []
    if len(found) == 1:
        return found[0]
    if found:
        kinds = " and ".join(f"a {side.kind}" for side in found)
        raise InputError(f"{name} {text!r} is {kinds} of this lake: write run:{text} for the run, or use --where")
    raise InputError(_unknown(con, name, text, runs, word.why_not))


def _unknown(con: duckdb.DuckDBPyConnection, name: str, text: str, runs: set[str], why_not: str) -> str:
    if text.startswith(_VERSION):
        builds = _versions(con)
        there = f"{did_you_mean([text.removeprefix(_VERSION)], builds)}versions: {_some(builds)}"
    elif text.startswith(_LABEL):
        key = text.removeprefix(_LABEL).partition("=")[0]
        pairs = [f"{one}={value}" for one, value in _labels(con, key) or _labels(con, None)]
        there = f"{did_you_mean([text.removeprefix(_LABEL)], pairs)}labels: {_some(pairs)}"
    else:
        left = [run for run in text.removeprefix(_RUN).split("+") if run not in runs]
        which = f"no run {', '.join(left)}; " if "+" in text and left else ""
        there = f"{which}{did_you_mean(left, runs)}runs: {_some(runs)}; versions: {_some(_versions(con))}"
    why = f" ({why_not})" if why_not else ""
    return f"{name} {text!r} names nothing in this lake{why}: {_KINDS}; {there}"


def _versions(con: duckdb.DuckDBPyConnection) -> dict[str, tuple[str, ...]]:
    """Runs by the version of their engine. A run of two versions is of the later one, as in the view run_traits."""
    rows = con.execute(
        "select version, list(run_id order by run_id) from (select run_id, max(engine_version) as version from runs"
        " group by run_id) where version is not null group by version order by version"
    ).fetchall()
    return {str(version): tuple(runs) for version, runs in rows}


def _labels(con: duckdb.DuckDBPyConnection, key: str | None) -> list[tuple[str, str]]:
    """Labels and their values, of one label or of all."""
    rows = con.execute(
        "with entries as (select unnest(map_entries(labels)) as e from (select labels from rounds union all"
        " select labels from requests union all select labels from windows) where labels is not null)"
        " select distinct e.key, e.value from entries where $1 is null or e.key = $1 order by all",
        [key],
    ).fetchall()
    return [(str(name), str(value)) for name, value in rows]


def _some(names: Iterable[str]) -> str:
    told = sorted(names)
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return (", ".join(told[:_SHOWN]) or "none") + more


def _pick(
    choose: Callable[[datetime, datetime], datetime], own: datetime | None, common: datetime | None
) -> datetime | None:
    if own is None or common is None:
        return own if common is None else common
    return choose(utc(own), utc(common))
