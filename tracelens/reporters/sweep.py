"""A sweep as a sheet, as JSON and as rows: the best K of every class first, then what each K gives and takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from tracelens.analysis.results import NOTHING
from tracelens.analysis.sweep import SweepEntry, SweepResult, SweepStratum
from tracelens.analysis.sweep_trace import ENOUGH_ROUNDS, FEW_ROUNDS
from tracelens.reporters import format as fmt
from tracelens.reporters import selected
from tracelens.reporters.json_ import SCHEMA_VERSION
from tracelens.reporters.sheet import Bullets, Cell, Grid, Sheet, View, endnotes, name_of
from tracelens.wording import many

_NAMED = 12  # classes that the lead speaks of; the tables have all
_REMARKS = 20
_DRAWN = 200  # classes in the tables: nobody reads more, and a terminal takes seconds to draw them
_ENTRY = tuple(field.name for field in fields(SweepEntry))
_OWN = (
    "best_k", "best_k_low", "best_k_high", "best_relative_token_time", "why", "trace_k", "trace_rounds",
    "trace_requests", "baseline_ms", "baseline_basis",
)  # fmt: skip
_TIMES = ("draft_ms", "target_ms", "rest_ms", "round_ms", "tpot_ms")
_BASES = {
    "value": "the value given", "run_step": "mean step of a run without speculation",
    "run_tpot": "TPOT of a run without speculation", "verify_extrapolated": "verify time extended to no draft",
    "plain_steps": "steps without a draft of the speculating engine", "verify_pass": "the verify pass itself",
    "mixed": "several sources", "tpot_value": "the value given, against TPOT",
    "tpot_run_tpot": "its TPOT, compared with TPOT",
}  # fmt: skip
_GIVES = (
    "K rows: observed = runs with that K; replayed = the trace's accepted prefixes walked again with that K; "
    "extrapolated = replayed with a K longer than the drafts of the trace (those of one request alone do not count); "
    "geometric = E(p, K) of token_accept_prob, geometric* = with a K longer than any that ran; extrapolated and "
    "geometric* are never taken as best, nor is a K as run without an interval; "
    "off = plain decoding, 1 by definition",
    "τ verified = 1 + accepted / rounds with a draft, the target's own token included",
    "τ committed = tokens committed / all rounds, plain ones included",
    "token time C = round time / τ committed / plain decode step; below 1 speculation pays",
    "intervals: {level}, by request; of a replayed K they hold acceptance and the spread of round cost and baseline, "
    "not the error of the replay or of the fit over K",
    "τ error = replayed / observed τ verified − 1",
)
_TAKES = (
    "draft, verify: means of rounds with a draft (observed: of all rounds), in ms; round: mean of all rounds",
    "cost: observed = as it ran; fitted = a line over the draft length; proportional = draft time grows with K and "
    "verify time does not; claim = assumed",
    "TPOT: observed, or token time by steps and what TPOT had beyond the steps in the run of the trace",
    "time error = replayed / observed time of a round − 1, of the token time where no whole round was timed",
)
_HOW = {"observed": "as run", "replayed": "replayed", "geometric": "by the geometric law"}


def _sheet(result: SweepResult) -> Sheet:
    nothing = next((w.text for w in result.warnings if w.code == NOTHING), "")
    if nothing:
        return Sheet((nothing,), selected=selected.line(result.selection))
    drawn = _drawn(result)
    lead = [_sentence(result.total, _whole(result), first=True)]
    if len(drawn) > 1:
        lead += [_sentence(s, _name(s)) for s in result.strata[:_NAMED]]
        if len(result.strata) > _NAMED:
            lead.append(f"{len(result.strata) - _NAMED} more classes: {_where(len(result.strata))}.")
    grids = tuple(grid for grid in (_gives(result, drawn), _takes(result, drawn)) if grid.rows)
    ends = (*_remarks(drawn), *endnotes(result.warnings, result.coverage))
    return Sheet(tuple(lead), grids, ends, selected.line(result.selection))


def _alone(result: SweepResult) -> bool:
    """Whether one class is all traffic: where step times carry no class, the total has what the class has not."""
    return len(result.strata) == 1 and all(w.code != "times_without_class" for w in result.warnings)


def _drawn(result: SweepResult) -> tuple[SweepStratum, ...]:
    """What the sheet shows: the classes and the total, one class alone once; of very many those with most rounds."""
    if _alone(result):
        return result.strata
    if len(result.strata) <= _DRAWN:
        return _all(result)
    by_rounds = sorted(range(len(result.strata)), key=lambda i: -_most_rounds(result.strata[i]))
    return (*(result.strata[i] for i in sorted(by_rounds[:_DRAWN])), result.total)


def _most_rounds(stratum: SweepStratum) -> float:
    return max((e.rounds or 0 for e in stratum.entries), default=0)


def _where(classes: int) -> str:
    if classes <= _DRAWN:
        return "see the table"
    return f"the table has the {_DRAWN} with most rounds, --format csv and json have all"


def _whole(result: SweepResult) -> str:
    name = _name(result.total)
    return f"{name} ({_name(result.strata[0])} alone)" if _alone(result) else name


def _sentence(stratum: SweepStratum, name: str, *, first: bool = False) -> str:
    """The answer for one class: the best K, its token time, and the K that ran most."""
    if stratum.best_k is None:
        why = (stratum.why or "").rstrip(".")
        return f"{name}: best K not to be told: {why}."
    them = stratum.compared
    unit = " of plain decoding" if first else ""
    if len(them) == 1:
        return f"{name}: {_against_off(stratum, next(iter(them.values())), unit)}."
    low, high = stratum.best_k_low, stratum.best_k_high
    # Off is always compared, and is the shortest.
    unsure = low == 0 and high == max(them)
    found = f" [{low}–{high}]" if low is not None and not unsure else ""
    near = them.get(stratum.best_k) or min(them.values(), key=lambda e: e.relative_token_time or 0.0)
    time = f"token time {_time(near)}{unit} ({_how(near)})"
    if stratum.best_k == 0:
        plain = "off (plain decoding)" if unsure else f"best is off (plain decoding), K 0{found}"
        text = f"{plain}; K {near.k} comes nearest, {time}"
    else:
        text = f"{'' if unsure else 'best '}K {stratum.best_k}{found}, {time}"
    if unsure:
        text = f"best K cannot be told (0 to {high}); the estimate is {text}"
    ran = [e for e in them.values() if e.source == "observed"]
    most = max(ran, key=lambda e: e.rounds or 0, default=None)
    if most is not None and most.k not in (stratum.best_k, near.k):
        how = "tokens as run" if most.cost_basis == "claim" else "as run"
        text += f"; the K that most rounds ran with, K {most.k}: {_time(most)} ({how})"
    return f"{name}: {text}."


def _against_off(stratum: SweepStratum, only: SweepEntry, unit: str) -> str:
    """One K alone has a token time: it is compared with off, and no best K is looked for."""
    better = "off" if stratum.best_k == 0 else f"K {only.k}"
    if stratum.best_k_low is None:
        told = f"the estimate, which has no interval, is for {better}"
    elif stratum.best_k_low != stratum.best_k_high:
        told = f"which is better cannot be told; the estimate is for {better}"
    else:
        told = f"{better} is better"
    return (
        f"only K {only.k} and off (plain decoding) can be compared: token time {_time(only)}{unit} ({_how(only)}); "
        f"{told}"
    )


def _how(entry: SweepEntry) -> str:
    """Where a token time comes from: of a claim, only the tokens ran or were replayed."""
    how = _HOW[entry.source]
    return f"tokens {how}, costs assumed from the claim" if entry.cost_basis == "claim" else how


def _time(entry: SweepEntry) -> str:
    bound = "at least " if entry.relative_token_time_basis == "lower_bound" else ""
    return bound + fmt.ratio(entry.relative_token_time)


def _source(entry: SweepEntry) -> str:
    if entry.extrapolated:
        return "extrapolated" if entry.source == "replayed" else f"{entry.source}*"
    return entry.source


def _name(stratum: SweepStratum) -> str:
    name = name_of(stratum.key)
    return name[0].upper() + name[1:] if not stratum.key else name


def _gives(result: SweepResult, drawn: Sequence[SweepStratum]) -> Grid:
    columns: tuple[Callable[[SweepEntry, bool], Cell], ...] = (
        lambda e, best: _figure(e, "tau_verified", fmt.tokens),
        lambda e, best: Cell(fmt.tokens(e.tau_committed)),
        lambda e, best: _figure(e, "relative_token_time", fmt.ratio, "green" if best else ""),
        lambda e, best: Cell(_error(e.replay_error)),
    )
    heads = (
        _head(result),
        "τ verified  [95 %]\ntokens / round",
        "τ committed",
        "token time C\n/ plain  [95 %]",
        "τ error",
    )
    rows, sections = _rows_of(drawn, columns, off=(2, Cell("1.000")))
    bases = dict.fromkeys(s.baseline_basis for s in drawn if s.baseline_basis)
    told = "; ".join(_BASES.get(basis, basis) for basis in bases)
    notes = (*_GIVES, f"plain decode step: {told}") if told else _GIVES
    return Grid("What each K gives", heads, rows, 1, sections, tuple(n.format(level="95 %") for n in notes))


def _takes(result: SweepResult, drawn: Sequence[SweepStratum]) -> Grid:
    if not any(e.round_ms is not None or e.tpot_ms is not None for s in drawn for e in s.entries):
        return Grid("", (), ())
    columns: list[Callable[[SweepEntry, bool], Cell]] = [_time_of(name) for name in _TIMES]
    columns += [lambda e, best: Cell(e.cost_basis or fmt.DASH), lambda e, best: Cell(_error(e.time_error))]
    heads = (_head(result), "draft\nms", "verify\nms", "rest\nms", "round\nms", "TPOT\nms", "cost", "time\nerror")
    rows, sections = _rows_of(drawn, columns)
    return Grid("What a round of each K takes", heads, rows, 1, sections, _TAKES)


def _error(value: float | None) -> str:
    if value is None:
        return ""
    text = f"{100 * abs(value):.1f} %"
    return text if text == "0.0 %" else f"{'−' if value < 0 else '+'}{text}"


def _time_of(name: str) -> Callable[[SweepEntry, bool], Cell]:
    return lambda e, best: Cell(fmt.number_ms(getattr(e, name)))


def _head(result: SweepResult) -> str:
    return " / ".join([*map(fmt.label, result.by), "K"])


def _rows_of(
    drawn: Sequence[SweepStratum],
    columns: Sequence[Callable[[SweepEntry, bool], Cell]],
    off: tuple[int, Cell] | None = None,
) -> tuple[tuple[tuple[Cell, ...], ...], frozenset[int]]:
    """One section a class: its name, K 0 in the column that `off` names, then every K."""
    rows: list[tuple[Cell, ...]] = []
    sections = set()
    for stratum in drawn:
        if not stratum.entries:
            continue
        sections.add(len(rows))
        name = " / ".join(fmt.label(v, 40, c) for c, v in stratum.key.items()) or "all"
        rows.append((Cell(name, style="bold"), *(Cell("") for _ in columns)))
        if off is not None and stratum.best_k is not None:
            place, cell = off
            cells = [Cell("") for _ in columns]
            cells[place] = Cell(cell.text, style="green" if stratum.best_k == 0 else "")
            rows.append((Cell("  0 off"), *cells))
        chosen = _best_entry(stratum)
        for entry in _shown(stratum):
            rows.append(
                (Cell(f"  {entry.k} {_source(entry)}"), *(column(entry, entry is chosen) for column in columns))
            )
    return tuple(rows), frozenset(sections - {0})


def _shown(stratum: SweepStratum) -> Iterator[SweepEntry]:
    """All entries but the trace walked with its own K where that ran: it says the same again."""
    ran = {e.k for e in stratum.entries if e.source == "observed"}
    for entry in stratum.entries:
        own = entry.source == "replayed" and entry.k == stratum.trace_k and entry.k in ran
        if not own or entry is stratum.compared.get(entry.k):
            yield entry


def _best_entry(stratum: SweepStratum) -> SweepEntry | None:
    return None if stratum.best_k is None else stratum.compared.get(stratum.best_k)


def _figure(entry: SweepEntry, name: str, show: Callable[[Any], str], style: str = "") -> Cell:
    low, high = getattr(entry, f"{name}_low"), getattr(entry, f"{name}_high")
    return Cell(show(getattr(entry, name)), fmt.interval(low, high, fmt.tokens), style)


def _all(result: SweepResult) -> tuple[SweepStratum, ...]:
    return (*result.strata, result.total)


def _remarks(drawn: Sequence[SweepStratum]) -> tuple[Bullets, ...]:
    """Notes of the classes, each once, with the classes it is about where it is not about all."""
    about: dict[str, list[str]] = {}
    for stratum in drawn:
        # What was replayed differs from class to class, and has a line of its own.
        for note in stratum.notes:
            if note != stratum.trace_note:
                about.setdefault(note, []).append(_name(stratum))
    # What is about most classes goes first, so that only notes on few of them are cut.
    widest = sorted(about.items(), key=lambda item: -len(item[1]))
    items = [_remark(note, names, len(drawn)) for note, names in widest]
    if len(items) > _REMARKS:
        items[_REMARKS:] = [f"{len(items) - _REMARKS} more notes on few classes: see --format json"]
    items = [*_traces(drawn), *items]
    return (Bullets("How it was found", tuple(items), folded=True),) if items else ()


def _traces(drawn: Sequence[SweepStratum]) -> Iterator[str]:
    """What was replayed, in one line; all traffic first."""
    told = [s for s in drawn if s.trace_note in s.notes]
    if len(drawn) == 1:
        yield from (s.trace_note or "" for s in told)
    elif told:
        parts = [
            f"{_name(s)} K {s.trace_k} ({many(s.trace_rounds or 0, 'round')} of "
            f"{many(s.trace_requests or 0, 'request')})"
            for s in sorted(told, key=lambda s: bool(s.key))
        ]
        parts[_NAMED:] = (
            [f"{many(len(parts) - _NAMED, 'more class', 'more classes')}: see --format json"]
            if len(parts) > _NAMED
            else []
        )
        short = any((s.trace_rounds or 0) < FEW_ROUNDS for s in told)
        yield (
            f"replayed from the longest K that has {ENOUGH_ROUNDS} rounds of several requests, else the longest: "
            f"{', '.join(parts)}"
            f"{f'; below {FEW_ROUNDS} rounds a trace is short, see the intervals' if short else ''}"
        )


def _remark(note: str, names: Sequence[str], every: int) -> str:
    if len(names) == every:
        return note
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}: {note}"


def _document(result: SweepResult) -> Mapping[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "by": list(result.by),
        "k": list(result.ks),
        "claim": None if result.claim is None else dict(result.claim),
        "selection": dict(result.selection),
        "strata": [_stratum_document(s) for s in result.strata],
        "total": _stratum_document(result.total),
        "coverage": [asdict(m) for m in result.coverage],
        "warnings": [{"code": w.code, "text": w.text, "evidence": dict(w.evidence)} for w in result.warnings],
    }


def _stratum_document(stratum: SweepStratum) -> dict[str, Any]:
    ks = [{name: getattr(entry, name) for name in _ENTRY} for entry in stratum.entries]
    own = {name: getattr(stratum, name) for name in _OWN}
    return {"key": dict(stratum.key), "ks": ks, **own, "notes": list(stratum.notes)}


VIEW: View[SweepResult] = View(_sheet, _document)
