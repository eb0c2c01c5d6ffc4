"""`python -m benchmarks.hostile [--gb 5] [--rejects 10000000]`: logs that mean ill, or were broken on the way.

Each is ingested by a process of its own: it must end, within 600 MB, with what can be read.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import run

_GOOD = '{"record":"round","round_index":1,"request_id":"r","drafted":5,"accepted":2}\n'
_OPEN = '{"record":"round","request_id":"'
_PEAK_MB = 600


def one_line(path: Path, size: int) -> None:
    """Good records, then a line of `size` bytes, then good records."""
    with path.open("w") as out:
        out.write(_GOOD * 20_000 + _OPEN)
        for _ in range(size >> 20):
            out.write("x" * (1 << 20))
        out.write("\n" + _GOOD * 20_000)


def bomb(path: Path, size: int) -> None:
    """The same, a thousand to one: members one after the other are one file."""
    with path.open("wb") as out:
        out.write(gzip.compress((_GOOD * 20_000 + _OPEN).encode()))
        member = gzip.compress(b"x" * (1 << 28))
        for _ in range(size >> 28):
            out.write(member)
        out.write(gzip.compress(("\n" + _GOOD * 20_000).encode()))


def many(line: str) -> Callable[[Path, int], None]:
    """So many lines that are refused, each behind a good one."""

    def make(path: Path, count: int) -> None:
        with path.open("w") as out:
            for _ in range(count // 1000):
                out.write((_GOOD + line + "\n") * 1000)

    return make


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--gb", type=float, default=5, help="size of the line and of the bomb (default 5)")
    parser.add_argument("--rejects", type=int, default=10_000_000, help="lines that are refused (default 10,000,000)")
    options = parser.parse_args()
    size = round(options.gb * (1 << 30))
    impossible = many(_GOOD.strip().replace('"accepted":2', '"accepted":7'))
    cases = [
        (f"one line of {options.gb:g} GB", "a.jsonl", one_line, size),
        (f"a bomb of {options.gb:g} GB", "a.jsonl.gz", bomb, size),
        (f"{options.rejects:,} broken", "a.jsonl", many('{"record":"round","accepted":1'), options.rejects),
        (f"{options.rejects:,} impossible", "a.jsonl", impossible, options.rejects),
    ]
    work = Path(tempfile.mkdtemp(prefix="tracelens-hostile-"))
    print(f"{'input':<26}{'MB':>8}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}  (goal {_PEAK_MB})")
    try:
        for name, file, make, amount in cases:
            path = work / file
            make(path, amount)
            taken = run([sys.executable, "-m", "tracelens", "ingest", str(path), "--lake", str(work / "lake")])
            mb = path.stat().st_size / 1e6
            print(f"{name:<26}{mb:>8.0f}{taken.cpu:>8.1f}{taken.wall:>8.1f}{taken.rss_mb:>9.0f}", flush=True)
            path.unlink()
            shutil.rmtree(work / "lake")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
