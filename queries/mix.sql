-- Question: what is this traffic made of, and with which plain step is each part compared?
-- Inputs: views unit_sums, prices.
-- Output, one row a stratum and part, and the parts of all (stratum IS NULL):
--   traffic, engine, model, batch_bucket, context_bucket  the part
--   rounds                request-rounds with a time; all of them where no round of the stratum has one
--   tokens                output tokens - 1 of the requests with a TPOT
--   price, tpot           plain step and TPOT without speculation that the part is compared with, ms
--   basis                 of price: see baseline_basis in baseline.sql
-- Basis: price, tpot and basis are NULL in a bare DuckDB: `tracelens` fills the view prices.
with parts as (
  select stratum, grouping(stratum) as is_total, traffic, engine, model, batch_bucket, context_bucket, sum(w) as timed,
         sum(all_rounds) as all_rounds, sum(tokens) as tokens
  from unit_sums
  group by grouping sets ((stratum, traffic, engine, model, batch_bucket, context_bucket),
                          (traffic, engine, model, batch_bucket, context_bucket))
), counted as (
  select *, case when sum(timed) over (partition by stratum, is_total) > 0 then timed else all_rounds end as rounds
  from parts
)
select c.stratum, c.traffic, c.engine, c.model, c.batch_bucket, c.context_bucket, c.rounds, c.tokens, p.price, p.tpot,
       p.basis
from counted c
left join prices p
  on p.is_total = (c.is_total = 1) and p.stratum is not distinct from c.stratum and p.traffic = c.traffic
     and p.engine = c.engine and p.model is not distinct from c.model
     and p.batch_bucket is not distinct from c.batch_bucket
     and p.context_bucket is not distinct from c.context_bucket
order by c.is_total, c.stratum, c.traffic, c.engine, c.model, c.batch_bucket, c.context_bucket;
