"""`tracelens watch`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens.cli import ingest as read
from tracelens.cli import options as opt
from tracelens.errors import InputError
from tracelens.ingest.stop import Stop

if TYPE_CHECKING:
    from tracelens.analysis.watched import Watched
    from tracelens.ingest.watch import Round

Paths = Annotated[list[str], typer.Argument(metavar="PATH…", help="Files, folders, patterns to follow.")]
Every = Annotated[
    float,
    typer.Option(
        "--every",
        metavar="SECONDS",
        min=0.1,
        help="Look at the files so often; what is overwritten between two looks is not seen.",
    ),
]
Seconds = Annotated[
    float | None, typer.Option("--for", metavar="SECONDS", min=0, help="Stop after so long, when all is read.")
]
Once = Annotated[bool, typer.Option("--once", help="One look, then leave: for cron.")]
Port = Annotated[
    int | None,
    typer.Option("--prometheus", metavar="PORT", min=0, max=65535, help="Serve the strata as Prometheus gauges."),
]
Host = Annotated[
    str,
    typer.Option(
        "--prometheus-host", metavar="HOST", help="Serve on this address; all who reach it can read the labels."
    ),
]


def watch(
    paths: Paths,
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    by: opt.By = ["task_type"],  # noqa: B006 - the option parser copies it
    where: opt.Where = None,
    baseline: opt.Baseline = None,
    claim: opt.Claim = None,
    every: Every = 5.0,
    seconds: Seconds = None,
    once: Once = False,
    prometheus: Port = None,
    prometheus_host: Host = "127.0.0.1",
    engine: read.EngineName = "auto",
    run: read.RunName = None,
    role: read.Role = None,
    tz: read.Zone = None,
    year: read.Year = None,
    labels: read.LabelFile = None,
    rules: read.RuleFile = None,
    sets: read.Sets = [],  # noqa: B006
    redact_ids: read.Redact = False,
) -> None:
    """Follow growing logs, keep the lake up to date and show the headline table after each change.

    Growth, rotation (by rename or by copy, compressed or not), truncation and new files are followed by looking; after
    every look the lake holds each record once. A large log that grows is read again only so often that reading takes
    at most about half of the time; what waits is told. A log that is written anew in its place replaces what was read
    of it; what is written and overwritten between two looks can't be had, and a log that was begun anew is told. A full
    disk is told and tried again; a lake that is taken away ends the watch. Ctrl-C finishes the running commit (a
    reading that would take longer is dropped, its logs are still there), prints the table and leaves a complete lake.
    Read a large backlog with `tracelens ingest` first: it uses all cores.
    """
    stop = Stop()
    with _stopped_by_signals(stop):
        from tracelens.analysis.watched import watched
        from tracelens.ingest.options import IngestOptions
        from tracelens.ingest.watch import Watcher, follow
        from tracelens.reporters.live import display

        options = IngestOptions(
            run=run,
            role=_role(role),
            engine=engine,
            tz=tz,
            year=year,
            labels=labels,
            rules=_rules(rules),
            sets=read.pairs(sets),
            redact_ids=redact_ids,
        )
        question = opt.question(by, where, None, None, [], baseline, claim)
        watcher = Watcher(paths, lake, options, stop=stop)
        with ExitStack() as page, ExitStack() as bar:
            metrics = page.enter_context(_served(prometheus_host, prometheus, str(lake)))
            screen = page.enter_context(display(sys.stdout, lake, every))
            reading = [bar.enter_context(read.progress_bar(paths)) or screen.reading]
            seen: list[Watched] = []

            def shown(found: Round) -> None:
                bar.close()  # the bar is for the first reading, which may be long
                reading[0] = screen.reading
                if found.changed or not seen or seen[-1].report is None:
                    try:
                        seen[:] = [watched(lake, question, seen[-1] if seen else None)]
                    except Exception:
                        watcher.check_place()  # a lake that is gone has no fault of its own
                        raise
                screen.show(found, seen[-1])
                if metrics is not None:
                    metrics.show(found, seen[-1])

            def progress(name: str, size: int) -> None:
                reading[0](name, size)

            last = follow(watcher, shown, every=every, seconds=seconds, once=once, progress=progress)
            screen.end(last, seen[-1])


def _role(role: str | None) -> str | None:
    if role not in (None, "speculative", "baseline"):
        raise InputError(f"--role {role}: give speculative or baseline")
    return role


def _rules(rules: Any) -> Any:
    if rules is not None and not rules.is_file():
        raise InputError(f"--rules {rules}: no such file")
    return rules or read.DEFAULT_RULES


@contextmanager
def _served(host: str, port: int | None, lake: str) -> Iterator[Any]:
    """The page for Prometheus, or nothing; its address is told on stderr."""
    if port is None:
        yield None
        return
    from tracelens.reporters.prometheus import served

    with served(host, port, lake) as (page, address):
        print(f"Prometheus metrics at {address}", file=sys.stderr, flush=True)
        yield page


@contextmanager
def _stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask for the stop; a second one takes it, and the lake is what the last commit made it."""

    def ask(number: int, frame: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.ask()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
