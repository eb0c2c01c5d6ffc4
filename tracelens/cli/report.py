"""`tracelens report`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tracelens.cli import browser, executing
from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.cli.waiting import waiting


def report(
    by: opt.By = ["task_type"],  # noqa: B006 - the option parser copies it
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    where: opt.Where = None,
    since: opt.Since = None,
    until: opt.Until = None,
    run: opt.Runs = [],  # noqa: B006
    baseline: opt.Baseline = None,
    claim: opt.Claim = None,
    near_k: Annotated[
        int, typer.Option("--near-k", metavar="N", min=0, help="A rollback of all drafts but N counts as near-K.")
    ] = 1,
    fmt: opt.ReportFormat = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
    chart: Annotated[
        str | None,
        typer.Option(
            "--chart",
            metavar="NAME",
            show_default="waterfall with --claim, else token-time",
            help="The chart of --format png or svg: waterfall, token-time, alpha, hazard, survival, rollback, "
            "over-time, sweep or heat-map.",
        ),
    ] = None,
    in_browser: Annotated[
        bool, typer.Option("--open", help="Write the page (to -o, else a temporary file) and open it in the browser.")
    ] = False,
    executor: executing.ExecutorName = "local",
    master: executing.Master = None,
) -> None:
    """Say by class of traffic what speculation gives and what it costs.

    One row a stratum: acceptance (always with K and the draft cost), rollbacks, the cost of a round, the speedup that
    the formulas promise and the one that was observed, with intervals. What the logs cannot tell is listed with the
    setting that would make them tell it. As html it is one page that needs no network, with the gap (of --claim), the
    sweep over K, and what moves over time and load. With --executor spark the machines of a cluster read the rounds;
    the lake lies on a disk that all share.
    """
    from tracelens.reporters import PAGE_FORMATS, pages, reporter

    if in_browser:
        browser.check(output, fmt, as_json=as_json)
        fmt = "html"
    chosen = opt.chosen_format(fmt, as_json, output)
    terminal = not in_browser and str(output or "-") == "-" and sys.stdout.isatty()
    pages.check(chosen, chart, terminal=terminal)
    question = opt.question(by, where, since, until, run, baseline, claim, near_k=near_k)
    if chosen in PAGE_FORMATS:
        from tracelens.analysis.page import page

        with executing.executor(executor, master, lake) as cluster, waiting():
            shown = page(lake, question, cluster)
        target = browser.place(output) if in_browser else output
        with opened(target) as out:
            pages.render(shown, chosen, chart, out)
        if in_browser and target is not None:
            browser.show(target)
        return
    from tracelens.analysis.report import report as analyse

    text = reporter(chosen)
    with executing.executor(executor, master, lake) as cluster, waiting():
        result = analyse(lake, question, cluster)
    with opened(output) as out:
        text.render(result, out)
