"""Acceptance that no drafter has: nearly all, nearly none, or a first draft that never fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.alarms.chosen import more, rows
from tracelens.analysis.results import Stratum, Warning, named

if TYPE_CHECKING:
    import duckdb

# A multi-token head of a regular text reaches 0.97 at K = 1 in public logs; none is known above.
TOO_GOOD = 0.98
# At 0.98 a share of 1,000 tokens is known to +-0.9 points (two sigma).
MANY = 1000
# A drafter that is right 95 times in 100 passes so many tokens in a row once in 60.
MANY_IN_A_ROW = 80
# An untrained drafter with the target's own tokenizer still guesses some percent; below is no guess at all.
NEARLY_NONE = 0.01
# A drafter that is right 2 times in 100 has fewer than 1 in 100 of so many tokens accepted once in 15.
MANY_REFUSED = 400
# So many rounds in a row lose no first draft at 0.98 once in 24,000.
ROUNDS_IN_A_ROW = 500
FIRST_ALWAYS = 0.999
LATER_NOT = 0.97

_BY_RUN = f"""
with sums as (
  select engine, run_id, stratum, sum(d)::bigint as drafted, sum(a_of_d)::bigint as accepted
  from unit_sums where d > 0 and a_of_d is not null group by engine, run_id, stratum
), parts as (
  select engine, run_id, null as stratum, sum(drafted) as drafted, sum(accepted) as accepted
  from sums group by engine, run_id
  union all
  select * from sums
)
select *, accepted / drafted as ratio,
       case when (accepted >= drafted and drafted >= {MANY_IN_A_ROW}) or (ratio > {TOO_GOOD} and drafted >= {MANY})
            then 'too_good' when ratio < {NEARLY_NONE} and drafted >= {MANY_REFUSED} then 'near_zero' end as alarm
from parts where alarm is not null
order by stratum is not null, drafted desc, run_id, stratum
"""


def alarms(con: duckdb.DuckDBPyConnection, strata: Sequence[Stratum], *, forced: bool) -> list[Warning]:
    """The alarms of acceptance by run and, where the run as a whole is in order, by class.

    Args:
        con: the connection of one question.
        strata: the total first; their hazards and rounds are read.
        forced: acceptance is forced or simulated in every row, which is told already.
    """
    if forced:
        return []
    found = rows(con, _BY_RUN)
    out = []
    for code, say in (("too_good", _too_good), ("near_zero", _near_zero)):
        parts = [part for part in found if part["alarm"] == code]
        runs = {part["run_id"] for part in parts if part["stratum"] is None}
        parts = [part for part in parts if part["stratum"] is None or part["run_id"] not in runs]
        if parts:
            first = parts[0]
            where = f"run {first['run_id']}"
            if first["stratum"] is not None:
                where += f" in {named(first['stratum'])}"
            kinds = "place" if len(runs) != len(parts) else "run"
            text = say(where + more(len(parts), kinds), first["ratio"], str(first["engine"]))
            evidence = {"draft_accept_ratio": float(first["ratio"]), "drafted": int(first["drafted"]),
                        "accepted": int(first["accepted"]), "run": first["run_id"]}  # fmt: skip
            out.append(Warning(f"acceptance_{code}", text, evidence))
    return out + _first_always(strata)


def _too_good(where: str, ratio: float, engine: str) -> str:
    tree = "" if engine != "sglang" else " (SGLang's accept rate does so from 0.5.4 to 0.5.10)"
    return (
        f"{where} accepts {'every drafted token' if ratio >= 1 else f'{ratio:.1%} of the drafted tokens'}, which real "
        f"drafters do not: the bonus token may be counted as accepted{tree}, the prompts may repeat what a cached "
        "draft has seen, acceptance may be simulated, or the drafter is the target itself at temperature 0; compare "
        "output tokens with rounds of a few requests, and leave it out with --where if it is not real"
    )


def _near_zero(where: str, ratio: float, engine: str) -> str:
    zeros = ", or counters that stay 0 (its PyTorch flow before TensorRT-LLM#17082)" if engine == "tensorrt-llm" else ""
    return (
        f"{where} accepts {'none' if ratio <= 0 else f'{ratio:.2%}'} of the drafted tokens: usually a broken draft "
        "head (weights of another target, not loaded or wrongly quantised, another tokenizer, shifted positions), not "
        f"the traffic{zeros}; check the drafter at temperature 0 on a prompt or two, and speculate no more till then"
    )


def _first_always(strata: Sequence[Stratum]) -> list[Warning]:
    """The first draft never fails, later ones do: accepted counts the target's own token, one in each round."""
    for stratum in strata:
        hazard, rounds = stratum.figures.get("hazard") or [], stratum.figures.get("rounds") or 0
        later = [value for value in hazard[1:] if value is not None]
        if rounds < ROUNDS_IN_A_ROW or not later or hazard[0] is None:
            continue
        if hazard[0] >= FIRST_ALWAYS and min(later) <= LATER_NOT:
            name = named(stratum.key)
            text = (
                f"the first draft is accepted in {'every' if hazard[0] >= 1 else 'nearly every'} round"
                f"{f' ({name})' if name else ''}, later ones are not: accepted seems to count the target's own token "
                "(bonus); write accepted without it, as emitted - 1 where nothing was cut, and ingest again"
            )
            evidence = {"hazard_1": hazard[0], "hazard_min_later": min(later), "rounds": rounds}
            return [Warning("bonus_counted", text, evidence)]
    return []
