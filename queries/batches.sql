-- Question: what do batches waste, and which class makes the others of its batch pay?
-- Inputs: view strata (rounds with a draft length), variable rounds_held. Cost view: a step counts once.
-- Output, one row a stratum and one for all (stratum IS NULL):
--   verify_waste      1 - emitted / (drafted + 1): verified positions that gave no token
--   padding_waste     1 - sum(d + 1) / sum(longest d + 1 of the step): positions that an engine which pads every
--                     request of a step to the longest draft computes for nothing; NULL where steps are not named
--   drag              share of verify positions / share of emitted tokens, over the steps that it shares with other
--                     strata; above 1 the others pay for it; NULL for all, and where no step is shared
--   mixed_steps, mixed_rounds   steps that it shares with other strata; its rounds in them
--   engine_ms         its part of the time of its steps (step time x step_share)
--   plain_tokens      emitted x step_share in them: x the plain step of its class it is the time that plain decoding
--                     would take
--   step_gain         share of the shared steps' time that would go if this class ran elsewhere: its positions in them
--                     x what a position adds to the verify pass; NULL where draft lengths or batches do not tell that
--   verify_ms_per_position  what one more verified position of a step adds to its verify pass, ms (slope within runs)
-- Basis: rounds; weighted; steps with prefill, which plain decoding has too, are left out of times, and of the tokens
-- and positions beside them. Beyond two million rounds (rounds_held; all of them without it) one step in so many
-- tells what is told of steps; mixed_steps and mixed_rounds are scaled up then. Rolled-up rounds name no step: what
-- needs one is told of the single rounds, and mixed_steps and mixed_rounds are NULL; their step_share is a mean.
with wholes as (
  select stratum, grouping(stratum) as is_total,
         sum(weight * (drafted + 1)) filter (emitted is not null) as positions_told, sum(weight * emitted) as emitted,
         sum(weight * step_share * step_ms) filter (not coalesce(has_prefill, false)) as engine_ms,
         sum(weight * step_share * emitted) filter (step_ms is not null and not coalesce(has_prefill, false))
           as plain_tokens,
         count(rolled_requests) > 0 as rolled_up
  from strata
  where grain = 'round' and drafted is not null
  group by grouping sets ((stratum), ())
), rows_of as materialized (
  select stratum, run_id, step_id, weight, drafted + 1 as positions, emitted, step_ms, target_ms,
         coalesce(has_prefill, false) as prefill, one_in(1000000) as every
  from strata
  where grain = 'round' and drafted is not null and step_id is not null
        and is_sampled(hash(hash(run_id, step_id)), 1000000)
), steps as materialized (
  select run_id, step_id, max(positions) as widest, sum(positions) as positions, sum(emitted) as emitted,
         differs(stratum) = 1 as is_mixed, bool_or(prefill) as prefill,
         case when not bool_or(prefill) then any_value(step_ms) end as step_ms,
         case when not bool_or(prefill) then any_value(target_ms) end as target_ms
  from rows_of
  group by run_id, step_id
), slopes as (
  -- Within runs: another run may be another machine.
  select sum(cov * n) / nullif(sum(var * n), 0) as slope, sum(n) as n
  from (select run_id, covar_pop(target_ms, positions) as cov, var_pop(positions) as var, count(target_ms) as n
        from steps where target_ms is not null group by run_id)
), joined as (
  select r.* exclude (prefill), s.prefill, s.widest, s.is_mixed, s.positions as step_positions,
         s.emitted as step_emitted, s.step_ms as whole_ms
  from rows_of r
  join steps s on s.run_id = r.run_id and s.step_id = r.step_id
), sums as (
  select stratum, grouping(stratum) as is_total, sum(weight * positions) as positions_padded,
         sum(weight * widest) as padded,
         sum(positions) filter (is_mixed) as mixed_positions,
         sum(positions) filter (is_mixed and not prefill) as timed_positions,
         sum(emitted) filter (is_mixed) as mixed_emitted,
         any_value(every) * count(*) filter (is_mixed) as mixed_rounds
  from joined
  group by grouping sets ((stratum), ())
), met as (
  -- Every shared step once for each stratum in it.
  select stratum, any_value(every) * count(*) as steps, sum(step_positions) as positions,
         sum(step_emitted) as emitted, sum(whole_ms) as step_ms
  from (select distinct stratum, run_id, step_id, step_positions, step_emitted, whole_ms, every from joined
        where is_mixed)
  group by stratum
)
select case when w.is_total = 0 then w.stratum end as stratum,
       1 - w.emitted / nullif(w.positions_told, 0) as verify_waste,
       1 - s.positions_padded / nullif(s.padded, 0) as padding_waste,
       case when w.is_total = 0
            then (s.mixed_positions / nullif(m.positions, 0)) / nullif(s.mixed_emitted / nullif(m.emitted, 0), 0)
       end as drag,
       case when w.is_total = 0 and not w.rolled_up then coalesce(m.steps, 0) end as mixed_steps,
       case when not w.rolled_up then coalesce(s.mixed_rounds, 0) end as mixed_rounds, w.engine_ms, w.plain_tokens,
       case when w.is_total = 0 and l.slope > 0 and l.n >= 100 then l.slope * s.timed_positions / nullif(m.step_ms, 0)
       end as step_gain,
       case when l.slope > 0 and l.n >= 100 then l.slope end as verify_ms_per_position
from wholes w
cross join slopes l
left join sums s on s.is_total = w.is_total and s.stratum is not distinct from w.stratum
left join met m on w.is_total = 0 and m.stratum is not distinct from w.stratum
order by w.is_total, w.stratum;
