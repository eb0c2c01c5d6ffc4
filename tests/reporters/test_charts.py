"""Charts show what the analysis found: specs that Vega-Lite accepts, figures that agree, text that stays text."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.page import Page
from tracelens.analysis.results import Report, Stratum
from tracelens.errors import InputError
from tracelens.reporters import charts, reporter
from tracelens.reporters import format as fmt
from tracelens.reporters.charts import strata
from tracelens.reporters.charts.drawn import MOST_ROWS, Absent, Drawn, labels
from tracelens.reporters.charts.load import bucket
from tracelens.reporters.charts.theme import DARK, LIGHT, config
from tracelens.reporters.charts.whole import image, whole
from tracelens.reporters.sheet import name_of
from tracelens.reporters.terminal import TerminalReporter

from .fixture import figures, report
from .page_lake import HOSTILE, TASKS


def drawn(page: Page, name: str) -> Drawn:
    found = charts.charts(page)[name]
    assert isinstance(found, Drawn), found
    return found


def rows(found: Drawn, panel: int = 0) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = found.panels[panel].to_dict()["data"]["values"]
    return values


def axes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield from (node[c] for c in ("x", "y") if isinstance(node.get(c), dict) and "field" in node[c])
        for value in node.values():
            yield from axes(value)
    elif isinstance(node, list):
        for value in node:
            yield from axes(value)


def test_every_chart_is_drawn(shown: Page) -> None:
    found = charts.charts(shown)
    assert tuple(found) == charts.NAMES
    assert [name for name, chart in found.items() if isinstance(chart, Absent)] == []


@pytest.mark.parametrize("name", charts.NAMES)
@pytest.mark.long
def test_spec_has_units_and_words_and_no_colour(shown: Page, name: str) -> None:
    found = drawn(shown, name)
    for panel in found.panels:
        spec = panel.to_dict()  # validates against the schema of Vega-Lite
        assert spec["description"]
        assert spec["data"]["values"]
        spec.pop("config")  # Altair's own, which a page leaves out
        assert "#" not in json.dumps({key: spec[key] for key in spec if key not in ("data", "$schema", "description")})
        titles = [axis["title"] for axis in axes(spec) if axis.get("title")]
        assert titles, name
    assert found.numbers.rows
    assert {len(row) for row in found.numbers.rows} == {len(found.numbers.heads)}
    assert found.queries


def test_styles_are_those_of_both_themes(shown: Page) -> None:
    told = set()
    for name in charts.NAMES:
        for panel in drawn(shown, name).panels:
            for layer in panel.to_dict()["layer"]:
                style = layer["mark"].get("style")
                told.update([style] if isinstance(style, str) else style or [])
    assert told
    for palette in (LIGHT, DARK):
        assert told <= set(config(palette)["style"])
    assert set(config(LIGHT)["style"]) == set(config(DARK)["style"])


def test_waterfall_closes_in_every_class(shown: Page) -> None:
    assert shown.gap is not None
    found = drawn(shown, "waterfall")
    assert found.choices is not None
    strata = [shown.gap.total, *shown.gap.strata]
    assert len(found.choices) == len(strata)
    for bars, stratum in zip(found.choices.values(), strata, strict=True):
        first, *causes, last = bars
        assert first["end"] == pytest.approx(stratum.speedup_claimed)
        assert last["end"] == pytest.approx(stratum.speedup_observed)
        assert causes[0]["start"] == first["end"]
        for one, other in itertools.pairwise(causes):
            assert one["end"] == other["start"]
        # Causes that moved nothing are left out of the picture: what is left of the sum is theirs.
        assert causes[-1]["end"] == pytest.approx(last["end"], abs=0.02)


def test_token_time_and_alpha_are_the_gates(shown: Page) -> None:
    of_gate = {s.key["task_type"]: s for s in shown.gate.strata}
    times = {row["label"]: row for row in rows(drawn(shown, "token-time"))}
    shares = {row["name"]: row for row in rows(drawn(shown, "alpha"))}
    assert set(times) == {"all traffic", *TASKS}
    for task, stratum in of_gate.items():
        assert times[str(task)]["time"] == stratum.relative_token_time
        assert times[str(task)]["low"] == stratum.relative_token_time_low
        assert shares[str(task)]["alpha"] == stratum.draft_accept_ratio
        assert shares[str(task)]["even"] == stratum.break_even_alpha
    assert all("K 4 · ρ " in row["label"] for row in shares.values())


def test_near_k_of_the_histogram_is_the_reports(shown: Page) -> None:
    found = drawn(shown, "rollback")
    assert found.choices is not None
    every = [shown.report.total, *shown.report.strata]
    for bars, stratum in zip(found.choices.values(), every, strict=True):
        near = sum(row["to"] - row["from"] for row in bars if row["kind"] == "near")
        assert near == pytest.approx(stratum.figures["near_k_round_share"])
        assert sum(row["share"] for row in bars if row["kind"] == "top") == pytest.approx(1.0)


def test_curves_are_the_reports(shown: Page) -> None:
    for name, first in (("hazard", 1), ("survival", 0)):
        values = [row for row in rows(drawn(shown, name)) if row["series"] == "code"]
        stratum = next(s for s in shown.report.strata if s.key["task_type"] == "code")
        assert [row["value"] for row in values] == stratum.figures[name]
        assert [row["position"] for row in values] == list(range(first, first + len(values)))


def test_one_mark_for_the_best_k(shown: Page) -> None:
    found = drawn(shown, "sweep")
    assert found.choices is not None
    assert shown.sweep is not None
    for bars, stratum in zip(found.choices.values(), [shown.sweep.total, *shown.sweep.strata], strict=True):
        assert [row["k"] for row in bars if row["best"]] == [stratum.best_k] * bool(stratum.best_k)


def test_time_has_a_panel_a_figure(shown: Page) -> None:
    found = drawn(shown, "over-time")
    assert len(found.panels) == 3
    assert found.terms == ("rho", "verify_inflation", "overhead")
    assert len(rows(found)) == len(shown.times) <= 60


def test_a_change_of_run_is_marked(shown: Page) -> None:
    half = len(shown.times) // 2
    later = [dataclasses.replace(m, run_id="k4b", is_first=i == 0) for i, m in enumerate(shown.times[half:])]
    changed = dataclasses.replace(shown, times=(*shown.times[:half], *later))
    marked = [row["mark"] for row in rows(drawn(changed, "over-time")) if row["mark"]]
    assert marked == ["a", "b"]
    assert "b k4b" in " ".join(drawn(changed, "over-time").notes)


def test_hostile_label_is_data_alone(shown: Page) -> None:
    for name in ("token-time", "hazard"):
        spec = drawn(shown, name).panels[0].to_dict()
        values = spec["data"].pop("values")
        spec.pop("description")
        domain = json.dumps(spec)
        assert any(HOSTILE in row.values() for row in values)
        assert "alert" not in domain or name == "hazard"  # curves name their series in the scale, as a JSON string


def test_many_classes_are_cut_and_the_table_has_all() -> None:
    many = tuple(Stratum({"task_type": f"class {i}"}, figures(rounds=1000 + i)) for i in range(60))
    told = dataclasses.replace(report(), strata=many)
    found = charts.pick(told, "token-time")
    assert len(rows(found)) == MOST_ROWS + 1
    assert len(found.numbers.rows) == 61
    assert "class 0" not in {row["label"] for row in rows(found)}  # the one with the fewest rounds
    assert any("40 classes" in note and "all 60" in note for note in found.notes)
    assert len({row["series"] for row in rows(charts.pick(told, "survival"))}) == 8


def test_labels_are_each_once() -> None:
    assert labels([{"t": "a", "k": 1}, {"t": "a", "k": 1}, {"t": None}, {"t": "(not known)"}]) == [
        "a / 1",
        "a / 1 (2)",
        "(not known)",
        "(not known) (2)",
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("0001", "1"),
        ("0003-0004", "3–4"),
        ("< 0.5k", "< 512"),
        ("< 0008k", "< 8k"),
        ("> 4096", "> 4096"),
        (None, "not logged"),
    ],
)
def test_buckets_without_zeros(name: str | None, told: str) -> None:
    assert bucket(name) == told


def test_never_breaks_even() -> None:
    told = dataclasses.replace(report(), strata=(), total=Stratum({}, figures(break_even_alpha=1.3)))
    (row,) = rows(strata_alpha(told))
    assert row["never"] is True
    assert row["even"] is None


def strata_alpha(told: Report) -> Drawn:
    found = strata.alpha(strata.classes(told, None))
    assert isinstance(found, Drawn)
    return found


def test_lower_bound_is_said() -> None:
    total = Stratum({}, figures(relative_token_time_basis="lower_bound", speedup_tpot=None))
    (row,) = rows(charts.pick(dataclasses.replace(report(), strata=(), total=total), "token-time"))
    assert row["text"].startswith("≥ ")


def test_unknown_and_absent_charts_say_what_to_do(shown: Page) -> None:
    with pytest.raises(InputError, match="use one of waterfall, token-time"):
        charts.pick(shown, "pie")
    with pytest.raises(InputError, match="not a chart of this answer: use one of token-time"):
        charts.pick(shown.report, "sweep")
    with pytest.raises(InputError, match="--claim"):
        charts.pick(dataclasses.replace(shown, gap=None), "waterfall")
    assert charts.pick(dataclasses.replace(shown, gap=None)).name == "token-time"
    assert charts.pick(shown).name == "waterfall"
    with pytest.raises(InputError, match="no chart of a str"):
        charts.pick("x")


def test_charts_of_single_answers(shown: Page) -> None:
    for result, name in (
        (shown.gap, "waterfall"),
        (shown.gate, "token-time"),
        (shown.sweep, "sweep"),
        (shown.report, "token-time"),
    ):
        assert charts.pick(result).name == name
        assert isinstance(charts.chart(result), alt.TopLevelMixin)


def test_pictures(shown: Page) -> None:
    assert image(drawn(shown, "over-time"), "png").startswith(b"\x89PNG\r\n\x1a\n")
    svg = ET.fromstring(image(drawn(shown, "token-time"), "svg"))
    assert svg.tag.endswith("svg")
    texts = [element.text for element in svg.iter() if element.text]
    assert any(text.startswith("<script>") for text in texts)  # as text
    assert not [element for element in svg.iter() if element.tag.endswith("script")]


def test_a_picture_has_its_title_and_paper(shown: Page) -> None:
    spec = whole(drawn(shown, "sweep")).to_dict()
    assert spec["title"]["text"] == "Which draft length K is best"
    assert spec["config"]["background"] == LIGHT.paper


def ticks(found: Drawn) -> list[float]:
    spec = found.panels[0].to_dict()
    axis: list[float] = next(a["axis"]["values"] for a in axes(spec) if (a.get("axis") or {}).get("values"))
    return axis


def test_positions_and_lengths_have_whole_ticks_alone(shown: Page) -> None:
    # An axis of numbers would tick at 1, 1.5, 2 and print 1 2 2.
    assert ticks(drawn(shown, "hazard")) == [1, 2, 3, 4]
    assert ticks(drawn(shown, "survival")) == [0, 1, 2, 3, 4]
    found = drawn(shown, "sweep")
    assert ticks(found) == sorted({row["k"] for bars in (found.choices or {}).values() for row in bars})
    tokens = next(a for a in axes(drawn(shown, "rollback").panels[0].to_dict()) if a["field"] == "lost")
    assert tokens["type"] == "ordinal"


def test_hazard_and_survival_have_bands(shown: Page) -> None:
    for name in ("hazard", "survival"):
        told = [row for row in rows(drawn(shown, name)) if row["low"] is not None]
        assert told
        assert all(row["low"] <= row["value"] <= row["high"] for row in told)
        assert any("95 % interval" in note for note in drawn(shown, name).notes)


def times_of(found: Drawn) -> set[str]:
    return {(a.get("axis") or {}).get("title", "") for p in found.panels for a in axes(p.to_dict())}


def test_time_has_its_date(shown: Page) -> None:
    titles = times_of(drawn(shown, "over-time"))
    assert "time on 2026-05-01, UTC" in titles
    two_days = [*shown.times[:-1], dataclasses.replace(shown.times[-1], started=dt.datetime(2026, 5, 3, 1))]
    moved = drawn(dataclasses.replace(shown, times=tuple(two_days)), "over-time")
    titles = times_of(moved)
    assert "time, 2026-05-01 to 2026-05-03, UTC" in titles


def test_captions_name_no_colour_that_a_theme_changes(shown: Page) -> None:
    for name in ("waterfall", "rollback", "sweep"):
        assert not re.search(r"\b(dark|white|black|light)\b", " ".join(drawn(shown, name).notes), re.IGNORECASE)


def test_bars_stand_in_the_order_of_the_gap(shown: Page) -> None:
    spec = drawn(shown, "waterfall").panels[0].to_dict()
    # The order of an unsorted axis is that of the first layer: it must not filter.
    assert "transform" not in spec["layer"][0]
    assert rows(drawn(shown, "waterfall"))[0]["label"] == "planned"


def test_lines_do_not_strike_through_numbers(shown: Page) -> None:
    for name in ("waterfall", "sweep"):
        styles = [layer["mark"].get("style") for layer in drawn(shown, name).panels[0].to_dict()["layer"]]
        assert styles[-2:] == ["halo", "label"], name


def test_buckets_read_alike_everywhere() -> None:
    key = {"task_type": "chat", "batch_bucket": "0003-0004", "context_bucket": "< 0008k"}
    assert labels([key]) == ["chat / 3–4 / < 8k"]
    assert name_of(key) == "task_type=chat, batch_bucket=3–4, context_bucket=< 8k"
    assert fmt.label("0003-0004") == "0003-0004"  # a task may be called so
    told = dataclasses.replace(report(), by=tuple(key), strata=(Stratum(key, figures()),))
    for chosen in ("table", "markdown"):
        out = io.StringIO()
        (TerminalReporter(200) if chosen == "table" else reporter(chosen)).render(told, out)
        assert "3–4" in out.getvalue()
        assert "0003" not in out.getvalue()
    for chosen in ("json", "csv"):  # what a program filters by
        out = io.StringIO()
        reporter(chosen).render(told, out)
        assert "0003-0004" in out.getvalue()


@given(st.text(max_size=80), st.integers(3, 60))
def test_a_long_text_is_cut_in_its_middle(text: str, limit: int) -> None:
    cut = fmt.middle(text, limit)
    assert len(cut) == min(len(text), limit)
    if len(text) > limit:
        head = cut[: limit - 1 - (limit - 1) // 2]
        assert text.startswith(head)
        assert text.endswith(cut[len(cut) - (limit - 1) // 2 :])


def test_names_that_differ_at_their_end_stay_apart() -> None:
    keys = [{"t": f"summarise the whole of a very long document, part {n}"} for n in "ab"]
    assert len(set(labels(keys, 30))) == 2
    assert not any("(2)" in label for label in labels(keys, 30))
