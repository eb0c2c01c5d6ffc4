"""Parquet holds every figure that JSON does, under CSV's names, typed, and says what it is."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from api_lake import CLAIM, make
from polars.testing import assert_frame_equal

import tracelens
from tracelens import __version__
from tracelens.analysis import sql
from tracelens.analysis.results import Report, Stratum
from tracelens.cli import run
from tracelens.errors import InputError
from tracelens.reporters import arrow, reporter, rows
from tracelens.reporters.csv_ import cell
from tracelens.reporters.views import view

from . import fixture, test_compare, test_sweep_snapshots, why_fixture

ANSWERS = {
    "report": fixture.report,
    "gap": why_fixture.gap,
    "sweep": test_sweep_snapshots.result,
    "gate": why_fixture.gate,
    "compare": test_compare.comparison,
}
INFINITY = math.inf


class Bytes(io.TextIOWrapper):
    """An output that takes bytes, as a file or a pipe."""

    def __init__(self, *, seekable: bool = True) -> None:
        super().__init__(_Pipe() if not seekable else io.BytesIO(), encoding="utf-8")

    def written(self) -> bytes:
        self.flush()
        value: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return value


class _Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError("a pipe has no place")

    def seek(self, *_: Any) -> int:
        raise OSError("a pipe has no place")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def parquet(command: str, answer: Any, *, seekable: bool = True) -> pa.Table:
    out = Bytes(seekable=seekable)
    view(command).render(answer, "parquet", out)
    return pq.read_table(pa.BufferReader(out.written()))


def text(command: str, answer: Any, chosen: str) -> str:
    out = io.StringIO()
    view(command).render(answer, chosen, out)
    return out.getvalue()


def leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of a stratum of JSON, maps in it under their prefix; lists of maps are rows of their own."""
    for name, inner in value.items():
        if isinstance(inner, Mapping) and name in ("figures", "baseline", "a", "b"):
            yield from leaves(inner, "" if name == "figures" else f"{prefix}{name}_")
        elif name not in ("key", "terms", "ks", "change"):
            yield f"{prefix}{name}", inner


def kind_of(field: pa.Field) -> str:
    """The type of a column in words, without the name that Parquet gives a map's entries."""
    return re.sub(r" \('\w+'\)", "", str(field.type))


def same(told: Any, written: Any) -> bool:
    if isinstance(told, dict):  # the histogram of rollback lengths
        return {int(d): n for d, n in told.items()} == dict(written)
    return bool(told == written)


def check_rows(stratum: Mapping[str, Any], found: Sequence[Mapping[str, Any]], by: Sequence[str]) -> int:
    """Every figure of one stratum of JSON is in its rows of Parquet; how many were met."""
    met = 0
    told_apart = {row["figure"] for row in found if "figure" in row}
    for name, value in leaves(stratum):
        base = name.removeprefix("a_").removeprefix("b_")
        if any(base in (f, f"{f}_low", f"{f}_high") for f in told_apart):
            side, row = name[0], next(r for r in found if base in (r["figure"] + end for end in ("", "_low", "_high")))
            assert same(value, row[side + base.removeprefix(row["figure"])]), name
        else:
            column = f"figure_{name}" if name in by else name
            assert all(same(value, row[column]) for row in found), name
        met += 1
    for kind, first in (("terms", "term"), ("ks", "k")):
        for row, entry in zip(found, stratum.get(kind, ()), strict=kind in stratum):
            for name, value in entry.items():
                assert same(value, row[first if name == "name" else name]), name
                met += 1
    for name, change in (stratum.get("change") or {}).items():
        row = next(r for r in found if r["figure"] == name)
        for part, value in change.items():
            assert same(value, row["change" if part == "value" else f"change_{part}"]), (name, part)
            met += 1
    return met


def check_all(document: Mapping[str, Any], table: pa.Table) -> int:
    by = document["by"]
    written = table.to_pylist()
    met = 0
    for stratum, kind in [(s, "stratum") for s in document["strata"]] + [(document["total"], "total")]:
        key = [stratum["key"].get(name) for name in by]
        found = [r for r in written if r["row"] == kind and [r[name] for name in by] == key]
        assert found
        met += check_rows(stratum, found, by)
    for name, mix in document.get("mix_effect", {}).items():
        row = next(r for r in written if r["row"] == "total" and r["figure"] == name)
        assert {part: row[f"mix_effect_{part}"] for part in mix} == mix
        met += len(mix)
    return met


@pytest.mark.parametrize("command", ANSWERS)
def test_every_figure_of_json_is_there(command: str) -> None:
    answer = ANSWERS[command]()
    assert check_all(json.loads(text(command, answer, "json")), parquet(command, answer)) > 60


@pytest.mark.parametrize("command", ANSWERS)
def test_csv_says_the_same(command: str) -> None:
    answer = ANSWERS[command]()
    head, *told = list(csv.reader(io.StringIO(text(command, answer, "csv"))))
    written = parquet(command, answer).to_pylist()
    assert head == list(written[0])
    for line, row in zip(told, written, strict=True):
        for name, value in zip(head, line, strict=True):
            found = row[name]
            if name in ("includes", "reasons", "advice", "notes", "unmeasured"):  # lists, which CSV joins
                found = "; ".join(found or ()) or None
            elif name == "rollback_len" and found is not None:
                found = {str(d): n for d, n in found}
                assert json.loads(value) == found
                continue
            elif isinstance(found, list):
                assert json.loads(value) == found
                continue
            elif isinstance(found, float):
                assert float(value) == found
                continue
            assert value == cell(found), name


@pytest.mark.parametrize("command", ANSWERS)
def test_columns_are_typed_also_where_nothing_is_known(command: str) -> None:
    schema = parquet(command, ANSWERS[command]()).schema
    assert not any(pa.types.is_null(kind) for kind in schema.types)
    assert {kind_of(field) for field in schema} <= {
        "string", "double", "int64", "bool", "list<element: double>", "list<element: string>",
        "map<int64, list<element: double>>",
    }  # fmt: skip
    assert schema.field("row").type == pa.string()


def test_a_file_of_nothing_has_the_same_types() -> None:
    full, empty = parquet("report", fixture.report()), parquet("report", fixture.nothing_measured())
    known = {field.name: field.type for field in full.schema}
    shared = {field.name: field.type for field in empty.schema if field.name in known}
    assert len(shared) > 40
    assert all(known[name] == kind for name, kind in shared.items())
    assert all(empty.column(name).null_count == empty.num_rows for name in ("rho", "requests", "hazard"))


def test_null_is_null_and_nan_is_too() -> None:
    strange = fixture.figures(rho=math.nan, round_cost=INFINITY, requests=None, hazard=[0.5, math.nan])
    table = parquet("report", Report((), (), Stratum({}, strange), (), ()))
    row = table.to_pylist()[0]
    assert (row["rho"], row["round_cost"], row["requests"], row["hazard"]) == (None, None, None, [0.5, None])
    assert row["row"] == "total"


def test_weighted_counts_stay_what_they_are() -> None:
    table = parquet("report", Report((), (), Stratum({}, fixture.figures(rounds=10.5)), (), ()))
    assert table.column("rounds").to_pylist() == [10.5]
    assert table.schema.field("requests").type == pa.int64()


def test_a_key_that_is_named_as_a_figure_hides_none() -> None:
    strata = tuple(Stratum({"accepted": n}, fixture.figures(accepted=100 + n)) for n in (0, 3))
    answer = Report(("accepted",), strata, Stratum({}, fixture.figures(accepted=203)), (), ())
    table = parquet("report", answer)
    assert table.column("accepted").to_pylist() == [0, 3, None]
    assert table.column("figure_accepted").to_pylist() == [100, 103, 203]
    assert check_all(json.loads(text("report", answer, "json")), table) > 60


def test_a_stratum_without_entries_has_a_row() -> None:
    answer = test_sweep_snapshots.result()
    bare = dataclasses.replace(answer, strata=(dataclasses.replace(answer.total, entries=(), why="time it in a hook"),))
    row = parquet("sweep", bare).to_pylist()[0]
    assert (row["row"], row["k"], row["source"]) == ("stratum", None, None)
    assert row["why"] == "time it in a hook"


@pytest.mark.parametrize("command", ANSWERS)
def test_the_file_says_what_it_is(command: str) -> None:
    answer = ANSWERS[command]()
    about = {k.decode(): v.decode() for k, v in parquet(command, answer).schema.metadata.items()}
    assert about["tracelens.command"] == command
    assert about["tracelens.version"] == __version__
    conventions = json.loads(about["tracelens.conventions"])
    assert any("NULL" in text for text in conventions)
    assert any("accepted over drafted" in text or "τ verified" in text for text in conventions) or command == "compare"
    assert not any(text.startswith(("*", "moved nothing")) for text in conventions)
    definitions = json.loads(about["tracelens.definitions"])
    assert definitions["interval"]["text"]
    assert definitions["tau_verified" if command == "sweep" else "draft_accept_ratio"]["formula"]
    assert ("gap_term" in definitions, "replay" in definitions) == (command == "gap", command == "sweep")
    document = json.loads(text(command, answer, "json"))
    assert json.loads(about["tracelens.answer"]) == {
        name: value for name, value in document.items() if name not in ("strata", "total")
    }


def test_hostile_labels_are_data() -> None:
    assert fixture.HOSTILE in parquet("report", fixture.report()).column("task_type").to_pylist()


@pytest.mark.parametrize("command", ["report", "gap"])
def test_a_pipe_is_written_to(command: str) -> None:
    answer = ANSWERS[command]()
    assert parquet(command, answer, seekable=False).equals(parquet(command, answer))


@pytest.mark.parametrize(("out", "said"), [(Terminal(), "is a terminal"), (io.StringIO(), "takes text alone")])
def test_no_bytes_where_they_would_spoil(out: io.StringIO, said: str) -> None:
    for render in (
        lambda: view("gap").render(why_fixture.gap(), "parquet", out),
        lambda: reporter("parquet").render(fixture.report(), out),
        lambda: rows.render(["a"], [(1,)], "parquet", out),
    ):
        with pytest.raises(InputError, match=said):
            render()
    assert out.getvalue() == ""


# --- with a lake, through the command line


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("lake") / "lake")


def test_report_of_a_lake(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tracelens.open(lake).report(run="k5", baseline="off", claim=CLAIM)
    assert check_all(result.to_dict(), result.to_arrow()) > 400
    place = tmp_path / "report.parquet"
    options = ["--lake", str(lake), "--run", "k5", "--baseline", "off", "--claim", CLAIM]
    assert run(["report", *options, "-o", str(place)]) == 0
    assert capsys.readouterr().out == ""
    written = pq.read_table(place)
    assert written.schema.equals(result.to_arrow().schema)
    assert json.loads(written.schema.metadata[b"tracelens.answer"])["claim"] == result.to_dict()["claim"]
    # DuckDB's threads add up in any order, so the last digits of two runs may differ.
    assert_frame_equal(pl.read_parquet(place), result.to_polars(), rel_tol=1e-9, abs_tol=1e-9)


@pytest.fixture
def ask(lake: Path, tmp_path: Path) -> Any:
    def asked(text: str) -> pa.Table:
        place = tmp_path / "rows.parquet"
        assert run(["query", text, "--lake", str(lake), "-o", str(place)]) == 0
        return pq.read_table(place)

    return asked


def test_rows_of_a_query(ask: Any, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "SELECT task_type, sum(drafted) AS drafted, avg(accepted) AS mean, [1, NULL] AS l, MAP {'a': 1} AS m,"
        " 1.5::DECIMAL(4, 2) AS d, 'nan'::DOUBLE AS nothing, INTERVAL 90 SECOND AS i, 1::TINYINT AS drafted,"
        " ['inf'::DOUBLE, 1] AS nested, max(ts) AS t FROM rounds GROUP BY ALL ORDER BY 1"
    )
    table = ask(text)
    types = {field.name: kind_of(field) for field in table.schema}
    assert types == {
        "task_type": "string", "drafted": "int64", "mean": "double", "l": "list<element: int64>",
        "m": "map<string, int64>", "d": "double", "nothing": "double", "i": "double", "drafted_1": "int64",
        "nested": "list<element: double>", "t": "timestamp[us]",
    }  # fmt: skip
    assert run(["query", text, "--lake", str(lake), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    written = [{**row, "m": dict(row["m"]), "t": row["t"].isoformat()} for row in table.to_pylist()]
    assert written == told
    assert table.schema.metadata[b"tracelens.command"] == b"query"
    assert table.schema.metadata[b"tracelens.sql"].decode() == text


def test_whole_numbers_beyond_int64_are_double(ask: Any) -> None:
    table = ask("SELECT 170141183460469231731687303715884105727::HUGEINT AS h, 7::HUGEINT AS n, [2::UBIGINT] AS l")
    assert [str(kind) for kind in table.schema.types] == ["double", "int64", "list<element: int64>"]
    assert table.to_pylist() == [{"h": 2.0**127, "n": 7, "l": [2]}]


def test_many_rows_come_in_batches(ask: Any) -> None:
    table = ask("SELECT range AS n, range % 7 = 0 AS seventh FROM range(300000)")
    assert table.num_rows == 300_000
    assert table.column("n").to_pylist()[-1] == 299_999
    assert ask("SELECT drafted FROM rounds WHERE false").num_rows == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT '101'::BIT AS b", "cast it to VARCHAR"),
        ("SELECT [INTERVAL 1 DAY] AS b", "cast it to VARCHAR"),
        ("DROP VIEW facts", "query only reads"),
        ("SELECT * FROM nowhere", "Views: "),
        ("SELECT CASE WHEN range < 200000 THEN 1 ELSE 'x'::INTEGER + range END AS n FROM range(200001)", "Conversion"),
    ],
)
def test_refused(lake: Path, tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "rows.parquet"
    place.write_text("what was there")
    assert run(["query", text, "--lake", str(lake), "-o", str(place)]) == 3
    assert said in capsys.readouterr().err
    assert place.read_text() == "what was there"


def test_names_of_queries_and_of_tables(lake: Path, tmp_path: Path) -> None:
    place = tmp_path / "names.parquet"
    assert run(["query", "--lake", str(lake), "-o", str(place)]) == 0
    assert pl.read_parquet(place)["query"].to_list() == list(sql.named())
    assert run(["schema", "rounds", "-o", str(place)]) == 0
    assert "drafted" in pl.read_parquet(place)["column"].to_list()


def test_a_terminal_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for command in (["report"], ["gap"], ["sweep"], ["gate"], ["compare", "a", "b"], ["query", "FROM facts"]):
        assert run([*command, "--lake", "nowhere", "--format", "parquet"]) == 3
        assert "-o FILE.parquet" in capsys.readouterr().err


def test_stdout_that_is_a_pipe(lake: Path) -> None:
    command = [sys.executable, "-m", "tracelens", "query", "SELECT 1 AS a", "--lake", str(lake), "--format", "parquet"]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ})
    assert pq.read_table(pa.BufferReader(done.stdout)).to_pylist() == [{"a": 1}]


def test_types_that_arrow_has_and_parquet_not() -> None:
    table = pa.table({"when": pa.array([0], pa.timestamp("s")), "name": pa.array(["a"]).dictionary_encode()})
    found = arrow.simplify(table, arrow.simple(table.schema))
    assert [str(kind) for kind in found.schema.types] == ["timestamp[us]", "string"]
