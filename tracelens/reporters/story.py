"""The demo on a terminal: the plan, what came of it at each site, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from tracelens.analysis.results import GapResult, Report
from tracelens.reporters import format as fmt
from tracelens.reporters.answer import answer
from tracelens.reporters.gap import waterfall
from tracelens.reporters.sheet import Sheet
from tracelens.reporters.terminal import Page, TerminalReporter, sheet


def render(reports: Mapping[str, Report], gaps: Mapping[str, GapResult], claim: str, lake: str, out: TextIO) -> None:
    """Tell the story: `reports` and `gaps` by the name of the site, the first report in full."""
    page = Page(out)
    _plan(page, reports, claim)
    for i, (site, report) in enumerate(reports.items()):
        page.gap()
        page.say((site, "bold underline"))
        if i == 0:
            page.flush()
            TerminalReporter(page.width).render(report, out)
        else:
            for line in answer(report):
                page.say(line)
            for stratum in report.strata:
                figures = stratum.figures
                said = f"observed {fmt.times(figures.get('speedup_observed'))}"
                key = " / ".join(fmt.label(v, column=c) for c, v in stratum.key.items())
                page.item("-", f"{key}: {said}, relative token time {fmt.ratio(figures.get('relative_token_time'))}")
            page.flush()
        page.gap()
        page.flush()
        _gap(gaps[site], page.width, out)
    _next(page, lake, claim)
    page.flush()


def _plan(page: Page, reports: Mapping[str, Report], claim: str) -> None:
    totals = [report.total.figures for report in reports.values()]
    planned = next((t["speedup_claimed"] for t in totals if fmt.is_number(t.get("speedup_claimed"))), None)
    seen = [fmt.times(t.get("speedup_observed")) for t in totals if fmt.is_number(t.get("speedup_observed"))]
    page.say(
        (f"Planned {fmt.times(planned)}, observed {' and '.join(seen) or fmt.DASH}.", "bold"),
        f" The plan took {claim} from an offline test. Below is what two sites got, from their logs "
        "(simulated, of vLLM and RTP-LLM, packaged with tracelens).",
    )


def _gap(found: GapResult, width: int, out: TextIO) -> None:
    verdict = found.total.verdict
    grid = waterfall(found.total, found.claim, last=True)
    sheet(Sheet((verdict[:1].upper() + verdict[1:],), (grid,)), out, width)


def _next(page: Page, lake: str, claim: str) -> None:
    page.gap()
    page.say((f"The lake is {lake}. Try next:", "bold"))
    for command in (
        f"tracelens gap --lake {lake} --run rtp-k5 --baseline rtp-baseline --claim {claim}",
        f"tracelens report --lake {lake} --by run_id",
        f"tracelens report --lake {lake} --by task_type,temperature_bucket --run rtp-k5 --format markdown",
        f"tracelens query alpha --lake {lake}",
        f'tracelens query "SELECT run_id, count(*) AS requests FROM requests_joined GROUP BY ALL" --lake {lake}',
        "tracelens ingest YOUR_LOGS --run NAME --role speculative",
    ):
        page.console.print(page.text(f"  {command}"), soft_wrap=True)
