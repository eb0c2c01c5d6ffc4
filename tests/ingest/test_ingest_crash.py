"""Processes that are killed, and processes that write at the same time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from ingest_logs import everything, interval, jsonl, log, received, response, run, start, stored, table

# For every `EVENT LAKE` on stdin: forks, and ingests into the lake in the child, which ends as by kill -9 at the n-th
# file that it opens, makes, renames or removes below the lake. Nothing has started a thread before the forks.
KILLED = """
import os, pathlib, signal, sys
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
import tracelens.lake.parquet, tracelens.engines.vllm, tracelens.engines.generic, tracelens.engines.rtp_llm
import polars, pyarrow.parquet, msgspec
os.fsync = lambda handle: None
events = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
def child(left, lake):
    count = 0
    def hook(event, args):
        nonlocal count
        if event in events and args and lake in str(args[0]):
            count += 1
            if count == left:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    ingest(sys.argv[1:], pathlib.Path(lake), IngestOptions(year=2026, jobs=1))
    print("done", count, flush=True)
for line in sys.stdin:
    event, lake = line.split()
    pid = os.fork()
    if not pid:
        try:
            child(int(event), lake)
        finally:
            os._exit(0)
    if os.waitpid(pid, 0)[1] == signal.SIGKILL:
        print("killed", event, flush=True)
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kill -9 and advisory locks")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "server.log").write_text(log(*server_lines(3)))
    return folder


def server_lines(intervals: int) -> list[str]:
    """No start line: the run is the folder's, whatever was read when."""
    return [received("chatcmpl-sum.1"), *(interval(f"12:01:{i:02d}", accepted=i) for i in range(intervals))]


def grow(logs: Path) -> None:
    (logs / "server.log").write_text(log(*server_lines(8), interval("13:00:00", accepted=301)))
    (logs / "r.jsonl").write_text(jsonl(response("chatcmpl-sum.1"), response("b", (1,)), '{"num_spec_steps": '))


def killed(logs: Path, *cases: tuple[int, Path]) -> list[tuple[str, int]]:
    """Ingest into each lake and be killed at its event; how each ended, and at which event."""
    cases_text = "".join(f"{event} {lake}\n" for event, lake in cases)
    command = [sys.executable, "-c", KILLED, str(logs)]
    done = subprocess.run(command, input=cases_text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    ended = [line.split() for line in done.stdout.splitlines()]
    assert len(ended) == len(cases), done.stderr
    return [(how, int(event)) for how, event in ended]


def test_twenty_kills_and_then_the_rows_of_an_undisturbed_run(logs: Path, tmp_path: Path) -> None:
    """A lake with an earlier version of the log; the ingest that replaces it is killed somewhere, and run again."""
    lake, calm = tmp_path / "lake", tmp_path / "calm"
    run(lake, logs)
    clone(lake, calm)
    before = everything(lake)
    grow(logs)
    [(how, events)] = killed(logs, (-1, calm))
    expected = everything(calm)
    assert how == "done"
    assert events > 50
    assert len(expected["windows"]) == 8 != len(before["windows"])  # nine lines, one of them broken
    chosen = random.Random(7)
    cases = [(chosen.randint(1, events), tmp_path / f"lake{i}") for i in range(20)]
    for _, again in cases:
        clone(lake, again)
    for (how, _), (event, again) in zip(killed(logs, *cases), cases, strict=True):
        assert how == "killed", event
        run(again, logs)  # rolls the lake forward or back, and goes on
        assert everything(again) == expected, event


def clone(lake: Path, to: Path) -> None:
    for name, content in stored(lake).items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content)


def test_a_killed_first_ingest_leaves_a_lake_that_can_be_used(logs: Path, tmp_path: Path) -> None:
    [(_, events)] = killed(logs, (-1, tmp_path / "calm"))
    cases = [(event, tmp_path / f"lake{event}") for event in range(2, events, 11)]
    assert [how for how, _ in killed(logs, *cases)] == ["killed"] * len(cases)
    for _, lake in cases:
        run(lake, logs)
        assert everything(lake) == everything(tmp_path / "calm")


def test_two_processes_into_one_lake(tmp_path: Path) -> None:
    """Each has logs of its own and some that both have; a new lake, so that they also make it together."""
    own = []
    for side in ("a", "b"):
        folder = tmp_path / side
        folder.mkdir()
        for i in range(12):
            (folder / f"{side}{i}.log").write_text(log(start(k=i + 1), interval("12:00:10", accepted=i, pid=ord(side))))
            (folder / f"both{i}.jsonl").write_text(jsonl(response(f"both{i}")))
        own.append(folder)
    lake = tmp_path / "lake"
    script = "import sys; from tracelens.cli import main; main(sys.argv[1:])"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, "ingest", "--lake", str(lake), "--debug", *map(str, folders)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folders in (own, own[::-1])
    ]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len(table(lake, "windows")) == 24
    assert sorted(r["request_id"] for r in table(lake, "requests")) == sorted(f"both{i}" for i in range(12))
    assert len(table(lake, "rounds")) == 3 * 12
    assert len(table(lake, "sources")) == len({r["sha256"] for r in table(lake, "sources")}) == 36


def test_a_reader_that_comes_between_finds_whole_sources(logs: Path, tmp_path: Path) -> None:
    """Whatever is in the ledger has all its rows."""
    lake = tmp_path / "lake"
    run(lake, logs)
    grow(logs)
    run(lake, logs)
    for row in table(lake, "sources"):
        for name, count in row["rows"]:
            assert sum(r.get("source_id") == row["source_id"] for r in table(lake, name)) == count
