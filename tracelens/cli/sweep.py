"""`tracelens sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.errors import InputError


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

    A K that ran is shown as it ran. The others are replayed from the rounds of the longest K: the accepted prefixes are
    walked again with a shorter draft, and times are fitted over the draft length. Where both can be had they stand side
    by side with the replay's error. Where rounds cannot be replayed (trees, n-gram drafters, histograms alone) the
    geometric law takes their place, marked. With --claim the cost of a round is assumed where no times are logged.
    """
    from tracelens.analysis.claim import parse_claim
    from tracelens.analysis.session import Question
    from tracelens.analysis.sweep import sweep as analyse
    from tracelens.reporters import sheet
    from tracelens.reporters.sweep import VIEW

    chosen = opt.chosen_format(fmt, as_json, output)
    sheet.check(chosen)
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
        _lengths(k),
    )
    with opened(output) as out:
        VIEW.render(result, chosen, out)


def _lengths(text: str) -> list[int]:
    """The value of `--k`: whole numbers, separated by commas."""
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if not (part.isascii() and part.isdigit()):
            raise InputError(f"--k {text}: {part!r} is no draft length; write whole numbers such as 1,2,3,5,7")
        found.append(int(part))
    return found
