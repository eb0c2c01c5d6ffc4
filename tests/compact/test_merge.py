"""Small files merged: no figure changes, and every way to replace a source still finds its rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compact_lakes import jsonl, rounds_of, run

from tracelens.compact import plan
from tracelens.compact.run import compact
from tracelens.errors import InputError
from tracelens.ingest.relabel import relabel
from tracelens.lake import connection, journal, ledger, schema, shared, whole
from tracelens.lake.forget import forget
from tracelens.lake.schema import TABLES, table
from tracelens.lake.snapshot import reading
from tracelens.lake.store import Store

FILES = 6


def logs_of(folder: Path) -> list[Path]:
    """Logs of one run, each with rounds of two days and a line that is refused."""
    folder.mkdir(exist_ok=True)
    rounds = rounds_of("r", 4 * FILES, k=3, seed=5, days=("2026-05-06", "2026-05-07"))
    paths = []
    for i in range(FILES):
        mine = [r for r in rounds if int(r["request_id"][-5:]) // 4 == i]
        paths.append(folder / f"{i}.jsonl")
        paths[-1].write_text(jsonl([*mine, {"record": "round", "drafted": 1, "accepted": 2, "run_id": "r"}]))
    return paths


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a commit a log, merged."""
    folder = tmp_path_factory.mktemp("made")
    for path in logs_of(folder / "logs"):
        run(folder / "plain", path)
    shutil.copytree(folder / "plain", folder / "merged")
    compact(folder / "merged")
    return folder


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "logs", tmp_path / "logs")
    return Path(shutil.copytree(made / "merged", tmp_path / "merged"))


@pytest.fixture
def plain(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "plain", tmp_path / "plain"))


def data_files(lake: Path) -> list[str]:
    return [n for n in journal.live(lake) if not n.endswith("/empty.parquet")]


def rows(lake: Path) -> dict[str, list[str]]:
    """Every row of a lake as a bare DuckDB finds it, sorted, without what tells of the ingest itself."""
    found = {}
    for name in TABLES:
        there = duckdb.sql(f"from read_parquet('{lake}/{name}/**/*.parquet', union_by_name = true)")
        volatile = ("ingested_at", "schema_version", "replaces", "also_named")
        columns = [c for c in there.columns if c not in volatile]
        found[name] = sorted(map(repr, there.select(*(f'"{c}"' for c in columns)).fetchall()))
    return found


def test_the_same_rows_in_fewer_files(made: Path) -> None:
    plain, merged = made / "plain", made / "merged"
    assert rows(plain) == rows(merged)
    assert len(data_files(plain)) == FILES * 5  # two days of rounds, runs, rejects, the ledger
    assert len(data_files(merged)) == 5
    assert all(shared.is_shared(n) for n in data_files(merged) if not n.startswith("sources/"))
    for name in (n for n in data_files(merged) if not n.startswith("sources/")):
        assert shared.sources_in(merged / name) == {e.source_id for e in ledger.read(merged).entries}
    [name] = (n for n in data_files(merged) if n.startswith("rejects/"))
    assert pq.read_schema(merged / name).names == list(table("rejects").names)


def test_another_time_changes_nothing(lake: Path) -> None:
    before = data_files(lake)
    done = compact(lake)
    assert done.before == done.after
    assert data_files(lake) == before


def _replaced(lake: Path, logs: Path) -> None:
    run(lake, logs / "1.jsonl", logs / "4.jsonl", replace=True)


def _grown(lake: Path, logs: Path) -> None:
    more = rounds_of("r", 2, k=3, seed=99)
    (logs / "2.jsonl").write_text((logs / "2.jsonl").read_text() + jsonl(more))
    run(lake, logs / "2.jsonl")


def _forgotten(lake: Path, logs: Path) -> None:
    forget(Store(lake), [e.source_id for e in ledger.read(lake).entries if "3.jsonl" in e.name])


def _all_forgotten(lake: Path, logs: Path) -> None:
    forget(Store(lake), [e.source_id for e in ledger.read(lake).entries])


def _labelled(lake: Path, logs: Path) -> None:
    relabel(lake, pl.DataFrame({"_key": ["r-req-00001", "r-req-00009"], "task_type": ["a", "b"]}), ())


def _labelled_and_replaced(lake: Path, logs: Path) -> None:
    _labelled(lake, logs)  # DuckDB writes these files, without a list of sources
    _replaced(lake, logs)


WAYS: list[Callable[[Path, Path], None]] = [
    _replaced, _grown, _forgotten, _all_forgotten, _labelled, _labelled_and_replaced,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
@pytest.mark.long
def test_what_replaces_rows_finds_them(lake: Path, plain: Path, way: Callable[[Path, Path], None]) -> None:
    logs = lake.parent / "logs"
    text = (logs / "2.jsonl").read_text()
    way(plain, logs)
    (logs / "2.jsonl").write_text(text)
    way(lake, logs)
    assert rows(lake) == rows(plain)
    compact(lake)
    assert rows(lake) == rows(plain)


def test_an_older_tracelens_is_told(lake: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look for a source's rows in files of its own, and leave them where they are."""
    for module in (ledger, whole):
        monkeypatch.setattr(module, "SCHEMA_VERSION", schema.OWN_FILES)
    assert len(ledger.read(plain).entries) == FILES
    for use in (ledger.read, connection.connect):
        with pytest.raises(InputError, match="newer tracelens"):
            use(lake)


def test_a_reader_keeps_what_he_reads(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    before = rows(plain)
    with reading(plain) as held:
        compact(plain)
        kept = [pq.ParquetFile(path).metadata.num_rows for path in held.of("rounds")]
        with reading(plain) as fresh:  # sees the commit, wherever its files lie
            assert len(fresh.of("rounds")) == 3
            assert sum(pq.ParquetFile(p).metadata.num_rows for p in fresh.of("rounds")) == sum(kept)
        assert rows(plain) == before  # a bare DuckDB: the folders as they were
    assert rows(plain) == before
    assert len(data_files(plain)) == 5


def test_files_of_others_stay(plain: Path) -> None:
    rows_ = [{"run_id": "x", "engine": "e", "surface": "s", "source_id": "theirs", "accepted": 1}]
    for i in range(3):
        place = plain / "rounds" / "date=2026-05-06" / f"theirs-{i}.parquet"
        pq.write_table(pa.Table.from_pylist(rows_, schema=table("rounds").arrow_schema()), place)
    compact(plain)
    assert len(list(plain.rglob("theirs-*"))) == 3


def test_many_files_take_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_FILES", 10)
    store = Store(tmp_path / "lake")
    count = 64
    with store.transaction() as txn:
        for i in range(count):
            row: dict[str, Any] = {
                "run_id": "x",
                "engine": "e",
                "surface": "s",
                "source_id": f"s{i}",
                "source_line": 1,
                "accepted": i,
            }
            there = pa.Table.from_pylist([row], schema=table("rounds").arrow_schema())
            pq.write_table(there, txn.path(f"rounds/date=2026-05-06/s{i}-0.parquet"))
        entries = [{"source_id": f"s{i}", "name": "", "sha256": f"{i}", "schema_version": 1} for i in range(count)]
        ledger.write(entries, txn.path("sources/t.parquet"))
        txn.commit()
    steps: list[tuple[str, int]] = []
    compact(store.root, told=lambda place, size: steps.append((place, size)))
    assert [place for place, _ in steps] == ["rounds/date=2026-05-06"] * 2
    [name] = [n for n in data_files(store.root) if n.startswith("rounds/")]
    assert pq.read_table(store.root / name, columns=["accepted"], partitioning=None)["accepted"].to_pylist() == sorted(
        range(count), key=lambda i: f"s{i}-0.parquet"
    )


def _file(size: int, name: str = "rounds/date=2026-05-06/merged-a-0.parquet") -> plan.File:
    return plan.File(name, name, size)


@pytest.mark.parametrize(
    ("sizes", "pays"),
    [
        ([1], False),
        ([5, 5], True),
        ([90, 5], False),
        ([90, *[1] * 6], False),
        ([90, *[1] * 7], True),
        ([50, 25, 25], True),
    ],
)
def test_a_large_file_is_not_written_again_for_a_few_small_ones(sizes: list[int], pays: bool) -> None:
    assert plan._pays([_file(size) for size in sizes]) == pays
