"""Processes that are killed, and processes that write at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faults
import pytest
from ingest_logs import everything, interval, jsonl, log, received, response, run, start, stored, table

from tracelens.compact.run import compact

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


def long_log(logs: Path) -> Path:
    """A log of two days."""
    logs.mkdir()
    lines = [interval(f"{hour:02d}:00:00", accepted=hour) for hour in range(24)]
    (logs / "server.log").write_text(log(*lines, *(line.replace("05-06", "05-07") for line in lines)))
    return logs


def grow(logs: Path) -> None:
    (logs / "server.log").write_text(log(*server_lines(8), interval("13:00:00", accepted=301)))
    (logs / "r.jsonl").write_text(jsonl(response("chatcmpl-sum.1"), response("b", (1,)), '{"num_spec_steps": '))


def failed(cases: Sequence[tuple[str, int, Path]], *asked: str | Path) -> list[dict[str, Any]]:
    """Ingest into each lake, fail at its step, look at what is left and ingest again; see faults.py."""
    told = "".join(f"{kind} {step} {lake}\n" for kind, step, lake in cases)
    command = [sys.executable, faults.__file__, *map(str, asked)]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=900)
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ended) == len(cases), done.stderr
    return ended


def sampled(steps: int, apart: int = 16) -> list[tuple[str, int]]:
    """Every step with every fault where that is asked for, else one in so many, the kinds in turn."""
    every = [(kind, step) for step in range(1, steps + 1) for kind in faults.KINDS]
    return every if os.environ.get("TRACELENS_EVERY_FAULT") else every[:: apart * len(faults.KINDS) + 1]


def survived(cases: Sequence[tuple[str, int, Path]], ended: Sequence[dict[str, Any]], expected: str) -> None:
    """Whatever failed, readers find whole sources, and the same command gives the rows of an undisturbed run."""
    how = [e["how"] for e in ended]
    for case, one in zip(cases, ended, strict=True):
        assert one["how"] in (case[0], "done"), case  # what cleans up after itself may fail in peace
        assert one["whole"], case
        assert one["rows"] == expected, case
        assert one["staged"] == [], case
        if one["how"] == "ENOSPC":
            assert str(case[2]) in one["said"], case
            assert "no room for the lake" in one["said"], case
    assert set(how) >= set(faults.KINDS)
    assert how.count("done") < len(cases) / 3


def test_a_fault_at_any_step_and_then_the_rows_of_an_undisturbed_run(logs: Path, tmp_path: Path) -> None:
    """A lake with an earlier version of the log; the ingest that replaces it fails somewhere, and is run again."""
    lake, calm = tmp_path / "lake", tmp_path / "calm"
    run(lake, logs)
    clone(lake, calm)
    before = everything(lake)
    grow(logs)
    [undisturbed] = failed([("kill", -1, calm)], logs)
    assert undisturbed["how"] == "done"
    assert undisturbed["steps"] > 50
    assert len(everything(calm)["windows"]) == 8 != len(before["windows"])  # nine lines, one of them broken
    cases = [(kind, step, tmp_path / f"lake-{kind}-{step}") for kind, step in sampled(undisturbed["steps"])]
    for _, _, again in cases:
        clone(lake, again)
    survived(cases, failed(cases, logs), undisturbed["rows"])


def test_a_fault_at_any_step_of_a_log_in_parts(tmp_path: Path) -> None:
    """Its files are open from the first part to the last."""
    logs, calm = long_log(tmp_path / "logs"), tmp_path / "calm"
    [undisturbed] = failed([("kill", -1, calm)], "--parts", logs)
    assert len(everything(calm)["windows"]) == 48
    [whole] = failed([("kill", -1, tmp_path / "whole")], logs)
    assert (undisturbed["how"], undisturbed["rows"]) == ("done", whole["rows"])
    assert undisturbed["steps"] > whole["steps"] + 20
    cases = [(kind, step, tmp_path / f"lake-{kind}-{step}") for kind, step in sampled(undisturbed["steps"])]
    survived(cases, failed(cases, "--parts", logs), undisturbed["rows"])


def test_a_fault_at_any_step_of_a_forget(tmp_path: Path) -> None:
    """A source with files of its own, and one whose rows lie with another's; both go, or none of them."""
    lake, asked = shared_lake(tmp_path)
    calm = tmp_path / "calm"
    clone(lake, calm)
    [undisturbed] = failed([("kill", -1, calm)], *asked)
    assert undisturbed["how"] == "done"
    assert [row["name"] for row in table(calm, "sources")] == ["a.jsonl"]
    cases = [(kind, step, tmp_path / f"lake-{kind}-{step}") for kind, step in sampled(undisturbed["steps"], 4)]
    for _, _, again in cases:
        clone(lake, again)
    survived(cases, failed(cases, *asked), undisturbed["rows"])


def shared_lake(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """A lake of which two sources were merged, and what faults.py is asked to forget of it."""
    lake = folder / "lake"
    for name in "abc":
        (folder / f"{name}.jsonl").write_text(jsonl(response(name, (1, 2)), '{"num_spec_steps": '))
    run(lake, folder / "a.jsonl", folder / "b.jsonl")
    compact(lake)
    run(lake, folder / "c.jsonl")
    return lake, ("--forget", "b.jsonl", "c.jsonl")


def clone(lake: Path, to: Path) -> None:
    for name, content in stored(lake).items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content)


def test_a_first_ingest_that_fails_leaves_a_lake_that_can_be_used(logs: Path, tmp_path: Path) -> None:
    [undisturbed] = failed([("kill", -1, tmp_path / "calm")], logs)
    cases = [(kind, step, tmp_path / f"lake-{kind}-{step}") for kind, step in sampled(undisturbed["steps"])]
    survived(cases, failed(cases, logs), undisturbed["rows"])


@pytest.mark.long
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
