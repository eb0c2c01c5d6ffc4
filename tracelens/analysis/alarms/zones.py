"""Clocks that disagree: records of one engine that are whole quarters of an hour apart, or may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracelens.analysis.alarms.chosen import rows
from tracelens.analysis.results import Warning

if TYPE_CHECKING:
    import duckdb

# Every zone is a multiple of this from UTC, and none further.
QUARTER_S = 900
FURTHEST_S = 14 * 3600
# An arrival and the end of the same request lie so far apart.
SAME_S = 120
# Two logs of one period start and end together, give or take an interval between lines.
TOGETHER_S = 45
LEAST_REQUESTS = 10
AGREEING = 0.8
LEAST_RECORDS = 20
# A period shorter than this fits anywhere.
LEAST_SPAN_S = 60

# One row a kind of record (place) and period: where its stamps lie and what they are based on. A scope is a run that
# the user named, or what was logged in one folder.
_SPANS = """
with scopes as (
  select run_id, max(scope) as scope from runs group by run_id
), stamps as (
  select run_id, 'round ' || surface as place, ts_basis, low, high, n from round_stamps
  union all
  select run_id, 'request ' || surface, ts_basis, min(coalesce(ts_end, ts_start)), max(coalesce(ts_end, ts_start)),
         count(coalesce(ts_end, ts_start))
  from chosen_requests group by run_id, surface, ts_basis
  union all
  select run_id, 'window ' || surface, ts_basis, min(ts_end), max(ts_end), count(ts_end)
  from chosen_windows group by run_id, surface, ts_basis
)
select coalesce(scope, run_id) as scope, place, epoch(min(low)) as low, epoch(max(high)) as high,
       sum(n)::bigint as n, (sum(n) filter (ts_basis = 'zone_assumed'))::bigint as no_zone,
       (sum(n) filter (ts_basis = 'absolute'))::bigint as zoned
from stamps left join scopes using (run_id) where low is not null
group by all order by scope, place
"""

# The same request in two kinds of record: how far apart its stamps are. An id that one kind has twice is left out.
_PAIRS = f"""
with scopes as (
  select run_id, max(scope) as scope from runs group by run_id
), stamps as (
  select coalesce(scope, run_id) as scope, 'request ' || surface as place, key, max(coalesce(ts_end, ts_start)) as ts
  from chosen_requests left join scopes using (run_id) where named
  group by all having count(*) = 1
  union all
  select scope, place, request_key(request_id) as key, max(ts) as ts
  from (
    select coalesce(scope, run_id) as scope, 'round ' || surface as place, engine, request_id, max(high) as ts
    from round_samples left join scopes using (run_id)
    where for_clocks
    group by all
  ) where is_global_id(engine, key) group by scope, place, key having count(*) = 1
), met as (
  select a.scope, a.place, b.place as other, epoch(b.ts) - epoch(a.ts) as apart
  from stamps a join stamps b on a.scope = b.scope and a.key = b.key and a.place < b.place
  where a.ts is not null and b.ts is not null
), shifts as (
  select scope, place, other, round(median(apart) / {QUARTER_S}) * {QUARTER_S} as shift, count(*) as n,
         list(apart) as apart
  from met group by scope, place, other having count(*) >= {LEAST_REQUESTS}
)
select scope, place, other, shift, n, len(list_filter(apart, lambda x: abs(x - shift) <= {SAME_S})) as near
from shifts order by n desc, scope, place, other
"""


def alarms(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """One warning where two kinds of record of one scope have clocks that disagree, the surest evidence first."""
    spans = rows(con, _SPANS)
    if len(spans) < 2:
        return []
    pairs = rows(con, _PAIRS)
    shifted = [pair for pair in pairs if _is_shift(pair["shift"]) and pair["near"] >= AGREEING * pair["n"]]
    if shifted:
        first = shifted[0]
        why = f"{first['near']:,} of {first['n']:,} requests in both"
        return [_warning(first["place"], first["other"], first["shift"], why, {"requests": first["n"]})]
    agreeing = {(p["scope"], p["place"], p["other"]) for p in pairs if p["shift"] == 0}
    return _by_span(spans, agreeing)


def _by_span(spans: Sequence[Mapping[str, Any]], agreeing: set[tuple[str, str, str]]) -> list[Warning]:
    """Without common ids: both ends of the periods apart by the same shift, or stamps without a zone beside others."""
    mixed: list[Warning] = []
    large = [span for span in spans if span["n"] >= LEAST_RECORDS and span["high"] - span["low"] >= LEAST_SPAN_S]
    for i, one in enumerate(large):
        for other in large[i + 1 :]:
            if one["scope"] != other["scope"] or (one["scope"], one["place"], other["place"]) in agreeing:
                continue
            ends = [other["low"] - one["low"], other["high"] - one["high"]]
            shift = round(ends[0] / QUARTER_S) * QUARTER_S
            if _is_shift(shift) and max(abs(end - shift) for end in ends) <= TOGETHER_S:
                why = "both begin and end apart by as much"
                return [_warning(one["place"], other["place"], shift, why, {"records": one["n"] + other["n"]})]
            bases = {("no_zone" if s["no_zone"] else "zoned" if s["zoned"] else "") for s in (one, other)}
            apart = one["high"] < other["low"] or other["high"] < one["low"]
            if bases == {"no_zone", "zoned"} and apart and abs(ends[0]) <= FURTHEST_S + QUARTER_S:
                unzoned, zoned = (one, other) if one["no_zone"] else (other, one)
                mixed.append(_mixed(unzoned, zoned))
    return mixed[:1]


def _is_shift(seconds: float) -> bool:
    return 0 < abs(seconds) <= FURTHEST_S


def _warning(place: str, other: str, shift: float, why: str, evidence: dict[str, Any]) -> Warning:
    hours = f"{abs(shift) / 3600:.2f}".rstrip("0").rstrip(".")
    late, early = (other, place) if shift > 0 else (place, other)
    text = (
        f"the clocks of {_name(late)} and {_name(early)} disagree by {hours} h ({why}; the first is ahead): stamps "
        "without a zone were read in another one, so hours, --since and --until mix different times; ingest that log "
        "again with --replace and --tz, as Europe/Berlin"
    )
    return Warning("time_zones", text, {"hours": abs(shift) / 3600, **evidence})


def _mixed(unzoned: Mapping[str, Any], zoned: Mapping[str, Any]) -> Warning:
    text = (
        f"{_name(unzoned['place'])} has stamps without a zone, read as UTC, and {_name(zoned['place'])} of the same "
        "place has stamps with one, at no common time: if the first is not UTC, hours and --since mix different times; "
        "ingest it again with --replace and --tz, as Europe/Berlin"
    )
    evidence = {"without_zone": unzoned["n"], "with_zone": zoned["n"],
                "hours": round((zoned["low"] - unzoned["low"]) / 3600, 2)}  # fmt: skip
    return Warning("time_zones", text, evidence)


def _name(place: str) -> str:
    return place.split(" ", 1)[1]
