"""Records that are in the lake twice: the same log in two wrappings, or the same request at two gateways.

The ledger knows a file by its content, so a second copy of one file is never read. Of other content ingest finds the
copies (`same_as`), and the views pass over them: that is told. What it could not tell is counted, and told too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracelens.analysis.alarms.chosen import count, rows
from tracelens.analysis.alarms.looked_at import COPIES_ABOVE
from tracelens.analysis.results import Warning
from tracelens.lake.connection import kept

if TYPE_CHECKING:
    import duckdb

# A client may try a request again, and two replicas may count the same by chance: that is a few, this is a copy.
LEAST_RECORDS = 10
LEAST_SHARE = 0.05
# Two gateways stamp one request so far apart at most.
SAME_TIME_S = 5
# Windows that count less, and have no time of their own, are alike by chance.
LEAST_DRAFTED = 20

# The same id is no copy: benchmarks use their ids again in every run. The same id, the same tokens and the same time
# are. Records without an id of their own must agree in everything, to the microsecond.
_REQUESTS = f"""
with several as (
  select engine, surface from chosen_requests group by engine, surface having min(source_id) <> max(source_id)
), records as (
  select r.engine, r.surface, source_id, coalesce(ts_end, ts_start) as ts, output_tokens, accepted,
         coalesce(decode_us, e2e_us) as spent,
         case when named then key else concat_ws(' ', ts_end, prompt_tokens, output_tokens, accepted, spent) end as id
  from chosen_requests r semi join several using (engine, surface)
  where (named or (ts_end is not null and coalesce(decode_us, e2e_us) is not null)) and hash(hash(id)) % $1 = 0
), met as (
  select engine, surface, id, min(source_id) as source, max(source_id) as other, count(*) as copies,
         differs(output_tokens) + differs(accepted) = 0
           and (coalesce(epoch(max(ts)) - epoch(min(ts)) <= {SAME_TIME_S}, false)
                or coalesce(min(spent) = max(spent), false)) as same
  from records group by engine, surface, id
)
select 'requests' as kind, count(*) filter (same and source <> other) as twice, count(*) as records,
       (max([source, other]) filter (same and source <> other)) as sources
from met
"""

_WINDOWS = f"""
with met as (
  select min(source_id) as source, max(source_id) as other
  from chosen_windows where (drafted >= {LEAST_DRAFTED} or step_us > 0) and ts_end is not null
  group by engine, surface, replica, date_trunc('second', ts_end), drafted, accepted, rounds, running, step_us
)
select 'windows' as kind, count(*) filter (source <> other) as twice, count(*) as records,
       (max([source, other]) filter (source <> other)) as sources
from met
"""

_SEVERAL = """
select engine, surface from round_stamps where source is not null
group by engine, surface having min(source) <> max(other)
"""

_ROUNDS = f"""
with several as ({_SEVERAL}
), summed as (
  select engine, surface, request_id, source_id, sum(n) as n, sum(d) as d, sum(a) as a, min(low) as ts,
         sum(spent) as spent
  from round_samples semi join several using (engine, surface)
  where for_copies
  group by engine, surface, request_id, source_id
), met as (
  select min(source_id) as source, max(source_id) as other,
         differs(n) + differs(d) + differs(a) = 0
           and (coalesce(epoch(max(ts)) - epoch(min(ts)) <= {SAME_TIME_S}, false)
                or coalesce(min(spent) = max(spent), false)) as same
  from summed where is_global_id(engine, request_key(request_id)) group by engine, surface, request_id
)
select 'requests with rounds' as kind, count(*) filter (same and source <> other) as twice, count(*) as records,
       (max([source, other]) filter (same and source <> other)) as sources
from met
"""


# One source that holds its records twice: a shipper that sent again what it had sent, logs put together. Ids that
# stand twice (`met_again`) are few, but where two logs tell of each request: there a sample of them answers as well.
_REQUESTS_AGAIN = """
with met as (
  select r.engine, r.surface, r.source_id, r.key, count(*) as records,
         count(distinct (ts_start, ts_end, output_tokens, rounds, drafted, accepted, decode_us, e2e_us)) as forms
  from chosen_requests r join met_again m on m.engine = r.engine and m.join_key = r.key
  where named and coalesce(ts_end, ts_start) is not null and hash(r.key) % $1 = 0
  group by all
)
select 'requests' as kind, count(*) filter (records > forms) as twice,
       coalesce(sum(records) - count(*), 0)::bigint as again, mode(source_id) filter (records > forms) as source
from met
"""

_ROUNDS_AGAIN = """
with sampled as (
  select engine, surface, run_id, request_id, source_id, sum(n) as n, max(last_index) as last_index
  from round_samples where for_copies group by all
), many as (
  select * from sampled where n > last_index + 1
), met as (
  select r.engine, r.surface, r.run_id, r.request_id, r.source_id, count(*) as n,
         count(distinct (round_index, ts, drafted, accepted, emitted, step_us)) as forms
  from rounds r semi join many using (engine, surface, run_id, request_id, source_id)
  where round_index is not null group by all
)
select 'requests with rounds' as kind, count(*) filter (n > forms) as twice,
       (select count(*) from sampled) as records, mode(source_id) filter (n > forms) as source
from met
"""
# More rounds are not gone through once more for it.
_LOOKED_THROUGH = 5_000_000


_COPIES = """
select c.source_id, any_value(s.name) as name, any_value(o.name) as other, c.source_id = c.other_id as its_own,
       sum(c.last_line - c.first_line + 1)::bigint as lines
from copied_ranges c semi join chosen_sources t on t.source_id = c.other_id
join sources s on s.source_id = c.source_id join sources o on o.source_id = c.other_id
group by c.source_id, c.other_id order by lines desc, name, other
"""


_CONTINUED = """
with selected_sources as (select distinct source_id from selected)
select any_value(s.name) as name, any_value(o.name) as other, count(*) as windows, bool_or(c.by_name) as by_name
from continued c join sources s on s.source_id = c.source_id join sources o on o.source_id = c.other_id
where c.continues and c.other_id in (from selected_sources)
group by c.source_id, c.other_id order by windows desc, name, other
"""


def alarms(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Records of one surface that two sources hold alike: those that count once, and those that count twice."""
    every = _one_in(con)
    return [*_counted_once(con), *_continued(con), *_counted_twice(con, every), *_written_twice(con, every)]


def _counted_once(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    if not rows(con, "select exists(from copied_ranges) as any_copy")[0]["any_copy"]:
        return []
    found = rows(con, _COPIES)
    if not found:
        return []
    worst = found[0]
    more = f"; so in {len(found) - 1} more pairs of sources" if len(found) > 1 else ""
    lines, name = f"{worst['lines']:,} lines", worst["name"] or "a source"
    told = (
        f"{lines} hold records that stand before them in the same source ({name}): they are counted once"
        if worst["its_own"]
        else f"{lines} of {name} hold records that {worst['other'] or 'another'} holds too: they are counted once,"
        " as the other's"
    )
    text = f"{told}{more} (same_as in the table sources names them)"
    return [Warning("counted_once", text, {"lines": sum(f["lines"] for f in found), "pairs": len(found)})]


def _continued(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Counters of one process in several sources: what one of them tells of is not counted again in another."""
    found = rows(con, _CONTINUED)
    if not found:
        return []
    worst, by_name = found[0], sum(bool(f["by_name"]) for f in found)
    go = "windows of {} go" if worst["windows"] > 1 else "window of {} goes"
    more = f"; so in {len(found) - 1} more pairs of sources" if len(found) > 1 else ""
    guess = " (one server by its names, as it does not tell when it began: give two servers a --run each)"
    text = (
        f"{worst['windows']:,} {go.format(worst['name'] or 'a source')} on from counters that"
        f" {worst['other'] or 'another'} holds, too: what they had counted before counts once{more}"
        f"{guess if by_name else ''}"
    )
    evidence = {"windows": sum(f["windows"] for f in found), "pairs": len(found), "by_name": by_name}
    return [Warning("continued", text, evidence)]


def _counted_twice(con: duckdb.DuckDBPyConnection, every: Mapping[str, int]) -> list[Warning]:
    # The ledger spares the pass over the rounds where one file gave them all.
    several = rows(con, "select count(*) > 1 as several from sources where rows['rounds'] > 0")[0]["several"]
    several = several and rows(con, _SEVERAL)
    found = [*rows(con, _REQUESTS, [every["requests"]]), *rows(con, _WINDOWS), *(rows(con, _ROUNDS) if several else [])]
    found = [f for f in found if f["twice"] >= LEAST_RECORDS and f["twice"] >= LEAST_SHARE * f["records"]]
    if not found:
        return []
    worst = max(found, key=lambda f: f["twice"])
    named = rows(con, "select name from sources where source_id in ($1, $2) order by name", worst["sources"])
    names = " and ".join(dict.fromkeys(str(row["name"]) for row in named if row["name"])) or "two of its sources"
    text = (
        f"{worst['twice']:,} {worst['kind']}{_of_sample(every, worst)} are in the lake twice, with the same counts at"
        f" the same time ({names}): one log in two wrappings, or two gateways before one engine, is counted twice;"
        " ingest one of them into a new lake"
    )
    evidence = {"twice": worst["twice"], "of": worst["records"]}
    return [Warning("ingested_twice", text, evidence)]


def _one_in(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Of how many records of a kind one is looked at; windows are few."""
    requests = count(con, "select coalesce(sum(records), 0)::bigint from held where grain = 'request'")
    return {
        "requests": max(1, requests // COPIES_ABOVE),
        "requests with rounds": count(con, f"select one_in({COPIES_ABOVE})"),
    }


def _of_sample(every: Mapping[str, int], found: Mapping[str, Any]) -> str:
    part = every.get(found["kind"], 1)
    return f" of a sample (1 in {part})" if part > 1 else ""


def _written_twice(con: duckdb.DuckDBPyConnection, every: Mapping[str, int]) -> list[Warning]:
    """Records that one source holds more than once."""
    rounds = count(con, "select coalesce(sum(records), 0)::bigint from held where grain = 'round'")
    in_parts = "round_samples" in kept(con)  # of a lake that this machine does not go through
    found = [f for f in rows(con, _REQUESTS_AGAIN, [every["requests"]]) if f["twice"] >= LEAST_RECORDS]
    if found:  # to count all of them is not free
        records = count(con, f"select count(*) from chosen_requests where hash(key) % {every['requests']} = 0")
        found = [{**found[0], "records": records - found[0]["again"]}]
    found += rows(con, _ROUNDS_AGAIN) if 0 < rounds <= _LOOKED_THROUGH and not in_parts else []
    found = [f for f in found if f["twice"] >= LEAST_RECORDS and f["twice"] >= LEAST_SHARE * f["records"]]
    if not found:
        return []
    worst = max(found, key=lambda f: f["twice"])
    named = rows(con, "select name from sources where source_id = $1", [worst["source"]])
    name = next((str(row["name"]) for row in named if row["name"]), "one source")
    text = (
        f"{worst['twice']:,} {worst['kind']}{_of_sample(every, worst)} stand more than once in one source ({name}),"
        " with the same counts at the same time, and count as often: a shipper sent them again, or logs were put"
        " together; take the repeats out of it and read it anew: tracelens ingest --replace"
    )
    return [Warning("written_twice", text, {"twice": worst["twice"], "of": worst["records"]})]
