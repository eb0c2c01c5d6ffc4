"""The connection reads its lake wherever that lies, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import tracelens
from tracelens.errors import InputError
from tracelens.lake.connection import connect
from tracelens.lake.store import Store


@pytest.mark.parametrize("name", ["lake", "we[ird]*d?r", "it's", "äöü 1"])
def test_any_place(tmp_path: Path, name: str) -> None:
    Store(tmp_path / name)
    assert connect(tmp_path / name).execute("select count(*) from rounds").fetchone() == (0,)


def test_nothing_but_the_lake(tmp_path: Path) -> None:
    Store(tmp_path / "lake")
    (tmp_path / "other.csv").write_text("a\n1\n")
    con = connect(tmp_path / "lake")
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
