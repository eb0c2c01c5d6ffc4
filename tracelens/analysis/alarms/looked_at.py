"""What alarms ask of single rounds, as sums that add up over parts of a lake: views that the alarms read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lake.connection import kept

if TYPE_CHECKING:
    import duckdb

#: The first part of a run is looked at in steps of so many seconds.
PART_S = 5
#: Rounds beyond which a sample of the request ids answers as well: for copies, and for clocks.
COPIES_ABOVE = 100_000
CLOCKS_ABOVE = 50_000
_CHOSEN = "run_id in (from chosen_runs)"

# `{chosen}` is true in a part of a lake: which runs are chosen is known when all parts have answered.
_VIEWS = {
    "chosen_sources": """
select source_id, count(*) filter (forced_acceptance) as forced from selected group by source_id
""",
    "step_parts": f"""
select run_id, epoch_us(ts) // {PART_S * 1_000_000} as part, sum(weight * step_ms) as spent,
       sum(weight * time_rounds) as n, sum(batch_size) as batches, count(batch_size) as batches_told
from strata
where step_us is not null and ts is not null and not coalesce(has_prefill, false) and rolled_requests is null
group by run_id, part
""",
    "round_stamps": """
select run_id, engine, surface, ts_basis, min(ts) as low, max(ts) as high, count(ts) as n,
       min(source_id) filter (request_id is not null) as source, max(source_id) filter (request_id is not null) as other
from rounds
where {chosen}
group by run_id, engine, surface, ts_basis
""",
    "round_samples": f"""
select engine, surface, run_id, request_id, source_id, count(*) as n, sum(drafted) as d, sum(accepted) as a,
       min(ts) as low, max(ts) as high, sum(step_us) as spent, max(round_index) as last_index,
       bool_or(is_sampled(hash(hash(request_id)), {COPIES_ABOVE})) as for_copies,
       bool_or(is_sampled(hash(hash(request_id)), {CLOCKS_ABOVE})) as for_clocks
from rounds
where {{chosen}} and request_id is not null and rolled_requests is null
      and is_sampled(hash(hash(request_id)), {max(COPIES_ABOVE, CLOCKS_ABOVE)})
group by engine, surface, run_id, request_id, source_id
""",
}
NAMES = tuple(_VIEWS)


def of_parts() -> dict[str, str]:
    """The views as queries over a part of a lake, by name."""
    return {name: sql.format(chosen="true") for name, sql in _VIEWS.items()}


# Few rows of very many, which several alarms ask for (of `round_samples` up to some 100,000).
_ONCE = ("round_stamps", "round_samples")


def forced(con: duckdb.DuckDBPyConnection) -> int:
    """How many chosen rows have simulated or forced acceptance."""
    if "chosen_sources" not in kept(con):
        # None in nearly all lakes, which the files' statistics tell; to count those of each source is a pass over all.
        tables = ("runs", "rounds", "windows", "requests")
        some = " or ".join(f"exists(from {table} where forced_acceptance)" for table in tables)
        if con.execute(f"select {some}").fetchone() == (False,):
            return 0
    found = con.execute("select coalesce(sum(forced), 0)::bigint from chosen_sources").fetchone()
    return int(found[0]) if found else 0


def define(con: duckdb.DuckDBPyConnection) -> None:
    """Define the views over the chosen runs: of the lake, or of what its parts have added up to."""
    there = kept(con)
    for name, sql in _VIEWS.items():
        if name not in there:
            con.execute(f"create or replace view {name} as {sql.format(chosen=_CHOSEN)}")
        elif "{chosen}" in sql:
            con.execute(f"create or replace view {name} as select * from kept_{name} where {_CHOSEN}")
    for name in _ONCE:
        if name not in there:
            con.execute(f"create or replace temp table {name}_once as from {name}")
            con.execute(f"create or replace view {name} as from {name}_once")
