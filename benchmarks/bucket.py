"""A lake in a bucket beside the same lake in a folder: CPU, requests, bytes; and what ranges instead of files would be.

    python -m benchmarks.bucket LAKE

copies a lake's folder into a bucket of moto's server on loopback (so wall time says nothing) and asks both.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Sample, in_turns, run
from tracelens.lake.bucket import Bucket
from tracelens.lake.place import lake_path

URL = "s3://bucket/lake"
_KEYS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}
_TRACELENS = "import sys; from tracelens.cli import main; main(sys.argv[1:])"


def questions(day: str) -> dict[str, list[str]]:
    """Name -> arguments of the command line."""
    return {
        "acceptance": ["query", "select sum(accepted) / sum(drafted) from rounds"],
        "by run, ids, times": [
            "query", "select run_id, sum(accepted), count(distinct request_id), avg(draft_us) from rounds group by 1",
        ],
        f"one day ({day})": ["query", f"select sum(accepted) from rounds where date = date '{day}'"],
        "report": ["report"],
    }  # fmt: skip


@contextmanager
def server(log: Path) -> Iterator[str]:
    """moto's server, and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def ranges(url: str, arguments: list[str]) -> None:
    """Answer a question without fetching ahead, and print the ranges of rounds that DuckDB read: how many, bytes."""
    from tracelens.analysis import session
    from tracelens.cli import run as command
    from tracelens.lake import lakefs

    seen: dict[str, set[tuple[int, int]]] = {}
    read, connect = lakefs.LakeFile._bytes, session.connect

    def noted(file: lakefs.LakeFile, at: int, end: int) -> bytes:
        seen.setdefault(file._wanted.key, set()).add((at, end))
        return read(file, at, end)

    lakefs.LakeFile._bytes = noted  # type: ignore[method-assign]
    session.connect = lambda lake, **options: connect(lake, **{**options, "ahead": None})  # type: ignore[attr-defined]
    command([*arguments, "--lake", url, "-o", os.devnull])
    found = [parts for key, parts in seen.items() if key.startswith("rounds/")]
    total = 0
    for parts in found:
        last = 0
        for at, end in sorted(parts):
            total += max(0, end - max(at, last))
            last = max(last, end)
    print(f"{sum(map(len, found))} {total}")


def asked(log: Path, since: int) -> int:
    """Requests for rounds that the server got."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text()[since:])
    return len(re.findall(r'"GET /bucket/lake/rounds/\S* HTTP', text))


def main() -> None:
    """Print one row a question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lake", help="folder of a lake")
    parser.add_argument("--only", default="", help="a part of the name of a question")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranges", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranges:
        ranges(options.lake, options.ranges)
        return
    folder = Path(options.lake)
    with tempfile.TemporaryDirectory() as place, server(Path(place) / "log") as url:
        log = Path(place) / "log"
        os.environ |= {**_KEYS, "AWS_ENDPOINT_URL": url}
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
        bucket = Bucket(lake_path(URL))
        files = [p for p in folder.rglob("*.parquet") if ".staging" not in p.parts]
        for path in files:
            bucket.upload(path.relative_to(folder).as_posix(), path)
        size = sum(p.stat().st_size for p in files if p.relative_to(folder).parts[0] == "rounds")
        days = sorted(p.parent.name.removeprefix("date=") for p in (folder / "rounds").rglob("*.parquet"))
        print(f"rounds: {size / 1e6:.1f} MB; medians of {options.repeats}")
        print("| question | folder CPU s | bucket CPU s | ratio | GETs of rounds | as ranges | MB of ranges |")
        print("|---|---|---|---|---|---|---|")
        for name, arguments in questions(days[0]).items():
            if options.only not in name:
                continue
            gets: list[int] = []

            def ask(lake: str, arguments: list[str] = arguments, gets: list[int] = gets) -> Sample:
                before = len(log.read_text())
                sample = run([sys.executable, "-c", _TRACELENS, *arguments, "--lake", lake])
                gets.append(asked(log, before))
                return sample

            taken = in_turns({"folder": lambda: ask(str(folder)), "bucket": lambda: ask(URL)}, options.repeats)
            command = [sys.executable, "-m", "benchmarks.bucket", URL, "--ranges", *arguments]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            ours, theirs = taken["bucket"].cpu, taken["folder"].cpu
            print(
                f"| {name} | {theirs:.2f} | {ours:.2f} | {ours / theirs:.2f}x | {max(gets)} | {told[-2]} | "
                f"{int(told[-1]) / 1e6:.1f} |"
            )


if __name__ == "__main__":
    main()
