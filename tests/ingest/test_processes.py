from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tracelens.ingest.processes import quiet_start, shared_cores

# A pool as ingest makes it; the worker says who it is, and works on.
POOL = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tracelens.ingest.processes import begin, quiet_start

def work(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("spawn"), begin)
    with quiet_start():
        done = pool.submit(work, 600)
    try:
        done.result()
    except KeyboardInterrupt:
        os._exit(130)
"""

THREADS = "POLARS_MAX_THREADS"


@pytest.mark.parametrize(("workers", "threads"), [(1, "8"), (2, "4"), (3, "2"), (8, "1"), (20, "1")])
def test_workers_share_the_cores(workers: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv(THREADS, raising=False)
    with shared_cores(workers):
        assert os.environ[THREADS] == threads
    assert THREADS not in os.environ


def test_what_the_user_says_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "5")
    with shared_cores(4):
        assert os.environ[THREADS] == "5"
    assert os.environ[THREADS] == "5"


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but that somebody asks how it ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc")
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_with_the_first_process(kill: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        assert first.stdout is not None
        assert first.stderr is not None
        worker = int(first.stdout.readline())
        if kill == signal.SIGINT:
            os.killpg(first.pid, kill)  # as a terminal does
        else:
            first.send_signal(kill)
        end = time.monotonic() + 60
        while not has_ended(worker) and time.monotonic() < end:
            time.sleep(0.05)
        assert has_ended(worker)
        assert first.stdout.read() == ""  # nobody holds it any more
        assert "Traceback" not in first.stderr.read()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no masks of signals")
def test_ctrl_c_waits_while_a_process_starts() -> None:
    asked = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with quiet_start():
        child = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "True"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
