-- Question: what was read into this lake, and what was not?
-- Inputs: views sources, rejects; table continued.
-- Output, one row a source: name, source_id, bytes, lines; envelope; surfaces (records recognised, by surface);
--   rows (written, by table); rejects (records refused) and rejects_by_reason; unrecognised (lines that no engine
--   claimed); ingested_at (UTC); same_as (source -> lines whose records are that source's too, or stand before them in
--   the same one: counted once);
--   continues (source -> windows whose counters go on from that source's: what it tells of is not counted again).
-- Basis: the ledger.
with reasons as (
  select source_id, reason, count(*) as records from rejects group by source_id, reason
), by_source as (
  select source_id, map_from_entries(list({'k': reason, 'v': records} order by records desc, reason)) as reasons
  from reasons
  group by source_id
), followed as (
  select source_id, map_from_entries(list({'k': other_id, 'v': windows} order by other_id)) as continues
  from (select source_id, other_id, count(*) as windows from continued where continues group by source_id, other_id)
  group by source_id
)
select s.name, s.source_id, s.bytes, s.lines, s.envelope, s.surfaces, s.rows, s.rejects,
       b.reasons as rejects_by_reason, s.unrecognised, s.ingested_at, s.same_as, f.continues
from sources s
left join by_source b on b.source_id = s.source_id
left join followed f on f.source_id = s.source_id
order by s.name, s.source_id;
