-- Question: how far do drafts get, position by position?
-- Inputs: view round_shapes (rounds; histograms and per-position counts where every round had the same length).
-- Output, one row a stratum and position from 1, and rows for all (stratum IS NULL):
--   at_risk           rounds whose first position - 1 drafts were accepted and that drafted this position
--   reached           of those, rounds whose draft at this position was accepted too
--   hazard            reached / at_risk; the target's own token is not counted
--   hazard_sums       {m, y, x, yy, xy, xx} of it over groups of units, for its interval
--   survival          product of the hazards up to here (Kaplan-Meier: right where draft lengths differ)
--   log_survival_var  linearised variance of ln(survival) over independent units
--   units             groups of units (at most 4096 buckets)
-- Basis: counts; weighted.
with shapes as (
  select stratum, grouping(stratum) as is_total, bucket, drafted, accepted, sum(rounds) as rounds
  from round_shapes
  group by grouping sets ((stratum, bucket, drafted, accepted), (bucket, drafted, accepted))
), by_bucket as (
  select stratum, is_total, bucket, position, sum(rounds) filter (accepted >= position - 1) as at_risk,
         coalesce(sum(rounds) filter (accepted >= position), 0) as reached
  from shapes, unnest(range(1, drafted + 1)) as positions(position)
  group by stratum, is_total, bucket, position
), by_position as (
  select stratum, is_total, position, coalesce(sum(at_risk), 0) as at_risk, sum(reached) as reached,
         ratio_sums(reached, at_risk) as hazard_sums
  from by_bucket
  group by stratum, is_total, position
), unit_counts as (
  select stratum, is_total, count(distinct bucket) as units from shapes group by stratum, is_total
), influence as (
  -- d ln(hazard) of one bucket; its running sum over positions is that of ln(survival).
  select b.stratum, b.is_total, b.bucket, b.position,
         sum((b.reached - coalesce(b.at_risk, 0) * p.reached / p.at_risk) / p.reached)
           over (partition by b.stratum, b.is_total, b.bucket order by b.position) as share
  from by_bucket b
  join by_position p
    on p.stratum is not distinct from b.stratum and p.is_total = b.is_total and p.position = b.position
  where p.reached > 0
), reach as (
  select stratum, is_total, bucket, max(position) as last_position, max_by(share, position) as last_share
  from influence
  group by stratum, is_total, bucket
), spread as (
  -- A bucket without longer drafts keeps its last value at later positions.
  select p.stratum, p.is_total, p.position, sum(coalesce(i.share, r.last_share) ** 2) as squares
  from by_position p
  join reach r on r.stratum is not distinct from p.stratum and r.is_total = p.is_total
  left join influence i
    on i.stratum is not distinct from p.stratum and i.is_total = p.is_total and i.bucket = r.bucket
       and i.position = p.position
  where i.position is not null or r.last_position < p.position
  group by p.stratum, p.is_total, p.position
), hazards as (
  select p.stratum, p.is_total, p.position, p.at_risk, p.reached, p.reached / nullif(p.at_risk, 0) as hazard,
         p.hazard_sums, u.units, s.squares
  from by_position p
  join unit_counts u on u.stratum is not distinct from p.stratum and u.is_total = p.is_total
  left join spread s
    on s.stratum is not distinct from p.stratum and s.is_total = p.is_total and s.position = p.position
)
select case when is_total = 0 then stratum end as stratum, position::integer as position, at_risk, reached, hazard,
       product(hazard) over (partition by stratum, is_total order by position) as survival,
       case when reached > 0 then squares * units / nullif(units - 1, 0) end as log_survival_var,
       units, hazard_sums
from hazards
order by is_total, stratum, position;
