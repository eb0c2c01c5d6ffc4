-- Question: what would one plain decode step of the target take here, and one token without speculation?
-- Inputs: views facts, baseline_facts, strata. Variables: baseline_ms (a value the user names), baseline_run (a run).
-- Output, one row a stratum and one for all (stratum IS NULL):
--   baseline_ms             t_AR, ms
--   baseline_basis          value; run_step, run_tpot (a run without speculation: its mean step, or its TPOT where it
--                           logs no steps); verify_extrapolated (V over draft length, extended to no draft);
--                           plain_steps (steps without a draft of the speculating engine: they pay its mode);
--                           verify_pass (V itself)
--   baseline_matched_share  share of the stratum's rounds whose model, batch bucket and context bucket the run has
--   baseline_relvar, baseline_units  relative variance over the baseline's units (runs from three on, else requests)
--   baseline_tpot_ms        TPOT without speculation (value, or the run's, weighted by the stratum's own mix)
--   baseline_tpot_basis, baseline_tpot_relvar, baseline_tpot_units  the same for it
-- Basis: the first of the ladder that the lake holds. Steps with prefill are left out.
with setting as (
  select try_cast(getvariable('baseline_ms') as double) as ms, getvariable('baseline_run')::varchar as run
), plain as materialized (
  select model, batch_bucket, context_bucket, run_id, unit,
         case when not coalesce(has_prefill, false) and coalesce(drafted, 0) = 0 then weight * step_ms end as step,
         case when not coalesce(has_prefill, false) and coalesce(drafted, 0) = 0 and step_ms is not null
              then weight * time_rounds end as steps,
         case when not coalesce(error, false) then weight * coalesce(decode_ms, tpot_ms * (output_tokens - 1), tpot_ms)
         end as decode,
         case when not coalesce(error, false) and coalesce(decode_ms, tpot_ms) is not null
              then weight * coalesce(nullif(output_tokens - 1, 0), case when tpot_ms is not null then 1 end)
         end as tokens
  from facts, setting
  where case when setting.run is null then role = 'baseline' else run_id = setting.run end
), cells as (
  select grouping(model) as any_model, grouping(batch_bucket) as any_batch, grouping(context_bucket) as any_context,
         model, batch_bucket, context_bucket, sum(step) / nullif(sum(steps), 0) as step_ms,
         sum(decode) / nullif(sum(tokens), 0) as tpot_ms
  from plain
  group by grouping sets ((model, batch_bucket, context_bucket), (model, batch_bucket), (model, context_bucket),
                          (model), ())
), grouped as materialized (
  -- The strata in one pass, fine enough for everything below. d, v, dd, dv: rounds with a draft and a verify time.
  select stratum, model, batch_bucket, context_bucket, run_id, unit,
         sum(weight * coalesce(rounds + plain_steps, rounds, plain_steps, 0)) as all_rounds,
         sum(case when coalesce(draft_ms, target_ms, step_ms) is not null then weight * time_rounds else 0 end)
           as timed_rounds,
         sum(case when coalesce(decode_ms, tpot_ms) is not null then weight * coalesce(output_tokens - 1, 1) else 0 end)
           as tokens,
         sum(case when not prefill and is_plain then weight * step_ms end) as plain_ms,
         sum(case when not prefill and is_plain and step_ms is not null then weight * time_rounds end) as plain_rounds,
         sum(case when not prefill then weight * target_ms end) as verify_ms,
         sum(case when not prefill and target_ms is not null then weight * time_rounds end) as verify_rounds,
         sum(case when fits then 1 else 0 end) as n, sum(case when fits then drafted end) as d,
         sum(case when fits then target_ms end) as v, sum(case when fits then drafted * drafted end) as dd,
         sum(case when fits then drafted * target_ms end) as dv
  from (select *, coalesce(has_prefill, false) as prefill, rounds = 0 and plain_steps > 0 as is_plain,
               grain = 'round' and drafted > 0 and target_ms is not null and not coalesce(has_prefill, false) as fits
        from strata)
  group by stratum, model, batch_bucket, context_bucket, run_id, unit
), mix as (
  select stratum, grouping(stratum) as is_total, model, batch_bucket, context_bucket, sum(all_rounds) as all_rounds,
         sum(timed_rounds) as timed_rounds, sum(tokens) as tokens
  from grouped
  group by grouping sets ((stratum, model, batch_bucket, context_bucket), (model, batch_bucket, context_bucket))
), strata_rounds as (
  select stratum, is_total, sum(all_rounds) as all_rounds, sum(timed_rounds) as timed_rounds, sum(tokens) as tokens
  from mix
  group by stratum, is_total
), matched as (
  -- From all keys to fewer; a bucket that neither side logs is no key. Another model's run is no baseline, but an
  -- unknown model may be the same.
  select m.stratum, m.is_total,
         -- Costs are compared with the baseline of the rounds that were timed; without times, of all.
         case when s.timed_rounds > 0 then m.timed_rounds when s.all_rounds > 0 then m.all_rounds else 1 end as rounds,
         case when s.tokens > 0 then m.tokens else 1 end as tokens,
         case when full_key.step_ms is not null then true
              when m.context_bucket is null and not known.context and batch.step_ms is not null then true
              else coalesce(m.context_bucket, m.batch_bucket) is null and not known.context and not known.batch
                   and model.step_ms is not null end as is_full,
         coalesce(full_key.step_ms, batch.step_ms, model.step_ms,
                  case when m.model is null or not known.model then anything.step_ms end) as step_ms,
         coalesce(context.tpot_ms, model.tpot_ms,
                  case when m.model is null or not known.model then anything.tpot_ms end) as tpot_ms
  from mix m
  join strata_rounds s on s.stratum is not distinct from m.stratum and s.is_total = m.is_total
  cross join (select count(model) > 0 as model, count(batch_bucket) > 0 as batch, count(context_bucket) > 0 as context
              from plain) known
  left join cells full_key
    on full_key.any_model + full_key.any_batch + full_key.any_context = 0 and full_key.model = m.model
       and full_key.batch_bucket = m.batch_bucket and full_key.context_bucket = m.context_bucket
  left join cells batch
    on batch.any_model + batch.any_batch = 0 and batch.any_context = 1 and batch.model = m.model
       and batch.batch_bucket = m.batch_bucket
  left join cells context
    on context.any_model + context.any_context = 0 and context.any_batch = 1 and context.model = m.model
       and context.context_bucket = m.context_bucket
  left join cells model
    on model.any_model = 0 and model.any_batch = 1 and model.any_context = 1 and model.model = m.model
  left join cells anything
    on anything.any_model = 1 and anything.any_batch = 1 and anything.any_context = 1
), runs_only as (
  select stratum, is_total,
         sum(rounds * step_ms) / nullif(sum(rounds) filter (step_ms is not null), 0) as step_ms,
         sum(rounds) filter (is_full) / nullif(sum(rounds), 0) as full_share,
         sum(rounds * tpot_ms) / nullif(sum(rounds) filter (tpot_ms is not null), 0) as tpot_as_step_ms,
         sum(tokens * tpot_ms) / nullif(sum(tokens) filter (tpot_ms is not null), 0) as tpot_ms
  from matched
  group by stratum, is_total
), clusters as (
  select case when (select count(distinct run_id) from plain) >= 3 then run_id else run_id || ' ' || unit end
           as cluster,
         sum(step) as step, sum(steps) as steps, sum(decode) as decode, sum(tokens) as tokens
  from plain
  group by cluster
), spreads as (
  select ratio_sums(step, steps) as step, ratio_sums(decode, tokens) as tpot from clusters
), run_spread as (
  select step.m as step_units, tpot.m as tpot_units,
         step.m / nullif(step.m - 1, 0) * (step.yy / step.y ** 2 - 2 * step.xy / (step.x * step.y)
                                           + step.xx / step.x ** 2) as step_relvar,
         tpot.m / nullif(tpot.m - 1, 0) * (tpot.yy / tpot.y ** 2 - 2 * tpot.xy / (tpot.x * tpot.y)
                                           + tpot.xx / tpot.x ** 2) as tpot_relvar
  from spreads
), own as (
  -- What the speculating engine itself offers when nothing ran without speculation.
  select stratum, grouping(stratum) as is_total, sum(plain_ms) / nullif(sum(plain_rounds), 0) as plain_ms,
         sum(verify_ms) / nullif(sum(verify_rounds), 0) as verify_ms, sum(n) as verify_n,
         sum(dd) / nullif(sum(n), 0) - (sum(d) / nullif(sum(n), 0)) ** 2 as length_spread,
         (sum(n) * sum(dv) - sum(d) * sum(v)) / nullif(sum(n) * sum(dd) - sum(d) ** 2, 0) as verify_slope,
         (sum(v) - verify_slope * sum(d)) / nullif(sum(n), 0) as verify_at_none
  from grouped
  group by grouping sets ((stratum), ())
), own_units as (
  select stratum, grouping(stratum) as is_total, run_id, unit, sum(plain_ms) as step, sum(plain_rounds) as steps
  from grouped
  where plain_rounds > 0
  group by grouping sets ((stratum, run_id, unit), (run_id, unit))
), own_sums as (
  select stratum, is_total, ratio_sums(step, steps) as plain from own_units group by stratum, is_total
), own_spread as (
  select stratum, is_total, plain.m as units,
         plain.m / nullif(plain.m - 1, 0) * (plain.yy / plain.y ** 2 - 2 * plain.xy / (plain.x * plain.y)
                                             + plain.xx / plain.x ** 2) as relvar
  from own_sums
), ladder as (
  select o.stratum, o.is_total, r.full_share, r.step_ms as run_step_ms, r.tpot_ms as run_tpot_ms,
         r.tpot_as_step_ms,
         -- The slope must be told by the data: draft lengths that really differ, and a cost that grows with them.
         case when o.length_spread >= 0.25 and o.verify_n >= 100 and o.verify_slope >= 0 and o.verify_at_none > 0
              then o.verify_at_none end as extrapolated_ms,
         coalesce(o.plain_ms, t.plain_ms) as plain_ms, coalesce(o.verify_ms, t.verify_ms) as verify_ms,
         case when o.plain_ms is not null then w.units else y.units end as plain_units,
         case when o.plain_ms is not null then w.relvar else y.relvar end as plain_relvar
  from own o
  left join own_spread w on w.stratum is not distinct from o.stratum and w.is_total = o.is_total
  left join own_spread y on y.is_total = 1
  left join runs_only r on r.stratum is not distinct from o.stratum and r.is_total = o.is_total
  left join own t on t.is_total = 1
), chosen as (
  select *,
         case when s.ms is not null then 'value' when run_step_ms is not null then 'run_step'
              when tpot_as_step_ms is not null then 'run_tpot'
              when extrapolated_ms is not null then 'verify_extrapolated'
              when plain_ms is not null then 'plain_steps' when verify_ms is not null then 'verify_pass' end as basis
  from ladder, setting s
)
select case when c.is_total = 0 then c.stratum end as stratum,
       case basis when 'value' then c.ms when 'run_step' then run_step_ms when 'run_tpot' then tpot_as_step_ms
                  when 'verify_extrapolated' then extrapolated_ms when 'plain_steps' then plain_ms
                  when 'verify_pass' then verify_ms end as baseline_ms,
       basis as baseline_basis,
       case when basis = 'run_step' then coalesce(full_share, 0) end as baseline_matched_share,
       case basis when 'run_step' then v.step_relvar when 'run_tpot' then v.tpot_relvar
                  when 'plain_steps' then plain_relvar end as baseline_relvar,
       case basis when 'run_step' then v.step_units when 'run_tpot' then v.tpot_units
                  when 'plain_steps' then plain_units end as baseline_units,
       coalesce(c.ms, run_tpot_ms) as baseline_tpot_ms,
       case when c.ms is not null then 'value' when run_tpot_ms is not null then 'run_tpot' end as baseline_tpot_basis,
       case when c.ms is null and run_tpot_ms is not null then v.tpot_relvar end as baseline_tpot_relvar,
       case when c.ms is null and run_tpot_ms is not null then v.tpot_units end as baseline_tpot_units
from chosen c, run_spread v
order by c.is_total, c.stratum;
