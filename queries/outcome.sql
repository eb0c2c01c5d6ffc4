-- Question: what does a token take against plain decoding, and which acceptance would break even?
-- Inputs: views unit_sums, round_shapes, priced_requests, prices. Variables: near_k_delta (default 1),
--   baseline_ms (a plain step, ms, in place of prices' TPOT).
-- Output, one row a stratum and one for all (stratum IS NULL); point estimates, as `tracelens report` has them:
--   requests, rounds          requests with counts; request-rounds with a draft
--   num_speculative_tokens    K; NULL where several are pooled
--   draft_accept_ratio, token_accept_prob  accepted / drafted; chance of one draft token (target's token not counted)
--   tau_verified, tau_drafted, tau_committed  tokens a round, the target's own counted: before cuts, after cuts, and
--                             with plain rounds
--   near_k_round_share        rounds that lost (almost) the whole draft
--   draft_ms, target_ms, step_ms  means per request-round (request view, without prefill steps), plain rounds included
--   baseline_ms, baseline_tpot_ms  the plain step and the TPOT of the same traffic without speculation
--   rho, rho_verify, rho_round  draft token / plain step, draft token / verify pass, draft phase / plain step
--   verify_inflation, overhead, round_cost  v, o and R, over the plain step
--   relative_token_time, relative_token_time_basis  C = R / tau_committed by whole steps, else its lower bound from
--                             draft and verify time and what else is logged
--   tpot_ms                   decode time / (output tokens - 1)
--   speedup_step, speedup_tpot, speedup_observed  1 / C by whole steps; baseline TPOT / TPOT; the second if known
--   relative_token_time_tpot  1 / speedup_tpot
--   speedup_article, speedup_with_bonus, speedup_iid  the formulas of theory.sql with this rho
--   break_even_alpha          (R - 1) / mean drafted tokens a round; R is tau_committed / speedup_tpot without steps
-- Basis: the finest grain (see facts). What is compared is over the engines and models that have a baseline, in runs
-- with times where some of the stratum have none; NULL where less than 0.8 of the rounds (tokens) have one. prices is
-- empty here and in a bare DuckDB (`tracelens report` fills it): what needs a baseline is NULL.
with units as materialized (
  from unit_sums
), weighed as materialized (
  select s.*, 0 as is_total, p.price, p.tpot
  from units s
  left join prices p
    on not p.is_total and p.stratum = s.stratum and p.traffic = s.traffic and p.engine = s.engine
       and p.model is not distinct from s.model and p.batch_bucket is not distinct from s.batch_bucket
       and p.context_bucket is not distinct from s.context_bucket
  union all by name
  select s.* exclude (stratum), 1 as is_total, p.price, p.tpot
  from units s
  left join prices p
    on p.is_total and p.traffic = s.traffic and p.engine = s.engine and p.model is not distinct from s.model
       and p.batch_bucket is not distinct from s.batch_bucket
       and p.context_bucket is not distinct from s.context_bucket
), counts as (
  select stratum, is_total,
         count(distinct (run_id, unit)) filter (is_request and rolled_requests is null)
           + coalesce(sum(rolled_requests) filter (is_request), 0)::bigint as requests, sum(n) as rounds,
         sum(d) as drafted, min(k_min) as k_min, max(k_max) as k_max, sum(a_of_d) / nullif(sum(d), 0) as alpha,
         sum(a_of_p) / nullif(sum(a_of_p) + sum(rejections), 0) as p,
         1 + sum(a_of_n) / nullif(sum(n_of_a), 0) as tau_verified, sum(e_of_n) / nullif(sum(n_of_e), 0) as tau_drafted,
         sum(e_all) / nullif(sum(n_all), 0) as tau, sum(d_of_n) / nullif(sum(n_of_d), 0) as mean_drafted,
         coalesce(sum(dt) / nullif(sum(dn), 0), sum(logged) / nullif(sum(logged_n), 0)) as draft_token,
         sum(d_all) / nullif(sum(d_rounds), 0) as draft, sum(v) / nullif(sum(vn), 0) as verify,
         sum(t) / nullif(sum(tn), 0) as step
  from weighed
  group by stratum, is_total
), shapes as (
  select stratum, grouping(stratum) as is_total,
         sum(rounds) filter (accepted <= coalesce(try_cast(getvariable('near_k_delta') as bigint), 1)
                             and accepted < drafted) as near,
         sum(rounds) as shaped
  from round_shapes
  group by grouping sets ((stratum), ())
), cells as (
  select stratum, is_total, traffic, engine, model, batch_bucket, context_bucket, price, tpot, sum(w) as timed_rounds,
         sum(all_rounds) as all_rounds, sum(tokens) as tokens
  from weighed
  group by all
), sizes as (
  select stratum, is_total, sum(timed_rounds) > 0 as timed, sum(all_rounds) > 0 as counted, sum(tokens) > 0 as told
  from cells
  group by stratum, is_total
), plain as (
  -- Costs meet the plain step of the rounds that were timed; without times, of all.
  select stratum, is_total, sum(size * price) / nullif(sum(size) filter (price is not null), 0) as step,
         coalesce(sum(size) filter (price is not null), 0) / nullif(sum(size), 0) as share,
         sum(length * tpot) / nullif(sum(length) filter (tpot is not null), 0) as tpot,
         coalesce(sum(length) filter (tpot is not null), 0) / nullif(sum(length), 0) as tpot_share
  from (select c.*,
               coalesce(case when s.timed then timed_rounds when s.counted then all_rounds else 1 end, 0) as size,
               coalesce(case when s.told then tokens else 1 end, 0) as length
        from cells c
        join sizes s on s.stratum is not distinct from c.stratum and s.is_total = c.is_total)
  group by stratum, is_total
), comparable as (
  select stratum, is_total, sum(e_all) / nullif(sum(n_all), 0) as tau,
         sum(d_of_n) / nullif(sum(n_of_d), 0) as mean_drafted,
         coalesce(sum(dt) / nullif(sum(dn), 0), sum(logged) / nullif(sum(logged_n), 0)) as draft_token,
         coalesce(sum(d_all) / nullif(sum(d_rounds), 0), draft_token * mean_drafted) as draft,
         sum(d_all) / nullif(sum(d_rounds), 0) as draft_phase, sum(v) / nullif(sum(vn), 0) as verify,
         sum(t) / nullif(sum(tn), 0) as step,
         coalesce(sum(sample) / nullif(sum(sample_n), 0), 0) + coalesce(sum(rollback) / nullif(sum(rollback_n), 0), 0)
           + coalesce(sum(repack) / nullif(sum(repack_n), 0), 0) as parts
  from (select *, coalesce(bool_or(has_times) over (partition by stratum, is_total), false) as has_timed_runs
        from (select *, run_id in (select run_id from units where w > 0) as has_times from weighed)
        where (engine, coalesce(model, '')) in
                (select engine, coalesce(model, '') from prices where is_total and price is not null))
  where has_times or not has_timed_runs
  group by stratum, is_total
), decoded as (
  select stratum, grouping(stratum) as is_total, sum(weight * decode) / nullif(sum(weight * tokens), 0) as tpot,
         sum(weight * decode) filter (is_priced) / nullif(sum(weight * tokens) filter (is_priced), 0) as tpot_priced
  from (select *, (engine, coalesce(model, '')) in
                    (select engine, coalesce(model, '') from prices where is_total and tpot is not null)
                  or not exists (select 1 from prices where is_total and tpot is not null) as is_priced
        from priced_requests where is_timed)
  group by grouping sets ((stratum), ())
), joined as (
  select c.*, s.near / nullif(s.shaped, 0) as near_share, o.draft_token as own_draft_token, o.draft as own_draft,
         o.draft_phase, o.verify as own_verify, o.step as own_step, o.parts, o.tau as own_tau, d.tpot as tpot_ms,
         case when coalesce(p.share, 1) >= 0.8 then nullif(p.step, 0) end as plain,
         coalesce(try_cast(getvariable('baseline_ms') as double),
                  case when coalesce(p.tpot_share, 1) >= 0.8 then nullif(p.tpot, 0) end) as plain_tpot, d.tpot_priced,
         if(c.k_min = c.k_max, c.k_min, c.drafted / nullif(c.rounds, 0))::double as k
  from counts c
  left join shapes s on s.stratum is not distinct from c.stratum and s.is_total = c.is_total
  left join plain p on p.stratum is not distinct from c.stratum and p.is_total = c.is_total
  left join comparable o on o.stratum is not distinct from c.stratum and o.is_total = c.is_total
  left join decoded d on d.stratum is not distinct from c.stratum and d.is_total = c.is_total
), ratios as (
  select *, own_draft_token / plain as rho, own_step / plain as round_cost,
         plain_tpot / nullif(tpot_priced, 0) as by_tpot,
         coalesce(own_step, draft_phase + own_verify + parts) / plain / nullif(own_tau, 0) as c,
         case when c is null then null when own_step is not null then 'step' else 'lower_bound' end as c_basis
  from joined
)
select case when is_total = 0 then stratum end as stratum, nullif(requests, 0) as requests, rounds,
       if(k_min = k_max, k_min, null) as num_speculative_tokens, alpha as draft_accept_ratio, p as token_accept_prob,
       tau_verified, tau_drafted, tau as tau_committed, near_share as near_k_round_share, draft as draft_ms,
       verify as target_ms, step as step_ms, plain as baseline_ms, plain_tpot as baseline_tpot_ms, rho,
       draft_token / nullif(verify, 0) as rho_verify, own_draft / plain as rho_round,
       own_verify / plain as verify_inflation, (own_step - own_draft - own_verify) / plain as overhead, round_cost,
       c as relative_token_time, c_basis as relative_token_time_basis, tpot_ms,
       case when c_basis = 'step' then 1 / nullif(c, 0) end as speedup_step, by_tpot as speedup_tpot,
       1 / nullif(by_tpot, 0) as relative_token_time_tpot,
       coalesce(speedup_tpot, speedup_step) as speedup_observed, alpha * k / nullif(1 + rho * k, 0) as speedup_article,
       (1 + alpha * k) / nullif(1 + rho * k, 0) as speedup_with_bonus,
       case when p = 1 then k + 1 else (1 - p ** (k + 1)) / nullif(1 - p, 0) end / nullif(1 + rho * k, 0)
         as speedup_iid,
       (case when c_basis = 'step' then round_cost else tau / nullif(by_tpot, 0) end - 1) / nullif(mean_drafted, 0)
         as break_even_alpha
from ratios
order by is_total, stratum;
