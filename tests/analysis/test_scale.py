"""A large lake, summed up day by day in bounded memory, answers as it does at once; days before --since stay closed."""

from __future__ import annotations

import datetime as dt
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelens import api
from tracelens.analysis import selection
from tracelens.ingest import run
from tracelens.ingest.options import IngestOptions
from tracelens.lake import connection

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are beside the package, not in it"
)
DAYS = 3
ASKED: dict[str, dict[str, Any]] = {"gate": {}}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.lakes import lake

    place = tmp_path_factory.mktemp("lakes") / "lake"
    assert 20_000 < lake(place, 20_000, days=DAYS) < 30_000
    return place


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two answers are not the same to 1e-9: their sums are of other parts."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}[{i}]")
    elif isinstance(one, float) and isinstance(other, float):
        if not math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-10):
            yield f"{where}: {one} {other}"
    elif one != other:
        yield f"{where}: {one} {other}"


def as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of a lake that only a small one has room for."""
    monkeypatch.setattr(connection, "TINY", 0)
    monkeypatch.setattr(connection, "FEW", -1)
    monkeypatch.setattr(selection, "SMALL", 0)


@pytest.mark.long
def test_day_by_day_and_bounded_is_the_same(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {name: json.loads(getattr(api.open_lake(lake), name)(**how).to_json()) for name, how in ASKED.items()}
    assert len(asked["gate"]["strata"]) == 5
    made: list[str] = []
    as_large(monkeypatch)
    monkeypatch.setattr(connection, "LARGE", 0)
    monkeypatch.setattr(selection, "LOT", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lots = selection._lots
    monkeypatch.setattr(selection, "_lots", lambda con: made.extend(lots(con)) or lots(con))
    for name, how in ASKED.items():
        found = json.loads(getattr(api.open_lake(lake), name)(**how).to_json())
        assert list(differences(asked[name], found)) == []
    assert len(made) == (DAYS + 1) * len(ASKED)
    assert list(tmp_path.iterdir()) == []  # what was kept is gone


def test_days_before_since_stay_closed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.lakes import FIRST_DAY, SERVERS
    from benchmarks.scale import _files

    as_large(monkeypatch)
    last = FIRST_DAY + dt.timedelta(DAYS - 1)
    assert _files(lake, None) == (DAYS * len(SERVERS) + 1, DAYS * len(SERVERS) + 1)
    assert _files(lake, str(last)) == (len(SERVERS), DAYS * len(SERVERS) + 1)


def test_a_statement_that_needs_more_goes_on_without_the_bound() -> None:
    con = connection.silent()
    connection._bound(con)
    con.execute("set memory_limit = '20MB'; set temp_directory = ''")
    assert connection.answered(con, "select len(list(i)) as n from range(5000000) t(i)") == (["n"], [(5_000_000,)])
    assert limit_of(con) == "762.9 MiB"
    con.close()


def test_and_one_that_needs_more_than_twice_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    con = connection.silent()
    before = limit_of(con)
    connection._bound(con)
    monkeypatch.setattr(connection, "TWICE", "25MB")
    con.execute("set memory_limit = '20MB'; set temp_directory = ''")
    assert connection.answered(con, "select len(list(i)) as n from range(5000000) t(i)") == (["n"], [(5_000_000,)])
    assert limit_of(con) == before
    con.close()


def test_a_connection_put_aside_holds_little_and_comes_back() -> None:
    con = connection.silent()
    with connection.aside(con):  # no bound, no file to put anything into
        free = limit_of(con)
    assert free == limit_of(con) != "381.4 MiB"
    connection._bound(con)
    con.execute("create table spill.numbers as select i, hash(i) as h from range(3000000) t(i)")
    with connection.aside(con):
        assert limit_of(con) == "47.6 MiB"
        held = con.execute("select sum(memory_usage_bytes) < 50e6 from duckdb_memory()").fetchone()
        assert held == (True,)
        assert con.execute("select sum(i) from spill.numbers").fetchall() == [(3_000_000 * 2_999_999 // 2,)]
    assert limit_of(con) == "381.4 MiB"
    con.close()


def limit_of(con: duckdb.DuckDBPyConnection) -> str:
    found = con.execute("select current_setting('memory_limit')").fetchone()
    assert found is not None
    return str(found[0])


def test_windows_and_requests_count_beside_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.ingest([str(ROOT / "samples/vllm-site/k3/server.log")], tmp_path, IngestOptions(year=2026))
    con = connection.connect(tmp_path)
    found = con.execute("select (select count(*) from windows) + (select count(*) from requests)").fetchone()
    con.close()
    assert found is not None
    for many, spills in ((found[0], True), (found[0] + 1, False)):
        monkeypatch.setattr(connection, "MANY", many)
        con = connection.connect(tmp_path, bound=True)
        assert connection.has_spill(con) is spills
        con.close()


def test_files_of_a_day_that_is_left_out_are_not_opened_again(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked of the whole lake is kept; whatever is asked of the last day needs no other file."""
    from benchmarks.lakes import FIRST_DAY

    as_large(monkeypatch)
    place, last = shutil.copytree(lake, tmp_path / "lake"), FIRST_DAY + dt.timedelta(DAYS - 1)
    sizes = {path: path.stat().st_size for path in (place / "rounds").glob("date=2*/*.parquet")}
    # The columns are those of the largest file.
    largest = max(sizes, key=lambda path: sizes[path])
    left = [
        path.parent.name
        for path in sizes
        if path.parent not in (largest.parent, largest.parent.with_name(f"date={last}"))
    ]
    middle = left[0].removeprefix("date=")
    asked = f"select sum(accepted), count(*) from facts where date >= date '{last}'"
    with connection.connect(place, grouped=False) as con:
        selection.keep_small_tables(con)
        before = con.execute(asked).fetchall()
        for path in (place / "rounds" / f"date={middle}").iterdir():
            path.write_bytes(b"no Parquet")
        assert con.execute(asked).fetchall() == before
        with pytest.raises(duckdb.Error, match=str(middle)):
            con.execute("select sum(accepted) from facts").fetchall()


def test_files_with_other_columns_are_joined_by_name(lake: Path, tmp_path: Path) -> None:
    from benchmarks.lakes import FIRST_DAY

    place = shutil.copytree(lake, tmp_path / "lake")
    asked = "select sum(accepted), sum(context_len), count(top_p), count(date) from rounds"
    with connection.connect(place) as con:
        [(accepted, context, sampled, rows)] = con.execute(asked).fetchall()
    # As an older version wrote it, and as somebody else did.
    older, other = sorted((place / "rounds" / f"date={FIRST_DAY}").iterdir())[:2]
    pq.write_table(pq.ParquetFile(older).read().drop_columns(["top_p"]), older)
    told = pq.ParquetFile(other).read()
    at = told.schema.get_field_index("context_len")
    pq.write_table(told.set_column(at, "context_len", told.column(at).cast(pa.int64())), other)
    gone = pq.ParquetFile(older).metadata.num_rows
    with connection.connect(place) as con:
        assert con.execute(asked).fetchall() == [(accepted, context, sampled - gone, rows)]


@pytest.mark.parametrize(("size", "ahead", "knows"), [
    (1, None, True), (1, (None, None), True), (1 << 30, None, False), (1, (dt.date(2026, 4, 2), None), False),
])  # fmt: skip
def test_statistics_of_large_files_tell_what_need_not_be_computed(
    lake: Path, monkeypatch: pytest.MonkeyPatch, size: int, ahead: tuple[dt.date | None, dt.date | None], knows: bool
) -> None:
    as_large(monkeypatch)
    monkeypatch.setattr(connection, "LARGE_FILE", size)
    with connection.connect(lake, grouped=False, ahead=ahead) as con:
        asked = "explain (format json) select count(*) from logged_rounds where not possible"
        [*_, (_, plan)] = con.execute(asked).fetchall()
        assert ("context_len" not in plan) is knows  # neither compared nor read
        assert "accepted <= drafted" in plan
        assert con.execute("select count(*) from logged_rounds where not possible").fetchone() == (0,)
