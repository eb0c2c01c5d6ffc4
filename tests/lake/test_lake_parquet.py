"""Canonical rows to Parquet and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.lake import parquet
from tracelens.lake.parquet import Behind, DayWriters, rows_writer, to_arrow, write_table
from tracelens.lake.schema import FACTS, NO_DAY, TABLES, table

PAIR = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))
_MAP = st.none() | st.dictionaries(st.text(max_size=4), st.none() | st.text(max_size=4), max_size=3)


def pairs(cell: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    return None if cell is None else [{"key": k, "value": v} for k, v in cell.items()]


@given(st.lists(_MAP, max_size=8), st.integers(0, 8))
def test_map_columns_round_trip(cells: list[dict[str, Any] | None], cut: int) -> None:
    labels = pl.Series("labels", [pairs(c) for c in cells], dtype=PAIR)
    frame = pl.DataFrame({"labels": labels}).slice(min(cut, len(cells)))
    found = to_arrow("windows", frame)["labels"].to_pylist()
    assert [None if c is None else dict(c) for c in found] == cells[min(cut, len(cells)) :]


def test_all_columns_have_their_types() -> None:
    for name in FACTS:
        frame = pl.DataFrame({"run_id": ["a"], "engine": ["vllm"]})
        assert to_arrow(name, frame).schema == table(name).arrow_schema()
    with pytest.raises(KeyError, match="no_such"):
        to_arrow("rounds", pl.DataFrame({"no_such": [1]}))


def test_rows_lie_in_their_day(tmp_path: Path) -> None:
    stamps = [datetime(2026, 5, 6, 23, 59, 59, 999999), datetime(2026, 5, 7), None, datetime(1969, 12, 31)]
    frame = pl.DataFrame({"ts_end": pl.Series(stamps, dtype=pl.Datetime("us")), "running": [1, 2, 3, 4]})
    frame = frame.with_columns(pl.lit("a").alias(c) for c in ("run_id", "engine", "surface", "source_id"))

    def place(relative: str) -> Path:
        (tmp_path / relative).parent.mkdir(parents=True, exist_ok=True)
        return tmp_path / relative

    assert write_table("windows", frame, place, "s") == 4
    found = {p.parent.name: pq.ParquetFile(p).read()["running"].to_pylist() for p in tmp_path.rglob("s-0.parquet")}
    assert found == {"date=2026-05-06": [1], "date=2026-05-07": [2], f"date={NO_DAY}": [3], "date=1969-12-31": [4]}
    assert duckdb.sql(f"select count(*), max(ts_end) from '{tmp_path}/windows/*/*.parquet'").fetchall() == [
        (4, stamps[1])
    ]


def test_nothing_is_written_for_no_rows(tmp_path: Path) -> None:
    assert write_table("runs", pl.DataFrame(), lambda r: tmp_path / r, "s") == 0
    assert list(tmp_path.iterdir()) == []


def test_tables_without_a_day(tmp_path: Path) -> None:
    names = {"run_id": ["a"], "engine": ["vllm"], "source_id": ["s"]}
    frame = pl.DataFrame(names | {"config": pl.Series([pairs({"a": "b"})], dtype=PAIR)})
    (tmp_path / "runs").mkdir()
    assert write_table("runs", frame, lambda r: tmp_path / r, "s") == 1
    assert duckdb.sql(f"select config['a'] from '{tmp_path}/runs/s-0.parquet'").fetchall() == [("b",)]


def test_a_day_that_comes_back_is_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = [1, 1, 2, None, 1, 2, 3, 3, None]
    stamps = [None if d is None else datetime(2026, 4, d, 12) for d in days]
    rows = pl.DataFrame({"ts_end": stamps, "source_line": range(len(days))}).cast({"ts_end": pl.Datetime("us")})
    rows = rows.with_columns(run_id=pl.lit("a"), engine=pl.lit("vllm"), surface=pl.lit("x"), source_id=pl.lit("s"))
    for runs in (1000, 3):  # few stretches of one day each, or too many of them
        monkeypatch.setattr("tracelens.lake.parquet._RUNS", runs)
        lake = tmp_path / str(runs)

        def place(name: str, lake: Path = lake) -> Path:
            (lake / name).parent.mkdir(parents=True, exist_ok=True)
            return lake / name

        assert write_table("windows", rows, place, "s") == len(days)
        for day in {*days}:
            name = f"date={NO_DAY if day is None else f'2026-04-0{day}'}"
            (file,) = (lake / "windows" / name).glob("*.parquet")
            told = pq.read_table(file, columns=["source_line"], partitioning=None)["source_line"].to_pylist()
            assert told == [i for i, d in enumerate(days) if d == day]


def test_rows_without_a_stamp_are_all_written(tmp_path: Path) -> None:
    frame = pl.DataFrame({"source_line": [1, 2, 3]})
    frame = frame.with_columns(pl.lit("a").alias(c) for c in ("run_id", "engine", "surface", "source_id"))
    (tmp_path / f"windows/date={NO_DAY}").mkdir(parents=True)
    assert write_table("windows", frame, lambda name: tmp_path / name, "s") == 3
    (file,) = tmp_path.rglob("s-0.parquet")
    assert pq.ParquetFile(file).metadata.num_rows == 3


@given(st.lists(st.lists(st.integers(1, 12) | st.none(), max_size=6), max_size=6))
def test_rows_written_piece_by_piece(pieces: list[list[int | None]]) -> None:
    frames = [
        pl.DataFrame(
            {
                "source_line": [100 * i + j for j in range(len(days))],
                "ts_end": [d and datetime(2026, 5, d) for d in days],
            },
            schema={"source_line": pl.Int64, "ts_end": pl.Datetime("us")},
        ).with_columns(pl.lit("a").alias(c) for c in ("run_id", "engine", "surface", "source_id"))
        for i, days in enumerate(pieces)
    ]
    with TemporaryDirectory() as place:

        def put(relative: str) -> Path:
            path = Path(place) / relative
            assert not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            return path

        with patch.object(parquet, "_OPEN", 3):
            writers = DayWriters("windows", put, "source")
            for frame in frames:
                writers.write(frame)
                assert len(writers._open) <= 3
            writers.close()
        found = {
            (path.parent.name, row["source_line"])
            for path in Path(place).rglob("*.parquet")
            for row in pq.ParquetFile(path).read().to_pylist()
        }
    told = [(day, line) for f in frames for line, day in f.select("source_line", "ts_end").iter_rows()]
    assert found == {(f"date={NO_DAY if day is None else day.date()}", line) for day, line in told}


def test_rows_behind_come_in_order(tmp_path: Path) -> None:
    behind = Behind()
    parts = [pa.table({"source_line": pa.array([n, n + 1], pa.int64())}) for n in range(0, 20, 2)]
    with rows_writer(tmp_path / "a.parquet", parts[0].schema) as writer:
        for part in parts:
            behind.write(writer, part)
        behind.wait()
        behind.close()
    assert pq.read_table(tmp_path / "a.parquet")["source_line"].to_pylist() == list(range(20))


@pytest.mark.parametrize("then", ["write", "wait"])
def test_what_goes_wrong_behind_is_told_by_the_next_call(then: str) -> None:
    class Full:
        def write_table(self, *given: object, **named: object) -> None:
            raise OSError(28, "No space left on device")

    behind, rows = Behind(), pa.table({"source_line": [1]})
    behind.write(cast(pq.ParquetWriter, Full()), rows)
    with pytest.raises(OSError, match="No space"):
        behind.wait() if then == "wait" else behind.write(cast(pq.ParquetWriter, Full()), rows)
    behind.close()


def numbered(lines: Sequence[int]) -> pl.DataFrame:
    words = {name: pl.lit("x") for name in ("run_id", "engine", "surface", "source_id")}
    return pl.DataFrame({"source_line": lines}).with_columns(accepted=1, **words)


def codecs(path: Path) -> dict[str, str]:
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return {column.path_in_schema: column.compression for column in columns}


@pytest.mark.parametrize(("rows", "codec"), [(64, "SNAPPY"), (65, "ZSTD")])
def test_few_rows_are_written_the_quick_way(rows: int, codec: str, tmp_path: Path) -> None:
    parquet.write_arrow(to_arrow("rounds", numbered(range(rows))), tmp_path / "a.parquet")
    assert codecs(tmp_path / "a.parquet")["source_line"] == codec
    assert pq.ParquetFile(tmp_path / "a.parquet").read(columns=["source_line"])["source_line"].to_pylist() == list(
        range(rows)
    )


CELLS = {
    "list<int64>": [1, 2], "list<double>": [0.5], "list<string>": ["x"], "map<string,string>": [("a", "b")],
    "map<string,int64>": [("a", 1)],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize("streamed", [False, True])
def test_columns_with_values_are_zstd_and_those_without_are_not(name: str, streamed: bool, tmp_path: Path) -> None:
    schema, rows = table(name).arrow_schema(), 65
    cells = {c.name: CELLS[c.arrow] for c in table(name).columns if c.arrow in CELLS}
    cells |= {f.name: "x" if f.type == pa.string() else 1 for f in schema if not f.nullable}
    arrays = [pa.array([cells[f.name]] * rows, f.type) if f.name in cells else pa.nulls(rows, f.type) for f in schema]
    whole = pa.Table.from_arrays(arrays, schema=schema)
    if streamed:
        with parquet.rows_writer(tmp_path / "a.parquet", schema, whole) as writer:
            writer.write_table(whole)
    else:
        parquet.write_arrow(whole, tmp_path / "a.parquet")
    found = codecs(tmp_path / "a.parquet")
    assert {path for path, codec in found.items() if codec == "ZSTD"} == {
        path for path in found if path.split(".")[0] in cells
    }
    assert set(found.values()) == {"ZSTD", "UNCOMPRESSED"}
    assert pq.ParquetFile(tmp_path / "a.parquet").read().equals(whole)


def test_a_column_that_is_empty_at_first_keeps_what_comes(tmp_path: Path) -> None:
    first, more = (to_arrow("rounds", numbered(lines).with_columns(drafted=d)) for lines, d in (([1], None), ([2], 5)))
    with parquet.rows_writer(tmp_path / "a.parquet", first.schema, first) as writer:
        writer.write_table(first)
        writer.write_table(more)
    assert pq.ParquetFile(tmp_path / "a.parquet").read(columns=["drafted"])["drafted"].to_pylist() == [None, 5]


def test_a_log_that_comes_in_parts_is_small_whatever_it_says_late(tmp_path: Path) -> None:
    """A server without speculation may be started again with it."""
    writers = DayWriters("windows", lambda _: tmp_path / "a.parquet", "s")
    words = {name: pl.lit("x") for name in ("run_id", "engine", "surface", "source_id")}
    for accepted in (None, 3):
        frame = pl.DataFrame({"source_line": range(100)}).with_columns(accepted=accepted, **words)
        writers.write(frame.with_columns(pl.col("accepted").cast(pl.Int64)))
    writers.close()
    assert set(codecs(tmp_path / "a.parquet").values()) == {"ZSTD"}


def test_what_a_footer_says_of_a_column(tmp_path: Path) -> None:
    parquet.write_arrow(to_arrow("rounds", numbered([7, 3, 5])), tmp_path / "a.parquet")
    parquet.write_empty("rounds", tmp_path / "empty.parquet")
    footer, empty = (pq.read_metadata(tmp_path / name) for name in ("a.parquet", "empty.parquet"))
    assert [(s.min, s.max) for s in parquet.statistics(footer, "source_line") if s is not None] == [(3, 7)]
    assert parquet.statistics(footer, "no_such") == []
    assert not any(s.has_min_max for s in parquet.statistics(empty, "source_line") if s is not None)
