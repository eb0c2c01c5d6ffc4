-- Question: how long are the rollbacks, by draft length?
-- Inputs: view round_shapes (rounds; exact too from histograms and per-position counts of fixed draft length).
-- Output, one row a stratum, draft length and rollback length, and rows for all (stratum IS NULL):
--   drafted       d, tokens
--   rollback_len  d - accepted, tokens thrown away
--   rounds        rounds with that d and that rollback_len
--   share         of the stratum's rounds with that d
-- Basis: counts; weighted. Lengths that never happened are listed with 0.
with shapes as (
  select stratum, grouping(stratum) as is_total, drafted, drafted - accepted as rollback_len, sum(rounds) as rounds
  from round_shapes
  group by grouping sets ((stratum, drafted, accepted), (drafted, accepted))
), lengths as (
  select stratum, is_total, drafted, sum(rounds) as all_rounds from shapes group by stratum, is_total, drafted
), cells as (
  select l.stratum, l.is_total, l.drafted, r.rollback_len, l.all_rounds
  from lengths l, unnest(range(0, l.drafted + 1)) as r(rollback_len)
)
select case when c.is_total = 0 then c.stratum end as stratum, c.drafted, c.rollback_len,
       coalesce(s.rounds, 0) as rounds, coalesce(s.rounds, 0) / nullif(c.all_rounds, 0) as share
from cells c
left join shapes s
  on s.stratum is not distinct from c.stratum and s.is_total = c.is_total and s.drafted = c.drafted
     and s.rollback_len = c.rollback_len
order by c.is_total, c.stratum, c.drafted, c.rollback_len;
