-- Question: how do draft, verify and whole round times go with the draft length?
-- Inputs: views strata, held. Steps that also hold prefill are left out.
-- Output, one row a stratum (all: stratum IS NULL), engine, model, batch bucket and draft length (0: plain rounds);
-- sums over request-rounds, each carrying its whole step, ms:
--   draft_rounds, draft_ms    rounds with a draft time, and their sum
--   target_rounds, target_ms  the same of the verify pass
--   step_rounds, step_ms      the same of the whole step
--   rest_rounds, rest_ms      step less draft and verify, where all three are logged
-- Basis: single rounds; weighted; plain rounds of runs that never drafted are left out, as they have no K.
-- Conventions: no token is counted here.
with timed as (
  select stratum, engine, model, batch_bucket, drafted, weight,
         case when drafted > 0 then draft_ms end as draft_ms, target_ms, step_ms,
         step_ms - coalesce(draft_ms, case when drafted = 0 then 0 end) - target_ms as rest_ms
  from strata
  where grain = 'round' and drafted is not null and not coalesce(has_prefill, false)
        and coalesce(draft_ms, target_ms, step_ms) is not null
        and (drafted > 0 or run_id in (select run_id from held where drafted > 0))
)
select stratum, engine, model, batch_bucket, drafted, sum(weight) filter (draft_ms is not null) as draft_rounds,
       sum(weight * draft_ms) as draft_ms, sum(weight) filter (target_ms is not null) as target_rounds,
       sum(weight * target_ms) as target_ms, sum(weight) filter (step_ms is not null) as step_rounds,
       sum(weight * step_ms) as step_ms, sum(weight) filter (rest_ms is not null) as rest_rounds,
       sum(weight * rest_ms) as rest_ms
from timed
group by grouping sets ((stratum, engine, model, batch_bucket, drafted), (engine, model, batch_bucket, drafted))
order by stratum is null, stratum, engine, model, batch_bucket, drafted;
