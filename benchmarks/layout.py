"""`python -m benchmarks.layout FILE`: a file of rounds written anew in other ways; what writing and reading it takes.

FILE is one of a lake that `benchmarks.lakes` made. What changes is the order of rows, the rows a group, the zstd level.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.lake.connection import silent
from tracelens.lake.parquet import LEVEL, ROW_GROUP

if TYPE_CHECKING:
    import duckdb

ORDERS = {"time": "ts, source_line", "request": "request_id, round_index", "task, time": "task_type, ts, source_line"}
# Name, order, rows a group, how it is compressed.
WAYS = (
    ("as the lake has it", "time", ROW_GROUP, f"compression zstd, compression_level {LEVEL}"),
    ("by request", "request", ROW_GROUP, f"compression zstd, compression_level {LEVEL}"),
    ("by task, then time", "task, time", ROW_GROUP, f"compression zstd, compression_level {LEVEL}"),
    ("groups of 491,520", "time", 4 * ROW_GROUP, f"compression zstd, compression_level {LEVEL}"),
    ("groups of 30,720", "time", ROW_GROUP // 4, f"compression zstd, compression_level {LEVEL}"),
    ("zstd 1", "time", ROW_GROUP, "compression zstd, compression_level 1"),
    ("zstd 9", "time", ROW_GROUP, "compression zstd, compression_level 9"),
    ("no dictionary", "time", ROW_GROUP,
     f"compression zstd, compression_level {LEVEL}, dictionary_size_limit 1"),
    ("snappy", "time", ROW_GROUP, "compression snappy"),
)  # fmt: skip
READS = {
    "alpha": "select task_type, sum(accepted) / sum(drafted) from '{0}' group by 1",
    "by request": "select count(*) from (select request_id, sum(accepted), sum(step_us) from '{0}' group by 1)",
    "one hour": "select sum(accepted) from '{0}' where ts >= date_trunc('day', (select min(ts) from '{0}'))"
    " + interval 5 hour and ts < date_trunc('day', (select min(ts) from '{0}')) + interval 6 hour",
    "one task": "select sum(step_us) from '{0}' where task_type = 'extraction'",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layout", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=3, help="reads of each; the least is told (default 3)")
    given = parser.parse_args()
    print(f"{'way':<22}{'write s':>8}{'B/row':>7}" + "".join(f"{name:>12}" for name in READS) + "   (read: CPU ms)")
    with tempfile.TemporaryDirectory() as folder:
        con = silent()
        con.execute("set memory_limit = '2GB'")
        con.execute(f"set temp_directory = '{folder}'")
        for name, order, rows, how in WAYS:
            print(
                _line(con, given.file, Path(folder) / "way.parquet", (name, order, rows, how), given.repeats),
                flush=True,
            )


def _line(
    con: duckdb.DuckDBPyConnection, source: Path, target: Path, way: tuple[str, str, int, str], repeats: int
) -> str:
    name, order, rows, how = way
    con.execute(f"create or replace temp table sorted as from '{source}' order by {ORDERS[order]}")
    begun = time.process_time()
    [(written,)] = con.execute(f"copy sorted to '{target}' (format parquet, row_group_size {rows}, {how})").fetchall()
    spent, size = time.process_time() - begun, target.stat().st_size
    told = f"{name:<22}{spent:>8.2f}{size / written:>7.2f}"
    for sql in READS.values():
        told += f"{min(_timed(con, sql.format(target)) for _ in range(repeats)) * 1000:>12.0f}"
    return told


def _timed(con: duckdb.DuckDBPyConnection, sql: str) -> float:
    begun = time.process_time()
    con.execute(sql).fetchall()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
