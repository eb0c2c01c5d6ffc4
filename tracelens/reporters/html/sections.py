"""The sections of the page below its first screen, in the order in which a reader asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tracelens.analysis.page import Page
from tracelens.analysis.page_sql import command
from tracelens.reporters import answer
from tracelens.reporters import format as fmt
from tracelens.reporters.charts.drawn import Absent, Drawn, Head, Numbers
from tracelens.reporters.html.classes import advice, strata
from tracelens.reporters.html.markup import Markup, join, tag
from tracelens.reporters.html.parts import absent, definitions, figure, sql_button, table, term

_TOP_SQL = ("top_requests",)

#: Sections of the page: id and name in its navigation.
SECTIONS = (
    ("gap", "Gap"), ("classes", "Classes"), ("positions", "Acceptance"), ("rollbacks", "Rollbacks"), ("time", "Time"),
    ("sweep", "K sweep"), ("load", "Load"), ("requests", "Requests"), ("coverage", "Data"),
    ("definitions", "Definitions"),
)  # fmt: skip


def sections(page: Page, found: Mapping[str, Drawn | Absent], every: Page | None = None) -> Markup:
    """All of them; of a page without data only what says why.

    Args:
        page: what is shown.
        found: its charts.
        every: the page with all classes, where `page` has the ends of many alone.
    """
    every = every or page
    if answer.nothing(page.report):
        return join((_data(page), _definitions()))
    show = partial(_figure, page, found)
    return join(
        (
            _section("gap", "Where the planned speedup went", show("waterfall", wide=True)),
            _section("classes", "Which classes of traffic pay", _left_out(page, every), show("token-time"),
                     show("alpha"), advice(every), strata(page)),
            _section("positions", "How far drafts get", show("hazard"), show("survival")),
            _section("rollbacks", "What rollbacks cost", show("rollback"), _rollbacks(page)),
            _section("time", "How cost moves over time", show("over-time", wide=True)),
            _section("sweep", "Which draft length is best", show("sweep", wide=True)),
            _section("load", "Where in the load speculation pays", show("heat-map", wide=True)),
            _section("requests", "Requests that waste most draft time", _requests(page)),
            _data(page),
            _definitions(),
        )
    )  # fmt: skip


def _section(name: str, title: str, *children: object) -> Markup:
    return tag("section", tag("h2", title), tag("div", *children, class_="grid"), id=name)


def _figure(page: Page, found: Mapping[str, Drawn | Absent], name: str, *, wide: bool = False) -> Markup:
    drawn = found[name]
    if isinstance(drawn, Absent):
        return absent(drawn, page.report.coverage, wide=wide)
    return figure(drawn, page.statements.parts(drawn.queries, name), wide=wide)


def _left_out(page: Page, every: Page) -> Markup | str:
    """How many classes are not on this page, and the command that lists them."""
    shown, all_of = len(page.report.strata), len(every.report.strata)
    if shown == all_of:
        return ""
    text = (
        f"{all_of:,} classes of traffic: this page has the {shown} slowest and fastest against plain decoding, "
        f"of {all_of - shown:,} more only the total. All of them: "
    )
    return tag("p", text, tag("code", command("report", page.question), " -o classes.csv"), class_="card wide note")


def _rollbacks(page: Page) -> Markup | str:
    figures = page.report.total.figures
    rows = [
        ("near_k_round_share", "Rounds that lose (almost) the whole draft (near-K)", fmt.percent),
        ("near_k_excess", "Against independent acceptance, percentage points", fmt.points),
        ("near_k_request_share", "Requests in which they are common", fmt.percent),
        ("rollback_request_share", "Requests with any rollback", fmt.percent),
        ("near_k_draft_ms", "Draft time of near-K rounds", fmt.duration),
        ("near_k_step_ms", "Step time of near-K rounds", fmt.duration),
        ("near_k_step_share", "Their share of all step time", fmt.percent),
        ("near_k_saved_share", "Over the time that speculation saved", fmt.percent),
    ]
    told = [
        tag("div", tag("dt", term(name, words)), tag("dd", show(figures.get(name))))
        for name, words, show in rows
        if fmt.is_number(figures.get(name))
    ]
    if not told:
        return ""
    return tag("div", tag("h3", "All traffic"), tag("dl", *told, class_="facts numeric"), class_="card")


def _requests(page: Page) -> Markup:
    if not page.top:
        return tag("div", tag("p", "Not shown: no record tells of single requests with drafts.", class_="none"),
                   class_="card wide")  # fmt: skip
    heads = (
        Head("request"), Head("run"), Head("task type"), Head("wasted\ndraft ms", "wasted_draft_ms"),
        Head("of\ndraft ms", "draft_ms"), Head("rejected\ntokens", "rollback_len"), Head("drafted"),
        Head("α", "draft_accept_ratio"), Head("near-K\nrounds", "near_k_round_share"), Head("rounds", "rounds"),
        Head("temperature"),
    )  # fmt: skip
    rows = tuple(
        (
            fmt.label(r.request_id, 80), fmt.label(r.run_id, 60), fmt.label(r.task_type, 60),
            fmt.number_ms(r.wasted_draft_ms), fmt.number_ms(r.draft_ms), fmt.count(r.rejected), fmt.count(r.drafted),
            fmt.ratio(r.draft_accept_ratio), fmt.percent(r.near_k_round_share), fmt.count(r.rounds),
            f"{r.temperature:g}" if fmt.is_number(r.temperature) else fmt.DASH,
        )
        for r in page.top
    )  # fmt: skip
    title = f"The {len(rows)} worst requests, all classes"
    timed = any(r.wasted_draft_ms is not None for r in page.top)
    note = "Engine time in ms; a step counts once, shared by its requests." if timed else (
        "No draft time with a share of its step is logged: sorted by rejected tokens.")  # fmt: skip
    foot = tag("div", tag("p", note, class_="note"), sql_button(page.statements.parts(_TOP_SQL), title), class_="foot")
    return tag("div", tag("h3", title), table(Numbers(heads, rows), title, keys=3), foot, class_="card wide")


def _data(page: Page) -> Markup:
    missing, warnings = answer.missing(page.report), answer.warnings(page.report)
    lacking = answer.figures_told(answer.lacking(page.report.coverage))
    empty = bool(answer.nothing(page.report))
    return tag(
        "section",
        tag("h2", "What the data can and cannot tell"),
        tag(
            "div",
            _list("warnings", f"Warnings ({len(warnings)})", warnings, "None."),
            # Of nothing nobody knows what its logs hold.
            "" if empty else _list("missing", f"Not in these logs ({lacking}), and what gives it" if missing else
                                   "Not in these logs", missing, "Every figure of the model can be had."),
            tag("div", tag("h3", "What was asked"), tag("dl", *_asked(page), class_="facts"), class_="card wide"),
            class_="grid",
        ),
        id="coverage",
    )  # fmt: skip


def _list(name: str, title: str, items: Sequence[str], none: str) -> Markup:
    body = tag("ul", *(tag("li", item) for item in items)) if items else tag("p", none, class_="none")
    return tag("div", tag("h3", title), body, class_="card wide", id=name)


def _asked(page: Page) -> list[Markup]:
    q = page.question
    claim = ", ".join(f"{k}={v}" for k, v in (page.report.claim or {}).items() if v is not None)
    asked = (
        ("Classes by", ", ".join(page.report.by) or "none"), ("Runs", ", ".join(q.runs) or "all that speculate"),
        ("Filter", q.where or "none"), ("Since", f"{q.since:%Y-%m-%d %H:%M} UTC" if q.since else "the first record"),
        ("Until", f"{q.until:%Y-%m-%d %H:%M} UTC" if q.until else "the last record"),
        ("Baseline", "found in the lake" if q.baseline is None else f"{q.baseline} ms" if not isinstance(
            q.baseline, str) else q.baseline),
        ("Claim", claim or "none"), ("Level of intervals", fmt.percent(q.level)),
        ("Near-K", f"at most {q.near_k_delta} draft token(s) kept"),
    )  # fmt: skip
    return [tag("div", tag("dt", name), tag("dd", value)) for name, value in asked]


def _definitions() -> Markup:
    return tag(
        "section",
        tag("details", tag("summary", tag("h2", "Definitions of every number")), definitions(), class_="card"),
        id="definitions",
    )
