"""Times that are not what they are called: gaps between chunks as TPOT, waits of an asynchronous scheduler as steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracelens.analysis.alarms.chosen import more, rows
from tracelens.analysis.results import Stratum, Warning
from tracelens.wording import many

if TYPE_CHECKING:
    import duckdb

# TPOT times the tokens cannot be longer than the request; so much is left for rounding and another first token.
BEYOND = 1.25
# Of shorter outputs one rounded stamp is much.
LEAST_TOKENS = 8
LEAST_REQUESTS = 20
# Where one round gives so many tokens, a token takes two thirds of a round; this close to 1 is the round itself.
TAU = 1.5
ROUND_LOW, ROUND_HIGH = 0.85, 1.25
# Requests of one step see the whole of it, so that times of single steps fill the busy seconds. Real synchronous
# runs fill 0.8 of them; half is kept for engines with much work between the steps.
BUSY_LOW = 0.5
# Steps one after the other cannot last longer than the time there was; an overlap scheduler's span two (twice).
BUSY_HIGH = 1.3
LEAST_STEPS = 200
LEAST_SECONDS = 20
ITERATION = "vllm.iteration_line"

# `spent`: the longest that the output after the first token may have taken. Stamps may be whole seconds.
_TPOT = f"""
with told as (
  select run_id, tpot_us, output_tokens - 1 as tokens,
         case when decode_us is not null then decode_us
              when e2e_us is not null then e2e_us - coalesce(ttft_us, 0)
              else epoch_us(ts_end) - epoch_us(coalesce(ts_first_token, ts_start)) + 1000000 end as spent
  from chosen_requests
  where tpot_basis = 'logged' and tpot_us > 0 and output_tokens >= {LEAST_TOKENS} and not coalesce(error, false)
), requests as (
  select run_id, count(*) as n, count(*) filter (spent > 0) as bounded,
         count(*) filter (spent > 0 and tpot_us * tokens > {BEYOND} * spent) as beyond,
         (sum(tpot_us * tokens) filter (spent > 0)) / (sum(spent) filter (spent > 0)) as ratio,
         sum(tpot_us * tokens) / sum(tokens) / 1000 as tpot_ms
  from told group by run_id
), steps as (
  select run_id, sum(t) / nullif(sum(tn), 0) as step_ms, sum(e_all) / nullif(sum(n_all), 0) as tau
  from unit_sums group by run_id
), judged as (
  select *, beyond >= 0.5 * bounded and bounded >= {LEAST_REQUESTS} as too_long,
         bounded < {LEAST_REQUESTS} and n >= {LEAST_REQUESTS} and tau > {TAU}
           and tpot_ms / step_ms between {ROUND_LOW} and {ROUND_HIGH} as as_rounds
  from requests left join steps using (run_id)
)
select * from judged where too_long or as_rounds order by too_long desc, n desc, run_id
"""

_STEPS = f"""
with used as (
  select run_id, surface from grain_choice where grain = 'window' and place = steps_from
), steps as (
  select run_id, surface, replica, process, source_id, date_trunc('second', ts_end) as second, count(*) as steps,
         sum(step_us) / 1e6 as spent
  from chosen_windows semi join used using (run_id, surface)
  where steps = 1 and step_us is not null and time_basis = 'sum' and ts_end is not null
  group by run_id, surface, replica, process, source_id, second
), placed as (
  select *, second - lag(second) over seconds = interval 1 second as after,
         lead(second) over seconds - second = interval 1 second as before
  from steps window seconds as (partition by run_id, surface, replica, process, source_id order by second)
), series as (
  -- Full seconds: the engine was at work before, in and after them. A waiting engine is no fast one.
  select run_id, surface, sum(steps) as steps, sum(spent) as spent,
         epoch(max(second)) - epoch(min(second)) + 1 as lasted,
         count(*) filter (after and before) as full_seconds, sum(spent) filter (after and before) as in_full
  from placed group by run_id, surface, replica, process, source_id
)
select run_id, surface, sum(steps)::bigint as steps, 1000 * sum(spent) / sum(steps) as step_ms,
       sum(spent) / sum(lasted) as of_all, sum(full_seconds)::bigint as full_seconds,
       sum(in_full) / nullif(sum(full_seconds), 0) as of_full
from series group by run_id, surface having sum(steps) >= {LEAST_STEPS}
order by steps desc, run_id
"""

# A CPU run was measured at an ITL of 60 ms, and under the profiler at 200 to 330.
_PROFILED = """
with used as (
  select run_id, surface from grain_choice where grain = 'window' and place in (steps_from, drafts_from, targets_from)
)
select run_id, surface, count(*) as steps
from chosen_windows semi join used using (run_id, surface)
where is_profiled(surface) and (step_us is not null or draft_us is not null or target_us is not null)
group by run_id, surface order by steps desc, run_id, surface
"""


# What a benchmark prints in the end: one row for all its requests, without their tokens.
_MEANS = """
select run_id, sum(weight)::bigint as requests from chosen_requests
where weight > 1 and output_tokens is null and tpot_basis = 'logged' and tpot_us is not null
  and not coalesce(error, false)
group by run_id order by requests desc, run_id
"""


def alarms(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    """TPOT that is a time of rounds or a mean over requests, steps that are none, and steps of a profiler."""
    return [*_tpot(con), *_means(con), *_steps(con, total), *_profiled(con)]


def _means(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _MEANS)
    if not found:
        return []
    first = found[0]
    text = (
        f"the TPOT of run {first['run_id']} is a benchmark's mean over {many(first['requests'], 'request')}"
        f"{more(len(found))}: each request counts the same whatever its tokens, and there are no percentiles; "
        "--save-detailed (vLLM) or --output-details (SGLang) lists the requests"
    )
    return [Warning("mean_tpot", text, {"runs": len(found), "run": first["run_id"], "requests": first["requests"]})]


def _profiled(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _PROFILED)
    if not found:
        return []
    first = found[0]
    host = "" if first["surface"].endswith("_device") else ", the host's share most: a draft of many small kernels"
    text = (
        f"the step times of run {first['run_id']} come from a profiler ({first['surface']}, {first['steps']} "
        f"steps){more(len(found))}: profiled steps are slower than production's{host}. They give draft over verify "
        "time (rho_verify), but are compared with no baseline that was not profiled, too"
    )
    return [Warning("profiled_times", text, {"runs": len(found), "run": first["run_id"], "surface": first["surface"],
                                             "steps": first["steps"]})]  # fmt: skip


def _tpot(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    found = rows(con, _TPOT)
    if not found:
        return []
    first = found[0]
    if first["too_long"]:
        why = f"TPOT x (output tokens - 1) is {first['ratio']:.2f} times as long as these requests took"
        evidence = {"requests": first["n"], "beyond_their_time": first["beyond"], "ratio": first["ratio"]}
    else:
        why = (
            f"at {first['tpot_ms']:.1f} ms it is the time of a round ({first['step_ms']:.1f} ms), which gives "
            f"{first['tau']:.2f} tokens"
        )
        evidence = {"requests": first["n"], "tpot_ms": first["tpot_ms"], "step_ms": first["step_ms"],
                    "tau_committed": float(first["tau"])}  # fmt: skip
    text = (
        f"the logged TPOT of run {first['run_id']} looks like the gap between chunks (ITL){more(len(found))}: {why}; a "
        "chunk holds the tokens of a whole round, so speedups of TPOT are too small. Log decode time (first to last "
        "token) beside output_tokens: TPOT is decode time / (output tokens - 1)"
    )
    return [Warning("itl_as_tpot", text, evidence)]


def _steps(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    out = []
    found = rows(con, _STEPS)
    short = [row for row in found if row["surface"] == ITERATION and _too_short(row, total, len(found) == 1)]
    if short:
        first = short[0]
        text = (
            f"the step times of run {first['run_id']} ({ITERATION}) are too short to be steps{more(len(short))}: under "
            "asynchronous scheduling (vLLM's default since 0.14 for most draft methods) the line logs the rest of a "
            "wait only (vllm#48292); run with --no-async-scheduling, or take the round time from the ITL histogram of "
            "/metrics"
        )
        evidence = {"steps": first["steps"], "step_ms": first["step_ms"], "busy_share": first["of_full"]}
        out.append(Warning("async_steps", text, evidence))
    long = [row for row in found if row["of_all"] > BUSY_HIGH]
    if long:
        first = long[0]
        text = (
            f"the steps of run {first['run_id']} ({first['surface']}) last {first['of_all']:.1f} times as long as the "
            f"time they were logged in{more(len(long))}: each spans more than its own (an overlap or asynchronous "
            "scheduler, as TensorRT-LLM's iterLatencyMS), or several engines write one log without their number; log "
            "device step times, or switch the overlap off for the measurement"
        )
        evidence = {"steps": first["steps"], "step_ms": first["step_ms"], "busy_share": first["of_all"]}
        out.append(Warning("steps_overlap", text, evidence))
    return out


def _too_short(row: Mapping[str, Any], total: Stratum, only: bool) -> bool:
    """Whether the steps leave most of the busy seconds unexplained, or most of the time that TPOT says rounds took."""
    share, seconds = row["of_full"], row["full_seconds"]
    if share is not None and seconds >= LEAST_SECONDS and share < BUSY_LOW:
        return True
    step, tpot, tau = (total.figures.get(name) for name in ("step_ms", "tpot_ms", "tau_committed"))
    return bool(only and step and tpot and tau and step < BUSY_LOW * tpot * tau)
