"""What a reader of the figures must know about the data they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.alarms import collect
from tracelens.analysis.alarms.chosen import rows
from tracelens.analysis.costs import LEAST_MATCHED
from tracelens.analysis.matching import literal
from tracelens.analysis.results import Stratum, Warning, label
from tracelens.analysis.selection import Defined
from tracelens.lake import progress

if TYPE_CHECKING:
    import duckdb

FEW_REQUESTS = 30
FEW_EFFECTIVE = 20
RUNAWAY_SHARE = 0.2
UNMATCHED_SHARE = 0.8
BASELINE_SPREAD = 1.1
_TPOT_BASIS = "baseline_tpot_basis"


def warnings(
    con: duckdb.DuckDBPyConnection,
    total: Stratum,
    strata: Sequence[Stratum],
    defined: Defined,
    baseline_run: str | None,
) -> tuple[Warning, ...]:
    """Collect the warnings of a report, what touches every figure first. All speak of the selected rows alone."""
    con.execute("create or replace temp table chosen_runs as select distinct run_id from unit_sums")
    found = [
        *_forced(con, defined),
        *_never_drafted(total, strata),
        *_v0_rates(con),
        *collect.counted_wrongly(con, total, strata, defined),
        *_grains(con),
        *collect.timed_wrongly(con, total),
        *_other_model(con, baseline_run),
        *_baseline(con, total, baseline_run),
        *_classes(con, total, defined),
        *_mixed(con, total),
        *_runaway([total, *strata] if len(strata) > 1 else [total]),
        *_small(total),
        *_overlap(total),
        *_uncertain_counts(con, total),
        *_rejects(con, defined),
    ]
    return tuple(found)


def _forced(con: duckdb.DuckDBPyConnection, defined: Defined) -> list[Warning]:
    rows = _count(con, "select count(*) from selected where forced_acceptance")
    if not rows:
        return []
    text = (
        "every row has simulated or forced acceptance: the figures say nothing about a real drafter"
        if defined.forced
        else "rows with simulated or forced acceptance are left out of every figure"
    )
    return [Warning("forced_acceptance", text, {"rows": rows})]


def _v0_rates(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    rows = _count(con, "select count(*) from strata where v0_matched is not null")
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


def _tokens(drafted: int | None) -> str:
    return "drafted tokens not logged" if drafted is None else f"{drafted} drafted tokens"


def _never_drafted(total: Stratum, strata: Sequence[Stratum]) -> list[Warning]:
    """A draft length is set, and some class (or all traffic) never drafted a token."""
    found = []
    for stratum in [total] if total.figures.get("drafted") == 0 else strata:
        figures = stratum.figures
        k, steps = figures.get("num_speculative_tokens_max"), figures.get("plain_steps")
        if figures.get("drafted") == 0 and k and steps:
            name = ", ".join(f"{key}={label(value)}" for key, value in stratum.key.items()) or "all traffic"
            text = f"K {k:g} is set and no round of {name} drafted a token: is the drafter loaded, and does it propose?"
            found.append(Warning("never_drafted", text, {"plain_steps": steps}))
    return found


# Parts of the traffic without a baseline, and runs without speculation of their engine that are of another model.
# A run that the user names serves every engine when it is of none of them (baseline.sql).
_UNUSED = """
with parts as (
  select distinct engine, model from unit_sums
), plain as (
  select distinct run_id, case when $1 is not null and engine not in (select engine from parts) then '*' else engine
         end as serves, engine, model
  from control_facts
  where coalesce(step_us, decode_us, tpot_us) is not null and ($1 is null or run_id = $1)
), lacking as (
  select engine, model from parts s
  where not exists (from plain p where p.serves in (s.engine, '*')
                    and (p.model = s.model or s.model is null or p.model is null))
)
select p.run_id, min(p.engine), min(p.model), string_agg(distinct l.model, ', ')
from plain p
join lacking l on p.serves in (l.engine, '*') and l.model is not null
group by p.run_id order by p.run_id limit 3
"""


def _other_model(con: duckdb.DuckDBPyConnection, named: str | None) -> list[Warning]:
    """Runs without speculation that are there and price nothing, because they are of another engine or model."""
    rows = con.execute(_UNUSED, [named]).fetchall()
    found = []
    for run, engine, model, ours in rows:
        asked = "was named as the baseline, but" if named else "ran without speculation, but"
        text = (
            f"run {run} {asked} it is of {engine} {label(model)} and {ours} has none of its own: it was not used "
            "for that; name a run of the same model, or give the plain step in ms (--baseline MS)"
        )
        found.append(Warning("baseline_other_model", text, {"run": run}))
    return found


def _baseline(con: duckdb.DuckDBPyConnection, total: Stratum, named: str | None) -> list[Warning]:
    found = []
    basis = total.figures.get("baseline_basis")
    texts = {
        "plain_steps": "the baseline is the engine's own steps without a draft: they pay for speculation being on "
        "(7-22% in public measurements), so costs look smaller and speedups larger than they are",
        "verify_pass": "the baseline is the verify pass itself: verify_inflation is 1 by construction",
        "verify_extrapolated": "the baseline is the verify pass extended to no draft, not a measured plain step",
    }
    if basis in texts:
        found.append(Warning("baseline_" + basis, texts[basis], {"baseline_ms": total.figures.get("baseline_ms")}))
    share = total.figures.get("baseline_matched_share")
    if share is not None and share < 1.0:
        nothing = "" if share >= LEAST_MATCHED else f"; below {LEAST_MATCHED:.0%} nothing is compared"
        text = (
            f"{share:.0%} of the rounds have a baseline of their own engine and model: costs cover these only{nothing}"
        )
        found.append(Warning("baseline_partial", text, {"baseline_matched_share": share}))
    share = total.figures.get("baseline_bucket_share")
    if share is not None and share < UNMATCHED_SHARE:
        text = f"only {share:.0%} of the rounds meet a baseline step of the same class, model, batch and context range"
        found.append(Warning("baseline_unmatched", text, {"baseline_bucket_share": share}))
    if named is None and "run" in {(total.figures.get(name) or "")[:3] for name in ("baseline_basis", _TPOT_BASIS)}:
        found += _baseline_noise(con)
    return found


def _classes(con: duckdb.DuckDBPyConnection, total: Stratum, defined: Defined) -> list[Warning]:
    """What was compared with other traffic than its own."""
    by_run = [n for n in ("baseline_basis", _TPOT_BASIS) if (total.figures.get(n) or "").startswith("run_")]
    if not by_run:
        return []
    found: list[Warning] = []
    match = defined.matching
    if match.where not in (None, "applied"):
        why = "names columns that are not of the traffic alone" if match.where == "other_columns" else "fits none of it"
        text = f"--where was not applied to what ran without speculation: it {why}"
        found.append(Warning("baseline_where", text))
    # Only classes that have times are compared at all.
    unknown = [name for name in match.unknown if _count(
        con, f"select count(*) from unit_sums where stratum[{literal(name)}] is not null and (w > 0 or tokens > 0)"
    )]  # fmt: skip
    if unknown:
        text = (
            f"what ran without speculation does not hold {', '.join(unknown)}: classes that differ in it are "
            "compared with one baseline, which may be of other traffic"
        )
        found.append(Warning("baseline_class_unknown", text))
    names = {"baseline_tpot_class_share": "tokens", "baseline_class_share": "rounds"}
    shares = [(s, n) for n in names if (s := total.figures.get(n)) is not None and s < 1.0]
    if shares:
        share, name = min(shares, key=lambda found: found[0])
        lacking = con.execute(
            "select traffic from (select distinct traffic from unit_sums) where traffic not in"
            " (select traffic from baseline_facts) order by traffic limit 5"
        ).fetchall()
        which = "; ".join(", ".join(f"{k}={label(v)}" for k, v in row[0].items()) for row in lacking)
        text = (
            f"{1 - share:.0%} of the {names[name]}{f' ({which})' if which else ''} are of a class that no run without "
            "speculation has: they are compared with all its traffic, whose mix of classes may differ"
        )
        found.append(Warning("baseline_other_class", text, {name: share}))
    return found


def _baseline_noise(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    spread = con.execute(
        "with parts as (select distinct engine, model from unit_sums), by_run as (select b.engine, b.model, b.run_id,"
        " sum(weight * decode_ms) / nullif(sum(weight * (output_tokens - 1)), 0) as tpot from baseline_facts b"
        " join parts p on p.engine = b.engine and (p.model = b.model or p.model is null or b.model is null)"
        " where output_tokens > 1 and decode_ms is not null group by b.engine, b.model, b.run_id)"
        " select min(tpot), max(tpot), count(distinct run_id), model from by_run group by engine, model"
        " having count(*) > 1 order by max(tpot) / min(tpot) desc limit 1"
    ).fetchone()
    if not spread or not spread[0] or spread[1] / spread[0] <= BASELINE_SPREAD:
        return []
    text = (
        f"{spread[2]} baseline runs of {spread[3] or 'one model'} differ in TPOT from {spread[0]:.2f} to "
        f"{spread[1]:.2f} ms: a speedup within that range is noise"
    )
    return [Warning("baseline_noise", text, {"runs": spread[2], "low_ms": spread[0], "high_ms": spread[1]})]


def _mixed(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    parts = _count(
        con, "select count(*) from (select distinct engine, model from unit_sums where w > 0 and model is not null)"
    )
    if parts < 2 or total.figures.get("relative_token_time") is None:
        return []
    text = (
        f"{parts} engines or models are pooled in the total, each against its own baseline: "
        "group by engine and model for figures that can be acted on"
    )
    return [Warning("mixed_models", text, {"parts": parts})]


def _runaway(strata: Sequence[Stratum]) -> list[Warning]:
    found = []
    for stratum in strata:
        share, requests = stratum.figures.get("top_share"), stratum.figures.get("requests") or 0
        if share is not None and share > RUNAWAY_SHARE and requests > 1:
            name = ", ".join(f"{k}={label(v)}" for k, v in stratum.key.items()) or "all"
            text = f"one request owns {share:.0%} of the rounds ({name}): the pooled figures are mostly that request"
            found.append(Warning("runaway_request", text, {"top_share": share, "requests": requests, **stratum.key}))
    return found


def _small(total: Stratum) -> list[Warning]:
    requests, effective = total.figures.get("requests"), total.figures.get("n_eff")
    if not requests or effective is None or (requests >= FEW_REQUESTS and effective >= FEW_EFFECTIVE):
        return []
    text = (
        f"{requests} request{'' if requests == 1 else 's'}, worth {effective:.1f} of equal length: too few to decide on"
    )
    return [Warning("few_requests", text, {"requests": requests, "n_eff": effective})]


def _overlap(total: Stratum) -> list[Warning]:
    overhead = total.figures.get("overhead")
    if overhead is None or overhead >= -0.01:
        return []
    text = "draft and verify together last longer than the step: the phases overlap, so their costs do not add up"
    return [Warning("phases_overlap", text, {"overhead": overhead})]


def _uncertain_counts(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    found = []
    estimated = _count(
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
    chosen = " where source_id in (select source_id from selected)" if defined.filtered else ""
    rejects = _count(con, f"select count(*) from rejects{chosen}")
    if not rejects:
        return []
    text = "some records were refused at ingest and count nowhere: see `tracelens query sources`"
    return [Warning("rejects", text, {"rejects": rejects})]


def _count(con: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = con.execute(sql).fetchone()
    progress.step()
    return int(row[0]) if row else 0
