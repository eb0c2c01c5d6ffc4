"""What to say instead of figures: nothing selected, nothing that speculates, times that belong to no class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.results import NOTHING, Stratum, Value, Warning

if TYPE_CHECKING:
    import duckdb

# Any of them is what a class did; without all of them a stratum holds step times at most.
_DONE = ("accepted", "drafted", "plain_steps", "emitted", "tpot_ms")
_SHOWN_RUNS = 5


def nothing_selected(con: duckdb.DuckDBPyConnection) -> list[Warning]:
    """Say in one sentence what there is where no row speculates: the baseline's own figures, or the lake's span."""
    rows = con.execute("select count(*), count(*) filter (role = 'baseline') from selected").fetchone() or (0, 0)
    if rows[0]:
        if not rows[1]:
            return []
        text = "Nothing to compare: only runs without speculation are selected"
        runs = _plain_runs(con)
        return [Warning(NOTHING, f"{text} ({'; '.join(runs)})." if runs else f"{text}.", {"rows": rows[0]})]
    span = con.execute("select min(ts), max(ts), count(distinct run_id), count(*) from facts").fetchone()
    if not span or not span[3]:
        return [Warning(NOTHING, "Nothing to report: the lake holds no records.")]
    where = f" from {span[0]:%Y-%m-%d %H:%M} to {span[1]:%Y-%m-%d %H:%M} UTC" if span[0] else " without a date"
    text = (
        "Nothing to report: no record meets --where, --since, --until and --run; "
        f"the lake holds {span[2]} run{'' if span[2] == 1 else 's'} with records{where}."
    )
    return [Warning(NOTHING, text)]


def _plain_runs(con: duckdb.DuckDBPyConnection) -> list[str]:
    found = con.execute(
        "select run_id, sum(weight * coalesce(decode_ms, tpot_ms * (output_tokens - 1), tpot_ms)) filter (tokens > 0)"
        " / nullif(sum(weight * tokens), 0), sum(weight * step_ms) / nullif(sum(weight * stepped), 0)"
        " from (select *, case when coalesce(decode_ms, tpot_ms) is not null and not coalesce(error, false)"
        " then coalesce(nullif(output_tokens - 1, 0), case when tpot_ms is not null then 1 end) end as tokens,"
        " case when step_ms is not null then time_rounds end as stepped"
        " from selected where role = 'baseline' and not coalesce(has_prefill, false)) group by run_id order by run_id"
    ).fetchall()
    told = []
    for run, tpot, step in found[:_SHOWN_RUNS]:
        parts = [f"{name} {value:.1f} ms" for name, value in (("TPOT", tpot), ("step", step)) if value is not None]
        told.append(f"{run}: {', '.join(parts) or 'no times'}")
    return [*told, "…"] if len(found) > _SHOWN_RUNS else told


def without_class(strata: Sequence[Stratum]) -> tuple[Stratum, ...]:
    """The strata that hold step times alone and lack a part of their key which others with counts have."""
    done = [s for s in strata if any(s.figures.get(name) is not None for name in _DONE)]
    return tuple(s for s in strata if s not in done and any(_covers(s, other) for other in done))


def _covers(stratum: Stratum, other: Stratum) -> bool:
    unknown = [name for name, value in stratum.key.items() if value is None]
    same = all(other.key[name] == value for name, value in stratum.key.items() if value is not None)
    return same and any(other.key[name] is not None for name in unknown)


def times_without_class(hidden: Sequence[Stratum]) -> list[Warning]:
    """Say where the times of these strata went."""
    if not hidden:
        return []
    names = ", ".join(dict.fromkeys(n for s in hidden for n, value in s.key.items() if value is None))
    step = hidden[0].figures.get("step_ms")
    evidence: dict[str, Value] = {} if step is None or len(hidden) > 1 else {"step_ms": step}
    text = f"step times carry no {names}: they count in the total only, and no class has a row of its own for them"
    return [Warning("times_without_class", text, evidence)]
