"""`tracelens report`."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened


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
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
) -> None:
    """Say by class of traffic what speculation gives and what it costs.

    One row a stratum: acceptance (always with K and the draft cost), rollbacks, the cost of a round, the speedup that
    the formulas promise and the one that was observed, with intervals. What the logs cannot tell is listed with the
    setting that would make them tell it.
    """
    from tracelens.analysis.report import report as analyse
    from tracelens.reporters import reporter

    chosen = reporter(opt.chosen_format(fmt, as_json, output))
    result = analyse(lake, opt.question(by, where, since, until, run, baseline, claim, near_k=near_k))
    with opened(output) as out:
        chosen.render(result, out)
