"""Counters that were logged as they stand, and counters that fell back: running totals, resets, restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.alarms.chosen import more, rows
from tracelens.analysis.results import Warning
from tracelens.wording import many

if TYPE_CHECKING:
    import duckdb

# Records whose meaning a reader knows: intervals by nature, or differenced at ingest.
_KNOWN = ("vllm.", "rtp.", "sglang.", "trtllm.", "llama.", "lmdeploy.")
# Counts of intervals that never fall over so many windows are one order of 12! = 479 million.
LEAST_WINDOWS = 12
# A load that is driven up slowly grows too, but rarely so much; a total does within a few windows.
LEAST_GROWTH = 4
# Idle intervals leave a total as it is.
RISING_SHARE = 0.9
# Surfaces that readers difference: a window without a length, behind others that have one, began a count anew.
_DIFFERENCED = ("vllm.v0_line", "vllm.metrics", "llama.statistics")
# The processes of one server start within this time.
APART_S = 60

_TOTALS = f"""
with used as (
  select run_id, surface from grain_choice where grain = 'window' and place = counts_from
), counted as (
  select run_id, surface, replica, process, source_id, source_line, drafted, accepted, rounds, running,
         lag(drafted) over lines as before,
         coalesce(drafted < lag(drafted) over lines or accepted < lag(accepted) over lines
                  or rounds < lag(rounds) over lines, false) as fell
  from chosen_windows semi join used using (run_id, surface)
  where drafted is not null and not list_contains($1::varchar[], split_part(surface, '.', 1) || '.')
  window lines as (partition by run_id, surface, replica, process, source_id order by source_line)
), parted as (
  select *, sum(fell::integer) over (partition by run_id, surface, replica, process, source_id order by source_line
                                     rows unbounded preceding) as part
  from counted
), parts as (
  select run_id, surface, count(*) as windows, count(*) filter (drafted > before) as rising,
         arg_min(drafted, source_line) as first, max(drafted) as last, sum(drafted) as added,
         arg_min(running, source_line) as running_first, arg_max(running, source_line) as running_last
  from parted group by run_id, surface, replica, process, source_id, part
), totals as (
  select *, windows >= {LEAST_WINDOWS} and rising >= {RISING_SHARE} * (windows - 1)
         and last >= {LEAST_GROWTH} * greatest(first, 1)
         -- As many times the requests, as many times the tokens: that is load.
         and not coalesce(running_last * first >= running_first * last / 2, false) as total
  from parts
)
select run_id, surface, sum(windows) filter (total) as windows, sum(windows) as of_windows,
       count(*) filter (total) as totals, (sum(last) filter (total))::bigint as last,
       (sum(added) filter (total))::bigint as added
from totals group by run_id, surface
-- A series that falls as often as it may by chance is no total.
having sum(windows) filter (total) >= 0.8 * sum(windows)
order by added desc, run_id, surface
"""

_RESETS = """
with counted as (
  select run_id, surface, drafted, window_us,
         row_number() over (partition by run_id, surface, replica, process, source_id, method order by source_line)
           as place,
         count(window_us) over (partition by run_id, surface, replica, process, source_id, method) as timed
  from chosen_windows where list_contains($1::varchar[], surface)
)
select run_id, count(*) as resets, coalesce(sum(drafted), 0)::bigint as drafted
from counted where place > 1 and window_us is null and timed > 0
group by run_id order by resets desc, run_id
"""

# A start opens a run. What a file holds before its first start-up line is of an earlier one, too.
_STARTS = f"""
with told as (
  select *, bool_or(started is not null) over (partition by source_id, engine) as by_start
  from runs where scope is not null and run_id in (from chosen_runs)
), starts as (
  select scope, run_id, min(started) as started, max(model) as model, max(num_speculative_tokens) as k,
         max(engine_version) as version, max(method) as method
  from told where by_start
  group by scope, run_id
)
select scope, count(*) as starts, max(started) as last,
       (count(distinct model) > 1 or count(distinct k) > 1 or count(distinct version) > 1
         or count(distinct method) > 1) as changed
from starts group by scope
having count(*) > 1
   and (epoch(max(started)) - epoch(min(started)) >= {APART_S} or count(*) > count(started))
order by starts desc, scope
"""


def alarms(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Running totals counted as intervals, counters that began anew within a run, and several starts in one place."""
    return [*_totals(con), *_resets(con), *_starts(con)]


def _totals(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _TOTALS, [list(_KNOWN)])
    if not found:
        return []
    first = found[0]
    resets = first["totals"] - 1
    but = f", but for {many(resets, 'restart')}," if resets else ""
    text = (
        f"the windows of run {first['run_id']} look cumulative ({first['surface']}){more(len(found))}: their counts "
        f"only grow{but} over {first['windows']} windows, so they add up to "
        f"{first['added'] / first['last']:.1f} times what was drafted; write the difference of two lines, one "
        "process at a time, and ingest again"
    )
    evidence = {"windows": int(first["windows"]), "added_up": first["added"], "last_values": first["last"]}
    return [Warning("cumulative_windows", text, evidence)]


def _resets(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _RESETS, [list(_DIFFERENCED)])
    if not found:
        return []
    resets = sum(row["resets"] for row in found)
    text = (
        f"counters fell back {resets} time(s) in {len(found)} run(s) (run {found[0]['run_id']} first): the process "
        "began anew, so counting did too, from its zero; what ran between its last line and the restart is in no line, "
        "and the new window has no length. Keep the start-up lines in the log to have a run for each start"
    )
    evidence = {"resets": resets, "runs": len(found), "drafted_in_them": sum(row["drafted"] for row in found)}
    return [Warning("counter_reset", text, evidence)]


def _starts(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _STARTS)
    if not found:
        return []
    first = found[0]
    starts = sum(row["starts"] for row in found)
    changed = any(row["changed"] for row in found)
    settings = ", with other settings (version, model, method or K)" if changed else ""
    text = (
        f"{starts} starts of a server are pooled{settings}: counters and intervals began anew at each, and each warms "
        "up anew; --by run_id shows them apart, --run picks one"
    )
    evidence = {"starts": starts, "last_start": f"{first['last']:%Y-%m-%dT%H:%M:%SZ}"}
    return [Warning("restarts", text, evidence)]
