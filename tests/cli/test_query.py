"""`query` and `schema`."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracelens.analysis import sql
from tracelens.cli import run
from tracelens.lake.connection import silent
from tracelens.lake.schema import TABLES

from .lake import HOSTILE


@pytest.fixture
def ask(lake: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def asked(text: str, *args: str) -> str:
        assert run(["query", text, "--lake", str(lake), *args]) == 0
        return capsys.readouterr().out

    return asked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT count(*) AS n, sum(drafted)::BIGINT AS d FROM windows WHERE drafted > 0", [{"n": 3, "d": 900}]),
        ("SELECT sum(drafted) AS huge FROM windows", [{"huge": 900}]),
        ("SELECT sum(accepted_per_pos[1])::BIGINT AS p0 FROM windows", [{"p0": 240}]),
        ("SELECT epoch(min(ts_end)) AS t0 FROM windows", [{"t0": 1777629610.0}]),
        ("SELECT min(ts_end) AS t, min(date) AS d FROM windows", [{"t": "2026-05-01T10:00:10", "d": "2026-05-01"}]),
        ("SELECT DISTINCT window_ms FROM windows", [{"window_ms": 10000.0}]),
        ("SELECT 1 > 0 AS yes, NULL AS nothing", [{"yes": True, "nothing": None}]),
        ("SELECT 'nan'::DOUBLE AS a, 1 / 0 AS b, -1 / 0 AS c", [{"a": None, "b": None, "c": None}]),
        ("SELECT 170141183460469231731687303715884105727::HUGEINT AS h", [{"h": 2**127 - 1}]),
        ("SELECT 1.50::DECIMAL(4, 2) AS d, 7::DECIMAL(4, 0) AS i", [{"d": 1.5, "i": 7}]),
        ("SELECT [1, NULL] AS l, {'a': DATE '2026-01-01'} AS s, MAP {1: 2} AS m", None),
        ("SELECT 1 AS a, 2 AS a, 3 AS a_1", [{"a": 1, "a_1": 2, "a_1_1": 3}]),
        ("SELECT labels FROM windows WHERE drafted > 0 LIMIT 1", [{"labels": {"team": "a"}}]),
        ("FROM range(0)", []),
        ("SELECT drafted FROM rounds", []),
        ("SELECT 1 AS a; -- a comment", [{"a": 1}]),
        ("WITH x AS (SELECT 1 AS a) FROM x", [{"a": 1}]),
        ("VALUES (1)", [{"col0": 1}]),
    ],
)
@pytest.mark.long
def test_json_of_a_query(ask: Any, text: str, expected: Any) -> None:
    expected = expected if expected is not None else [{"l": [1, None], "s": {"a": "2026-01-01"}, "m": {"1": 2}}]
    answer = json.loads(ask(text, "--format", "json"))
    assert answer == expected
    assert [list(row) for row in answer] == [list(row) for row in expected]
    assert [type(v) for row in answer for v in row.values()] == [type(v) for row in expected for v in row.values()]


def test_labels_are_data(ask: Any) -> None:
    text = "SELECT DISTINCT task_type FROM windows ORDER BY 1"
    expected = sorted(["code", "=1+1", HOSTILE])
    assert [row["task_type"] for row in json.loads(ask(text, "--json"))] == expected
    table = list(csv.reader(io.StringIO(ask(text, "--format", "csv"))))
    assert table[0] == ["task_type"]
    assert ["'=1+1"] in table
    for name in ("table", "csv", "markdown", "json"):
        assert "\x1b" not in ask(text, "--format", name)
    assert "<img" not in ask(text, "--format", "markdown")


@pytest.mark.parametrize("name", ["table", "csv", "markdown"])
def test_hostile_column_names(ask: Any, name: str) -> None:
    told = ask('SELECT 1 AS "=cmd|<b>\x1b[31m"', "--format", name)
    assert "\x1b" not in told
    assert ("<b>" in told) == (name != "markdown")


def test_a_wide_answer_is_shown_row_by_row(ask: Any) -> None:
    told = ask("FROM windows")
    assert "row 1\n" in told
    assert "drafted" in told
    assert all(len(line) <= 80 for line in told.split("\n"))


def test_a_long_answer_says_that_it_is_cut(ask: Any) -> None:
    assert "only the first 1,000 rows" in ask("FROM range(1001)")
    assert "only the first" not in ask("FROM range(1000)")
    assert ask("FROM range(25000)", "--format", "csv").count("\n") == 25001


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELEKT 1", "Parser Error"),
        ("SELECT * FROM nowhere", "Views: "),
        ("SELECT nothing FROM facts", "Named queries: "),
        ("SELECT 1; SELECT 2", "one statement"),
        ("", "one statement"),
        ("DROP VIEW facts", "query only reads"),
        ("CREATE TABLE t (a INT)", "query only reads"),
        ("INSERT INTO windows VALUES (1)", "query only reads"),
        ("COPY (SELECT 1) TO 'x.csv'", "query only reads"),
        ("SET threads = 1", "query only reads"),
        ("ATTACH 'x.db'", "query only reads"),
        ("SELECT * FROM read_text('/etc/passwd')", "Permission Error"),
        ("alpah", "did you mean alpha?"),
        ("SELECT 'x'::INTEGER", "Conversion Error"),
    ],
)
def test_refused(lake: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["query", text, "--lake", str(lake)]) == 3
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""


def test_an_error_in_a_late_row_is_an_input_error(lake: Path) -> None:
    text = "SELECT CASE WHEN range < 200000 THEN 1 ELSE 'x'::INTEGER + range END FROM range(200001)"
    assert run(["query", text, "--lake", str(lake), "--json"]) == 3


@pytest.mark.parametrize("name", sql.named())
@pytest.mark.long
def test_named_queries_answer(ask: Any, name: str) -> None:
    assert isinstance(json.loads(ask(name, "--json")), list)


def test_named_queries_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["query", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["query"] for row in listed} == set(sql.named())
    assert all(row["question"].endswith("?") for row in listed)


def test_no_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["query", "FROM facts", "--lake", str(tmp_path / "none")]) == 3
    assert "tracelens ingest" in capsys.readouterr().err


def test_lake_from_the_environment(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_LAKE", str(lake))
    assert run(["query", "FROM windows"]) == 0


def test_an_output_file_is_whole_or_untouched(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.json"
    assert run(["query", "SELECT 1 AS a", "--lake", str(lake), "-o", str(path)]) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == [{"a": 1}]
    text = "SELECT CASE WHEN range < 200000 THEN 1 ELSE 'x'::INTEGER + range END FROM range(200001)"
    assert run(["query", text, "--lake", str(lake), "-o", str(path)]) == 3
    assert json.loads(path.read_text(encoding="utf-8")) == [{"a": 1}]
    assert [p.name for p in tmp_path.iterdir()] == ["answer.json"]
    assert run(["query", "SELECT 1", "--lake", str(lake), "-o", str(tmp_path)]) == 3
    assert run(["query", "SELECT 1", "--lake", str(lake), "-o", str(tmp_path / "no" / "x")]) == 3
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", TABLES)
def test_schema_of_a_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == name
    assert {"name", "type", "unit", "required", "description"} <= set(told["columns"][0])
    assert run(["schema", name]) == 0
    assert all(c["name"] in capsys.readouterr().out for c in told["columns"][:1])


def test_schema_lists_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [t["name"] for t in told["tables"]] == list(TABLES)


@pytest.mark.parametrize("fmt", ["json", "parquet"])
@pytest.mark.parametrize(
    ("text", "limit", "words"),
    [
        ("SELECT sum(a.i * b.i) FROM range(3000000) a(i), range(3000000) b(i)", ("--time-limit", "0.3"), "after 0.3 s"),
        ("SELECT len(list(i)) FROM range(1000000000000) t(i)", ("--memory-limit", "60MB"),
         "--memory-limit"),
    ],
)  # fmt: skip
def test_a_question_has_limits(
    text: str, limit: tuple[str, str], words: str, fmt: str, lake: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Whoever types a question that never ends gets the machine back, and no half of an answer."""
    out = tmp_path / f"x.{fmt}"
    assert run(["query", text, "--lake", str(lake), "--format", fmt, "-o", str(out), *limit]) == 3
    assert words in capsys.readouterr().err
    assert not out.exists()
    assert run(["query", "SELECT 1 AS a", "--lake", str(lake), *limit]) == 0


@pytest.mark.parametrize(
    ("limit", "words"),
    [(("--time-limit", "-1"), "--time-limit"), (("--time-limit", "nan"), "--time-limit"),
     (("--time-limit", "inf"), "--time-limit"), (("--memory-limit", "lots"), "--memory-limit"),
     (("--memory-limit", "1GB'; drop"), "--memory-limit")],
)  # fmt: skip
def test_limits_that_are_none(
    limit: tuple[str, str], words: str, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", "SELECT 1", "--lake", str(lake), *limit]) == 3
    assert words in capsys.readouterr().err


def test_without_a_limit(lake: Path) -> None:
    assert run(["query", "SELECT 1", "--lake", str(lake), "--time-limit", "0"]) == 0


def test_a_condition_has_the_time_of_a_query(
    lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--where` is SQL of anybody; what else a report asks takes as long as the lake is large."""
    monkeypatch.setattr(sql, "SECONDS", 0.001)
    assert run(["report", "--lake", str(lake), "--where", "drafted > 0"]) == 3
    assert "--where: stopped after 0.001 s" in capsys.readouterr().err
    assert run(["report", "--lake", str(lake)]) == 0


def test_a_limit_that_ends_between_two_statements_ends_the_next() -> None:
    con = silent()
    long = "select count(*) from range(1000000000) a(i) where hash(i) % 7 = 1"
    with sql.Clock(con, sql.Limits(0.01)):
        time.sleep(0.1)
        with pytest.raises(duckdb.InterruptException):
            con.execute(long).fetchall()
    con.close()
