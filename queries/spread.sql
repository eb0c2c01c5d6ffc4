-- Question: how do the sums behind acceptance, cost and token time vary over independent units?
-- Inputs: views priced_units, priced_requests.
-- Output, one row a stratum and one for all (stratum IS NULL); lists with one element a bucket of units (a hash of the
-- unit, at most 4096 buckets: as independent as the units are):
--   the sums of unit_sums by their names (a_of_d, d: accepted and drafted tokens; dt, dn: draft ms and drafted tokens;
--   v, vn, t, tn: ms and request-rounds of the verify pass and the step; b, w: ms that the same rounds would take as
--   plain steps, and these rounds; prefill_t, prefill_n: steps with prefill); and of requests decode, tokens, plain:
--   decode ms, tokens after the first, and ms that these would take without speculation
--   buckets         the buckets, ascending
--   prefill_known   whether steps say if they hold prefill
-- Basis: as alpha.sql, rho.sql and speedup.sql, which print the ratios of these sums.
with sums as (
  select stratum, is_total, hash(hash(run_id, unit)) % 4096 as bucket, prefill_known,
         columns(['a_of_d', 'd', 'a_of_p', 'rejections', 'a_of_n', 'n_of_a', 'e_of_n', 'n_of_e', 'e_all', 'n_all',
                  'd_of_n', 'n_of_d', 'n', 'all_rounds', 'dt', 'dn', 'v', 'vn', 't', 'tn', 'sample', 'sample_n',
                  'rollback', 'rollback_n', 'repack', 'repack_n', 'lag', 'lag_n', 'prefill_t', 'prefill_n', 'b', 'w'])
  from priced_units
), units as (
  select stratum, is_total, bucket, bool_or(prefill_known) as prefill_known,
         sum(columns(* exclude (stratum, is_total, bucket, prefill_known)))
  from sums
  group by stratum, is_total, bucket
), requests_of as (
  select stratum, grouping(stratum) as is_total, hash(hash(run_id, unit)) % 4096 as bucket,
         sum(weight * decode) filter (is_timed) as decode, sum(weight * tokens) filter (is_timed) as tokens,
         case when is_total = 1 then sum(weight * tokens * plain_total) filter (is_timed)
              else sum(weight * tokens * plain) filter (is_timed) end as plain
  from priced_requests
  group by grouping sets ((stratum, bucket), (bucket))
), joined as (
  select stratum, is_total, bucket, bool_or(prefill_known) as prefill_known,
         sum(columns(* exclude (stratum, is_total, bucket, prefill_known)))
  from (from units union all by name from requests_of)
  group by stratum, is_total, bucket
)
select case when is_total = 0 then stratum end as stratum, bool_or(prefill_known) as prefill_known,
       list(bucket order by bucket) as buckets,
       list(coalesce(columns(* exclude (stratum, is_total, bucket, prefill_known)), 0) order by bucket)
from joined
group by stratum, is_total
order by is_total, stratum;
