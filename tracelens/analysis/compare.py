"""`tracelens compare`: what moved between two runs, periods or builds, and whether it is more than chance."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracelens.analysis.absent import nothing_selected
from tracelens.analysis.answers import Key
from tracelens.analysis.compared import TWO_CONVENTIONS, Change, Compared, Comparison
from tracelens.analysis.contrasts import both_sides, contrasts, one_convention, paradoxes, told_apart
from tracelens.analysis.mixing import mixes
from tracelens.analysis.results import NOTHING, Missing, Value, Warning
from tracelens.analysis.session import Question, Session, opened
from tracelens.analysis.sides import Side, Word, condition, resolve
from tracelens.analysis.spreads import QUERIES, basis_of, shared_baseline, spreads
from tracelens.analysis.twins import stand_ins
from tracelens.errors import InputError
from tracelens.model.changes import Spread, difference, holm

#: Figures whose change is told, in the order printed.
CHANGES = (
    "draft_accept_ratio", "token_accept_prob", "tau_verified", "tau_committed", "rho", "rho_verify",
    "verify_inflation", "overhead", "round_cost", "relative_token_time", "tpot_ms", "speedup_observed",
    "near_k_round_share", "draft_ms", "target_ms", "step_ms",
)  # fmt: skip
_COUNTS = (
    "requests", "rounds", "plain_steps", "drafted", "output_tokens", "num_speculative_tokens",
    "num_speculative_tokens_min", "num_speculative_tokens_max", "mean_drafted", "n_eff", "grain", "baseline_ms",
    "baseline_basis", "baseline_tpot_ms", "baseline_tpot_basis", "tau_committed_basis", "draft_cost_basis",
    "profiled_times",
    "relative_token_time_basis", "speedup_observed_basis", "control_runs", "control_spread",
)  # fmt: skip
_SHARES = ("draft_accept_ratio", "token_accept_prob", "near_k_round_share")
_OVER_BASELINE = ("rho", "verify_inflation", "overhead", "round_cost", "relative_token_time")
# Times and times over a plain step of another run: one run may be slower than another without any cause in it.
_BY_CLOCK = ("rho", "verify_inflation", "round_cost", "relative_token_time", "tpot_ms", "speedup_observed", "draft_ms",
             "target_ms", "step_ms")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """A side that was answered: its session (the connection is closed) and what only the connection could tell."""

    side: Side
    session: Session
    warnings: tuple[Warning, ...]
    missing: tuple[Missing, ...]
    traffic: Mapping[str, frozenset[str]]


def compare(lake: Path, a: Word, b: Word, question: Question | None = None) -> Comparison:
    """Compare two selections of one lake, class by class and in total.

    Raises:
        InputError: no lake there; a word that names nothing, or two things; a side without a record that speculates;
            records that are on both sides; an unknown column or run, a `where` that is no expression over `facts`.
    """
    common = question or Question()
    before, after = resolve(lake, a, b)
    first, second = before.question(common), after.question(common)
    one, _ = _ask(lake, before, first, None, common)
    other, across = _ask(lake, after, second, (one, first), common)
    keys = _union(one.session, other.session)
    rows = stand_ins([_compared(one.session, other.session, key) for key in (*keys, None)], one.session, other.session)
    if one.traffic["run"] != other.traffic["run"]:
        rows = [_beside_noise(row) for row in rows]
    (*strata, total), tested, real = _tested(rows, common.level)
    moved = {} if total.change is None else {name: change.value for name, change in total.change.items()}
    mix = paradoxes(strata, total, mixes(one.session, other.session, moved))
    advice = one_convention(one.traffic, other.traffic, named=common.baseline is not None)
    told = (
        *both_sides(one.warnings, other.warnings, lambda w: w.text, lambda w, text: replace(w, text=text)),
        *told_apart(one.traffic, other.traffic, across),
        *contrasts(strata, total, mix, advice),
    )
    missing = both_sides(one.missing, other.missing, lambda m: m.because, lambda m, text: replace(m, because=text))
    by = tuple(dict.fromkeys(common.by))
    shown = _coverage(missing)
    return Comparison(
        by, before, after, common.level, tuple(strata), total, tested, real, mix, shown, told, common.selection()
    )


def _ask(
    lake: Path, side: Side, question: Question, before: tuple[_Asked, Question] | None, common: Question
) -> tuple[_Asked, int]:
    """Answer one side; with the side `before`, also how many requests run across the border of the two.

    `common` is the question of both sides, without what the side itself selects.

    Raises:
        InputError: nothing there speculates, or records of the side before are on this one too.
    """
    with opened(lake, question, QUERIES) as session:
        warnings = session.warnings()
        nothing = any(w.code == NOTHING for w in warnings)
        if nothing or not session.answers.one("alpha", None):
            told = nothing_selected(session.con, [side.text, *common.filters()], question.where) if nothing else []
            text = told[0].text if told else "no record there holds rounds or times of speculation."
            raise InputError(f"{side.name} ({side.text}): {text} {_way_out(session)}")
        rows = session.con.execute("select distinct run_id, engine, model, draft_model, method from strata").fetchall()
        names = ("run", "engine", "model", "draft_model", "method")
        traffic = {n: frozenset(str(row[i]) for row in rows if row[i] is not None) for i, n in enumerate(names)}
        asked = _Asked(side, session, warnings, session.missing(), traffic)
        return asked, 0 if before is None else _across(asked, *before)


def _way_out(session: Session) -> str:
    """What to ask instead of a side without speculation."""
    found = session.con.execute("select distinct run_id from selected where role = 'baseline' order by 1").fetchall()
    if not found:
        return "Both sides must hold traffic that speculates"
    run = shlex.quote(str(found[0][0])) if len(found) == 1 else "RUN"
    return (
        f"Both sides must speculate; what speculation gains over such a run is told by `tracelens report --baseline "
        f"{run}`, whether it pays by `tracelens gate --baseline {run}`"
    )


def _across(asked: _Asked, before: _Asked, question: Question) -> int:
    """Requests of which each side holds a part.

    Raises:
        InputError: the sides share whole records.
    """
    if not asked.traffic["run"] & before.traffic["run"]:
        return 0
    con, there = asked.session.con, condition(question)
    row = con.execute(f"select count(*) filter ({there}), count(*) from strata").fetchone()
    if row and row[0]:
        who = " and ".join(f"{side.name} ({side.text})" for side in (before.side, asked.side))
        records = "its only record" if row[1] == 1 else f"{row[0]:,} of the {row[1]:,} records of {asked.side.name}"
        raise InputError(
            f"{who} share {records}: a difference needs two samples "
            "that are apart; choose runs or periods that do not overlap (a date alone as the end of a period means the "
            "end of that day)"
        )
    parts = con.execute(
        "select count(*) from (select distinct run_id, unit from strata where request_id is not null) here"
        f" semi join (select run_id, unit from facts where request_id is not null and {there}) as there"
        " using (run_id, unit)"
    ).fetchone()
    return int(parts[0]) if parts else 0


def _coverage(missing: Sequence[Missing]) -> tuple[Missing, ...]:
    """What cannot be had, of the figures that a comparison tells."""
    figures = [[name for name in map(str.strip, m.figure.split(",")) if name in CHANGES] for m in missing]
    return tuple(replace(m, figure=", ".join(names)) for m, names in zip(missing, figures, strict=True) if names)


def _union(a: Session, b: Session) -> list[tuple[Value, ...]]:
    """Keys of the strata of either side, in order."""
    keys = {key for session in (a, b) for key in session.every_key() if key is not None}
    return sorted(keys, key=lambda key: [(v is None, isinstance(v, str), v if v is not None else 0) for v in key])


def _compared(a: Session, b: Session, key: Key) -> Compared:
    found = [session.stratum(key) if key in session.every_key() else None for session in (a, b)]
    shown = [None if s is None else {name: s.figures.get(name) for name in _names()} for s in found]
    names = next(s.key for s in found if s is not None)
    if found[0] is None or found[1] is None:
        return Compared(names, shown[0], shown[1], None)
    known = (spreads(a, key, found[0].figures), spreads(b, key, found[1].figures))
    shared = {tpot: shared_baseline(a, b, key, tpot=tpot) for tpot in (False, True)}
    change = {}
    for name in CHANGES:
        by_tpot = name == "speedup_observed" and found[0].figures.get("speedup_observed_basis") == "tpot"
        common = shared[by_tpot] if name in (*_OVER_BASELINE, "speedup_observed") else 0.0
        change[name] = _change(name, found[0].figures, found[1].figures, known, common, a.question.level)
    return Compared(names, shown[0], shown[1], change)


def _names() -> tuple[str, ...]:
    ends = ("", "_low", "_high")
    return (*_COUNTS, *(f"{name}{end}" for name in CHANGES for end in (ends if name != "overhead" else ("",))))


def _change(
    name: str,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    known: tuple[Mapping[str, Spread], Mapping[str, Spread]],
    shared: float,
    level: float,
) -> Change:
    before, after = a.get(name), b.get(name)
    if before is None or after is None:
        lacking = [side for side, value in (("A", before), ("B", after)) if value is None]
        return Change(because=f"not to be had on {' and '.join(lacking)}: see coverage")
    bases = (basis_of(a, name), basis_of(b, name))
    if bases[0] != bases[1]:
        return Change(because=f"{TWO_CONVENTIONS}: A {bases[0] or 'none'}, B {bases[1] or 'none'}")
    value, ratio = after - before, after / before if before else None
    if name == "verify_inflation" and a.get("baseline_basis") == "verify_pass":
        return Change(value, ratio=ratio, because="1 by construction: the baseline is the verify pass itself")
    one, other = (spread.get(name) for spread in known)
    found = None if one is None or other is None else difference(one, other, level, shared=shared)
    if found is None:
        unknown = [side for side, spread in zip("AB", (one, other), strict=True) if spread is None] or ["A", "B"]
        why = f"no spread between independent requests is known on {' and '.join(unknown)}, so no test"
        return Change(value, ratio=ratio, because=why)
    low, high = (max(found.low, -1.0), min(found.high, 1.0)) if name in _SHARES else (found.low, found.high)
    return Change(value, low, high, ratio, found.p_value)


def _beside_noise(row: Compared) -> Compared:
    """Say of every time whether it changed by more than runs without speculation differ among themselves."""
    spreads = [side.get("control_spread") for side in (row.a, row.b) if side is not None]
    known = [spread for spread in spreads if spread is not None]
    if row.change is None or not known:
        return row
    change = dict(row.change)
    # Over the own plain steps or verify pass the speed of the run cancels.
    bases = [str((side or {}).get("baseline_basis") or "value") for side in (row.a, row.b)]
    cancels = _OVER_BASELINE if any(b != "value" and not b.startswith("run_") for b in bases) else ()
    for name in (name for name in _BY_CLOCK if name not in cancels):
        ratio = change[name].ratio
        if ratio is not None and ratio > 0:
            change[name] = replace(change[name], within_noise=max(ratio, 1.0 / ratio) - 1.0 <= max(known))
    return replace(row, change=change)


def _tested(rows: Sequence[Compared], level: float) -> tuple[list[Compared], int, int]:
    """Correct all p-values at once; the rows with what is significant then, and how many were tested and are."""
    # One class that is all of the traffic is the total over again: its tests are the same tests.
    again = len(rows) == 2 and _alike(rows[0].change, rows[1].change)
    places = [
        (i, name)
        for i, row in enumerate(rows)
        for name, change in (row.change or {}).items()
        if change.p_value is not None and not (again and i == 0)
    ]
    changes = [dict(row.change or {}) for row in rows]
    adjusted = holm([changes[i][name].p_value or 0.0 for i, name in places])
    real = 0
    for (i, name), p in zip(places, adjusted.tolist(), strict=True):
        significant = bool(p < 1.0 - level)
        real += significant
        changes[i][name] = replace(changes[i][name], p_adjusted=p, significant=significant)
    if again:
        changes[0] = changes[1]
    found = [row if row.change is None else replace(row, change=changes[i]) for i, row in enumerate(rows)]
    return found, len(places), real


def _alike(one: Mapping[str, Change] | None, other: Mapping[str, Change] | None) -> bool:
    """Whether two rows show the same changes, but for the order in which their sums were taken."""
    if one is None or other is None:
        return False
    return all(
        (a is None) == (b is None) and (a is None or b is None or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12))
        for name, change in one.items()
        for a, b in zip(_numbers(change), _numbers(other[name]), strict=True)
    )


def _numbers(change: Change) -> tuple[float | None, ...]:
    return change.value, change.low, change.high, change.p_value
