-- The views of a lake. Two lines set the lake's place and make every query of this folder run in a bare DuckDB:
--
--     set variable lake = 'path/to/lake';
--     .read queries/views.sql
--
-- What they give: rounds, windows, requests, runs, rejects, sources (the tables, durations also in `_ms`), impossible
-- (records that a foreign writer put there and that no log can hold: they are in none of the others),
-- requests_joined (one row a request), facts (the finest grain of every figure; grains never add up twice),
-- strata (what every query groups by) and baseline_facts (what ran without speculation).
--
-- Another grouping, or a filter, is another view `strata`; the queries stay as they are:
--
--     create or replace view strata as
--     select {'task_type': task_type, 'num_speculative_tokens': num_speculative_tokens} as stratum,
--            {'task_type': task_type} as traffic, * from facts
--     where role is distinct from 'baseline' and not coalesce(forced_acceptance, false) and date >= '2026-11-01';
--
-- `traffic` is the class of traffic, a struct: what ran without speculation (view baseline_facts) is compared class by
-- class, and its view must build the same struct.
--
-- NULL is "not measured". Sums are weighted by `weight`. 0/0 is NULL.

-- ---------------------------------------------------------------- macros
-- All files in the folder of a table. A variable `lake_files` (a struct of lists, one a table) names them instead:
-- so tracelens reads a lake as of one commit while others are made; a bare DuckDB may meet one half-way.
create or replace macro lake_files(name) as
  coalesce(getvariable('lake_files')[name], [getvariable('lake') || '/' || name || '/**/*.parquet']);

-- The id that a request has on every surface. vLLM puts `chatcmpl-` or `cmpl-` before it, a prompt index behind it
-- (completions; only `-0` is taken off: further prompts of one call are requests of their own, and an id such as
-- `cmpl-bench-5` in a response has no index) and, from 0.14, `-` and 8 hex digits of its own (vllm.md 4c).
create or replace macro request_key(id) as
  case
    when starts_with(id, 'chatcmpl-') then regexp_extract(id, '^chatcmpl-(.*?)(?:-[0-9a-f]{8})?$', 1)
    when starts_with(id, 'cmpl-') then regexp_extract(id, '^cmpl-(.*?)(?:-0)?(?:-[0-9a-f]{8})?$', 1)
    else id
  end;

-- A number of up to four digits counts within one process, redacted (`counter-` and 32 hex digits) or not.
create or replace macro is_global_id(engine, id) as
  engine <> 'llama.cpp' and (length(id) >= 5 or not regexp_full_match(id, '[0-9]+'))
  and not (starts_with(id, 'counter-') and length(id) = 40);

create or replace macro temperature_bucket_of(t) as
  case when t is null then null when t <= 0 then '0' when t <= 0.3 then '(0, 0.3]' when t <= 0.7 then '(0.3, 0.7]'
       when t <= 1 then '(0.7, 1]' else '> 1' end;

-- Labels sort as text in the order of what they say.
create or replace macro batch_bucket_of(b) as
  case when b is null then null when b <= 1 then '0001' when b = 2 then '0002' when b <= 4 then '0003-0004'
       when b <= 8 then '0005-0008' when b <= 16 then '0009-0016' when b <= 32 then '0017-0032'
       when b <= 64 then '0033-0064' when b <= 128 then '0065-0128' when b <= 256 then '0129-0256'
       when b <= 512 then '0257-0512' when b <= 1024 then '0513-1024' when b <= 2048 then '1025-2048'
       when b <= 4096 then '2049-4096' else '> 4096' end;

create or replace macro context_bucket_of(c) as
  case when c is null then null when c < 512 then '< 0.5k' when c < 1024 then '< 0001k' when c < 2048 then '< 0002k'
       when c < 4096 then '< 0004k' when c < 8192 then '< 0008k' when c < 16384 then '< 0016k'
       when c < 32768 then '< 0032k' when c < 65536 then '< 0064k' when c < 131072 then '< 0128k'
       when c < 262144 then '< 0256k' when c < 524288 then '< 0512k' when c < 1048576 then '< 1024k'
       else '>= 1024k' end;

-- What the interval of a ratio sum(y) / sum(x) needs, aggregated over independent units: m units and five sums.
create or replace macro ratio_sums(y, x) as
  {'m': count(*) filter (x > 0 and y is not null), 'y': sum(y) filter (x > 0),
   'x': sum(x) filter (x > 0 and y is not null),
   'yy': sum(y * y) filter (x > 0), 'xy': sum(x * y) filter (x > 0), 'xx': sum(x * x) filter (x > 0 and y is not null)};

-- Whether a number is what a sum can take: finite, not negative, and small enough for its square. NULL is.
create or replace macro fits(x) as coalesce(x >= 0 and x <= 1000000000000000, true);

-- The same of a double: isfinite, for DuckDB takes a comparison for true where a file's statistics say so, and those
-- leave NaN out.
create or replace macro fits_double(x) as coalesce(isfinite(x) and x >= 0 and x <= 1e15, true);

-- A time that no clock shows: DuckDB has two.
create or replace macro is_time(x) as coalesce(isfinite(x), true);

create or replace macro is_weight(x) as coalesce(isfinite(x) and x >= 1e-9 and x <= 1e9, true);

-- A sample of large lakes: one in so many, so that about `most` rounds are left, and what has a hash below its part of
-- all. The variable `rounds_held` says how many rounds the lake has: a constant, which the plan looks at before columns
-- are made and joined; without it nothing is left out. Hash twice: hash(a, b) alone depends on how a and b do.
create or replace macro one_in(most) as greatest(1, coalesce(getvariable('rounds_held')::bigint, 0) // most);
create or replace macro is_sampled(hashed, most) as hashed <= 18446744073709551615::ubigint // one_in(most)::ubigint;

-- Drafts that a near-K round may keep.
create or replace macro near_k_delta() as coalesce(try_cast(getvariable('near_k_delta') as bigint), 1);

-- Whether a profiler wrote it: it slows the steps that it looks at, and no other step is like them.
create or replace macro is_profiled(surface) as
  coalesce(surface in ('vllm.trace', 'vllm.trace_device', 'vllm.trace_steps', 'rtp.timeline', 'rtp.timeline_device'),
           false);

-- 1 where the values of a group that are not NULL are not all the same.
create or replace macro differs(x) as (min(x) is distinct from max(x))::integer;

-- ---------------------------------------------------------------- tables
-- As they lie in the files. `possible` is what ingest makes sure of (engines/generic/rules.py): files of another writer
-- may hold a weight that is no number, or more accepted than drafted, and one such row spoils the sums of all.
create or replace view logged_rounds as
select *,
       is_weight(weight)
       and fits(num_speculative_tokens) and fits_double(temperature) and fits_double(top_p) and fits(num_draft_nodes)
       and fits(round_index) and fits_double(step_share) and fits(batch_size) and fits(context_len) and fits(drafted)
       and fits(accepted) and fits(emitted) and fits(draft_steps) and fits(draft_us) and fits(target_us)
       and fits(sample_us) and fits(rollback_us) and fits(repack_us) and fits(emit_lag_us) and fits(step_us)
       and coalesce(num_speculative_tokens <= 65536, true) and coalesce(top_p <= 1, true)
       and coalesce(step_share >= 1e-10 and step_share <= 1, true) and coalesce(drafted <= 65536, true)
       and coalesce(accepted <= drafted, true) and coalesce(emitted - 1 <= accepted, true) and is_time(ts) as possible
from (
  select null::bigint as rolled_requests, null::double as rolled_squares, null::bigint as rolled_longest where false
  union all by name
  from read_parquet(lake_files('rounds'), union_by_name = true, hive_partitioning = true, hive_types = {'date': date})
);

create or replace view logged_windows as
select *,
       is_weight(weight)
       and fits(num_speculative_tokens) and fits_double(temperature) and fits_double(top_p) and fits(num_draft_nodes)
       and fits(window_us) and fits(steps) and fits(rounds) and fits(plain_steps) and fits(drafted) and fits(accepted)
       and fits(emitted) and fits(draft_us) and fits(target_us) and fits(sample_us) and fits(rollback_us)
       and fits(repack_us) and fits(step_us) and fits_double(draft_ms_per_token) and fits(emit_lag_us)
       and fits(round_us) and fits(rounds_timed) and fits(preemptions) and fits(generated_tokens)
       and fits(prompt_tokens) and fits(running) and fits(waiting) and fits_double(kv_cache_usage)
       and fits(v0_matched) and is_time(ts_start) and is_time(ts_end)
       and coalesce(num_speculative_tokens <= 65536, true) and coalesce(top_p <= 1, true)
       and coalesce(kv_cache_usage <= 1, true) and coalesce(accepted <= drafted, true)
       and coalesce(drafted * 1e0 <= rounds * 65536e0, true)
       and (accepted_per_pos is null
            or (coalesce(list_min(accepted_per_pos) >= 0, true)
                and coalesce(coalesce(list_sum(accepted_per_pos), 0) = accepted, true)
                and accepted_per_pos = list_reverse_sort(accepted_per_pos)
                and coalesce(list_max(accepted_per_pos) <= rounds, true))) as possible
from (
  -- Older versions have not written these.
  select null::double[] as counters, null::timestamp as counters_since where false
  union all by name
  from read_parquet(lake_files('windows'), union_by_name = true, hive_partitioning = true, hive_types = {'date': date})
);

create or replace view logged_requests as
select *,
       is_weight(weight)
       and fits(num_speculative_tokens) and fits_double(temperature) and fits_double(top_p) and fits(num_draft_nodes)
       and fits(prompt_tokens) and fits(output_tokens) and fits(cached_tokens) and fits(iterations) and fits(rounds)
       and fits(drafted) and fits(accepted) and fits(emitted) and fits(draft_us) and fits(target_us) and fits(ttft_us)
       and fits(decode_us) and fits(e2e_us) and fits(queue_us) and fits_double(tpot_us) and fits(preemptions)
       and is_time(ts_start) and is_time(ts_first_token) and is_time(ts_end)
       and coalesce(num_speculative_tokens <= 65536, true) and coalesce(top_p <= 1, true)
       and coalesce(accepted <= drafted, true) and coalesce(drafted * 1e0 <= rounds * 65536e0, true)
       and (accepted_hist is null
            or (coalesce(list_min(accepted_hist) >= 0, true)
                and coalesce(coalesce(list_sum(accepted_hist), 0) = rounds, true)
                and coalesce(coalesce(list_sum(list_transform(accepted_hist, lambda x, i: x::hugeint * (i - 1))), 0)
                             = accepted, true))) as possible
from read_parquet(lake_files('requests'), union_by_name = true, hive_partitioning = true, hive_types = {'date': date});

create or replace view impossible as
select 'rounds' as name, source_id, count(*) as records from logged_rounds where not possible group by source_id
union all
select 'windows' as name, source_id, count(*) as records from logged_windows where not possible group by source_id
union all
select 'requests' as name, source_id, count(*) as records from logged_requests where not possible group by source_id;

-- The variable `all_possible` says that somebody has looked and found none: then no query looks again.
create or replace macro counts(possible) as coalesce(getvariable('all_possible')::boolean, false) or possible;

-- The ledger. What older versions did not write is NULL.
create or replace view sources as
from read_parquet(lake_files('sources'), union_by_name = true)
union all by name
select null::varchar as text_sha256, null::map(varchar, varchar) as same_as,
       null::map(varchar, varchar) as prefixes, null::varchar as request_ids where false;

-- Lines of a source whose records another source of this lake holds, too (logs that overlap, a log in two wrappings,
-- two gateways): `same_as` of the ledger, as long as that other source is there. They count once, as the other's. And
-- lines whose records stand before them in the same source: there the other one is itself.
create or replace view copied_ranges as
with told as (
  select source_id, unnest(map_keys(same_as)) as other_id, unnest(map_values(same_as)) as lines from sources
), parts as (
  select source_id, other_id, unnest(string_split(lines, ',')) as part from told
  where other_id in (select source_id from sources)
)
select source_id, other_id, split_part(part, '-', 1)::bigint as first_line,
       split_part(part, '-', -1)::bigint as last_line
from parts;

-- A run keeps its role whatever its other columns hold. Lakes of older versions have not all columns: NULL there.
create or replace view runs as
select * replace (case when num_speculative_tokens between 0 and 65536 then num_speculative_tokens end
                    as num_speculative_tokens)
from (
  select null::varchar as scope where false
  union all by name
  from read_parquet(lake_files('runs'), union_by_name = true)
);

-- ---------------------------------------------------------------- counters that several sources scraped
-- Counters of one process that several sources scraped. The first value of a source counts all that its process had
-- counted before, and what another source tells of that must count once. So the windows of all of them are put in the
-- order of time, and each is told again by what the counters stand at: the growth since the window before it, whichever
-- source that is from. One process is what began to count at the same moment; where a process does not say when, it is
-- the counters of one name in one scope, unless its sources contradict each other: counters fall where a source begins
-- or tells of a new start itself, and nowhere else. A table, as copied_lines, and of the same moment.
create or replace temp table continued as
with scraped as (
  select source_id from sources
  where len(list_filter(map_keys(surfaces), lambda s: contains(s, 'metrics'))) > 0
), scopes as (
  select run_id, min(scope) as scope from runs group by run_id
), stood as (
  select w.source_id, w.source_line, w.surface, w.ts_start, w.ts_end, w.counters, w.counters_since,
         -- What has grown from nothing: a first value, or the first behind a new start.
         ts_start is null
         or (coalesce(w.drafted = w.counters[4], true) and coalesce(w.generated_tokens = w.counters[13], true)
             and coalesce(w.prompt_tokens = w.counters[14], true)
             and coalesce(w.drafted, w.generated_tokens, w.prompt_tokens) is not null) as is_first,
         hash(w.engine, w.surface, w.replica, w.model, w.task_type,
              coalesce(w.counters_since::varchar,
                       concat_ws(' ', coalesce(s.scope, w.run_id), coalesce(w.process, ''), 'not told'))) as process
  from logged_windows w semi join scraped using (source_id) left join scopes s on s.run_id = w.run_id
  where w.counters is not null and w.possible and w.source_line is not null
), summed as (
  select *, coalesce(counters[4], 0) + coalesce(counters[13], 0) + coalesce(counters[14], 0) as counted from stood
), told as (
  -- Pages without a date are in the order of their counts: as long as these never fell where the order is known.
  select *, coalesce(ts_end is not null and counted < max(counted) over (
                       partition by process order by ts_end rows between unbounded preceding and 1 preceding), false)
            or coalesce(counted < lag(counted) over (partition by process, source_id order by source_line), false)
            as fell
  from summed
), shared as (
  select process, count(ts_end) = count(*) as timed from told group by process
  having min(source_id) <> max(source_id)
         and (timed or count(counters_since) = count(*) or not bool_or(fell))
), placed as (
  select s.*, row_number() over (
           partition by process
           order by case when timed then ts_end end, counted, source_id, source_line) as place
  from summed s join shared using (process)
), followed as (
  select *, lag(place) over (partition by process, source_id order by place) as own_before from placed
), cells as (
  select process, place, unnest(range(1, len(counters) + 1)) as i, unnest(counters) as value from placed
), compared as (
  select *, i in (1, 2, 4, 5, 12, 13, 14)
            and value < lag(value ignore nulls) over (partition by process, i order by place) as falls
  from cells
), starts as (
  select process, place, sum(fell) over (partition by process order by place) as start
  from (select process, place, coalesce(bool_or(falls), false)::integer as fell from compared group by process, place)
), refuted as (
  select distinct a.process
  from followed a join starts s on s.process = a.process and s.place = a.own_before
  join starts t on t.process = a.process and t.place = a.place
  where not a.is_first and s.start <> t.start
), settled as (
  -- Plain steps are the difference of two counters, of which a page may show one a step later: the least from here on.
  select c.process, c.place, s.start, c.i,
         case when c.i <> 3 or c.value is null then c.value
              else min(c.value) over (partition by c.process, s.start, c.i order by c.place
                                      rows between current row and unbounded following) end as value
  from cells c join starts s using (process, place)
), differenced as (
  select process, place, i,
         value - coalesce(lag(value ignore nulls) over (partition by process, start, i order by place), 0) as growth
  from settled
), grown as (
  select process, place, list(growth order by i) as growth from differenced group by process, place
)
select p.source_id, p.source_line, p.surface, g.growth, coalesce(list_max(g.growth) > 0, false) as grew,
       lag(p.source_id) over start as other_id, p.counters_since is null as by_name,
       greatest(lag(p.ts_end) over start, p.ts_start) as since,
       coalesce(other_id <> p.source_id, false) as continues
from placed p join starts s using (process, place) join grown g using (process, place)
anti join refuted using (process)
window start as (partition by process, s.start order by place);

-- Such a window by its counters. What contradicts itself is not known, as its reader would say: a page may have been
-- made while a round was counted, and some counts are differences of counters.
create or replace view counted_windows as
with regrown as (
  select l.*, c.since, list_transform(c.growth, lambda x: round(x)::bigint) as g,
         case when rounds_basis = 'derived' and g[2] is null and drafted > 0 and g[4] * rounds % drafted = 0
              then g[4] * rounds // drafted else g[2] end as r,
         coalesce(g[5] <= g[4], true) as fits,
         case when surface = 'sglang.metrics_finished' then fits and g[6] >= r
              when surface = 'trtllm.metrics' then g[6] >= r
              when surface = 'lmdeploy.metrics' and g[3] is null then g[6] between r and r + g[5]
              else g[6] >= 0 and not coalesce(g[3] > 0 and g[6] = g[5] + r, false) end as emits,
         coalesce(g[11], round(g[15] * r / nullif(case when g[6] >= r then g[6] end, 0))::bigint) as timed
  from logged_windows l join (from continued where continues and grew) c using (source_id, source_line, surface)
), told as (
  select * exclude (since, g, r, fits, emits, timed) replace (
           since as ts_start,
           epoch_us(ts_end) - epoch_us(since) as window_us,
           g[1] as steps,
           case when surface = 'sglang.metrics_finished'
                  or (fits and coalesce(r <= g[4] and (r > 0) = (g[4] > 0), true)) then r end as rounds,
           case when emits or surface <> 'trtllm.metrics' then g[3] end as plain_steps,
           case when fits then g[4] end as drafted,
           case when fits then g[5] end as accepted,
           case when emits then g[6] end as emitted,
           case when fits and list_sum(g[16:]) = g[5] and g[16:] = list_reverse_sort(g[16:]) and g[16] <= r
                     and list_min(g[16:]) >= 0 and len(list_filter(g[16:], lambda x: x is null)) = 0
                then g[16:] end as accepted_per_pos,
           -- Of times that are not used, the timers go on.
           case when draft_us is not null and g[7] > 0 then g[7] end as draft_us,
           case when target_us is not null and g[8] > 0 then g[8] end as target_us,
           case when step_us is not null and g[9] > 0 then g[9] end as step_us,
           case when timed > 0 then g[10] end as round_us,
           case when timed > 0 then timed end as rounds_timed,
           case when coalesce(timed, g[7], g[8], g[9]) > 0 then time_basis end as time_basis,
           case when surface <> 'sglang.metrics_finished' then counts_basis
                when fits and g[5] is not null then 'derived' end as counts_basis,
           g[12] as preemptions, g[13] as generated_tokens, g[14] as prompt_tokens)
  from regrown
)
from logged_windows anti join (from continued where continues) using (source_id, source_line, surface)
union all by name
from told;

-- ---------------------------------------------------------------- what counts
-- A table: every query reads the lines of the lake through it, and takes half as long to plan as with a view. It is of the
-- moment when this file was read; read it again where more logs came in.
create or replace temp table copied_lines as
select distinct source_id, unnest(range(first_line, last_line + 1)) as source_line from copied_ranges
except
select source_id, source_line from continued;

create or replace view rounds as
select * exclude (possible) replace (coalesce(weight, 1) as weight),
       draft_us / 1000.0 as draft_ms, target_us / 1000.0 as target_ms, sample_us / 1000.0 as sample_ms,
       rollback_us / 1000.0 as rollback_ms, repack_us / 1000.0 as repack_ms, emit_lag_us / 1000.0 as emit_lag_ms,
       step_us / 1000.0 as step_ms
from logged_rounds anti join copied_lines using (source_id, source_line) where counts(possible);

create or replace view windows as
select * exclude (possible, counters, counters_since) replace (coalesce(weight, 1) as weight),
       window_us / 1000.0 as window_ms, draft_us / 1000.0 as draft_ms, target_us / 1000.0 as target_ms,
       sample_us / 1000.0 as sample_ms, rollback_us / 1000.0 as rollback_ms, repack_us / 1000.0 as repack_ms,
       emit_lag_us / 1000.0 as emit_lag_ms, step_us / 1000.0 as step_ms, round_us / 1000.0 as round_ms
from counted_windows anti join copied_lines using (source_id, source_line) where counts(possible);

-- Times that a request's stamps tell and its record does not, where both are finer than a second.
create or replace macro between_us(since, until) as
  case when until >= since and epoch_us(since) % 1000000 <> 0 and epoch_us(until) % 1000000 <> 0
       then epoch_us(until) - epoch_us(since) end;

create or replace view requests as
with stamped as (
  select *, case when tpot_us is null and not coalesce(error, false) then between_us(ts_first_token, ts_end) end
           as told_us
  from logged_requests
), timed as (
  select * exclude (told_us) replace (
           coalesce(decode_us, told_us) as decode_us,
           coalesce(ttft_us, case when not coalesce(error, false) then between_us(ts_start, ts_first_token) end)
             as ttft_us,
           coalesce(e2e_us, case when not coalesce(error, false) then between_us(ts_start, ts_end) end) as e2e_us,
           coalesce(tpot_us, told_us / nullif(greatest(output_tokens - 1, 0), 0)) as tpot_us,
           coalesce(tpot_basis, case when told_us is not null and output_tokens > 1 then 'derived' end) as tpot_basis)
  from stamped
)
select * exclude (possible) replace (coalesce(weight, 1) as weight),
       draft_us / 1000.0 as draft_ms, target_us / 1000.0 as target_ms, ttft_us / 1000.0 as ttft_ms,
       decode_us / 1000.0 as decode_ms, e2e_us / 1000.0 as e2e_ms, queue_us / 1000.0 as queue_ms,
       tpot_us / 1000.0 as tpot_ms
from timed anti join copied_lines using (source_id, source_line) where counts(possible);

create or replace view rejects as from read_parquet(lake_files('rejects'), union_by_name = true);

-- ---------------------------------------------------------------- one row a request
-- Ids that several records have. None in most lakes: who keeps this view spares every query to look for them.
create or replace macro join_key_of(request_id, source_id, source_line) as
  case when request_id = source_id || '#' || source_line then request_id else request_key(request_id) end;

create or replace view met_again as
select engine, join_key
from (select engine, join_key_of(request_id, source_id, source_line) as join_key from requests)
group by engine, join_key having count(*) > 1;

-- Records of several surfaces that speak of one request (access and query log; response and request line) become one
-- row: in every column the first value that is not NULL, the record with counts first; `conflicting` names the columns
-- in which they contradict each other. Several records of one surface
-- with one id (an id used twice) stay apart, and so does everything of that id. Within a run first; across runs only
-- where the id is no counter of one process (llama.cpp numbers its tasks from 0).
create or replace view requests_joined as
with keyed as not materialized (
  select *, join_key_of(request_id, source_id, source_line) as join_key,
         case when accepted is not null or drafted is not null then 0
              when tpot_us is not null or output_tokens is not null then 1 else 2 end as preference
  from requests
), alone as (
  select * from keyed anti join met_again using (engine, join_key)
), crowded as (
  select *, count(*) over (partition by engine, join_key, run_id, surface) as same_in_run,
         count(*) over (partition by engine, join_key, surface) as same_anywhere
  from keyed semi join met_again using (engine, join_key)
), judged as (
  select *, max(same_in_run) over (partition by engine, join_key, run_id) = 1 as one_in_run,
         max(same_anywhere) over (partition by engine, join_key) = 1
           and is_global_id(engine, join_key) as one_anywhere,
         row_number() over (partition by engine, join_key order by preference, source_id, source_line) as place
  from crowded
), grouped as (
  select *, case when one_anywhere then '*' when one_in_run then 'run ' || run_id else 'record ' || place end as shelf
  from judged
), merged as (
  select engine, join_key, shelf,
         arg_min(columns(* exclude (engine, join_key, shelf, preference, same_in_run, same_anywhere, one_in_run,
                                    one_anywhere, place)), place),
         list_filter(['output_tokens', 'rounds', 'drafted', 'accepted', 'temperature', 'top_p', 'task_type', 'model'],
                     lambda name, i: [differs(output_tokens), differs(rounds), differs(drafted), differs(accepted),
                                      differs(temperature), differs(top_p), differs(task_type), differs(model)][i] = 1)
           as conflicting,
         len(conflicting) as conflicts,
         count(*) as records
  from grouped
  group by engine, join_key, shelf
)
select * exclude (shelf) from merged
union all by name
select * exclude (preference), []::varchar[] as conflicting, 0 as conflicts, 1 as records from alone;

-- ---------------------------------------------------------------- which grain holds what
-- Per run, grain and surface: how many rows hold each group of figures. Small; `tracelens report` keeps it as a table.
create or replace view held as
select 'round' as grain, 1 as grain_order, run_id, surface, count(*) as records,
       count(accepted) filter (not coalesce(is_replay, false)) as counts, 0 as other_counts, count(*) as know_rounds,
       count(*) filter (drafted = 0) as plain, sum(weight * drafted)::bigint as drafted, count(draft_us) as drafts,
       count(target_us) as targets, count(step_us) as steps
from rounds group by run_id, surface
union all by name
select 'request' as grain, 2 as grain_order, run_id, surface, count(*) as records, count(accepted) as counts,
       count(coalesce(rounds, iterations, drafted, emitted)) as other_counts, count(rounds) as know_rounds,
       sum(rounds) filter (drafted = rounds * coalesce(num_speculative_tokens, len(accepted_hist) - 1))
         / nullif(sum(rounds), 0) as fixed_share,
       0 as plain, sum(drafted)::bigint as drafted, count(draft_us) as drafts, count(target_us) as targets, 0 as steps,
       count(coalesce(decode_us, tpot_us)) as timed,
       count(coalesce(decode_us, tpot_us)) filter (not starts_with(request_id, source_id || '#')) as timed_by_id
from requests_joined group by run_id, surface
union all by name
select 'window' as grain, 3 as grain_order, run_id, surface, count(*) as records, count(accepted) as counts,
       count(coalesce(rounds, plain_steps, drafted, emitted)) as other_counts, count(rounds) as know_rounds,
       sum(rounds) filter (drafted = rounds * coalesce(num_speculative_tokens, len(accepted_per_pos)))
         / nullif(sum(rounds), 0) as fixed_share,
       0 as plain, sum(drafted)::bigint as drafted, count(coalesce(draft_us, draft_ms_per_token)) as drafts,
       count(target_us) as targets, count(coalesce(step_us, round_us)) as steps
from windows group by run_id, surface;

-- Per scope and group of figures the first grain that holds it, and in it one surface: two surfaces of one grain tell
-- of the same rounds (a log line and a scrape). Requests are the exception: their surfaces were joined by id above.
-- Rounds that a surface gives of some of its requests only (a log level that was changed, a client that lists them for
-- a few) are no account of all: there its requests' own counts go first. The surface that knows its rounds goes first,
-- then the one that saw most. A scope is a run that the user named, or all runs of one engine that were logged in one
-- folder: the responses beside a server's log may not tell which of its starts they are of, and must not be counted
-- beside its lines. Steps are taken where no profiler was, then where the phases are. Phases of a profiler stand beside
-- them, and no figure takes both (unit_sums tells them apart).
create or replace view grain_choice as
with scoped as (
  select held.*, coalesce(s.scope, held.run_id) as scope
  from held left join (select run_id, max(scope) as scope from runs group by run_id) s on s.run_id = held.run_id
)
select *,
       first_value(grain || case when grain = 'request' then '' else ' ' || surface end)
         over (partition by scope order by counts = 0, other_counts + counts = 0, is_partial, grain_order,
               know_rounds = 0, drafted desc nulls last, counts desc, surface) as counts_from,
       first_value(grain || case when grain = 'request' then '' else ' ' || surface end)
         over (partition by scope order by drafts = 0, grain_order, drafts desc, surface) as drafts_from,
       first_value(grain || case when grain = 'request' then '' else ' ' || surface end)
         over (partition by scope order by targets = 0, grain_order, targets desc, surface) as targets_from,
       first_value(grain || case when grain = 'request' then '' else ' ' || surface end)
         over (partition by scope
               order by steps = 0, is_profiled(surface), grain_order, drafts = 0, targets = 0, steps desc,
                                              surface)
         as steps_from,
       grain || case when grain = 'request' then '' else ' ' || surface end as place,
       -- A benchmark's list of times without ids is of requests that the server's own records may hold, too.
       timed > 0 and timed_by_id = 0 and max(timed_by_id) over (partition by scope) >= timed as timed_elsewhere,
       sum(plain) over (partition by scope) = 0
         and max(case when grain = 'round' then counts else 0 end) over (partition by scope) > 0 as plain_missing
from (
  select *, coalesce(grain = 'round' and told_share < 0.9, false) as is_partial
  from (select *, sum(drafted) filter (grain = 'round') over told
                  / nullif(sum(drafted) filter (grain = 'request') over told, 0) as told_share
        from scoped window told as (partition by scope, surface))
);

-- What a finer grain (or a better surface) of the run holds already: few rows, none for most lakes of one grain.
-- `loose`: draft lengths vary, so the few records whose rounds all had the full length are no fair sample of acceptance
-- by position.
create or replace view superseded as
select run_id, grain, surface, counts_from <> place as counts, drafts_from <> place as drafts,
       targets_from <> place as targets, steps_from <> place as steps, plain_missing and grain = 'request' as plain,
       grain <> 'round' and coalesce(fixed_share, 0) < 0.8 as loose, coalesce(timed_elsewhere, false) as times
from grain_choice
where (counts + other_counts > 0 and counts_from <> place) or (drafts > 0 and drafts_from <> place)
   or (targets > 0 and targets_from <> place) or (steps > 0 and steps_from <> place)
   or (grain <> 'round' and counts > 0 and coalesce(fixed_share, 0) < 0.8) or timed_elsewhere;

-- One row a run: its constants, and its role (a run that drafted is speculative unless somebody said otherwise).
create or replace view run_traits as
with told as (
  select run_id, max(role) as role, max(engine_version) as engine_version, max(model) as model,
         max(draft_model) as draft_model, max(method) as method,
         max(num_speculative_tokens) as num_speculative_tokens, bool_or(forced_acceptance) as forced_acceptance
  from runs group by run_id
), seen as (
  select run_id, max(drafted) > 0 as drafts from held group by run_id
)
select run_id, coalesce(told.role, case when seen.drafts then 'speculative' end) as role, engine_version, model,
       draft_model, method, num_speculative_tokens, forced_acceptance
from seen full join told using (run_id);

-- What a request knows and its rounds may not: by run, and by id alone where all runs agree.
create or replace view request_traits as
with by_run as (
  select engine, run_id, join_key, case when min(task_type) = max(task_type) then min(task_type) end as task_type,
         case when min(temperature) = max(temperature) then min(temperature) end as temperature,
         case when min(top_p) = max(top_p) then min(top_p) end as top_p
  from requests_joined
  where (task_type is not null or temperature is not null or top_p is not null)
    and request_id is distinct from source_id || '#' || source_line
  group by engine, run_id, join_key
), anywhere as (
  select engine, join_key, case when min(task_type) = max(task_type) then min(task_type) end as task_type,
         case when min(temperature) = max(temperature) then min(temperature) end as temperature,
         case when min(top_p) = max(top_p) then min(top_p) end as top_p
  from by_run where is_global_id(engine, join_key)
  group by engine, join_key
)
select engine, run_id, join_key, task_type, temperature, top_p from by_run
union all
select engine, null as run_id, join_key, task_type, temperature, top_p from anywhere;

-- Rounds with the task and sampling that their request knows. Where every round knows them itself, the report takes
-- `rounds` for it.
create or replace view labelled_rounds as
with labelled as materialized (from request_traits)
select r.* replace (coalesce(r.task_type, q.task_type, a.task_type) as task_type,
                    coalesce(r.temperature, q.temperature, a.temperature) as temperature,
                    coalesce(r.top_p, q.top_p, a.top_p) as top_p)
from rounds r
-- The key is NULL, and the join free, for rows that know all three themselves.
left join labelled q
  on q.engine = r.engine and q.run_id = r.run_id
     and q.join_key = case when r.task_type is null or r.temperature is null or r.top_p is null
                           then request_key(r.request_id) end
left join labelled a
  on a.run_id is null and a.engine = r.engine
     and a.join_key = case when q.join_key is null
                                and (r.task_type is null or r.temperature is null or r.top_p is null)
                           then request_key(r.request_id) end;

-- ---------------------------------------------------------------- facts
-- Every row of every grain, with the figures that a finer grain of its run holds set to NULL, so that sums over facts
-- count nothing twice. Counts: rounds (with a draft), plain_steps, drafted, accepted, emitted; full_accepts = rounds
-- with accepted = drafted, where the row can tell; emitted has the plain steps' tokens, emitted_drafted has not.
-- Times are in the request view: every request-round carries its whole step, so sum(draft_us) / sum(time_rounds) is the
-- mean per request-round, and sum(draft_us * step_share) is engine time. drafted_timed = the drafted tokens that
-- draft_us stands for. `unit` = what is independent: the request (rounds, requests) or the window. TPOT and its parts
-- live on request rows only. Rounds without a request id are taken by the minute (or 256 lines): single rounds depend.
-- Rounds of old days may be rolled up (rolled_requests is not NULL): rows of equal rounds, with their number as weight,
-- whose unit is a group of requests that began in one minute.
create or replace view facts as
with traits as materialized (from run_traits), elsewhere as materialized (from superseded), round_rows as (
  select 'round' as grain, r.run_id, r.engine, t.engine_version, r.replica, coalesce(r.model, t.model) as model,
         coalesce(r.draft_model, t.draft_model) as draft_model, coalesce(r.method, t.method) as method,
         r.task_type, r.temperature, r.top_p,
         coalesce(r.num_speculative_tokens, t.num_speculative_tokens) as num_speculative_tokens, r.num_draft_nodes,
         coalesce(r.forced_acceptance, t.forced_acceptance) as forced_acceptance, t.role, r.surface, r.source_id,
         r.source_line, r.weight, r.labels, r.ts, r.date, r.request_id, r.round_index, r.step_id,
         coalesce(r.step_share, 1.0 / nullif(r.batch_size, 0)) as step_share, r.batch_size, r.context_len,
         coalesce(request_key(r.request_id),
                  r.source_id || ' block ' || coalesce(epoch_us(r.ts) // 60000000, r.source_line // 256)) as unit,
         r.has_prefill, r.is_replay, r.timing_basis, r.rolled_requests, r.rolled_squares, r.rolled_longest,
         -- A replayed round was counted when it ran first; its time is real all the same.
         coalesce(s.counts, false) or coalesce(r.is_replay, false) as uncounted,
         case when uncounted then null when r.drafted = 0 then 0 else 1 end::bigint as rounds,
         case when uncounted then null when r.drafted = 0 then 1 else 0 end::bigint as plain_steps,
         case when not uncounted then r.drafted end::bigint as drafted,
         case when not uncounted then r.accepted end::bigint as accepted,
         case when not uncounted then r.emitted end::bigint as emitted,
         case when not uncounted and r.drafted is distinct from 0 then r.emitted end::bigint as emitted_drafted,
         case when not uncounted and r.drafted > 0 then (r.accepted >= r.drafted)::bigint end as full_accepts,
         1::bigint as time_rounds,
         case when s.drafts then null else r.draft_us end as draft_us,
         case when s.drafts or r.draft_us is null then null else r.drafted end::bigint as drafted_timed,
         case when s.targets then null else r.target_us end as target_us,
         case when s.steps then null else r.step_us end as step_us,
         case when s.steps then null else r.sample_us end as sample_us,
         case when s.steps then null else r.rollback_us end as rollback_us,
         case when s.steps then null else r.repack_us end as repack_us,
         case when s.steps then null else r.emit_lag_us end as emit_lag_us
  from labelled_rounds r
  left join traits t on t.run_id = r.run_id
  left join elsewhere s on s.grain = 'round' and s.run_id = r.run_id and s.surface = r.surface
), request_rows as (
  select 'request' as grain, r.run_id, r.engine, t.engine_version, r.replica, coalesce(r.model, t.model) as model,
         coalesce(r.draft_model, t.draft_model) as draft_model, coalesce(r.method, t.method) as method,
         r.task_type, r.temperature, r.top_p,
         coalesce(r.num_speculative_tokens, t.num_speculative_tokens) as num_speculative_tokens, r.num_draft_nodes,
         coalesce(r.forced_acceptance, t.forced_acceptance) as forced_acceptance, t.role, r.surface, r.source_id,
         r.source_line, r.weight, r.labels, r.ts_end as ts, r.date, r.request_id, r.prompt_tokens as context_len,
         r.join_key as unit, r.counts_basis, r.tpot_basis, r.error,
         coalesce(s.counts, false) as uncounted, 
         -- emitted = accepted + rounds + plain steps - cuts, which tells the least number of plain steps.
         coalesce(r.iterations - r.rounds, r.emitted - r.accepted - r.rounds) as passes,
         case when passes < 0 then 0 else passes end as other_passes,
         case when not uncounted then r.rounds end as rounds,
         -- Some surfaces list the rounds that had a draft and no others (vLLM's detailed responses under n-gram): the
         -- passes they leave out are plain steps, one token each, and only the request knows them.
         case when not uncounted or (s.plain and passes > 0) then other_passes end as plain_steps,
         case when not uncounted then r.drafted end as drafted, case when not uncounted then r.accepted end as accepted,
         case when not uncounted then r.emitted when s.plain and passes > 0 then passes end as emitted,
         case when not uncounted then greatest(r.emitted - coalesce(other_passes, 0), 0) end as emitted_drafted,
         -- With drafted = rounds * K every round had K drafts, and the last element counts the full ones.
         coalesce(r.num_speculative_tokens, t.num_speculative_tokens, len(r.accepted_hist) - 1) as k,
         case when not uncounted and not coalesce(s.loose, false) and r.drafted = r.rounds * k
                   and len(r.accepted_hist) > k then r.accepted_hist[k + 1] end as full_accepts,
         case when not uncounted then r.accepted_hist end as accepted_hist,
         coalesce(r.iterations, r.rounds) as time_rounds,
         case when s.drafts then null else r.draft_us end as draft_us,
         case when s.drafts or r.draft_us is null then null else r.drafted end as drafted_timed,
         case when s.targets then null else r.target_us end as target_us,
         case when not coalesce(s.times, false) then r.prompt_tokens end as prompt_tokens,
         case when not coalesce(s.times, false) then r.output_tokens end as output_tokens,
         case when not coalesce(s.times, false) then r.ttft_us end as ttft_us,
         case when not coalesce(s.times, false) then r.decode_us end as decode_us,
         case when not coalesce(s.times, false) then r.e2e_us end as e2e_us,
         case when not coalesce(s.times, false) then r.queue_us end as queue_us,
         case when not coalesce(s.times, false) then r.tpot_us end as tpot_us, r.preemptions
  from requests_joined r
  left join traits t on t.run_id = r.run_id
  left join elsewhere s on s.grain = 'request' and s.run_id = r.run_id and s.surface = r.surface
), window_sums as (
  select *,
         case when time_basis = 'sample' then 1
              else coalesce(nullif(coalesce(rounds, 0) + coalesce(plain_steps, 0), 0), steps, rounds_timed, 1)
         end as time_rounds,
         -- From what the window logs to a sum over its request-rounds, each carrying its whole step.
         case when time_basis in ('mean', 'sample') then time_rounds
              else coalesce(time_rounds / nullif(steps, 0), 1) end as spread
  from windows
), window_rows as (
  select 'window' as grain, r.run_id, r.engine, t.engine_version, r.replica, coalesce(r.model, t.model) as model,
         coalesce(r.draft_model, t.draft_model) as draft_model, coalesce(r.method, t.method) as method,
         r.task_type, r.temperature, r.top_p,
         coalesce(r.num_speculative_tokens, t.num_speculative_tokens) as num_speculative_tokens, r.num_draft_nodes,
         coalesce(r.forced_acceptance, t.forced_acceptance) as forced_acceptance, t.role, r.surface, r.source_id,
         r.source_line, r.weight, r.labels, r.ts_end as ts, r.date, r.running::integer as batch_size,
         r.source_id || '#' || coalesce(r.source_line, 0) || ' ' || r.surface as unit, r.counts_basis, r.rounds_basis,
         coalesce(s.counts, false) as uncounted,
         case when not uncounted then r.rounds end as rounds,
         case when not uncounted then r.plain_steps end as plain_steps,
         case when not uncounted then r.drafted end as drafted, case when not uncounted then r.accepted end as accepted,
         -- emitted may leave the plain steps out (then it is accepted + rounds exactly); here it has them.
         case when r.emitted = r.accepted + r.rounds then coalesce(r.plain_steps, 0) else 0 end as plain_emitted,
         case when not uncounted then r.emitted + plain_emitted end as emitted,
         case when not uncounted then r.emitted + plain_emitted - coalesce(r.plain_steps, 0) end as emitted_drafted,
         coalesce(r.num_speculative_tokens, t.num_speculative_tokens, len(r.accepted_per_pos)) as k,
         case when not uncounted and not coalesce(s.loose, false) and r.drafted = r.rounds * k
                   and len(r.accepted_per_pos) >= k
              then r.accepted_per_pos[k] end as full_accepts,
         case when not uncounted then r.accepted_per_pos end as accepted_per_pos,
         r.time_rounds,
         case when r.time_basis = 'mean' or r.steps is null then 1.0 else r.steps / r.time_rounds end as step_share,
         case when s.drafts then null else round(r.draft_us * r.spread) end::bigint as draft_us,
         case when s.drafts then null else r.draft_ms_per_token end as draft_ms_per_token,
         case when s.drafts or r.draft_us is null or r.time_basis = 'sample' then null else r.drafted end
           as drafted_timed,
         case when s.targets then null else round(r.target_us * r.spread) end::bigint as target_us,
         -- A histogram of gaps between a request's rounds (vLLM's ITL) is the same thing seen from the client's side.
         case when s.steps then null
              else round(coalesce(r.step_us * r.spread, r.round_us * r.time_rounds / nullif(r.rounds_timed, 0)))
         end::bigint as step_us,
         case when s.steps then null else round(r.sample_us * r.spread) end::bigint as sample_us,
         case when s.steps then null else round(r.rollback_us * r.spread) end::bigint as rollback_us,
         case when s.steps then null else round(r.repack_us * r.spread) end::bigint as repack_us,
         case when s.steps then null else round(r.emit_lag_us * r.spread) end::bigint as emit_lag_us,
         r.preemptions, r.generated_tokens, r.v0_matched
  from window_sums r
  left join traits t on t.run_id = r.run_id
  left join elsewhere s on s.grain = 'window' and s.run_id = r.run_id and s.surface = r.surface
), all_rows as (
  select * exclude (uncounted) from round_rows
  union all by name
  select * exclude (uncounted, passes, other_passes, k) from request_rows
  union all by name
  select * exclude (uncounted, k, plain_emitted) from window_rows
)
select *,
       temperature_bucket_of(temperature) as temperature_bucket, batch_bucket_of(batch_size) as batch_bucket,
       context_bucket_of(context_len) as context_bucket, date_trunc('hour', ts) as hour,
       draft_us / 1000.0 as draft_ms, target_us / 1000.0 as target_ms, sample_us / 1000.0 as sample_ms,
       rollback_us / 1000.0 as rollback_ms, repack_us / 1000.0 as repack_ms, emit_lag_us / 1000.0 as emit_lag_ms,
       step_us / 1000.0 as step_ms, ttft_us / 1000.0 as ttft_ms, decode_us / 1000.0 as decode_ms,
       e2e_us / 1000.0 as e2e_ms, queue_us / 1000.0 as queue_ms, tpot_us / 1000.0 as tpot_ms
from all_rows;

-- ---------------------------------------------------------------- what the queries read
-- The grouping of every query. Runs without speculation and forced acceptance stay out of speculative figures.
create or replace view strata as
select {'task_type': task_type} as stratum, {'task_type': task_type} as traffic, * from facts
where role is distinct from 'baseline' and not coalesce(forced_acceptance, false);

-- What ran without speculation, by class of traffic: plain steps with their step_us, requests with their TPOT. The
-- variable baseline_run names one run instead of all with the role.
create or replace view baseline_facts as
select {'task_type': task_type} as traffic, * from facts
where case when getvariable('baseline_run') is null then role = 'baseline'
           else run_id = getvariable('baseline_run')::varchar end;

-- Every run without speculation, whether or not it is the baseline: what control noise is told from.
create or replace view control_facts as
select {'task_type': task_type} as traffic, * from facts where role = 'baseline';

-- Rounds by draft length and accepted length: from rounds, and exactly from histograms and per-position counts where
-- every round had the same draft length. `bucket` spreads the units over 4096 groups that are independent too.
create or replace view round_shapes as
with shaped as not materialized (
  select stratum, hash(hash(run_id, unit)) % 4096 as bucket, weight, grain, drafted, accepted, rounds,
         case when grain = 'round' then drafted else drafted // nullif(rounds, 0) end as d,
         case when grain = 'round' then null when accepted_hist is not null then accepted_hist
              else list_transform(range(0, d + 1), lambda j:
                     case when j = 0 then rounds else accepted_per_pos[j] end - coalesce(accepted_per_pos[j + 1], 0))
         end as hist
  from strata
  where rounds > 0 and drafted > 0 and (grain = 'round' or full_accepts is not null)
)
select stratum, bucket, d as drafted, accepted, sum(weight * rounds) as rounds
from shaped where grain = 'round' group by stratum, bucket, d, accepted
union all
select stratum, bucket, d as drafted, j as accepted, sum(weight * hist[j + 1]) as rounds
from shaped, unnest(range(0, d + 1)) as positions(j) where grain <> 'round' group by stratum, bucket, d, j
having sum(hist[j + 1]) > 0;

-- Rounds of a unit with the same draft length d and the same figures logged (`holds`, a bit for each) are one row here:
-- their sums, under the names of facts. The many sums of unit_sums then have few rows to add. A round stands for one
-- round or one plain step, and for one of time (n: its weight). near: rounds that lost a draft and kept no more than
-- near_k_delta; shared_: engine time, a step counted once; fit_d: d.
create or replace view alike_rounds as
with told as (
  select *, weight * step_share as share,
         case when rounds is null then 1 else 0 end
           + case when drafted is null then 2 when drafted = 0 then 4 else 0 end
           + case when drafted_timed is null then 8 else 0 end
           + case when has_prefill is null then 16 when has_prefill then 32 else 0 end
           + case when request_id is null then 64 else 0 end + case when is_profiled(surface) then 128 else 0 end
           + case when accepted <= near_k_delta() and accepted < drafted then 256 else 0 end
           + case when accepted is null then 512 else 0 end + case when emitted is null then 1024 else 0 end
           + case when draft_us is null then 2048 else 0 end + case when target_us is null then 4096 else 0 end
           + case when step_us is null then 8192 else 0 end + case when sample_us is null then 16384 else 0 end
           + case when rollback_us is null then 32768 else 0 end + case when repack_us is null then 65536 else 0 end
           + case when emit_lag_us is null then 131072 else 0 end as holds
  from strata where grain = 'round'
), sums as (
  select stratum, traffic, engine, model, batch_bucket, context_bucket, run_id, unit, num_speculative_tokens, holds,
         coalesce(drafted_timed, drafted) as d, sum(weight) as n, sum(weight * accepted) as accepted,
         sum(weight * emitted) as emitted, sum(weight * full_accepts) as full_accepts,
         sum(weight * draft_us) as draft_us, sum(weight * target_us) as target_us, sum(weight * step_us) as step_us,
         sum(weight * sample_us) as sample_us, sum(weight * rollback_us) as rollback_us,
         sum(weight * repack_us) as repack_us, sum(weight * emit_lag_us) as emit_lag_us,
         sum(share * draft_us) as shared_draft_us, sum(share * step_us) as shared_step_us,
         sum(rolled_requests) as rolled_requests, sum(rolled_squares) as rolled_squares,
         max(rolled_longest) as rolled_longest
  from told
  group by all
)
select stratum, traffic, engine, model, batch_bucket, context_bucket, run_id, unit, 'round' as grain,
       num_speculative_tokens, (holds & 64) = 0 as has_id, (holds & 128) <> 0 as profiled, false as skips,
       case when (holds & 16) = 0 then (holds & 32) <> 0 end as has_prefill, 1 as weight,
       case when (holds & 1) = 0 then if((holds & 4) = 0, n, 0) end as rounds,
       case when (holds & 1) = 0 then if((holds & 4) = 0, 0, n) end as plain_steps, n as time_rounds,
       case when (holds & 2) = 0 then d * n end as drafted, case when (holds & 8) = 0 then d * n end as drafted_timed,
       accepted, emitted, case when (holds & 4) = 0 then emitted end as emitted_drafted, full_accepts,
       draft_us / 1000 as draft_ms, target_us / 1000 as target_ms, step_us / 1000 as step_ms,
       sample_us / 1000 as sample_ms, rollback_us / 1000 as rollback_ms, repack_us / 1000 as repack_ms,
       emit_lag_us / 1000 as emit_lag_ms, if((holds & 256) <> 0, n, 0) as near,
       shared_draft_us / 1000 as shared_draft, shared_step_us / 1000 as shared_step,
       d as fit_d, rolled_requests, rolled_squares, rolled_longest
from sums;

-- The sums that acceptance, cost and baseline need, in one pass: by independent unit, within engine, model, batch and
-- context. rolled_*: the requests that a unit of rolled-up rows stands for; NULL where the unit is one request.
-- n, plain, d, a, e: counts (a_of_x: accepted where x is known); dt..tn: times without prefill steps and what
-- they stand for; w: request-rounds with any time; f*: rounds that tell how verify time grows with the draft. shaped_n,
-- near_n, rolled_back: rounds of requests whose lengths are known, those with (almost) nothing kept, and with a
-- rollback; shared_, near_: engine time of all rounds and of those near-K, a step counted once.
create or replace view unit_sums as
with rows_of as (
  from alike_rounds
  union all by name
  select stratum, traffic, engine, model, batch_bucket, context_bucket, run_id, unit, grain, num_speculative_tokens,
         request_id is not null and grain <> 'window' as has_id, is_profiled(surface) as profiled,
         -- Drafters that find nothing in many steps: without a count of those steps nobody knows all rounds.
         plain_steps is null and coalesce(contains(lower(method), 'ngram') or contains(lower(method), 'suffix')
           or contains(lower(method), 'lookup'), false) as skips,
         has_prefill, weight, rounds, plain_steps, time_rounds, drafted, drafted_timed, accepted, emitted,
         emitted_drafted, full_accepts, draft_ms, draft_ms_per_token, target_ms, step_ms, sample_ms, rollback_ms,
         repack_ms, emit_lag_ms, decode_ms, tpot_ms, output_tokens,
         list_sum(accepted_hist[1:least(near_k_delta() + 1, drafted // nullif(rounds, 0))]) as near
  from strata where grain <> 'round'
), seen as (
  select *, coalesce(rounds, plain_steps, drafted) is not null as counted, rounds = 0 and plain_steps > 0 as is_plain,
         coalesce(rounds, plain_steps) as passes_known, coalesce(rounds, 0) + coalesce(plain_steps, 0) as passes,
         case when not coalesce(has_prefill, false) then weight end as cw,
         has_id and rounds > 0 and drafted > 0 and full_accepts is not null as is_shaped,
         grain = 'round' and drafted > 0 and target_ms is not null and not coalesce(has_prefill, false) as fits
  from rows_of
)
select stratum, traffic, engine, model, batch_bucket, context_bucket, run_id, unit,
       bool_or(counted and grain = 'round') as has_rounds, bool_or(counted and grain = 'request') as has_requests,
       bool_or(counted and grain = 'window') as has_windows,
       bool_or(counted and has_id) as is_request,
       sum(weight * rounds) as n, sum(weight * plain_steps) as plain,
       sum(case when passes_known is not null then weight * passes end) as all_rounds,
       -- Drafts of which nobody logged how many were accepted (a profiler trace) are in no ratio.
       sum(case when accepted is not null then weight * drafted end) as d,
       sum(case when counted then weight * accepted end) as a,
       sum(case when counted then weight * emitted end) as e,
       sum(case when drafted is not null then weight * accepted end) as a_of_d,
       sum(case when drafted is not null and passes_known is not null then weight * drafted end) as d_of_n,
       -- Plain steps that another record counts than the one with the drafts drafted nothing.
       sum(case when (drafted is not null or rounds is null) and passes_known is not null then weight * passes end)
         as n_of_d,
       sum(case when rounds is not null then weight * accepted end) as a_of_n,
       sum(case when accepted is not null then weight * rounds end) as n_of_a,
       sum(case when full_accepts is not null then weight * accepted end) as a_of_p,
       sum(weight * (rounds - full_accepts)) as rejections,
       sum(case when rounds > 0 then weight * emitted_drafted end) as e_of_n,
       sum(case when emitted_drafted is not null then weight * rounds end) as n_of_e,
       sum(case when counted and not skips then weight * coalesce(emitted, accepted + rounds + coalesce(plain_steps, 0))
           end) as e_all,
       sum(case when counted and not skips and coalesce(emitted, accepted + rounds) is not null then weight * passes
           end) as n_all,
       sum(case when counted and not skips and emitted is not null then weight * passes end) as n_logged,
       min(num_speculative_tokens) filter (counted) as k_min, max(num_speculative_tokens) filter (counted) as k_max,
       sum(case when drafted_timed > 0 then cw * draft_ms end) as dt,
       sum(case when drafted_timed > 0 and draft_ms is not null then cw * drafted_timed end) as dn,
       sum(cw * draft_ms) as d_all,
       -- A plain step that was timed and has no draft time had no draft phase: it counts as a step of the mean.
       sum(case when draft_ms is not null or (drafted = 0 and coalesce(step_ms, target_ms) is not null)
                then cw * time_rounds end) as d_rounds,
       sum(cw * target_ms) as v, sum(case when target_ms is not null then cw * time_rounds end) as vn,
       sum(cw * step_ms) as t, sum(case when step_ms is not null then cw * time_rounds end) as tn,
       sum(cw * sample_ms) as sample, sum(case when sample_ms is not null then cw * time_rounds end) as sample_n,
       sum(cw * rollback_ms) as rollback,
       sum(case when rollback_ms is not null then cw * time_rounds end) as rollback_n,
       sum(cw * repack_ms) as repack, sum(case when repack_ms is not null then cw * time_rounds end) as repack_n,
       sum(cw * emit_lag_ms) as lag, sum(case when emit_lag_ms is not null then cw * time_rounds end) as lag_n,
       bool_or(has_prefill is not null and step_ms is not null) as prefill_known,
       bool_or(profiled and (draft_ms is not null or target_ms is not null)) as phases_profiled,
       bool_or(profiled and step_ms is not null) as steps_profiled,
       sum(case when has_prefill then weight * step_ms end) as prefill_t,
       sum(case when has_prefill and step_ms is not null then weight * time_rounds end) as prefill_n,
       sum(weight * draft_ms_per_token * coalesce(drafted_timed, 1)) as logged,
       sum(case when draft_ms_per_token is not null then weight * coalesce(drafted_timed, 1) end) as logged_n,
       sum(case when coalesce(draft_ms, target_ms, step_ms) is not null then cw * time_rounds end) as w,
       sum(case when coalesce(decode_ms, tpot_ms) is not null then weight * coalesce(output_tokens - 1, 1) end)
         as tokens,
       sum(case when is_plain then cw * step_ms end) as plain_ms,
       sum(case when is_plain and step_ms is not null then cw * time_rounds end) as plain_rounds,
       coalesce(sum(case when fits then time_rounds end), 0) as fn, sum(case when fits then drafted end) as fd,
       sum(case when fits then target_ms end) as fv, sum(case when fits then fit_d * drafted end) as fdd,
       sum(case when fits then fit_d * target_ms end) as fdv,
       sum(case when is_shaped then weight * rounds end) as shaped_n,
       sum(case when is_shaped then weight * near end) as near_n,
       sum(case when is_shaped then weight * (rounds - full_accepts) end) as rolled_back,
       sum(shared_draft) as shared_draft, sum(case when near > 0 then shared_draft end) as near_draft,
       sum(shared_step) as shared_step, sum(case when near > 0 then shared_step end) as near_step,
       sum(rolled_requests) as rolled_requests, sum(rolled_squares) as rolled_squares,
       max(rolled_longest) as rolled_longest
from seen
group by stratum, traffic, engine, model, batch_bucket, context_bucket, run_id, unit;

-- What else the queries take from single rows: sums, which of parts of a lake add up (docs/spark.md).
-- Rounds that share their step with others, by the names of unit_sums: by step - by row is a sum over steps, so one
-- step in `every` estimates it, about a million rows at most. Rolled-up rounds name no step: `mates`, how many rows had
-- the step of each of a row's rounds beside it, stands for them. Their rounds are of as many steps, so what the mates
-- share is at least what the row's own sum gives (more where a minute's steps are alike: on the safe side).
create or replace view shared_steps as
with shared as (
  select *, not coalesce(has_prefill, false) as decodes, coalesce(draft_ms, target_ms, step_ms) is not null as is_timed
  from strata
  where grain = 'round' and (step_id is not null or rolled_requests is not null) and step_share < 1
)
select stratum, traffic, engine, model, batch_bucket, context_bucket, run_id, step_id, one_in(1000000) as every,
       case when rolled_requests is not null then 1 / step_share - 1 end as mates,
       weight * case when decodes and drafted_timed > 0 then draft_ms end as dt,
       weight * case when decodes and drafted_timed > 0 and draft_ms is not null then drafted_timed end as dn,
       weight * case when decodes then draft_ms end as d_all,
       weight * case when decodes and (draft_ms is not null
                                       or (drafted = 0 and coalesce(step_us, target_us) is not null))
                     then time_rounds end as d_rounds,
       weight * case when decodes then target_ms end as v,
       weight * case when decodes and target_ms is not null then time_rounds end as vn,
       weight * step_ms as every_t, weight * case when step_ms is not null then time_rounds end as every_n,
       weight * case when decodes and is_timed then time_rounds end as w, decodes
from shared
where (decodes or step_ms is not null)
      and is_sampled(hash(hash(run_id, step_id, case when step_id is null then hash(request_id, ts) end)), 1000000);

-- Plain steps and decoding of what ran without speculation, by unit, ms. mates, mates_t, mates_tt: what requests of one
-- step share; sums of (rows in the step - 1) times 1, t and t^2, by the square of the weight: of a row of many rounds
-- (rolled up) it is their sum that has the spread.
create or replace view plain_units as
with plain_rows as not materialized (
  select engine, model, traffic, batch_bucket, context_bucket, run_id, unit, weight, time_rounds, surface,
         case when grain = 'round' then weight * weight * (1 / nullif(step_share, 0) - 1) end as beside,
         case when not coalesce(has_prefill, false) and coalesce(drafted, 0) = 0 then step_ms end as step,
         case when not coalesce(error, false) then weight * coalesce(decode_ms, tpot_ms * (output_tokens - 1), tpot_ms)
         end as decode,
         case when not coalesce(error, false) and coalesce(decode_ms, tpot_ms) is not null
              then weight * coalesce(nullif(output_tokens - 1, 0), case when tpot_ms is not null then 1 end)
         end as tokens
  from baseline_facts
)
select engine, model, traffic, batch_bucket, context_bucket, run_id, unit,
       sum(weight * step) as step, sum(case when step is not null then weight * time_rounds end) as steps,
       sum(decode) as decode, sum(tokens) as tokens, sum(case when step is not null then beside end) as mates,
       sum(beside * step) as mates_t, sum(beside * step * step) as mates_tt,
       bool_or(is_profiled(surface) and step is not null) as profiled
from plain_rows
group by all;

-- The same of every run without speculation, by run.
create or replace view control_sums as
with timed as (
  select engine, model, traffic, run_id,
         case when not coalesce(error, false) then weight * coalesce(decode_ms, tpot_ms * (output_tokens - 1), tpot_ms)
         end as decode,
         case when not coalesce(error, false) and coalesce(decode_ms, tpot_ms) is not null
              then weight * coalesce(nullif(output_tokens - 1, 0), 1) end as tokens,
         case when not coalesce(has_prefill, false) and coalesce(drafted, 0) = 0 then weight * step_ms end as step,
         case when not coalesce(has_prefill, false) and coalesce(drafted, 0) = 0 and step_ms is not null
              then weight * time_rounds end as steps
  from control_facts
)
select engine, model, traffic, run_id, sum(decode) as decode, sum(tokens) as tokens, sum(step) as step,
       sum(steps) as steps
from timed
group by engine, model, traffic, run_id;

-- Plain step and TPOT of every cell (traffic, engine, model, batch, context) of a stratum, ms: what `baseline.sql`
-- found. Empty here;
-- `tracelens report` fills it, so that rho.sql can tell what cost and baseline share.
create or replace view prices as
select stratum, stratum is null as is_total, traffic, engine, model, batch_bucket, context_bucket,
       null::double as price, null::double as tpot, null::varchar as basis
from strata where false;

-- unit_sums beside the plain steps of the same rounds, ms: b = w x price. A row a stratum (is_total = 0), and again for
-- the total with the total's prices (is_total = 1, stratum NULL).
create or replace view priced_units as
with all_units as materialized (
  from unit_sums
)
select s.*, 0 as is_total, s.w * p.price as b
from all_units s
left join prices p
  on not p.is_total and p.stratum = s.stratum and p.traffic = s.traffic and p.engine = s.engine
     and p.model is not distinct from s.model
     and p.batch_bucket is not distinct from s.batch_bucket
     and p.context_bucket is not distinct from s.context_bucket
union all by name
select s.* exclude (stratum), 1 as is_total, s.w * p.price as b
from all_units s
left join prices p
  on p.is_total and p.traffic = s.traffic and p.engine = s.engine and p.model is not distinct from s.model
     and p.batch_bucket is not distinct from s.batch_bucket
     and p.context_bucket is not distinct from s.context_bucket;

-- Requests with their decode time: tokens after the first, and the TPOT without speculation of the same class (plain;
-- plain_total by the total's prices). Failed requests are left out.
create or replace view priced_requests as
with timed as (
  select stratum, traffic, engine, model, batch_bucket, context_bucket, run_id, unit, weight, output_tokens, ttft_ms,
         queue_ms,
         case when output_tokens > 1 or output_tokens is null
              then coalesce(decode_ms, tpot_ms * (output_tokens - 1), tpot_ms) end as decode,
         case when output_tokens > 1 then output_tokens - 1
              when output_tokens is null and tpot_ms is not null then 1 end as tokens,
         coalesce(decode_ms / nullif(output_tokens - 1, 0), tpot_ms) as tpot
  from strata
  where grain = 'request' and not coalesce(error, false)
), usable as (
  select *, decode is not null and tokens is not null as is_timed from timed
)
select u.*, p.tpot as plain, q.tpot as plain_total
from usable u
left join prices p
  on not p.is_total and p.stratum = u.stratum and p.traffic = u.traffic and p.engine = u.engine
     and p.model is not distinct from u.model and p.batch_bucket is not distinct from u.batch_bucket
     and p.context_bucket is not distinct from u.context_bucket
left join prices q
  on q.is_total and q.traffic = u.traffic and q.engine = u.engine
     and q.model is not distinct from u.model
     and q.batch_bucket is not distinct from u.batch_bucket
     and q.context_bucket is not distinct from u.context_bucket;
