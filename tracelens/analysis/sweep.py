"""`tracelens sweep`: every draft length K by class of traffic, as run, replayed or geometric; the best one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracelens.analysis.alarms.pooling import of_every_length
from tracelens.analysis.answers import Key, Rows, run_query
from tracelens.analysis.costs import Priced
from tracelens.analysis.figures import Row
from tracelens.analysis.results import NOTHING, Missing, Stratum, Value, Warning
from tracelens.analysis.session import ASKED, Question, Session, opened
from tracelens.analysis.sweep_costs import FITTED, PROPORTIONAL, CostModel, cost_model
from tracelens.analysis.sweep_entries import (
    Best,
    Candidate,
    Entries,
    SweepEntry,
    best,
    compared,
    entries,
    ran_too_little,
)
from tracelens.analysis.sweep_trace import Source, source, told
from tracelens.errors import InputError
from tracelens.lake import progress
from tracelens.lake.connection import aside

__all__ = ["DEFAULT_KS", "LONGEST_K", "SweepEntry", "SweepResult", "SweepStratum", "checked_ks", "sweep"]

DEFAULT_KS = (1, 2, 3, 5, 7)
LONGEST_K = 64
_K = "num_speculative_tokens"
#: What a record must hold one of to count into a figure.
_FIGURES = "rounds, plain_steps, drafted, accepted, emitted, draft_us, draft_ms_per_token, target_us, step_us," + (
    " tpot_us, decode_us, ttft_us"
)
_QUERIES = ("run_lengths", "replay_domain", "round_times")
#: Above this error of a round's time the line over K is said to miss what ran.
_MISSES = 0.05

_FEW = "the token time of K {ks} as run has no interval (fewer than two requests or windows, there or in the baseline)"

#: Figures of every K that ran, by stratum and K; the key None is all traffic.
Ran = dict[Key, dict[int, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class SweepStratum:
    """Every K of one class of traffic.

    `best_k` is the K with the least relative token time of those in `compared`, 0 for plain decoding; None where no K
    has one, and `why` says what is missing. `best_k_low` and `best_k_high` hold the best K in 95% of the bootstrap;
    None where no spread is known of some K compared.
    `trace_k`, `trace_rounds` and `trace_requests` tell what was replayed, None where nothing was. `baseline_ms` is the
    plain decode step of C, `baseline_basis` where it comes from.
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
    trace_requests: int | None
    baseline_ms: float | None
    baseline_basis: str | None
    notes: tuple[str, ...]

    @property
    def compared(self) -> dict[int, SweepEntry]:
        """The entry of each K among which the best was looked for, by K; off is compared beside them."""
        return compared(self.entries)

    @property
    def trace_note(self) -> str | None:
        """What was replayed, in words; one of the notes."""
        if self.trace_k is None or self.trace_rounds is None or self.trace_requests is None:
            return None
        return told(self.trace_k, self.trace_rounds, self.trace_requests)


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
    selection: Mapping[str, Any] = field(default_factory=dict)


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
    progress.expect(2 * ASKED)
    with opened(lake, replace(question, by=by)) as session:
        return sweep_of(session, lake, asked)


def sweep_of(session: Session, lake: Path, asked: Sequence[int] = DEFAULT_KS) -> SweepResult:
    """The same over a session whose strata are not by K; `lake` is opened again where several K ran."""
    question = session.question
    by = tuple(dict.fromkeys(question.by))
    claim = None if question.claim is None else question.claim.as_mapping()
    warnings, selection = of_every_length(session.warnings()), question.selection()
    nothing = next((w.text for w in warnings if w.code == NOTHING), None)
    if nothing is not None:
        return SweepResult(by, tuple(asked), (), _empty(nothing), (), warnings, claim, selection)
    answers = {name: run_query(session.con, name) for name in _QUERIES}
    ran = _one_k(session)
    if not ran:
        with aside(session.con):
            ran = _ran(lake, replace(question, by=by))
    missing = session.missing()
    total, *strata = (
        _stratum(session, key, stratum, answers, ran.get(key, {}), asked, missing)
        for key, stratum in _keyed(session).items()
    )
    return SweepResult(by, tuple(asked), tuple(strata), total, missing, warnings, claim, selection)


def _empty(why: str) -> SweepStratum:
    return SweepStratum({}, (), None, None, None, None, why, None, None, None, None, None, ())


def _one_k(session: Session) -> Ran | None:
    """The session's own figures where every record ran with one K; else None: each K must be asked apart.

    A run without K that only has plain rounds or times would count into the K of another.
    """
    row = session.con.execute(
        f"select min({_K}), max({_K}), bool_and({_K} is not null) from strata where coalesce({_FIGURES}) is not null"
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
        why=None if chosen.k is not None else _why(made, stratum.figures, missing),
        trace_k=None if origin.trace is None else origin.trace.k,
        trace_rounds=None if origin.trace is None else origin.trace.rounds,
        trace_requests=None if origin.trace is None else origin.trace.requests,
        baseline_ms=plain,
        baseline_basis=basis,
        notes=(*_notes(origin, model, made, chosen, priced=plain is not None), *_partly(stratum, priced, made)),
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


def _why(made: Sequence[Candidate], figures: Mapping[str, Any], missing: Sequence[Missing]) -> str:
    if not made:
        return "no K ran here, and none can be replayed: no round drafted a token"
    if figures.get("tau_committed") == 0:
        return "no token was committed (emitted is 0 throughout), so there is no time of a token"
    few = [str(c.entry.k) for c in made if ran_too_little(c.entry)]
    if few:
        return f"{_FEW.format(ks=', '.join(few))}, and such a K is not compared"
    if any(c.entry.relative_token_time is not None for c in made):
        return "only a K longer than any draft of the trace has a token time, and such a K is not compared"
    reasons = {name.strip(): m for m in missing for name in m.figure.split(",")}
    for name in ("relative_token_time", "speedup_tpot", "baseline_ms"):
        if name in reasons:
            return f"{reasons[name].because}; {reasons[name].switch_on}"
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


def _notes(
    origin: Source, model: CostModel | None, made: Sequence[Candidate], chosen: Best, *, priced: bool
) -> tuple[str, ...]:
    notes = list(origin.notes)
    entries = [c.entry for c in made]
    if origin.trace is not None and any(e.source == "replayed" for e in entries):
        notes.insert(0, told(origin.trace.k, origin.trace.rounds, origin.trace.requests))
        notes.append(
            "replayed: the requests commit the same tokens at any K; if the drafter gets worse along its draft, a"
            " shorter K is better in truth than shown"
        )
    if any(e.source == "geometric" for e in entries):
        notes.append("geometric: as if every draft token had the same chance token_accept_prob, which real drafts lack")
    if any(e.cost_basis == "claim" for e in entries):
        notes.append("cost: assumed from the claim, (1 + rho K) plain steps a round; nothing of it was measured")
    elif model is not None and priced:
        notes += model.notes
    notes += [*_missed(entries), *_too_little(entries), *_extrapolated(entries, chosen)]
    if chosen.unspread:
        ks = ", ".join(map(str, chosen.unspread))
        notes.append(f"no spread is known of the token time at K {ks}: the best K has no interval")
    return tuple(dict.fromkeys(notes))


def _missed(entries: Sequence[SweepEntry]) -> Iterator[str]:
    """Say where the line over K misses the runs that it was fitted on."""
    off = [e for e in entries if e.time_error is not None and not e.extrapolated and abs(e.time_error) > _MISSES]
    if off:
        ks = ", ".join(str(e.k) for e in off)
        yield (
            f"cost: the line over K is more than {_MISSES:.0%} off what ran at K {ks} (time error), so the time of a K"
            " that did not run may be as far off"
        )


def _too_little(entries: Sequence[SweepEntry]) -> Iterator[str]:
    """Say which K ran in so few requests that it cannot be taken as best by what they show."""
    few = [e.k for e in entries if ran_too_little(e)]
    taken = compared(entries)
    for ks, what in (
        ([k for k in few if k in taken], "what is told of it is compared in its place"),
        ([k for k in few if k not in taken], "it is not compared"),
    ):
        if ks:
            yield f"{_FEW.format(ks=', '.join(map(str, ks)))}: {what}"


def _extrapolated(entries: Sequence[SweepEntry], chosen: Best) -> Iterator[str]:
    """Say that an extrapolated K is never best, and which one is worth a run."""
    beyond = [e for e in entries if e.extrapolated]
    if beyond:
        yield "extrapolated: longer than the drafts that it is told from, so never taken as the best K"
    ran = {e.k for e in entries if e.source == "observed"}
    times = {e.k: e.relative_token_time for e in beyond if e.relative_token_time is not None and e.k not in ran}
    longer = min(times, key=lambda k: times[k], default=None)
    if longer is not None and chosen.relative_token_time is not None and times[longer] < chosen.relative_token_time:
        yield f"a longer draft may be better still: a run with K {longer} would tell"
