-- Question: which requests throw most drafts away?
-- Inputs: view strata (round and request rows). Variable: top (default 20).
-- Output, one row a request, worst first: run_id, request_id, task_type, temperature; rounds, drafted, accepted;
--   rejected = drafted - accepted (tokens); draft_accept_ratio; near_k_round_share (delta = 1, rounds only);
--   wasted_draft_ms = engine time of drafting that gave nothing: by round draft time x step_share x rejected / drafted,
--   NULL where no draft time or no step share is logged; draft_ms = all its drafting, the same way.
-- Basis: the finest grain of the request; rolled-up rounds are of no single one and left out. Sorted by wasted draft
-- time, then by rejected tokens.
with requests_of as (
  select run_id, unit, max(request_id) as request_id, max(task_type) as task_type, max(temperature) as temperature,
         sum(weight * rounds) as rounds, sum(weight * drafted) as drafted, sum(weight * accepted) as accepted,
         sum(weight * (drafted - accepted)) as rejected,
         avg((accepted <= 1 and accepted < drafted)::integer) filter (grain = 'round' and drafted > 0)
           as near_k_round_share,
         sum(weight * step_share * draft_ms * (drafted - accepted) / nullif(drafted, 0)) as wasted_draft_ms,
         sum(weight * step_share * draft_ms) as draft_ms
  from strata
  where grain <> 'window' and rolled_requests is null
  group by run_id, unit
), worst as (
  select *,
         row_number() over (order by wasted_draft_ms desc nulls last, rejected desc nulls last, run_id, unit) as place
  from requests_of
  where rounds > 0
)
select run_id, request_id, task_type, temperature, rounds, drafted, accepted, rejected,
       accepted / nullif(drafted, 0) as draft_accept_ratio, near_k_round_share, wasted_draft_ms, draft_ms
from worst
where place <= coalesce(try_cast(getvariable('top') as bigint), 20)
order by place;
