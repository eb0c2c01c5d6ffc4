"""The page as text: nothing of a user is obeyed, nothing comes from elsewhere, every figure has its definition."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.page import Page, page
from tracelens.analysis.results import Missing
from tracelens.reporters import tables
from tracelens.reporters.definitions import DEFINITIONS
from tracelens.reporters.html.hero import headline
from tracelens.reporters.html.markup import Markup, data, tag, text
from tracelens.reporters.html.page import html
from tracelens.reporters.html.sections import SECTIONS

from . import page_lake
from .fixture import figures
from .page_lake import HOSTILE


class Reader(HTMLParser):
    """Elements with their attributes, the text of scripts, and the text that a reader sees."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._in = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def read(written: str) -> Reader:
    return Reader(written)


def document(reader: Reader) -> dict[str, Any]:
    """The data of the page."""
    found: dict[str, Any] = json.loads(next(s for s in reader.scripts if s.lstrip().startswith("{")))
    return found


def test_no_label_is_markup(read: Reader) -> None:
    assert any(HOSTILE in word for word in read.words)
    assert len(read.scripts) == 4  # theme, data, Vega, page
    assert not any(name.startswith("on") for _, attributes in read.elements for name in attributes)
    assert not [1 for tag, _ in read.elements if tag in ("img", "link", "iframe", "object", "embed", "base")]


def test_hostile_label_in_data_cannot_end_its_element(written: str) -> None:
    start = written.index('id="page-data"')
    block = written[start : written.index("</script>", start)]
    assert "alert(1)" in block
    assert "<" not in block.partition(">")[2]


def test_policy_allows_these_scripts_alone(read: Reader) -> None:
    policy = next(a["content"] or "" for t, a in read.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    script_source = next(part for part in policy.split(";") if "script-src" in part)
    assert "unsafe-inline" not in script_source
    for script in read.scripts:
        if not script.lstrip().startswith("{"):
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in script_source


def test_nothing_comes_from_elsewhere(written: str, read: Reader) -> None:
    for _, attributes in read.elements:
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith("#")
    style = written[written.index("<style>") : written.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_size(written: str) -> None:
    assert len(written.encode("utf-8")) < 3_000_000


def test_page_does_not_grow_with_rounds(written: str, tmp_path: Path) -> None:
    more = html(page_lake.make(tmp_path, repeat=3))
    # Other figures have other digits; rows there are no more of.
    assert more.count("<tr>") <= written.count("<tr>") + 60
    assert len(more) < 1.02 * len(written)


def test_links_lead_somewhere(read: Reader) -> None:
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in read.elements:
        if attributes.get("href"):
            assert (attributes["href"] or "")[1:] in ids
        if "data-term" in attributes:
            assert f"def-{attributes['data-term']}" in ids
    assert {anchor for anchor, _ in SECTIONS} <= set(ids)


def test_every_column_of_the_report_has_a_definition() -> None:
    columns = {column for table in tables.NARROW for column in table.columns}
    without = {c.names[0] for c in columns} - set(DEFINITIONS)
    assert not without


def test_charts_have_words_numbers_and_sql(read: Reader) -> None:
    sql = document(read)["sql"]
    shown = [attributes for _, attributes in read.elements if "data-chart" in attributes]
    assert len(shown) == 9
    assert all(attributes["aria-label"] for attributes in shown)
    buttons = [(attributes["data-sql"] or "").split() for _, attributes in read.elements if "data-sql" in attributes]
    assert len(buttons) >= 11  # nine charts, the tables, the requests
    assert all(part in sql for parts in buttons for part in parts)
    assert sum(1 for t, _ in read.elements if t == "table") >= 9 + 4 + 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_lake.lake(tmp_path_factory.mktemp("sql"))


def test_what_is_not_there_says_why(shown: Page) -> None:
    without = dataclasses.replace(shown, gap=None, sweep=None, no_sweep="strata are by K", times=(), heat=(), top=())
    told = " ".join(Reader(html(without)).words)
    assert "--claim alpha=" in told
    assert "strata are by K" in told
    assert "no record tells the batch size" in told
    assert "no record tells of single requests" in told
    assert told.count("Not shown: ") == 5


def test_nothing_selected(place: Path) -> None:
    reader = Reader(html(page(place, page_lake.asked(where="task_type = 'none'"))))
    told = " ".join(reader.words)
    assert "Nothing to report" in told
    assert "the lake holds 2 runs" in told
    # Nothing is known of logs that were not looked at, and only what was given is blamed.
    assert "Not in these logs" not in told
    assert "Every figure" not in told
    assert "--where" in told
    assert "--since" not in told
    assert len(reader.scripts) == 3  # no Vega


def test_headlines() -> None:
    assert headline(figures()).startswith("Speculation pays, but less than planned: 1.61x observed, 2.40x planned")
    worse = figures(relative_token_time_low=1.02, relative_token_time_high=1.1, speedup_claimed=None)
    assert headline(worse).startswith("Speculation costs more than it gives: ")
    assert headline(figures(relative_token_time_high=1.1)).startswith("Open whether speculation pays")
    none = dict.fromkeys(figures())
    assert headline(none) == "Whether speculation pays cannot be told from these records"


def test_assets_are_data_of_the_package() -> None:
    folder = files("tracelens.reporters.html").joinpath("assets")
    assert {entry.name for entry in folder.iterdir()} >= {"page.html", "page.css", "page.js", "theme.js"}


@given(st.text(), st.text())
def test_text_stays_text(label: str, value: str) -> None:
    reader = Reader(tag("p", label, tag("b", value), title=value))
    assert [name for name, _ in reader.elements] == ["p", "b"]
    assert set(reader.elements[0][1]) == {"title"}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", tag("p", label))


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_data_stays_data(value: Any) -> None:
    reader = Reader(data({"value": value}, "it"))
    assert [name for name, _ in reader.elements] == ["script"]
    assert json.loads(reader.scripts[0]) == {"value": value}


def test_markup_is_made_here_alone() -> None:
    assert text("<b>") == "&lt;b&gt;"
    assert text(Markup("<b>")) == "<b>"
    assert tag("input", disabled=True, value=None, hidden=False) == "<input disabled>"


def many(shown: Page, count: int) -> Page:
    """The page with that many classes, the later ones slower, all with the figures of the page's own."""

    def strata(answer: Any) -> Any:
        own = answer.strata
        made = []
        for i in range(count):
            one = own[i % len(own)]
            c = 0.4 + i / count
            ends = {"relative_token_time_low": c - 0.01, "relative_token_time_high": c + 0.01}
            times = {"relative_token_time": c, **ends}
            if answer is shown.gate:
                decision = "GO" if c < 0.97 else "NO_GO" if c > 1.03 else "INCONCLUSIVE"
                one = dataclasses.replace(one, decision=decision, advice=(), reasons=("…",), **times)
            elif answer is shown.report:
                one = dataclasses.replace(one, figures={**one.figures, **times, "speedup_tpot": None})
            made.append(dataclasses.replace(one, key={"task_type": f"class of traffic {i:04d}"}))
        return dataclasses.replace(answer, strata=tuple(made))

    return dataclasses.replace(
        shown, report=strata(shown.report), gate=strata(shown.gate), gap=strata(shown.gap), sweep=strata(shown.sweep)
    )


def test_a_thousand_classes_are_no_larger_than_many(shown: Page) -> None:
    written = html(many(shown, 1000))
    assert len(written.encode("utf-8")) < 3_000_000
    told = " ".join(Reader(written).words)
    assert "1,000 classes of traffic: this page has the 80 slowest and fastest" in told
    assert "of 920 more only the total" in told
    assert "tracelens report --lake LAKE --by task_type --baseline off" in told
    for shown_class in ("0000", "0039", "0960", "0999"):
        assert f"class of traffic {shown_class}" in told
    assert "class of traffic 0040" not in told
    assert "class of traffic 0500" not in told


def test_few_classes_are_all_there(shown: Page) -> None:
    told = " ".join(Reader(html(many(shown, 80))).words)
    assert all(f"class of traffic {i:04d}" in told for i in range(80))
    assert "slowest and fastest" not in told


def chips(page: Page) -> list[str]:
    head = html(page).partition('class="chips"')[2].partition("</p>")[0]
    return [re.sub("<[^>]*>", "", part) for part in re.findall(r"<(?:span class=.chip|a ).*?</(?:span|a)>", head)]


def test_chips_show_the_losing_classes_first_and_count_the_rest(shown: Page) -> None:
    told = chips(many(shown, 20))
    assert len(told) == 9
    assert told[0] == "class of traffic 0019 costs more 1.35"
    assert told[7] == "class of traffic 0012 open 1.00"
    assert told[8] == "12 more classes: 12 pay"
    told = chips(many(shown, 40))
    assert told[8] == "32 more classes: 7 cost more, 1 open, 24 pay"


def test_a_gate_that_decides_otherwise_is_told(shown: Page) -> None:
    code = next(i for i, s in enumerate(shown.gate.strata) if s.key["task_type"] == "code")
    near = {"relative_token_time": 0.95, "relative_token_time_low": 0.91, "relative_token_time_high": 0.99}
    gated = list(shown.gate.strata)
    gated[code] = dataclasses.replace(gated[code], decision="INCONCLUSIVE", reasons=("relative token time …",), **near)
    found = list(shown.report.strata)
    found[code] = dataclasses.replace(found[code], figures={**found[code].figures, **near})
    page = dataclasses.replace(
        shown, gate=dataclasses.replace(shown.gate, strata=tuple(gated)),
        report=dataclasses.replace(shown.report, strata=tuple(found)),
    )  # fmt: skip
    assert "code pays 0.95, within the 2 % margin: gate INCONCLUSIVE" in chips(page)
    assert "INCONCLUSIVE: within the 2 % margin" in Reader(html(page)).words


def test_both_tiles_name_their_basis(shown: Page) -> None:
    total = shown.report.total
    by_tpot = {**total.figures, "speedup_observed_basis": "tpot"}
    page = dataclasses.replace(
        shown, report=dataclasses.replace(shown.report, total=dataclasses.replace(total, figures=by_tpot))
    )
    words = Reader(html(page)).words
    assert "Observed speedup, by TPOT" in words
    assert "Relative token time, by steps" in words


def test_missing_figures_are_counted_alike(shown: Page) -> None:
    coverage = (Missing("rho, rho_round, overhead", "no time", "log it"), Missing("n_eff, rho", "no ids", "log them"))
    told = " ".join(Reader(html(dataclasses.replace(
        shown, report=dataclasses.replace(shown.report, coverage=coverage)))).words)  # fmt: skip
    assert "4 figures not in these logs" in told
    assert "Not in these logs (4 figures), and what gives it" in told
