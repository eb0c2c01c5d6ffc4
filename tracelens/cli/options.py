"""The options that several commands share, and what their texts mean."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.errors import InputError

if TYPE_CHECKING:
    from tracelens.analysis.session import Question

DEFAULT_LAKE = Path("lake")

LakeDir = Annotated[
    Path,
    typer.Option("--lake", metavar="DIR", envvar="TRACELENS_LAKE", show_default="./lake", help="Folder of the lake."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default="table, or what the name of -o says",
        help="table, json, csv or markdown.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
]
By = Annotated[
    list[str],
    typer.Option(
        "--by",
        metavar="COL[,COL…]",
        show_default="task_type",
        help="Group by these columns of the view `facts` (also repeatable).",
    ),
]
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Only rows of the view `facts` for which this is true.")
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From this ISO date or time on (UTC unless it says).")
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Before this ISO time; a date alone means its end (UTC)."),
]
Runs = Annotated[list[str], typer.Option("--run", metavar="RUN", help="Only this run (repeatable).")]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="RUN|MS", help="Compare with this run, or with this time of a plain decode step in ms."
    ),
]
Claim = Annotated[
    str | None,
    typer.Option(
        "--claim",
        metavar="CLAIM",
        help="What was planned: alpha=.72,rho=.1,k=5 and, if wanted, form=article (or article_tokens, bonus, iid), "
        "baseline_ms=…; or @FILE.json.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Tell on stderr what is done.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a fault.")]

_BY_SUFFIX = {".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown", ".txt": "table"}
_LATER_SUFFIX = {".html": "html", ".htm": "html", ".png": "png", ".svg": "svg", ".parquet": "parquet"}


def chosen_format(fmt: str | None, as_json: bool, output: Path | None = None) -> str:
    """The format asked for: `--json`, `--format`, else what the name of the output file says, else the table.

    Raises:
        InputError: `--json` and another `--format`.
    """
    if as_json:
        if fmt not in (None, "json"):
            raise InputError(f"--json and --format {fmt} ask for two formats: give one of them")
        return "json"
    if fmt is None and output is not None:
        suffix = output.suffix.lower()
        return _BY_SUFFIX.get(suffix) or _LATER_SUFFIX.get(suffix) or "table"
    return (fmt or "table").lower()


def columns(by: list[str]) -> tuple[str, ...]:
    """The columns of one or several `--by`, each once, in order."""
    names = (name.strip() for text in by for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def question(
    by: list[str],
    where: str | None,
    since: str | None,
    until: str | None,
    run: list[str],
    baseline: str | None,
    claim: str | None,
    *,
    near_k: int = 1,
) -> Question:
    """What is asked of the lake, from the options that every analysis has.

    Raises:
        InputError: a time, baseline or claim that cannot be read.
    """
    from tracelens.analysis.claim import parse_claim
    from tracelens.analysis.session import Question

    return Question(
        by=columns(by),
        where=where,
        since=moment(since, "--since"),
        until=moment(until, "--until"),
        runs=tuple(run),
        baseline=run_or_ms(baseline),
        claim=None if claim is None else parse_claim(claim),
        near_k_delta=near_k,
    )


def run_or_ms(text: str | None) -> str | float | None:
    """The value of `--baseline`: a number is a time in ms (`21.3` or `21.3ms`), anything else the name of a run."""
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("ms"))
    except ValueError:
        return text
    if not 1e-6 <= value <= 1e9:
        raise InputError(f"--baseline {text}: not a time of a decode step in ms; write e.g. 21.3")
    return value


def moment(text: str | None, option: str) -> datetime | None:
    """An ISO date or time as UTC; without a zone it is UTC; a bare date is its start, or its end for `--until`.

    Raises:
        InputError: the text is no such time.
    """
    if text is None:
        return None
    try:
        if len(text.strip()) <= len("2026-05-01"):
            day = date.fromisoformat(text.strip())
            start = datetime(day.year, day.month, day.day, tzinfo=UTC)
            return start + timedelta(days=1) if option == "--until" else start
        stamp = datetime.fromisoformat(text.strip())
        return stamp.replace(tzinfo=UTC) if stamp.tzinfo is None else stamp.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{option} {text!r} is no time: write 2026-05-01, 2026-05-01T14:30, 2026-05-01T14:30:00Z "
            "or 2026-05-01T14:30:00+08:00"
        ) from error
