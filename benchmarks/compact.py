"""`python -m benchmarks.compact [--rounds 4000000] [--files 200]`: what `tracelens compact` saves, and what it costs.

A lake as one engine writes it: batches of about 32 requests, a step every 30 ms, K = 5, five classes of traffic, in
many small files. It is merged, then rolled up; `report` runs on the lake as it was and on both.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Sample, in_turns, run
from tracelens.lake import ledger
from tracelens.lake.connection import silent
from tracelens.lake.schema import table
from tracelens.lake.store import Store

_DAY = "2026-05-06"
# Requests begin every 0.14 s and take 60 to 239 rounds of 30 ms: 32 at a time.
_EVERY_S, _STEP_S, _ROUNDS = 0.14, 0.03, 149.5
_ROWS = """
with request as (
  select i, timestamp '{day} 01:00:00' + to_microseconds((i * {every} * 1e6)::bigint) as begun,
         60 + (hash(i, 1) % 180)::integer as rounds, 200 + (hash(i, 2) % 3000)::integer as prompt,
         0.5 + (i % 5) * 0.09 + (hash(i, 3) % 100) / 1000.0 as ease
  from range({first}, {last}) t(i)
), round as (
  select *, unnest(range(0, rounds)) as x from request
), drawn as (
  select *, begun + to_microseconds((x * {step} * 1e6)::bigint) as ts,
         least(5, floor(ln((hash(i, x, 4) % 1000000 + 1) / 1e6) / ln(ease)))::integer as a
  from round
), stepped as (
  select *, epoch_us(ts) // 30000 as step, 28 + (hash(epoch_us(ts) // 3000000) % 9)::integer as batch from drawn
)
select {columns} from stepped order by step, i
"""
_CELLS = {
    "run_id": "'k5'", "engine": "'vllm'", "model": "'big'", "method": "'eagle3'", "num_speculative_tokens": "5",
    "task_type": "['chat', 'code', 'extract', 'math', 'write'][i % 5 + 1]", "temperature": "[0.0, 0.7][i % 2 + 1]",
    "top_p": "0.95", "surface": "'generic.round'", "ts_basis": "'absolute'", "source_id": "'{source}'",
    "source_line": "row_number() over ()", "ts": "ts", "request_id": "'request-' || lpad(i::varchar, 9, '0')",
    "round_index": "x", "step_id": "step::varchar", "step_share": "1.0 / batch", "batch_size": "batch",
    "context_len": "prompt + 3 * x", "drafted": "5", "accepted": "a",
    "emitted": "if(hash(i, x, 5) % 50 = 0, greatest(a, 1), a + 1)", "draft_us": "5200 + (hash(step, 6) % 900)::bigint",
    "target_us": "21000 + (hash(step, 7) % 4000)::bigint", "step_us": "29000 + (hash(step, 8) % 5000)::bigint",
    "timing_basis": "'device'", "has_prefill": "hash(step, 9) % 20 = 0",
}  # fmt: skip


def make(root: Path, rounds: int, files: int) -> Path:
    """Write the lake."""
    store = Store(root)
    requests = max(files, round(rounds / _ROUNDS))
    types = table("rounds").duckdb_types()
    with store.transaction() as txn:
        for number in range(files):
            source = f"{number:016x}"
            cells = ", ".join(f"({_CELLS.get(c, 'null')})::{t} as {c}" for c, t in types.items())
            sql = _ROWS.format(
                day=_DAY, every=_EVERY_S, step=_STEP_S, first=requests * number // files,
                last=requests * (number + 1) // files, columns=cells.format(source=source),
            )  # fmt: skip
            to = txn.path(f"rounds/date={_DAY}/{source}-0.parquet")
            con = silent()
            con.execute(f"copy ({sql}) to '{to}' (format parquet, compression zstd, row_group_size 122880)")
            con.close()
        entries = [
            {"source_id": f"{n:016x}", "name": f"{n}.jsonl", "sha256": f"{n:064x}", "schema_version": 1}
            for n in range(files)
        ]
        ledger.write(entries, txn.path("sources/made.parquet"))
        txn.commit()
    return root


def _tool(*args: str | Path) -> Sample:
    return run([sys.executable, "-m", "tracelens", *map(str, args)])


def _lake(name: str, root: Path) -> str:
    con = silent()
    there = f"read_parquet('{root}/rounds/**/*.parquet', union_by_name = true)"
    rows, weight = con.sql(f"select count(*), sum(coalesce(weight, 1)) from {there}").fetchall()[0]
    files = [p for p in root.glob("rounds/*/*.parquet") if p.name != "empty.parquet"]
    size = sum(p.stat().st_size for p in files)
    return f"{name:<10}{len(files):>7}{size / 1e6:>9.1f}{rows:>12,}{weight:>14,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compact", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4_000_000)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="tracelens-bench-"))
    try:
        lakes = {"as it was": make(work / "a", options.rounds, options.files)}
        for name, before, more in (("merged", "as it was", ()), ("rolled up", "merged", ("--before", "2026-05-07"))):
            lakes[name] = Path(shutil.copytree(lakes[before], work / name.replace(" ", "-")))
            cost = _tool("compact", "--lake", lakes[name], *more)
            print(f"{name}: {cost.cpu:.1f} CPU s, peak {cost.rss_mb:.0f} MB")
        reports = in_turns({n: lambda at=at: _tool("report", "--lake", at) for n, at in lakes.items()}, options.repeats)
        print(f"{'lake':<10}{'files':>7}{'MB':>9}{'rows':>12}{'rounds':>14}{'report CPU s':>14}{'peak MB':>9}")
        for name, root in lakes.items():
            print(f"{_lake(name, root)}{reports[name].cpu:>14.1f}{reports[name].rss_mb:>9.0f}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
