"""No number of a table is cut, however wide the terminal is and however short the names of the classes are."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest

from reporters.fixture import figures, report
from tracelens.analysis.results import Report, Stratum
from tracelens.reporters import terminal
from tracelens.reporters.sheet import Cell, Grid, Sheet
from tracelens.reporters.terminal import TerminalReporter

NUMBER = re.compile(r"\d[\d,.]*(?: %|x)?(?= |$)", re.MULTILINE)
KEYS = {"run_id": "k5", "engine": "vllm", "date": "2026-11-21", "task_type": "chat", "temperature_bucket": "0"}


def by(*columns: str) -> Report:
    whole = report()
    strata = tuple(
        Stratum({c: f"{KEYS[c]}{i}" for c in columns}, figures(requests=4100 + i, rounds=61_020 + i)) for i in range(3)
    )
    return dataclasses.replace(whole, by=columns, strata=strata)


def tables(width: int, found: Report) -> list[str]:
    """The numbers of all table rows."""
    out = io.StringIO()
    TerminalReporter(width).render(found, out)
    rows = [line for line in out.getvalue().splitlines() if re.match(r"(?:k5|vllm|chat)\d* |all  ", line)]
    cells = "\n".join(row.partition(" ")[2].replace(KEYS["date"], "") for row in rows)
    return sorted({number for number in NUMBER.findall(cells) if re.search("[.,]", number)})  # others may be of keys


@pytest.mark.long
@pytest.mark.parametrize(
    "columns",
    [("run_id",), ("engine",), ("task_type", "run_id"), ("engine", "run_id", "date"),
     ("task_type", "temperature_bucket", "run_id")],
)  # fmt: skip
def test_no_number_of_a_report_is_cut(columns: tuple[str, ...]) -> None:
    found = by(*columns)
    for first, last in ((60, 139), (140, 200)):  # wide terminals have other tables
        expected = tables(last, found)
        assert sum("%" in number for number in expected) >= 2
        for width in range(first, last):
            assert tables(width, found) == expected, width


def test_no_number_of_a_sheet_is_cut() -> None:
    """The other commands' tables: keys of short names beside columns of numbers."""
    heads = ("run_id", "engine", *(f"head\n{i}" for i in range(9)))
    rows = tuple((Cell(f"k{i}"), Cell("v"), *(Cell(f"{i}{j}.25 %") for j in range(9))) for i in range(4))
    grid = Grid("title", heads, rows, keys=2)
    for width in range(40, 140):
        out = io.StringIO()
        terminal.sheet(Sheet(("lead",), (grid,)), out, width)
        assert len(set(re.findall(r"\d\d\.25 %", out.getvalue()))) == 36, width
