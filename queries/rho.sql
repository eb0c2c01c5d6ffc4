-- Question: what does a draft token cost, and what a verify pass and a whole step?
-- Inputs: views priced_units, shared_steps, prices. Steps that also hold prefill are left out of every mean and shown
-- apart.
-- Output, one row a stratum and one for all (stratum IS NULL); request view, ms:
--   draft_ms_per_token        draft time / drafted tokens, over rounds with a draft
--   draft_cost_basis          timed (from durations) or logged_mean (draft_ms_per_token of the log)
--   draft_ms, target_ms, step_ms  means per request-round, plain steps included (D, V, T)
--   sample_ms, rollback_ms, repack_ms, emit_lag_ms  the same where logged
--   rho_verify                draft_ms_per_token / target_ms
--   prefill_step_ms, prefill_rounds  mean step and number of request-rounds in steps with prefill
--   drafted_timed, draft_rounds, target_rounds, step_rounds  what the means stand for
--   *_relvar                  relative variances: rho_verify = D/d/V; over the plain step b of the same rounds (prices;
--                             V itself where that is the baseline): rho = D/d/b, rho_round = D/b,
--                             verify_inflation = V/b, round_cost = T/b, token = T/b/tau_committed.
--                             Clustered both by unit and by step: variance by unit + by step - by row (+ by rolled-up
--                             row, times its mates: views.sql, shared_steps).
--                             That of b's own measurement is not in them: see baseline.sql
--   step_spread               what rows of one step share: covariances of ln of D/d (d), V (v), T (t) and the plain
--                             step (b), and the mean over every step, those with prefill too (e), by step - by row, on
--                             top of those by unit; NULL where no step is shared
--   units                     effective number of independent units with a time
--   phases_profiled, steps_profiled  whether draft and verify times, and steps, are a profiler's: such times are
--                             compared with each other alone
-- Basis: rounds, windows or requests: whichever grain holds the time (see facts).
with priced as materialized (
  from priced_units
), sums as materialized (
  select stratum, is_total, run_id, unit, sum(dt) as dt, sum(dn) as dn, sum(d_all) as d_all,
         sum(d_rounds) as d_rounds, sum(v) as v, sum(vn) as vn, sum(t) as t, sum(tn) as tn, sum(e_all) as e,
         sum(n_all) as n, sum(w) as w, sum(b) as b, coalesce(sum(t), 0) + coalesce(sum(prefill_t), 0) as every_t,
         coalesce(sum(tn), 0) + coalesce(sum(prefill_n), 0) as every_n
  from priced
  group by stratum, is_total, run_id, unit
), extras as (
  select stratum, is_total,
         sum(sample) / nullif(sum(sample_n), 0) as sample_ms, sum(rollback) / nullif(sum(rollback_n), 0) as rollback_ms,
         sum(repack) / nullif(sum(repack_n), 0) as repack_ms, sum(lag) / nullif(sum(lag_n), 0) as emit_lag_ms,
         sum(prefill_t) / nullif(sum(prefill_n), 0) as prefill_step_ms, sum(prefill_n) as prefill_rounds,
         sum(logged) / nullif(sum(logged_n), 0) as logged_mean, bool_or(phases_profiled) as phases_profiled,
         bool_or(steps_profiled) as steps_profiled
  from priced
  group by stratum, is_total
), totals as (
  select stratum, is_total, sum(dt) as dt, nullif(sum(dn), 0) as dn, sum(d_all) as d_all,
         nullif(sum(d_rounds), 0) as d_rounds, sum(v) as v, nullif(sum(vn), 0) as vn, sum(t) as t,
         nullif(sum(tn), 0) as tn, sum(e) as e, nullif(sum(n), 0) as n, sum(b) as b, nullif(sum(w), 0) as w,
         sum(every_t) as every_t, nullif(sum(every_n), 0) as every_n, sum(w) ** 2 / nullif(sum(w * w), 0) as units
  from sums
  group by stratum, is_total
), shared_priced as (
  select s.* exclude (traffic, engine, model, batch_bucket, context_bucket), s.w * p.price as b,
         s.w * q.price as b_total
  from shared_steps s
  left join prices p
    on not p.is_total and p.stratum = s.stratum and p.traffic = s.traffic and p.engine = s.engine
       and p.model is not distinct from s.model
       and p.batch_bucket is not distinct from s.batch_bucket
       and p.context_bucket is not distinct from s.context_bucket
  left join prices q
    on q.is_total and q.traffic = s.traffic and q.engine = s.engine and q.model is not distinct from s.model
       and q.batch_bucket is not distinct from s.batch_bucket
       and q.context_bucket is not distinct from s.context_bucket
), pieces as (
  -- Linearised ln of every ratio, by unit, by step, by row and by rolled-up row; z = y / Y - x / X. Rows alone in their
  -- step cancel, and so does what a step's rows committed: acceptance is each request's own.
  select 'unit' as kind, stratum, is_total, 1 as every, dt, dn, d_all, d_rounds, v, vn, t, tn, e, n, b, w,
         every_t, every_n
  from sums
  union all
  select 'step' as kind, stratum, grouping(stratum) as is_total, any_value(every) as every, sum(dt) as dt,
         sum(dn) as dn, sum(d_all) as d_all, sum(d_rounds) as d_rounds, sum(v) as v, sum(vn) as vn,
         sum(every_t) filter (decodes) as t, sum(every_n) filter (decodes) as tn, 0 as e, 0 as n,
         case when is_total = 1 then sum(b_total) else sum(b) end as b, sum(w) as w,
         sum(every_t) as every_t, sum(every_n) as every_n
  from shared_priced
  where mates is null
  group by grouping sets ((stratum, run_id, step_id), (run_id, step_id))
  union all
  select case when mates is null then 'row' else 'mates' end as kind,
         case when x.is_total = 0 then stratum end as stratum, x.is_total, every * coalesce(mates, 1) as every,
         dt, dn, d_all, d_rounds, v, vn, case when decodes then every_t end as t,
         case when decodes then every_n end as tn, 0 as e, 0 as n,
         case when x.is_total = 1 then b_total else b end as b, w, every_t, every_n
  from shared_priced, (values (0), (1)) as x(is_total)
), own as (
  select stratum, is_total, bool_and(basis = 'verify_pass') as is_verify from prices group by stratum, is_total
), parts as (
  select p.kind, p.stratum, p.is_total, p.every,
         coalesce(p.dt, 0) / nullif(s.dt, 0) - coalesce(p.dn, 0) / s.dn as z_d,
         coalesce(p.d_all, 0) / nullif(s.d_all, 0) - coalesce(p.d_rounds, 0) / s.d_rounds as z_draft,
         coalesce(p.v, 0) / nullif(s.v, 0) - coalesce(p.vn, 0) / s.vn as z_v,
         coalesce(p.t, 0) / nullif(s.t, 0) - coalesce(p.tn, 0) / s.tn as z_t,
         coalesce(p.e, 0) / nullif(s.e, 0) - coalesce(p.n, 0) / s.n as z_tau,
         coalesce(p.b, 0) / nullif(s.b, 0) - coalesce(p.w, 0) / s.w as z_price,
         coalesce(p.every_t, 0) / nullif(s.every_t, 0) - coalesce(p.every_n, 0) / s.every_n as z_e
  from pieces p
  join totals s on s.stratum is not distinct from p.stratum and s.is_total = p.is_total
), linear as (
  select q.*, case when o.is_verify then z_v else coalesce(z_price, 0) end as z_b
  from parts q
  left join own o on o.stratum is not distinct from q.stratum and o.is_total = (q.is_total = 1)
), pairs as (
  -- All products of two of them, once: the squares below are made of these, and no row is kept for it. r: z_draft,
  -- c: z_tau (what was committed).
  select stratum, is_total, kind,
         sum(every * z_d * z_d) as dd, sum(every * z_d * z_v) as dv, sum(every * z_d * z_t) as dt,
         sum(every * z_d * z_b) as db, sum(every * z_v * z_v) as vv, sum(every * z_v * z_t) as vt,
         sum(every * z_v * z_b) as vb, sum(every * z_t * z_t) as tt, sum(every * z_t * z_b) as tb,
         sum(every * z_b * z_b) as bb, sum(every * z_d * z_e) as de, sum(every * z_v * z_e) as ve,
         sum(every * z_t * z_e) as te, sum(every * z_b * z_e) as be, sum(every * z_e * z_e) as ee,
         sum(every * z_draft * z_draft) as rr, sum(every * z_draft * z_b) as rb, sum(every * z_tau * z_tau) as cc,
         sum(every * z_t * z_tau) as tc, sum(every * z_b * z_tau) as bc
  from linear
  group by stratum, is_total, kind
), shared_spread as (
  -- What rows of one step share, beyond what their units have: by step - by row, of every pair.
  select stratum, is_total,
         sum(pair * dd) as dd, sum(pair * dv) as dv, sum(pair * dt) as dt, sum(pair * db) as db, sum(pair * vv) as vv,
         sum(pair * vt) as vt, sum(pair * vb) as vb, sum(pair * tt) as tt, sum(pair * tb) as tb, sum(pair * bb) as bb,
         sum(pair * de) as de, sum(pair * ve) as ve, sum(pair * te) as te, sum(pair * be) as be, sum(pair * ee) as ee
  from (select *, case kind when 'row' then -1 else 1 end as pair from pairs where kind <> 'unit')
  group by stratum, is_total
), squares as (
  -- abs, as rounding may leave a hair below 0.
  select stratum, is_total, kind, abs(dd - 2 * dv + vv) as rho_verify, abs(dd - 2 * db + bb) as rho,
         abs(rr - 2 * rb + bb) as rho_round, abs(vv - 2 * vb + bb) as verify_inflation,
         abs(tt - 2 * tb + bb) as round_cost,
         abs(tt + bb + cc - 2 * (tb + tc - bc)) as token
  from pairs
), signed as (
  -- Units of unequal size: n_eff in place of their number (docs/calibration.md).
  select q.*, case kind when 'unit' then t.units / nullif(greatest(t.units, 1.000001) - 1, 0)
                        when 'row' then -1 else 1 end as sign,
         case when kind = 'unit' then 1 else 0 end as is_unit
  from squares q
  join totals t on t.stratum is not distinct from q.stratum and t.is_total = q.is_total
), variances as (
  -- Never below what the units alone give: the two-way estimate can fall under it by chance.
  select stratum, is_total,
         greatest(sum(sign * rho_verify), sum(is_unit * sign * rho_verify)) as rho_verify,
         greatest(sum(sign * rho), sum(is_unit * sign * rho)) as rho,
         greatest(sum(sign * rho_round), sum(is_unit * sign * rho_round)) as rho_round,
         greatest(sum(sign * verify_inflation), sum(is_unit * sign * verify_inflation)) as verify_inflation,
         greatest(sum(sign * round_cost), sum(is_unit * sign * round_cost)) as round_cost,
         greatest(sum(sign * token), sum(is_unit * sign * token)) as token
  from signed
  group by stratum, is_total
)
select case when t.is_total = 0 then t.stratum end as stratum,
       coalesce(t.dt / t.dn, x.logged_mean) as draft_ms_per_token,
       case when t.dt / t.dn is not null then 'timed' when x.logged_mean is not null then 'logged_mean' end
         as draft_cost_basis,
       t.d_all / t.d_rounds as draft_ms, t.v / t.vn as target_ms, t.t / t.tn as step_ms,
       x.sample_ms, x.rollback_ms, x.repack_ms, x.emit_lag_ms,
       coalesce(t.dt / t.dn, x.logged_mean) / nullif(t.v / t.vn, 0) as rho_verify,
       x.prefill_step_ms, x.prefill_rounds, t.dn as drafted_timed, t.d_rounds as draft_rounds, t.vn as target_rounds,
       t.tn as step_rounds, t.units, x.phases_profiled, x.steps_profiled,
       v.rho_verify as rho_verify_relvar, v.rho as rho_relvar, v.rho_round as rho_round_relvar,
       v.verify_inflation as verify_inflation_relvar, v.round_cost as round_cost_relvar, v.token as token_relvar,
       case when h.stratum is not null or h.is_total = 1
            then {'dd': h.dd, 'dv': h.dv, 'dt': h.dt, 'db': h.db, 'vv': h.vv, 'vt': h.vt, 'vb': h.vb, 'tt': h.tt,
                  'tb': h.tb, 'bb': h.bb, 'de': h.de, 've': h.ve, 'te': h.te, 'be': h.be, 'ee': h.ee} end as step_spread
from totals t
left join shared_spread h on h.stratum is not distinct from t.stratum and h.is_total = t.is_total
join extras x on x.stratum is not distinct from t.stratum and x.is_total = t.is_total
left join variances v on v.stratum is not distinct from t.stratum and v.is_total = t.is_total
order by t.is_total, t.stratum;
