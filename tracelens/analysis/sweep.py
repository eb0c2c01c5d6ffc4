"""`tracelens sweep`: every draft length K by class of traffic, as run, replayed or geometric; the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracelens.analysis.answers import Key, Rows, run_query
from tracelens.analysis.costs import Priced
from tracelens.analysis.figures import Row
from tracelens.analysis.results import Missing, Stratum, Value, Warning
from tracelens.analysis.session import Question, Session, opened
from tracelens.analysis.sweep_costs import FITTED, PROPORTIONAL, CostModel, cost_model
from tracelens.analysis.sweep_entries import Candidate, Entries, SweepEntry, best, entries
from tracelens.analysis.sweep_trace import Source, source
from tracelens.errors import InputError

__all__ = ["DEFAULT_KS", "LONGEST_K", "SweepEntry", "SweepResult", "SweepStratum", "checked_ks", "sweep"]

DEFAULT_KS = (1, 2, 3, 5, 7)
LONGEST_K = 64
_K = "num_speculative_tokens"
_QUERIES = ("run_lengths", "replay_domain", "round_times")

#: Figures of every K that ran, by stratum and K; the key None is all traffic.
Ran = dict[Key, dict[int, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class SweepStratum:
    """Every K of one class of traffic.

    `best_k` is the K with the least relative token time, 0 for plain decoding; None where no K has one, and `why` says
    what is missing. `best_k_low` and `best_k_high` hold the best K in 95% of the bootstrap. `trace_k` and
    `trace_rounds` tell what was replayed, None where nothing was. `baseline_ms` is the plain decode step of C,
    `baseline_basis` where it comes from.
    """

    key: Mapping[str, Value]
    entries: tuple[SweepEntry, ...]
    best_k: int | None
    best_k_low: int | None
    best_k_high: int | None
    best_relative_token_time: float | None
    why: str | None
    trace_k: int | None
    trace_rounds: int | None
    baseline_ms: float | None
    baseline_basis: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The answer of `tracelens sweep`."""

    by: tuple[str, ...]
    ks: tuple[int, ...]
    strata: tuple[SweepStratum, ...]
    total: SweepStratum
    coverage: tuple[Missing, ...]
    warnings: tuple[Warning, ...]
    claim: Mapping[str, Value] | None = None


def checked_ks(ks: Sequence[int]) -> tuple[int, ...]:
    """The draft lengths asked for, each once, in order.

    Raises:
        InputError: none, or one outside 1..64.
    """
    wrong = [k for k in ks if not 1 <= k <= LONGEST_K]
    if wrong or not ks:
        told = f"{', '.join(map(str, wrong))} is outside 1..{LONGEST_K}" if wrong else "no draft length is given"
        raise InputError(f"--k: {told}; write whole numbers such as {','.join(map(str, DEFAULT_KS))}")
    return tuple(sorted(set(ks)))


def sweep(lake: Path, question: Question | None = None, ks: Sequence[int] = DEFAULT_KS) -> SweepResult:
    """Compare draft lengths over one lake: `ks`, and those that ran.

    Raises:
        InputError: no lake there, an unknown column or run, a `where` that is no expression over `facts`, a K outside
            1..64, or strata by K itself.
    """
    question = question or Question()
    asked = checked_ks(ks)
    by = tuple(dict.fromkeys(question.by))
    if _K in by:
        raise InputError(f"sweep compares the K of a stratum, so strata cannot be by {_K}: leave it out of --by")
    with opened(lake, replace(question, by=by)) as session:
        answers = {name: run_query(session.con, name) for name in _QUERIES}
        ran = _one_k(session) or _ran(lake, session.question)
        missing = session.missing()
        total, *strata = (
            _stratum(session, key, stratum, answers, ran.get(key, {}), asked, missing)
            for key, stratum in _keyed(session).items()
        )
        claim = None if question.claim is None else question.claim.as_mapping()
        return SweepResult(by, asked, tuple(strata), total, missing, session.warnings(), claim)


def _one_k(session: Session) -> Ran | None:
    """The session's own figures where all that speculates ran with one K; else None: each K must be asked apart."""
    row = session.con.execute(
        f"select min({_K}), max({_K}), bool_and({_K} is not null) from strata where rounds > 0"
    ).fetchone()
    if row is None or row[0] != row[1] or not row[2] or row[0] < 1:
        return None
    return {
        key: {int(row[0]): stratum.figures} for key, stratum in _keyed(session).items() if stratum.figures.get("rounds")
    }


def _keyed(session: Session) -> dict[Key, Stratum]:
    """The total, then the strata in order, by key."""
    return {None: session.total} | {tuple(s.key.values()): s for s in session.strata}


def _ran(lake: Path, question: Question) -> Ran:
    found: Ran = {}
    for by in dict.fromkeys([question.by, ()]):
        with opened(lake, replace(question, by=(*by, _K))) as session:
            for stratum in session.strata:
                key: Key = tuple(value for name, value in stratum.key.items() if name != _K) if by else None
                k = stratum.key[_K]
                if isinstance(k, int) and k > 0 and stratum.figures.get("rounds"):
                    found.setdefault(key, {})[k] = stratum.figures
    return found


def _stratum(
    session: Session,
    key: Key,
    stratum: Stratum,
    answers: Mapping[str, Rows],
    ran: Mapping[int, Mapping[str, Any]],
    asked: Sequence[int],
    missing: Sequence[Missing],
) -> SweepStratum:
    priced = session.priced(key)
    rows: dict[str, list[Row]] = {name: list(answers[name].get(key, [])) for name in _QUERIES}
    origin = source(rows["run_lengths"], rows["replay_domain"])
    model = cost_model(rows["round_times"], stratum.figures, [ran[k] for k in sorted(ran)])
    plain, basis = _baseline(stratum, priced.baseline, priced.tpot, model, ran)
    made = entries(
        Entries(
            figures=stratum.figures,
            ran=ran,
            ks=tuple(sorted({*asked, *ran})),
            trace=origin.trace,
            model=model,
            baseline_ms=plain,
            claim=session.question.claim,
            level=session.question.level,
        )
    )
    chosen = best(made, session.question.level)
    return SweepStratum(
        key=stratum.key,
        entries=tuple(c.entry for c in made),
        best_k=chosen.k,
        best_k_low=chosen.low,
        best_k_high=chosen.high,
        best_relative_token_time=chosen.relative_token_time,
        why=None if chosen.k is not None else _why(made, missing),
        trace_k=None if origin.trace is None else origin.trace.k,
        trace_rounds=None if origin.trace is None else origin.trace.rounds,
        baseline_ms=plain,
        baseline_basis=basis,
        notes=(*_notes(origin, model, made, priced=plain is not None), *_partly(stratum, priced, made)),
    )


def _baseline(
    stratum: Stratum,
    step: float | None,
    tpot: float | None,
    model: CostModel | None,
    ran: Mapping[int, Mapping[str, Any]],
) -> tuple[float | None, str | None]:
    """The plain step that C is over: TPOT without speculation where only TPOT tells of a round."""
    by_tpot = model.unit == "tpot" if model is not None else not any(f.get("relative_token_time") for f in ran.values())
    if by_tpot:
        return tpot, None if tpot is None else f"tpot_{stratum.figures.get('baseline_tpot_basis')}"
    return step, None if step is None else stratum.figures.get("baseline_basis")


def _why(made: Sequence[Candidate], missing: Sequence[Missing]) -> str:
    if not made:
        return "no K ran here, and none can be replayed: no round drafted a token"
    told = {name.strip(): m for m in missing for name in m.figure.split(",")}
    for name in ("relative_token_time", "speedup_tpot", "baseline_ms"):
        if name in told:
            return f"{told[name].because}; {told[name].switch_on}"
    return "no relative token time for any K: times of a round, or what one takes without speculation, are not logged"


def _partly(stratum: Stratum, priced: Priced, made: Sequence[Candidate]) -> tuple[str, ...]:
    """Say where only a part of the rounds has times and a baseline: what ran is told over that part alone."""
    part, whole = priced.alpha.get("rounds"), stratum.figures.get("rounds")
    timed = any(c.entry.source != "observed" and c.entry.cost_basis in (FITTED, PROPORTIONAL) for c in made)
    if not timed or not part or not whole or part >= whole:
        return ()
    return (
        f"{part / whole:.0%} of the rounds have times and a baseline: the token time of a K that did not run joins"
        " their times with the acceptance of all; group by engine, model or run_id to keep them apart",
    )


def _notes(origin: Source, model: CostModel | None, made: Sequence[Candidate], *, priced: bool) -> tuple[str, ...]:
    notes = list(origin.notes)
    entries = [c.entry for c in made]
    if origin.trace is not None and any(e.source == "replayed" for e in entries):
        notes.append(
            f"replayed from the rounds at K {origin.trace.k}: their requests commit the same tokens at any K; a shorter"
            " K is told too low of a drafter that gets worse along its draft"
        )
    if any(e.source == "geometric" for e in entries):
        notes.append("geometric: as if every draft token had the same chance token_accept_prob, which real drafts lack")
    if any(e.cost_basis == "claim" for e in entries):
        notes.append("cost: assumed from the claim, (1 + rho K) plain steps a round; nothing of it was measured")
    elif model is not None and priced:
        notes += model.notes
    if any(e.extrapolated for e in entries):
        notes.append("extrapolated: longer than any draft of the trace")
    return tuple(dict.fromkeys(notes))
