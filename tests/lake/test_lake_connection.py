"""The connection reads its lake wherever that lies, and nothing else."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import tracelens
from tracelens.analysis.sql import named, sql_of
from tracelens.errors import InputError
from tracelens.ingest.run import IngestOptions, ingest
from tracelens.lake import connection
from tracelens.lake.connection import connect, define_grouping, kept, silent
from tracelens.lake.store import Store
from tracelens.lake.views import grouping_views


@pytest.mark.parametrize("name", ["lake", "we[ird]*d?r", "it's", "äöü 1"])
def test_any_place(tmp_path: Path, name: str) -> None:
    Store(tmp_path / name)
    assert connect(tmp_path / name, grouped=False).execute("select count(*) from rounds").fetchone() == (0,)


def test_nothing_but_the_lake(tmp_path: Path) -> None:
    Store(tmp_path / "lake")
    (tmp_path / "other.csv").write_text("a\n1\n")
    con = connect(tmp_path / "lake", grouped=False)
    with pytest.raises(duckdb.PermissionException):
        con.execute(f"select * from read_csv('{tmp_path / 'other.csv'}')")


def test_no_lake_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no lake at"):
        connect(tmp_path)


_SLOW = """
import duckdb
from tracelens.lake.connection import silent
con = {how}
con.execute("set progress_bar_time = 1")
con.execute("select count(distinct hash(range)) from range(6000000)").fetchall()
"""


@pytest.mark.parametrize(("how", "speaks"), [("silent()", False), ("duckdb.connect()", True)])
def test_a_slow_query_prints_nothing_into_the_answer(how: str, speaks: bool) -> None:
    # The second case shows that the first one could fail: by itself DuckDB draws a bar on stdout.
    done = subprocess.run([sys.executable, "-c", _SLOW.format(how=how)], capture_output=True, check=True)
    assert bool(done.stdout) is speaks


def test_every_connection_of_the_package_is_a_silent_one() -> None:
    sources = {p.name for p in Path(tracelens.__file__).parent.rglob("*.py") if "duckdb.connect(" in p.read_text()}
    assert sources == {"connection.py"}


# ---------------------------------------------------------------- what outgrows the memory


def test_what_outgrows_the_memory_is_put_aside_in_private_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not into `.tmp` of the folder that the user is in, for everybody to read."""
    monkeypatch.chdir(tmp_path)
    con = silent()
    [(folder,)] = con.execute("select current_setting('temp_directory')").fetchall()
    assert Path(folder).stat().st_mode & 0o077 == 0
    con.execute("set memory_limit = '30MB'; set threads = 1; set enable_external_access = false")
    con.execute("create table t as select i, md5(i::varchar) as s from range(1000000) r(i)")
    assert sum(p.stat().st_size for p in Path(folder).iterdir()) > 1 << 20
    assert list(tmp_path.iterdir()) == []
    con.close()
    del con
    gc.collect()
    assert not Path(folder).exists()


def test_without_a_temporary_folder_nothing_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **more: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    con = silent()
    assert con.execute("select current_setting('temp_directory')").fetchall() == [("",)]
    con.close()


@pytest.mark.parametrize(
    ("asked", "views"),
    [
        ("from facts", set()),
        ("select * from STRATA", {"strata"}),
        ("from round_shapes", {"strata", "round_shapes"}),
        ("from unit_sums", {"strata", "alike_rounds", "unit_sums"}),
        ("from (show tables)", None),
        ("select * from duckdb_views()", None),
        ("from information_schema.tables", None),
    ],
)
def test_a_question_gets_the_views_that_it_reads(tmp_path: Path, asked: str, views: set[str] | None) -> None:
    Store(tmp_path / "lake")
    con = connect(tmp_path / "lake", keep=True, grouped=False)
    listed = "select view_name from duckdb_views() where not internal"
    before = {name for (name,) in con.execute(listed).fetchall()}
    define_grouping(con, asked)
    found = {name for (name,) in con.execute(listed).fetchall()} - before
    assert found == (set(grouping_views()) if views is None else views)
    con.execute(asked)


def test_a_named_query_finds_all_that_it_reads(tmp_path: Path) -> None:
    Store(tmp_path / "lake")
    con = connect(tmp_path / "lake", keep=True, grouped=False)
    for query in named():
        define_grouping(con, sql_of(query))
        con.execute(sql_of(query))
        for view in grouping_views():
            con.execute(f"drop view if exists {view}")


@pytest.mark.parametrize(("few", "whole"), [(6, True), (5, False)])  # a round and a run a file
def test_few_records_in_many_files_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, whole: bool
) -> None:
    """Each view that is bound opens all files again; how large they are says little of what is in them."""
    for i in range(3):
        row = {"record": "round", "drafted": 3, "accepted": i, "emitted": i + 1}
        (tmp_path / f"{i}.jsonl").write_text(f"{json.dumps(row)}\n")
    ingest([str(p) for p in tmp_path.glob("*.jsonl")], tmp_path / "lake", IngestOptions(jobs=1))
    monkeypatch.setattr(connection, "TINY", 0)
    monkeypatch.setattr(connection, "FEW", few)
    con = connect(tmp_path / "lake", keep=True, grouped=False)
    assert ("facts" in kept(con)) is whole
    assert con.execute("select sum(accepted) from facts").fetchall() == [(3,)]
