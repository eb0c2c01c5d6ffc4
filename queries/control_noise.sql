-- Question: how far do runs without speculation differ among themselves, so that no smaller speedup means anything?
-- Inputs: views control_sums (every run without speculation), unit_sums (whose mix of classes is taken).
-- Output, one row a stratum and one for all (stratum IS NULL):
--   control_runs      runs without speculation of its engines and models that can be told apart by their times
--   control_low_ms, control_high_ms  TPOT (else the mean plain step) of the quickest and the slowest of them
--   control_spread    control_high_ms / control_low_ms - 1; NULL below two runs
--   control_basis     tpot or step; control_by: class (over the stratum's own classes) or all (of all their traffic)
-- Basis: token weighted TPOT, mean step without prefill; classes weighted as the stratum ran them. A run counts when it
-- has at least 80% of the stratum's traffic by class.
with runs_of as materialized (
  select engine, model, traffic, grouping(traffic) as is_all, run_id, sum(decode) / nullif(sum(tokens), 0) as tpot,
         sum(step) / nullif(sum(steps), 0) as step
  from control_sums
  group by grouping sets ((engine, model, traffic, run_id), (engine, model, run_id))
), mix as materialized (
  select stratum, grouping(stratum) as is_total, traffic, engine, model, sum(coalesce(tokens, all_rounds, 1)) as n
  from unit_sums
  group by grouping sets ((stratum, traffic, engine, model), (traffic, engine, model))
), sizes as (
  select stratum, is_total, sum(n) as n from mix group by stratum, is_total
), levels as (
  select m.stratum, m.is_total, r.is_all, r.run_id,
         sum(m.n * r.tpot) / nullif(sum(m.n) filter (r.tpot is not null), 0) as tpot,
         sum(m.n) filter (r.tpot is not null) as tpot_n,
         sum(m.n * r.step) / nullif(sum(m.n) filter (r.step is not null), 0) as step,
         sum(m.n) filter (r.step is not null) as step_n
  from mix m
  join runs_of r
    on r.engine = m.engine and (r.model = m.model or r.model is null or m.model is null)
       and (r.is_all = 1 or r.traffic = m.traffic)
  group by m.stratum, m.is_total, r.is_all, r.run_id
), told as (
  select l.stratum, l.is_total, l.is_all, x.basis, x.ms
  from levels l
  join sizes s on s.stratum is not distinct from l.stratum and s.is_total = l.is_total,
       (values (0, 'tpot', l.tpot, l.tpot_n), (1, 'step', l.step, l.step_n)) as x(place, basis, ms, n)
  where x.ms > 0 and x.n >= 0.8 * s.n
), spreads as (
  select stratum, is_total, is_all, basis, count(*) as runs, min(ms) as low_ms, max(ms) as high_ms
  from told
  group by stratum, is_total, is_all, basis
), best as (
  select *, row_number() over (partition by stratum, is_total
                               order by runs < 2, is_all, basis = 'step', runs desc) as place
  from spreads
)
select case when s.is_total = 0 then s.stratum end as stratum, coalesce(b.runs, 0) as control_runs,
       b.low_ms as control_low_ms, b.high_ms as control_high_ms,
       case when b.runs > 1 then b.high_ms / b.low_ms - 1 end as control_spread, b.basis as control_basis,
       case when b.is_all = 1 then 'all' when b.is_all = 0 then 'class' end as control_by
from sizes s
left join best b on b.place = 1 and b.stratum is not distinct from s.stratum and b.is_total = s.is_total
order by s.is_total, s.stratum;
