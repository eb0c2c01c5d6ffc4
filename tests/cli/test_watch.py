"""`tracelens watch` as a process: what it prints, how it ends, and the lake that it leaves."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tracelens.cli import run
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.schema import FACTS

LINE = (
    "(APIServer pid=1) INFO 05-06 {hour:02d}:{i:02d}:00 [loggers.py:335] SpecDecoding metrics: "
    "Draft acceptance rate: 50.0%, Accepted: {accepted} tokens, Drafted: 300 tokens\n"
)
OPTIONS = ("--run", "r", "--year", "2026")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    add(folder / "a.log", 12, 5)
    return folder


def add(path: Path, hour: int, n: int) -> None:
    with path.open("a") as file:
        file.writelines(LINE.format(hour=hour, i=i, accepted=100 + i) for i in range(n))


def rows(lake: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in FACTS:
        tables = [pq.ParquetFile(path).read() for path in (lake / name).rglob("*.parquet")]
        found[name] = sorted(repr(row) for table in tables for row in table.to_pylist())
    return found


def fresh(tmp_path: Path, logs: Path) -> dict[str, list[str]]:
    ingest([str(logs)], tmp_path / "fresh", IngestOptions(run="r", year=2026, jobs=1))
    return rows(tmp_path / "fresh")


def tool(*args: str) -> list[str]:
    return [sys.executable, "-c", "import tracelens.cli; tracelens.cli.main()", "watch", *args]


@contextmanager
def watching(*args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(tool(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_once(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    args = ["watch", str(logs), "--lake", str(lake), *OPTIONS, "--once", "--by", "run_id"]
    assert run(args) == 0
    first, *table = capsys.readouterr().out.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ last record 2026-05-06 12:04:00 UTC; rows 5 windows; ", first)
    assert "Outcome" in table
    assert rows(lake) == fresh(tmp_path, logs)
    add(logs / "a.log", 13, 2)
    (logs / "a.log").rename(logs / "a.log.1")
    add(logs / "b.log", 14, 1)
    before = signal.getsignal(signal.SIGINT)
    assert run(args) == 0
    assert "rows 8 windows" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before


def test_for_so_many_seconds(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", str(logs), "--lake", str(tmp_path / "lake"), *OPTIONS, "--for", "0.3", "--every", "0.1"]) == 0
    assert capsys.readouterr().out.count(" last record ") == 1  # a line a change


@pytest.mark.long
def test_an_interrupt_leaves_a_whole_lake(logs: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with watching(str(logs), "--lake", str(lake), *OPTIONS, "--every", "0.2") as process:
        assert "rows 5 windows" in line(process)
        add(logs / "a.log", 13, 2)
        (logs / "a.log").rename(logs / "a.log.1")
        add(logs / "a.log", 14, 1)
        while "rows 8 windows" not in line(process):
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0
    assert err == ""
    assert out.count("Outcome") == 1
    assert "Next" in out
    assert rows(lake) == fresh(tmp_path, logs)
    assert {p.name for p in (lake / ".staging").iterdir()} == {"lake.lock", "readers.lock"}


def test_an_end_that_is_asked_for_while_it_starts(logs: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with watching(str(logs), "--lake", str(lake), *OPTIONS) as process:
        while not lake.exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    assert "Outcome" in out
    assert rows(lake) == fresh(tmp_path, logs)


def test_metrics_are_served_while_it_runs(logs: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("prometheus_client") is None:
        pytest.skip("prometheus_client is not installed")
    args = ("--lake", str(tmp_path / "lake"), *OPTIONS, "--by", "run_id", "--every", "0.1", "--prometheus", "0")
    with watching(str(logs), *args) as process:
        assert process.stderr is not None
        address = process.stderr.readline().removeprefix("Prometheus metrics at ").strip()
        line(process)
        seen = ""
        while "tracelens_draft_accept_ratio{" not in seen:
            time.sleep(0.05)
            seen = urllib.request.urlopen(address, timeout=10).read().decode()
        assert 'tracelens_accepted_tokens_total{engine="vllm",run_id="r"} 510.0' in seen
        add(logs / "a.log", 13, 1)
        line(process)
        while 'tracelens_accepted_tokens_total{engine="vllm",run_id="r"} 610.0' not in seen:
            time.sleep(0.05)
            seen = urllib.request.urlopen(address, timeout=10).read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nowhere"], "no such file"),
        (["-"], "tracelens ingest -"),
        (["LOGS", "--role", "nonsense"], "--role nonsense"),
        (["LOGS", "--rules", "nowhere.toml"], "--rules nowhere.toml"),
        (["LOGS", "--every", "0"], "--every"),
        (["LOGS", "--tz", "Mars/Base"], "Mars/Base"),
        (["LOGS", "--set", "x"], "--set x"),
        (["LOGS", "--labels", "nowhere.csv"], "nowhere.csv"),
        (["LOGS", "--claim", "alpha=7"], "alpha"),
        (["LOGS", "--by", "nonsense", "--once"], "nonsense"),
        (["LOGS", "--where", "1; drop", "--once"], "--where"),
        (["LOGS", "--baseline", "nobody", "--once"], "nobody"),
        (["LOGS", "--prometheus", "99999"], "--prometheus"),
        (["LOGS", "--prometheus", "0", "--prometheus-host", "203.0.113.1"], "--prometheus-host"),
    ],
)
def test_bad_arguments(
    args: list[str], told: str, logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(logs.parent)
    if "--prometheus" in args and importlib.util.find_spec("prometheus_client") is None:
        pytest.skip("prometheus_client is not installed")
    assert run(["watch", *(str(logs) if a == "LOGS" else a for a in args)]) == 3
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


def test_a_terminal_is_given_back(logs: Path, tmp_path: Path) -> None:
    if not hasattr(os, "openpty"):
        pytest.skip("no pseudo-terminals here")
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    args: dict[str, Any] = {"stdout": theirs, "stderr": subprocess.PIPE, "env": environment}
    with subprocess.Popen(tool(str(logs), "--lake", str(tmp_path / "lake"), *OPTIONS, "--once"), **args) as process:
        os.close(theirs)
        out = b""
        try:
            while piece := os.read(ours, 1 << 16):
                out += piece
        except OSError:  # Linux says so when the other side has closed
            pass
        os.close(ours)
        assert process.wait(60) == 0
    _, _, left = out.decode().rpartition("\x1b[?1049l")
    assert "Outcome" in left
