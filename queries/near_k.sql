-- Question: how many rounds give (almost) nothing, who pays for them, and what do they cost?
-- Inputs: views unit_sums, round_shapes. Variables: near_k_delta (default 1: at most one draft kept; 0 = strict),
-- near_k_threshold (default 0.5). Rounds with a draft only.
-- Output, one row a stratum and one for all (stratum IS NULL):
--   near_k_rounds, shaped_rounds  rounds with rollback_len >= d - delta and > 0; rounds whose lengths are known
--   near_k_round_share            the first over the second
--   near_k_strict_share           the same with delta = 0: nothing kept
--   near_k_iid_share              mean over rounds of 1 - p ^ min(delta + 1, d), p = token_accept_prob
--   near_k_excess                 near_k_round_share - near_k_iid_share
--   near_k_request_share          share of requests whose own near-K share is above the threshold
--   rollback_request_share        share of requests with any rollback; both NULL where rounds are rolled up
--   near_k_draft_ms, near_k_step_ms              engine time of those rounds (a step counted once, by step_share)
--   near_k_draft_share, near_k_step_share        their share of all such time of the stratum
--   near_k_round_share_sums       {m, y, x, yy, xy, xx} over units, for the interval
-- Basis: lengths from rounds, and from histograms of fixed draft length; requests and times from rounds and
-- histograms of requests; times from rounds only.
with setting as (
  select near_k_delta() as delta, coalesce(try_cast(getvariable('near_k_threshold') as double), 0.5) as threshold
), shapes as (
  select stratum, grouping(stratum) as is_total, bucket, drafted, accepted, sum(rounds) as rounds
  from round_shapes
  group by grouping sets ((stratum, bucket, drafted, accepted), (bucket, drafted, accepted))
), buckets as (
  select stratum, is_total, bucket, sum(rounds) as n,
         coalesce(sum(rounds) filter (accepted <= delta and accepted < drafted), 0) as near,
         coalesce(sum(rounds) filter (accepted = 0), 0) as strict
  from shapes, setting
  group by stratum, is_total, bucket
), shares as (
  select stratum, is_total, sum(n) as n, sum(near) as near, sum(strict) as strict, ratio_sums(near, n) as sums
  from buckets
  group by stratum, is_total
), probabilities as (
  select stratum, is_total,
         sum(rounds * accepted) / nullif(sum(rounds * (accepted + (accepted < drafted)::integer)), 0) as p
  from shapes
  group by stratum, is_total
), expected as (
  select s.stratum, s.is_total,
         sum(s.rounds * (1 - p.p ** least(delta + 1, s.drafted))) / nullif(sum(s.rounds), 0) as iid
  from shapes s
  join probabilities p on p.stratum is not distinct from s.stratum and p.is_total = s.is_total, setting
  group by s.stratum, s.is_total
), requests_by_stratum as (
  select stratum, run_id, unit, sum(shaped_n) as n, sum(near_n) as near, sum(rolled_back) as rolled_back,
         count(rolled_requests) as rolled_up
  from unit_sums
  where shaped_n is not null
  group by stratum, run_id, unit
), requests_of as (
  select *, 0 as is_total from requests_by_stratum
  union all by name
  select run_id, unit, sum(n) as n, sum(near) as near, sum(rolled_back) as rolled_back,
         sum(rolled_up) as rolled_up, 1 as is_total
  from requests_by_stratum
  group by run_id, unit
), request_shares as (
  select stratum, is_total,
         case when sum(rolled_up) = 0
              then count(*) filter (near / nullif(n, 0) > threshold) / nullif(count(*), 0) end as near_requests,
         case when sum(rolled_up) = 0
              then count(*) filter (rolled_back > 0) / nullif(count(*), 0) end as rollback_requests
  from requests_of, setting
  group by stratum, is_total
), costs as (
  select stratum, grouping(stratum) as is_total, sum(near_draft) as near_draft, sum(shared_draft) as all_draft,
         sum(near_step) as near_step, sum(shared_step) as all_step
  from unit_sums
  group by grouping sets ((stratum), ())
)
select case when s.is_total = 0 then s.stratum end as stratum, s.near as near_k_rounds, s.n as shaped_rounds,
       s.near / nullif(s.n, 0) as near_k_round_share, s.strict / nullif(s.n, 0) as near_k_strict_share,
       e.iid as near_k_iid_share, s.near / nullif(s.n, 0) - e.iid as near_k_excess,
       r.near_requests as near_k_request_share, r.rollback_requests as rollback_request_share,
       case when c.all_draft is not null then coalesce(c.near_draft, 0) end as near_k_draft_ms,
       case when c.all_step is not null then coalesce(c.near_step, 0) end as near_k_step_ms,
       coalesce(c.near_draft, 0) / nullif(c.all_draft, 0) as near_k_draft_share,
       coalesce(c.near_step, 0) / nullif(c.all_step, 0) as near_k_step_share,
       s.sums as near_k_round_share_sums
from shares s
join expected e on e.stratum is not distinct from s.stratum and e.is_total = s.is_total
left join request_shares r on r.stratum is not distinct from s.stratum and r.is_total = s.is_total
left join costs c on c.stratum is not distinct from s.stratum and c.is_total = s.is_total
order by s.is_total, s.stratum;
