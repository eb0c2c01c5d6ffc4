"""The first screen: the verdict in a sentence, planned and observed, and what else must be known."""

from __future__ import annotations

from tracelens.analysis.page import Page
from tracelens.analysis.results import NOTHING
from tracelens.reporters import answer, selected
from tracelens.reporters import format as fmt
from tracelens.reporters.charts.strata import VERDICTS, Class
from tracelens.reporters.html.markup import Markup, join, tag
from tracelens.reporters.html.parts import term
from tracelens.reporters.tables import RHO_SIGN, Figures, k_text, rho
from tracelens.reporters.verdicts import verdict
from tracelens.wording import many

_WORDS = {
    "pays": "Speculation pays",
    "loses": "Speculation costs more than it gives",
    "open": "Open whether speculation pays",
}
_CHIPS = 8
_WORST = ("loses", "open", "pays")
#: Two tiles side by side may have two bases.
_BY = {"step": ", by steps", "tpot": ", by TPOT"}
_SHORT = 40  # characters of a reason that a chip can hold


def hero(page: Page, classes: list[Class]) -> Markup:
    """The head of the page; one sentence where there is nothing to report."""
    nothing = answer.nothing(page.report)
    if nothing:
        head, _, rest = nothing.partition(": ")
        return tag("section", tag("h1", head), tag("p", f"{rest[:1].upper()}{rest[1:]}", class_="lead"), class_="hero",
                   id="verdict")  # fmt: skip
    figures, lead = page.report.total.figures, _lead(page)
    return tag(
        "section",
        tag("p", selected.covered(page.covered), class_="eyebrow"),
        tag("p", asked, class_="eyebrow")
        if (asked := selected.of(page.report.selection, page.report.contains))
        else "",
        tag("h1", headline(figures)),
        *(tag("p", line, class_="lead") for line in lead[:1]),
        _tiles(figures, classes[0]),
        _strip(page, classes),
        *(tag("p", line, class_="lead quiet") for line in lead[1:]),
        class_="hero",
        id="verdict",
    )


def headline(figures: Figures) -> str:
    """The verdict with the speedup, planned beside observed."""
    observed, planned = figures.get("speedup_observed"), figures.get("speedup_claimed")
    found = verdict(figures)
    if found not in _WORDS:
        plan = f"; {fmt.times(planned)} was planned" if fmt.is_number(planned) else ""
        return f"Whether speculation pays cannot be told from these records{plan}"
    word = answer.told_verdict(figures, _WORDS)
    if fmt.is_number(observed):
        if not fmt.is_number(planned):
            return f"{word}: {fmt.times(observed)} over plain decoding"
        high = figures.get("speedup_observed_high")
        less = ", but less than planned" if found == "pays" and fmt.is_number(high) and high < planned else ""
        return f"{word}{less}: {fmt.times(observed)} observed, {fmt.times(planned)} planned"
    least = "at least " if figures.get("relative_token_time_basis") == "lower_bound" else ""
    return f"{word}: a token takes {least}{fmt.tokens(figures.get('relative_token_time'))} of plain decoding"


def _lead(page: Page) -> list[str]:
    """The answer first; what qualifies it after that."""
    told = answer.answer(page.report)
    if page.gap is None:
        return told
    first, dot, rest = page.gap.total.verdict.partition(". ")
    figures = page.report.total.figures
    # The gap's sentence says planned and observed; what remains is the baseline and acceptance.
    basis = f"{answer.baselines(figures)}.{answer.control(figures)}"
    lines = (f"{first[:1].upper()}{first[1:]}{dot.strip()}", " ".join(filter(None, [basis, *told[1:]])), rest)
    return [line for line in lines if line]


def _tiles(figures: Figures, total: Class) -> Markup:
    cost, kind = rho(figures)
    draft = f"ρ{RHO_SIGN[kind]} {fmt.ratio(cost)}" if cost is not None else "ρ not measured"
    alpha = f"K {k_text(figures)} · {draft}"
    even = figures.get("break_even_alpha")
    if fmt.is_number(even):
        alpha += " · no α breaks even" if even > 1 else f" · breaks even at {even:.2f}"
    near = figures.get("near_k_round_share")
    least = "≥ " if total.basis == "lower_bound" else ""
    return tag(
        "div",
        _speedup(figures),
        _tile("relative_token_time", f"Relative token time{_BY.get(total.basis or '', '')}",
              least + fmt.ratio(total.time), fmt.interval(total.low, total.high, fmt.tokens),
              "of plain decoding; below 1.0 pays"),
        _tile("draft_accept_ratio", "Acceptance α", fmt.ratio(figures.get("draft_accept_ratio")),
              fmt.bounds(figures, "draft_accept_ratio", fmt.tokens), alpha),
        _tile("tau_committed", "Tokens a round τ", fmt.tokens(figures.get("tau_committed")),
              fmt.bounds(figures, "tau_committed", fmt.tokens),
              f"{fmt.percent(near)} of rounds near-K" if fmt.is_number(near) else "the target's own token included"),
        class_="tiles",
    )  # fmt: skip


def _tile(name: str, title: str, value: str, bounds: str, foot: object) -> Markup:
    return tag(
        "div",
        tag("p", term(name, title), class_="tile-name"),
        tag("p", tag("b", value), " ", tag("span", bounds, class_="bounds") if bounds else "", class_="tile-value"),
        foot if isinstance(foot, Markup) else tag("p", foot, class_="tile-foot"),
        class_="tile",
    )


def _speedup(figures: Figures) -> Markup:
    planned, observed = figures.get("speedup_claimed"), figures.get("speedup_observed")
    title = f"Observed speedup{_BY.get(figures.get('speedup_observed_basis') or '', '')}"
    value, bounds = fmt.times(observed), fmt.bounds(figures, "speedup_observed", fmt.tokens)
    if not (fmt.is_number(planned) and fmt.is_number(observed)):
        foot = f"planned {fmt.times(planned)}" if fmt.is_number(planned) else "no plan given: --claim alpha=…,rho=…,k=…"
        return _tile("speedup_observed", title, value, bounds, foot)
    most = max(planned, observed)
    bars = tag(
        "div",
        _bar("planned", planned, most, "plan"),
        _bar("observed", observed, most, "seen"),
        class_="bars",
    )
    return _tile("speedup_observed", title, value, bounds, bars)


def _bar(name: str, value: float, most: float, style: str) -> Markup:
    return tag(
        "div",
        tag("span", name, class_="bar-name"),
        tag("span", tag("i", style=f"width:{100 * value / most:.1f}%", class_=style), class_="bar-line"),
        tag("span", fmt.times(value), class_="bar-value"),
    )


def _strip(page: Page, classes: list[Class]) -> Markup:
    """The worst classes, what the others are, and how much is to be known beside them."""
    told = [c for c in classes if c.time is not None and not c.is_total]
    told.sort(key=lambda c: _WORST.index(c.verdict))  # and in each by time, as they come
    chips = [_chip(c) for c in told[:_CHIPS]]
    rest = told[_CHIPS:]
    more = [tag("a", f"{many(len(rest), 'more class', 'more classes')}: {_counts(rest)}", href="#classes")]
    warned = sum(w.code != NOTHING for w in page.report.warnings)
    missing = answer.lacking(page.report.coverage)
    notes = [
        tag("a", many(warned, "warning"), href="#warnings", class_="alert" if warned else None)
        if warned
        else tag("span", "no warnings"),
        tag("a", f"{answer.figures_told(missing)} not in these logs", href="#coverage") if missing else "",
    ]
    line = tag("p", *join_space([*chips, *more[: len(rest)]]), class_="chips", title=_counts(told))
    return join((line if len(told) > 1 else "", tag("p", join(notes, " · "), class_="alerts")))


def _counts(classes: list[Class]) -> str:
    """How many of them pay, cost more or are open, the losing ones first."""
    words = {"loses": ("costs more", "cost more"), "open": ("open", "open"), "pays": ("pays", "pay")}
    counts = [(sum(c.verdict == name for c in classes), pair) for name, pair in words.items()]
    return ", ".join(f"{n} {pair[n > 1]}" for n, pair in counts if n)


def _chip(c: Class) -> Markup:
    text = f" {VERDICTS[c.verdict]} {c.told}{f', {c.apart}' if c.apart else ''}"
    if c.decision:
        text += f", {c.why}: gate {c.decision}" if len(c.why) <= _SHORT else f"; gate {c.decision}"
    return tag("span", tag("b", fmt.middle(c.label, 40)), text, class_=f"chip {c.verdict}", title=c.why or None)


def join_space(parts: list[Markup]) -> list[object]:
    """Parts with a space between them, so that they wrap."""
    return [piece for part in parts for piece in (part, " ")]
