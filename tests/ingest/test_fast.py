"""The fast road: what it takes, that it leaves what the slow road leaves, and what it must not take."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from canonical import files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roads import CLEAN, SIFTED, SLOW, agree, lines, take

from benchmarks.data import json_lines
from tracelens.ingest import fast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROUND = {
    "ts": "2026-04-19T00:00:00Z", "request_id": "r", "round_index": 1, "step_id": "s", "drafted": 5, "accepted": 2,
    "draft_ms": 1.5, "has_prefill": True, "task_type": "x",
}  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {},
    {"run": "R"},
    {"adopt": {"acme": "A-1"}},
    {"sets": {"temperature": "0.5"}},
    {"sets": {"model": "zz", "replica": "9"}, "role": "baseline"},
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


@settings(max_examples=18, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    data=files(dirty=False), options=st.sampled_from(OPTIONS), walked=st.booleans(), processes=st.sampled_from([1, 2])
)
def test_clean_files(
    data: bytes, options: dict[str, Any], walked: bool, processes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("clean")
    (folder / "a.jsonl").write_bytes(data)
    first = json.loads(data.split(b"\n")[0])
    quick, _ = agree(folder / "a.jsonl", folder, walked=walked, processes=processes, **options)
    # A constant over a column of the record is for the slow road, which checks both.
    assert quick.road == (SLOW if set(options.get("sets", ())) & set(first) else CLEAN), quick.why


# Values that DuckDB would read as numbers, truths and texts, each of which the slow road reads otherwise or refuses.
@pytest.mark.parametrize(
    "change",
    [
        {"drafted": "5"},
        {"drafted": True},
        {"drafted": 5.4},
        {"has_prefill": "true"},
        {"has_prefill": 1},
        {"task_type": 5},
        {"draft_ms": -0.0004},
        {"draft_ms": 1e300},
        {"round_index": 2**63},
        {"ts": "2026-04-19"},
        {"ts": "infinity"},
        {"ts": None},
        {"accepted": None},
        {"record": "window"},
        {"request_id": "caf\u00e9 \ud83d\ude00"},
        {"request_id": '"'},
        {"accepted": 9},
        {"drafted": {"drafted": 5}},
        # Two errors that cancel each other in a count of quotes and truths.
        {"has_prefill": "true", "drafted": True, "task_type": 5},
        {"has_prefill": "true", "drafted": "5", "task_type": 5, "request_id": 7},
    ],
)
def test_one_line_of_another_type(change: dict[str, Any], log: Path) -> None:
    log.write_text(lines(*[ROUND | {"batch_size": 1}] * 99, ROUND | {"batch_size": 1} | change))
    quick, _ = agree(log, log.parent)
    assert quick.road == SIFTED


def test_errors_that_cancel_each_other_over_lines(log: Path) -> None:
    record = {"record": "round", **ROUND, "batch_size": 1}
    without = {k: v for k, v in record.items() if k != "record"}
    log.write_text(lines(*[record] * 99, without, {**record, "gpu": "h100"}))
    quick, _ = agree(log, log.parent)
    assert quick.road == SIFTED
    assert len(quick.rows("rounds")) == 101


@pytest.mark.parametrize("twice", ['"drafted":9', '"drafted":"9"', '"request_id":"b"', '"record":"request"'])
def test_a_key_given_twice(twice: str, log: Path) -> None:
    text = json.dumps({"record": "round", "batch_size": 1, **ROUND})
    log.write_text(f"{text}\n" * 90 + f"{text[:-1]},{twice}}}\n")
    quick, _ = agree(log, log.parent)
    assert quick.road == SIFTED


def test_records_that_do_not_keep_to_their_lines(log: Path) -> None:
    text = json.dumps({**ROUND, "batch_size": 1})
    log.write_text(f"{text}\n" * 90 + f"{text}{text}\n" + text.replace(", ", ",\n", 1) + f"\n{text}\n")
    assert agree(log, log.parent)[0].road == SIFTED


def test_no_count_of_accepted_at_all(log: Path) -> None:
    log.write_text(lines(*[{"record": "round", "drafted": 5}] * 90))
    quick, _ = agree(log, log.parent)
    assert len(quick.rows("rejects")) == 90


def test_a_step_without_a_batch_size_is_counted_and_one_of_zero_too(log: Path) -> None:
    records = [ROUND | {"run_id": f"r{i % 2}", "step_id": f"s{i // 4}", "batch_size": 4 * (i % 3)} for i in range(96)]
    log.write_text(lines(*records))
    agree(log, log.parent, run="all")
    log.write_text(lines(*[{k: v for k, v in r.items() if k != "batch_size"} for r in records]))
    quick, _ = agree(log, log.parent / "without", run="all")
    # A step is one of the run that the record names.
    assert (quick.road, {r["step_share"] for r in quick.rows("rounds")}) == (CLEAN, {0.5})


def test_requests_without_an_id_are_named_by_their_place(log: Path) -> None:
    log.write_text(lines(*[{"record": "request", "output_tokens": 5, "decode_us": 7}] * 70))
    quick, _ = agree(log, log.parent)
    source = quick.rows("requests")[0]["source_id"]
    assert quick.road == CLEAN
    assert {r["request_id"] for r in quick.rows("requests")} == {f"{source}#{i}" for i in range(1, 71)}


def test_days(log: Path) -> None:
    log.write_text(lines(*[ROUND | {"ts": f"2026-04-{19 + i % 3}T00:00:00Z"} for i in range(99)]))
    quick, _ = agree(log, log.parent)
    assert (quick.road, len({r["folder"] for r in quick.rows("rounds")})) == (CLEAN, 3)


def test_a_folder_with_the_signs_of_a_pattern_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a[1] *? 'x'"
    folder.mkdir()
    (folder / "r*.jsonl").write_text(lines(*[ROUND] * 70))
    (folder / "rx.jsonl").write_text(lines(*[ROUND] * 70))
    assert agree(folder / "rx.jsonl", folder)[0].road == CLEAN


def _packed(data: bytes, how: str) -> bytes:
    return gzip.compress(data, 1) if how == "gz" else zstd.compress(data, 1)


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_compressed(how: str, tmp_path: Path) -> None:
    text = lines(*[ROUND | {"round_index": i, "request_id": f"{i * i % 997}"} for i in range(3000)])
    path = tmp_path / f"a.jsonl.{how}"
    path.write_bytes(_packed(text.encode(), how))
    assert agree(path, tmp_path)[0].road == CLEAN
    path.write_bytes(_packed((text + "{broken\n").encode(), how))
    assert agree(path, tmp_path / "dirty")[0].road == SIFTED
    # Two members one after the other are one file.
    half = text.index("\n", len(text) // 2) + 1
    path.write_bytes(_packed(text[:half].encode(), how) + _packed(text[half:].encode(), how))
    quick, _ = agree(path, tmp_path / "members")
    assert (quick.road, len(quick.rows("rounds"))) == (CLEAN, 3000)


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_a_truncated_stream_keeps_its_good_records_and_is_told(how: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 1 << 60, 20_000).tolist()
    text = lines(*[ROUND | {"request_id": f"{i:x}", "batch_size": 1} for i in ids])
    path = tmp_path / f"a.jsonl.{how}"
    packed = _packed(text.encode(), how)
    path.write_bytes(packed[: len(packed) * 2 // 3])
    quick, _ = agree(path, tmp_path)
    kept = [r["request_id"] for r in quick.rows("rounds")]
    assert quick.road == SIFTED
    assert kept == [f"{i:x}" for i in ids[: len(kept)]]
    assert len(kept) > 5000
    reasons = [r["reason"] for r in quick.rows("rejects")]
    assert any("truncated" in why or "ends" in why for why in reasons), reasons


# VmHWM, not ru_maxrss: that one begins with what the process that started this one had.
_INGEST = """
import re, sys
from tracelens.cli import run
code = run(["--verbose", "ingest", sys.argv[1], "--lake", sys.argv[2], "--json"])
print(code, int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""


def _blocks(path: Path, broken: float, megabytes: int) -> list[str]:
    """Write a megabyte of rounds so many times; its lines."""
    json_lines(path, 1_000_000, broken)
    text = path.read_text()
    path.write_text(text * megabytes)
    return text.splitlines()


@pytest.mark.parametrize(("broken", "megabytes"), [(0.0, 60), (0.02, 60)])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_bounded_memory_and_true_line_numbers(broken: float, megabytes: int, tmp_path: Path) -> None:
    path, lake = tmp_path / "a.jsonl", tmp_path / "lake"
    block = _blocks(path, broken, megabytes)
    done = subprocess.run(
        [sys.executable, "-c", _INGEST, str(path), str(lake)], capture_output=True, text=True, check=True
    )
    code, peak = map(int, done.stdout.splitlines()[-1].split())
    assert code == 0
    assert peak < 600
    good = [i for i, line in enumerate(block) if line.endswith("}")]
    found = [pq.ParquetFile(p).read(["source_line", "request_id", "accepted"]) for p in lake.glob("rounds/date=2*/*")]
    assert sum(t.num_rows for t in found) == megabytes * len(good)
    assert json.loads(done.stdout.splitlines()[0])["unrecognised"] == megabytes * (len(block) - len(good))
    accepted = np.full(len(block), -1)
    accepted[good] = [json.loads(block[i])["accepted"] for i in good]
    for part in found:
        at = part["source_line"].to_numpy() - 1
        assert np.array_equal(part["accepted"].to_numpy(), accepted[at % len(block)])


def test_small_files_are_left_to_the_slow_road(log: Path) -> None:
    log.write_text(lines(*[ROUND] * 70))
    assert take(log, log.parent / "x", quick=False).road == SLOW
    assert fast.SMALLEST == 1 << 20


@pytest.mark.long
def test_the_benchmarks_run() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks", "--mb", "3", "--repeats", "1"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.count("\n") >= 8
