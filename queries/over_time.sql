-- Question: how do draft cost, verify cost and the rest of a round move over time, and which run or setting came when?
-- Inputs: views strata, prices. Variable: time_points (rows at most, as far as the widest bucket allows; default 60).
-- Output, one row a bucket of time and run (with one K, method, models and version), in order: started (UTC, start of
--   the bucket), bucket_seconds (the finest width that keeps to time_points);
--   run_id, num_speculative_tokens, method, model, draft_model, engine_version; is_first = the first bucket of these;
--   rounds, drafted, accepted (tokens, the target's own not counted); draft_accept_ratio = accepted / drafted;
--   draft_ms_per_token, draft_ms, target_ms, step_ms (request view, without prefill steps), baseline_ms;
--   rho_verify = draft_ms_per_token / target_ms; over the plain step of the same rows: rho = draft_ms_per_token,
--   verify_inflation = target_ms, overhead = step_ms - draft_ms - target_ms; NULL where less than 0.8 of the timed
--   rounds have a plain step (prices), so in a bare DuckDB without prices.
-- Basis: the finest grain of every run; rows without a time of day are left out. Buckets without a row are not listed.
with setting as (
  select coalesce(try_cast(getvariable('time_points') as bigint), 60) as most
), seconds as (
  select distinct run_id, epoch_us(ts) // 1000000 as second, rolled_requests is not null as is_rolled
  from strata where ts is not null
), widths as (
  select width, count(distinct hash(run_id, second // width)) as points
  from seconds, unnest([1, 2, 5, 10, 30, 60, 300, 900, 3600, 10800, 21600, 86400, 604800, 2592000]) as w(width)
  group by width
), chosen as (
  -- Rolled-up rounds know their minute.
  select coalesce(min(width) filter (points <= (select most from setting) and width >= least_width),
                  max(width))::bigint as width
  from widths, (select case when bool_or(is_rolled) then 60 else 1 end as least_width from seconds)
), cells as (
  -- Sums first, so that few rows meet their plain step.
  select run_id, num_speculative_tokens, method, s.model, draft_model, engine_version, traffic, engine, batch_bucket,
         context_bucket, (epoch_us(ts) // 1000000 // width) * width as start, any_value(width) as width,
         sum(weight * rounds) as rounds, sum(weight * drafted) as drafted, sum(weight * accepted) as accepted,
         sum(weight * accepted) filter (drafted is not null) as accepted_of_drafted,
         sum(cw * draft_ms) filter (drafted_timed > 0) as dt,
         sum(cw * drafted_timed) filter (drafted_timed > 0 and draft_ms is not null) as dn,
         sum(weight * draft_ms_per_token * coalesce(drafted_timed, 1)) as logged,
         sum(weight * coalesce(drafted_timed, 1)) filter (draft_ms_per_token is not null) as logged_n,
         sum(cw * draft_ms) as d_all,
         sum(cw * time_rounds)
           filter (draft_ms is not null or (drafted = 0 and coalesce(step_us, target_us) is not null)) as d_rounds,
         sum(cw * target_ms) as v, sum(cw * time_rounds) filter (target_ms is not null) as vn,
         sum(cw * step_ms) as t, sum(cw * time_rounds) filter (step_ms is not null) as tn,
         sum(cw * time_rounds) filter (coalesce(draft_ms, target_ms, step_ms) is not null) as w
  from (select *, case when not coalesce(has_prefill, false) then weight end as cw from strata where ts is not null) s,
       chosen
  group by all
), priced as (
  select c.*, c.w * p.price as b
  from cells c
  left join prices p
    on p.is_total and p.traffic = c.traffic and p.engine = c.engine and p.model is not distinct from c.model
       and p.batch_bucket is not distinct from c.batch_bucket
       and p.context_bucket is not distinct from c.context_bucket
), sums as (
  select start, width, run_id, num_speculative_tokens, method, model, draft_model, engine_version,
         sum(rounds) as rounds, sum(drafted) as drafted, sum(accepted) as accepted,
         sum(accepted_of_drafted) / nullif(sum(drafted), 0) as draft_accept_ratio,
         coalesce(sum(dt) / nullif(sum(dn), 0), sum(logged) / nullif(sum(logged_n), 0)) as draft_ms_per_token,
         sum(d_all) / nullif(sum(d_rounds), 0) as draft_ms, sum(v) / nullif(sum(vn), 0) as target_ms,
         sum(t) / nullif(sum(tn), 0) as step_ms,
         case when sum(w) filter (b is not null) >= 0.8 * sum(w)
              then sum(b) / nullif(sum(w) filter (b is not null), 0) end as baseline_ms
  from priced
  group by all
)
select make_timestamp(start * 1000000) as started, width as bucket_seconds, run_id, num_speculative_tokens, method,
       model, draft_model, engine_version,
       row_number() over (partition by run_id, num_speculative_tokens, method, model, draft_model, engine_version
                          order by start) = 1 as is_first,
       rounds, drafted, accepted, draft_accept_ratio, draft_ms_per_token, draft_ms, target_ms, step_ms, baseline_ms,
       draft_ms_per_token / nullif(target_ms, 0) as rho_verify, draft_ms_per_token / nullif(baseline_ms, 0) as rho,
       target_ms / nullif(baseline_ms, 0) as verify_inflation,
       (step_ms - draft_ms - target_ms) / nullif(baseline_ms, 0) as overhead
from sums
order by start, run_id, num_speculative_tokens, method, model, draft_model, engine_version;
