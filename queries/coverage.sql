-- Question: which figures can this lake give, by engine?
-- Inputs: view facts.
-- Output, one row an engine and need: engine; need (the column a figure hangs on); rows_with (rows that hold it);
--   records (rows of the engine, all grains); grains (where it was found); figures (the figures it feeds).
-- Basis: rows, not weighted. A count that a finer grain holds is counted there only.
with seen as (
  select engine, grain, count(*) as records, count(drafted) as drafted, count(accepted) as accepted,
         count(rounds) filter (rounds > 0) as rounds, count(emitted) as emitted,
         count(full_accepts) as draft_lengths,
         count(coalesce(draft_us, draft_ms_per_token)) as draft_time, count(target_us) as target_time,
         count(step_us) as step_time, count(sample_us) as sample_time, count(rollback_us) as rollback_time,
         count(repack_us) as repack_time, count(coalesce(decode_us, tpot_us)) as tpot,
         count(*) filter (role = 'baseline' and coalesce(step_us, decode_us, tpot_us) is not null) as baseline,
         count(task_type) as task_type, count(temperature) as temperature, count(batch_size) as batch_size,
         count(num_speculative_tokens) as num_speculative_tokens,
         count(coalesce(plain_steps, 0)) filter (plain_steps is not null) as plain_steps
  from facts
  group by engine, grain
), needs as (
  unpivot seen on drafted, accepted, rounds, emitted, draft_lengths, draft_time, target_time, step_time, sample_time,
    rollback_time, repack_time, tpot, baseline, task_type, temperature, batch_size, num_speculative_tokens, plain_steps
  into name need value rows_with
), feeds(need, figures) as (
  values ('drafted', 'draft_accept_ratio, mean_drafted'), ('accepted', 'tau_verified'), ('rounds', 'tau_verified'),
         ('emitted', 'tau_committed, tau_drafted, terminal_overcount'),
         ('draft_lengths', 'token_accept_prob, hazard, survival, rollback_len, near_k_round_share'),
         ('draft_time', 'rho, rho_verify, rho_round'), ('target_time', 'verify_inflation, rho_verify'),
         ('step_time', 'round_cost, relative_token_time, speedup_step, overhead'), ('sample_time', 'overhead'),
         ('rollback_time', 'overhead'), ('repack_time', 'overhead'), ('tpot', 'tpot_ms, speedup_tpot'),
         ('baseline', 'baseline_ms, baseline_tpot_ms'), ('task_type', 'strata'), ('temperature', 'strata'),
         ('batch_size', 'verify_waste, batch_bucket'), ('num_speculative_tokens', 'speedup_article, speedup_iid'),
         ('plain_steps', 'tau_committed')
)
select n.engine, n.need, sum(n.rows_with)::bigint as rows_with, sum(n.records)::bigint as records,
       coalesce(string_agg(n.grain, ', ' order by n.grain) filter (n.rows_with > 0), '') as grains, f.figures
from needs n
join feeds f on f.need = n.need
group by n.engine, n.need, f.figures
order by n.engine, n.need;
