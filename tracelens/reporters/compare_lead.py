"""The first paragraphs of a comparison: what a token takes, what else moved, what that rests on, and the mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.analysis.compared import Compared, Comparison
from tracelens.analysis.leverage import leverage, share_of_traffic
from tracelens.analysis.mixing import Mix
from tracelens.reporters import answer
from tracelens.reporters import format as fmt
from tracelens.reporters.changed import (
    FIGURES,
    change_of,
    class_name,
    is_real,
    k_differs,
    k_text,
    noise,
    percent,
    short,
    signed,
)
from tracelens.wording import many

_Place = tuple[Compared, str]

_LED = 3  # changes that one sentence names
_OUTCOMES = ("relative_token_time", "tpot_ms")
_OF_LENGTH = ("draft_accept_ratio", "tau_verified", "tau_committed", "near_k_round_share")
_CHANCE = "more than chance between requests"


def lead(result: Comparison) -> tuple[str, ...]:
    """The answer in paragraphs, what a token takes first, changed or not."""
    told = (_outcome(result), _moved_else(result), _caution(result), _mix(result))
    return tuple(text for text in told if text)


def whole_class(result: Comparison) -> bool:
    """Whether the one class there is holds all of the traffic, so that its changes are those of the total."""
    return len(result.strata) == 1 and result.strata[0].change == result.total.change


def led(result: Comparison) -> str | None:
    """The figure that says what a token takes: tested rather than not, by the plain step rather than in ms."""
    changes = {name: change_of(result.total, name) for name in _OUTCOMES}
    tested = [name for name, change in changes.items() if change.significant is not None]
    known = [name for name, change in changes.items() if fmt.is_number(change.value)]
    return next(iter([*tested, *known]), None)


def _outcome(result: Comparison) -> str:
    name = led(result)
    if name is None:
        reasons: dict[str, list[str]] = {}
        for figure in _OUTCOMES:
            why = change_of(result.total, figure).because or "not on both sides"
            reasons.setdefault(why, []).append(short(figure))
        which = "; ".join(f"{', '.join(heads)}: {why}" for why, heads in reasons.items())
        told = [f"What a token takes cannot be compared ({which})."]
    else:
        change, moved = change_of(result.total, name), moved_text(result.total, name)
        if change.significant is None:
            told = [f"What a token takes: {moved}{f': {change.because}' if change.because else ''}."]
        elif change.significant:
            told = [f"Tokens got {_way(result, name)} by {_CHANCE}: {moved}."]
        else:
            told = [f"Tokens got neither faster nor slower by {_CHANCE}: {moved}."]
        told += [f"By {short(other)} they got {_way(result, other)}: {moved_text(result.total, other)}."
                 for other in _unlike(result, name)]  # fmt: skip
    return " ".join([*told, *_paradox(result, name), *_lengths(result)])


def _way(result: Comparison, name: str) -> str:
    return "faster" if (change_of(result.total, name).value or 0.0) < 0 else "slower"


def _unlike(result: Comparison, name: str | None) -> list[str]:
    """Another measure of what a token takes that moved by more than chance where `name` did not, or the other way."""
    alike = name is not None and is_real(result.total, name)
    return [
        other
        for other in _OUTCOMES
        if name is not None and other != name and is_real(result.total, other)
        if not alike or _way(result, other) != _way(result, name)
    ]


def _paradox(result: Comparison, name: str | None) -> list[str]:
    """What every class did, where the total did the opposite."""
    effect = result.mix_effect.get(name or "")
    if name is not None and effect is not None and effect.paradox:
        faster = (effect.within or 0.0) < 0
        way, other = ("got faster", "slowed") if faster else ("got slower", "sped up")
        did = other if is_real(result.total, name) else "did not,"
        return [f"{_who(effect)} {way}{_share(effect)}; the total {did}{_cause(effect)}."]
    others = {figure: e for figure, e in result.mix_effect.items() if e.paradox and figure in FIGURES}
    if not others:
        return []
    first = next(iter(others.values()))
    parts = []
    for figure, effect in others.items():
        way, other = ("rises", "falls") if (effect.within or 0.0) > 0 else ("falls", "rises")
        where = "in every class" if effect.along == effect.classes else f"in {effect.along} of {effect.classes} classes"
        parts.append(f"{short(figure)} {way} {where} and {other} in total")
    return [f"{'; '.join(parts)},{_cause(first)}."]


def _who(effect: Mix) -> str:
    return "Every class" if effect.along == effect.classes else f"{effect.along} of {effect.classes} classes"


def _share(effect: Mix) -> str:
    """How many of the classes that moved this way did so by more than chance; empty where all did."""
    if effect.along == effect.along_significant:
        return ""
    many = f"{effect.along_significant} of {effect.along}" if effect.along_significant else "none"
    return f" ({many} by more than chance)"


def _cause(effect: Mix) -> str:
    if effect.shifted is None or effect.share_a is None or effect.share_b is None:
        return " because the mix of traffic moved"
    way = "to" if effect.share_b > effect.share_a else "away from"
    shares = " → ".join(f"{100 * share:.0f} %" for share in (effect.share_a, effect.share_b))
    return f" because traffic moved {way} {fmt.label(effect.shifted, 40)} ({shares} of the {effect.weights})"


def _lengths(result: Comparison) -> list[str]:
    """Another K, said once."""
    rows = [row for row in (result.total, *result.strata) if k_differs(row)]
    if not rows:
        return []
    if rows[0] is not result.total and len(rows) > 1:
        return [f"K differs in {len(rows)} classes, so α and τ move there by themselves."]
    one, other = (_k(side or {}) for side in (rows[0].a, rows[0].b))
    where = "" if rows[0] is result.total else f" in {class_name(rows[0])}"
    return [f"K {one} → {other}{where}, so α and τ move by themselves."]


def _k(figures: Mapping[str, Any]) -> str:
    return k_text(figures) if fmt.is_number(figures.get("num_speculative_tokens_min")) else "not logged"


def _moved_else(result: Comparison) -> str:
    """How many changes were tested and are more than chance, and which ones besides what a token takes."""
    if not result.tested:
        return "Nothing can be tested: no figure is known on both sides with the spread between requests."
    shared = 0 if whole_class(result) else sum(row.change is not None for row in result.strata)
    where = f"{many(shared, 'class', 'classes')} and in total" if shared else "in total"
    basis = f"({where}; Holm, {percent(1 - result.level)})"
    if result.tested == 1:
        count = f"The one change tested {basis} is {'' if result.real else 'no '}{_CHANCE}"
    else:
        verb = "is" if result.real < 2 else "are"
        count = f"{result.real or 'None'} of the {result.tested} changes tested {basis} {verb} {_CHANCE}"
    moved, by_k = _others(result)
    if not moved and not by_k:
        return f"{count}."
    what = "What else moved" if len(moved) + len(by_k) < result.real else "Moved"
    if not moved:
        heads = ", ".join(dict.fromkeys(short(name) for _, name in by_k))
        return f"{count}. {what}: {heads}, which K moves by itself."
    told = [moved_text(row, name, named=shared > 0) for row, name in moved[:_LED]]
    more = len(moved) + len(by_k) - len(told)
    return f"{count}. {what}: {'; '.join(told)}{f'; {more} more below' if more else ''}."


def _others(result: Comparison) -> tuple[list[_Place], list[_Place]]:
    """Changes besides what a token takes in total, what does most to its time first; apart those that K makes.

    A class counts for as much as its share of the traffic.
    """
    first = led(result)
    rows = [result.total, *(() if whole_class(result) else result.strata)]
    places = [(row, name) for name in FIGURES for row in rows if is_real(row, name)]
    said = {first, *_unlike(result, first)}
    places = [(row, name) for row, name in places if not (row is result.total and name in said)]

    def order(place: _Place) -> tuple[bool, bool, float]:
        row, name = place
        effect = leverage(row, name)
        weight = -(effect or 0.0) * share_of_traffic(row, result.total)
        return _again(result, place, first), effect is None, weight

    moved = sorted((place for place in places if not _by_length(*place)), key=order)
    return moved, [place for place in places if _by_length(*place)]


def _again(result: Comparison, place: _Place, first: str | None) -> bool:
    """Whether a change only says again what another one says."""
    row, name = place
    # TPOT and the speedup what the first figure tells, the step what its cost over a plain one tells.
    if name != first and (
        name in (*_OUTCOMES, "speedup_observed") or (name == "step_ms" and is_real(row, "round_cost"))
    ):
        return True
    # A class that went the way of all traffic.
    one, other = change_of(row, name).value or 0.0, change_of(result.total, name).value or 0.0
    return row is not result.total and is_real(result.total, name) and one * other > 0


def _by_length(row: Compared, name: str) -> bool:
    """Whether another K alone moves this figure."""
    return name in _OF_LENGTH and k_differs(row)


def moved_text(row: Compared, name: str, *, named: bool = False) -> str:
    """Both values of a figure, its change with the interval of the change, and the noise that it is within."""
    figure, change = FIGURES[name], change_of(row, name)
    before, after = ((side or {}).get(name) for side in (row.a, row.b))
    show = signed(figure.show)
    unit = figure.head.partition(", ")[2]
    interval = fmt.interval(change.low, change.high, show)
    spread = noise(row)
    within = f", within the control noise of {fmt.percent(spread)}" if change.within_noise and spread else ""
    who = "" if not named else f"{class_name(row)}: " if row.key else "in total: "
    moved = f"{show(change.value)}{f' {interval}' if interval else ''}{within}"
    return f"{who}{short(name)} {figure.show(before)} → {figure.show(after)}{f' {unit}' if unit else ''} ({moved})"


def _caution(result: Comparison) -> str:
    """What the tests do not know: how far one run differs from the next."""
    told = []
    one_run = next((w.evidence for w in result.warnings if w.code == "one_run"), None)
    if one_run is not None:
        single = [side for side in "AB" if one_run.get(f"runs_{side.lower()}") == 1]
        who = single[0] if len(single) == 1 else "Each side"
        told.append(f"{who} is one run: the tests know the chance between requests, not that between runs.")
    if any(change.within_noise is not None for change in (result.total.change or {}).values()):
        spread = noise(result.total)
        sides = [side for side in (result.total.a, result.total.b) if side and side.get("control_spread") == spread]
        told += [answer.control(side).strip() for side in sides[:1]]
    return " ".join(told)


def split(result: Comparison) -> list[str]:
    """The figures whose split into mix and classes says something: the total moved, or a class did."""
    rows = (*result.strata, result.total)
    known = [name for name in FIGURES if name in result.mix_effect and result.mix_effect[name].total is not None]
    return [name for name in known if result.mix_effect[name].paradox or any(is_real(row, name) for row in rows)]


_DRIVERS = {"mix": "the mix of traffic", "strata": "the classes, not the mix", "both": "the mix of traffic and classes"}


def _mix(result: Comparison) -> str:
    """Whether the mix of traffic moved the totals, or the classes did; one figure of each kind with its parts."""
    found: dict[str, list[str]] = {}
    for name in split(result):
        effect = result.mix_effect[name]
        moved = is_real(result.total, name) and not _by_length(result.total, name)
        if effect.driver is not None and (effect.paradox or moved):
            found.setdefault(effect.driver, []).append(name)
    if found:
        parts = [f"{_DRIVERS[driver]} ({_parts(result, names)})" for driver, names in found.items()]
        return f"What moved the totals: {'; '.join(parts)}."
    known = [short(name) for name in FIGURES if name in result.mix_effect and result.mix_effect[name].total is not None]
    if not known or split(result):
        return ""
    any_moved = any(is_real(result.total, name) for name in FIGURES)
    none = f"{', '.join(known)} did not move in total" if any_moved else "No total moved"
    return f"{none}, so mix against classes is not split."


def _parts(result: Comparison, names: Sequence[str]) -> str:
    effect, show = result.mix_effect[names[0]], signed(FIGURES[names[0]].show)
    parts = f"{show(effect.mix)} by the mix, {show(effect.within)} within the classes"
    others = f"; likewise {', '.join(map(short, names[1:]))}" if len(names) > 1 else ""
    return f"{short(names[0])} {show(effect.total)} = {parts}{others}"
