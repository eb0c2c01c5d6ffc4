"""`tracelens demo`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.cli import options as opt
from tracelens.cli.output import opened
from tracelens.errors import InputError
from tracelens.resources import room

if TYPE_CHECKING:
    from tracelens.analysis.results import GapResult, Report
    from tracelens.analysis.session import Question

CLAIM = "alpha=.72,rho=.1,k=5"
SITES = {"vllm": ("vllm-site", "vLLM, run vllm-k5"), "rtp": ("rtp-site", "RTP-LLM, run rtp-k5")}
ARMS = ("baseline", "k5", "k1", "k2", "k3", "k7")
_NOT_LOGS = ("truth.json", "labels.csv")


def demo(
    lake: Annotated[
        Path, typer.Option("--lake", metavar="DIR", parser=opt.place, help="Folder of the demo's lake.")
    ] = Path("tracelens-demo"),
    as_json: opt.Json = False,
    output: opt.Output = None,
) -> None:
    """Run the main job on the packaged samples: ingest, report by task type, tell the gap; leave a lake to play with.

    Two sites planned with the article's figures (2.40x) and got less. Running it again changes nothing.
    """
    for name, (folder, _) in SITES.items():
        _ingest(room("samples") / folder, name, lake)
    answers = {title: _answers(lake, name) for name, (_, title) in SITES.items()}
    reports = {title: answer[0] for title, answer in answers.items()}
    gaps = {title: answer[1] for title, answer in answers.items()}
    with opened(output) as out:
        if as_json:
            from tracelens.reporters import gap as gaps_shown
            from tracelens.reporters import json_

            told = {f"{name}-k5": json_.document(reports[title]) for name, (_, title) in SITES.items()}
            why = {f"{name}-k5": gaps_shown.document(gaps[title]) for name, (_, title) in SITES.items()}
            json_.write({"lake": str(lake), "claim": CLAIM, "reports": told, "gaps": why}, out, indent=2)
        else:
            from tracelens.reporters import story

            story.render(reports, gaps, CLAIM, shlex.quote(str(lake)), out)


def _ingest(site: Path, name: str, lake: Path) -> None:
    from tracelens.ingest.run import IngestOptions, ingest

    if not (site / "k5").is_dir():
        raise InputError(f"{site}: the samples of the demo are missing from this installation; install tracelens again")
    labels = site / "labels.csv"
    for arm in ARMS:
        folder = site / arm
        if not folder.is_dir():
            continue
        if sys.stderr.isatty():
            print(f"reading {site.name}/{arm}", file=sys.stderr)
        logs = [str(path) for path in sorted(folder.iterdir()) if path.name not in _NOT_LOGS]
        role = "baseline" if arm == "baseline" else "speculative"
        options = IngestOptions(run=f"{name}-{arm}", role=role, labels=labels if labels.is_file() else None)
        ingest(logs, lake, options)


def _answers(lake: Path, name: str) -> tuple[Report, GapResult]:
    from tracelens.analysis import gap, session
    from tracelens.analysis.report import report_of

    with session.opened(lake, _question(name), gap.QUERIES) as opened_session:
        return report_of(opened_session), gap.gap_of(opened_session)


def _question(name: str) -> Question:
    from tracelens.analysis.claim import parse_claim
    from tracelens.analysis.session import Question

    return Question(by=("task_type",), runs=(f"{name}-k5",), baseline=f"{name}-baseline", claim=parse_claim(CLAIM))
