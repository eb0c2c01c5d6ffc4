"""A lake as files: what a new one holds, and that a transaction is there entirely or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from lake_states import contents, files, staged

from tracelens.errors import InputError
from tracelens.lake import ledger
from tracelens.lake.schema import DAY_OF, SCHEMA_VERSION, TABLES, table
from tracelens.lake.store import Store, is_lake
from tracelens.resources import room


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of commits: nobody pulls the plug here, so the disk need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def ledger_row(source_id: str, **more: Any) -> dict[str, Any]:
    row = {"source_id": source_id, "name": "a.log", "sha256": source_id * 4, "bytes": 10, "schema_version": 1}
    return row | {"surfaces": {"vllm.v1_line": 2}, "rows": {}, "also_named": [], "replaces": []} | more


def put(store: Store, *sources: str, delete: tuple[str, ...] = ()) -> None:
    """Two small files and a ledger row a source."""
    with store.transaction() as txn:
        for source in sources:
            txn.path(f"rounds/date=2026-05-06/{source}-0.parquet").write_bytes(source.encode())
            txn.path(f"runs/{source}-0.parquet").write_bytes(source.encode())
            txn.path(f"sources/{source}.parquet").write_bytes(source.encode())
        txn.commit(delete=delete)


@pytest.mark.parametrize("name", TABLES)
def test_schemas_are_valid(name: str) -> None:
    document = json.loads((room("schemas") / f"{name}.json").read_text(encoding="utf-8"))
    columns = document["properties"]
    assert document["type"] == "object"
    assert set(document["required"]) <= set(columns)
    assert all(spec["description"] and spec["arrow"] for spec in columns.values())
    ours = table(name)
    assert ours.names == tuple(columns)
    assert set(ours.polars_schema()) == set(ours.duckdb_types()) == set(columns) == set(ours.arrow_schema().names)
    assert [f.name for f in ours.arrow_schema() if not f.nullable] == [c for c in columns if c in document["required"]]
    units = {c: spec.get("unit") for c, spec in columns.items()}
    assert all(units[c] == "us" for c in columns if c.endswith("_us"))


def test_a_new_lake_can_be_read_by_a_bare_duckdb(tmp_path: Path) -> None:
    Store(tmp_path / "lake")
    assert len(files(tmp_path / "lake")) == len(TABLES)
    for name in TABLES:
        deep = "*/*.parquet" if name in DAY_OF else "*.parquet"
        relation = duckdb.sql(f"from read_parquet('{tmp_path}/lake/{name}/{deep}', hive_partitioning = false)")
        assert relation.columns == list(table(name).names)
        assert [str(t) for t in relation.types] == list(table(name).duckdb_types().values())
        assert relation.fetchall() == []


def test_an_existing_lake_is_left_as_it_is(tmp_path: Path) -> None:
    put(Store(tmp_path), "one")
    before = contents(tmp_path)
    Store(tmp_path)
    assert contents(tmp_path) == before


def test_a_lost_empty_file_comes_back(tmp_path: Path) -> None:
    Store(tmp_path)
    before = files(tmp_path)
    (tmp_path / "runs" / "empty.parquet").unlink()
    Store(tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize("place", ["notes.txt", "sub/x", ".git/config", ".staging/mine/x"])
def test_a_foreign_folder_is_no_lake_and_stays_untouched(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("mine")
    with pytest.raises(InputError, match="--lake"):
        Store(tmp_path)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == {place}


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("x")
    with pytest.raises(InputError, match="not a folder"):
        Store(tmp_path / "lake")
    with pytest.raises(InputError, match=r"can't be written|not a folder"):
        Store(tmp_path / "lake" / "below")


def test_without_a_commit_nothing_is_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    before = contents(tmp_path)
    with store.transaction() as txn:
        txn.path("rounds/date=2026-05-06/x-0.parquet").write_bytes(b"x")
    assert (contents(tmp_path), staged(tmp_path)) == (before, [])


def test_the_lock_can_be_held_around_a_commit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction() as txn:
        txn.path("sources/x.parquet").write_bytes(b"x")
        with txn.locked():
            txn.commit(have_lock=True)
    assert "sources/x.parquet" in files(tmp_path)


def test_recovery_leaves_a_running_transaction_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction() as txn:
        txn.path("sources/x.parquet").write_bytes(b"x")
        Store(tmp_path)  # another process opens the lake
        assert txn.path("sources/x.parquet").read_bytes() == b"x"
        txn.commit()
    assert "sources/x.parquet" in files(tmp_path)


class Crash(Exception):  # noqa: N818 - stands for the end of the process
    pass


@contextmanager
def crash_at(number: int) -> Iterator[list[int]]:
    """Raise before or after a write, rename, removal or fsync: at the n-th such place. Gives the count of them."""
    seen = [0]

    def tick() -> None:
        seen[0] += 1
        if seen[0] == number:
            raise Crash

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tick()
            result = real(*args, **kwargs)
            tick()
            return result

        return call

    names = ((Path, "replace"), (Path, "unlink"), (Path, "write_text"), (Path, "mkdir"), (os, "fsync"))
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (*names, (pq, "write_table")):
            patch.setattr(owner, name, watched(getattr(owner, name)))
        yield seen


def crashes(act: Callable[[], None]) -> Iterator[None]:
    """Run `act` once for every place where it can be interrupted; yields after each crash."""
    number = 0
    while True:
        number += 1
        with crash_at(number) as seen:
            try:
                act()
            except Crash:
                pass
            else:
                assert seen[0] <= number - 1  # every place was tried, one after the other
                return
        yield


def test_the_first_commit_is_all_or_nothing(tmp_path: Path) -> None:
    whole = files_of_new_lake(tmp_path / "whole")
    lake, count = tmp_path / "lake0", 0

    def begin() -> None:
        Store(lake)

    for i, _ in enumerate(crashes(begin), 1):
        count = i
        Store(lake)
        assert files(lake) == whole
        assert staged(lake) == []
        assert is_lake(lake)
        lake = tmp_path / f"lake{i}"
    assert count > 40


def files_of_new_lake(path: Path) -> set[str]:
    Store(path)
    return files(path)


def three(source: str) -> set[str]:
    return {
        f"rounds/date=2026-05-06/{source}-0.parquet",
        f"runs/{source}-0.parquet",
        f"sources/{source}.parquet",
    }


def test_a_replacing_commit_is_all_or_nothing(tmp_path: Path) -> None:
    outcomes: list[str] = []
    lake = tmp_path / "lake0"

    def replace_old() -> None:
        put(Store(lake), "new", delete=tuple(sorted(three("old"))))

    base = files_of_new_lake(tmp_path / "whole")
    put(Store(lake), "old")
    for i, _ in enumerate(crashes(replace_old), 1):
        seen = files(lake)  # by a reader that comes before anybody recovers the lake
        assert three("new") <= seen or "sources/new.parquet" not in seen
        Store(lake)
        found = files(lake) - base
        assert found in (three("old"), three("new"))
        assert staged(lake) == []
        outcomes.append("new" if "runs/new-0.parquet" in found else "old")
        lake = tmp_path / f"lake{i}"
        put(Store(lake), "old")
    assert set(outcomes) == {"old", "new"}
    # Once the journal is there, there is no way back.
    assert outcomes == sorted(outcomes, reverse=True)


def test_two_crashes_in_a_row(tmp_path: Path) -> None:
    """The recovery itself may be interrupted, anywhere."""
    lake = tmp_path / "lake"
    put(Store(lake), "old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", raising)
        store = Store(lake)
        with pytest.raises(Crash):
            put(store, "new", delete=tuple(sorted(three("old"))))
    assert len(staged(lake)) == 1
    for _ in crashes(lambda: open_again(lake)):
        pass
    assert files(lake) == files_of_new_lake(tmp_path / "whole") | three("new")
    assert staged(lake) == []


def open_again(lake: Path) -> None:
    Store(lake)


def raising(*_: Any, **__: Any) -> None:
    raise Crash


def test_the_ledger_round_trips(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction() as txn:
        rows = [ledger_row("a", rows={"rounds": 3}), ledger_row("b", surfaces={}, name="<b>", bytes=0)]
        ledger.write(rows, txn.path("sources/t.parquet"))
        txn.commit()
    found = ledger.read(tmp_path)
    assert [(e.source_id, e.name, e.bytes, e.file) for e in found.entries] == [
        ("a", "a.log", 10, "sources/t.parquet"),
        ("b", "<b>", 0, "sources/t.parquet"),
    ]
    assert found.sizes() == (10,)
    assert [found.has_size(size) for size in (10, 0, None)] == [True, False, False]
    assert [[e.source_id for e in found.of_bytes(digest)] for digest in ("aaaa", "no")] == [["a"], []]
    assert [e.source_id for e in found.grown_from({10: "aaaa", 5: "bbbb"})] == ["a"]
    assert found.grown_from({11: "aaaa", 0: "bbbb"}) == ()
    assert ledger.read(tmp_path).entries[0] is found.entries[0]  # of a file that has not changed
    kept = tmp_path / "kept.parquet"
    assert ledger.rewrite_without(tmp_path, "sources/t.parquet", ["a"], kept)
    assert pq.read_table(kept)["source_id"].to_pylist() == ["b"]
    assert not ledger.rewrite_without(tmp_path, "sources/t.parquet", ["a", "b"], tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()
    maps = duckdb.sql(f"select map_entries(surfaces), rows['rounds'] from '{tmp_path}/sources/t.parquet'").fetchall()
    assert maps == [([{"key": "vllm.v1_line", "value": 2}], 3), ([], None)]


def test_a_newer_lake_is_refused(tmp_path: Path) -> None:
    Store(tmp_path)
    ledger.write([ledger_row("a", schema_version=SCHEMA_VERSION + 1)], tmp_path / "sources" / "t.parquet")
    with pytest.raises(InputError, match="newer tracelens"):
        ledger.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 no PAR1", b"x" * 100])
def test_a_broken_ledger_is_named(tmp_path: Path, content: bytes) -> None:
    Store(tmp_path)
    (tmp_path / "sources" / "t.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"t\.parquet"):
        ledger.read(tmp_path)


def test_files_of_a_source(tmp_path: Path) -> None:
    put(Store(tmp_path), "one", "two")
    assert set(ledger.files_of(tmp_path, ["one"])) == three("one") - {"sources/one.parquet"}


def test_ledger_rows_are_read_again_where_their_file_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Store(tmp_path / "lake").root
    path, reads = root / "sources" / "abc-0.parquet", []
    real = ledger._rows
    monkeypatch.setattr(ledger, "_rows", lambda *a: reads.append(a[0]) or real(*a))
    for name, times in (("a.log", 1), ("a.log", 0), ("b.log", 1)):
        if times:
            ledger.write([{"source_id": "abc", "name": name, "sha256": "x", "schema_version": 1}], tmp_path / "new")
            (tmp_path / "new").replace(path)
        before = reads.count(str(path))
        assert [entry.name for entry in ledger.read(root).entries] == [name]
        assert reads.count(str(path)) - before == times
