-- Question: what does a token really take, as the user sees it?
-- Inputs: view priced_requests (request rows of strata, and prices). Failed requests are left out.
-- Output, one row a stratum and one for all (stratum IS NULL):
--   tpot_ms               sum of decode time / sum of (output tokens - 1): token weighted, never from inter-chunk gaps
--   tpot_p50_ms, tpot_p95_ms  over requests; NULL where some are known by their mean alone
--   tpot_requests         requests with a TPOT; NULL where none has one
--   output_tokens         generated tokens of all requests
--   ttft_ms, queue_ms     means over requests
--   tpot_sums             {m, y, x, yy, xy, xx} over requests, for the interval
--   priced_sums           the same of decode time over what it would be without speculation (prices), for the interval
--                         of the speedup: requests of a slow class are slow on both sides
-- Basis: decode_us and output_tokens; a logged TPOT counts with its tokens, or as one token where they are unknown.
with priced as materialized (
  from priced_requests
), units as (
  select stratum, grouping(stratum) as is_total, run_id, unit, sum(weight * decode) filter (is_timed) as decode,
         sum(weight * tokens) filter (is_timed) as tokens,
         case when is_total = 1 then sum(weight * tokens * plain_total) filter (is_timed)
              else sum(weight * tokens * plain) filter (is_timed) end as plain
  from priced
  group by grouping sets ((stratum, run_id, unit), (run_id, unit))
), sums as (
  select stratum, is_total, ratio_sums(decode, tokens) as tpot_sums, ratio_sums(decode, plain) as priced_sums
  from units
  group by stratum, is_total
), quantiles as (
  -- A mean of many requests (what a benchmark prints in the end) is no request: it has no place in a distribution.
  select stratum, grouping(stratum) as is_total, bool_or(is_mean) filter (is_timed) as has_means,
         case when not has_means then quantile_cont(tpot, 0.5) filter (is_timed) end as p50,
         case when not has_means then quantile_cont(tpot, 0.95) filter (is_timed) end as p95,
         nullif(sum(case when is_mean then weight else 1 end) filter (is_timed), 0) as tpot_requests,
         sum(weight * output_tokens) as output_tokens, sum(size * ttft_ms) / sum(size) filter (ttft_ms is not null)
           as ttft_ms,
         sum(size * queue_ms) / sum(size) filter (queue_ms is not null) as queue_ms
  from (select *, weight > 1 and output_tokens is null as is_mean, case when is_mean then weight else 1 end as size
        from priced)
  group by grouping sets ((stratum), ())
)
select case when q.is_total = 0 then q.stratum end as stratum, s.tpot_sums.y / nullif(s.tpot_sums.x, 0) as tpot_ms,
       q.p50 as tpot_p50_ms, q.p95 as tpot_p95_ms, q.tpot_requests, q.output_tokens, q.ttft_ms, q.queue_ms, s.tpot_sums,
       s.priced_sums
from quantiles q
left join sums s on s.stratum is not distinct from q.stratum and s.is_total = q.is_total
order by q.is_total, q.stratum;
