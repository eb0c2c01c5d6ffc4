"""The page in a real browser: it draws, sorts, filters, changes its clothes, and asks the network for nothing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.page import Page
from tracelens.reporters.html.page import html

from .page_lake import HOSTILE

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install -e '.[dev]'")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
    # Playwright's own event loop is still open when Python leaves.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_ALL_DRAWN = "document.querySelectorAll('.chart:not([data-drawn])').length === 0"


class Visit:
    """One look at the page, with what the console said and what was asked of the network."""

    def __init__(self, browser: Any, path: Path, *, width: int, scheme: str) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.said.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.said.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        self.page.goto(path.as_uri(), wait_until="load")
        self.until(_ALL_DRAWN)

    def until(self, condition: str) -> None:
        """Wait for a condition; the page's policy forbids the browser's own way, which evaluates text."""
        for _ in range(300):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(30)
        raise AssertionError(f"not within 9 s: {condition}; {self.said}")


@pytest.fixture(scope="module")
def place(written: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(written, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def desktop(browser: Any, place: Path) -> Iterator[Visit]:
    visit = Visit(browser, place, width=1280, scheme="light")
    yield visit
    visit.context.close()


@pytest.fixture(scope="module")
def phone(browser: Any, place: Path) -> Iterator[Visit]:
    visit = Visit(browser, place, width=390, scheme="dark")
    yield visit
    visit.context.close()


def test_quiet_console_and_no_network(desktop: Visit, phone: Visit, place: Path) -> None:
    for visit in (desktop, phone):
        assert visit.said == []
        assert visit.asked == [place.as_uri()]


def test_charts_have_marks(desktop: Visit) -> None:
    marks = desktop.page.evaluate(
        "[...document.querySelectorAll('.chart')].map(c => [c.dataset.chart, c.querySelectorAll("
        "'svg .role-mark path, svg .role-mark text, svg .role-mark line').length])"
    )
    assert len(marks) == 9
    assert all(count > 3 for _, count in marks), marks


def test_hostile_label_is_text_in_the_chart_and_in_tables(desktop: Visit) -> None:
    page = desktop.page
    assert page.evaluate("document.querySelectorAll('b[onclick]').length") == 0
    cells = page.evaluate("[...document.querySelectorAll('th')].map(c => c.textContent)")
    assert HOSTILE in cells
    texts = page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.textContent)")
    assert any(text.startswith("<script>") for text in texts)


def test_sort(desktop: Visit) -> None:
    table = desktop.page.locator("#requests table")
    heads = table.locator("thead th")
    column = heads.all_inner_texts().index(next(t for t in heads.all_inner_texts() if t.startswith("drafted")))
    button = heads.nth(column).locator("button")

    def cells() -> list[int]:
        texts = table.locator(f"tbody tr > :nth-child({column + 1})").all_inner_texts()
        return [int(text.replace(",", "")) for text in texts]

    before = cells()
    button.click()
    assert cells() == sorted(before)
    assert heads.nth(column).get_attribute("aria-sort") == "ascending"
    button.click()
    assert cells() == sorted(before, reverse=True)


def test_sort_by_a_figure_with_its_interval_keeps_the_total_last(desktop: Visit) -> None:
    table = desktop.page.locator("#classes .stack table").first
    table.locator("thead th button", has_text="token time").click()
    values = [float(t.split()[0]) for t in table.locator("tbody tr > :nth-child(4)").all_inner_texts()]
    assert len(values) == 3
    assert values == sorted(values)
    assert table.locator("tfoot th").first.inner_text() == "all traffic"


def test_filter(desktop: Visit) -> None:
    box = desktop.page.locator("#requests .tablebox")
    rows = box.locator("tbody tr")
    every = rows.count()
    box.locator("input.filter").fill("CHAT")
    shown = box.locator("tbody tr:visible")
    assert 0 < shown.count() < every
    assert all("chat" in text for text in shown.all_inner_texts())
    assert box.locator(".count").inner_text() == f"{shown.count()} of {every} rows"
    box.locator("input.filter").fill("")
    assert shown.count() == every


def test_another_class_is_drawn(desktop: Visit) -> None:
    page = desktop.page
    figure = page.locator("#chart-waterfall")
    told = "[...document.querySelectorAll('#chart-waterfall svg text')].map(t => t.textContent).join('|')"
    before = page.evaluate(told)
    figure.locator("select").select_option(label="code")
    for _ in range(100):
        if page.evaluate(told) != before:
            break
        page.wait_for_timeout(30)
    assert page.evaluate(told) != before


def test_definition_is_one_click_away(desktop: Visit) -> None:
    page = desktop.page
    page.locator("#classes .stack thead a.what[data-term=relative_token_time]").first.click()
    dialog = page.locator("#definition")
    assert dialog.is_visible()
    assert "R / tau_committed" in dialog.inner_text()
    dialog.locator("button").click()
    assert not dialog.is_visible()


def test_copy_as_sql(desktop: Visit) -> None:
    desktop.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = desktop.page
    page.locator("#chart-hazard button.sql").click()
    told = page.evaluate("navigator.clipboard.readText()")
    assert "create or replace view strata" in told
    assert "-- Question: how far do drafts get" in told


def test_dark_and_light(desktop: Visit, phone: Visit) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    label = "document.querySelector('#chart-alpha svg .role-axis-label text').getAttribute('fill')"
    light, dark = desktop.page.evaluate(color), phone.page.evaluate(color)
    assert light != dark
    assert desktop.page.evaluate(label) != phone.page.evaluate(label)
    desktop.page.locator("#theme").click()
    desktop.until("document.querySelectorAll('.chart[data-drawn=dark]').length === 9")
    assert desktop.page.evaluate(color) == dark
    assert desktop.page.evaluate(label) == phone.page.evaluate(label)
    assert desktop.said == []


def test_phone_has_no_sideways_scroll(phone: Visit) -> None:
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = "[...document.querySelectorAll('.panel svg')].filter(s => s.getBoundingClientRect().right > 390).length"
    assert phone.page.evaluate(wide) == 0
    phone.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390


LONG = "a_class_of_traffic_with_45_letters_and_no_gap"


@pytest.fixture(scope="module")
def long_names(shown: Page, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The page on a phone with a class whose name no line can break."""
    assert len(LONG) == 45

    def named(answer: Any) -> Any:
        first, *rest = answer.strata
        return dataclasses.replace(answer, strata=(dataclasses.replace(first, key={"task_type": LONG}), *rest))

    page = dataclasses.replace(
        shown, report=named(shown.report), gate=named(shown.gate), gap=named(shown.gap), sweep=named(shown.sweep)
    )
    path = tmp_path_factory.mktemp("long") / "report.html"
    path.write_text(html(page), encoding="utf-8")
    visit = Visit(browser, path, width=390, scheme="light")
    yield visit
    visit.context.close()


def test_a_long_name_does_not_widen_a_phone(long_names: Visit) -> None:
    page = long_names.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    selects = "[...document.querySelectorAll('select')].map(s => s.getBoundingClientRect().right)"
    widths = page.evaluate(selects)
    assert len(widths) == 3
    assert max(widths) <= 390
    for name in ("waterfall", "rollback", "sweep"):
        page.locator(f"#chart-{name} select").select_option(label=LONG)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_figure_stays_on_its_line(phone: Visit) -> None:
    lines = phone.page.evaluate(
        "[...document.querySelectorAll('.facts.numeric dd')].map(d => { const r = document.createRange();"
        " r.selectNodeContents(d); return r.getClientRects().length; })"
    )
    assert lines
    assert set(lines) == {1}


def test_labels_of_the_waterfall_are_whole_on_a_phone(phone: Visit) -> None:
    told = "[...document.querySelectorAll('#chart-waterfall svg .role-axis-label text')].map(t => t.textContent)"
    texts = phone.page.evaluate(told)
    assert texts
    assert not [text for text in texts if "…" in text]


def test_ends_of_cut_labels_are_shown(long_names: Visit) -> None:
    told = "[...document.querySelectorAll('#chart-token-time svg .role-axis-label text')].map(t => t.textContent)"
    cut = [text for text in long_names.page.evaluate(told) if text.startswith("a_class")]
    assert cut
    assert all("…" in text and text.endswith("no_gap") for text in cut), cut


def test_the_total_is_in_sight_in_a_long_table(desktop: Visit) -> None:
    """A pane that is scrolled keeps its last row; one that would hide a row or two is as high as its table."""
    page = desktop.page
    page.evaluate(
        "(() => { const b = document.querySelector('#classes .stack table').tBodies[0];"
        " for (let i = 0; i < 40; i += 1) b.append(b.rows[0].cloneNode(true)); })()"
    )
    pane, foot = page.evaluate(
        "(() => { const t = document.querySelector('#classes .stack table');"
        " return [t.closest('.scroll'), t.tFoot.rows[0].cells[1]].map(e => e.getBoundingClientRect().bottom); })()"
    )
    assert abs(pane - foot) <= 20
    hidden = page.evaluate(
        "[...document.querySelectorAll('.scroll')].map(p => p.scrollHeight - p.clientHeight)"
        ".filter(h => h > 0 && h < 60).length"
    )
    assert hidden == 0
