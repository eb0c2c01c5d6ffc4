"""`python -m benchmarks [--mb 250] [--repeats 5]`: one table of ratios to the floor."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.data import json_lines, text_log
from benchmarks.measure import Sample, in_turns, run

_GREP = ["grep", "-c", "-F", "-e", "SpecDecoding metrics:", "-e", "Engine 0"]
# A bare COPY of the file's own columns, and one of all canonical columns (the others NULL), as the lake's files have.
_COPY = """
import sys, duckdb
from tracelens.lake.schema import table
types = table("rounds").duckdb_types()
own = {k: ("VARCHAR" if k == "ts" else types[k]) for k in (
    "ts request_id round_index step_id batch_size context_len drafted accepted emitted draft_us target_us sample_us "
    "step_us timing_basis task_type temperature model engine num_speculative_tokens has_prefill").split()}
spec = ", ".join(f"'{k}': '{v}'" for k, v in own.items())
if sys.argv[3] == "own":
    select = "* replace (ts::timestamptz at time zone 'UTC' as ts)"
else:
    select = ", ".join(f"(ts::timestamptz at time zone 'UTC') as ts" if k == "ts" else k if k in own
                       else f"null::{v} as {k}" for k, v in types.items())
duckdb.execute(f"copy (select {select} from read_json('{sys.argv[1]}', format = 'newline_delimited', "
               f"columns = {{{spec}}})) to '{sys.argv[2]}' (format parquet, compression zstd)")
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--mb", type=int, default=250, help="size of each input in MB (default 250)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; medians are printed (default 5)")
    parser.add_argument("--keep", type=Path, help="folder for the inputs, kept for another run")
    parser.add_argument("--only", choices=("text", "json"), help="one kind of input")
    options = parser.parse_args()
    work = options.keep or Path(tempfile.mkdtemp(prefix="tracelens-bench-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        _head(options.mb, options.repeats)
        if options.only != "json":
            _text(work, options.mb, options.repeats)
        if options.only != "text":
            _json(work, options.mb, options.repeats)
    finally:
        if options.keep is None:
            shutil.rmtree(work, ignore_errors=True)


def _head(mb: int, repeats: int) -> None:
    print(
        f"{mb} MB each, median of {repeats}; CPU seconds of whole processes, start-up included; ratios within one run"
    )
    print(
        f"{'input':<26}{'floor':<22}{'floor s':>9}{'ours s':>9}{'ratio':>8}{'goal':>7}{'MB/s':>7}{'peak MB':>9}"
        f"{'wall s':>14}"
    )


def _text(work: Path, mb: int, repeats: int) -> None:
    for name, share, goal in (("text, 10% records", 0.1, 8.0), ("text, 0.1% records", 0.001, 3.0)):
        path = _made(work / f"{share}-{mb}.log", lambda p, s=share: text_log(p, mb * 1_000_000, s))
        taken = in_turns(
            {"floor": lambda p=path: run([*_GREP, str(p)], {"LC_ALL": "C"}), "ours": lambda p=path: _ingest(p, work)},
            repeats,
        )
        _row(name, "grep -c -F, 2 needles", taken["floor"], taken["ours"], goal, mb)


def _json(work: Path, mb: int, repeats: int) -> None:
    for name, broken in (("JSON lines, clean", 0.0), ("JSON lines, 1% broken", 0.01)):
        path = _made(
            work / f"rounds-{broken}-{mb}.jsonl", lambda p, b=broken: json_lines(p, mb * 1_000_000, b, cut=None)
        )
        clean = work / f"rounds-0.0-{mb}.jsonl"
        taken = in_turns(
            {
                "own": lambda p=clean: _copy(p, work, "own"),
                "all": lambda p=clean: _copy(p, work, "all"),
                "ours": lambda p=path: _ingest(p, work),
            },
            repeats,
        )
        goal = 1.67 if broken else 1.18
        _row(name, "COPY, file's columns", taken["own"], taken["ours"], goal, mb)
        _row(name, "COPY, lake's columns", taken["all"], taken["ours"], goal, mb)


def _made(path: Path, make: object) -> Path:
    if not path.exists():
        make(path)  # type: ignore[operator]
    return path


def _ingest(path: Path, work: Path) -> Sample:
    lake = work / "lake"
    shutil.rmtree(lake, ignore_errors=True)
    return run(
        [sys.executable, "-m", "tracelens", "ingest", str(path), "--lake", str(lake), "--year", "2026", "--tz", "UTC"]
    )


def _copy(path: Path, work: Path, columns: str) -> Sample:
    return run([sys.executable, "-c", _COPY, str(path), str(work / "floor.parquet"), columns])


def _row(name: str, floor: str, base: Sample, ours: Sample, goal: float | None, mb: int) -> None:
    print(
        f"{name:<26}{floor:<22}{base.cpu:>9.2f}{ours.cpu:>9.2f}{ours.cpu / base.cpu:>7.1f}x"
        f"{f'{goal:g}x' if goal else '–':>7}{mb / ours.cpu:>7.0f}{ours.rss_mb:>9.0f}{base.wall:>7.1f}{ours.wall:>7.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
