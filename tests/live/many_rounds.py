"""A seeded lake of many rounds: six runs of two models and one without speculation, ten days, eight requests a step.

python tests/live/many_rounds.py LAKE ROUNDS
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
from lakes import write_lake

from tracelens.lake.schema import table

DAYS, RUNS, BASELINE = 10, 6, 5
FIRST = dt.datetime(2026, 11, 1)
_SQL = {
    "string": "varchar", "int32": "integer", "int64": "bigint", "double": "double", "bool": "boolean",
    "timestamp[us]": "timestamp", "map<string,string>": "map(varchar, varchar)", "list<int64>": "bigint[]",
}  # fmt: skip


def many_rounds(lake: Path, rounds: int) -> Path:
    """Write the lake; about `rounds` rounds, and a request for some 110 of them."""
    each = rounds // (DAYS * RUNS)
    parts = [(run, day, f"{run * 100 + day:016x}") for run in range(RUNS) for day in range(DAYS)]
    runs = [
        {"run_id": f"run{run}", "engine": "vllm", "model": _model(run), "source_id": f"{run:016x}",
         "num_speculative_tokens": _k(run) or None, "role": "baseline" if run == BASELINE else None}
        for run in range(RUNS)
    ]  # fmt: skip
    sources = [
        {"source_id": source, "name": f"run{run}-{day}.jsonl", "sha256": source * 4, "bytes": each * 400, "lines": each,
         "surfaces": [("generic.round", each)], "rows": [("rounds", each)], "rejects": 0, "schema_version": 1}
        for run, day, source in parts
    ]  # fmt: skip
    write_lake(lake, runs=runs, sources=sources)
    con = duckdb.connect()
    for run, day, source in parts:
        _write(con, lake, run, FIRST + dt.timedelta(days=day), source, each)
    con.close()
    return lake


def _model(run: int) -> str:
    return "m-70b" if run % 2 else "m-8b"


def _k(run: int) -> int:
    return 0 if run == BASELINE else 3 + 2 * (run % 2)


def _write(con: duckdb.DuckDBPyConnection, lake: Path, run: int, day: dt.datetime, source: str, rounds: int) -> None:
    k, folder = _k(run), f"date={day:%Y-%m-%d}"
    step = f"17600 + {k} * 950 + u3 % 4000 + u2 % 300"
    moment = f"timestamp '{day:%Y-%m-%d}' + to_microseconds((step * (86400e6 / ({rounds} / 8.0 + 1)))::bigint)"
    common = {
        "run_id": f"'run{run}'", "engine": "'vllm'", "model": f"'{_model(run)}'", "source_id": f"'{source}'",
        "request_id": f"'chatcmpl-' || md5('{source}' || req)", "ts_basis": "'absolute'", "top_p": "1.0",
    }  # fmt: skip
    of_rounds = {
        **common, "surface": "'generic.round'", "source_line": "line", "ts": moment, "round_index": "ri",
        "task_type": "task", "temperature": "if(u1 % 3 = 0, 0.0, 0.7)", "step_id": "'s' || step", "step_share": "0.125",
        "batch_size": "8", "context_len": "200 + ri * 4 + u1 % 6000", "drafted": str(k), "accepted": "acc",
        "emitted": "acc + 1", "draft_us": f"if({k} > 0, {k} * 900 + u2 % 300, null)", "step_us": step,
        "target_us": f"if({k} > 0, 17000 + u3 % 4000, null)", "num_speculative_tokens": f"nullif({k}, 0)",
    }  # fmt: skip
    of_requests = {
        **common, "surface": "'generic.request'", "source_line": "10000000 + req", "ts_end": f"max({moment})",
        "task_type": "any_value(task)", "temperature": "any_value(if(u1 % 3 = 0, 0.0, 0.7))",
        "prompt_tokens": "any_value(200 + u1 % 6000)", "output_tokens": "sum(acc + 1)", "decode_us": f"sum({step})",
        "ttft_us": "100000",
    }  # fmt: skip
    rows = f"""
    with requests as (
      select i as req, (20 + hash(i, {run}, '{source}') % 181)::bigint as n, hash(i, 77, {run}) as u1,
             ['chat', 'code', 'math', 'summarise'][(1 + hash(i, {run}) % 4)::bigint] as task
      from range({rounds // 110 + 2}) t(i)
    ), single as (
      select req, task, u1, unnest(range(n)) as ri from requests
    ), placed as (
      select *, row_number() over (order by req // 8, ri, req) as line from single
    ), drawn as (
      select *, line // 8 as step, hash(line, '{source}', 1) % 1000 as u, hash(line // 8, {run}, 2) as u2,
             hash(line // 8, '{source}', 3) as u3
      from placed where line <= {rounds}
    ), told as (
      select *, least({k}, len(list_filter([250, 450, 620, 760, 860], lambda x: u >= x))) as acc from drawn
    )
    """
    for name, cells, rest in (("rounds", of_rounds, "order by line"), ("requests", of_requests, "group by req")):
        (lake / name / folder).mkdir(parents=True, exist_ok=True)
        target = lake / name / folder / f"{source}-0.parquet"
        con.execute(f"copy ({rows} select {_columns(name, cells)} from told {rest}) to '{target}' (compression zstd)")


def _columns(name: str, cells: Mapping[str, str]) -> str:
    return ", ".join(f"cast({cells.get(c.name, 'null')} as {_SQL[c.arrow]}) as {c.name}" for c in table(name).columns)


if __name__ == "__main__":
    many_rounds(Path(sys.argv[1]), int(sys.argv[2]))
