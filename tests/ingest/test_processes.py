from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tracelens.ingest.processes import quiet_start

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

THREADS = """
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tracelens.ingest.processes import begin, quiet_start
import polars

if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn"), begin) as pool:
        with quiet_start():
            threads = pool.submit(polars.thread_pool_size)
        print(threads.result(), os.environ.get("POLARS_MAX_THREADS"))
"""


@pytest.mark.parametrize(("told", "found"), [(None, "1 None"), ("3", "3 3")])
def test_a_worker_has_one_thread_unless_the_user_says_otherwise(told: str | None, found: str, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(THREADS)
    env = {k: v for k, v in os.environ.items() if k != "POLARS_MAX_THREADS"}
    env |= {} if told is None else {"POLARS_MAX_THREADS": told}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == found


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
