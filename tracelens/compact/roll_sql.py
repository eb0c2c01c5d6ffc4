"""The SQL that makes one row of many equal rounds.

Rounds are equal where all their counts and classes are, within a minute and a group of requests; batch and context by
their buckets. Their number is the weight. Of each time the sum is kept, exactly: n rounds of S microseconds in all are
a row of weight n - 1 with S // n, and a row of weight 1 with the rest (one row where nothing is left over).
"""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.lake.schema import table

#: A run's day has so many groups of requests at least, where it has as many requests: intervals need independent units.
GROUPS = 256
_MOST_GROUPS = 64  # of the requests that began in one minute

_NAMES = table("rounds").names
_TIMES = tuple(name for name in _NAMES if name.endswith("_us"))
_TRAITS = ("task_type", "temperature", "top_p")
_LOST = ("round_index", "step_id", "source_line")  # of single rounds
_MADE = ("ts", "request_id", "step_share", "batch_size", "context_len", "weight")
_ROLLED = ("rolled_requests", "rolled_squares", "rolled_longest")
_KEYS = tuple(n for n in _NAMES if n not in {*_TIMES, *_TRAITS, *_LOST, *_MADE, *_ROLLED})
_GROUPED = (*_KEYS, *_TRAITS, "ts", "request_id", "weight")

# What tells the first round of a request from its others.
_FIRST = "{'ts': ts, 'index': round_index, 'line': source_line, 'd': drafted, 'a': accepted, 'e': emitted}"


def spans(days: Sequence[str]) -> str:
    """A table `spans`: every request with rounds in these days, and whether it has none in other ones around them."""
    listed = ", ".join(f"date '{day}'" for day in days)
    first, last = f"date '{min(days)}' - 1", f"date '{max(days)}' + 1"
    return f"""
create or replace temp table spans as
select run_id, request_key(request_id) as request, min(ts) as began, min({_FIRST}) as first,
       coalesce(sum(weight) filter (not coalesce(is_replay, false)), 0) as rounds,
       bool_and(coalesce(date in ({listed}), false)) as is_whole
from rounds
where request_id is not null and rolled_requests is null and (date is null or date between {first} and {last})
group by all
"""


# Where few minutes of a day hold all requests of a run, those of one minute are several groups.
SPREADS = f"""
create or replace temp table spreads as
select run_id, began::date as day,
       greatest(1, least({_MOST_GROUPS}, ceil({GROUPS} / count(distinct date_trunc('minute', began)))))::ubigint
         as spread
from spans where is_whole group by all
"""

# Whether a request may know what its rounds do not.
GAPS = """
select exists(from logged_rounds where request_id is not null
              and (task_type is null or temperature is null or top_p is null))
"""

LABELLED = "create or replace temp table labelled as from request_traits"
NOT_LABELLED = f"{LABELLED} where false"

# Of a day: rounds that can be rolled up. The others stay as they are: copies of records that another source holds (they
# count again when that one goes), what no log can hold, and requests that go on in a day that is not rolled up.
JUDGED = """
create or replace temp view judged as
select l.*, s.began, s.first, s.rounds as rounds_of_request, s.request,
       possible and c.source_line is null and l.rolled_requests is null and l.ts is not null
         and (l.request_id is null or coalesce(s.is_whole, false)) as is_rollable
from logged_rounds l
left join copied_lines c on c.source_id = l.source_id and c.source_line = l.source_line
left join spans s on s.run_id = l.run_id and s.request = request_key(l.request_id)
"""

#: Rows that can be rolled up, and all rows, of the files that are read.
COUNTS = "select count(*) filter (is_rollable), count(*) from judged"

REST = f"select {', '.join(_NAMES)} from judged where not is_rollable"

#: What must be the same before and after.
SUMS = (
    "select sum(coalesce(weight, 1)), sum(coalesce(weight, 1) * drafted), sum(coalesce(weight, 1) * accepted),"
    " sum(coalesce(weight, 1) * emitted), {times} from {rows}"
)


def sums(rows: str) -> str:
    """One row with the counts and time sums of some rounds."""
    times = ", ".join(f"sum(coalesce(weight, 1) * {name}::double)" for name in _TIMES)
    return SUMS.format(times=times, rows=rows)


def rolled() -> str:
    """The rounds of `judged` that can be rolled up, rolled up: the columns of the table `rounds`."""
    traits = ", ".join(f"coalesce(j.{c}, q.{c}, a.{c}) as {c}" for c in _TRAITS)
    lacking = " or ".join(f"j.{c} is null" for c in _TRAITS)
    missing = " + ".join(f"(j.{c} is null)::integer * {1 << i}" for i, c in enumerate(_TIMES))
    grouped = ", ".join(_GROUPED)
    over = " or ".join(f"{c} % n <> 0" for c in _TIMES)
    shared_out = ", ".join(
        f"(case part when 0 then {c} // n else {c} - (n - 1) * ({c} // n) end)::bigint as {c}" for c in _TIMES
    )
    return f"""
with single as (
  select {", ".join(f"j.{c}" for c in (*_KEYS, *_TIMES))}, {traits}, coalesce(j.weight, 1) as weight,
         date_trunc('minute', j.ts) as ts, j.batch_size, j.context_len,
         case when j.request is not null
              then 'rolled ' || strftime(j.began, '%Y-%m-%dT%H:%M') || '/' || hash(hash(j.run_id, j.request)) % p.spread
         end as request_id,
         coalesce(j.step_share, 1.0 / nullif(j.batch_size, 0)) as share, coalesce(j.step_us, j.target_us, j.draft_us, 1)
           as spent,
         {missing} as missing, batch_bucket_of(j.batch_size) as batch_bucket,
         context_bucket_of(j.context_len) as context_bucket,
         case when j.request is not null and j.own is not distinct from j.first
              then {{'request': j.request, 'rounds': j.rounds_of_request}} end as begun
  from (select *, {_FIRST} as own from judged where is_rollable) j
  left join spreads p on p.run_id = j.run_id and p.day = j.began::date
  left join labelled q
    on q.engine = j.engine and q.run_id = j.run_id and q.join_key = case when {lacking} then j.request end
  left join labelled a
    on a.run_id is null and a.engine = j.engine
       and a.join_key = case when q.join_key is null and ({lacking}) then j.request end
), summed as (
  select {grouped}, count(*) as n, round(avg(batch_size))::integer as batch_size,
         round(avg(context_len))::integer as context_len,
         -- By time, so that engine time (step_share x step) is what it was.
         coalesce(sum(share * spent) / nullif(sum(spent), 0), avg(share)) as step_share,
         {", ".join(f"sum({c}) as {c}" for c in _TIMES)},
         list(distinct begun) filter (begun is not null) as begun
  from single
  group by {grouped}, missing, batch_bucket, context_bucket, share is null
), parted as (
  select *, coalesce(n > 1 and ({over}), false) as is_parted from summed
), parts as (
  select * replace (
           case part when 0 then weight * (n - is_parted::integer) else weight end as weight,
           {shared_out}),
         case part when 0 then coalesce(list_transform(begun, lambda b: b.rounds), []) else [] end as lengths
  from parted, (values (0), (1)) as p(part)
  where part = 0 or is_parted
)
select {", ".join(_column(c) for c in _NAMES)}
from parts
order by ts, source_id, request_id
"""


def _column(name: str) -> str:
    made = {
        "round_index": "null::bigint",
        "step_id": "null::varchar",
        "source_line": "null::bigint",
        "rolled_requests": "len(lengths)",
        "rolled_squares": "coalesce(list_sum(list_transform(lengths, lambda x: x * x)), 0)::double",
        "rolled_longest": "list_max(lengths)::bigint",
    }
    return f"{made[name]} as {name}" if name in made else name
