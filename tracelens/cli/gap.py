"""`tracelens gap`."""

from __future__ import annotations

from tracelens.cli import executing
from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.cli.waiting import waiting


def gap(
    by: opt.By = ["task_type"],  # noqa: B006 - the option parser copies it
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    where: opt.Where = None,
    since: opt.Since = None,
    until: opt.Until = None,
    run: opt.Runs = [],  # noqa: B006
    baseline: opt.Baseline = None,
    claim: opt.Claim = None,
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
    executor: executing.ExecutorName = "local",
    master: executing.Master = None,
) -> None:
    """Say why the observed speedup is not the claimed one: the waterfall, by class of traffic and in total.

    Every cause is a factor, points of speedup and ms a token, each with its interval; each column adds up exactly.
    Causes that the engine did not log are named and stay inside "the rest of the round".
    """
    from tracelens.analysis.gap import gap as analyse
    from tracelens.reporters import check
    from tracelens.reporters.gap import VIEW

    chosen = opt.chosen_format(fmt, as_json, output)
    check(chosen)
    question = opt.question(by, where, since, until, run, baseline, claim)
    with executing.executor(executor, master, lake) as cluster, waiting():
        result = analyse(lake, question, cluster)
    with opened(output) as out:
        VIEW.render(result, chosen, out)
