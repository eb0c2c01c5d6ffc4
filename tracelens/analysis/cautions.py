"""What a reader of the figures must know about the data they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.alarms import baseline, collect, looked_at, pooling
from tracelens.analysis.alarms.chosen import count, rows
from tracelens.analysis.results import Stratum, Warning, named
from tracelens.analysis.selection import Defined
from tracelens.lake.schema import FACTS
from tracelens.wording import many, noun

if TYPE_CHECKING:
    import duckdb

FEW_REQUESTS = 30
FEW_EFFECTIVE = 20
RUNAWAY_SHARE = 0.2


def warnings(
    con: duckdb.DuckDBPyConnection,
    total: Stratum,
    strata: Sequence[Stratum],
    defined: Defined,
    baseline_run: str | None,
) -> tuple[Warning, ...]:
    """Collect the warnings of a report, what touches every figure first. All speak of the selected rows alone."""
    con.execute("create or replace temp table chosen_runs as select distinct run_id from unit_sums")
    counted = collect.counted_wrongly(con, total, strata, defined)
    pooled = pooling.pooled(con)
    found = [
        *_impossible(con),
        *_lost(con),
        *pooled,
        *_forced(con, defined),
        *_never_drafted(total, strata),
        *_v0_rates(con),
        *_rolled_up(con, total),
        *_rolled_out(defined),
        *counted,
        *_grains(con),
        *_some_rounds(con),
        *collect.timed_wrongly(con, total),
        *baseline.alarms(con, total, defined, baseline_run),
        *([] if pooled else pooling.mixed_models(con, total)),
        *_runaway([total, *strata] if len(strata) > 1 else [total]),
        *_small(total),
        *_overlap(total),
        *_uncertain_counts(con, total),
        *_rejects(con, defined),
    ]
    return tuple(found)


def _impossible(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Records that ingest would have refused: somebody else wrote them, or a tracelens that looked at less."""
    records = count(con, "select coalesce(sum(records), 0) from impossible")
    if not records:
        return []
    text = (
        "records of a foreign writer hold impossible values (no finite number, a weight outside 1e-9 to 1e9, more "
        'accepted than drafted, sums that would not fit) and count nowhere: `tracelens query "from impossible"` '
        "names their sources; ingest the logs again"
    )
    return [Warning("impossible_records", text, {"records": records})]


# By the names of files alone, which costs nothing: of a source that lies in several days one may be gone unseen. A file
# of another name (`merged`, somebody's own) may hold anything.
_LOST = f"""
with named as (
  {" union all ".join(f"select '{t}' as kind, unnest(lake_files('{t}')) as path" for t in FACTS)}
), heads as (
  select distinct kind, split_part(parse_filename(path), '-', 1) as head
  from named where parse_filename(path) <> 'empty.parquet'
), brought as (
  select source_id, coalesce(name, source_id) as name, unnest(map_keys(rows)) as kind, unnest(map_values(rows)) as n
  from sources
)
select b.name, b.kind, b.n, count(*) over () as lost
from brought b
where b.n > 0 and b.kind in {FACTS!r} and (b.kind, b.source_id) not in (select (kind, head) from heads)
  and b.kind not in (select kind from heads where not regexp_full_match(head, '[0-9a-f]{{16}}'))
order by b.n desc, b.name, b.kind
"""


def _lost(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Sources whose files somebody deleted from the lake."""
    found = rows(con, _LOST)
    if not found:
        return []
    worst = found[0]
    more = f"; so in {worst['lost'] - 1} more cases" if worst["lost"] > 1 else ""
    text = (
        f"the {many(worst['n'], worst['kind'].removesuffix('s'))} of {worst['name']} are gone: a file of the lake was"
        f" deleted{more}; figures lack them, whatever is said of what was not logged: `tracelens forget --missing"
        " --dry-run` names what is lost, and its logs can be ingested again"
    )
    return [Warning("lost_rows", text, {"lost": worst["lost"], "source": worst["name"]})]


def _forced(con: duckdb.DuckDBPyConnection, defined: Defined) -> list[Warning]:
    rows = looked_at.forced(con)  # of the alarms, whose views `counted_wrongly` defines
    if not rows:
        return []
    text = (
        "every row has simulated or forced acceptance: the figures say nothing about a real drafter"
        if defined.forced
        else "rows with simulated or forced acceptance are left out of every figure"
    )
    return [Warning("forced_acceptance", text, {"rows": rows})]


def _rolled_up(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    """Rounds that `tracelens compact` made sums of: what is exact still, and what is gone."""
    rolled = total.figures.get("rolled_rounds")
    if not rolled:
        return []
    found = rows(
        con,
        "select max(date)::varchar as day, rolled / every as share from (select max(date) filter (rolled_requests is"
        " not null) as date, sum(n) filter (rolled_requests is not null) as rolled, sum(n) as every"
        " from (select *, weight * (coalesce(rounds, 0) + coalesce(plain_steps, 0)) as n from strata) where n > 0)"
        " group by all",
    )[0]
    text = (
        f"{_share(found['share'])} of the rounds (days up to {found['day']}) are rolled up by the minute: counts, sums "
        "and means are as before; intervals stand on groups of requests and may be wider; single requests, replay and "
        "what requests share a step cannot be had from them"
    )
    return [Warning("rolled_up", text, {"rounds": rolled, "share": found["share"], "until": found["day"]})]


def _rolled_out(defined: Defined) -> list[Warning]:
    """Rounds that are missed in silence otherwise: a filter meets NULL in their rows."""
    out = defined.rolled_out
    if out is None:
        return []
    text = (
        f"--where names {', '.join(out.columns)}, which rolled-up rounds don't have any more: "
        f"{many(out.rounds, 'round')} of days up to {out.until} {noun(out.rounds, 'is', 'are')} left out; ask of later "
        "days (`--since`), or bring the single rounds of a log back: `tracelens ingest --replace LOG`"
    )
    return [Warning("rolled_up_where", text, {"rounds": out.rounds, "until": out.until})]


def _share(share: float) -> str:
    return "all" if share == 1 else f"{share:.0%}" if share >= 0.01 else "less than 1%"


def _v0_rates(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    rows = count(con, "select count(*) from strata where v0_matched is not null")
    if not rows:
        return []
    text = (
        "vLLM V0 prints a draft acceptance rate that also counts matches behind a rejection; the figures here are "
        "prefix counts from emitted tokens and are lower than what the log prints"
    )
    return [Warning("v0_rates", text, {"windows": rows})]


def _grains(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    # One record that gives rounds and their request is one count; what matters is another record of the same rounds.
    several = con.execute(
        "with places as (select scope, place, surface, any_value(counts_from) as counts_from, min(run_id) as run_id,"
        " sum(counts) as counts, sum(drafted)::bigint as drafted from grain_choice"
        " where scope in (select scope from grain_choice where run_id in (from chosen_runs))"
        " group by scope, place, surface), taken as (from places where place = counts_from), others as ("
        " select p.scope, arg_max(p.surface, coalesce(p.drafted, 0)) as surface, max(p.drafted) as drafted"
        " from places p where p.counts > 0 and p.place <> p.counts_from"
        " and p.surface not in (select surface from taken t where t.scope = p.scope) group by p.scope)"
        " select min(t.run_id), arg_max(t.surface, t.counts), sum(t.drafted)::bigint, any_value(o.surface),"
        " any_value(o.drafted) from others o join taken t using (scope) group by o.scope"
        " order by max(o.drafted) desc nulls last, o.scope"
    ).fetchall()
    found = []
    if several:
        run, taken, drafted, other, left = several[0]
        more = f"; so in {len(several) - 1} more run(s)" if len(several) > 1 else ""
        text = (
            f"run {run} counts its rounds in two records: {taken} ({_tokens(drafted)}) was used, "
            f"{other} ({_tokens(left)}) was not added to it{more}"
        )
        evidence = {"runs": len(several), "run": run, "used": taken, "not_added": other}
        found.append(Warning("several_grains", text, evidence))
    unjoined = con.execute(
        "select run_id, list(surface order by surface) from grain_choice where grain = 'request' and counts > 0"
        " and counts_from = 'request' and run_id in (from chosen_runs)"
        " group by run_id having count(*) > 1 order by run_id"
    ).fetchall()
    if unjoined:
        run, surfaces = unjoined[0]
        text = (
            f"requests of {len(unjoined)} run(s) are counted in several kinds of record that share no request id "
            f"(run {run}: {', '.join(surfaces)}): if they are the same requests, ingest one of them only"
        )
        found.append(Warning("unjoined_requests", text, {"runs": len(unjoined), "run": run}))
    return found


def _some_rounds(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Records of requests of which some only list their rounds."""
    found = rows(
        con,
        "select surface, min(run_id) as run, any_value(told_share) as share, bool_or(is_partial) as is_partial"
        " from grain_choice where grain = 'round' and told_share < 0.995 and run_id in (from chosen_runs)"
        " group by scope, surface order by share, surface",
    )
    if not found:
        return []
    worst = found[0]
    text = (
        f"{worst['surface']} lists the rounds of some of its requests only ({_share(worst['share'])} of the drafted"
        f" tokens, run {worst['run']}): "
        + (
            "the requests' own counts are used, and what single rounds alone can tell is of none of them"
            if worst["is_partial"]
            else "the others are left out of what is counted"
        )
    )
    return [Warning("some_rounds", text, {"share": worst["share"], "run": worst["run"], "surface": worst["surface"]})]


def _tokens(drafted: int | None) -> str:
    return "drafted tokens not logged" if drafted is None else f"{drafted} drafted tokens"


def _never_drafted(total: Stratum, strata: Sequence[Stratum]) -> list[Warning]:
    """A draft length is set, and some class (or all traffic) never drafted a token."""
    found = []
    for stratum in [total] if total.figures.get("drafted") == 0 else strata:
        figures = stratum.figures
        k, steps = figures.get("num_speculative_tokens_max"), figures.get("plain_steps")
        if figures.get("drafted") == 0 and k and steps:
            name = named(stratum.key) or "all traffic"
            text = f"K {k:g} is set and no round of {name} drafted a token: is the drafter loaded, and does it propose?"
            found.append(Warning("never_drafted", text, {"plain_steps": steps}))
    return found


def _runaway(strata: Sequence[Stratum]) -> list[Warning]:
    found = []
    for stratum in strata:
        share, requests = stratum.figures.get("top_share"), stratum.figures.get("requests") or 0
        if share is not None and share > RUNAWAY_SHARE and requests > 1:
            name = named(stratum.key) or "all"
            text = f"one request owns {share:.0%} of the rounds ({name}): the pooled figures are mostly that request"
            found.append(Warning("runaway_request", text, {"top_share": share, "requests": requests, **stratum.key}))
    return found


def _small(total: Stratum) -> list[Warning]:
    requests, effective = total.figures.get("requests"), total.figures.get("n_eff")
    if not requests or effective is None or (requests >= FEW_REQUESTS and effective >= FEW_EFFECTIVE):
        return []
    text = f"{many(requests, 'request')}, worth {effective:.1f} of equal length: too few to decide on"
    return [Warning("few_requests", text, {"requests": requests, "n_eff": effective})]


def _overlap(total: Stratum) -> list[Warning]:
    overhead = total.figures.get("overhead")
    if overhead is None or overhead >= -0.01:
        return []
    text = "draft and verify together last longer than the step: the phases overlap, so their costs do not add up"
    return [Warning("phases_overlap", text, {"overhead": overhead})]


def _uncertain_counts(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    found = []
    estimated = count(
        con, "select count(*) from strata where rounds is not null and 'estimated' in (counts_basis, rounds_basis)"
    )
    if estimated:
        text = "some counts are estimated: several whole numbers fit what the log printed, the nearest was taken"
        found.append(Warning("estimated_counts", text, {"rows": estimated}))
    basis = total.figures.get("tau_committed_basis")
    if basis in ("verified", "mixed"):
        part = "some" if basis == "mixed" else "all"
        text = f"committed tokens are not logged for {part} rounds: there tau_committed counts tokens before stop cuts"
        found.append(Warning("tau_committed_" + basis, text, {"tau_committed": total.figures.get("tau_committed")}))
    return found + _conflicts(con)


def _conflicts(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Requests that several records tell of differently, and in which columns."""
    columns = rows(
        con,
        "with met as (select conflicting from requests_joined where conflicts > 0 and run_id in (from chosen_runs))"
        " select null as name, count(*) as requests from met having count(*) > 0 union all"
        " select name, count(*) from met, unnest(conflicting) as u(name) group by name"
        " order by name is not null, requests desc, name",
    )
    if not columns:
        return []
    by_column = {row["name"]: row["requests"] for row in columns[1:]}
    told = ", ".join(f"{name} ({n})" for name, n in by_column.items())
    text = f"requests seen in several records have values that differ, in {told}; the record with counts was believed"
    return [Warning("conflicting_records", text, {"requests": columns[0]["requests"], **by_column})]


def _rejects(con: duckdb.DuckDBPyConnection, defined: Defined) -> list[Warning]:
    # A file that gave nothing but refused records is of no run: it counts where nothing was filtered.
    chosen = " where source_id in (select source_id from chosen_sources)" if defined.filtered else ""
    rejects = count(con, f"select count(*) from rejects{chosen}")
    if not rejects:
        return []
    text = "some records were refused at ingest and count nowhere: see `tracelens query sources`"
    return [Warning("rejects", text, {"rejects": rejects})]
