-- Question: what does a draft token cost, and what a verify pass and a whole step?
-- Inputs: view strata. Steps that also hold prefill are left out of every mean and shown apart.
-- Output, one row a stratum and one for all (stratum IS NULL); request view, ms:
--   draft_ms_per_token        draft time / drafted tokens, over rounds with a draft
--   draft_cost_basis          timed (from durations) or logged_mean (draft_ms_per_token of the log)
--   draft_ms, target_ms, step_ms  means per request-round, plain steps included (D, V, T)
--   sample_ms, rollback_ms, repack_ms, emit_lag_ms  the same where logged
--   rho_verify                draft_ms_per_token / target_ms
--   prefill_step_ms, prefill_rounds  mean step and number of request-rounds in steps with prefill
--   drafted_timed, draft_rounds, target_rounds, step_rounds  what the means stand for
--   *_relvar                  relative variances (of draft_per_token, target, step, draft, rho_verify = D/d/V,
--                             step_target = T/V, token = T/tau_committed, token_target = T/V/tau_committed),
--                             clustered both by unit and by step: variance by unit + by step - by row
--   units                     independent units with a time
-- Basis: rounds, windows or requests: whichever grain holds the time (see facts).
with timed as not materialized (
  select stratum, run_id, unit, step_id, step_share, coalesce(has_prefill, false) as prefill, weight,
         weight * case when drafted_timed > 0 and not prefill then draft_ms end as dt,
         weight * case when drafted_timed > 0 and not prefill then drafted_timed end as dn,
         weight * case when not prefill then draft_ms end as d_all,
         -- A plain step that was timed and has no draft time had no draft phase: it counts as a step of the mean.
         weight * case when not prefill and (draft_ms is not null
                                             or (drafted = 0 and coalesce(step_us, target_us) is not null))
                       then time_rounds end as d_rounds,
         weight * case when not prefill then target_ms end as v,
         weight * case when not prefill and target_ms is not null then time_rounds end as vn,
         weight * case when not prefill then step_ms end as t,
         weight * case when not prefill and step_ms is not null then time_rounds end as tn,
         weight * coalesce(emitted, accepted + rounds + coalesce(plain_steps, 0)) as e,
         weight * case when coalesce(emitted, accepted + rounds) is not null
                       then coalesce(rounds, 0) + coalesce(plain_steps, 0) end as n,
         sample_ms, rollback_ms, repack_ms, emit_lag_ms, step_ms, time_rounds, draft_ms_per_token,
         drafted_timed
  from strata
), by_stratum as (
  select stratum, run_id, unit,
         sum(dt) as dt, sum(dn) as dn, sum(d_all) as d_all, sum(d_rounds) as d_rounds, sum(v) as v, sum(vn) as vn,
         sum(t) as t, sum(tn) as tn, sum(e) as e, sum(n) as n,
         sum(case when not prefill then weight * sample_ms end) as sample,
         sum(case when not prefill and sample_ms is not null then weight * time_rounds end) as sample_n,
         sum(case when not prefill then weight * rollback_ms end) as rollback,
         sum(case when not prefill and rollback_ms is not null then weight * time_rounds end) as rollback_n,
         sum(case when not prefill then weight * repack_ms end) as repack,
         sum(case when not prefill and repack_ms is not null then weight * time_rounds end) as repack_n,
         sum(case when not prefill then weight * emit_lag_ms end) as lag,
         sum(case when not prefill and emit_lag_ms is not null then weight * time_rounds end) as lag_n,
         sum(case when prefill then weight * step_ms end) as prefill_t,
         sum(case when prefill and step_ms is not null then weight * time_rounds end) as prefill_n,
         sum(weight * draft_ms_per_token * coalesce(drafted_timed, 1)) as logged,
         sum(case when draft_ms_per_token is not null then weight * coalesce(drafted_timed, 1) end) as logged_n
  from timed
  group by stratum, run_id, unit
), sums as (
  select *, 0 as is_total from by_stratum
  union all by name
  select run_id, unit, 1 as is_total, sum(columns(* exclude (stratum, run_id, unit)))
  from by_stratum
  group by run_id, unit
), totals as (
  select stratum, is_total, sum(dt) as dt, nullif(sum(dn), 0) as dn, sum(d_all) as d_all,
         nullif(sum(d_rounds), 0) as d_rounds, sum(v) as v, nullif(sum(vn), 0) as vn, sum(t) as t,
         nullif(sum(tn), 0) as tn, sum(e) as e, nullif(sum(n), 0) as n,
         sum(sample) / nullif(sum(sample_n), 0) as sample_ms, sum(rollback) / nullif(sum(rollback_n), 0) as rollback_ms,
         sum(repack) / nullif(sum(repack_n), 0) as repack_ms, sum(lag) / nullif(sum(lag_n), 0) as emit_lag_ms,
         sum(prefill_t) / nullif(sum(prefill_n), 0) as prefill_step_ms, sum(prefill_n) as prefill_rounds,
         sum(logged) / nullif(sum(logged_n), 0) as logged_mean,
         count(*) filter (coalesce(dt, v, t) is not null) as units
  from sums
  group by stratum, is_total
), rate as (
  -- By step - by row is a sum over steps: one step in `every` estimates it, about a million rows at most.
  select greatest(1, sum(records) // 1000000)::bigint as every from held where grain = 'round'
), shared as (
  select timed.*, every
  from timed, rate
  where step_id is not null and step_share < 1 and (every = 1 or hash(hash(run_id, step_id)) % every = 0)
), pieces as (
  -- Linearised ln of every ratio, by unit, by step and by row; z = y / Y - x / X. Rows alone in their step cancel.
  select 'unit' as kind, stratum, is_total, 1 as every, dt, dn, d_all, d_rounds, v, vn, t, tn, e, n
  from sums
  union all
  select 'step' as kind, stratum, grouping(stratum) as is_total, any_value(every) as every, sum(dt) as dt,
         sum(dn) as dn, sum(d_all) as d_all,
         sum(d_rounds) as d_rounds, sum(v) as v, sum(vn) as vn, sum(t) as t, sum(tn) as tn, sum(e) as e, sum(n) as n
  from shared
  group by grouping sets ((stratum, run_id, step_id), (run_id, step_id))
  union all
  select 'row' as kind, case when w.is_total = 0 then stratum end as stratum, w.is_total, every, dt, dn, d_all,
         d_rounds, v, vn, t, tn, e, n
  from shared, (values (0), (1)) as w(is_total)
), linear as (
  select p.kind, p.stratum, p.is_total, p.every,
         coalesce(p.dt, 0) / nullif(s.dt, 0) - coalesce(p.dn, 0) / s.dn as z_d,
         coalesce(p.d_all, 0) / nullif(s.d_all, 0) - coalesce(p.d_rounds, 0) / s.d_rounds as z_draft,
         coalesce(p.v, 0) / nullif(s.v, 0) - coalesce(p.vn, 0) / s.vn as z_v,
         coalesce(p.t, 0) / nullif(s.t, 0) - coalesce(p.tn, 0) / s.tn as z_t,
         coalesce(p.e, 0) / nullif(s.e, 0) - coalesce(p.n, 0) / s.n as z_tau
  from pieces p
  join totals s on s.stratum is not distinct from p.stratum and s.is_total = p.is_total
), squares as (
  select stratum, is_total, kind, sum(every * z_d ** 2) as draft_per_token, sum(every * z_draft ** 2) as draft,
         sum(every * z_v ** 2) as target, sum(every * z_t ** 2) as step, sum(every * (z_d - z_v) ** 2) as rho_verify,
         sum(every * (z_draft - z_v) ** 2) as draft_target, sum(every * (z_t - z_v) ** 2) as step_target,
         sum(every * (z_t - z_tau) ** 2) as token, sum(every * (z_t - z_v - z_tau) ** 2) as token_target
  from linear
  group by stratum, is_total, kind
), signed as (
  -- Never below what the units alone give: the two-way estimate can fall under it by chance.
  select q.stratum, q.is_total,
         case kind when 'unit' then t.units / nullif(t.units - 1, 0) when 'step' then 1 else -1 end as sign,
         case when kind = 'unit' then 1 else 0 end as is_unit, q.draft_per_token, q.draft, q.target, q.step,
         q.rho_verify, q.draft_target, q.step_target, q.token, q.token_target
  from squares q
  join totals t on t.stratum is not distinct from q.stratum and t.is_total = q.is_total
), variances as (
  select stratum, is_total,
         greatest(sum(sign * draft_per_token), sum(is_unit * sign * draft_per_token)) as draft_per_token,
         greatest(sum(sign * draft), sum(is_unit * sign * draft)) as draft,
         greatest(sum(sign * target), sum(is_unit * sign * target)) as target,
         greatest(sum(sign * step), sum(is_unit * sign * step)) as step,
         greatest(sum(sign * rho_verify), sum(is_unit * sign * rho_verify)) as rho_verify,
         greatest(sum(sign * draft_target), sum(is_unit * sign * draft_target)) as draft_target,
         greatest(sum(sign * step_target), sum(is_unit * sign * step_target)) as step_target,
         greatest(sum(sign * token), sum(is_unit * sign * token)) as token,
         greatest(sum(sign * token_target), sum(is_unit * sign * token_target)) as token_target
  from signed
  group by stratum, is_total
)
select case when t.is_total = 0 then t.stratum end as stratum,
       coalesce(t.dt / t.dn, t.logged_mean) as draft_ms_per_token,
       case when t.dt / t.dn is not null then 'timed' when t.logged_mean is not null then 'logged_mean' end
         as draft_cost_basis,
       t.d_all / t.d_rounds as draft_ms, t.v / t.vn as target_ms, t.t / t.tn as step_ms,
       t.sample_ms, t.rollback_ms, t.repack_ms, t.emit_lag_ms,
       coalesce(t.dt / t.dn, t.logged_mean) / nullif(t.v / t.vn, 0) as rho_verify,
       t.prefill_step_ms, t.prefill_rounds, t.dn as drafted_timed, t.d_rounds as draft_rounds, t.vn as target_rounds,
       t.tn as step_rounds, t.units,
       v.draft_per_token as draft_per_token_relvar, v.draft as draft_relvar, v.target as target_relvar,
       v.step as step_relvar, v.rho_verify as rho_verify_relvar, v.draft_target as draft_target_relvar,
       v.step_target as step_target_relvar, v.token as token_relvar, v.token_target as token_target_relvar
from totals t
left join variances v on v.stratum is not distinct from t.stratum and v.is_total = t.is_total
order by t.is_total, t.stratum;
