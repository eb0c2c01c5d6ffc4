-- Question: how many drafts are accepted, and how many tokens does a round give?
-- Inputs: view unit_sums (counts of the finest grain, by unit).
-- Output, one row a stratum and one for all (stratum IS NULL):
--   draft_accept_ratio   accepted / drafted; the target's own token is not counted
--   token_accept_prob    accepted / (accepted + rounds cut short by a rejection); not counted
--   tau_verified         1 + accepted / rounds; counted, tokens per round
--   tau_drafted          emitted / rounds with a draft; counted, after cuts
--   tau_committed        emitted / all rounds, plain steps included; counted
--   tau_committed_basis  emitted, verified (1 + accepted over all rounds: no emitted logged) or mixed
--   terminal_overcount   tau_verified - tau_drafted: verified, then cut by a stop or a limit
--   tau_request_mean     mean over requests of emitted / all rounds; counted; NULL where rounds are rolled up
--   requests             requests that have counts and an id; NULL where none has one (interval lines)
--   n_eff, top_share     effective number of requests; share of all rounds in the largest one
--   rolled_rounds        rounds, plain ones too, in rolled-up rows (`tracelens compact`); NULL where there are none
--   mean_drafted         drafted tokens per round, plain steps included
--   <ratio>_sums         {m, y, x, yy, xy, xx} over units (requests; windows), for intervals
-- Basis: units are requests where rounds or requests are logged, else windows; groups of requests where rounds are
-- rolled up: these know how many requests, and how long, began among them.
with by_stratum as (
  select stratum, run_id, unit, bool_or(has_rounds) as has_rounds, bool_or(has_requests) as has_requests,
         bool_or(has_windows) as has_windows, bool_or(is_request) as is_request, sum(n) as n, sum(plain) as plain,
         sum(all_rounds) as all_rounds, sum(d) as d, sum(a) as a, sum(e) as e, sum(a_of_d) as a_of_d,
         sum(d_of_n) as d_of_n, sum(n_of_d) as n_of_d, sum(a_of_n) as a_of_n, sum(n_of_a) as n_of_a,
         sum(a_of_p) as a_of_p, sum(rejections) as rejections, sum(e_of_n) as e_of_n, sum(n_of_e) as n_of_e,
         sum(e_all) as e_all, sum(n_all) as n_all, sum(n_logged) as n_logged, min(k_min) as k_min, max(k_max) as k_max,
         sum(rolled_requests) as rolled_requests, sum(rolled_squares) as rolled_squares,
         max(rolled_longest) as rolled_longest
  from unit_sums
  group by stratum, run_id, unit
), units as (
  -- A unit may lie in several strata (batch buckets): for the total it is one again.
  select *, 0 as is_total from by_stratum
  union all by name
  select run_id, unit, bool_or(has_rounds) as has_rounds, bool_or(has_requests) as has_requests,
         bool_or(has_windows) as has_windows, bool_or(is_request) as is_request, min(k_min) as k_min,
         max(k_max) as k_max, max(rolled_longest) as rolled_longest, 1 as is_total,
         sum(columns(* exclude (stratum, run_id, unit, has_rounds, has_requests, has_windows, is_request, k_min,
                                k_max, rolled_longest)))
  from by_stratum
  group by run_id, unit
), summed as (
  select stratum, is_total, sum(n) as rounds, sum(plain) as plain_steps, sum(d) as drafted, sum(a) as accepted,
         sum(e) as emitted, nullif(sum(coalesce(rolled_requests, 1)) filter (is_request), 0)::bigint as requests,
         count(distinct run_id) as runs,
         sum(all_rounds) as all_rounds, sum(all_rounds) filter (rolled_requests is not null) as rolled_rounds,
         sum(n_logged) as n_logged, sum(n_all) as n_all,
         sum(d_of_n) / nullif(sum(n_of_d), 0) as mean_drafted,
         case when count(rolled_requests) = 0 then avg(e_all / nullif(n_all, 0)) filter (is_request) end
           as tau_request_mean,
         sum(all_rounds) filter (is_request) ** 2
           / nullif(sum(coalesce(rolled_squares, all_rounds * all_rounds)) filter (is_request), 0) as n_eff,
         max(coalesce(rolled_longest, all_rounds)) filter (is_request)
           / nullif(sum(all_rounds) filter (is_request), 0) as top_share,
         min(k_min) as num_speculative_tokens_min, max(k_max) as num_speculative_tokens_max,
         list_filter([case when bool_or(has_rounds) then 'round' end,
                      case when bool_or(has_requests) then 'request' end,
                      case when bool_or(has_windows) then 'window' end], lambda g: g is not null) as grains,
         ratio_sums(a_of_d, d) as draft_accept_ratio_sums,
         ratio_sums(a_of_p, a_of_p + rejections) as token_accept_prob_sums,
         ratio_sums(a_of_n, n_of_a) as tau_verified_sums,
         ratio_sums(e_of_n, n_of_e) as tau_drafted_sums,
         ratio_sums(e_all, n_all) as tau_committed_sums
  from units
  group by stratum, is_total
)
select case when is_total = 0 then stratum end as stratum,
       draft_accept_ratio_sums.y / nullif(draft_accept_ratio_sums.x, 0) as draft_accept_ratio,
       token_accept_prob_sums.y / nullif(token_accept_prob_sums.x, 0) as token_accept_prob,
       1 + tau_verified_sums.y / nullif(tau_verified_sums.x, 0) as tau_verified,
       tau_drafted_sums.y / nullif(tau_drafted_sums.x, 0) as tau_drafted,
       tau_committed_sums.y / nullif(tau_committed_sums.x, 0) as tau_committed,
       case when n_all is null then null when coalesce(n_logged, 0) = 0 then 'verified'
            when n_logged = n_all then 'emitted' else 'mixed' end as tau_committed_basis,
       -- From whole sums where both stand for the same rounds: no cut gives exactly 0.
       case when tau_verified_sums.x = tau_drafted_sums.x
            then (tau_verified_sums.x + tau_verified_sums.y - tau_drafted_sums.y) / nullif(tau_verified_sums.x, 0)
            else tau_verified - tau_drafted end as terminal_overcount,
       tau_request_mean, n_eff, top_share, mean_drafted,
       rounds, plain_steps, all_rounds, rolled_rounds, drafted, accepted, emitted, requests, runs, grains,
       num_speculative_tokens_min, num_speculative_tokens_max,
       draft_accept_ratio_sums, token_accept_prob_sums, tau_verified_sums, tau_drafted_sums, tau_committed_sums
from summed
order by is_total, stratum;
