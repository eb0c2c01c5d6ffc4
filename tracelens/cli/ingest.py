"""`tracelens ingest`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.cli import executing as where
from tracelens.cli import options as opt
from tracelens.errors import InputError, NothingRecognisedError, ReaderFaultError, RejectsError
from tracelens.wording import many

if TYPE_CHECKING:
    from tracelens.ingest.run import Progress

Paths = Annotated[list[str], typer.Argument(metavar="PATH…", help="Files, folders, patterns; - is stdin.")]
EngineName = Annotated[str, typer.Option("--engine", metavar="NAME", help="Read as this engine's log only.")]
Zone = Annotated[
    str | None,
    typer.Option("--tz", metavar="ZONE", help="Zone of stamps that have none, e.g. Europe/Berlin. Without it: UTC."),
]
Year = Annotated[
    int | None,
    typer.Option(
        "--year", min=1970, max=2200, help="Year of the first stamp that has none. Without it: the file's date."
    ),
]


RunName = Annotated[str | None, typer.Option("--run", metavar="NAME", help="Name of the run these logs are of.")]
Role = Annotated[
    str | None, typer.Option("--role", metavar="ROLE", help="speculative or baseline (without speculation).")
]
LabelFile = Annotated[
    Path | None,
    typer.Option("--labels", metavar="FILE", help="CSV, JSON lines or Parquet: request_id and any columns."),
]
RuleFile = Annotated[
    Path | None,
    typer.Option("--rules", metavar="FILE", show_default="./tracelens.toml, if there is one", help="Task rules."),
]
Sets = Annotated[list[str], typer.Option("--set", metavar="COL=VALUE", help="Set a column, or a label of a new name.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Worker processes. Default: one a core.")]
Replace = Annotated[
    bool, typer.Option("--replace", help="Read again what is in the lake already, e.g. with another --role.")
]
Redact = Annotated[
    bool,
    typer.Option(
        "--redact-ids",
        help="Keep keyed hashes of request ids. The salt: $TRACELENS_REDACT_SALT, else a file beside the lake.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Leave with 1 when any record was refused.")]
DEFAULT_RULES = Path("tracelens.toml")


def ingest(
    paths: Paths,
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    engine: EngineName = "auto",
    run: RunName = None,
    role: Role = None,
    tz: Zone = None,
    year: Year = None,
    labels: LabelFile = None,
    rules: RuleFile = None,
    sets: Sets = [],  # noqa: B006 - the option parser copies it
    jobs: Jobs = None,
    strict: Strict = False,
    replace: Replace = False,
    redact_ids: Redact = False,
    executor: where.ExecutorName = "local",
    master: where.Master = None,
    as_json: opt.Json = False,
) -> None:
    """Normalise logs into the lake.

    Formats, compressions and wrappings are found by content. A source is ingested once, whatever its name; a log that
    has grown replaces its earlier version. What can't be read is counted and kept in the table `rejects`. With
    --executor spark every file is read on some machine of the cluster; logs and lake lie on a disk that all share.
    """
    from tracelens.ingest.run import IngestOptions
    from tracelens.ingest.run import ingest as run_ingest
    from tracelens.reporters import ingested

    if role not in (None, "speculative", "baseline"):
        raise InputError(f"--role {role}: give speculative or baseline")
    if rules is not None and not rules.is_file():
        raise InputError(f"--rules {rules}: no such file")
    options = IngestOptions(
        run=run,
        role=role,
        engine=engine,
        tz=tz,
        year=year,
        labels=labels,
        rules=rules or DEFAULT_RULES,
        sets=pairs(sets),
        jobs=jobs,
        strict=strict,
        replace=replace,
        redact_ids=redact_ids,
    )
    if executor != "local" and jobs is not None:
        raise InputError("--jobs is for work on this machine: leave it out, the cluster has its own settings")
    with where.executor(executor, master, lake) as cluster, progress_bar(paths) as told:
        summary = run_ingest(paths, lake, options, told, executor=cluster)
    from tracelens.engines import load
    from tracelens.ingest.advice import missing

    gaps = missing(load(engine), summary.surfaces, summary.held)
    if as_json:
        ingested.write_json(summary, gaps, sys.stdout)
    else:
        ingested.write_text(summary, gaps, lake, sys.stdout)
    if summary.faults:
        sources = len({name for name, _ in summary.faults})
        raise ReaderFaultError(
            f"a part of {many(sources, 'source')} could not be read, by a fault of "
            f"tracelens ({summary.faults[0][1]}); all the rest is in the lake. Report what stands above; once it is "
            "mended, --replace reads these sources again"
        )
    if not summary.surfaces and not any("already in the lake" in why for _, why in summary.notes):
        raise NothingRecognisedError(
            "nothing recognised: no record of a known engine in these files; `tracelens inspect` says what they are, "
            "`tracelens ingest --help` how to name the engine"
        )
    if strict and summary.rejects:
        refused = many(summary.rejects, "record was", "records were")
        place = ingested.place_option(lake)
        raise RejectsError(f'--strict: {refused} refused; see `tracelens query "from rejects"{place}`')


def pairs(sets: list[str]) -> dict[str, str]:
    """The columns and values of every `--set COL=VALUE`.

    Raises:
        InputError: a text of another form.
    """
    found: dict[str, str] = {}
    for text in sets:
        column, equals, value = text.partition("=")
        if not equals or not column.strip():
            raise InputError(f"--set {text}: write COL=VALUE, e.g. --set task_type=chat")
        found[column.strip()] = value
    return found


@contextmanager
def progress_bar(paths: list[str]) -> Iterator[Progress | None]:
    """A bar on stderr with rate and time left; nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from tracelens.reporters.format import visible
    from tracelens.sources.discover import discover

    # Sizes are those of the files; what is read is decompressed, so a compressed file may run past its end.
    total = sum(f.size or 0 for f in discover(paths)[0]) or None
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)

        def told(name: str, size: int) -> None:
            bar.update(task, advance=size, description=visible(name)[-40:])

        yield told
