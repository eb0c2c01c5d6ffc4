-- Question: how long are the runs of accepted drafts, from which any other draft length can be replayed?
-- Inputs: views strata, runs. Variables: replay_seed (default 7), replay_rounds (rounds that make a trace long enough,
-- 20), rounds_held (rounds of the lake; without it the trace is all of them).
-- Output, one row a stratum (all: stratum IS NULL) and bucket of independent units:
--   trace_k          K of the runs that were taken: the longest with enough rounds of more than one request in effect,
--                    else the longest of more than one, else the longest
--   bucket           hash of (run, request) modulo 4096
--   ended_by_zero    {length: runs} of ones that a rejection ended
--   open             {length: runs} that the request's end or a plain round ended; length 0 holds no draft
--   tokens           {tokens: runs} that the rounds of a run committed; cuts by a stop or limit are off where logged
--   requests, rounds, plain_rounds, drafted, accepted  of the trace itself, rounds those with a draft
--   shortened        rounds with a draft of another length than K, the last two of each request left out
--   inner_rounds     rounds with a draft, the last two rounds of each request left out
--   emitted, emitted_rounds  tokens committed, plain rounds included, and the rounds that log them
--   longest          longest draft
-- Conventions: a round with a draft says a ones, then a zero where a < d. Behind a fully accepted draft the next flag
-- is one with the hazard of its last position, by a draw that hash and seed fix; behind the last round of a request
-- there is none. A plain round ends a run. Rows of a request that lie in another stratum are skipped. The target's own
-- token is not counted.
-- Basis: single rounds with a request id and a draft length; no trees, no parallel or lookup drafters, no sampled or
-- rolled-up rounds (replay_domain.sql tells how many were left out). Beyond two million rounds the trace is one request
-- in so many, a million rounds or two.
with setting as (
  select coalesce(getvariable('replay_seed')::bigint, 7) as seed,
         coalesce(getvariable('replay_rounds')::bigint, 20) as enough
), parallel as (
  select distinct run_id from runs where config['parallel_drafting'] = 'true'
), chains as materialized (
  select hash(0, stratum) as scope, stratum, run_id, hash(run_id, request_id) as request,
         hash(hash(run_id, unit)) % 4096 as bucket, round_index, ts, source_line, drafted, accepted, emitted,
         num_speculative_tokens as told_k,
         hash(run_id, request_id, round_index, source_id, source_line, seed) / 18446744073709551616.0 as draw
  from strata, setting
  where grain = 'round' and is_sampled(hash(hash(hash(run_id, request_id))), 1000000) and request_id is not null
        and drafted is not null and accepted is not null and weight = 1 and rolled_requests is null
        and num_draft_nodes is null and run_id not in (from parallel)
        and not coalesce(regexp_matches(lower(method), 'ngram|suffix|lookup|medusa|hydra|tree|dflash|parallel'), false)
), lengths as (
  -- The K of a run that does not tell it: its longest draft but for a few odd ones.
  select run_id, coalesce(quantile_disc(drafted, 0.98) filter (drafted > 0), 0) as longest from chains group by run_id
), scoped as not materialized (
  select c.* exclude (told_k), coalesce(told_k, longest) as k from chains c join lengths using (run_id)
  union all by name
  select c.* exclude (told_k, scope, stratum), coalesce(told_k, longest) as k, 0::ubigint as scope
  from chains c join lengths using (run_id)
), by_request as (
  select scope, any_value(stratum) as stratum, k, request, count(*) as rounds
  from scoped
  where drafted > 0
  group by scope, k, request
), candidates as (
  -- One long request is one lucky or unlucky request, however many rounds it has.
  select scope, any_value(stratum) as stratum, k, sum(rounds) as rounds,
         sum(rounds) ** 2 / sum(rounds * rounds) >= 1.5 as several
  from by_request
  group by scope, k
), traces as materialized (
  select scope, any_value(stratum) as stratum,
         max_by(k, [several::bigint, (rounds >= enough)::bigint, k]) as k
  from candidates, setting
  group by scope
), traced as materialized (
  select s.* exclude (stratum) from scoped s join traces using (scope, k)
), shapes as (
  select scope, drafted, accepted, count(*) as rounds from traced where drafted > 0 group by scope, drafted, accepted
), last_positions as (
  select distinct scope, drafted as position from shapes
), hazards as (
  select p.scope, p.position,
         coalesce(sum(s.rounds) filter (s.accepted >= p.position), 0) / sum(s.rounds) as hazard
  from last_positions p
  join shapes s on s.scope = p.scope and s.drafted >= p.position and s.accepted >= p.position - 1
  group by p.scope, p.position
), ordered as (
  select *, lead(drafted) over in_order is null as is_last, lead(drafted, 2) over in_order is not null as is_inner
  from traced
  window in_order as (partition by scope, request order by round_index, ts, source_line)
), flags as (
  -- Behind the last round there is no flag: nobody drafts for the last token of a request.
  select t.*, drafted > 0 and accepted = drafted and draw < h.hazard and not is_last as joined,
         drafted > 0 and not (accepted = drafted and (is_last or draw < h.hazard)) as zero
  from ordered t
  left join hazards h on h.scope = t.scope and h.position = t.drafted and t.accepted = t.drafted
), placed as (
  -- The runs that a request has ended before a row number the run of that row.
  select *,
         coalesce(sum((zero or drafted = 0)::integer)
                    over (in_order rows between unbounded preceding and 1 preceding), 0) as run
  from flags
  window in_order as (partition by scope, request order by round_index, ts, source_line)
), found as (
  select scope, request, bucket, sum(accepted + joined::integer) as length, bool_or(zero) as by_zero,
         sum(coalesce(emitted, accepted + 1)) filter (drafted > 0) as tokens,
         run = 0 as first, count(*) filter (drafted > 0) as rounds, count(*) filter (drafted = 0) as plain_rounds,
         sum(drafted) as drafted, sum(accepted) as accepted,
         count(*) filter (is_inner and drafted > 0) as inner_rounds,
         count(*) filter (is_inner and drafted > 0 and drafted <> k) as shortened, sum(emitted) as emitted,
         count(emitted) as emitted_rounds, max(drafted) as longest
  from placed
  group by scope, request, bucket, run
)
select t.stratum, t.k as trace_k, f.bucket,
       histogram(f.length::bigint) filter (f.by_zero) as ended_by_zero,
       histogram(f.length::bigint) filter (not f.by_zero) as open,
       histogram(f.tokens::bigint) filter (f.tokens is not null) as tokens,
       count(*) filter (f.first) as requests, sum(f.rounds)::bigint as rounds,
       sum(f.plain_rounds)::bigint as plain_rounds, sum(f.drafted)::bigint as drafted,
       sum(f.accepted)::bigint as accepted, sum(f.shortened)::bigint as shortened,
       sum(f.inner_rounds)::bigint as inner_rounds, sum(f.emitted)::bigint as emitted,
       sum(f.emitted_rounds)::bigint as emitted_rounds, max(f.longest) as longest
from found f
join traces t using (scope)
group by f.scope, t.stratum, t.k, f.bucket
order by f.scope = 0, t.stratum, f.bucket;
