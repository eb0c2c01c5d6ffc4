-- Question: what would one plain decode step of the target take here, and one token without speculation?
-- Inputs: views plain_units, unit_sums. Variables: baseline_ms (a value the user names), baseline_run (a run).
-- Output, one row a stratum and one for all (stratum IS NULL):
--   baseline_ms             t_AR, ms: the mean over the parts (engine, model) by their timed rounds
--   baseline_basis          value; run_step, run_tpot (a run without speculation: its mean step, or its TPOT where it
--                           logs no steps); verify_extrapolated (V over draft length, extended to no draft);
--                           plain_steps (steps without a draft of the speculating engine: they pay its mode);
--                           verify_pass (V itself); mixed, where parts differ
--   baseline_matched_share  share of the rounds (those with a time, where there are any) in a part with a baseline
--   baseline_bucket_share   share of the rounds whose batch and context bucket a run without speculation has too (of
--                           the same class); NULL where a bucket that one side logs is not logged on the other
--   baseline_class_share    share of the rounds compared with their own class of traffic in a run without speculation;
--                           the others meet all classes of that run together
--   baseline_lacks, baseline_alone_has  {model, batch_size, context_len}: share of the rounds compared with a run that
--                           tell it while that run does not, and the other way round: such a column is no key
--   baseline_relvar, baseline_units  relative variance of baseline_ms as a measurement; effective number of its units
--   baseline_tpot_ms        TPOT without speculation (value, or the run's, weighted by the stratum's own mix)
--   baseline_tpot_basis, baseline_tpot_relvar, baseline_tpot_units, baseline_tpot_matched_share,
--   baseline_tpot_class_share  the same for it
--   baseline_profiled       whether its steps are a profiler's
--   prices                  the plain step of every class, engine, model, batch and context bucket: what rho.sql
--                           compares with
-- Basis: by part, the first of the ladder that the lake holds; engines and models never lend to each other, but an
-- unknown model may be the same. Classes of traffic (task_type) meet their own; the total weighs them as speculation
-- ran them. What neither side logs (model, batch, context, class) is equal on both; what only one side logs is no key.
-- Steps with prefill are left out. Units: runs from three on in a part, else requests.
with setting as (
  select try_cast(getvariable('baseline_ms') as double) as ms, getvariable('baseline_run')::varchar as run
), all_units as materialized (
  from unit_sums
), plain as materialized (
  -- A run that the user names serves every engine when it is of none of them, and so does one of a client that was not
  -- told whom it measured (engines/rows.py: of_server).
  select p.* replace (case when (s.run is not null or p.engine in ('aiperf', 'guidellm'))
                                and p.engine not in (select engine from all_units) then '*'
                           else p.engine end as engine)
  from plain_units p, setting s
), cells as materialized (
  -- Without a class (traffic IS NULL) a cell holds all classes, with any_model all models, and so on. A NULL that is
  -- none of these is a value that nobody logged, and meets its like.
  select row_number() over () as cell, *
  from (select engine, model, traffic, batch_bucket, context_bucket, grouping(model) as any_model,
               grouping(batch_bucket) as any_batch, grouping(context_bucket) as any_context,
               sum(step) / nullif(sum(steps), 0) as step_ms, sum(steps) as steps,
               sum(decode) / nullif(sum(tokens), 0) as tpot_ms, sum(tokens) as tokens, sum(mates) as mates,
               sum(mates_t) as mates_t, sum(mates_tt) as mates_tt
        from plain
        group by grouping sets ((engine, traffic, model, batch_bucket, context_bucket),
                                (engine, traffic, model, batch_bucket), (engine, traffic, model, context_bucket),
                                (engine, traffic, model),
                                (engine, traffic, batch_bucket, context_bucket), (engine, traffic, batch_bucket),
                                (engine, traffic, context_bucket), (engine, traffic),
                                (engine, model, batch_bucket, context_bucket), (engine, model, batch_bucket),
                                (engine, model, context_bucket), (engine, model),
                                (engine, batch_bucket, context_bucket), (engine, batch_bucket),
                                (engine, context_bucket), (engine)))
), known as (
  select engine, count(model) > 0 as model, count(batch_bucket) filter (step is not null) > 0 as batch,
         count(context_bucket) filter (step is not null) > 0 as context
  from plain
  group by engine
), only_models as (
  -- Rows that do not name their model are of the only one that their engine has here.
  select engine, min(model) as model from all_units group by engine having min(model) = max(model)
), spec as materialized (
  select u.*, coalesce(u.model, o.model) as part from all_units u left join only_models o on o.engine = u.engine
), mix as (
  select stratum, grouping(stratum) as is_total, traffic, engine, model, part, batch_bucket, context_bucket,
         sum(all_rounds) as all_rounds, sum(w) as timed_rounds, sum(tokens) as tokens
  from spec
  group by grouping sets ((stratum, traffic, engine, model, part, batch_bucket, context_bucket),
                          (traffic, engine, model, part, batch_bucket, context_bucket))
), sizes as (
  select stratum, is_total, sum(all_rounds) as all_rounds, sum(timed_rounds) as timed_rounds, sum(tokens) as tokens
  from mix
  group by stratum, is_total
), placed as (
  -- Where either side does not know its model (any_model = 1), it may be any that the engine ran.
  select m.*, k.engine as base_engine, (m.part is null or not k.model)::integer as any_model,
         case when any_model = 0 then m.part end as base_model,
         m.batch_bucket is not null and k.batch as is_batch_key,
         m.context_bucket is not null and k.context as is_context_key,
         (m.batch_bucket is not null) <> k.batch as is_batch_one_sided,
         {'model': m.part is not null and not k.model, 'batch_size': m.batch_bucket is not null and not k.batch,
          'context_len': m.context_bucket is not null and not k.context} as lacks,
         {'model': m.part is null and k.model, 'batch_size': m.batch_bucket is null and k.batch,
          'context_len': m.context_bucket is null and k.context} as alone_has
  from mix m
  left join known k on k.engine in (m.engine, '*')
), classed as materialized (
  -- A class that the baseline has is compared with it alone; any other with the whole (step_traffic or tpot_traffic
  -- is NULL).
  select m.*, case when c.step_ms is not null then m.traffic end as step_traffic,
         case when c.tpot_ms is not null then m.traffic end as tpot_traffic
  from placed m
  left join cells c
    on c.engine = m.base_engine and c.traffic = m.traffic and c.any_batch + c.any_context = 2
       and c.any_model = m.any_model and c.model is not distinct from m.base_model
), matched as materialized (
  -- From all keys to fewer; a bucket that only one side logs is no key.
  select m.stratum, m.is_total, m.traffic, m.engine, m.model, m.part, m.batch_bucket, m.context_bucket, step_traffic,
         tpot_traffic, lacks, alone_has,
         -- Costs are compared with the baseline of the rounds that were timed; without times, of all.
         coalesce(case when s.timed_rounds > 0 then m.timed_rounds when s.all_rounds > 0 then m.all_rounds else 1
                  end, 0) as rounds,
         coalesce(case when s.tokens > 0 then m.tokens else 1 end, 0) as tokens,
         case when full_key.step_ms is not null then true
              when is_batch_key then batch.step_ms is not null and not is_context_key
              when is_context_key and not is_batch_one_sided then false
         end as is_full,
         full_key.step_ms is not null as is_alike,
         coalesce(case when full_key.step_ms is not null then full_key.cell end,
                  case when batch.step_ms is not null then batch.cell end,
                  case when not is_batch_key and context.step_ms is not null then context.cell end,
                  case when every_step.step_ms is not null then every_step.cell end) as step_cell,
         coalesce(case when tpot_context.tpot_ms is not null then tpot_context.cell end,
                  case when every_tpot.tpot_ms is not null then every_tpot.cell end) as tpot_cell,
         coalesce(full_key.step_ms, batch.step_ms, case when not is_batch_key then context.step_ms end,
                  every_step.step_ms) as step_ms,
         coalesce(tpot_context.tpot_ms, every_tpot.tpot_ms) as tpot_ms
  from classed m
  join sizes s on s.stratum is not distinct from m.stratum and s.is_total = m.is_total
  left join cells full_key
    on full_key.any_batch + full_key.any_context = 0 and full_key.engine = m.base_engine
       and full_key.any_model = m.any_model and full_key.model is not distinct from m.base_model
       and full_key.traffic is not distinct from m.step_traffic
       and full_key.batch_bucket is not distinct from m.batch_bucket
       and full_key.context_bucket is not distinct from m.context_bucket
  left join cells batch
    on batch.any_batch = 0 and batch.any_context = 1 and batch.engine = m.base_engine
       and batch.any_model = m.any_model and batch.model is not distinct from m.base_model
       and batch.traffic is not distinct from m.step_traffic and batch.batch_bucket = m.batch_bucket
  left join cells context
    on context.any_batch = 1 and context.any_context = 0 and context.engine = m.base_engine
       and context.any_model = m.any_model and context.model is not distinct from m.base_model
       and context.traffic is not distinct from m.step_traffic and context.context_bucket = m.context_bucket
  left join cells every_step
    on every_step.any_batch + every_step.any_context = 2 and every_step.engine = m.base_engine
       and every_step.any_model = m.any_model and every_step.model is not distinct from m.base_model
       and every_step.traffic is not distinct from m.step_traffic
  left join cells tpot_context
    on tpot_context.any_batch = 1 and tpot_context.any_context = 0 and tpot_context.engine = m.base_engine
       and tpot_context.any_model = m.any_model and tpot_context.model is not distinct from m.base_model
       and tpot_context.traffic is not distinct from m.tpot_traffic
       and tpot_context.context_bucket is not distinct from m.context_bucket
  left join cells every_tpot
    on every_tpot.any_batch + every_tpot.any_context = 2 and every_tpot.engine = m.base_engine
       and every_tpot.any_model = m.any_model and every_tpot.model is not distinct from m.base_model
       and every_tpot.traffic is not distinct from m.tpot_traffic
), parts as (
  select stratum, is_total, engine, part, traffic, sum(rounds * step_ms) as step_known,
         sum(rounds * tpot_ms) / nullif(sum(rounds) filter (tpot_ms is not null), 0) as tpot_as_step_ms
  from matched
  group by stratum, is_total, engine, part, traffic
), own as (
  -- What the speculating engine itself offers when nothing ran without speculation.
  select stratum, grouping(stratum) as is_total, engine, part,
         sum(plain_ms) / nullif(sum(plain_rounds), 0) as plain_ms, sum(v) / nullif(sum(vn), 0) as verify_ms,
         sum(fn) as verify_n, sum(fdd) / nullif(sum(fn), 0) - (sum(fd) / nullif(sum(fn), 0)) ** 2 as length_spread,
         (sum(fn) * sum(fdv) - sum(fd) * sum(fv)) / nullif(sum(fn) * sum(fdd) - sum(fd) ** 2, 0) as verify_slope,
         (sum(fv) - verify_slope * sum(fd)) / nullif(sum(fn), 0) as verify_at_none
  from spec
  group by grouping sets ((stratum, engine, part), (engine, part))
), ladder as materialized (
  select p.stratum, p.is_total, p.engine, p.part, p.traffic, s.ms, p.tpot_as_step_ms,
         -- The slope must be told by the data: draft lengths that really differ, and a cost that grows with them.
         case when o.length_spread >= 0.25 and o.verify_n >= 100 and o.verify_slope >= 0 and o.verify_at_none > 0
              then o.verify_at_none end as extrapolated_ms,
         coalesce(o.plain_ms, t.plain_ms) as plain_ms, coalesce(o.verify_ms, t.verify_ms) as verify_ms,
         o.plain_ms is not null as is_plain_own,
         case when s.ms is not null then 'value' when p.step_known is not null then 'run_step'
              when p.tpot_as_step_ms is not null then 'run_tpot'
              when extrapolated_ms is not null then 'verify_extrapolated'
              when coalesce(o.plain_ms, t.plain_ms) is not null then 'plain_steps'
              when coalesce(o.verify_ms, t.verify_ms) is not null then 'verify_pass' end as basis
  from parts p
  cross join setting s
  join own o
    on o.stratum is not distinct from p.stratum and o.is_total = p.is_total and o.engine = p.engine
       and o.part is not distinct from p.part
  join own t on t.is_total = 1 and t.engine = p.engine and t.part is not distinct from p.part
), priced as materialized (
  select m.*, l.basis, l.is_plain_own,
         case l.basis when 'value' then l.ms when 'run_step' then m.step_ms when 'run_tpot' then l.tpot_as_step_ms
                      when 'verify_extrapolated' then l.extrapolated_ms when 'plain_steps' then l.plain_ms
                      when 'verify_pass' then l.verify_ms end as price
  from matched m
  join ladder l
    on l.stratum is not distinct from m.stratum and l.is_total = m.is_total and l.engine = m.engine
       and l.part is not distinct from m.part and l.traffic = m.traffic
), used as (
  -- Weight of every baseline cell in a stratum: for its step (or the TPOT that stands in for it), and for its TPOT.
  select stratum, is_total, 'step' as what, step_cell as cell, sum(rounds) as share
  from priced where basis = 'run_step' group by stratum, is_total, step_cell
  union all
  select stratum, is_total, 'tpot_as_step', tpot_cell, sum(rounds)
  from priced where basis = 'run_tpot' group by stratum, is_total, tpot_cell
  union all
  select stratum, is_total, 'tpot', tpot_cell, sum(tokens)
  from priced where tpot_ms is not null group by stratum, is_total, tpot_cell
), run_counts as (
  select engine, model, count(distinct run_id) as runs from plain group by engine, model
), members as (
  select c.cell, case when r.runs >= 3 then p.run_id else p.run_id || ' ' || p.unit end as cluster,
         sum(p.step) as step, sum(p.steps) as steps, sum(p.decode) as decode, sum(p.tokens) as tokens
  from cells c
  join plain p
    on p.engine = c.engine and (c.any_model = 1 or p.model is not distinct from c.model)
       and (c.traffic is null or p.traffic = c.traffic)
       and (c.any_batch = 1 or p.batch_bucket is not distinct from c.batch_bucket)
       and (c.any_context = 1 or p.context_bucket is not distinct from c.context_bucket)
  join run_counts r on r.engine = p.engine and r.model is not distinct from p.model
  where c.cell in (select cell from used)
  group by c.cell, cluster
), influence as (
  -- Within cells: the mix of batch and context is the stratum's own and no chance of the baseline.
  select u.stratum, u.is_total, u.what, m.cluster,
         sum(u.share * case when what = 'step' then (m.step - c.step_ms * m.steps) / c.steps
                            else (m.decode - c.tpot_ms * m.tokens) / c.tokens end) as z,
         sum(u.share * case when what = 'step' then m.steps / c.steps else m.tokens / c.tokens end) as size
  from used u
  join cells c on c.cell = u.cell
  join members m on m.cell = u.cell
  group by u.stratum, u.is_total, u.what, m.cluster
), common as (
  -- What requests of one step share, on top of the sum by request.
  select u.stratum, u.is_total, u.what,
         sum(u.share * case when what = 'step' then c.step_ms else c.tpot_ms end) as level,
         sum(case when what = 'step' then (u.share / c.steps) ** 2
               * greatest(c.mates_tt - 2 * c.step_ms * c.mates_t + c.step_ms ** 2 * c.mates, 0) end) as extra
  from used u
  join cells c on c.cell = u.cell
  group by u.stratum, u.is_total, u.what
), spreads as (
  select i.stratum, i.is_total, i.what, sum(size) ** 2 / nullif(sum(size * size), 0) as units,
         case when count(*) > 1
              then (units / (greatest(units, 1.000001) - 1) * sum(z * z) + coalesce(any_value(c.extra), 0))
                   / any_value(c.level) ** 2 end as relvar
  from influence i
  join common c on c.stratum is not distinct from i.stratum and c.is_total = i.is_total and c.what = i.what
  where size is not null
  group by i.stratum, i.is_total, i.what
), own_units as (
  select stratum, grouping(stratum) as is_total, run_id, unit, sum(plain_ms) as step, sum(plain_rounds) as steps
  from all_units
  where plain_rounds > 0
  group by grouping sets ((stratum, run_id, unit), (run_id, unit))
), own_sums as (
  select stratum, is_total, ratio_sums(step, steps) as p from own_units group by stratum, is_total
), own_spread as (
  select stratum, is_total, p.x ** 2 / nullif(p.xx, 0) as units,
         case when p.m > 1 then units / (greatest(units, 1.000001) - 1)
              * (p.yy / p.y ** 2 - 2 * p.xy / (p.x * p.y) + p.xx / p.x ** 2) end as relvar
  from own_sums
), combined as (
  select stratum, is_total, sum(rounds * price) / nullif(sum(rounds) filter (price is not null), 0) as baseline_ms,
         case when count(distinct basis) > 1 then 'mixed' else min(basis) end as basis,
         coalesce(sum(rounds) filter (price is not null), 0) / nullif(sum(rounds), 0) as matched_share,
         coalesce(sum(rounds) filter (is_full), 0) / nullif(sum(rounds) filter (is_full is not null), 0)
           as bucket_share,
         coalesce(sum(rounds) filter (if(basis = 'run_tpot', tpot_traffic, step_traffic) is not null), 0)
           / nullif(sum(rounds) filter (basis in ('run_step', 'run_tpot')), 0) as class_share,
         coalesce(sum(tokens) filter (tpot_traffic is not null), 0)
           / nullif(sum(tokens) filter (tpot_ms is not null), 0) as tpot_class_share,
         sum(rounds) filter (basis in ('run_step', 'run_tpot')) as by_run,
         sum(rounds) filter (basis = 'run_step') as by_step,
         {'model': sum(rounds) filter (basis in ('run_step', 'run_tpot') and lacks.model) / by_run,
          'batch_size': sum(rounds) filter (basis = 'run_step' and lacks.batch_size) / by_step,
          'context_len': sum(rounds) filter (basis = 'run_step' and lacks.context_len) / by_step} as lacking,
         -- Rounds without a bucket that met steps without one lack nothing.
         {'model': sum(rounds) filter (basis in ('run_step', 'run_tpot') and alone_has.model) / by_run,
          'batch_size': sum(rounds) filter (basis = 'run_step' and alone_has.batch_size and not is_alike) / by_step,
          'context_len': sum(rounds) filter (basis = 'run_step' and alone_has.context_len and not is_alike) / by_step}
           as alone_having,
         bool_or(is_plain_own) as is_plain_own, max(tpot_ms) is not null as has_tpot,
         sum(tokens * tpot_ms) / nullif(sum(tokens) filter (tpot_ms is not null), 0) as tpot_ms,
         sum(tokens) filter (tpot_ms is not null) / nullif(sum(tokens), 0) as tpot_share,
         list({'traffic': traffic, 'engine': engine, 'model': model, 'batch_bucket': batch_bucket,
               'context_bucket': context_bucket, 'price': price, 'tpot': tpot_ms, 'basis': basis}) as prices
  from priced
  group by stratum, is_total
)
select case when c.is_total = 0 then c.stratum end as stratum, baseline_ms, basis as baseline_basis,
       case when basis is not null then matched_share end as baseline_matched_share,
       case when basis in ('run_step', 'mixed') then bucket_share end as baseline_bucket_share,
       class_share as baseline_class_share, lacking as baseline_lacks, alone_having as baseline_alone_has,
       case basis when 'run_step' then s.relvar when 'mixed' then s.relvar when 'run_tpot' then a.relvar
                  when 'plain_steps' then case when is_plain_own then o.relvar else y.relvar end end as baseline_relvar,
       case basis when 'run_step' then s.units when 'mixed' then s.units when 'run_tpot' then a.units
                  when 'plain_steps' then case when is_plain_own then o.units else y.units end end as baseline_units,
       coalesce(g.ms, tpot_ms) as baseline_tpot_ms,
       case when g.ms is not null then 'value' when tpot_ms is not null then 'run_tpot' end as baseline_tpot_basis,
       case when g.ms is null and tpot_ms is not null then t.relvar end as baseline_tpot_relvar,
       case when g.ms is null and tpot_ms is not null then t.units end as baseline_tpot_units,
       case when g.ms is not null then 1.0 when tpot_ms is not null then tpot_share end as baseline_tpot_matched_share,
       case when g.ms is null and tpot_ms is not null then tpot_class_share end as baseline_tpot_class_share,
       case when basis in ('run_step', 'mixed') then (select bool_or(profiled) from plain) end as baseline_profiled,
       prices
from combined c
cross join setting g
left join spreads s on s.stratum is not distinct from c.stratum and s.is_total = c.is_total and s.what = 'step'
left join spreads a
  on a.stratum is not distinct from c.stratum and a.is_total = c.is_total and a.what = 'tpot_as_step'
left join spreads t on t.stratum is not distinct from c.stratum and t.is_total = c.is_total and t.what = 'tpot'
left join own_spread o on o.stratum is not distinct from c.stratum and o.is_total = c.is_total
left join own_spread y on y.is_total = 1
order by c.is_total, c.stratum;
