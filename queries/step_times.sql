-- Question: how long do a step and its parts take, and how well are these means known?
-- Inputs: views unit_sums, shared_steps. Steps that also hold prefill are left out.
-- Output, one row a stratum and one for all (stratum IS NULL); request view, ms:
--   draft_ms, target_ms, step_ms      means per request-round, plain steps included (D, V, T)
--   other_ms                          step_ms - draft_ms - target_ms: what is neither draft nor verify
--   draft_var, target_var, step_var, other_var  variances of these means, ms squared. Clustered both by unit and by
--                                     step: variance by unit + by step - by row (+ by rolled-up row, times
--                                     its mates). NULL where the time is not logged
--   units                             effective number of independent units with a time
-- Basis: rounds, windows or requests: whichever grain holds the time (see facts).
with units as materialized (
  select stratum, 0 as is_total, run_id, unit, sum(d_all) as d, sum(d_rounds) as dn, sum(v) as v, sum(vn) as vn,
         sum(t) as t, sum(tn) as tn, sum(w) as w
  from unit_sums
  group by stratum, run_id, unit
  union all
  select null as stratum, 1 as is_total, run_id, unit, sum(d_all), sum(d_rounds), sum(v), sum(vn), sum(t), sum(tn),
         sum(w)
  from unit_sums
  group by run_id, unit
), totals as (
  select stratum, is_total, nullif(sum(dn), 0) as dn, nullif(sum(vn), 0) as vn, nullif(sum(tn), 0) as tn,
         sum(d) / nullif(sum(dn), 0) as draft, sum(v) / nullif(sum(vn), 0) as target,
         sum(t) / nullif(sum(tn), 0) as step, sum(w) ** 2 / nullif(sum(w * w), 0) as units
  from units
  group by stratum, is_total
), shared as (
  select stratum, run_id, step_id, every, mates, d_all as d, d_rounds as dn, v, vn, every_t as t, every_n as tn
  from shared_steps where decodes
), pieces as (
  select 'unit' as kind, stratum, is_total, 1 as every, d, dn, v, vn, t, tn from units
  union all
  select 'step' as kind, stratum, grouping(stratum) as is_total, any_value(every) as every, sum(d) as d,
         sum(dn) as dn, sum(v) as v, sum(vn) as vn, sum(t) as t, sum(tn) as tn
  from shared
  where mates is null
  group by grouping sets ((stratum, run_id, step_id), (run_id, step_id))
  union all
  select case when mates is null then 'row' else 'mates' end as kind,
         case when x.is_total = 0 then stratum end as stratum, x.is_total, every * coalesce(mates, 1) as every,
         d, dn, v, vn, t, tn
  from shared, (values (0), (1)) as x(is_total)
), linear as (
  -- Linearised means: z = (sum - mean * number) / all of them.
  select p.kind, p.stratum, p.is_total, p.every, (coalesce(p.d, 0) - s.draft * coalesce(p.dn, 0)) / s.dn as z_draft,
         (coalesce(p.v, 0) - s.target * coalesce(p.vn, 0)) / s.vn as z_target,
         (coalesce(p.t, 0) - s.step * coalesce(p.tn, 0)) / s.tn as z_step
  from pieces p
  join totals s on s.stratum is not distinct from p.stratum and s.is_total = p.is_total
), squares as (
  select stratum, is_total, kind, sum(every * z_draft ** 2) as draft, sum(every * z_target ** 2) as target,
         sum(every * z_step ** 2) as step, sum(every * (z_step - z_draft - z_target) ** 2) as other
  from linear
  group by stratum, is_total, kind
), signed as (
  -- Units of unequal size: n_eff in place of their number (docs/calibration.md).
  select q.*, case kind when 'unit' then t.units / nullif(greatest(t.units, 1.000001) - 1, 0)
                        when 'row' then -1 else 1 end as sign,
         case when kind = 'unit' then 1 else 0 end as is_unit
  from squares q
  join totals t on t.stratum is not distinct from q.stratum and t.is_total = q.is_total
), variances as (
  -- Never below what the units alone give: the two-way estimate can fall under it by chance.
  select stratum, is_total, greatest(sum(sign * draft), sum(is_unit * sign * draft)) as draft,
         greatest(sum(sign * target), sum(is_unit * sign * target)) as target,
         greatest(sum(sign * step), sum(is_unit * sign * step)) as step,
         greatest(sum(sign * other), sum(is_unit * sign * other)) as other
  from signed
  group by stratum, is_total
)
select case when t.is_total = 0 then t.stratum end as stratum, t.draft as draft_ms, t.target as target_ms,
       t.step as step_ms, t.step - t.draft - t.target as other_ms, v.draft as draft_var, v.target as target_var,
       v.step as step_var, v.other as other_var, t.units
from totals t
left join variances v on v.stratum is not distinct from t.stratum and v.is_total = t.is_total
order by t.is_total, t.stratum;
