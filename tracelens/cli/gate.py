"""`tracelens gate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.cli.waiting import waiting
from tracelens.errors import InputError

EXIT = {"GO": 0, "NO_GO": 1, "INCONCLUSIVE": 2}


def gate(
    by: opt.By = ["task_type"],  # noqa: B006 - the option parser copies it
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    where: opt.Where = None,
    since: opt.Since = None,
    until: opt.Until = None,
    run: opt.Runs = [],  # noqa: B006
    baseline: opt.Baseline = None,
    margin: Annotated[
        float, typer.Option("--margin", metavar="SHARE", help="The interval must lie this far from 1.0.")
    ] = 0.02,
    min_requests: Annotated[
        int,
        typer.Option(
            "--min-requests",
            metavar="N",
            help="Fewer requests decide nothing; nor do those worth under 20 of equal length.",
        ),
    ] = 30,
    max_near_k: Annotated[
        float | None,
        typer.Option(
            "--max-near-k", metavar="SHARE", show_default="any", help="Most near-K rounds that a class may have."
        ),
    ] = None,
    emit_policy: Annotated[
        Path | None,
        typer.Option(
            "--emit-policy", metavar="FILE", help="Write K by class and by batch size as JSON (0 = off), for vLLM too."
        ),
    ] = None,
    near_k: Annotated[
        int, typer.Option("--near-k", metavar="N", min=0, help="A rollback of all drafts but N counts as near-K.")
    ] = 1,
    fmt: opt.Format = None,
    as_json: opt.Json = False,
    output: opt.Output = None,
) -> int:
    """Decide by class of traffic whether speculation pays: GO, NO_GO or INCONCLUSIVE.

    GO where the whole 95% interval of the relative token time lies below 1 - margin, NO_GO where it lies above
    1 + margin; else INCONCLUSIVE, also where two runs without speculation differ by as much. Exit codes: 0 all GO,
    1 some NO_GO, 2 inconclusive, 3 usage or input error.
    """
    from tracelens.analysis.gate import GateOptions
    from tracelens.analysis.gate import gate as analyse
    from tracelens.reporters import check, json_
    from tracelens.reporters.gate import VIEW

    chosen = opt.chosen_format(fmt, as_json, output)
    check(chosen)
    question = opt.question(by, where, since, until, run, baseline, None, near_k=near_k)
    if emit_policy is not None:
        _apart(emit_policy, output)
    with waiting():
        result = analyse(lake, question, GateOptions(margin, min_requests, max_near_k))
    if emit_policy is not None:
        from tracelens.analysis.policy import policy

        document = policy(lake, question, result).document()
        with opened(emit_policy) as out:
            json_.write(document, out, indent=2)
    with opened(output) as out:
        VIEW.render(result, chosen, out)
    return EXIT[result.decision]


def _apart(policy: Path, output: Path | None) -> None:
    """Refuse one place for two documents."""
    out, other = (str(path) if path is not None else "-" for path in (output, policy))
    if out == other or (out != "-" and other != "-" and Path(out).resolve() == policy.resolve()):
        place = "stdout" if other == "-" else other
        raise InputError(f"--emit-policy and the answer would both go to {place}: give the policy a file of its own")
