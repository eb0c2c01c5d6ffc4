"""What is there in several forms counts once: copies, overlaps, wrappings, gateways; and the ledger says why."""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_logs import interval, jsonl, log, response, run, start, table

from tracelens.cli import run as cli
from tracelens.lake.connection import connect
from tracelens.lake.forget import forget
from tracelens.lake.store import Store

TOTALS = (
    "select sum(rounds)::bigint, sum(plain_steps)::bigint, sum(drafted)::bigint, sum(accepted)::bigint,"
    " sum(emitted)::bigint, sum(output_tokens)::bigint, sum(step_us * step_share)::bigint from facts"
)
INTERVALS = [interval(f"12:{1 + i // 6:02d}:{10 * (i % 6):02d}", 100 + 7 * i % 90, 300 + i) for i in range(40)]
SERVER = log(start(), *INTERVALS).encode()
ANSWERS = jsonl(
    *(response(f"chatcmpl-r{i:04d}", (i % 4, 3, i % 3), created=1_778_068_800 + 7 * i) for i in range(30))
).encode()


def round_record(i: int, **more: Any) -> dict[str, Any]:
    return {"record": "round", "run_id": "r", "engine": "e", "request_id": f"req-{i // 8:04d}", "round_index": i % 8,
            "ts": f"2026-05-06T12:{i // 600:02d}:{i // 10 % 60:02d}.{i % 10}00000Z", "drafted": 4, "accepted": i % 5,
            "emitted": i % 5 + 1, "step_ms": 20 + i * 0.013, "batch_size": 1} | more  # fmt: skip


ROUNDS = jsonl(*(round_record(i) for i in range(200))).encode()
NO_STAMPS = jsonl(
    *({k: v for k, v in round_record(i).items() if k not in ("ts", "step_ms")} for i in range(200))
).encode()
LOGS = {"server": SERVER, "answers": ANSWERS, "rounds": ROUNDS}


def totals(lake: Path) -> tuple[Any, ...]:
    con = connect(lake, keep=True)
    try:
        return con.execute(TOTALS).fetchall()[0]
    finally:
        con.close()


def lines(content: bytes, first: float = 0.0, last: float = 1.0) -> bytes:
    """The lines from one share of a log to another."""
    every = content.splitlines(keepends=True)
    return b"".join(every[round(first * len(every)) : round(last * len(every))])


def docker(content: bytes, stamp: Callable[[int], dict[str, str]] = lambda i: {}) -> bytes:
    """The log as docker keeps it."""
    every = content.decode().splitlines(keepends=True)
    return jsonl(*({"log": line, "stream": "stdout"} | stamp(i) for i, line in enumerate(every))).encode()


def put(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[bytes, tuple[Any, ...]]:
    """What each log gives by itself."""
    found = {}
    for content in (*LOGS.values(), NO_STAMPS):
        folder = tmp_path_factory.mktemp("alone")
        run(folder / "lake", put(folder / "logs", "a.log", content))
        found[content] = totals(folder / "lake")
    return found


# ---------------------------------------------------------------- the same text: one source

SAME_TEXT: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda b: b,
    "gzip": gzip.compress,
    "CRLF": lambda b: b.replace(b"\n", b"\r\n"),
    "CRLF, gzip": lambda b: gzip.compress(b.replace(b"\n", b"\r\n")),
    "BOM": lambda b: codecs.BOM_UTF8 + b,
    "BOM, CRLF": lambda b: codecs.BOM_UTF8 + b.replace(b"\n", b"\r\n"),
    "UTF-16": lambda b: b.decode().encode("utf-16"),
}


@pytest.mark.parametrize("how", SAME_TEXT)
def test_the_same_text_is_the_same_source(tmp_path: Path, how: str) -> None:
    """Even where no record has a stamp, an id of its own or a time."""
    at_once = how in ("CRLF", "UTF-16")
    one = put(tmp_path, "a.jsonl", NO_STAMPS)
    two = put(tmp_path, "copy/b.jsonl", SAME_TEXT[how](NO_STAMPS))
    found = [run(tmp_path / "lake", one, two)] if at_once else [run(tmp_path / "lake", p) for p in (one, two)]
    assert [name for name, _ in found[-1].notes] == ["b.jsonl"]
    assert "already in the lake (as a.jsonl)" in found[-1].notes[0][1]
    assert len(table(tmp_path / "lake", "rounds")) == 200
    assert len(table(tmp_path / "lake", "sources")) == 1


def test_the_copy_first_and_two_copies_of_other_forms(tmp_path: Path) -> None:
    for i, how in enumerate(("CRLF", "UTF-16", "as it is")):
        run(tmp_path / "lake", put(tmp_path, f"{i}.jsonl", SAME_TEXT[how](NO_STAMPS)))
    assert table(tmp_path / "lake", "sources", "name") == [("0.jsonl",)]


# ---------------------------------------------------------------- the same records: one count

COPIES: dict[str, Callable[[bytes], tuple[bytes, bytes]]] = {
    "shorter": lambda b: (b, lines(b, 0, 0.6)),
    "cut in a line": lambda b: (b, b[: len(b) * 2 // 3]),
    "shorter, CRLF": lambda b: (b, lines(b, 0, 0.6).replace(b"\n", b"\r\n")),
    "no last line end": lambda b: (b, b[:-1]),
    "first line cut": lambda b: (b, lines(b, 0.02)),
    "first line torn": lambda b: (b, b[20:]),
    "tail": lambda b: (b, lines(b, 0.5)),
    "tail first": lambda b: (lines(b, 0.5), b),
    "middle": lambda b: (b, lines(b, 0.3, 0.7)),
    "overlap": lambda b: (lines(b, 0, 0.7), lines(b, 0.4)),
    "docker": lambda b: (b, docker(b)),
    "docker first": lambda b: (docker(b), b),
    "docker, tail": lambda b: (b, docker(lines(b, 0.5))),
}


# Every form with one kind of log, in turn: they meet in the property below.
@pytest.mark.parametrize(("how", "kind"), [*zip(COPIES, itertools.cycle(LOGS), strict=False)])
@pytest.mark.long
def test_records_of_a_copy_count_once(tmp_path: Path, alone: dict[bytes, Any], how: str, kind: str) -> None:
    for i, content in enumerate(COPIES[how](LOGS[kind])):
        found = run(tmp_path / "lake", put(tmp_path, f"{i}.log", content))
    assert totals(tmp_path / "lake") == alone[LOGS[kind]]
    ledger = {r["name"]: r for r in table(tmp_path / "lake", "sources")}
    assert dict(ledger["1.log"]["same_as"]).keys() == {ledger["0.log"]["source_id"]}
    assert ledger["0.log"]["same_as"] is None
    assert [name for name, _ in found.copies] == ["1.log"]
    assert "hold records of 0.log: counted once" in found.copies[0][1]


@pytest.mark.parametrize("how", ["shorter", "cut in a line", "no last line end"])
def test_a_beginning_needs_no_stamps(tmp_path: Path, alone: dict[bytes, Any], how: str) -> None:
    for i, content in enumerate(COPIES[how](NO_STAMPS)):
        run(tmp_path / "lake", put(tmp_path, f"{i}.log", content))
    assert totals(tmp_path / "lake") == alone[NO_STAMPS]


def test_an_overlap_that_cannot_be_told_is_counted(tmp_path: Path) -> None:
    """Without stamps, times and a common beginning nobody can tell a copy from another run of one benchmark."""
    for i, content in enumerate((NO_STAMPS, lines(NO_STAMPS, 0.5))):
        run(tmp_path / "lake", put(tmp_path, f"{i}.log", content))
    assert len(table(tmp_path / "lake", "rounds")) == 300
    assert [same for (same,) in table(tmp_path / "lake", "sources", "same_as")] in ([None, None],)


@pytest.mark.parametrize("kind", ["server", "answers"])
def test_copies_in_other_folders_and_many_at_once(tmp_path: Path, alone: dict[bytes, Any], kind: str) -> None:
    content = LOGS[kind]
    put(tmp_path / "logs", "pod/a.log", content)
    put(tmp_path / "logs", "copies/b.log", lines(content, 0.2))
    put(tmp_path / "logs", "docker/c.log", docker(content))
    run(tmp_path / "lake", tmp_path / "logs")
    assert totals(tmp_path / "lake") == alone[content]


def test_a_wrapping_with_stamps_of_its_own(tmp_path: Path, alone: dict[bytes, Any]) -> None:
    """Docker stamps a line to the nanosecond, and some moments later."""

    def stamp(i: int) -> dict[str, str]:
        at = 10 * (i - 1) + 60 if i else 0
        return {"time": f"2026-05-06T12:{at // 60:02d}:{at % 60:02d}.71828{i:04d}Z"}

    run(tmp_path / "lake", put(tmp_path, "a.log", SERVER))
    run(tmp_path / "lake", put(tmp_path, "b.log", docker(SERVER, stamp)))
    assert totals(tmp_path / "lake") == alone[SERVER]


def gateway(content: bytes, later: int, slower: float) -> bytes:
    """The same responses as another gateway logs them: its stamps, its latencies."""
    records = [json.loads(line) for line in content.splitlines()]
    for r in records:
        r["created"] += later
        r["metrics"]["generation_time_ms"] += slower
    return jsonl(*records).encode()


def test_one_request_in_the_logs_of_two_gateways(tmp_path: Path, alone: dict[bytes, Any]) -> None:
    run(tmp_path / "lake", put(tmp_path, "east/a.jsonl", ANSWERS))
    run(tmp_path / "lake", put(tmp_path, "west/b.jsonl", gateway(ANSWERS, 1, 3.5)))
    assert totals(tmp_path / "lake") == alone[ANSWERS]


# ---------------------------------------------------------------- what is not the same


def test_requests_that_only_look_alike_stay_two(tmp_path: Path) -> None:
    """A benchmark that runs again; retries; another server's requests with the same short ids."""
    again = gateway(ANSWERS, 3600, 0.25)
    retried = gateway(lines(ANSWERS, 0, 0.07), 1, 40.0)  # two of thirty, seconds later
    other = b"".join(line.replace(b"chatcmpl-r", b"chatcmpl-s") + b"\n" for line in lines(ANSWERS, 0.5).splitlines())
    for i, content in enumerate((ANSWERS, again, retried, other)):
        run(tmp_path / "lake", put(tmp_path, f"{i}/a.jsonl", content))
    con = connect(tmp_path / "lake", keep=True)
    assert con.execute("select count(*) from requests").fetchall() == [(30 + 30 + 2 + 15,)]
    con.close()


def test_two_servers_with_much_the_same_counts_stay_two(tmp_path: Path) -> None:
    dice = random.Random(3)
    for name in ("a", "b"):
        counts = [interval(f"12:{1 + i // 6:02d}:{10 * (i % 6):02d}", dice.choice((2, 3)), 6) for i in range(60)]
        run(tmp_path / "lake", put(tmp_path, f"{name}.log", log(*counts).encode()))
    con = connect(tmp_path / "lake", keep=True)
    assert con.execute("select count(*) from windows").fetchall() == [(120,)]
    con.close()


# ---------------------------------------------------------------- scrapes


def scrapes(first: int, last: int) -> bytes:
    out = []
    for i in range(first, last):
        for name, factor in (("drafts", 100), ("draft_tokens", 300), ("accepted_tokens", 170)):
            full = f"vllm:spec_decode_num_{name}_total"
            at = 1_778_068_800_000 + 15_000 * i
            out.append(f'# TYPE {full} counter\n{full}{{engine="0",model_name="m"}} {factor * i * i} {at}\n')
    return "".join(out).encode()


@pytest.mark.parametrize("parts", [((1, 7), (4, 13)), ((4, 13), (1, 7)), ((1, 13), (5, 13)), ((1, 7), (6, 13))])
def test_scrapes_that_overlap(tmp_path: Path, parts: tuple[tuple[int, int], ...]) -> None:
    """The first value of a log of scrapes counts all that the other log has counted before."""
    for i, (first, last) in enumerate(parts):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", scrapes(first, last)))
    assert totals(tmp_path / "lake")[2:4] == (300 * 144, 170 * 144)


# ---------------------------------------------------------------- the ledger and the report


def test_the_report_tells_and_what_is_forgotten_counts_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    run(lake, put(tmp_path, "a.log", SERVER))
    run(lake, put(tmp_path, "b.log", lines(SERVER, 0.5)))
    whole = totals(lake)
    assert cli(["report", "--lake", str(lake), "--format", "json"]) == 0
    told = {w["code"]: w for w in json.loads(capsys.readouterr().out)["warnings"]}
    assert "b.log hold records that a.log holds too" in told["counted_once"]["text"]
    assert told["counted_once"]["evidence"] == {"lines": 21, "pairs": 1}
    assert "ingested_twice" not in told
    ids = {name: source for source, name in table(lake, "sources", "source_id", "name")}
    forget(Store(lake), [ids["a.log"]])
    assert totals(lake)[2] == sum(300 + i for i in range(19, 40))  # the copy speaks for itself now
    run(lake, tmp_path / "a.log")
    assert totals(lake) == whole
    run(lake, tmp_path / "b.log", replace=True)
    assert totals(lake) == whole
    run(lake, tmp_path / "a.log", tmp_path / "b.log", replace=True)
    assert totals(lake) == whole


def test_a_lake_of_an_older_version(tmp_path: Path) -> None:
    """Its ledger has none of the columns; copies of its sources are found all the same."""
    import pyarrow.parquet as pq

    run(tmp_path / "lake", put(tmp_path, "a.log", SERVER))
    for path in (tmp_path / "lake" / "sources").rglob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["same_as", "text_sha256", "prefixes"]), path)
    whole = totals(tmp_path / "lake")
    run(tmp_path / "lake", put(tmp_path, "b.log", lines(SERVER, 0.5)))
    assert totals(tmp_path / "lake") == whole


# ---------------------------------------------------------------- any partition, with any copies


@st.composite
def partitions(draw: st.DrawFn) -> list[list[tuple[str, bytes]]]:
    """A log in parts that together hold all of it, and copies of some; in ingests of any order."""
    content = LOGS[draw(st.sampled_from(sorted(LOGS)))]
    cuts = sorted(draw(st.lists(st.integers(1, 9), max_size=2, unique=True)))
    edges = [0.0, *(c / 10 for c in cuts), 1.0]
    parts = [lines(content, a, b) for a, b in itertools.pairwise(edges)]
    for how in draw(st.lists(st.sampled_from(["overlap", "docker", "CRLF", "shorter", "tail", "gzip"]), max_size=2)):
        part = draw(st.sampled_from(parts))
        a = draw(st.integers(0, 6)) / 10
        parts.append(
            {"overlap": lines(content, a, a + 0.4), "docker": docker(content), "CRLF": part.replace(b"\n", b"\r\n"),
             "shorter": lines(content, 0, 0.7), "tail": lines(content, a), "gzip": gzip.compress(part)}[how]
        )  # fmt: skip
    order = draw(st.permutations(range(len(parts))))
    named = [(f"{i}.log", parts[i]) for i in order]
    at = draw(st.integers(0, len(named)))
    return [[("", content)], named[:at], named[at:]]


@settings(max_examples=8)
@given(given=partitions())
def test_any_partition_with_any_copies(
    tmp_path_factory: pytest.TempPathFactory, alone: dict[bytes, Any], given: list[list[tuple[str, bytes]]]
) -> None:
    ((_, content),), *ingests = given
    folder = tmp_path_factory.mktemp("parts")
    for i, named in enumerate(ingests):
        if named:
            run(folder / "lake", *(put(folder, f"{i}/{name}", part) for name, part in named), run="r")
    assert totals(folder / "lake")[2:4] == alone[content][2:4]


# ---------------------------------------------------------------- several processes


def test_processes_that_ingest_at_once(tmp_path: Path, alone: dict[bytes, Any]) -> None:
    """Two of the same file, two of overlapping ones, two of others; somebody reports meanwhile."""
    lake = tmp_path / "lake"
    files = [
        put(tmp_path, "same.jsonl", ROUNDS), tmp_path / "same.jsonl", put(tmp_path, "b/tail.jsonl", lines(ROUNDS, 0.4)),
        put(tmp_path, "c/server.log", SERVER),
    ]  # fmt: skip
    command = [sys.executable, "-m", "tracelens", "ingest", "--lake", str(lake), "--year", "2026"]
    Store(lake)
    running = [
        subprocess.Popen([*command, str(f)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))
        for f in files
    ]
    rounds, server = alone[ROUNDS][2], alone[SERVER][2]
    seen, tail = set(), sum(4 for _ in range(120))
    until = time.monotonic() + 60
    while any(p.poll() is None for p in running) and time.monotonic() < until:
        seen.add(totals(lake)[2] or 0)
        time.sleep(0.02)
    told = [p.communicate()[1].decode() for p in running]
    assert [p.returncode for p in running] == [0] * 4, told
    assert totals(lake)[2] == rounds + server
    assert seen <= {a + b for a in (0, tail, rounds) for b in (0, server)}
    assert sorted(name for (name,) in table(lake, "sources", "name")) == ["same.jsonl", "server.log", "tail.jsonl"]
