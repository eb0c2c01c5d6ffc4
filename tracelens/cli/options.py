"""The options that several commands share, and what their texts mean."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.analysis.asked import columns as columns
from tracelens.analysis.asked import moment as moment
from tracelens.analysis.asked import run_or_ms as run_or_ms
from tracelens.errors import InputError
from tracelens.lake.place import lake_path
from tracelens.reporters import BINARY_FORMATS

if TYPE_CHECKING:
    from tracelens.analysis.session import Question

DEFAULT_LAKE = Path("lake")


def place(text: str) -> Path:
    """A lake's place from an option, see `lake_path`; what can't be one is an error of usage."""
    try:
        return lake_path(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


LakeDir = Annotated[
    Path,
    typer.Option(
        "--lake",
        metavar="DIR",
        envvar="TRACELENS_LAKE",
        show_default="./lake",
        parser=place,
        help="Folder of the lake, or a bucket: s3://…, gs://…, az://…",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default="table, or what the name of -o says",
        help="table, json, csv, markdown or parquet.",
    ),
]
ReportFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default="table, or what the name of -o says",
        help="table, json, csv, markdown, parquet, html (one page), png or svg (one chart).",
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

_BY_SUFFIX = {".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown", ".txt": "table",
              ".parquet": "parquet"}  # fmt: skip
# Endings of formats that are not written: text under such a name would open as a broken file.
_FOREIGN = frozenset(
    [
        ".pdf",
        ".ps",
        ".eps",
        ".doc",
        ".docx",
        ".odt",
        ".rtf",
        ".ppt",
        ".pptx",
        ".xls",
        ".xlsx",
        ".xlsm",
        ".ods",
        ".tsv",
        ".jsonl",
        ".ndjson",
        ".yaml",
        ".yml",
        ".toml",
        ".xml",
        ".jpg",
        ".jpeg",
        ".gif",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".tex",
        ".rst",
        ".adoc",
        ".ipynb",
        ".arrow",
        ".feather",
        ".orc",
        ".avro",
        ".pkl",
        ".npy",
        ".npz",
        ".h5",
        ".db",
        ".duckdb",
        ".sqlite",
        ".sqlite3",
        ".sql",
        ".zip",
        ".gz",
        ".tgz",
        ".tar",
        ".zst",
        ".bz2",
        ".xz",
        ".7z",
    ]
)
_PAGE_SUFFIX = {".html": "html", ".htm": "html", ".png": "png", ".svg": "svg"}


def chosen_format(fmt: str | None, as_json: bool, output: Path | None = None) -> str:
    """The format asked for: `--json`, `--format`, else what the name of the output file says, else the table.

    Raises:
        InputError: `--json` and another `--format`; a binary format to a terminal; without a format, a name that ends
            like one that is not written.
    """
    if as_json:
        if fmt not in (None, "json"):
            raise InputError(f"--json and --format {fmt} ask for two formats: give one of them")
        return "json"
    if fmt is None and output is not None:
        suffix = output.suffix.lower()
        fmt = _BY_SUFFIX.get(suffix) or _PAGE_SUFFIX.get(suffix)
        if suffix in _FOREIGN:
            raise InputError(_not_written(output, suffix))
    chosen = (fmt or "table").lower()
    if chosen in BINARY_FORMATS and str(output or "-") == "-" and sys.stdout.isatty():
        raise InputError(f"--format {chosen} is binary and stdout is a terminal: give a file with -o FILE.{chosen}")
    return chosen


def _not_written(output: Path, suffix: str) -> str:
    """Why a name is refused, and the nearest thing that can be had."""
    nearest = {".pdf": ": print the page of -o FILE.html", ".xlsx": ": a spreadsheet opens -o FILE.csv"}
    nearest |= {".xls": nearest[".xlsx"], ".ods": nearest[".xlsx"]}
    known = ".txt, .json, .csv, .md, .parquet, .html, .png, .svg"
    return (
        f"-o {output}: {suffix} is not written{nearest.get(suffix, '')}; use one of {known}, or name the format with "
        "--format"
    )


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
