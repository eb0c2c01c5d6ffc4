"""A lake in a bucket: commits that are there or not, whoever is killed and whoever else writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import buckets
import pytest

from tracelens.errors import InputError
from tracelens.lake import journal, lease, objects
from tracelens.lake.bucket import Bucket
from tracelens.lake.connection import connect
from tracelens.lake.lease import LostLeaseError
from tracelens.lake.manifest import Object, commit_key, encode, newest, object_key
from tracelens.lake.schema import TABLES
from tracelens.lake.snapshot import reading
from tracelens.lake.store import Store, is_lake

DAY = "rounds/date=2026-05-06"


@pytest.fixture
def lake() -> Iterator[Path]:
    with buckets.in_memory() as root:
        yield root


def put(lake: Path, **sources: str) -> None:
    """A round file and a ledger file a source; what it says stands for its rows."""
    store = Store(lake)
    with store.transaction() as txn:
        for source, says in sources.items():
            txn.path(f"{DAY}/{source}-0.parquet").write_text(says)
            txn.path(f"sources/{source}.parquet").write_text(says)
        txn.commit()


def drop(lake: Path, *sources: str, **instead: str) -> None:
    store = Store(lake)
    with store.transaction() as txn:
        for source, says in instead.items():
            txn.path(f"{DAY}/{source}-0.parquet").write_text(says)
            txn.path(f"sources/{source}.parquet").write_text(says)
        txn.commit(delete=tuple(n for s in sources for n in (f"{DAY}/{s}-0.parquet", f"sources/{s}.parquet")))


def seen(lake: Path, table: str = "rounds") -> list[str]:
    """What a reader finds: the contents of the files of sources."""
    with reading(lake, (table,)) as held:
        return sorted(Path(p).read_text() for n, p in held.files.items() if not n.endswith("empty.parquet"))


def seen_bare(lake: Path) -> list[str]:
    found = buckets.bare(lake)
    return sorted(v.decode() for k, v in found.items() if k.startswith(f"{DAY}/") and "empty" not in k)


def test_a_new_lake_has_a_file_a_table_and_nothing_else(lake: Path) -> None:
    assert not is_lake(lake)
    Store(lake)
    assert is_lake(lake)
    assert {key.partition("/")[0] for key in buckets.bare(lake)} == set(TABLES)
    assert buckets.leftovers(lake) == set()
    connect(lake).close()


def test_a_commit_is_seen_by_readers_and_by_a_bare_listing(lake: Path) -> None:
    put(lake, a="one", b="two")
    drop(lake, "a", c="three")
    put(lake, b="two again")
    assert seen(lake) == seen(lake, "sources") == seen_bare(lake) == ["three", "two again"]
    assert set(journal.live(lake, ("rounds",))) > {f"{DAY}/b-0.parquet", f"{DAY}/c-0.parquet"}
    assert buckets.leftovers(lake) == set()


def test_a_store_that_has_nothing_to_do_asks_little_and_writes_nothing(lake: Path) -> None:
    Store(lake)
    with buckets.counted() as asked:
        Store(lake)
    assert not any(asked[name] for name in buckets.CHANGING)
    assert len(asked["list"]) + len(asked["get"]) <= 3


def test_the_first_commit_is_all_or_nothing(lake: Path) -> None:
    for number in buckets.crashes(lambda: put(lake, a="one"), buckets.step(5)):
        assert seen_or_none(lake) in ([], ["one"]), number
        assert seen_bare(lake) in ([], ["one"]), number
        put(lake, a="one")
        assert seen(lake) == seen_bare(lake) == ["one"], number
        assert buckets.leftovers(lake) == set(), number
        clear(lake)


@pytest.mark.parametrize("act", ["replace", "drop", "both"])
def test_a_commit_that_takes_files_away_is_all_or_nothing(lake: Path, act: str) -> None:
    before, after = ["old", "other"], {"replace": ["new", "other"], "drop": ["other"], "both": ["new", "other"]}[act]
    run = {"replace": lambda: put(lake, a="new"), "drop": lambda: drop(lake, "a"),
           "both": lambda: drop(lake, "a", c="new")}[act]  # fmt: skip
    put(lake, a="old", b="other")
    told: list[list[str]] = []
    for number in buckets.crashes(run, buckets.step(2)):
        told.append(seen(lake))
        assert told[-1] in (before, after), number
        assert seen(lake, "sources") == told[-1], number
        # Moved one after the other, the old ones first: some may be missing, none is there twice, none uncommitted.
        bare = seen_bare(lake)
        assert set(bare) <= set(told[-1]) | (set(before) if told[-1] == after else set()), number
        assert not {"old", "new"} <= set(bare), number
        Store(lake)._recover()
        assert seen(lake) == seen_bare(lake) == told[-1], number
        assert buckets.leftovers(lake) == set(), number
        if told[-1] == after:
            clear(lake)
            put(lake, a="old", b="other")
    assert before in told
    assert after in told


def test_two_crashes_in_a_row(lake: Path) -> None:
    put(lake, a="old")
    for _ in buckets.crashes(lambda: put(lake, a="new"), buckets.step(4)):
        for _ in buckets.crashes(lambda: Store(lake), buckets.step(3)):
            assert seen(lake) in (["old"], ["new"])
        assert seen(lake) == seen_bare(lake)
        Store(lake)._recover()
        assert buckets.leftovers(lake) == set()
        put(lake, a="old")


def test_a_request_whose_answer_was_lost_is_known_as_our_own(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library sends it again, and the store says that there is one."""
    Store(lake)
    fs = type(Bucket(lake)._fs)
    real = fs.pipe_file

    def twice(self: Any, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        real(self, path, value, mode=mode, **more)
        if mode == "create":
            real(self, path, value, mode=mode, **more)

    monkeypatch.setattr(fs, "pipe_file", twice)
    put(lake, a="one")
    assert seen(lake) == ["one"]


def test_writers_at_once_lose_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 5.0)  # they wait for each other, and none is given up
    trouble: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for i in range(3):
                put(lake, **{f"{name}{i}": f"{name}{i}"})
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []
    assert seen(lake) == seen_bare(lake) == sorted(f"{name}{i}" for name in "xyz" for i in range(3))
    assert buckets.leftovers(lake) == set()


def paused(lake: Path, monkeypatch: pytest.MonkeyPatch, at: str, meanwhile: Any) -> None:
    """Commit, and let others do something in the middle of it, while this one gives no sign of life."""
    monkeypatch.setattr(lease, "BEAT", 1000.0)
    real, first = getattr(Bucket, at), [True]

    def slow(bucket: Bucket, key: str, *args: Any) -> Any:
        if first[0] and (key.startswith(".commits/") or at != "create"):
            first[0] = False
            meanwhile()
        return real(bucket, key, *args)

    store = Store(lake)
    monkeypatch.setattr(Bucket, at, slow)
    with store.transaction() as txn:
        txn.path(f"{DAY}/slow-0.parquet").write_text("slow")
        txn.path("sources/slow.parquet").write_text("slow")
        txn.commit()


@pytest.mark.parametrize("at", ["upload", "create"])
@pytest.mark.parametrize("others", ["commit", "look"])
def test_a_writer_that_slept_too_long_commits_nothing_and_breaks_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch, at: str, others: str
) -> None:
    """Another one took over, cleared away what was staged, and had something to commit or nothing."""
    put(lake, a="one")

    def meanwhile() -> None:
        if others == "commit":
            put(lake, b="two")
        else:
            Store(lake)._recover()

    with pytest.raises(LostLeaseError, match="nothing was written"):
        paused(lake, monkeypatch, at, meanwhile)
    expected = ["one", "two"] if others == "commit" else ["one"]
    assert seen(lake) == seen_bare(lake) == expected
    Store(lake)._recover()
    assert buckets.leftovers(lake) == set()
    put(lake, c="three")
    assert seen(lake) == sorted([*expected, "three"])


def test_a_commit_in_the_place_of_one_that_was_tidied_away_is_none(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So long a sleep, right before the manifest, that the others' manifests of that number are gone again."""
    monkeypatch.setattr(objects, "KEEP", -1000.0)
    put(lake, a="one")

    def meanwhile() -> None:
        for i in range(5):
            put(lake, **{f"b{i}": f"b{i}"})
        assert commit_key(number) not in buckets.keys(lake)

    number = newest(Bucket(lake)).number + 1
    with pytest.raises(LostLeaseError):
        paused(lake, monkeypatch, "create", meanwhile)
    assert seen(lake) == ["b0", "b1", "b2", "b3", "b4", "one"]
    assert commit_key(number) not in buckets.keys(lake)


def test_a_reader_keeps_what_he_has_listed(lake: Path) -> None:
    put(lake, a="old")
    with reading(lake, ("rounds",)) as held:
        put(lake, a="new")
        drop(lake, "a", b="other")
        assert Path(held.files[f"{DAY}/a-0.parquet"]).read_text() == "old"
    assert seen(lake) == ["other"]


def test_what_was_replaced_is_kept_for_an_hour_and_then_removed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(lake, a="old")
    put(lake, a="new")
    assert sum(key.startswith(".retired/") for key in buckets.keys(lake)) == 2
    with reading(lake, ("rounds",)) as held:
        monkeypatch.setattr(objects, "KEEP", -1000.0)
        put(lake, a="newer")
        put(lake, a="newest")
        with pytest.raises(InputError, match=r"not there any more.*rounds/date=.*run the command again"):
            print(held.files[f"{DAY}/a-0.parquet"])
    kept = buckets.keys(lake)
    assert sum(key.startswith(".retired/") for key in kept) == 0
    assert sum(key.startswith(".commits/") for key in kept) == 3


def test_an_object_is_fetched_once_and_gone_when_the_lake_has_left_it(lake: Path) -> None:
    put(lake, a="one", b="two")
    assert seen(lake) == ["one", "two"]
    with buckets.counted() as asked:
        assert seen(lake) == ["one", "two"]
    assert asked["fetch"] == []
    folder = objects.objects_of(lake).mirror.folder
    assert folder.stat().st_mode & 0o077 == 0 or folder.parent.stat().st_mode & 0o077 == 0
    put(lake, a="three")
    assert seen(lake) == ["three", "two"]
    assert len(list((folder / DAY).glob("a-*"))) == 1


def test_a_lake_that_was_copied_into_a_bucket_is_one(lake: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    with store.transaction() as txn:
        txn.path(f"{DAY}/a-0.parquet").write_text("one")
        txn.path("sources/a.parquet").write_text("one")
        txn.commit()
    bucket = Bucket(lake)
    for path in (tmp_path / "lake").rglob("*.parquet"):
        bucket.upload(path.relative_to(tmp_path / "lake").as_posix(), path)
    assert is_lake(lake)
    assert seen(lake) == ["one"]
    put(lake, b="two")
    put(lake, a="one again")
    assert seen(lake) == seen_bare(lake) == ["one again", "two"]


def test_a_prefix_with_other_objects_is_no_lake(lake: Path) -> None:
    Bucket(lake).put("notes.txt", b"mine")
    with pytest.raises(InputError, match="holds other objects than a lake's"):
        Store(lake)
    assert buckets.keys(lake) == {"notes.txt"}
    with pytest.raises(InputError, match="no lake at memory://bucket/lake: run `tracelens ingest"):
        connect(lake)


def test_a_store_that_overwrites_is_refused(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = type(Bucket(lake)._fs)
    real = fs.pipe_file
    monkeypatch.setattr(fs, "pipe_file", lambda self, path, value, mode="": real(self, path, value))
    with pytest.raises(InputError, match="does not know writes that do not overwrite"):
        Store(lake)
    assert buckets.keys(lake) == set()


@pytest.mark.parametrize("content", [b"", b"{}", b"no gzip"])
def test_a_broken_manifest_is_named(lake: Path, content: bytes) -> None:
    put(lake, a="one")
    Bucket(lake).put(commit_key(99), content)
    with pytest.raises(InputError, match=r"\.commits can't be read"):
        seen(lake)


@pytest.mark.parametrize("key", ["rounds/../../../x.parquet", "../x.parquet", "/x.parquet", "elsewhere/x.parquet"])
def test_nothing_is_written_outside_of_the_private_folder(lake: Path, key: str) -> None:
    """A bucket is somebody else's word: a manifest that leads out of the folder is refused before anything is read."""
    put(lake, a="one")
    head = newest(Bucket(lake))
    files = {**head.files, f"{DAY}/a-0.parquet": Object(key, 3)}
    Bucket(lake).put(commit_key(head.number + 1), encode(replace(head, number=head.number + 1, files=files)))
    with pytest.raises(InputError, match="names a file outside of its tables"):
        seen(lake)


def test_a_file_s_key_tells_its_source() -> None:
    key = object_key("rounds/date=2026-05-06/0123-0.parquet", "ab" * 16)
    assert key == "rounds/date=2026-05-06/0123-0-abababababab.parquet"


def seen_or_none(lake: Path) -> list[str]:
    return seen(lake) if is_lake(lake) else []


def clear(lake: Path) -> None:
    bucket = Bucket(lake)
    for key in bucket.list():
        bucket.delete(key)
    objects.objects_of.cache_clear()
