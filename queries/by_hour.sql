-- Question: how do acceptance, draft cost and round time move over the day?
-- Inputs: view strata.
-- Output, one row a stratum and hour, and rows for all strata (stratum IS NULL): hour (UTC);
--   rounds, drafted, accepted (tokens, the target's own not counted); draft_accept_ratio = accepted / drafted;
--   tau_verified = 1 + accepted / rounds; draft_ms_per_token, target_ms, step_ms (request view, without prefill steps);
--   rho_verify = draft_ms_per_token / target_ms; tpot_ms (token weighted).
-- Basis: the finest grain of every run; rows without a time of day are left out.
with rows_of as (
  select stratum, hour, weight, rounds, drafted, accepted, drafted_timed, draft_ms, target_ms, step_ms, time_rounds,
         coalesce(has_prefill, false) as prefill, decode_ms, output_tokens, error
  from strata
  where hour is not null
), sums as (
  select stratum, hour, grouping(stratum) as is_total, sum(weight * rounds) as rounds,
         sum(weight * drafted) as drafted, sum(weight * accepted) as accepted,
         sum(weight * accepted) filter (drafted is not null) as accepted_of_drafted,
         sum(weight * accepted) filter (rounds is not null) as accepted_of_rounds,
         sum(weight * draft_ms) filter (drafted_timed > 0 and not prefill)
           / nullif(sum(weight * drafted_timed) filter (draft_ms is not null and not prefill), 0) as draft_ms_per_token,
         sum(weight * target_ms) filter (not prefill)
           / nullif(sum(weight * time_rounds) filter (target_ms is not null and not prefill), 0) as target_ms,
         sum(weight * step_ms) filter (not prefill)
           / nullif(sum(weight * time_rounds) filter (step_ms is not null and not prefill), 0) as step_ms,
         sum(weight * decode_ms) filter (output_tokens > 1 and not coalesce(error, false))
           / nullif(sum(weight * (output_tokens - 1)) filter (decode_ms is not null and not coalesce(error, false)), 0)
           as tpot_ms
  from rows_of
  group by grouping sets ((stratum, hour), (hour))
)
select case when is_total = 0 then stratum end as stratum, hour, rounds, drafted, accepted,
       accepted_of_drafted / nullif(drafted, 0) as draft_accept_ratio,
       1 + accepted_of_rounds / nullif(rounds, 0) as tau_verified, draft_ms_per_token, target_ms, step_ms,
       draft_ms_per_token / nullif(target_ms, 0) as rho_verify, tpot_ms
from sums
order by is_total, stratum, hour;
