-- Question: what do the three formulas make of the measured acceptance, draft cost and draft length?
-- Inputs: view unit_sums. Variables: rho (one draft token over one plain step), or baseline_ms (a plain step, ms) from
--   which rho follows; without either the verify pass stands in for the plain step.
-- Output, one row a stratum and one for all (stratum IS NULL):
--   draft_accept_ratio    accepted / drafted; the target's own token is not counted
--   token_accept_prob     accepted / (accepted + rounds cut short by a rejection); not counted
--   k, k_basis            draft length: configured (one K for all rounds), else mean (drafted tokens a drafting round)
--   rho, rho_basis        draft cost: variable, baseline_ms or verify_pass (then it is rho_verify, too low a ratio
--                         where verifying costs more than a plain step)
--   speedup_article       a k / (1 + rho k): leaves the target's own token out
--   speedup_with_bonus    (1 + a k) / (1 + rho k)
--   speedup_iid           (1 - p^(k+1)) / ((1 - p)(1 + rho k)), Leviathan et al. 2023, Thm 3.8;
--                         p = 1: (k+1) / (1 + rho k)
--   relative_token_time_article  1 / speedup_article
-- Basis: the finest grain (see facts). `tracelens report` has the same figures with the baseline ladder's rho.
with sums as (
  select stratum, sum(a_of_d) / nullif(sum(d), 0) as a, sum(a_of_p) / nullif(sum(a_of_p) + sum(rejections), 0) as p,
         min(k_min) as k_min, max(k_max) as k_max, sum(d_of_n) / nullif(sum(n), 0) as mean_drafted,
         coalesce(sum(dt) / nullif(sum(dn), 0), sum(logged) / nullif(sum(logged_n), 0)) as draft_ms_per_token,
         sum(v) / nullif(sum(vn), 0) as target_ms
  from unit_sums
  group by grouping sets ((stratum), ())
), inputs as (
  select stratum, a, p, if(k_min = k_max, k_min, mean_drafted)::double as k,
         if(k_min = k_max, 'configured', if(mean_drafted is null, null, 'mean')) as k_basis,
         coalesce(try_cast(getvariable('rho') as double),
                  draft_ms_per_token / nullif(coalesce(try_cast(getvariable('baseline_ms') as double), target_ms), 0))
           as rho,
         case when try_cast(getvariable('rho') as double) is not null then 'variable'
              when draft_ms_per_token is null then null
              when try_cast(getvariable('baseline_ms') as double) is not null then 'baseline_ms'
              when target_ms is not null then 'verify_pass' end as rho_basis
  from sums
)
select stratum, a as draft_accept_ratio, p as token_accept_prob, k, k_basis, rho, rho_basis,
       a * k / nullif(1 + rho * k, 0) as speedup_article,
       (1 + a * k) / nullif(1 + rho * k, 0) as speedup_with_bonus,
       case when p = 1 then k + 1 else (1 - p ** (k + 1)) / nullif(1 - p, 0) end / nullif(1 + rho * k, 0)
         as speedup_iid,
       (1 + rho * k) / nullif(a * k, 0) as relative_token_time_article
from inputs
order by stratum is null, stratum;
