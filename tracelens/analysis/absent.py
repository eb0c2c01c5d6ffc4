"""What to say instead of figures: nothing selected, nothing that speculates, times that belong to no class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.matching import label_names
from tracelens.analysis.results import BUCKETS, NOTHING, Stratum, Value, Warning
from tracelens.analysis.selection import label_keys
from tracelens.analysis.similar import did_you_mean
from tracelens.wording import many

if TYPE_CHECKING:
    import duckdb

# Any of them is what a class did; without all of them a stratum holds step times at most.
_DONE = ("accepted", "drafted", "plain_steps", "emitted", "tpot_ms")
_COUNTS = ("accepted", "drafted", "plain_steps", "emitted")
_STEP_TIMES = ("draft_ms", "target_ms", "step_ms", "draft_ms_per_token")
_SHOWN_RUNS = 5


def nothing_selected(con: duckdb.DuckDBPyConnection, given: Sequence[str], where: str | None = None) -> list[Warning]:
    """Say in one sentence what there is where no row speculates: the baseline's own figures, or the lake's span.

    Args:
        con: a connection with the view `selected`.
        given: the filters that made the selection, as the user knows them.
        where: the expression among them, where there is one.
    """
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
    times = f" from {span[0]:%Y-%m-%d %H:%M} to {span[1]:%Y-%m-%d %H:%M} UTC" if span[0] else " without a date"
    filters = f"{', '.join(given[:-1])} and {given[-1]}" if len(given) > 1 else "".join(given) or "the selection"
    text = f"Nothing to report: no record meets {filters}; the lake holds {many(span[2], 'run')} with records{times}."
    return [Warning(NOTHING, text + _unknown_labels(con, where))]


def _unknown_labels(con: duckdb.DuckDBPyConnection, where: str | None) -> str:
    """Labels that a filter asks for and that no record has: they are NULL everywhere, which is no error in SQL."""
    asked = set() if where is None else label_names(con, where)
    known = label_keys(con, "facts") if asked else set()
    unknown = sorted(asked - known)
    if not unknown:
        return ""
    there = f"label keys: {', '.join(sorted(known)[:50])}" if known else "no record has a label"
    return f" No label is called {', '.join(unknown)}: {did_you_mean(unknown, known)}{there}."


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
    """The strata that are no class of traffic: times alone, without a part of their key that others with counts have.

    Step times may lack any part. A TPOT is of whole requests, which run through many steps: without a batch or context
    bucket it is that of all of them together, and stays where any other part is what it lacks.
    """
    done = [s for s in strata if _has(s, _DONE)]
    counted = [s for s in done if _has(s, _COUNTS)]
    return tuple(
        s
        for s in strata
        if (not _has(s, _DONE) and any(_covers(s, other) for other in done))
        or (not _has(s, _COUNTS) and _of_whole_requests(s) and any(_covers(s, other) for other in counted))
    )


def _has(stratum: Stratum, names: Sequence[str]) -> bool:
    return any(stratum.figures.get(name) is not None for name in names)


def has_step_times(hidden: Sequence[Stratum]) -> bool:
    """Whether step times are among what was hidden: then no class has them."""
    return any(_has(s, _STEP_TIMES) for s in hidden)


def _of_whole_requests(stratum: Stratum) -> bool:
    unknown = [name for name, value in stratum.key.items() if value is None]
    return bool(unknown) and set(unknown) <= set(BUCKETS)


def _covers(stratum: Stratum, other: Stratum) -> bool:
    unknown = [name for name, value in stratum.key.items() if value is None]
    same = all(other.key[name] == value for name, value in stratum.key.items() if value is not None)
    return same and any(other.key[name] is not None for name in unknown)


_OF_STEPS = "step times carry no {names}: they count in the total only, and no class has a row of its own for them"
_OF_REQUESTS = "a TPOT is of a whole request and carries no {names}: it counts in the total only (for that of a class "
_OF_REQUESTS += "leave {names} out of --by)"


def times_without_class(hidden: Sequence[Stratum]) -> list[Warning]:
    """Say where the times of these strata went."""
    told = []
    requests = [s for s in hidden if _has(s, ("tpot_ms",))]
    for strata, text in (([s for s in hidden if not _has(s, ("tpot_ms",))], _OF_STEPS), (requests, _OF_REQUESTS)):
        names = ", ".join(dict.fromkeys(n for s in strata for n, value in s.key.items() if value is None))
        step = strata[0].figures.get("step_ms") if len(strata) == 1 else None
        evidence: dict[str, Value] = {} if step is None else {"step_ms": step}
        told += [Warning("times_without_class", text.format(names=names), evidence)] * bool(strata)
    return told
