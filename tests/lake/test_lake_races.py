"""Readers in the middle of a commit: they see the lake before it or after it, whole, and are not disturbed by it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_states import files, staged

from tracelens.errors import InputError
from tracelens.lake import journal, ledger, locks, snapshot
from tracelens.lake.connection import connect
from tracelens.lake.schema import table
from tracelens.lake.snapshot import Reading, reading
from tracelens.lake.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="advisory locks")

OLD, NEW = [("old", 1), ("old", 2)], [("new", 1), ("new", 2), ("new", 3)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug, and who waits for somebody in this very thread waits in vain."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    monkeypatch.setattr(snapshot, "_PATIENCE", 0.0)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    put(tmp_path / "lake", "old", 2)
    return tmp_path / "lake"


def put(lake: Path, source: str, rows: int, *, instead_of: str | None = None) -> None:
    """A source with its rows in two days, runs and ledger; another one goes in the same commit."""
    store = Store(lake)
    with store.transaction() as txn:
        for i in range(rows):
            cells = {"source_id": source, "run_id": source, "engine": "generic", "surface": "s", "accepted": 1}
            write(
                "rounds",
                cells | {"round_index": i + 1},
                txn.path(f"rounds/date=2026-05-0{1 + i % 2}/{source}-{i}.parquet"),
            )
        write(
            "runs", {"run_id": source, "engine": "generic", "source_id": source}, txn.path(f"runs/{source}-0.parquet")
        )
        row = {"source_id": source, "name": source, "sha256": source, "bytes": rows, "schema_version": 1}
        row |= {"surfaces": {}, "rows": {"rounds": rows}, "also_named": [], "replaces": []}
        ledger.write([row], txn.path(f"sources/{source}.parquet"))
        gone = (*ledger.files_of(lake, [instead_of]), f"sources/{instead_of}.parquet") if instead_of else ()
        txn.commit(delete=gone)


def write(name: str, cells: dict[str, Any], path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([cells], schema=table(name).arrow_schema()), path)


def seen(con: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    """The rows, when runs and ledger speak of the same source as they do."""
    found = con.execute("select source_id, round_index from rounds order by all").fetchall()
    [(sources,)] = con.execute("select list(source_id order by 1) from sources").fetchall()
    [(runs,)] = con.execute("select list(run_id order by 1) from runs").fetchall()
    assert sources == runs == sorted({source for source, _ in found})
    return found


def read(lake: Path) -> list[tuple[Any, ...]]:
    """The same without the views, which take longer than all of the rest."""
    with reading(lake) as found:
        return rows_of(found)


def rows_of(found: Reading) -> list[tuple[Any, ...]]:
    rows, runs, sources = (
        [row for path in found.of(name) for row in pq.ParquetFile(path).read().to_pylist()]
        for name in ("rounds", "runs", "sources")
    )
    told = sorted((row["source_id"], row["round_index"]) for row in rows)
    assert sorted(r["source_id"] for r in sources) == sorted(r["run_id"] for r in runs) == sorted({s for s, _ in told})
    return told


@contextmanager
def pauses(act: Callable[[], None]) -> Iterator[list[str]]:
    """Do something before and after every step of a commit: make, rename, remove, wait for the disk."""
    steps: list[str] = []

    def paused(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            inside, steps_ = bool(busy), steps
            if not inside:
                busy.append(1)
                act()
                busy.clear()
            result = real(*args, **kwargs)
            if not inside:
                steps_.append(name)
                busy.append(1)
                act()
                busy.clear()
            return result

        return call

    busy: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            *((Path, n) for n in ("replace", "unlink", "write_text", "mkdir", "touch")),
            *((os, n) for n in ("fsync", "unlink", "rmdir")),
            (pq, "write_table"),
        ):
            patch.setattr(owner, name, paused(name, getattr(owner, name)))
        yield steps


def test_a_reader_at_every_step_of_a_commit_sees_the_old_lake_or_the_new_one(lake: Path) -> None:
    found: list[list[tuple[Any, ...]]] = []
    with pauses(lambda: found.append(read(lake))) as steps:
        put(lake, "new", 3, instead_of="old")
    assert len(steps) > 40
    assert {"replace", "unlink", "fsync", "rmdir"} <= set(steps)
    assert all(rows in (OLD, NEW) for rows in found)
    turn = next(i for i, rows in enumerate(found) if rows == NEW)
    assert all(rows == OLD for rows in found[:turn])
    assert all(rows == NEW for rows in found[turn:])
    assert 10 < turn < len(found) - 10
    assert staged(lake) == []


def test_a_reader_that_can_write_nothing_and_hold_nothing_sees_the_same(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is mounted to be read, and where there are no locks."""
    found: list[list[tuple[Any, ...]]] = []
    monkeypatch.setattr(locks, "shared", lambda path, patience: None)
    with pauses(lambda: found.append(read(lake))):
        put(lake, "new", 3, instead_of="old")
    assert all(rows in (OLD, NEW) for rows in found)
    assert found[0] == OLD
    assert found[-1] == NEW


def test_a_commit_while_files_are_listed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a reader that nobody knows of: what he has listed of one table is gone when he comes to the next."""
    real, left = journal._below, [1, 2, 3]

    def below(folder: str, name: str) -> list[tuple[str, str]]:
        found = real(folder, name)
        if name == "rounds" and left:
            n = left.pop(0)
            monkeypatch.setattr(journal, "_below", real)
            put(lake, f"s{n}", n, instead_of="old" if n == 1 else f"s{n - 1}")
            monkeypatch.setattr(journal, "_below", below)
        return found

    monkeypatch.setattr(locks, "shared", lambda path, patience: None)
    monkeypatch.setattr(journal, "_below", below)
    assert read(lake) == [("s3", 1), ("s3", 2), ("s3", 3)]
    assert left == []


@pytest.mark.parametrize("at", range(2, 100, 7))
@pytest.mark.long
def test_a_reader_that_begins_at_any_step_is_not_disturbed_by_the_rest(
    lake: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He asks once more when the commit is over, as the queries of a report do."""
    monkeypatch.setattr(snapshot, "_PATIENCE", 30.0)
    over = threading.Event()
    answers: list[list[tuple[Any, ...]]] = []
    readers: list[threading.Thread] = []
    count = [0]

    def look() -> None:
        with reading(lake) as found:
            answers.append(rows_of(found))
            over.wait(30)
            answers.append(rows_of(found))

    def begin() -> None:
        count[0] += 1
        if count[0] == at:
            readers.append(threading.Thread(target=look))
            readers[0].start()
            readers[0].join(0.3)  # he looks, or waits for the moves to be over

    with pauses(begin):
        put(lake, "new", 3, instead_of="old")
    over.set()
    readers[0].join()
    assert answers in ([OLD, OLD], [NEW, NEW])
    assert read(lake) == NEW


def test_what_waits_for_a_reader_is_moved_when_he_is_done(lake: Path) -> None:
    con = connect(lake, grouped=False)
    before = files(lake)
    put(lake, "new", 3, instead_of="old")
    put(lake, "more", 1)
    assert files(lake) == before  # a bare DuckDB sees the old lake, whole
    assert (seen(con), read(lake)) == (OLD, [("more", 1), *NEW])
    assert {e.source_id for e in ledger.read(lake).entries} == {"more", "new"}
    assert len(staged(lake)) == 2
    put(lake, "last", 1, instead_of="more")  # what lies in the staging area can go again
    con.close()
    del con
    assert staged(lake) == []
    bare = duckdb.sql(f"select source_id, round_index from '{lake}/rounds/**/*.parquet' order by all").fetchall()
    assert bare == read(lake) == [("last", 1), *NEW]
    assert duckdb.sql(f"select count(*) from '{lake}/runs/*.parquet'").fetchall() == [(2,)]


def test_a_crash_in_the_moves_is_no_loss_for_readers(lake: Path) -> None:
    """Nobody writes after it, and the lake may be one that nobody can write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", _killed_after(Path.replace, 3))
        with pytest.raises(KeyboardInterrupt):
            put(lake, "new", 3, instead_of="old")
    assert not list((lake / "rounds").rglob("old-*"))
    assert len(list((lake / "rounds").rglob("new-*"))) < 3
    copy = lake.parent / "copy"
    shutil.copytree(lake, copy)
    for path in sorted(copy.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (copy / ".staging").chmod(0o555)
    try:
        assert read(copy) == NEW
    finally:
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755)
    with reading(lake) as found:
        assert any(".staging" in path for path in found.of("rounds"))
    Store(lake)
    assert read(lake) == NEW
    assert staged(lake) == []


def _killed_after(real: Callable[..., Any], steps: int) -> Callable[..., Any]:
    left = [steps]

    def call(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*args)

    return call


def test_a_reader_who_never_ends_is_not_waited_for(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connect(lake, grouped=False)
    put(lake, "new", 3, instead_of="old")
    assert len(staged(lake)) == 1
    monkeypatch.setattr(journal, "LONGEST", -1.0)
    put(lake, "more", 1)
    assert staged(lake) == []
    with pytest.raises(duckdb.IOException, match="No files found"):
        seen(con)  # no figure at all rather than a wrong one
    assert read(lake) == [("more", 1), *NEW]
    monkeypatch.setattr(journal, "LONGEST", 1e9)
    put(lake, "again", 1)
    assert staged(lake) == []  # he holds a file that nobody looks at any more
    con.close()


def test_a_writer_that_hangs_in_its_moves_is_not_waited_for(lake: Path) -> None:
    stop = threading.Event()
    hangs = threading.Event()

    def hang(*_: Any) -> None:
        hangs.set()
        assert stop.wait(30)

    real = journal._finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_finish", lambda *args: (hang(), real(*args)))
        writer = threading.Thread(target=put, args=(lake, "new", 3), kwargs={"instead_of": "old"})
        writer.start()
        assert hangs.wait(30)
        assert read(lake) == NEW
        stop.set()
        writer.join()
    assert read(lake) == NEW


@pytest.mark.long
def test_reader_and_writer_at_full_speed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_PATIENCE", 3.0)
    over = threading.Event()
    faults: list[str] = []
    counts: list[int] = []

    def look() -> None:
        while not over.is_set():
            try:
                with reading(lake) as found:
                    first = rows_of(found)
                    counts.append(len(first))
                    if rows_of(found) != first:
                        faults.append("another lake in one reading")
            except Exception as error:
                faults.append(f"{type(error).__name__}: {error}")

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    last = "old"
    until = time.monotonic() + 4
    n = 0
    while n < 12 or (time.monotonic() < until and n < 100):
        put(lake, f"s{n}", 3 + n, instead_of=last)
        last, n = f"s{n}", n + 1
    over.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert len(counts) > 20
    assert counts[0] <= counts[-1]


def test_half_a_lake_is_said(tmp_path: Path, lake: Path) -> None:
    for name in ("rounds", "windows", "requests", "runs", "rejects"):
        shutil.rmtree(lake / name)
    with pytest.raises(InputError, match=r"not whole: no file in rounds/, .*rejects/.*Copy it again"):
        connect(lake)
    (tmp_path / "bare" / "sources").mkdir(parents=True)
    with pytest.raises(InputError, match="not whole"):
        connect(tmp_path / "bare")


def test_a_lake_that_may_not_be_read_is_said(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(journal, "live", refused)
    with pytest.raises(InputError, match="can't be read: Permission denied"):
        connect(lake)


def test_files_are_those_that_a_bare_duckdb_finds(lake: Path) -> None:
    (lake / "rounds" / "date=2026-05-01" / "deep" / "er").mkdir(parents=True)
    (lake / "rounds" / "date=2026-05-09.parquet").mkdir()
    source = next((lake / "rounds").rglob("old-0.parquet"))
    for place in ("top.parquet", "date=2026-05-01/deep/er/x.parquet", "date=2026-05-01/.hidden.parquet"):
        shutil.copy(source, lake / "rounds" / place)
    (lake / "rounds" / "date=2026-05-01" / "link.parquet").symlink_to(source)
    (lake / "rounds" / "folder").symlink_to(lake / "rounds" / "date=2026-05-01")
    (lake / "rounds" / "other.PARQUET").write_bytes(b"")
    bare = {path for (path,) in duckdb.sql(f"select file from glob('{lake}/rounds/**/*.parquet')").fetchall()}
    with reading(lake) as found:
        assert set(found.of("rounds")) == bare


def test_locks(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert locks.shared(path, 0.0) is None  # nothing is made by a reader
    alone = locks.exclusive(path, 0.0)
    assert alone is not None
    assert locks.shared(path, 0.0) is None
    assert locks.exclusive(path, 0.02) is None
    alone.release()
    alone.release()
    together = [locks.shared(path, 0.0) for _ in range(2)]
    assert all(together)
    assert locks.exclusive(path, 0.0) is None
    over = locks.take_over(path)
    assert locks.shared(path, 0.0) is None
    over.release()
    assert locks.exclusive(path, 0.0) is not None


@pytest.mark.parametrize("has", ["no staging area", "no file for readers", "a journal of an older version"])
def test_lakes_of_older_versions_and_copies(lake: Path, has: str) -> None:
    expected = OLD
    if has == "no staging area":
        shutil.rmtree(lake / ".staging")
    else:
        (lake / ".staging" / journal.READERS).unlink()
    if has == "a journal of an older version":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "settle", _raise)
            with pytest.raises(KeyboardInterrupt):
                put_once(lake)
        path = next((lake / ".staging").rglob("commit.json"))
        told = json.loads(path.read_text())
        path.write_text(json.dumps({"add": told["add"], "delete": told["delete"]}))
        expected = NEW
    assert read(lake) == expected
    con = connect(lake, grouped=False)
    assert seen(con) == expected
    con.close()
    put(lake, "more", 1)
    assert read(lake) == sorted([("more", 1), *expected])
    assert staged(lake) == []


def put_once(lake: Path) -> None:
    """Commit without moving anything, as a process that is killed just then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_recover", lambda store: None)
        put(lake, "new", 3, instead_of="old")


def _raise(*_: Any) -> None:
    raise KeyboardInterrupt


def test_where_there_are_no_locks(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows; one process at a time is the user's care there."""
    monkeypatch.setattr(locks, "fcntl", None)
    with reading(lake) as found:
        assert rows_of(found) == OLD
    put(lake, "new", 3, instead_of="old")
    assert read(lake) == NEW
    assert staged(lake) == []


def test_a_disk_without_locks(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(handle: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refused)
    assert locks.shared(lake / ".staging" / journal.READERS, 0.0) is None
    assert locks.exclusive(lake / ".staging" / journal.READERS, 0.0) is not None
    assert read(lake) == OLD
