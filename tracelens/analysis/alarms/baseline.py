"""Alarms about what speculation is compared with: which baseline it is, and what of the traffic it does not match."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.alarms.chosen import count
from tracelens.analysis.costs import LEAST_MATCHED
from tracelens.analysis.matching import literal
from tracelens.analysis.results import Stratum, Warning, bucket, label, named
from tracelens.analysis.selection import Defined

if TYPE_CHECKING:
    import duckdb

UNMATCHED_SHARE = 0.8
BASELINE_SPREAD = 1.1
_TPOT_BASIS = "baseline_tpot_basis"
_SHOWN = 5


def alarms(con: duckdb.DuckDBPyConnection, total: Stratum, defined: Defined, named: str | None) -> list[Warning]:
    """Look at the baseline of a question; `named` is the run that the user named as one."""
    return [*_other_model(con, named), *_basis(con, total, named), *_classes(con, total, defined)]


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


def _basis(con: duckdb.DuckDBPyConnection, total: Stratum, named: str | None) -> list[Warning]:
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
        found.append(Warning("baseline_unmatched", text + _absent(con), {"baseline_bucket_share": share}))
    found += _one_sided(con)
    if named is None and "run" in {(total.figures.get(name) or "")[:3] for name in ("baseline_basis", _TPOT_BASIS)}:
        found += _baseline_noise(con)
    return found


def _absent(con: duckdb.DuckDBPyConnection) -> str:
    """Which batches and contexts of the rounds no plain step has."""
    told = []
    for column, what in (("batch_bucket", "batch"), ("context_bucket", "context")):
        lacking = con.execute(
            f"with plain as (select distinct {column} as x from baseline_facts where step_ms is not null"
            f" and coalesce(drafted, 0) = 0 and {column} is not null)"
            f" select distinct {column} from unit_sums where w > 0 and {column} not in (from plain)"
            " and exists (from plain) order by all"
        ).fetchall()
        if lacking:
            names = ", ".join(bucket(str(row[0])) for row in lacking[:_SHOWN]) + (
                ", …" if len(lacking) > _SHOWN else ""
            )
            told.append(f"{what} {names}")
    return f"; it has none at {' and '.join(told)}: run it at the same load" if told else ""


# Where to say what one side of a comparison does not log.
_TELL = {
    "model": "name it by `--set model=…` at ingest",
    "batch_size": 'log the batch of every step (canonical JSON lines: "batch_size")',
    "context_len": 'log the context of every round (canonical JSON lines: "context_len")',
}


def _one_sided(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """What only one side of the comparison logs, so that it could not be matched."""
    row = con.execute(
        "select baseline_lacks, baseline_alone_has from kept_baseline where stratum is null"
    ).fetchone() or (None, None)
    sides = ("what ran without speculation does not log", row[0]), ("what speculates does not log", row[1])
    found = []
    for who, shares in sides:
        lacking = {n: share for n, share in (shares or {}).items() if share and share > 1 - UNMATCHED_SHARE}
        if lacking:
            names = " and ".join(lacking)
            text = (
                f"{who} {names}, and the other side does: {max(lacking.values()):.0%} of the rounds are compared with "
                f"the plain steps of every {names}; to match them, {', '.join(_TELL[name] for name in lacking)}"
            )
            found.append(Warning("baseline_key_unknown", text, lacking))
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
    unknown = [name for name in match.unknown if count(
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
        which = "; ".join(named(row[0]) for row in lacking)
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
