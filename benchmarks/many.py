"""`python -m benchmarks.many [--files 10000]`: many small files, half logs, half JSON lines, by one and two processes.

Ingested into a new lake, once more (all are known then), and reported. Open files are those of the first process, seen
twenty times a second; the peak is that of the largest process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.data import small_files


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="number of files (default 10,000)")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="numbers of processes (default 1 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracelens-bench-") as folder:
        logs = Path(folder, "logs")
        small_files(logs, options.files)
        print(f"{options.files:,} files; load {os.getloadavg()[0]:.1f}")
        print(f"{'command':<32}{'CPU s':>8}{'ms a file':>11}{'wall s':>8}{'peak MB':>9}{'open files':>12}")
        for jobs in options.jobs:
            lake = str(Path(folder, f"lake{jobs}"))
            ingest = ["ingest", str(logs), "--jobs", str(jobs), "--lake", lake]
            _run(f"ingest, {jobs} process{'es' if jobs > 1 else ''}", ingest, options.files)
            _run("the same again", ingest, options.files)
            _run("report --by task_type", ["report", "--by", "task_type", "--lake", lake], options.files)


def _run(name: str, arguments: Sequence[str], files: int) -> None:
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "tracelens", *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    ended, most = threading.Event(), [0]

    def look() -> None:
        while not ended.wait(0.05):
            with suppress(OSError):  # it has just ended
                most[0] = max(most[0], len(list(Path(f"/proc/{process.pid}/fd").iterdir())))

    looking = threading.Thread(target=look)
    looking.start()
    process.stdout.read()
    ended.set()
    looking.join()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}")
    cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    wall = time.monotonic() - begun
    print(f"{name:<32}{cpu:>8.1f}{cpu / files * 1000:>11.1f}{wall:>8.1f}{peak:>9.0f}{most[0]:>12}", flush=True)


if __name__ == "__main__":
    main()
