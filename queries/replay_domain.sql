-- Question: which rounds can be replayed with another draft length, and why not the others?
-- Inputs: view strata.
-- Output, one row a stratum (all: stratum IS NULL) and kind, the largest first:
--   kind      chain: single rounds of a request with their draft length, which run_lengths.sql takes; else the reason:
--             tree (draft nodes), parallel (a drafter that proposes all at once or looks up), sampled (weight is not
--             1), no_request (rounds without a request id), no_length (accepted count only), counts (histograms,
--             requests or intervals: no rounds in order), rolled_up (rows of many rounds: their order is gone)
--   rounds    rounds with a draft; passes that may have had one, where only those are known
--   methods   drafting methods among them, as the engines name them
-- Basis: the finest grain of the counts (see facts); weighted.
with parallel as (
  select distinct run_id from runs where config['parallel_drafting'] = 'true'
), alike as (
  select stratum, method, run_id, grain, num_draft_nodes is not null as is_tree, request_id is null as no_request,
         drafted is null as no_length, rolled_requests is not null as is_rolled, weight <> 1 as is_sampled,
         sum(weight * coalesce(rounds, 1)) as rounds
  from strata
  where accepted is not null and coalesce(rounds, 1) > 0 and coalesce(drafted, 1) > 0
  group by all
), sorted as (
  select stratum, lower(method) as method, rounds,
         case when is_tree then 'tree'
              when run_id in (from parallel)
                   or regexp_matches(lower(method), 'ngram|suffix|lookup|medusa|hydra|tree|dflash|parallel')
                then 'parallel'
              when grain <> 'round' then 'counts'
              when is_rolled then 'rolled_up'
              when no_request then 'no_request'
              when no_length then 'no_length'
              when is_sampled then 'sampled'
              else 'chain' end as kind
  from alike
)
select stratum, kind, sum(rounds) as rounds,
       list_sort(list(distinct method) filter (method is not null)) as methods
from sorted
group by grouping sets ((stratum, kind), (kind))
order by stratum is null, stratum, rounds desc, kind;
