"""Warm-up: the first part of a run that is much slower than the rest, and weighs on its means."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tracelens.analysis.alarms.chosen import more, rows
from tracelens.analysis.alarms.looked_at import PART_S
from tracelens.analysis.results import Warning

if TYPE_CHECKING:
    import duckdb

# Compilation, CUDA graphs and cold caches cost a multiple; batch and context alone move a round less than this.
SLOWER = 1.5
# What the first part does to the mean of the run: below it nobody needs to act.
MATTERS = 0.01
# The part ends with the first that is not slow, and is no warm-up when it is most of the run.
LEAST_PARTS = 8
LONGEST_SHARE = 0.25
LEAST_ROUNDS = 30
# By request: the first twentieth (at least 10) of at least 100.
LEAST_REQUESTS = 100
FIRST_REQUESTS = 10

# One pass over the rounds, then a row every 5 s. A first part with larger batches is load, not warm-up.
_STEPS = f"""
with parts as (
  select run_id, part, spent, n, batches / nullif(batches_told, 0) as batch from step_parts
), usual as (
  select run_id, median(spent / n) as usual, count(*) as parts from parts group by run_id
), ends as (
  select p.run_id, min(part) filter (spent / n <= {SLOWER} * usual) as good
  from parts p join usual using (run_id) group by p.run_id
), split as (
  select p.run_id, sum(spent) filter (part < good) / sum(n) filter (part < good) as first,
         sum(spent) filter (part >= good) / sum(n) filter (part >= good) as rest,
         sum(spent) / sum(n) as mean, max(part) filter (part < good) + 1 as until, min(part) as began,
         coalesce(sum(n) filter (part < good), 0) as first_n, sum(n) as n,
         count(*) filter (part < good) as slow, count(*) as parts,
         avg(batch) filter (part < good) as first_batch, avg(batch) filter (part >= good) as batch
  from parts p join ends using (run_id) group by p.run_id
)
select run_id, first, rest, mean / rest - 1 as effect, make_timestamp(until * {PART_S}000000) as until,
       began * {PART_S} as began, first_n
from split
where parts >= {LEAST_PARTS} and slow <= {LONGEST_SHARE} * parts and first_n >= {LEAST_ROUNDS}
  and first_n <= {LONGEST_SHARE} * n and first > {SLOWER} * rest and mean > {1 + MATTERS} * rest
  and not coalesce(first_batch > {SLOWER} * batch, false)
order by effect desc, run_id
"""

_REQUESTS = f"""
with placed as (
  select run_id, ts, tpot_ms, weight * (output_tokens - 1) as tokens,
         row_number() over (partition by run_id order by ts, source_line) as place,
         count(*) over (partition by run_id) as n
  from strata where grain = 'request' and tpot_ms is not null and output_tokens > 1 and ts is not null
    and not list_contains($1::varchar[], run_id)
), split as (
  select *, place <= greatest({FIRST_REQUESTS}, n // 20) as early from placed where n >= {LEAST_REQUESTS}
)
select run_id, median(tpot_ms) filter (early) as first, median(tpot_ms) filter (not early) as rest,
       sum(tokens * tpot_ms) / sum(tokens)
         / (sum(tokens * tpot_ms) filter (not early) / sum(tokens) filter (not early)) - 1 as effect,
       max(ts) filter (early) as until, count(*) filter (early) as first_n
from split group by run_id
having first > {SLOWER} * rest and effect > {MATTERS}
order by effect desc, run_id
"""


def alarms(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Warm-up by step time; by TPOT for runs that log no steps."""
    steps = rows(con, _STEPS)
    timed = rows(con, "select distinct run_id from unit_sums where tn > 0")
    requests = rows(con, _REQUESTS, [[row["run_id"] for row in timed]])
    found, figure, unit = (steps, "step_ms", "rounds") if steps else (requests, "tpot_ms", "requests")
    if not found:
        return []
    worst = found[0]
    until: datetime = worst["until"]
    lasted = ""
    if steps:
        lasted = f" ({until.replace(tzinfo=UTC).timestamp() - worst['began']:.0f} s)"
    else:
        until += timedelta(seconds=1)  # that of the last request; a part ends where the next begins
    text = (
        f"run {worst['run_id']} warms up{more(len(found))}: its first {worst['first_n']:,.0f} {unit}{lasted} are "
        f"{worst['first'] / worst['rest']:.1f} times as slow as the rest (compilation, CUDA graphs, cold caches), "
        f"which raises the mean by {worst['effect']:.1%}; "
        f"--run {shlex.quote(worst['run_id'])} --since {until:%Y-%m-%dT%H:%M:%SZ} leaves them out"
    )
    evidence = {f"first_{figure}": worst["first"], f"rest_{figure}": worst["rest"], "effect_on_mean": worst["effect"]}
    return [Warning("warm_up", text, evidence)]
