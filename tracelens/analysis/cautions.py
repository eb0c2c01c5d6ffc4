"""What a reader of the figures must know about the data they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.results import Stratum, Warning

if TYPE_CHECKING:
    import duckdb

FEW_REQUESTS = 30
FEW_EFFECTIVE = 20
RUNAWAY_SHARE = 0.2
UNMATCHED_SHARE = 0.8
BASELINE_SPREAD = 1.1


def warnings(
    con: duckdb.DuckDBPyConnection, total: Stratum, strata: Sequence[Stratum], forced: bool
) -> tuple[Warning, ...]:
    """Collect the warnings of a report, what touches every figure first."""
    found = [
        *_forced(con, forced),
        *_v0_rates(con),
        *_grains(con),
        *_baseline(con, total),
        *_runaway([total, *strata] if len(strata) > 1 else [total]),
        *_small(total),
        *_overlap(total),
        *_uncertain_counts(con, total),
        *_rejects(con),
    ]
    return tuple(found)


def _forced(con: duckdb.DuckDBPyConnection, all_forced: bool) -> list[Warning]:
    rows = _count(con, "select count(*) from facts where forced_acceptance")
    if not rows:
        return []
    text = (
        "every row has simulated or forced acceptance: the figures say nothing about a real drafter"
        if all_forced
        else "rows with simulated or forced acceptance are left out of every figure"
    )
    return [Warning("forced_acceptance", text, {"rows": rows})]


def _v0_rates(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    rows = _count(con, "select count(*) from windows where v0_matched is not null")
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
        "with taken as (select run_id, surface, place, drafted from grain_choice where place = counts_from)"
        " select g.run_id, any_value(t.place), any_value(t.drafted), list(g.place order by g.place),"
        " list(g.drafted order by g.place) from grain_choice g join taken t using (run_id)"
        " where g.counts > 0 and g.place <> g.counts_from and g.surface <> t.surface"
        " group by g.run_id order by g.run_id"
    ).fetchall()
    found = []
    if several:
        run, taken, drafted, places, others = several[0]
        told = ", ".join(f"{place}: {count}" for place, count in zip(places, others, strict=True))
        text = (
            f"{len(several)} run(s) count the same rounds in several records; the finest is used and nothing is added "
            f"up twice (run {run}, drafted tokens: {taken}: {drafted}; left out {told})"
        )
        found.append(Warning("several_grains", text, {"runs": len(several), "run": run, "counts_from": taken}))
    unjoined = con.execute(
        "select run_id, list(surface order by surface) from grain_choice where grain = 'request' and counts > 0"
        " and counts_from = 'request' group by run_id having count(*) > 1 order by run_id"
    ).fetchall()
    if unjoined:
        run, surfaces = unjoined[0]
        text = (
            f"requests of {len(unjoined)} run(s) are counted in several kinds of record that share no request id "
            f"(run {run}: {', '.join(surfaces)}): if they are the same requests, ingest one of them only"
        )
        found.append(Warning("unjoined_requests", text, {"runs": len(unjoined), "run": run}))
    return found


def _baseline(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
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
    if share is not None and share < UNMATCHED_SHARE:
        text = f"only {share:.0%} of the rounds meet a baseline step of the same model, batch and context range"
        found.append(Warning("baseline_unmatched", text, {"baseline_matched_share": share}))
    spread = con.execute(
        "with by_run as (select model, run_id, sum(weight * decode_ms) / nullif(sum(weight * (output_tokens - 1)), 0)"
        " as tpot from baseline_facts where output_tokens > 1 and decode_ms is not null group by model, run_id)"
        " select min(tpot), max(tpot), count(*), model from by_run group by model having count(*) > 1"
        " order by max(tpot) / min(tpot) desc limit 1"
    ).fetchone()
    if spread and spread[0] and spread[1] / spread[0] > BASELINE_SPREAD:
        text = (
            f"{spread[2]} baseline runs of {spread[3] or 'one model'} differ in TPOT from {spread[0]:.2f} to "
            f"{spread[1]:.2f} ms: a speedup within that range is noise"
        )
        found.append(Warning("baseline_noise", text, {"runs": spread[2], "low_ms": spread[0], "high_ms": spread[1]}))
    return found


def _runaway(strata: Sequence[Stratum]) -> list[Warning]:
    found = []
    for stratum in strata:
        share, requests = stratum.figures.get("top_share"), stratum.figures.get("requests") or 0
        if share is not None and share > RUNAWAY_SHARE and requests > 1:
            name = ", ".join(f"{k}={v}" for k, v in stratum.key.items()) or "all"
            text = f"one request owns {share:.0%} of the rounds ({name}): the pooled figures are mostly that request"
            found.append(Warning("runaway_request", text, {"top_share": share, "requests": requests, **stratum.key}))
    return found


def _small(total: Stratum) -> list[Warning]:
    requests, effective = total.figures.get("requests"), total.figures.get("n_eff")
    if not requests or effective is None or (requests >= FEW_REQUESTS and effective >= FEW_EFFECTIVE):
        return []
    text = f"{requests} requests, worth {effective:.1f} equal ones: too few to decide on"
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
    conflicts = _count(con, "select count(*) from requests_joined where conflicts > 0")
    if conflicts:
        text = "requests seen in several records have values that differ; the record with counts was believed"
        found.append(Warning("conflicting_records", text, {"requests": conflicts}))
    return found


def _rejects(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    rejects = _count(con, "select count(*) from rejects")
    if not rejects:
        return []
    text = "some records were refused at ingest and count nowhere: see `tracelens query sources`"
    return [Warning("rejects", text, {"rejects": rejects})]


def _count(con: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = con.execute(sql).fetchone()
    return int(row[0]) if row else 0
