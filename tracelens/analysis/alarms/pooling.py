"""Alarms about what stands under one figure: runs of several settings, engines or models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.alarms.chosen import count
from tracelens.analysis.results import Stratum, Warning
from tracelens.lake import progress

if TYPE_CHECKING:
    import duckdb

#: Code of the warning that runs of several settings stand under one verdict.
POOLED = "pooled"

# What some stratum holds several of. A run whose K varies by itself, and another one like it, are one setting: K
# differs where the lengths of two runs have nothing in common.
_POOLED = """
with runs as (
  select run_id, min(k_min) as k_min, max(k_max) as k_max, count(distinct engine) > 1 as has_engines,
         count(distinct model) > 1 as has_models
  from unit_sums
  group by run_id
), inside as (
  select count(distinct engine) > 1 as is_engine, count(distinct model) > 1 as is_model,
         min(k_max) < max(k_min) as is_k
  from (select distinct stratum, run_id, engine, model from unit_sums) join runs using (run_id)
  group by stratum
)
select count(distinct run_id), count(distinct engine), count(distinct model), min(k_min), max(k_max),
       (select bool_or(has_engines) from runs), (select bool_or(has_models) from runs),
       (select bool_or(is_engine or is_model or coalesce(is_k, false)) from inside)
from unit_sums
"""


def pooled(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Warn of runs of several settings under one verdict; restarts and replicas of one setting belong together."""
    row = con.execute(_POOLED).fetchone()
    progress.step()
    if row is None or not row[7]:
        return []
    counts, low, high = dict(zip(("run", "engine", "model"), row[:3], strict=True)), row[3], row[4]
    several = [f"{count} {word}s" for word, count in counts.items() if count > 1]
    what = several[0] if len(several) < 2 else f"{several[0]} of {' and '.join(several[1:])}"
    lengths = "" if low is None else f", K {low:g}," if low == high else f", K {low:g}-{high:g},"
    # What one run mixes by itself, no choice of runs takes apart.
    columns = [("run_id", counts["run"] > 1), ("engine", row[5]), ("model", row[6])]
    by = ",".join(name for name, is_needed in columns if is_needed)
    text = f"{what}{lengths} are pooled: {'choose with --run, or ' if counts['run'] > 1 else 'group '}--by {by}"
    evidence = {f"{word}s": count for word, count in counts.items() if count > 1}
    return [Warning(POOLED, text, {**evidence, "k_low": low, "k_high": high})]


def of_every_length(found: Sequence[Warning]) -> tuple[Warning, ...]:
    """These warnings for an answer that keeps every K apart: runs that differ in K alone are what it asks for."""
    return tuple(w for w in found if w.code != POOLED or {"engines", "models"} & w.evidence.keys())


def mixed_models(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    """Warn that the total holds several engines or models, each of which meets its own baseline."""
    parts = count(
        con, "select count(*) from (select distinct engine, model from unit_sums where w > 0 and model is not null)"
    )
    if parts < 2 or total.figures.get("relative_token_time") is None:
        return []
    text = (
        f"{parts} engines or models are pooled in the total, each against its own baseline: "
        "group by engine and model for figures that can be acted on"
    )
    return [Warning("mixed_models", text, {"parts": parts})]
