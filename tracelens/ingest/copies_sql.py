"""What makes two records of a table the same, and two sources copies of each other: the SQL behind `copies`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.lake.connection import answered

if TYPE_CHECKING:
    import duckdb

# Fewer tokens are alike by chance: two servers print "3 of 5" within the same second.
LEAST_DRAFTED = 20
# The share of the records in the time that both sources cover that are the same in copies of each other.
LEAST_SHARE = 0.5
# Copies whose runs have other names, or whose stamps or latencies differ, need more.
LEAST_SHARE_APART = 0.9
LEAST_RECORDS_APART = 10
LEAST_REQUESTS_APART = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """Of one table: when a record was, its values, and which records can be told from all others at all.

    `near` is what stays the same in another gateway's log or wrapping, where the stamp is up to `apart` seconds away;
    `enough` says how many of those (`same`) of the `fewest` that one of two sources has make copies of them.
    """

    at: str
    values: str
    eligible: str
    strong: str
    named: str
    near: str | None = None
    apart: int = 0
    enough: str = "false"


_TIMES = "draft_us, target_us, sample_us, rollback_us, repack_us, emit_lag_us, step_us"
_IS_NAMED = "request_id is not null and request_id <> source_id || '#' || coalesce(source_line, 0)"
# llama.cpp numbers its tasks from 0, and so do others: no such id names a request of all the world.
_IS_GLOBAL = (
    f"({_IS_NAMED} and engine <> 'llama.cpp' and (length(request_id) >= 5"
    " or not regexp_full_match(request_id, '[0-9]+')))"
)
_OWN_ID = f"case when {_IS_NAMED} then request_id end"
_COUNTS = (
    "engine, surface, replica, prompt_tokens, output_tokens, rounds, drafted, accepted, emitted, accepted_hist, error"
)
_SPENT = "coalesce(decode_us, e2e_us, ttft_us, tpot_us::bigint)"
# A line about drafts has its load from the line before it: the first of a copy may lack it.
_LOAD = ", ".join(f"case when drafted is null then {c} end" for c in ("running", "waiting", "kv_cache_usage"))
# Two servers that draft nothing count nothing alike but this.
_TOKENS = ", ".join(f"case when coalesce(drafted, 0) = 0 then {c} end" for c in ("generated_tokens", "prompt_tokens"))
_WINDOW = (
    "engine, surface, process, coalesce(drafted, rounds, plain_steps), accepted, v0_matched, preemptions,"
    f" draft_ms_per_token, {_LOAD}, {_TOKENS}, {_TIMES}"
)

# Left out: what a row takes from its run or from options, and what is derived from rows around it (a copy may begin
# behind them): the number of a round in its request, a window's start, the rounds that a configured K tells.
IDENTITY = {
    "rounds": Identity(
        at="ts",
        values=f"engine, surface, replica, process, request_id, context_len, drafted, accepted, emitted, {_TIMES}",
        eligible=f"(ts is not null or greatest({_TIMES}) > 0)",
        strong=f"(ts is not null and {_IS_GLOBAL}) or greatest({_TIMES}) > 0 or microsecond(ts) % 1000000 > 0",
        named=_IS_GLOBAL,
    ),
    "windows": Identity(
        at="ts_end",
        values=_WINDOW,
        eligible="ts_end is not null",
        strong=f"drafted >= {LEAST_DRAFTED} or greatest({_TIMES}) > 0 or generated_tokens >= {LEAST_DRAFTED}",
        named="false",
        near=_WINDOW,
        apart=2,
        enough=f"same >= {LEAST_RECORDS_APART} and same >= {LEAST_SHARE_APART} * fewest",
    ),
    "requests": Identity(
        at="coalesce(ts_end, ts_start)",
        values=f"{_COUNTS}, {_OWN_ID}, ttft_us, decode_us, e2e_us, queue_us, tpot_us, {_SPENT}",
        eligible=f"(coalesce(ts_end, ts_start) is not null or {_SPENT} is not null)",
        strong=f"{_SPENT} is not null",
        named=_IS_GLOBAL,
        near=f"{_COUNTS}, {_OWN_ID}",
        apart=5,
        enough=f"same >= {LEAST_REQUESTS_APART} and same >= {LEAST_SHARE} * fewest",
    ),
}


def same(
    con: duckdb.DuckDBPyConnection,
    table: str,
    files: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    begun: Collection[tuple[str, str]] = (),
    merged: Sequence[str] = (),
    new: Sequence[str] = (),
) -> list[tuple[str, str, int, int]]:
    """Lines that hold records of an earlier source.

    Args:
        con: any connection.
        table: rounds, windows or requests.
        files: the Parquet files of all sources in `pairs`.
        pairs: sources to compare: the later one, the earlier one.
        begun: those of them that begin with the same text; there the same record in the same line needs no stamp.
        merged: those of the files that lie in the lake and hold several sources.
        new: sources that were just read; what `merged` has of them is of an earlier reading, on its way out.

    Returns:
        Source, earlier source, the first and the last of lines of the source that are all copies.
    """
    identity = IDENTITY[table]
    names = _number(con, pairs, begun)
    near = f"hash({identity.near})" if identity.near else "null::ubigint"
    answered(
        con,
        f"create or replace temp table marked as select n as source, source_line, {_short('surface')},"
        f" {_short('run_id')}, {_short('replica')},"
        f" {identity.at} as stamp, {identity.eligible} as usable,"
        f" usable and coalesce({identity.strong}, false) as strong, coalesce({identity.named}, false) as named,"
        f" hash({identity.values}) as value, {near} as near,"
        f" {_SERIES if table == 'windows' else _NO_SERIES}"
        " from read_parquet($1, union_by_name = true, filename = 'file') join sources using (source_id)"
        " where source_line is not null"
        " and not (list_contains($2::varchar[], file) and list_contains($3::varchar[], source_id))",
        [list(files), list(merged), list(new)],
    )
    counters = _any(con, "select 1 from marked where series.first")
    if not (begun or counters or _any(con, _MET)):
        return []
    steps = [_EXTENTS, _MATCHES.format(key="strong"), _VERDICTS, _MATCHES.format(key="usable"), _TAKEN]
    steps += [_BEGUN] * bool(begun) + [_FIRST_VALUES] * counters
    steps += [_NEAR.format(apart=identity.apart, enough=identity.enough)] * bool(identity.near)
    for step in steps:
        answered(con, step)
    return [(names[source], names[other], first, last) for source, other, first, last in answered(con, _LINES)[1]]


def _number(
    con: duckdb.DuckDBPyConnection, pairs: Sequence[tuple[str, str]], begun: Collection[tuple[str, str]]
) -> list[str]:
    """Make `sources` and `pairs`, with a number for every source: names in every row took more than what is compared.

    Returns:
        The names, by number.
    """
    names = sorted({name for pair in pairs for name in pair})
    numbers = {name: n for n, name in enumerate(names)}
    answered(
        con,
        "create or replace temp table sources as select unnest($1) as source_id, unnest($2)::integer as n",
        [names, list(numbers.values())],
    )
    answered(
        con,
        "create or replace temp table pairs as select unnest($1)::integer as source, unnest($2)::integer as other,"
        " unnest($3) as begun",
        [[numbers[p[0]] for p in pairs], [numbers[p[1]] for p in pairs], [p in begun for p in pairs]],
    )
    return names


def _short(column: str) -> str:
    """A column of names as numbers: they are compared, never shown."""
    return f"case when {column} is not null then hash({column}) end as {column}"


def _any(con: duckdb.DuckDBPyConnection, of: str) -> bool:
    return bool(answered(con, f"select exists({of})")[1][0][0])


# Whether any value is in two sources at all: mostly none is, and all else is spared.
_MET = "select 1 from marked where usable group by coalesce(near, value) having min(source) <> max(source)"

_EXTENTS = """
create or replace temp table extents as
select source, surface, min(stamp) as low, max(stamp) as high
from marked where usable group by source, surface
"""

# The same value at the same time, one to one: what is there twice in both sources is two pairs.
_MATCHES = """
create or replace temp table matches as
with met as (
  select value, stamp from marked where {key} group by value, stamp having min(source) <> max(source)
), numbered as (
  select m.source, m.source_line, m.surface, m.run_id, m.replica, m.stamp, m.strong, m.named, m.value,
         row_number() over (partition by m.source, m.value, m.stamp order by m.source_line) as nth
  from marked m semi join met on met.value = m.value and met.stamp is not distinct from m.stamp where {key}
)
select b.source, a.source as other, b.surface, b.source_line, a.run_id = b.run_id as same_run, b.named, b.strong
from numbered b join pairs p on p.source = b.source
join numbered a on a.source = p.other and a.value = b.value and a.stamp is not distinct from b.stamp
                   and a.nth = b.nth and coalesce(a.replica = b.replica, true)
"""

# Of the time that both cover: records of the one that has fewer, and how many are the same. Where there are no stamps,
# times to the microsecond must do, and many of them.
_VERDICTS = f"""
create or replace temp table verdicts as
with counted as (
  select source, other, surface, count(*) as same, bool_and(same_run) as same_run, bool_and(named) as named
  from matches group by source, other, surface
), common as (
  select c.*, greatest(a.low, b.low) as low, least(a.high, b.high) as high
  from counted c join extents a on a.source = c.other and a.surface = c.surface
  join extents b on b.source = c.source and b.surface = c.surface
), held as (
  select c.source, c.other, c.surface, m.source as holder, count(*) as records
  from common c join marked m
    on m.surface = c.surface and m.source in (c.source, c.other) and m.strong
       and (c.low is null or m.stamp between c.low and c.high)
  group by all
), fewest as (
  select source, other, surface, min(records) as records from held group by source, other, surface
)
select c.source, c.other, c.surface
from common c join fewest f using (source, other, surface)
where case when c.low is null then same >= {LEAST_RECORDS_APART}
           when same_run or named then same >= {LEAST_SHARE} * f.records
           else same >= {LEAST_SHARE_APART} * f.records and same >= {LEAST_RECORDS_APART} end
"""

_TAKEN = "create or replace temp table taken as from matches semi join verdicts using (source, other, surface)"

# Pairs of sources that have no record at the very same time: the same values some seconds away. Of a value that two
# sources share, two neighbours in time are of two sources: only where any such two are near enough is it worth the
# numbering, which is for every pair of sources anew.
_NEAR = """
insert into taken
with apart as (
  select p.source, p.other, b.surface, greatest(a.low, b.low) - to_seconds({apart}) as low,
         least(a.high, b.high) + to_seconds({apart}) as high
  from pairs p join extents b on b.source = p.source
  join extents a on a.source = p.other and a.surface = b.surface
  where (p.source, p.other, b.surface) not in (select (source, other, surface) from verdicts)
), shared as (
  select near from marked where usable and (named or strong) and stamp is not null
  group by near having min(source) <> max(source)
), beside as (
  select near, source <> lag(source) over in_time and epoch(stamp) - lag(epoch(stamp)) over in_time <= {apart} as meets
  from marked semi join shared using (near) where stamp is not null
  window in_time as (partition by near order by stamp)
), met as (
  select distinct near from beside where meets
), reached as (
  select r.source, r.other, m.source as holder, m.source_line, m.surface, m.run_id, m.stamp, m.strong, m.named, m.near
  from marked m semi join met using (near)
  join apart r on r.surface = m.surface and m.source in (r.source, r.other) and m.stamp between r.low and r.high
), numbered as (
  select *, row_number() over (partition by source, other, holder, near order by stamp, source_line) as nth
  from reached
), paired as (
  select b.source, b.other, b.surface, b.source_line, a.run_id = b.run_id as same_run, b.named, b.strong
  from numbered b join numbered a
    on b.holder = b.source and a.holder = a.other and a.source = b.source and a.other = b.other
       and a.near = b.near and a.nth = b.nth and abs(epoch(a.stamp) - epoch(b.stamp)) <= {apart}
), held as (
  select r.source, r.other, r.surface, m.source as holder, count(*) as records
  from apart r join marked m on m.surface = r.surface and m.source in (r.source, r.other)
       and (m.named or m.strong) and m.stamp between r.low and r.high
  where (r.source, r.other, r.surface) in (select (source, other, surface) from paired)
  group by all
), verdict as (
  select source, other, surface
  from (select source, other, surface, count(*) as same from paired group by all)
  join (select source, other, surface, min(records) as fewest from held group by all) using (source, other, surface)
  where {enough}
)
from paired semi join verdict using (source, other, surface)
"""

# Sources whose first bytes are the same: there the line tells which record is which.
_BEGUN = """
insert into taken
select b.source, a.source, b.surface, b.source_line, a.run_id = b.run_id, b.named, b.strong
from pairs p join marked b on b.source = p.source
join marked a on a.source = p.other and a.source_line = b.source_line and a.value = b.value
where p.begun and not exists(select 1 from taken t where t.source = p.source and t.other = p.other
                               and t.surface = b.surface and t.source_line = b.source_line)
"""

# The first value of a counter in a log of scrapes is all that it counted before: where another log's windows sum up to
# just that, at that very moment, they are what it counts.
_SERIES = (
    "{'first': ts_start is null and ts_end is not null and drafted is not null, 'drafted': drafted,"
    " 'accepted': coalesce(accepted, 0), 'name': hash(engine, surface, replica, process, model)} as series"
)
_NO_SERIES = "null::struct(first boolean) as series"
_FIRST_VALUES = f"""
insert into taken
with summed as (
  select source, run_id, stamp, series.name as name, series.first as first, sum(series.drafted) over running as drafted,
         sum(series.accepted) over running as accepted
  from marked where usable and series.drafted is not null
                    and series.name in (select series.name from marked where series.first)
  window running as (partition by source, series.name order by stamp, source_line)
)
select b.source, a.source, b.surface, b.source_line, a.run_id = b.run_id, b.named, b.strong
from pairs p join marked b on b.source = p.source and b.series.first
join summed a on a.source = p.other and a.name = b.series.name and a.stamp = b.stamp
     and a.drafted = b.series.drafted and a.accepted = b.series.accepted and not a.first
where b.series.drafted >= {LEAST_DRAFTED}
union all
select c.source, a.source, c.surface, c.source_line, a.run_id = c.run_id, c.named, c.strong
from pairs p join marked a on a.source = p.other and a.series.first
join summed b on b.source = p.source and a.series.name = b.name and a.stamp = b.stamp
     and b.drafted = a.series.drafted and b.accepted = a.series.accepted and not b.first
join marked c on c.source = p.source and c.usable and c.series.name = a.series.name and c.stamp <= a.stamp
where a.series.drafted >= {LEAST_DRAFTED}
"""

# A line is a copy where all of its records are. Ranges, for a copy may have a million lines, all one behind the other.
_LINES = """
with copied as (
  select source, other, surface, source_line, count(*) as records from taken group by all
), whole as (
  select source, source_line, surface, count(*) as records from marked m
  semi join copied using (source, source_line, surface) group by all
), lines as (
  select distinct c.source, c.other, c.source_line as line
  from copied c join whole w using (source, surface, source_line) where c.records >= w.records
), placed as (
  select *, line - row_number() over (partition by source, other order by line) as island from lines
)
select source, other, min(line), max(line) from placed group by source, other, island
"""
