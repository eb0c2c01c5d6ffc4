"""Redacted ids: the same hash by every road, the same joins and figures, and no way back without the salt."""

from __future__ import annotations

import hmac
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
import roads
from hypothesis import given
from hypothesis import strategies as st
from ingest_logs import interval, jsonl, log, received, response, run, start, table

from tracelens.analysis.report import report
from tracelens.analysis.session import Question
from tracelens.errors import InputError
from tracelens.ingest.labels import read_labels, read_rules
from tracelens.ingest.redact import Redaction, held
from tracelens.ingest.relabel import relabel
from tracelens.ingest.stage import stage
from tracelens.ingest.write import Job
from tracelens.lake import ledger
from tracelens.lake.connection import connect
from tracelens.lake.salt import VARIABLE, path_of

SALT = b"sixteen bytes, at least"
HASH = re.compile(r"(id|counter)-[0-9a-f]{32}")


@pytest.fixture(autouse=True)
def _no_salt_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def one(text: str) -> str:
    [found] = Redaction(SALT).series(pl.Series([text])).to_list()
    return str(found)


def in_duckdb(texts: list[str | None]) -> list[str | None]:
    expression, values = Redaction(SALT).sql("id")
    found = duckdb.execute(f"select {expression} from (select unnest($ids::varchar[]) as id)", values | {"ids": texts})
    return [row[0] for row in found.fetchall()]


def test_the_hash_is_the_hmac_of_the_key() -> None:
    expected = "id-" + hmac.digest(SALT, b"bench-5", "sha256").hex()[:32]
    assert {one(i) for i in ("bench-5", "chatcmpl-bench-5", "cmpl-bench-5-0", "chatcmpl-bench-5-0123abcd")} == {
        expected
    }
    assert one("17") == "counter-" + hmac.digest(SALT, b"17", "sha256").hex()[:32]
    assert one("12345").startswith("id-")
    assert one("") == "id-" + hmac.digest(SALT, b"", "sha256").hex()[:32]


PARTS = st.sampled_from(["chatcmpl-", "cmpl-", "-0", "-0123abcd", "\n", "12", "é", "", "id-", "a"])


@given(st.lists(st.lists(PARTS, max_size=5).map("".join) | st.none(), min_size=1, max_size=20))
def test_both_sides_hash_alike_and_once_is_enough(ids: list[str | None]) -> None:
    redaction = Redaction(SALT)
    mine = redaction.series(pl.Series(ids, dtype=pl.String)).to_list()
    assert mine == in_duckdb(ids)
    assert [m is None for m in mine] == [i is None for i in ids]
    assert all(HASH.fullmatch(m) for m in mine if m is not None)


@pytest.mark.parametrize("size", [16, 64, 65, 200])
def test_salts_of_any_length(size: int) -> None:
    redaction = Redaction(b"k" * size)
    expression, values = redaction.sql("'abc'")
    assert duckdb.execute(f"select {expression}", values).fetchall() == [(redaction.series(pl.Series(["abc"]))[0],)]


def test_the_salt_is_not_shown() -> None:
    assert SALT.decode() not in repr(Redaction(SALT))
    assert re.fullmatch("redacted:[0-9a-f]{8}", Redaction(SALT).mark)
    assert Redaction(SALT).mark != Redaction(SALT + b"x").mark


def rounds(n: int = 6, **more: Any) -> str:
    return roads.lines(
        *(
            {"record": "round", "ts": f"2026-05-06T12:00:{i:02d}Z", "request_id": f"chatcmpl-user-{i // 2}",
             "round_index": i % 2 + 1, "step_id": f"step-{i // 3}", "batch_size": 3, "drafted": 3, "accepted": i % 4,
             "emitted": i % 4 + 1} | more
            for i in range(n)
        )
    )  # fmt: skip


@pytest.mark.parametrize("text", [rounds(), rounds() + "{broken\n", rounds().replace("record", "kind")])
def test_every_road_writes_the_same(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def redacted(job: Job, *args: Any) -> Any:
        return stage(_with(job), *args)

    def _with(job: Job) -> Job:
        return Job(job.file, job.options, job.columns, (), {}, {}, job.staging, Redaction(SALT))

    monkeypatch.setattr(roads, "stage", redacted)
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    quick, _ = roads.agree(path, tmp_path / "staged")
    assert quick.rows("rounds")
    assert all(HASH.fullmatch(r["request_id"]) and HASH.fullmatch(r["step_id"]) for r in quick.rows("rounds"))
    assert {r["request_id"] for r in quick.rows("rounds")} == {one(f"user-{i}") for i in range(3)}


def site(folder: Path) -> Path:
    """A server's log, the responses beside it, and a request without an id."""
    folder.mkdir(parents=True)
    lines = [start(), *(received(f"chatcmpl-sum.{i}-0123abc{i}", temperature=i / 2) for i in range(3))]
    (folder / "server.log").write_text(log(*lines, interval("12:00:10"), interval("12:00:20")))
    (folder / "r.jsonl").write_text(jsonl(*(response(f"chatcmpl-sum.{i}", (1, 3, i)) for i in range(3))))
    (folder / "requests.jsonl").write_text(jsonl({"record": "request", "output_tokens": 9, "decode_ms": 80}))
    return folder


def labelled(lake: Path) -> list[Any]:
    rows = (r for name in ("requests", "rounds") for r in table(lake, name))
    return [(r["task_type"], r["temperature"], r["source_line"], r["surface"]) for r in rows if r["task_type"]]


def ids(lake: Path) -> set[str]:
    with_ids = [r["request_id"] for name in ("requests", "rounds") for r in table(lake, name)]
    return {i for i in with_ids if i is not None}


def text_of(lake: Path) -> bytes:
    """All that the files of a lake hold: as they are, and every cell."""
    paths = [p for p in lake.rglob("*") if p.is_file()]
    cells = [repr(pq.ParquetFile(p).read().to_pylist()).encode() for p in paths if p.suffix == ".parquet"]
    return b"".join([*(p.read_bytes() for p in paths), *cells])


def test_joins_labels_and_figures_are_those_of_the_ids(tmp_path: Path) -> None:
    logs = site(tmp_path / "logs")
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,task_type,team\nsum.0,chat,red\ncmpl-sum.1,code,blue\nsum.9,math,none\n")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[task]]\ntype = "late"\nrequest_id = "sum.2"\n')
    by = Question(by=("task_type", "temperature_bucket"))
    options: dict[str, Any] = {"labels": labels, "rules": rules, "run": "r"}
    plain, hashed = tmp_path / "plain", tmp_path / "hashed"
    assert run(plain, logs, **options).request_ids == "kept"
    assert run(hashed, logs, **options, redact_ids=True).request_ids == "redacted"
    found = report(hashed, by)
    assert repr(report(plain, by).strata) == repr(found.strata)
    assert found.contains == {"request_ids": "redacted"}
    with_id = {i for i in ids(hashed) if "#" not in i}
    assert len(with_id) == 3
    assert all(HASH.fullmatch(i) for i in with_id)
    assert {i for i in ids(hashed) if "#" in i} == {i for i in ids(plain) if "#" in i} != set()
    assert {i for i in ids(plain) if "#" not in i} > {"chatcmpl-sum.0"}
    assert b"sum.1" not in text_of(hashed)
    joined = "select task_type, records, temperature, output_tokens from requests_joined order by all"
    assert connect(plain, keep=True).execute(joined).fetchall() == connect(hashed, keep=True).execute(joined).fetchall()


def test_label_after_the_fact(tmp_path: Path) -> None:
    logs = site(tmp_path / "logs")
    labels = tmp_path / "labels.jsonl"
    labels.write_text(jsonl(*({"request_id": f"chatcmpl-sum.{i}", "task_type": f"t{i}"} for i in (0, 1, 7))))
    done = []
    for name in ("plain", "hashed"):
        run(tmp_path / name, logs, redact_ids=name == "hashed")
        done.append(relabel(tmp_path / name, read_labels(labels), ()))
    assert done[0] == done[1]
    assert done[1].unmatched == 1
    assert done[1].labels == 3
    assert labelled(tmp_path / "plain") == labelled(tmp_path / "hashed") != []
    rules = tmp_path / "tracelens.toml"
    rules.write_text('[[task]]\ntype = "x"\nrequest_id = "sum"\n')
    with pytest.raises(InputError, match="'x' looks at request ids, and those of the lake"):
        relabel(tmp_path / "hashed", None, read_rules(rules))
    relabel(tmp_path / "plain", None, read_rules(rules))


def test_the_salt_lies_beside_the_lake_for_its_owner_alone(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run(lake, site(tmp_path / "logs"), redact_ids=True)
    salt = path_of(lake)
    assert salt == tmp_path / "lake.redact-salt"
    assert len(salt.read_text().strip()) == 64
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".lake")]
    if os.name == "posix":
        assert stat.S_IMODE(salt.stat().st_mode) == 0o600
        salt.chmod(0o640)
        with pytest.raises(InputError, match=r"others can read .*chmod 600"):
            run(lake, tmp_path / "logs")


def test_a_redacted_lake_stays_one_whoever_forgets_the_option(tmp_path: Path) -> None:
    lake, logs = tmp_path / "lake", site(tmp_path / "logs")
    run(lake, logs / "server.log", redact_ids=True)
    assert run(lake, logs).request_ids == "redacted"
    assert b"sum.1" not in text_of(lake)
    assert {r["request_ids"] for r in table(lake, "sources")} == {Redaction(path_of(lake).read_bytes().strip()).mark}


def test_a_lake_that_kept_its_ids_is_told_to_be_mixed(tmp_path: Path) -> None:
    lake, logs = tmp_path / "lake", site(tmp_path / "logs")
    run(lake, logs / "server.log")
    assert run(lake, logs, redact_ids=True).request_ids == "mixed"
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,task_type\nsum.0,chat\n")
    assert relabel(lake, read_labels(labels), ()).unmatched == 0
    kept = [r["task_type"] for r in table(lake, "requests") if r["request_id"] == "chatcmpl-sum.0-0123abc0"]
    assert kept == ["chat"]
    assert held(ledger.read(lake)) == "mixed"
    assert run(lake, logs, redact_ids=True, replace=True).request_ids == "redacted"
    assert b"sum.1" not in text_of(lake)


def _without(lake: Path, patch: pytest.MonkeyPatch) -> None:
    path_of(lake).unlink()


def _another(lake: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(VARIABLE, "another salt than that")


@pytest.mark.parametrize(
    ("change", "said"), [(_without, "their salt is not here: put it back at"), (_another, "redacted with another salt")]
)
def test_a_lake_without_its_salt(
    tmp_path: Path, change: Callable[[Path, pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, logs = tmp_path / "lake", site(tmp_path / "logs")
    run(lake, logs, redact_ids=True)
    change(lake, monkeypatch)
    for redact_ids in (True, False):
        with pytest.raises(InputError, match=said):
            run(lake, logs, redact_ids=redact_ids, replace=True)
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,task_type\nsum.0,chat\n")
    with pytest.raises(InputError, match=said):
        relabel(lake, read_labels(labels), ())


def test_the_salt_of_the_environment_joins_lakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SALT.decode())
    logs = site(tmp_path / "logs")
    for name in ("a", "b"):
        run(tmp_path / name, logs, redact_ids=True)
        assert not path_of(tmp_path / name).exists()
    assert ids(tmp_path / "a") == ids(tmp_path / "b") >= {one("sum.0")}
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(InputError, match=f"the salt in .{VARIABLE} has 5 bytes"):
        run(tmp_path / "c", logs, redact_ids=True)


def test_counters_of_one_process_do_not_meet_across_runs(tmp_path: Path) -> None:
    """`7` of one server is not `7` of another, redacted or not."""
    found = []
    for name, redact_ids in (("plain", False), ("hashed", True)):
        for side, tokens in (("a", 9), ("b", 8)):
            path = tmp_path / f"{side}.jsonl"
            path.write_text(json.dumps({"record": "request", "request_id": "7", "output_tokens": tokens}) + "\n")
            run(tmp_path / name, path, run=side, redact_ids=redact_ids)
        found.append(
            connect(tmp_path / name, keep=True).execute("select count(*), max(records) from requests_joined").fetchall()
        )
    assert found == [[(2, 1)], [(2, 1)]]
