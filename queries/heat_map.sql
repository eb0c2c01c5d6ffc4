-- Question: in which batches and contexts does speculation pay?
-- Inputs: view priced_units (its rows for the total, with the total's plain steps).
-- Output, one row a batch bucket and context bucket, in order (NULL: the records do not tell it):
--   rounds               request-rounds with a draft
--   draft_accept_ratio   accepted / drafted; the target's own token is not counted
--   tau_committed        committed tokens a round, the target's own and plain rounds counted
--   step_ms, baseline_ms mean step (request view, without prefill steps) and the plain step of the same cell
--   relative_token_time  step_ms / tau_committed / baseline_ms; below 1.0 speculation pays
--   relative_token_time_basis  step, or lower_bound: draft and verify time alone, where no whole step is logged
-- Basis: the finest grain that holds the figure. NULL where less than 0.8 of the timed rounds have a plain step
-- (prices), so in a bare DuckDB without prices.
with sums as (
  select batch_bucket, context_bucket, sum(n) as rounds, sum(a_of_d) / nullif(sum(d), 0) as draft_accept_ratio,
         sum(e_all) / nullif(sum(n_all), 0) as tau_committed, sum(t) / nullif(sum(tn), 0) as step_ms,
         sum(d_all) / nullif(sum(d_rounds), 0) + sum(v) / nullif(sum(vn), 0) as least_ms,
         case when sum(w) filter (b is not null) >= 0.8 * sum(w)
              then sum(b) / nullif(sum(w) filter (b is not null), 0) end as baseline_ms
  from priced_units
  where is_total = 1 and (batch_bucket is not null or context_bucket is not null)
  group by batch_bucket, context_bucket
)
select batch_bucket, context_bucket, rounds, draft_accept_ratio, tau_committed, step_ms, baseline_ms,
       coalesce(step_ms, least_ms) / nullif(tau_committed, 0) / nullif(baseline_ms, 0) as relative_token_time,
       case when relative_token_time is not null then case when step_ms is not null then 'step' else 'lower_bound' end
       end as relative_token_time_basis
from sums
where rounds > 0
order by batch_bucket, context_bucket;
