"""A sweep as a sheet, as JSON and as rows: the best K of every class first, then what each K gives and takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from tracelens.analysis.sweep import SweepEntry, SweepResult, SweepStratum
from tracelens.reporters import format as fmt
from tracelens.reporters.json_ import SCHEMA_VERSION
from tracelens.reporters.rows import unique
from tracelens.reporters.sheet import Bullets, Cell, Grid, Sheet, View, endnotes, name_of

_NAMED = 12  # classes that the lead speaks of; the tables have all
_ENTRY = tuple(field.name for field in fields(SweepEntry))
_OWN = (
    "best_k", "best_k_low", "best_k_high", "best_relative_token_time", "why", "trace_k", "trace_rounds", "baseline_ms",
    "baseline_basis",
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
    "extrapolated = replayed with a K longer than any draft of the trace; geometric = E(p, K) of token_accept_prob; "
    "off = plain decoding, 1 by definition",
    "τ verified = 1 + accepted / rounds with a draft, the target's own token included",
    "τ committed = tokens committed / all rounds, plain ones included",
    "token time C = round time / τ committed / plain decode step; below 1 speculation pays",
    "intervals: {level}, by request; of a replayed K they hold acceptance and the spread of round cost and baseline, "
    "not the error of the replay or of the fit over K",
    "error = replayed / observed τ verified − 1",
)
_TAKES = (
    "draft, verify: means of rounds with a draft (observed: of all rounds), in ms; round: mean of all rounds",
    "cost: observed = as it ran; fitted = a line over the draft length; proportional = draft time grows with K and "
    "verify time does not; claim = assumed",
    "TPOT: observed, or token time by steps and what TPOT had beyond the steps in the run of the trace",
)


def _sheet(result: SweepResult) -> Sheet:
    shown = result.strata[:_NAMED]
    lead = [_sentence(result.total, first=True), *(_sentence(s) for s in shown)]
    if len(result.strata) > _NAMED:
        lead.append(f"{len(result.strata) - _NAMED} more classes: see the table.")
    grids = tuple(grid for grid in (_gives(result), _takes(result)) if grid.rows)
    return Sheet(tuple(lead), grids, (*_remarks(result), *endnotes(result.warnings, result.coverage)))


def _sentence(stratum: SweepStratum, *, first: bool = False) -> str:
    """The answer for one class: the best K, its token time, and the K that ran most."""
    name = _name(stratum)
    ran = [e for e in stratum.entries if e.source == "observed" and e.relative_token_time is not None]
    if stratum.best_k is None:
        return f"{name}: best K not to be told: {stratum.why}."
    told_k: int | None = None
    assumed = any(e.cost_basis == "claim" for e in stratum.entries)
    unit = " of plain decoding" if first else ""
    found = f"[{stratum.best_k_low}–{stratum.best_k_high}]" if stratum.best_k_low is not None else ""
    if stratum.best_k == 0:
        near = min(
            (e for e in stratum.entries if e.relative_token_time is not None),
            key=lambda e: e.relative_token_time or 0.0,
        )
        told_k = near.k
        where = f"{near.source} K {near.k}"
        text = f"best off (K 0) {found}".rstrip() + f"; {where} comes nearest, token time {_time(near)}{unit}"
    else:
        best = next(e for e in stratum.entries if e.k == stratum.best_k and e.relative_token_time is not None)
        how = "as run" if best.source == "observed" else _source(best)
        text = f"best K {stratum.best_k} {found}".rstrip() + f", token time {_time(best)}{unit} ({how})"
    most = max(ran, key=lambda e: e.rounds or 0, default=None)
    other = "" if most is None or most.k in (stratum.best_k, told_k) else f"; K {most.k} as run: {_time(most)}"
    return f"{name}: {text}{other}{'; costs assumed from the claim' if assumed else ''}."


def _time(entry: SweepEntry) -> str:
    bound = "at least " if entry.relative_token_time_basis == "lower_bound" else ""
    return bound + fmt.ratio(entry.relative_token_time)


def _source(entry: SweepEntry) -> str:
    return "extrapolated" if entry.extrapolated and entry.source == "replayed" else entry.source


def _name(stratum: SweepStratum) -> str:
    name = name_of(stratum.key)
    return name[0].upper() + name[1:] if not stratum.key else name


def _gives(result: SweepResult) -> Grid:
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
        "error",
    )
    rows, sections = _rows_of(result, columns, off=(2, Cell("1.000")))
    bases = dict.fromkeys(s.baseline_basis for s in (*result.strata, result.total) if s.baseline_basis)
    told = "; ".join(_BASES.get(basis, basis) for basis in bases)
    notes = (*_GIVES, f"plain decode step: {told}") if told else _GIVES
    return Grid("What each K gives", heads, rows, 1, sections, tuple(n.format(level="95 %") for n in notes))


def _takes(result: SweepResult) -> Grid:
    if not any(e.round_ms is not None or e.tpot_ms is not None for s in _all(result) for e in s.entries):
        return Grid("", (), ())
    columns: list[Callable[[SweepEntry, bool], Cell]] = [_time_of(name) for name in _TIMES]
    columns.append(lambda e, best: Cell(e.cost_basis or fmt.DASH))
    heads = (_head(result), "draft\nms", "verify\nms", "rest\nms", "round\nms", "TPOT\nms", "cost")
    rows, sections = _rows_of(result, columns)
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
    result: SweepResult,
    columns: Sequence[Callable[[SweepEntry, bool], Cell]],
    off: tuple[int, Cell] | None = None,
) -> tuple[tuple[tuple[Cell, ...], ...], frozenset[int]]:
    """One section a class: its name, K 0 in the column that `off` names, then every K."""
    rows: list[tuple[Cell, ...]] = []
    sections = set()
    for stratum in _all(result):
        if not stratum.entries:
            continue
        sections.add(len(rows))
        name = " / ".join(fmt.label(v, 40) for v in stratum.key.values()) or "all"
        rows.append((Cell(name, style="bold"), *(Cell("") for _ in columns)))
        if off is not None and stratum.best_k is not None:
            place, cell = off
            cells = [Cell("") for _ in columns]
            cells[place] = Cell(cell.text, style="green" if stratum.best_k == 0 else "")
            rows.append((Cell("  0 off"), *cells))
        chosen = _best_entry(stratum)
        for entry in stratum.entries:
            rows.append(
                (Cell(f"  {entry.k} {_source(entry)}"), *(column(entry, entry is chosen) for column in columns))
            )
    return tuple(rows), frozenset(sections - {0})


def _best_entry(stratum: SweepStratum) -> SweepEntry | None:
    of_best = (e for e in stratum.entries if e.k == stratum.best_k and e.relative_token_time is not None)
    return next(of_best, None)


def _figure(entry: SweepEntry, name: str, show: Callable[[Any], str], style: str = "") -> Cell:
    low, high = getattr(entry, f"{name}_low"), getattr(entry, f"{name}_high")
    return Cell(show(getattr(entry, name)), fmt.interval(low, high, fmt.tokens), style)


def _all(result: SweepResult) -> tuple[SweepStratum, ...]:
    return (*result.strata, result.total)


def _remarks(result: SweepResult) -> tuple[Bullets, ...]:
    """Notes of the classes, each once, with the classes it is about where it is not about all."""
    about: dict[str, list[str]] = {}
    for stratum in _all(result):
        for note in stratum.notes:
            about.setdefault(note, []).append(_name(stratum))
    items = tuple(_remark(note, names, len(_all(result))) for note, names in about.items())
    return (Bullets("How it was found", items, folded=True),) if items else ()


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
        "strata": [_stratum_document(s) for s in result.strata],
        "total": _stratum_document(result.total),
        "coverage": [asdict(m) for m in result.coverage],
        "warnings": [{"code": w.code, "text": w.text, "evidence": dict(w.evidence)} for w in result.warnings],
    }


def _stratum_document(stratum: SweepStratum) -> dict[str, Any]:
    ks = [{name: getattr(entry, name) for name in _ENTRY} for entry in stratum.entries]
    own = {name: getattr(stratum, name) for name in _OWN}
    return {"key": dict(stratum.key), "ks": ks, **own, "notes": list(stratum.notes)}


def _rows(result: SweepResult) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    names = unique(["row", *result.by, *_ENTRY, *_OWN])
    return names, list(_lines(result))


def _lines(result: SweepResult) -> Iterator[list[Any]]:
    for stratum in _all(result):
        kind = "total" if stratum is result.total else "stratum"
        keys = [stratum.key.get(column) for column in result.by]
        own = [getattr(stratum, name) for name in _OWN]
        if not stratum.entries:
            yield [kind, *keys, *(None for _ in _ENTRY), *own]
        for entry in stratum.entries:
            yield [kind, *keys, *(getattr(entry, name) for name in _ENTRY), *own]


VIEW: View[SweepResult] = View(_sheet, _document, _rows)
