"""`python -m benchmarks.copies [--mb 250]`: four dense logs of one time, then copies of one of them, into a lake.

The logs are of four servers in the same hours, so every record is compared with those of the others: 892,000 windows
of 1 GB of text. Then come the second half of the first log and the first log as another gateway wrote it, all copies.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data import text_log
from benchmarks.measure import run

LOGS = 4


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copies", description=__doc__)
    parser.add_argument("--mb", type=int, default=250, help="size of each log in MB (default 250)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracelens-copies-") as folder:
        logs = [Path(folder) / f"{n}.log" for n in range(LOGS)]
        for n, path in enumerate(logs):
            text_log(path, given.mb * 1_000_000, 0.1, seed=n + 1)
        print(f"{'ingested':<34}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}")
        _ingest(f"{LOGS} logs of {given.mb} MB", logs, Path(folder) / "lake")
        _ingest("copies: its second half, a wrapping", _copies(logs[0]), Path(folder) / "lake")


def _copies(log: Path) -> list[Path]:
    half, wrapped = log.with_name("half.log"), log.with_name("wrapped.log")
    every = log.read_text().splitlines(keepends=True)
    half.write_text("".join(every[len(every) // 2 :]))
    wrapped.write_text("".join(f"vllm-0  | {line}" for line in every))
    return [half, wrapped]


def _ingest(what: str, paths: Sequence[Path], lake: Path) -> None:
    words = ["ingest", *map(str, paths), "--lake", str(lake), "--year", "2026", "--tz", "UTC", "--jobs", "1"]
    taken = run([sys.executable, "-m", "tracelens", *words])
    print(f"{what:<34}{taken.cpu:>8.1f}{taken.wall:>8.1f}{taken.rss_mb:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
