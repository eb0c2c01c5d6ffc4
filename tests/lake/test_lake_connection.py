"""The connection reads its lake wherever that lies, and nothing else."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

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
