"""`tracelens compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.cli.waiting import waiting

_SIDE = "a run (several: run1+run2), a period (2026-05-01..2026-05-07), version:X or label:NAME=VALUE."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"Before: {_SIDE}")],
    b: Annotated[str, typer.Argument(metavar="B", help="After: the same.")],
    by: opt.By = ["task_type"],  # noqa: B006 - the option parser copies it
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    where: opt.Where = None,
    since: opt.Since = None,
    until: opt.Until = None,
    run: opt.Runs = [],  # noqa: B006
    baseline: opt.Baseline = None,
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
) -> None:
    """Say what moved between two runs, periods or builds, and whether by more than chance between requests.

    Every figure of every class of traffic on both sides, its change with an interval, and whether the change is more
    than chance between requests after a correction for the number of tests (Holm). Beside a time stands whether it
    changed by more than runs without speculation differ among themselves. Whether a total moved because its classes
    did, or because the mix of traffic did, is told apart. Both sides keep --where, --since, --until and --run and meet
    the same baselines. A date alone as the end of a period means the end of that day; one end of a period may be empty.
    """
    from tracelens.analysis.asked import word
    from tracelens.analysis.compare import compare as analyse
    from tracelens.analysis.session import Question
    from tracelens.reporters import check
    from tracelens.reporters.compare import VIEW

    chosen = opt.chosen_format(fmt, as_json, output)
    check(chosen)
    with waiting():
        result = analyse(
            lake,
            word(a),
            word(b),
            Question(
                by=opt.columns(by),
                where=where,
                since=opt.moment(since, "--since"),
                until=opt.moment(until, "--until"),
                runs=tuple(run),
                baseline=opt.run_or_ms(baseline),
            ),
        )
    with opened(output) as out:
        VIEW.render(result, chosen, out)
