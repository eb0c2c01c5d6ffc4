"""Identities that hold across records: accepted and emitted of one request, and a request against its rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.alarms.chosen import rows
from tracelens.analysis.results import Warning
from tracelens.analysis.selection import Defined

if TYPE_CHECKING:
    import duckdb

# A few broken records of many are a fault of these records, not of the counting.
LEAST_UNITS = 5
LEAST_SHARE = 0.01
# So many requests must be in both records, and so many of them differ by more than so much: the first and last ones
# of a log are cut at its edges.
LEAST_COMPARED = 20
DIFFERING_SHARE = 0.05
DIFFERING_BY = 0.02

# A stop cuts at most the last round (K accepted tokens), and one more that ran ahead under asynchronous scheduling.
# Where no request is known, many cuts may lie in one unit: only more accepted than emitted is impossible for sure, for
# each round emits a token of its own.
_EXCESS = """
with units as (
  select run_id, unit, bool_or(is_request) as is_request, sum(n) as n, sum(a_of_n) as a, sum(e_of_n) as e,
         greatest(max(k_max), ceil(sum(d) / sum(n))) as longest
  from unit_sums
  group by run_id, unit
  having sum(n) > 0 and sum(n_of_e) = sum(n) and sum(n_of_a) = sum(n)
), judged as (
  select *, a + n - e as excess,
         case when is_request then a + n - e > 2 * longest + 1 else a > e end as broken,
         abs(a - e) <= longest and n > 2 * longest + 1 as without_own
  from units
)
select count(*) as units, count(*) filter (broken) as broken, count(*) filter (broken and without_own) as without_own,
       (sum(excess) filter (broken))::bigint as tokens, (sum(e) filter (broken))::bigint as emitted,
       arg_max(run_id, excess) filter (broken) as run_id, bool_and(is_request) filter (broken) as requests
from judged
"""

# Rounds of a request against the record of the request: unit_sums has the first where rounds are what counts.
_RECORDS = f"""
with told as (
  select run_id, key, max(rounds) as rounds, max(drafted) as drafted, max(accepted) as accepted
  from chosen_requests where named and accepted is not null
  group by run_id, key having count(*) = 1
), summed as (
  select run_id, unit as key, sum(n) as n, sum(d) as d, sum(a) as a
  from unit_sums where run_id in (select run_id from told)
  group by run_id, unit having bool_and(has_rounds)
), compared as (
  select run_id, abs(a - accepted) > {DIFFERING_BY} * accepted + 1 or abs(d - drafted) > {DIFFERING_BY} * drafted + 1
         or abs(n - rounds) > {DIFFERING_BY} * rounds + 1 as differs, a, accepted
  from summed join told using (run_id, key)
)
select run_id, count(*) as requests, count(*) filter (differs) as differing,
       sum(a)::bigint as of_rounds, sum(accepted)::bigint as of_requests
from compared group by run_id
having count(*) >= {LEAST_COMPARED} and count(*) filter (differs) >= {DIFFERING_SHARE} * count(*)
order by differing desc, run_id
"""


def alarms(con: duckdb.DuckDBPyConnection, defined: Defined) -> list[Warning]:
    """Accepted beyond emitted, and rounds that do not add up to their requests.

    The second is asked of whole runs only: a filter of rows leaves some rounds of a request out.
    """
    return [*_beyond_emitted(con), *([] if defined.filtered else _records_differ(con))]


def _beyond_emitted(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _EXCESS)[0]
    broken, units = found["broken"], found["units"]
    if broken < LEAST_UNITS or broken < LEAST_SHARE * units:
        return []
    # Of rolled-up rows nobody knows how many requests, and so cuts, one stands for.
    summed = "select exists(from strata where weight <> 1 or rolled_requests is not null) as found"
    if rows(con, summed)[0]["found"]:
        return []
    what = "requests" if found["requests"] else "records"
    if found["without_own"] * 2 >= broken:
        why = (
            "there emitted equals accepted, so one of both misses or has the target's own token (one in each round): "
            "write accepted without it and emitted with it"
        )
    else:
        why = (
            "a stop cuts one round of a request only, so accepted or rounds count too much (tokens behind a rejection, "
            "replayed rounds, a record twice) or emitted lacks some"
        )
    text = f"{broken:,} of {units:,} {what} have more accepted tokens and rounds than emitted tokens: {why}"
    evidence = {"records": broken, "tokens_too_many": found["tokens"], "emitted": found["emitted"],
                "run": found["run_id"]}  # fmt: skip
    return [Warning("accepted_beyond_emitted", text, evidence)]


def _records_differ(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _RECORDS)
    if not found:
        return []
    first = found[0]
    text = (
        f"run {first['run_id']}: {first['differing']:,} of {first['requests']:,} requests have other counts in their "
        "own record than their rounds add up to; the rounds were used: look for lost lines (dropped by the logger, a "
        "rotated file that is missing) or rounds logged twice, and ingest what is missing"
    )
    evidence = {"differing": first["differing"], "requests": first["requests"],
                "accepted_of_rounds": first["of_rounds"], "accepted_of_requests": first["of_requests"]}  # fmt: skip
    return [Warning("rounds_differ_from_requests", text, evidence)]
