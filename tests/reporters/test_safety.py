"""Labels come from logs: no format may obey them, and no format may lose or invent a figure."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tracelens.analysis.results import Report, Stratum, Warning
from tracelens.errors import InputError
from tracelens.reporters import FORMATS, arrow, check, reporter
from tracelens.reporters import format as fmt
from tracelens.reporters.csv_ import cell
from tracelens.reporters.json_ import dumps, plain
from tracelens.reporters.markdown import escape
from tracelens.reporters.terminal import TerminalReporter

from .fixture import HOSTILE, by_two, figures, report

assert arrow  # CSV loads it at its first use, which takes longer than an example may
#: Every character that is none, moves others or is not seen, by what Unicode says of it.
MARKS = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")]
BIDI = [c for c in MARKS if unicodedata.bidirectional(c)[:2] in ("LR", "RL", "PD", "FS")]
#: Letters and marks that draw nothing (Default_Ignorable_Code_Point beside the categories above).
UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2065\u3164\ufe00\ufe0f\uffa0\U000e0000\U000e0100\U000e0fff"
JOINERS = "\u200c\u200d"
CONTROL = re.compile(f"[{''.join(map(re.escape, (c for c in MARKS if c not in JOINERS and c != chr(10))))}]")


class Terminal(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


class Ascii(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]

    def write(self, text: str) -> int:
        text.encode("ascii")
        return super().write(text)


def shown(fmt_: str, what: Report | None = None) -> str:
    out = io.StringIO()
    reporter(fmt_).render(what or report(), out)
    return out.getvalue()


def labelled(label: str) -> Report:
    return Report(("task_type",), (Stratum({"task_type": label}, figures()),), Stratum({}, figures()), (), ())


@pytest.mark.parametrize("name", FORMATS)
def test_no_control_character_reaches_the_output(name: str) -> None:
    assert not CONTROL.search(shown(name))


@settings(deadline=None)
@given(st.text(st.characters() | st.sampled_from(MARKS), max_size=60), st.sampled_from(FORMATS))
def test_any_label_can_be_shown(label: str, name: str) -> None:
    text = shown(name, labelled(label))
    text.encode("utf-8")
    assert not CONTROL.search(text)


def test_no_mark_goes_unseen() -> None:
    assert len(BIDI) == 9
    assert {"\u061c", "\u00ad", "\u180e", "\ufff9", "\ufffb", "\U000e0001", "\U000e007f", *BIDI} <= set(MARKS)
    for mark in (*MARKS, *UNSEEN):
        # Between letters of Latin, where not even a joiner has anything to do, at the ends, and in CJK.
        for text in (f"a{mark}b", mark, f"{mark}a", f"a{mark}", f"é{mark}é"):
            assert mark not in fmt.visible(text), ascii(text)
            spelled = dumps({text: [text]}, indent=1)
            assert mark not in spelled or mark == "\n", ascii(text)
            assert json.loads(spelled) == {text: [text]}
        if mark not in f"{JOINERS}{UNSEEN}":
            assert mark not in fmt.visible(f"\u65e5{mark}\u672c")


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f469\u200d\U0001f469\u200d\U0001f467",  # a family
        "\U0001f3f3\ufe0f\u200d\U0001f308 \u2764\ufe0f",  # a flag, a heart
        "\U0001f468\U0001f3fd\u200d\U0001f4bb",  # with a tone of skin
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian
        "\u0915\u094d\u200d\u0937",  # Hindi
        "\u8fbb\U000e0100",  # a variant of an ideograph
        "пример 日本 é",
    ],
)
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert fmt.visible(text) == text
    assert dumps(text) == f'"{text}"'
    for end in (text[0], ""):  # cut off, a joiner has nothing to join
        assert "\u200d" not in fmt.visible(end + "\u200d")


def test_spelled_by_their_codes() -> None:
    assert fmt.visible("\x1b\n\x85\u061c\U000e0041\ud800") == "\\x1b\\n\\x85\\u061c\\U000e0041\\ud800"
    assert dumps("\x7f\u061c\U000e0041\ud800") == '"\\u007f\\u061c\\udb40\\udc41\\ud800"'


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("", '""'), (" ", '" "'), ("   ", '"   "'), ("chat ", '"chat "'), (" chat", '" chat"'), ("\u3000", '"\u3000"'),
        ("\xa0x", '"\xa0x"'), ("\u2800", '"\u2800"'), ("a b", "a b"), (None, "(not known)"), ("\t", "\\t"),
    ],
)  # fmt: skip
def test_blanks_are_quoted(label: str | None, expected: str) -> None:
    assert fmt.label(label) == expected


@pytest.mark.parametrize("name", ["table", "markdown"])
def test_a_class_of_blanks_is_no_empty_row(name: str) -> None:
    assert '"   "' in shown(name, labelled("   "))
    assert len(fmt.label(" " * 500)) == 120


def test_one_function_writes_json() -> None:
    """Where else it is written, characters go out as they are: `json.dumps` knows nothing of terminals."""
    package = Path(fmt.__file__).parents[1]
    found = {
        path.relative_to(package).as_posix()
        for room_ in ("reporters", "cli")
        for path in (package / room_).rglob("*.py")
        if re.search(r"\bjson\.dumps?\(|\bimport dumps?\b.*\bjson\b|from json import", path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_rich_markup_of_a_label_is_text() -> None:
    for label in ("[red]x[/red]", "[link=http://evil]y[/link]", ":bomb:", "[/]"):
        out = Terminal()
        TerminalReporter(160).render(labelled(label), out)
        assert f"\n{label} " in _unstyled(out.getvalue())
        assert "\x1b]8" not in out.getvalue()


def _unstyled(text: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in shown("table")
    out = Terminal()
    TerminalReporter(80).render(report(), out)
    assert "\x1b[32myes" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    TerminalReporter(80).render(report(), out)
    assert not re.search("\x1b\\[(3|4|9)[0-9]", out.getvalue())


@pytest.mark.parametrize("width", [40, 60, 80, 100, 139, 160, 200])
def test_lines_fit_and_no_number_is_cut(width: int) -> None:
    for make in (report, by_two):
        out = io.StringIO()
        TerminalReporter(width).render(make(), out)
        lines = out.getvalue().split("\n")
        assert all(cell_len(line) <= width for line in lines)
        assert "…" not in out.getvalue()
        assert "0.719 [0.70, 0.74]" in out.getvalue()


@pytest.mark.parametrize("name", FORMATS)
def test_ascii_output_takes_everything(name: str) -> None:
    out = Ascii()
    reporter(name).render(by_two(), out)
    assert out.getvalue().isascii()
    if name == "table":
        assert "alpha 0.719" in out.getvalue()
        assert "####" in out.getvalue()


def test_alpha_never_stands_without_k_and_rho() -> None:
    for width in (40, 60, 80, 160):
        out = io.StringIO()
        TerminalReporter(width).render(report(), out)
        for block in out.getvalue().split("\n───"):
            head = block.rstrip().split("\n")[-2:]
            if any("α accepted/" in line for line in head):
                assert any(" K " in line for line in head)
                assert any("ρ" in line for line in head)


def test_what_is_missing_is_never_zero() -> None:
    nothing = Report((), (), Stratum({}, dict.fromkeys(figures())), (), ())
    text = shown("table", nothing) + shown("markdown", nothing)
    assert "0.0" not in text
    assert "0 %" not in text
    document = json.loads(shown("json", nothing))
    assert all(document["total"][name] is None for name in figures())
    assert set(document["coverage"]) >= {n for n in figures() if not n.endswith(("_low", "_high"))}


def test_json_has_the_shape_of_the_contract() -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    document = json.loads(shown("json"), parse_constant=refuse)
    assert document["schema_version"] == 1
    assert document["by"] == ["task_type"]
    assert [row["key"]["task_type"] for row in document["strata"]] == ["code", "creative writing", HOSTILE, None]
    assert document["total"]["key"] == {}
    assert document["total"]["draft_accept_ratio"] == 0.7194
    assert document["strata"][2]["token_accept_prob"] is None
    assert document["coverage"]["padding_waste"]["switch_on"] == "--disable-log-stats off"
    assert document["warnings"][0]["evidence"] == {"batch": 4, "share": 0.31}
    names = set(figures())
    assert all(names <= set(row) for row in (*document["strata"], document["total"]))


def test_csv_cells_are_no_formulas() -> None:
    table = list(csv.reader(io.StringIO(shown("csv"))))
    assert table[0][:3] == ["row", "task_type", "grain"]
    assert [row[0] for row in table[1:]] == ["stratum"] * 4 + ["total"]
    assert table[3][1].startswith("'=1+1")
    for text in ("=1", "+1", "-1", "@a", "\tx", "\rx", " =1", "＝1"):
        assert cell(text).startswith("'")
    assert cell(-1.5) == "-1.5"
    assert cell(None) == ""
    assert cell([1, None, float("nan")]) == "[1, null, null]"
    assert json.loads(cell({"a\x9b": "\u202e"})) == {"a\x9b": "\u202e"}, "spelled as JSON spells it"
    assert cell({"a\x9b": "\u202e"}).isascii()
    assert cell(True) == "true"


def test_markdown_rows_keep_their_columns() -> None:
    lines = [line for line in shown("markdown", labelled(HOSTILE)).splitlines() if line.startswith("|")]
    widths = {line.count("|") for line in lines[:4]}
    assert len(widths) == 1
    assert "<b>" not in shown("markdown", labelled(HOSTILE))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", "a&#124;b"),
        ("<script>", "&lt;script&gt;"),
        ("a&b", "a&amp;b"),
        ("`x`", "&#96;x&#96;"),
        ("a\nb", "a b"),
        ("[x](http://y)", "[x]&#40;http&#8203;://y)"),
        ("@team #1", "&#64;team &#35;1"),
        ("task_type", "task_type"),
        ("_x_", "&#95;x&#95;"),
    ],
)
def test_markdown_escapes(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_warnings_show_their_evidence() -> None:
    what = Report((), (), Stratum({}, figures()), (), (Warning("w", "look [bold]here[/bold]", {"n": 12345}),))
    assert "! look [bold]here[/bold] (n 12,345) [w]" in shown("table", what)


@pytest.mark.parametrize("name", ["html", "png", "svg"])
def test_formats_of_the_page_are_named(name: str) -> None:
    with pytest.raises(InputError, match="tracelens report"):
        reporter(name)
    with pytest.raises(InputError, match="of `tracelens report` alone"):
        check(name)


def test_plain_refuses_no_value() -> None:
    assert plain({2: math.nan, None: b"\x00", True: {2.5}}) == {"2": None, "None": "AA==", "True": [2.5]}


@pytest.mark.parametrize(
    ("shown_", "expected"),
    [
        (fmt.times(1.608), "1.61x"),
        (fmt.ms(53), "53.0 ms"),
        (fmt.ms(0.0421), "0.0421 ms"),
        (fmt.ms(12345.6), "12,346 ms"),
        (fmt.percent(0.612), "61.2 %"),
        (fmt.count(1234567), "1,234,567"),
        (fmt.interval(0.6, 0.642, fmt.tokens), "[0.60, 0.64]"),
        (fmt.interval(None, 0.642), ""),
        (fmt.points(-0.012), "-1.2"),
        (fmt.duration(41_200), "41.2 s"),
        (fmt.duration(1_204_000), "20.1 min"),
        (fmt.duration(9_000_000), "2.5 h"),
        (fmt.duration(12), "12.0 ms"),
        (fmt.ratio(None), "–"),
        (fmt.count(float("nan")), "–"),
        (fmt.percent(float("inf")), "–"),
        (fmt.times(True), "–"),
    ],
)
def test_numbers(shown_: str, expected: str) -> None:
    assert shown_ == expected
