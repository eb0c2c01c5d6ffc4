"""Sources taken out of a lake: of their own files and of shared ones, by name, and where files are gone."""

from __future__ import annotations

import datetime as dt
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import buckets
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tracelens.compact import plan
from tracelens.compact.run import compact
from tracelens.errors import InputError
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake import ledger
from tracelens.lake.bucket import Bucket
from tracelens.lake.connection import connect
from tracelens.lake.forget import Forgotten, forget_missing, forget_named
from tracelens.lake.schema import TABLES
from tracelens.lake.snapshot import reading
from tracelens.lake.store import EMPTY

LAKES = sorted((Path(__file__).parents[1] / "data" / "lakes").glob("*.zip"))
DAYS = ("2026-05-06", "2026-05-07")
AFTER = dt.date(2026, 5, 8)


def log(number: int, *, weight: float | None = None, task: str = "code") -> str:
    """Twenty rounds on each of two days, a request, and a record that is refused."""
    rounds = [
        {"record": "round", "ts": f"{day}T10:00:{i:02d}Z", "request_id": f"q{number}-{day}", "run_id": f"r{number}",
         "round_index": i, "drafted": 3, "accepted": i % 2, "emitted": i % 2 + 1, "step_us": 9000 + 100 * number + i,
         "task_type": task, "weight": weight}
        for day in DAYS for i in range(20)
    ]  # fmt: skip
    more = {"record": "request", "request_id": f"q{number}", "run_id": f"r{number}", "output_tokens": 5 + number}
    return "".join(json.dumps(r) + "\n" for r in (*rounds, more)) + '{"record":"round","drafted":-1,"accepted":2}\n'


ROWS = {"rounds": 40, "requests": 1, "runs": 1, "rejects": 1}


@pytest.fixture(params=["folder", "bucket"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A lake of three logs, each in files of its own."""
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(log(number))
    if request.param == "folder":
        read(tmp_path / "lake", *logs(tmp_path))
        yield tmp_path / "lake"
        return
    with buckets.in_memory() as root:
        read(root, *logs(tmp_path))
        yield root


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def read(lake: Path, *paths: Path) -> int:
    return ingest([str(p) for p in paths], lake, IngestOptions(jobs=1)).sources


def rows(lake: Path) -> dict[str, list[str]]:
    """Every row of every table as text, as a reader finds it."""
    found: dict[str, list[str]] = {}
    with reading(lake) as held:
        for table in TABLES:
            cells: list[dict[str, Any]] = []
            for name in (n for n in held.files if n.startswith(f"{table}/")):
                cells += pq.ParquetFile(held.files[name]).read().to_pylist()
            dull = {"ingested_at", "schema_version", "replaces"}
            found[table] = sorted(repr({k: v for k, v in c.items() if k not in dull}) for c in cells)
    return found


def names(lake: Path) -> list[str]:
    with reading(lake) as held:
        return sorted(held.files)


def remove(lake: Path, name: str) -> None:
    """Take a file away behind the lake's back."""
    if lake.is_absolute() or not str(lake).startswith("memory"):
        (lake / name).unlink()
        return
    from tracelens.lake.storage import storage_of

    Bucket(lake).delete(storage_of(lake).head().files[name].key)  # type: ignore[attr-defined]
    buckets.objects.objects_of.cache_clear()  # another process


def of(lake: Path, begin: str) -> str:
    """The one file of the lake whose name begins so, the empty ones left out."""
    [found] = [n for n in names(lake) if n.startswith(begin) and n not in EMPTY.values()]
    return found


def told(done: Forgotten) -> dict[str, dict[str, int]]:
    return {source.name: dict(source.rows) for source in done.sources}


def id_of(lake: Path, name: str) -> str:
    return next(e.source_id for e in ledger.read(lake).entries if e.name == name)


@pytest.mark.parametrize("packed", [None, "merged", "rolled"])
def test_what_is_forgotten_was_never_there_and_can_come_again(lake: Path, tmp_path: Path, packed: str | None) -> None:
    if packed:
        compact(lake, AFTER if packed == "rolled" else None)
    read(tmp_path / "other", tmp_path / "0.jsonl", tmp_path / "2.jsonl")
    if packed:
        compact(tmp_path / "other", AFTER if packed == "rolled" else None)
    before = rows(lake)
    would = forget_named(lake, ["1.jsonl"], dry_run=True)
    assert rows(lake) == before
    done = forget_named(lake, ["1.jsonl"])
    assert done == would
    assert told(done) == {"1.jsonl": ROWS}
    assert rows(lake) == rows(tmp_path / "other")
    assert any(n.rpartition("/")[2].startswith(packed or "merged") for n in names(lake)) == bool(packed)
    assert read(lake, tmp_path / "1.jsonl") == 1
    assert forget_missing(lake) == Forgotten()
    assert told(forget_named(lake, [id_of(lake, "1.jsonl"), "0.jsonl", "0.jsonl"])) == {
        "0.jsonl": ROWS,
        "1.jsonl": ROWS,
    }


def test_all_can_be_forgotten(lake: Path, tmp_path: Path) -> None:
    compact(lake)
    forget_named(lake, [f"{number}.jsonl" for number in range(3)])
    assert not any(rows(lake).values())
    assert names(lake) == sorted(EMPTY.values())
    assert read(lake, *logs(tmp_path)) == 3


def test_names_that_are_not_one_source(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1.jsonl").write_text(log(7))
    read(lake, tmp_path / "x" / "1.jsonl")
    before = rows(lake)
    with pytest.raises(
        InputError, match=r"^2 sources of the lake at .* are named 1.jsonl: name one by its id\n"
    ) as error:
        forget_named(lake, ["0.jsonl", "1.jsonl"])
    ids = [e.source_id for e in ledger.read(lake).entries if e.name == "1.jsonl"]
    assert str(error.value).splitlines()[1:] == [
        f"  {source}  40 rounds, 1 request, 1 run, 1 reject" for source in sorted(ids)
    ]
    with pytest.raises(InputError, match=r"no source 3.jsonl in the lake at .*: did you mean [012]\.jsonl or") as error:
        forget_named(lake, ["3.jsonl"])
    assert str(error.value).count("1.jsonl") <= 1  # two sources have that name
    with pytest.raises(InputError, match="`tracelens query sources` lists them"):
        forget_named(lake, ["quite another"])
    with pytest.raises(InputError) as error:
        forget_named(lake, ["x1", "0.jsonl", *(f"y{n}" for n in range(10))])
    told = str(error.value).splitlines()
    assert [line.split()[2] for line in told[:-1]] == ["x1", *(f"y{n}" for n in range(9))]
    assert told[-1] == "and 1 more"
    assert rows(lake) == before
    with pytest.raises(InputError, match="no lake at"):
        forget_named(tmp_path / "elsewhere", ["0.jsonl"])


def test_copies_of_what_is_forgotten_are_told(tmp_path: Path) -> None:
    lines = log(0).splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text(log(0))
    (tmp_path / "a-too.jsonl").write_text(log(0))
    (tmp_path / "b.jsonl").write_text("".join(lines[10:30]) + "{}\n")
    (tmp_path / "c.jsonl").write_text("".join(lines[20:30]) + "{} \n")
    lake = tmp_path / "lake"
    read(lake, tmp_path / "a.jsonl", tmp_path / "a-too.jsonl")
    read(lake, tmp_path / "b.jsonl")
    read(lake, tmp_path / "c.jsonl")
    [first] = [e for e in ledger.read(lake).entries if e.name.startswith("a")]
    other = {"a.jsonl": "a-too.jsonl", "a-too.jsonl": "a.jsonl"}[first.name]
    with pytest.raises(InputError, match=rf"{other} is in the lake at .* as {first.name}, whose copy it is"):
        forget_named(lake, [other])
    done = forget_named(lake, [first.name])
    assert [source.also_named for source in done.sources] == [(other,)]
    copies = {copy.name: (copy.of, copy.lines, copy.is_of_others) for copy in done.copies}
    assert copies == {"b.jsonl": (first.name, "1-20", False), "c.jsonl": (first.name, "1-10", True)}
    con = connect(lake)
    assert con.execute("select count(*) from rounds").fetchone() == (20,)  # b's own, and c's as b's
    con.close()


# ---------------------------------------------------------------- files that are gone


@pytest.mark.parametrize("table", ["rounds/date=2026-05-06", "runs"])
def test_a_file_that_is_gone_takes_its_source_along(lake: Path, tmp_path: Path, table: str) -> None:
    remove(lake, of(lake, f"{table}/{id_of(lake, '1.jsonl')}") if "date" in table else
           next(n for n in names(lake) if n.startswith(f"{table}/") and id_of(lake, "1.jsonl") in n))  # fmt: skip
    assert told(forget_missing(lake, dry_run=True)) == {"1.jsonl": ROWS}
    done = forget_missing(lake)
    assert told(done) == {"1.jsonl": ROWS}
    read(tmp_path / "other", tmp_path / "0.jsonl", tmp_path / "2.jsonl")
    assert rows(lake) == rows(tmp_path / "other")
    assert forget_missing(lake) == Forgotten()
    assert read(lake, tmp_path / "1.jsonl") == 1


@pytest.mark.parametrize("packed", ["merged", "rolled"])
def test_a_shared_file_that_is_gone_takes_all_of_its_sources_along(lake: Path, tmp_path: Path, packed: str) -> None:
    compact(lake, AFTER if packed == "rolled" else None)
    (tmp_path / "late.jsonl").write_text(log(9))
    read(lake, tmp_path / "late.jsonl")
    remove(lake, of(lake, f"rounds/date=2026-05-07/{packed}"))
    assert told(forget_missing(lake)) == dict.fromkeys(["0.jsonl", "1.jsonl", "2.jsonl"], ROWS)
    read(tmp_path / "other", tmp_path / "late.jsonl")
    assert rows(lake) == rows(tmp_path / "other")
    assert read(lake, *logs(tmp_path)) == 3


def test_a_bucket_that_lost_an_object_says_what_to_do_and_can_be_read_after_it(tmp_path: Path) -> None:
    with buckets.in_memory() as lake:
        for number in range(2):
            (tmp_path / f"{number}.jsonl").write_text(log(number))
        read(lake, *logs(tmp_path))
        lost = of(lake, f"rounds/date=2026-05-06/{id_of(lake, '0.jsonl')}")
        remove(lake, lost)
        with pytest.raises(InputError, match=r"is not there any more.*`tracelens forget --missing --lake memory://"):
            connect(lake)
        done = forget_missing(lake)
        assert (told(done), done.files) == ({"0.jsonl": ROWS}, (lost,))
        with connect(lake) as con:
            assert con.execute("select count(*) from rounds").fetchone() == (40,)
        assert buckets.leftovers(lake) == set()


def test_a_bucket_that_lost_a_file_of_the_ledger(tmp_path: Path) -> None:
    """What it listed is unknown; its rows are those of no source that is."""
    with buckets.in_memory() as lake:
        for number in range(3):
            (tmp_path / f"{number}.jsonl").write_text(log(number))
            read(lake, tmp_path / f"{number}.jsonl")
        compact(lake)
        (tmp_path / "late.jsonl").write_text(log(9))
        read(lake, tmp_path / "late.jsonl")
        compacted = next(n for n in names(lake) if n.startswith("sources/") and "-" in n)
        remove(lake, compacted)
        remove(lake, EMPTY["runs"])
        done = forget_missing(lake)
        assert (done.sources, done.unlisted, done.files) == ((), 3, (EMPTY["runs"], compacted))
        read(tmp_path / "other", tmp_path / "late.jsonl")
        assert rows(lake) == rows(tmp_path / "other")
        assert EMPTY["runs"] in names(lake)
        assert buckets.leftovers(lake) == set()
        assert read(lake, *logs(tmp_path)) == 3


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_that_lost_a_file_of_the_ledger(packed: bool, tmp_path: Path) -> None:
    """Nothing names it there; rows of no source that is listed tell of it."""
    lake = tmp_path / "lake"
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(log(number))
        read(lake, tmp_path / f"{number}.jsonl")
    if packed:
        compact(lake)
        (tmp_path / "2.jsonl").write_text(log(9))
        read(lake, tmp_path / "2.jsonl")
    kept = id_of(lake, "2.jsonl") if not packed else id_of(lake, "0.jsonl")
    gone = next(e.file for e in ledger.read(lake).entries if e.source_id == kept)
    remove(lake, gone)
    left = {e.source_id for e in ledger.read(lake).entries}
    assert len(left) == (1 if packed else 2)
    done = forget_missing(lake)
    assert (done.sources, done.unlisted, done.files) == ((), 3 if packed else 1, ())
    assert {row["source_id"] for row in cells(lake, "rounds")} == left
    assert forget_missing(lake) == Forgotten()
    read(lake, *logs(tmp_path))
    assert len(cells(lake, "rounds")) == 3 * ROWS["rounds"]


def cells(lake: Path, table: str) -> list[dict[str, Any]]:
    with reading(lake) as held:
        files = [path for name, path in held.files.items() if name.startswith(f"{table}/")]
        return [row for path in files for row in pq.ParquetFile(path).read(["source_id"]).to_pylist()]


def test_a_name_forges_no_line(tmp_path: Path) -> None:
    (tmp_path / "b\nError: x.jsonl").write_text(log(1))
    read(tmp_path / "lake", tmp_path / "b\nError: x.jsonl")
    with pytest.raises(InputError) as error:
        forget_named(tmp_path / "lake", ["b\nError: y.jsonl"])
    assert "\n" not in str(error.value)
    assert r"did you mean b\nError: x.jsonl" in str(error.value)


def test_weights_that_hide_a_loss_are_told(tmp_path: Path) -> None:
    """Rounds of weight 10: two days rolled up stand for 400, and what is left of one for more than 40."""
    with buckets.in_memory() as lake:
        (tmp_path / "w.jsonl").write_text(log(0, weight=10.0))
        (tmp_path / "plain.jsonl").write_text(log(1))
        read(lake, *logs(tmp_path))
        compact(lake, AFTER)
        remove(lake, of(lake, "rounds/date=2026-05-07/rolled"))
        done = forget_missing(lake)
        assert (told(done), done.unsure) == ({"plain.jsonl": ROWS}, ("w.jsonl",))
        assert told(forget_named(lake, ["w.jsonl"])) == {"w.jsonl": ROWS}


def test_rolled_up_rows_of_no_source_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text(log(number))
    lake = tmp_path / "lake"
    read(lake, *logs(tmp_path))
    compact(lake, AFTER)
    name = of(lake, "rounds/date=2026-05-06/rolled")
    table = pq.ParquetFile(lake / name).read()
    nobody = pc.if_else(pc.equal(table["run_id"], "r1"), pa.scalar(None, pa.string()), table["source_id"])
    pq.write_table(table.set_column(table.schema.get_field_index("source_id"), "source_id", nobody), lake / name)
    before = rows(lake)
    with pytest.raises(InputError, match=r"rolled-up rounds that say of no source.*remove that file"):
        forget_named(lake, ["0.jsonl"])
    assert rows(lake) == before
    remove(lake, name)
    assert set(told(forget_missing(lake))) == {"0.jsonl", "1.jsonl"}


def test_whole_lakes_miss_nothing(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often they were merged and rolled up; files of another writer are none of ours."""
    monkeypatch.setattr(plan, "_ENOUGH", 2)
    (tmp_path / "w.jsonl").write_text(log(5, weight=2.5))
    read(lake, *logs(tmp_path))
    for until in (None, AFTER - dt.timedelta(days=1), AFTER):
        compact(lake, until)
        before = names(lake)
        assert forget_missing(lake) == Forgotten()
        assert names(lake) == before


@pytest.mark.parametrize("packed", LAKES, ids=lambda p: p.stem)
def test_lakes_of_older_versions_miss_nothing(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "lake")
    (tmp_path / "lake" / "report.json").unlink()
    assert forget_missing(tmp_path / "lake") == Forgotten()
    name = ledger.read(tmp_path / "lake").entries[0].source_id
    assert [s.source_id for s in forget_named(tmp_path / "lake", [name]).sources] == [name]


def test_whatever_is_killed_in_a_bucket_the_source_is_there_or_not(tmp_path: Path) -> None:
    with buckets.in_memory() as lake:
        for number in range(2):
            (tmp_path / f"{number}.jsonl").write_text(log(number))
        read(lake, *logs(tmp_path))
        compact(lake)
        before = rows(lake)
        read(tmp_path / "other", tmp_path / "0.jsonl")
        after = rows(tmp_path / "other")
        for number in buckets.crashes(lambda: forget_named(lake, ["1.jsonl"]), buckets.step(7)):
            assert rows(lake) in (before, after), number
            if rows(lake) == before:
                forget_named(lake, ["1.jsonl"])
            assert rows(lake) == after, number
            read(lake, tmp_path / "1.jsonl")
            assert buckets.leftovers(lake) == set(), number
            before = rows(lake)
