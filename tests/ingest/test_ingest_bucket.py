"""Ingest, label, watch and forget into a lake in a bucket: the rows of a folder, whatever is killed in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import buckets
import polars as pl
import pyarrow.parquet as pq
import pytest
from ingest_logs import interval, jsonl, log, received, response
from watches import add, look, watching

from tracelens.ingest.options import IngestOptions
from tracelens.ingest.relabel import relabel
from tracelens.ingest.run import ingest
from tracelens.lake import connection, mirror, objects
from tracelens.lake.bucket_errors import AwayError
from tracelens.lake.forget import forget
from tracelens.lake.schema import TABLES
from tracelens.lake.snapshot import reading
from tracelens.lake.store import Store

_VOLATILE = {"ingested_at", "replaces"}


@pytest.fixture
def lake() -> Iterator[Path]:
    with buckets.in_memory() as root:
        yield root


def rows(lake: Path) -> dict[str, list[str]]:
    """Every row as text, as a reader finds it."""
    found: dict[str, list[str]] = {}
    with reading(lake) as held:
        for table in TABLES:
            cells: list[dict[str, Any]] = []
            for name in held.files:
                if name.startswith(f"{table}/"):
                    cells += pq.ParquetFile(held.files[name]).read().to_pylist()
            found[table] = sorted(repr({k: v for k, v in c.items() if k not in _VOLATILE}) for c in cells)
    return found


def read(lake: Path, *paths: Path, **options: Any) -> None:
    ingest([str(p) for p in paths], lake, IngestOptions(**({"jobs": 1} | options)))


def test_everything_that_writes_does_as_in_a_folder(lake: Path, tmp_path: Path) -> None:
    """Each step in both, and the same rows after it."""
    server, answers, folder = tmp_path / "server.log", tmp_path / "r.jsonl", tmp_path / "lake"
    labels = pl.DataFrame({"_key": ["sum.1"], "task_type": ["code"], "team": ["a"]})

    def both(act: Any) -> None:
        for place in (folder, lake):
            act(place)
        assert rows(lake) == rows(folder)
        assert buckets.leftovers(lake) == set()

    server.write_text(log(received("chatcmpl-sum.1"), interval("12:01:00")))
    answers.write_text(jsonl(response("chatcmpl-sum.1"), {"num_spec_steps": "x"}, response("b", (1,))))
    both(lambda place: read(place, server, answers))
    add(server, interval("12:02:00", accepted=3))
    both(lambda place: read(place, server, answers))
    copy = tmp_path / "copy.log"
    copy.write_text("an other beginning\n" + server.read_text())
    both(lambda place: read(place, copy))
    both(lambda place: relabel(place, labels, ()))
    both(lambda place: read(place, answers, replace=True, role="speculative"))
    source = reading_sources(lake)[0]
    both(lambda place: forget(Store(place), [source]))
    assert len(reading_sources(lake)) == 2


def reading_sources(lake: Path) -> list[str]:
    with reading(lake, ("sources",)) as held:
        return sorted(str(s) for n in held.files for s in pq.ParquetFile(held.files[n]).read()["source_id"].to_pylist())


def test_whatever_is_killed_the_same_ingest_gives_the_rows_once(lake: Path, tmp_path: Path) -> None:
    server, calm = tmp_path / "server.log", tmp_path / "calm"
    server.write_text(log(received("chatcmpl-sum.1"), interval("12:01:00")))
    read(lake, server)
    before = rows(lake)
    add(server, interval("12:02:00", accepted=3))
    read(calm, server)
    after = rows(calm)
    for number in buckets.crashes(lambda: read(lake, server), buckets.step(9)):
        assert rows(lake) in (before, after), number
        read(lake, server)
        assert rows(lake) == after, number
        assert buckets.leftovers(lake) == set(), number
        read(lake, server)
        assert rows(lake) == after, number
        forget(Store(lake), reading_sources(lake))
        before = rows(lake)  # from the second on, an ingest into a lake that holds nothing of it


def test_a_watched_log_grows_in_a_bucket(lake: Path, tmp_path: Path) -> None:
    server = tmp_path / "server.log"
    server.write_text(log(received("chatcmpl-sum.1"), interval("12:01:00")))
    watcher = watching(lake, server)
    assert look(watcher).read
    add(server, interval("12:02:00", accepted=3))
    assert look(watcher).read
    read(tmp_path / "fresh", server)
    assert rows(lake) == rows(tmp_path / "fresh")
    with buckets.counted() as asked:
        assert not look(watcher).read
    assert not any(asked[name] for name in buckets.CHANGING)
    add(server, interval("12:03:00", accepted=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets.Bucket, "list", away)
        seen = look(watcher)
    assert not seen.read
    assert [note for _, note in seen.notes] == ["nothing was read, the next look tries again: the bucket is away"]
    assert look(watcher).read


def away(*_: Any) -> None:
    raise AwayError("the bucket is away")


def test_a_report_during_an_ingest_sees_the_lake_before_it_or_after_it(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that it has not fetched yet is replaced meanwhile, moved twice, and still the one that it has listed."""
    monkeypatch.setattr(mirror, "TAIL", 16384)
    monkeypatch.setattr(mirror, "TINY", 0)
    log_file = tmp_path / "day1.jsonl"
    line = '{{"request_id": "r{0}", "ts": "2026-05-01T10:{1:02d}:00Z", "accepted": 1, "drafted": 3, "draft_us": {2}}}\n'
    log_file.write_text("".join(line.format(i, i % 60, i * 7919 % 9973) for i in range(4000)))
    read(lake, log_file)
    objects.objects_of.cache_clear()
    con = connection.connect(lake, grouped=False)
    with buckets.counted() as asked:
        add(log_file, line.format("more", 1, 1).strip())
        objects.objects_of.cache_clear()  # another process
        read(lake, log_file)
        add(log_file, line.format("most", 1, 1).strip())
        read(lake, log_file)
        counts = "select (select sum(accepted) from rounds), (select count(*) from sources where bytes > 0)"
        assert con.execute(counts).fetchone() == (4000, 1)
    assert any(key.startswith(".retired/rounds/") for key in asked["fetch"])
    con.close()
    with connection.connect(lake, grouped=False) as con:
        assert con.execute(counts).fetchone() == (4002, 1)
