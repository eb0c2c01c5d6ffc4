"""tracelens from Python: the CLI's answers, in tables that notebooks and data frames take, and a cheap import."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime as dt
import doctest
import html
import json
import os
import pickle
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from api_lake import CLAIM, HOSTILE, TASKS, make

import tracelens
from tracelens import api
from tracelens.analysis import asked
from tracelens.analysis.claim import Claim
from tracelens.cli import run
from tracelens.errors import InputError

OPTIONS = {"run": "k5", "baseline": "off"}
HEAVY = ("duckdb", "polars", "pyarrow", "numpy", "scipy", "altair", "typer", "rich", "msgspec")
#: Seconds that `import tracelens` may take beyond a bare interpreter; it is about 0.002 on an idle machine.
BUDGET = 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("api") / "lake")


@pytest.fixture(scope="module")
def lake(folder: Path) -> api.Lake:
    return tracelens.open(folder)


@pytest.fixture(scope="module")
def answers(lake: api.Lake) -> dict[str, tracelens.Result[Any]]:
    return {
        "report": lake.report(claim=CLAIM, **OPTIONS),
        "gap": lake.gap(claim=CLAIM, **OPTIONS),
        "sweep": lake.sweep(k=[1, 3], **OPTIONS),
        "gate": lake.gate(margin=0.05, **OPTIONS),
        "compare": lake.compare("k3", "k5", baseline="off"),
    }


ARGUMENTS = {
    "report": ["--claim", CLAIM, "--run", "k5"],
    "gap": ["--claim", CLAIM, "--run", "k5"],
    "sweep": ["--k", "1,3", "--run", "k5"],
    "gate": ["--margin", "0.05", "--run", "k5"],
    "compare": ["k3", "k5"],
}


def check_alike(one: Any, other: Any) -> None:
    """Two documents of two runs: DuckDB's threads add up in any order, so the last digits may differ.

    A bound of what does not vary at all is the root of such a digit.
    """
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            check_alike(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)
    else:
        assert one == other


@pytest.mark.parametrize("command", ARGUMENTS)
def test_the_answers_of_the_command_line(
    command: str, answers: dict[str, tracelens.Result[Any]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answers[command]
    assert run([command, *ARGUMENTS[command], "--baseline", "off", "--lake", str(folder), "--json"]) in (0, 1, 2)
    printed = capsys.readouterr().out
    assert json.loads(result.to_json()) == result.to_dict()
    assert result.to_json().count("\n") == printed.count("\n")
    check_alike(result.to_dict(), json.loads(printed))
    assert result.command == command
    assert len(result.strata) == len(json.loads(printed)["strata"]) == len(TASKS)
    assert result.total is result.answer.total
    assert result.warnings == result.answer.warnings
    assert result.coverage == result.answer.coverage


@pytest.mark.parametrize("command", ARGUMENTS)
def test_frames(command: str, answers: dict[str, tracelens.Result[Any]]) -> None:
    result = answers[command]
    table, frame = result.to_arrow(), result.to_polars()
    assert isinstance(table, pa.Table)
    assert isinstance(frame, pl.DataFrame)
    assert table.schema.metadata[b"tracelens.command"].decode() == command
    assert frame.columns == table.schema.names
    assert frame.height == table.num_rows >= len(TASKS) + 1
    assert set(frame["row"]) == {"stratum", "total"}
    assert frame.filter(pl.col("row") == "stratum")["task_type"].unique().sort().to_list() == sorted(
        TASKS, key=lambda name: (name is not None, name)
    )
    assert frame.filter(pl.col("task_type") == HOSTILE).height


@pytest.mark.parametrize("command", ARGUMENTS)
def test_text(command: str, answers: dict[str, tracelens.Result[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = answers[command]
    assert repr(result) == str(result)
    assert "chat" in str(result)
    assert max(map(len, str(result).splitlines())) <= 80
    assert "\x1b" not in str(result)
    markdown = result.to_markdown()
    assert markdown.startswith("**")
    assert "<script>" not in markdown


class Tags(HTMLParser):
    """Tags, attributes and text of a piece of HTML; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.styles: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.names |= {name for name, _ in attrs}
        self.styles += [value or "" for name, value in attrs if name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("command", ARGUMENTS)
def test_a_notebook_shows_a_table_and_runs_nothing(command: str, answers: dict[str, tracelens.Result[Any]]) -> None:
    text = answers[command]._repr_html_()
    found = Tags(text)
    assert set(found.tags) <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "span", "details",
                               "summary", "ul", "li"}  # fmt: skip
    assert found.names <= {"class", "style", "scope"}
    assert HOSTILE in found.text
    assert html.escape(HOSTILE) in text
    assert "table" in found.tags
    # The notebook's own colours: no background, and no ink but that of yes and no.
    assert not any("background" in style for style in found.styles)
    inks = set(re.findall(r"(?<![-\w])color:([^;]+)", ";".join(found.styles)))
    assert inks <= {"inherit", "#1a8f4c", "#d9443f"}


def _luminance(ink: str) -> float:
    parts = [int(ink[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ink", ["#1a8f4c", "#d9443f"])
def test_inks_can_be_read_on_white_and_on_a_dark_notebook(ink: str) -> None:
    from tracelens.reporters import notebook

    assert any(ink in style for style in notebook._STYLES.values())
    light, dark = 1.05 / (_luminance(ink) + 0.05), (_luminance(ink) + 0.05) / (_luminance("#111111") + 0.05)
    assert min(light, dark) > 4


def test_a_notebook_shows_no_endless_table(answers: dict[str, tracelens.Result[Any]]) -> None:
    result = answers["report"]
    many = dataclasses.replace(result.answer, strata=result.strata * 100)
    shown, found = (Tags(tracelens.Result("report", a)._repr_html_()) for a in (result.answer, many))
    tables = shown.tags.count("table")
    assert tables > 1
    assert shown.tags.count("tr") == tables * (len(TASKS) + 2)
    assert found.tags.count("tr") == tables * (50 + 1)
    assert f"{len(TASKS) * 100 - 49:,} more rows: to_polars() has them" in found.text
    assert found.text.count("all48") == shown.text.count("all48")


def test_what_a_caller_may_give(lake: api.Lake) -> None:
    day = dt.date(2026, 5, 1)
    by_text = api._question("task_type, hour", None, "2026-05-01", "2026-05-01", "k5", 21.5, CLAIM)
    by_values = api._question(
        ["task_type", "hour"], None, day, day, ["k5"], "21.5ms", {"alpha": 0.72, "rho": 0.1, "k": 5, "form": None}
    )
    assert by_text == by_values
    assert by_text.claim == Claim(0.72, 0.1, 5) == asked.claim_of(Claim(0.72, 0.1, 5))
    assert by_text.until == dt.datetime(2026, 5, 2, tzinfo=dt.UTC)
    zone = dt.timezone(dt.timedelta(hours=8))
    moment = api._question((), None, dt.datetime(2026, 5, 1, 8, tzinfo=zone), None, (), None, None).since
    assert moment == dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    assert api._question((), None, dt.datetime(2026, 5, 1), None, (), None, None).since == moment
    assert api._lengths("1,3") == api._lengths([3, 1])[::-1] == [1, 3]
    assert api._lengths(4) == [4]


def test_the_options_reach_the_answer(lake: api.Lake) -> None:
    result = lake.report(
        by=(), where="task_type = 'code'", run=["k3", "k5"], since="2026-05-01", until=dt.date(2026, 5, 1)
    )
    assert result.answer.by == ()
    assert result.total.figures["rounds"] == 2 * 8 * 6
    assert result.strata == ()
    nothing = lake.report(until="2026-04-30")
    assert [w.code for w in nothing.warnings] == ["nothing_selected"]
    assert "Nothing to report" in str(nothing)
    assert Tags(nothing._repr_html_()).text.startswith("Nothing to report")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda lake: lake.report(run="nobody"), "no run nobody"),
        (lambda lake: lake.report(since="yesterday"), "is no time"),
        (lambda lake: lake.report(baseline=-1), r"^baseline -1"),
        (lambda lake: lake.report(baseline=float("nan")), r"^baseline nan"),
        (lambda lake: lake.gap(), "gap needs what was planned: give claim, as text"),
        (lambda lake: lake.gap(claim=None), "gap needs what was planned"),
        (lambda lake: lake.gap(claim={"alpha": 2, "rho": 0.1, "k": 5}), "alpha must lie"),
        (lambda lake: lake.gap(claim={"alpha": 0.5, "beta": 0.1}), "unknown key beta"),
        (lambda lake: lake.gap(claim={}), "claim: cannot read"),
        (lambda lake: lake.sweep(k=[0]), "outside 1..64"),
        (lambda lake: lake.sweep(k=[2.5]), "^k must be a whole number, not 2.5"),
        (lambda lake: lake.gate(margin=2), r"^margin"),
        (lambda lake: lake.gate(max_near_k=2), r"^max_near_k"),
        (lambda lake: lake.report(where="rounds >"), r"^where 'rounds >'"),
        (lambda lake: lake.report(since="2026-05-02", until="2026-04-01"), r"^since .* is not before until "),
        (lambda lake: lake.report(by="tasktype"), r"did you mean task_type\? known columns"),
        (lambda lake: lake.report(run="K5"), r"did you mean k5\? runs: k3, k5, off"),
        (lambda lake: lake.report(run=["k5,k3"]), "no run k5,k3 in this lake; name every run by itself"),
        (lambda lake: lake.sweep(by="num_speculative_tokens"), r"leave it out of by$"),
        (lambda lake: lake.compare("k5", "nobody"), "names nothing"),
        (lambda lake: lake.query("SELECT * FROM read_text('/etc/passwd')"), "Permission Error"),
        (lambda lake: lake.query("alpah"), "did you mean alpha"),
        (lambda lake: lake.schema("nothing"), "the tables are"),
    ],
)
def test_errors_are_those_of_the_command_line_and_name_arguments(lake: api.Lake, call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        call(lake)
    assert not re.search(r"--[a-z]", re.sub("`tracelens [^`]*`", "", str(raised.value)))
    assert isinstance(raised.value, ValueError)
    assert raised.value.exit_code == 3


class Odd:
    """What nobody meant, and whose own words fail."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


ODD: list[Any] = [1.5, True, b"k5", [None], {"a": 1}, "\ud800", "@\x00", "'", float("nan"), 10**400, Odd()]
_ARGUMENTS: list[tuple[str, str, dict[str, Any]]] = [
    *(("report", name, {}) for name in ("by", "where", "since", "until", "run", "baseline", "claim", "near_k")),
    ("gap", "claim", {}),
    ("sweep", "k", {}),
    *(("gate", name, {}) for name in ("margin", "min_requests", "max_near_k")),
    ("compare", "a", {"b": "k5"}),
    ("compare", "b", {"a": "k5"}),
    ("query", "name_or_sql", {}),
    ("schema", "table", {}),
]


@pytest.mark.parametrize(("method", "name", "given"), _ARGUMENTS, ids=str)
@pytest.mark.long
def test_no_argument_whatever_is_a_fault(method: str, name: str, given: dict[str, Any], lake: api.Lake) -> None:
    refused = []
    for value in ODD:
        with contextlib.suppress(InputError):
            refused.append(value)
            getattr(lake, method)(**given, **{name: value})
            refused.pop()
    assert len(refused) >= len(ODD) - 3, "1.5 may be a baseline"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda lake: lake.report(where=3), r"^where must be SQL over the view facts such as .*, not 3$"),
        (lambda lake: lake.report(where=""), r"^where is empty: give SQL over .*, or leave it out$"),
        (lambda lake: lake.report(where="task_type = '\ud800'"), r"^where .*\\ud800.* holds bytes that are no UTF-8"),
        (lambda lake: lake.report(near_k=1.5), r"^near_k must be a whole number, not 1\.5$"),
        (lambda lake: lake.report(near_k=10**30), r"^near_k must be 0 to 65536"),
        (lambda lake: lake.gate(min_requests=1.5), r"^min_requests must be a whole number, not 1\.5$"),
        (lambda lake: lake.gate(min_requests=True), r"^min_requests must be a whole number, not True$"),
        (lambda lake: lake.gate(margin="x"), r"^margin must be a number, not 'x'$"),
        (lambda lake: lake.gate(margin=10**400), r"^margin is too large$"),
        (lambda lake: lake.gate(max_near_k="x"), r"^max_near_k must be a number, not 'x'$"),
        (lambda lake: lake.sweep(k=True), r"^k must be a whole number, not True$"),
        (lambda lake: lake.sweep(k=[1, "x"]), r"^k must be a whole number, not 'x'$"),
        (lambda lake: lake.report(by=3), r"^by must be a name or a list of names, not 3$"),
        (lambda lake: lake.report(by=[3]), r"^by must be a name or a list of names, not \[3\]$"),
        (lambda lake: lake.report(by=b"task_type"), r"^by must be a name or a list of names, not b'task_type'$"),
        (lambda lake: lake.report(run=3), r"^run must be a name or a list of names, not 3$"),
        (lambda lake: lake.report(run="\ud800"), r"^run .* holds bytes that are no UTF-8"),
        (lambda lake: lake.report(baseline=True), r"^baseline must be a number, not True$"),
        (lambda lake: lake.report(claim=3), r"^claim must be text such as .*, a dict or a Claim, not 3$"),
        (lambda lake: lake.report(until="9999-12-31"), r"^until 9999-12-31: a date alone means the end of its day"),
        (lambda lake: lake.compare(3, 4), r"^a must be a run, a period .*, not 3$"),
        (lambda lake: lake.compare("k5", None), r"^b must be a run, a period .*, not None$"),
        (lambda lake: lake.query(3), r"^name_or_sql must be the name of a query or SQL such as 'FROM facts', not 3$"),
        (lambda lake: lake.schema(3), r"^table must be the name of a table such as 'rounds', not 3$"),
        (lambda lake: tracelens.open(3), r"^lake must be the path of a folder, not 3$"),
        (lambda lake: tracelens.open(b"lake"), r"^lake must be the path of a folder, not b'lake'$"),
        (lambda lake: tracelens.open("~nobody-so/lake"), r"^no lake at ~nobody-so/lake: there is no such user$"),
    ],
)
def test_a_wrong_argument_is_named(lake: api.Lake, call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call(lake)


@pytest.mark.long
def test_numbers_of_numpy_are_numbers(lake: api.Lake) -> None:
    numpy = pytest.importorskip("numpy")
    options = {"margin": numpy.float32(0.05), "min_requests": numpy.int64(5), "near_k": numpy.int32(1)}
    assert lake.gate(**options).to_json() == lake.gate(margin=float(numpy.float32(0.05)), min_requests=5).to_json()
    assert lake.sweep(k=numpy.array([2, 3])).to_json() == lake.sweep(k=[2, 3]).to_json()


def test_equal_answers_have_one_hash(answers: dict[str, tracelens.Result[Any]], lake: api.Lake) -> None:
    again = lake.gate(baseline="off", run="k5", margin=0.05)
    assert len({*answers.values(), *copy.deepcopy(answers).values()}) == len(answers)
    assert hash(again) == hash(copy.deepcopy(again))
    rows = [lake.query("select 1 as a"), lake.query("select 1 as a")]
    assert rows[0] == rows[1]
    assert len(set(rows)) == 1


def test_no_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.raises(ValueError, match="no lake at"):
        tracelens.open(tmp_path)
    monkeypatch.setenv("TRACELENS_LAKE", str(folder))
    assert tracelens.open() == tracelens.open(str(folder)) == tracelens.Lake(folder)


def test_results_cannot_be_changed(answers: dict[str, tracelens.Result[Any]], lake: api.Lake) -> None:
    for thing, name in ((answers["gate"], "command"), (lake, "path")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, "other")


def test_rows(lake: api.Lake, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "SELECT task_type, sum(drafted) AS d, MAP {'a': [1.5, NULL]} AS m, max(ts) AS t, true AS yes FROM rounds"
        " GROUP BY ALL ORDER BY 1"
    )
    rows = lake.query(text)
    assert rows.columns == ("task_type", "d", "m", "t", "yes")
    assert len(rows) == rows.to_polars().height == rows.to_arrow().num_rows == len(TASKS)
    assert run(["query", text, "--lake", str(folder), "--json"]) == 0
    assert rows.to_json() == capsys.readouterr().out
    assert rows.to_markdown().count("\n") == len(TASKS) + 2
    assert "<script>" not in rows.to_markdown()
    assert str(rows).startswith("task_type")
    assert rows.to_dict() == json.loads(rows.to_json())
    found = Tags(rows._repr_html_())
    assert HOSTILE in found.text
    assert "script" not in found.tags


def test_many_rows_are_cut_where_people_look(lake: api.Lake) -> None:
    rows = lake.query("SELECT range AS n FROM range(1500)")
    assert len(rows.to_dict()) == 1500
    assert "only the first 1,000 rows" in repr(rows)
    found = Tags(rows._repr_html_())
    assert found.tags.count("tr") == 51
    assert "the first 50 of 1,500 rows" in found.text
    none = lake.query("SELECT 1 AS a WHERE false")
    assert (len(none), none.to_dict()) == (0, [])
    assert "no rows" in str(none)
    assert "0 rows" in Tags(none._repr_html_()).text


def test_queries_and_tables_are_listed(lake: api.Lake, capsys: pytest.CaptureFixture[str]) -> None:
    assert {"query": "alpha"}.items() <= lake.query().to_dict()[0].items()
    for name in (None, "rounds"):
        assert run(["schema", *([name] if name else []), "--json"]) == 0
        printed = capsys.readouterr().out
        assert lake.schema(name).to_json() == printed
        assert lake.schema(name).to_dict() == json.loads(printed)
    assert "drafted" in lake.schema("rounds").to_polars()["column"].to_list()


def test_figures_and_decisions_are_attributes(answers: dict[str, tracelens.Result[Any]]) -> None:
    report, gate = answers["report"], answers["gate"]
    for row in (report.total, *report.strata, answers["gap"].total):
        assert row.draft_accept_ratio == row.figures["draft_accept_ratio"]
        assert "relative_token_time_low" in dir(row)
        assert copy.deepcopy(row) == row == pickle.loads(pickle.dumps(row))
    with pytest.raises(AttributeError, match="did you mean relative_token_time"):
        report.total.relative_tokentime  # noqa: B018
    with pytest.raises(AttributeError, match=r"there are speedup_article, .*speedup_tpot.*; `\.figures` has all"):
        report.total.speedup  # noqa: B018
    assert gate.decision == gate.answer.decision == gate.to_dict()["decision"]
    assert answers["compare"].mix_effect == answers["compare"].answer.mix_effect  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"the answer of report has no 'decision': it has by, strata, total"):
        report.decision  # noqa: B018
    with pytest.raises(AttributeError, match=r"the answer of gate has no 'speedup'.*figures are on `\.total`"):
        gate.speedup  # type: ignore[attr-defined] # noqa: B018
    assert copy.copy(gate) == gate


def test_a_lake_is_a_context_that_closes_nothing(folder: Path) -> None:
    with tracelens.open(folder) as lake:
        assert lake.report(**OPTIONS).total.rounds
    assert lake.report(**OPTIONS).total.rounds
    with pytest.raises(KeyError), tracelens.open(folder):
        raise KeyError


def test_several_runs_as_text_with_commas(lake: api.Lake) -> None:
    assert api._question("", None, None, None, "k5, k3", None, None).runs == ("k5", "k3")
    assert api._question("", None, None, None, ["a,b"], None, None).runs == ("a,b",)
    assert lake.report(run="k5,k3").total.figures["rounds"] == 2 * lake.report(run="k5").total.figures["rounds"]


def test_pandas_where_it_is(answers: dict[str, tracelens.Result[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="needs pandas"):
        answers["report"].to_pandas()


def test_charts(answers: dict[str, tracelens.Result[Any]]) -> None:
    charts = pytest.importorskip("tracelens.reporters.charts", reason="no charts in this version")
    assert charts is not None
    document = answers["gap"].chart().to_dict()
    assert "vega-lite" in document["$schema"]
    assert answers["report"].chart("alpha").to_dict() != answers["report"].chart("hazard").to_dict()
    with pytest.raises(InputError, match=r"^chart nothing is not known: use one of"):
        answers["gap"].chart("nothing")


@pytest.mark.long
def test_a_report_has_the_charts_of_the_command_line(lake: api.Lake, answers: dict[str, tracelens.Result[Any]]) -> None:
    charts = pytest.importorskip("tracelens.reporters.charts", reason="no charts in this version")
    planned, plain = answers["report"], lake.report(**OPTIONS)
    drawn = {name: planned.chart(name).to_dict() for name in (None, "waterfall", "sweep", "over-time", "token-time")}
    assert drawn[None] == drawn["waterfall"], "as --format png with --claim"
    page = planned._page
    assert page is not None
    assert drawn["waterfall"] == charts.chart(page(), "waterfall").to_dict()
    assert page() is page(), "the lake is asked once"
    assert plain.chart().to_dict() == plain.chart("token-time").to_dict() != drawn[None]
    with pytest.raises(InputError, match=r"waterfall: .*claim"):
        plain.chart("waterfall")
    with pytest.raises(AttributeError, match=r"rows of a query have no chart.*to_polars\(\)"):
        lake.query("alpha").chart()  # type: ignore[attr-defined]


def test_examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner()
    for module in (api, sys.modules["tracelens.result"], tracelens):
        for example in finder.find(module, extraglobs={"tracelens": tracelens}):
            runner.run(example)
    assert runner.tries >= 12
    assert runner.failures == 0


def _python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, tracelens; dir(tracelens); print(*sys.modules); tracelens.open; print(*sys.modules)"
    bare, opened = ({name.partition(".")[0] for name in line.split()} for line in _python(code).stdout.splitlines())
    assert not bare & set(HEAVY)
    assert not opened & set(HEAVY)


def test_import_is_quick() -> None:
    lines = (_python("import tracelens", "-X", "importtime").stderr for _ in range(3))
    spent = [float(re.findall(r"\|\s+(\d+) \| tracelens$", text, re.MULTILINE)[-1]) / 1e6 for text in lines]
    assert min(spent) < BUDGET


def test_public_names() -> None:
    assert set(tracelens.__all__) <= set(dir(tracelens))
    assert all(getattr(tracelens, name) is not None for name in tracelens.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        tracelens.nothing  # noqa: B018
