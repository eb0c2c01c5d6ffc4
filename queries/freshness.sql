-- Question: up to when does this lake know, and how much?
-- Inputs: views runs, sources.
-- Output, one row:
--   last_record           time of the last record of any run, UTC; NULL where no record has a time
--   sources               sources read
--   rounds, windows, requests  rows written of each table, baselines included; grains overlap and are never added up
--   rejects               records refused
-- Basis: the ledger; no fact is read.
select (select max(ended) from runs) as last_record,
       count(*) as sources,
       coalesce(sum(rows['rounds']), 0)::bigint as rounds,
       coalesce(sum(rows['windows']), 0)::bigint as windows,
       coalesce(sum(rows['requests']), 0)::bigint as requests,
       coalesce(sum(rejects), 0)::bigint as rejects
from sources;
