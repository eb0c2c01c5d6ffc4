"""`python -m benchmarks.lakes PLACE [--rounds 10000000]`: a seeded lake of rounds and requests of a wanted size.

DuckDB writes the rows; names, types, compression, row groups, folders and the commit are the project's own. Every day
has five logs, one a server: three that speculate (K = 5, 3 and 7), and two small ones of their two models without
speculation. A server has 8 to 32 lanes; in each one request of 20 to 200 rounds comes after another, so requests share
the steps of the engine, whose times they carry. Task types differ in acceptance. A request's record holds its times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.lake import ledger
from tracelens.lake.connection import silent
from tracelens.lake.parquet import COMPRESSION, LEVEL, ROW_GROUP, write_table
from tracelens.lake.schema import table
from tracelens.lake.store import Store, Transaction

if TYPE_CHECKING:
    import duckdb

FIRST_DAY = date(2026, 4, 1)
DAYS = 10


@dataclass(frozen=True, slots=True)
class Server:
    """What one log is of: how it speculates, its share of a day's rounds, and how its requests are called."""

    run: str
    model: str
    k: int
    lanes: int
    share: float
    prefix: str
    draft_us: int
    step_us: int


SERVERS = (
    Server("chat-a", "target-72b", 5, 16, 0.40, "chatcmpl-", 1500, 19_000),
    Server("chat-b", "target-72b", 3, 8, 0.25, "req-", 1500, 18_000),
    Server("code", "target-8b", 7, 32, 0.25, "cmpl-", 600, 7_000),
    Server("plain-72b", "target-72b", 0, 16, 0.05, "req-", 0, 17_000),
    Server("plain-8b", "target-8b", 0, 32, 0.05, "req-", 0, 6_200),
)

# u(n, salt): a number in 0..1 that is the same for the same n. Of a single argument, for hash(a, b) is correlated.
_MACROS = """
create or replace macro u(n, salt) as hash(n::ubigint * 1024 + salt)::double / 18446744073709551616.0;
create or replace macro task_of(x) as case when x < 0.40 then 'chat' when x < 0.65 then 'code' when x < 0.80
  then 'extraction' when x < 0.92 then 'summarise' else 'writing' end;
create or replace macro chance_of(task) as case task when 'code' then 0.86 when 'extraction' then 0.82 when 'chat'
  then 0.72 when 'summarise' then 0.68 else 0.55 end;
"""

# Requests, lane by lane: where each begins (a step of its server) and how long it is.
_REQUESTS = """
create or replace temp table made as
with drawn as (
  select lane, n, $source::bigint * 16777216 + lane * 262144 + n as id, 20 + (u(id, 1) * 181)::integer as length
  from range($lanes) lanes(lane), range($steps // 20 + 1) counts(n)
), placed as (
  select *, coalesce(sum(length) over (partition by lane order by n
                                       rows between unbounded preceding and 1 preceding), 0)::bigint as first_step
  from drawn
)
select *, task_of(u(id, 2)) as task, chance_of(task) + 0.16 * (u(id, 3) - 0.5) as chance,
       100 + (u(id, 4) ** 3 * 6000)::integer as prompt,
       case task when 'code' then 0.0 when 'extraction' then 0.0 when 'summarise' then 0.2 when 'chat' then 0.7
            else 0.9 end::double as temperature,
       $prefix || format('{:016x}{:016x}', hash(id), hash(id + 7))
         || case $prefix when 'chatcmpl-' then format('-{:08x}', hash(id) % 4294967296)
                         when 'cmpl-' then format('-0-{:08x}', hash(id) % 4294967296) else '' end as name
from placed where first_step < $steps
"""

# A step's times belong to the step: every row of it has them. The last round of a request may be cut short by its stop.
_ROUNDS = """
create or replace temp view rows_of as
with steps as materialized (
  select step, $source::bigint * 4294967296 + step as key,
         $day::timestamp + to_microseconds((step * (86400000000 / $steps))::bigint) as ts,
         ($draft_us * $k * (0.9 + 0.2 * u(key, 11)))::bigint as draft_us,
         ($step_us * (0.9 + 0.25 * u(key, 12)))::bigint as target_us, 200 + (u(key, 13) * 200)::bigint as sample_us,
         u(key, 14) < 0.02 as has_prefill
  from range($steps) steps(step)
), drawn as (
  select r.*, i, first_step + i as step,
         least($k, floor(ln(u((id * 256 + i), 21) + 1e-12) / ln(chance)))::integer as kept
  from made r, unnest(range(length)) as places(i) where first_step + i < $steps
)
select s.ts, name as request_id, i as round_index, 's' || step as step_id, 1.0 / $lanes as step_share,
       $lanes::integer as batch_size, prompt + 3 * i as context_len, $k::integer as drafted, kept as accepted,
       case when i = length - 1 then 1 + (kept * u((id * 256 + i), 22))::integer else kept + 1 end as emitted,
       case when $k > 0 then s.draft_us end as draft_us, s.target_us, s.sample_us,
       coalesce(s.draft_us, 0) + s.target_us + s.sample_us + 700 as step_us, 'device' as timing_basis, s.has_prefill,
       task as task_type, temperature, 1.0 as top_p, $run as run_id, 'vllm' as engine, '0' as replica,
       $model as model, case when $k > 0 then 'draft_model' end as method,
       case when $k > 0 then $k end as num_speculative_tokens, 'generic.round' as surface, 'absolute' as ts_basis,
       $source_id as source_id, step * $lanes + lane + 1 as source_line, id, length, step, lane
from drawn join steps s using (step)
"""

_RECORDS = """
select min(ts) as ts_start, max(ts) as ts_end, request_id, any_value(context_len) - 3 * any_value(round_index) as
         prompt_tokens, sum(emitted)::bigint as output_tokens, count(*) as iterations,
       sum(step_us)::bigint as decode_us, 30000 + (u(id, 31) * 400000)::bigint as ttft_us,
       ttft_us + decode_us as e2e_us, (u(id, 32) ** 4 * 50000)::bigint as queue_us,
       decode_us / nullif(output_tokens - 1, 0) as tpot_us, 'derived' as tpot_basis, 'stop' as finish_reason,
       false as error, any_value(task_type) as task_type, any_value(temperature) as temperature, 1.0 as top_p,
       any_value(run_id) as run_id, 'vllm' as engine, '0' as replica, any_value(model) as model,
       any_value(method) as method, any_value(num_speculative_tokens) as num_speculative_tokens,
       'generic.request' as surface, 'absolute' as ts_basis, $request_source as source_id,
       row_number() over (order by max(ts), id) as source_line
from rows_of group by id, request_id
"""

#: Orders of the rows within a file, by name.
ORDERS = {"time": "step, lane", "request": "id, round_index", "task": "task_type, step, lane"}


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a file lie: their order, rows a group, level of zstd."""

    order: str = "time"
    row_group: int = ROW_GROUP
    level: int = LEVEL


def lake(
    root: Path, rounds: int, *, days: int = DAYS, layout: Layout = Layout(), memory: str = "3GB", blanks: bool = False
) -> int:
    """Make a lake of about `rounds` rounds over `days` days.

    Args:
        root: folder of the new lake.
        rounds: how many rounds; what a server's last steps hold is a little more or less.
        days: daily partitions.
        layout: how the files lie.
        memory: what DuckDB may take for it.
        blanks: rounds do not know their task and temperature, which their requests' records tell.

    Returns:
        Rounds written.
    """
    store, con, written = Store(root), silent(), 0
    con.execute("set timezone = 'UTC'")
    con.execute("set memory_limit = $1", [memory])
    con.execute(f"set temp_directory = '{str(root / '.spill').replace(chr(39), chr(39) * 2)}'")
    con.execute(_MACROS)
    for number, (day, server) in enumerate((d, s) for d in range(days) for s in SERVERS):
        with store.transaction() as txn:
            steps = max(round(rounds / days * server.share / server.lanes), 40)
            written += _log(con, txn, number, FIRST_DAY + timedelta(day), server, steps, layout, blanks=blanks)
            txn.commit()
    con.close()
    return written


def _log(
    con: duckdb.DuckDBPyConnection, txn: Transaction, number: int, day: date, server: Server, steps: int,
    layout: Layout, *, blanks: bool,
) -> int:  # fmt: skip
    """Stage one server's day: its rounds, its requests, its run and both sources."""
    ids = [sha256(f"{kind} {number}".encode()).hexdigest()[:16] for kind in ("rounds", "requests")]
    values: dict[str, Any] = {
        "source": number, "lanes": server.lanes, "steps": steps, "prefix": server.prefix, "k": server.k,
        "day": day.isoformat(), "draft_us": server.draft_us, "step_us": server.step_us, "run": server.run,
        "model": server.model, "source_id": ids[0], "request_source": ids[1],
    }  # fmt: skip
    con.execute(_filled(_REQUESTS, values))
    con.execute(_filled(_ROUNDS, values))
    rounds = _copied(con, "rounds", "from rows_of", txn, f"date={day}/{ids[0]}", layout, blanks=blanks)
    requests = _copied(con, "requests", _filled(_RECORDS, values), txn, f"date={day}/{ids[1]}", Layout("", ROW_GROUP))
    for kind, source, rows in (("round", ids[0], rounds), ("request", ids[1], requests)):
        ledger.write([_entry(source, f"{server.run}-{day}.{kind}s.jsonl", f"{kind}s", rows)],
                     txn.path(f"sources/{source}.parquet"))  # fmt: skip
    _runs(txn, server, ids[0])
    return rounds


def _filled(sql: str, values: dict[str, Any]) -> str:
    """A statement with its values written into it: a view takes no parameters."""
    for name in sorted(values, key=len, reverse=True):
        text = f"'{values[name]}'" if isinstance(values[name], str) else str(values[name])
        sql = sql.replace(f"${name}", text)
    return sql


def _copied(
    con: duckdb.DuckDBPyConnection, kind: str, sql: str, txn: Transaction, stem: str, layout: Layout, *,
    blanks: bool = False,
) -> int:  # fmt: skip
    """Write rows as a canonical table, all of its columns in order."""
    have = {row[0] for row in con.execute(f"describe ({_select(sql)})").fetchall()}
    if blanks:
        have -= {"task_type", "temperature", "top_p"}
    types = table(kind).duckdb_types()
    listed = ", ".join(f"{n}::{t} as {n}" if n in have else f"null::{t} as {n}" for n, t in types.items())
    order = f" order by {ORDERS[layout.order]}" if layout.order else " order by ts_end, source_line"
    path = str(txn.path(f"{kind}/{stem}-0.parquet")).replace("'", "''")
    [(rows,)] = con.execute(
        f"copy (select {listed} from ({_select(sql)}){order}) to '{path}' (format parquet, compression {COMPRESSION}, "
        f"compression_level {layout.level}, row_group_size {layout.row_group})"
    ).fetchall()
    return int(rows)


def _select(sql: str) -> str:
    return sql if sql.lstrip().startswith("select") else f"select * {sql}"


def _entry(source: str, name: str, kind: str, rows: int) -> dict[str, Any]:
    return {
        "source_id": source, "name": name, "sha256": sha256(source.encode()).hexdigest(), "bytes": rows * 380,
        "lines": rows, "encoding": "utf-8", "compression": "none", "surfaces": {f"generic.{kind[:-1]}": rows},
        "rows": {kind: rows}, "rejects": 0, "unrecognised": 0, "ingested_at": datetime(2026, 4, 30, tzinfo=UTC)
        .replace(tzinfo=None), "tracelens_version": "0", "schema_version": 1, "request_ids": "kept",
    }  # fmt: skip


def _runs(txn: Transaction, server: Server, source: str) -> None:
    import polars as pl

    row = {
        "run_id": server.run, "scope": server.run, "engine": "vllm", "model": server.model, "source_id": source,
        "role": "speculative" if server.k else "baseline", "method": "draft_model" if server.k else None,
        "num_speculative_tokens": server.k or None,
    }  # fmt: skip
    types = table("runs").polars_schema()
    write_table("runs", pl.DataFrame([row], schema={k: types[k] for k in row}), txn.path, source)


def sizes(root: Path) -> Iterator[tuple[str, float]]:
    """MB of every table of a lake."""
    for name in ("rounds", "requests"):
        yield name, sum(p.stat().st_size for p in (root / name).rglob("*.parquet")) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lakes", description=__doc__)
    parser.add_argument("place", type=Path, help="folder of the new lake")
    parser.add_argument("--rounds", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--order", choices=sorted(ORDERS), default="time", help="order of the rows in a file")
    parser.add_argument("--row-group", type=int, default=ROW_GROUP)
    parser.add_argument("--level", type=int, default=LEVEL, help="level of zstd")
    parser.add_argument("--blanks", action="store_true", help="only requests know their task and sampling")
    given = parser.parse_args()
    layout = Layout(given.order, given.row_group, given.level)
    written = lake(given.place, given.rounds, days=given.days, layout=layout, blanks=given.blanks)
    told = ", ".join(f"{name} {size:,.0f} MB" for name, size in sizes(given.place))
    print(f"{written:,} rounds over {given.days} days in {given.place}: {told}")


if __name__ == "__main__":
    main()
