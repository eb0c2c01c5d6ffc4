"""A watch as it is shown: lines in a pipe, frames that fit a terminal, the table once at the end."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.results import Report, Stratum
from tracelens.analysis.watched import Freshness, Watched
from tracelens.ingest.watch import Held, Round
from tracelens.reporters.live import Lines, Screen, display, size, state

from .fixture import HOSTILE, figures

FRESH = Freshness(datetime(2026, 5, 6, 12, 3, 10), 4, 181_515, 0, 1240, 7)
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def now() -> datetime:
    return datetime(2026, 5, 6, 12, 3, 15, tzinfo=UTC)


def report(n: int = 2, **changed: Any) -> Report:
    strata = tuple(Stratum({"task_type": f"class{i}"}, figures(rounds=1000 + i, **changed)) for i in range(n))
    return Report(("task_type",), strata, Stratum({}, figures(**changed)), (), ())


def found(changed: bool = True, **more: Any) -> Round:
    given: dict[str, Any] = {
        "files": 2,
        "read": ("a.log",),
        "changed": changed,
        "held": (),
        "notes": (),
        "seconds": 0.3,
    }
    return Round(**(given | more))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_line_a_change_and_the_table_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    with Lines(out, Path("my lake"), now) as shown:
        shown.reading("a.log", 10)
        shown.show(found(), Watched(FRESH, report()))
        shown.show(found(changed=False), Watched(FRESH, report()))
        shown.show(found(notes=(("x\n.log", "is a socket"),), changed=False), Watched(FRESH, report()))
        shown.show(found(notes=(("x\n.log", "is a socket"),), changed=False), Watched(FRESH, report()))
        lines = out.getvalue().splitlines()
        shown.end(found(), Watched(FRESH, report()))
    state_ = "last record 2026-05-06 12:03:10 UTC; rows 181,515 rounds, 1,240 requests; rejects 7"
    assert lines[0] == (
        f"2026-05-06T12:03:15Z {state_}; observed speedup 1.61x [1.56, 1.67], token time / plain 0.621 [0.60, 0.64], "
        "pays? yes"
    )
    assert len(lines) == 2
    assert lines[1] == f"{lines[0]}; x\\n.log: is a socket"
    table = out.getvalue().split("\n", 2)[2]
    assert table.startswith("Observed 1.61x (planned 2.40x)")
    assert table.count("Outcome\n") == 1
    assert "class0" in table
    assert "relative_token_time C" in table
    assert "tracelens report --lake 'my lake'" in table
    assert "\x1b" not in out.getvalue()
    assert max(map(len, table.splitlines())) <= 80


def test_what_the_lake_lacks_is_told_at_the_end() -> None:
    out = io.StringIO()
    held = (Held("big\x1b[31m.log", 1_200_000_000, "read again when it is worth it", 61.0),)
    with Lines(out, Path("lake"), now) as shown:
        shown.end(found(held=held), Watched(FRESH, report()))
    assert "big\\x1b[31m.log, 1.2 GB: read again when it is worth it\n" in out.getvalue()
    assert "tracelens ingest PATH… reads what the watch did not come to" in out.getvalue()


def test_nothing_yet() -> None:
    out = io.StringIO()
    with Lines(out, Path("lake"), now) as shown:
        shown.show(found(), Watched(Freshness(), None, "no record yet"))
        shown.end(found(), Watched(Freshness(), None, "no record yet"))
    first, *rest = out.getvalue().splitlines()
    assert first == "2026-05-06T12:03:15Z last record without a time; rows none; rejects 0; no record yet"
    assert rest[0] == "Nothing to show: no record yet."


def test_a_lower_bound_is_told_as_one() -> None:
    out = io.StringIO()
    with Lines(out, Path("lake"), now) as shown:
        shown.show(found(), Watched(FRESH, report(relative_token_time_basis="lower_bound")))
    assert "token time / plain ≥ 0.621" in out.getvalue()


def test_an_output_that_has_no_greek() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with Lines(out, Path("lake"), now) as shown:
        shown.show(found(), Watched(FRESH, report(relative_token_time_basis="lower_bound")))
        shown.end(found(), Watched(FRESH, report()))
    out.seek(0)
    assert ">= 0.621" in out.read()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (160, 24), (80, 60), (100, 16)])
@pytest.mark.parametrize("classes", [0, 3, 40])
def test_a_frame_fits(columns: int, lines: int, classes: int) -> None:
    screen = Screen(Terminal(), Path("lake"), 5, now)
    held = (Held("big.log", 1_200_000_000, "read again when it is worth it", 61.0),)
    one, seen = found(held=held), Watched(FRESH, report(classes))
    text = screen.frame(one, seen, "status", columns, lines)
    plain = STYLES.sub("", text).splitlines()
    assert len(plain) <= lines
    assert max(map(len, plain)) <= columns
    assert plain[0].startswith("Observed 1.61x")
    assert any(line.startswith("all ") for line in plain)
    assert any("big.log, 1.2 GB" in line for line in plain)
    assert "\x1b[" in text
    kept = [line.split()[0] for line in plain if line.startswith("class")]
    if len(kept) < classes:
        assert f"{classes - len(kept)} smaller classes do not fit" in text
        assert kept == [f"class{i}" for i in range(classes - len(kept), classes)]  # the largest, in their order
    if (columns, lines) == (80, 60) and classes == 3:
        assert "relative_token_time C" in text


def test_a_window_too_small_for_anything() -> None:
    screen = Screen(Terminal(), Path("lake"), 5, now)
    assert "all" in screen.frame(found(), Watched(FRESH, report()), "status", 20, 3)


def test_nothing_on_the_screen_drives_the_terminal() -> None:
    screen = Screen(Terminal(), Path("lake"), 5, now)
    hostile = Report((HOSTILE,), (Stratum({HOSTILE: HOSTILE}, figures()),), Stratum({}, figures()), (), ())
    one = found(read=(HOSTILE,), notes=((HOSTILE, HOSTILE),), held=(Held(HOSTILE, 1, "why"),))
    for seen in (Watched(FRESH, hostile), Watched(FRESH, None, HOSTILE)):
        text = screen.frame(one, seen, screen._status(one), 80, 60)
        assert "[31m" not in STYLES.sub("", text).replace("\\x1b[31m", "")
        assert "\x1b" not in STYLES.sub("", text)
        assert "\u202e" not in text


def test_a_terminal_is_drawn_over_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    with Screen(out, Path("lake"), 5, now) as screen:
        screen.reading("a.log", 1 << 20)
        assert out.getvalue() == ""
        screen.show(found(), Watched(FRESH, report()))
        assert "\x1b[?1049h" in out.getvalue()
        assert "12:03:15 UTC: read a.log" in out.getvalue()
        monkeypatch.setattr(screen, "_drawn", 0.0)
        screen.reading("b.log", 3_000_000)
        assert "Reading b.log: 3.0 MB." in out.getvalue()
        screen.end(found(), Watched(FRESH, report()))
    before, _, after = out.getvalue().rpartition("\x1b[?1049l")
    assert before
    assert after.count("Outcome") == 1


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = Screen(Terminal(), Path("lake"), 5, now).frame(found(), Watched(FRESH, report()), "status", 80, 40)
    assert not re.search(r"\x1b\[(3|4|9)\d", text)


def test_the_way_to_show_is_that_of_the_output() -> None:
    assert isinstance(display(Terminal(), Path("lake"), 5), Screen)
    assert isinstance(display(io.StringIO(), Path("lake"), 5), Lines)


def test_words() -> None:
    assert [size(n) for n in (0, 999, 1000, 1_500_000, 2e9, 5e12)] == [
        "0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 GB", "5000.0 GB"
    ]  # fmt: skip
    assert state(Freshness()) == "last record without a time; rows none; rejects 0"
