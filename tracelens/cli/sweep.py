"""`tracelens sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.cli.waiting import waiting


def sweep(
    by: opt.By = ["task_type"],  # noqa: B006 - the option parser copies it
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    where: opt.Where = None,
    since: opt.Since = None,
    until: opt.Until = None,
    run: opt.Runs = [],  # noqa: B006
    baseline: opt.Baseline = None,
    claim: opt.Claim = None,
    k: Annotated[
        str,
        typer.Option("--k", metavar="K[,K…]", help="Draft lengths to compare, 1 to 64; those that ran are added."),
    ] = "1,2,3,5,7",
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
) -> None:
    """Find the best draft length K for every class of traffic; 0 is off.

    A K that ran is shown as it ran. The others are replayed from the rounds of the longest K of the selection that has
    20 rounds of several requests: the accepted prefixes are walked again with another draft length, and times are
    fitted over it. Where both can be had they stand side by side with the replay's error. A K longer than any draft of
    these rounds is extrapolated: it is shown, but never the best. Where rounds cannot be replayed (trees, n-gram
    drafters, histograms alone) the geometric law takes their place, marked. With --claim the cost of a round is assumed
    where no times are logged.
    """
    from tracelens.analysis.asked import lengths
    from tracelens.analysis.claim import parse_claim
    from tracelens.analysis.session import Question
    from tracelens.analysis.sweep import sweep as analyse
    from tracelens.reporters import check
    from tracelens.reporters.sweep import VIEW

    chosen = opt.chosen_format(fmt, as_json, output)
    check(chosen)
    with waiting():
        result = analyse(
            lake,
            Question(
                by=opt.columns(by),
                where=where,
                since=opt.moment(since, "--since"),
                until=opt.moment(until, "--until"),
                runs=tuple(run),
                baseline=opt.run_or_ms(baseline),
                claim=None if claim is None else parse_claim(claim),
            ),
            lengths(k),
        )
    with opened(output) as out:
        VIEW.render(result, chosen, out)
