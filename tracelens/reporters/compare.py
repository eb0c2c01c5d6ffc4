"""A comparison as a sheet, as JSON and as rows: what moved first, then every figure of every class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens.analysis.compared import IN_ITS_PLACE, Change, Compared, Comparison
from tracelens.analysis.mixing import Mix
from tracelens.analysis.sides import Side
from tracelens.reporters import answer
from tracelens.reporters import format as fmt
from tracelens.reporters.json_ import SCHEMA_VERSION
from tracelens.reporters.sheet import Bullets, Cell, Grid, Sheet, View, endnotes


@dataclass(frozen=True, slots=True)
class Shown:
    """How a figure is called in a table, written, and what it means."""

    head: str
    show: Callable[[Any], str]
    note: str


_FIGURES = {
    "relative_token_time": Shown(
        "token time C", fmt.ratio, "token time C = round cost / τ committed, of plain decoding; below 1 it pays"
    ),
    "tpot_ms": Shown("TPOT, ms", fmt.tokens, "TPOT = decode time / (output tokens − 1)"),
    "speedup_observed": Shown(
        "speedup observed",
        fmt.times,
        "speedup observed = by TPOT where both it and its baseline are known, else by steps",
    ),
    "draft_accept_ratio": Shown("α", fmt.ratio, "α = accepted / drafted, the target's own token excluded"),
    "token_accept_prob": Shown(
        "p", fmt.ratio, "p = accepted / (accepted + rounds cut short), the target's own token excluded"
    ),
    "tau_verified": Shown("τ verified", fmt.tokens, "τ verified = 1 + accepted / rounds with a draft"),
    "tau_committed": Shown(
        "τ committed", fmt.tokens, "τ committed = emitted tokens / all rounds, the target's own token included"
    ),
    "near_k_round_share": Shown(
        "near-K rounds", fmt.ratio, "near-K rounds = share of rounds that lose (almost) the whole draft"
    ),
    "rho": Shown("ρ", fmt.ratio, "ρ = a draft token / a plain step"),
    "rho_verify": Shown("ρ (verify)", fmt.ratio, "ρ (verify) = a draft token / a verify pass"),
    "verify_inflation": Shown("verify v", fmt.ratio, "v = verify pass / plain step"),
    "overhead": Shown("overhead o", fmt.ratio, "o = (step − draft − verify) / plain step"),
    "round_cost": Shown("round cost R", fmt.ratio, "R = step / plain step"),
    "draft_ms": Shown("draft, ms", fmt.tokens, "draft, verify and step: means per request-round without prefill"),
    "target_ms": Shown("verify, ms", fmt.tokens, ""),
    "step_ms": Shown("step, ms", fmt.tokens, ""),
}
_LED = 3  # changes of the total, and of the classes, that the first paragraph names


def _sheet(result: Comparison) -> Sheet:
    grids = tuple(grid for grid in (_table(result), _mixes(result)) if grid.rows)
    sides = f"A is {_side(result.a)}, B is {_side(result.b)}; every change is B − A."
    return Sheet((*_answer(result), *_driver(result), sides), grids, (*_open(result), *_ends(result)))


def _answer(result: Comparison) -> tuple[str, ...]:
    """What moved in total, then in the classes, then what a token takes where that did not move."""
    if not result.tested:
        return ("Nothing can be tested: no figure is known on both sides with the spread between requests.",)
    shared = sum(row.change is not None for row in result.strata)
    classes = f"{shared} class{'' if shared == 1 else 'es'} and " if shared else ""
    tests = f"{result.tested} changes tested ({classes}in total; Holm, {_percent(1 - result.level)})"
    if not result.real:
        return (f"No real change: of the {tests} none is more than chance.",)
    total = [_moved(result.total, name, named=False) for name in _FIGURES if _is_real(result.total, name)]
    inside = [_moved(row, name, named=True) for name in _FIGURES for row in result.strata if _is_real(row, name)]
    count = f"{result.real} of the {tests} {'is' if result.real == 1 else 'are'} real"
    told = [f"{count}. In total: {_some(total) or 'none'}."]
    told += [f"By class: {_some(inside)}."] if inside else []
    outcome = [name for name in ("relative_token_time", "tpot_ms") if _change(result.total, name).p_value is not None]
    if outcome and not any(_is_real(result.total, name) for name in outcome):
        moved = _moved(result.total, outcome[0], named=False)
        told.append(f"What a token takes did not move by more than chance: {moved}.")
    return tuple(told)


def _some(told: Sequence[str]) -> str:
    more = f"; {len(told) - _LED} more below" if len(told) > _LED else ""
    return "; ".join(told[:_LED]) + more


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _moved(row: Compared, name: str, *, named: bool) -> str:
    figure, change = _FIGURES[name], _change(row, name)
    before, after = ((side or {}).get(name) for side in (row.a, row.b))
    interval = fmt.interval(change.low, change.high, _signed(figure.show))
    head, _, unit = figure.head.partition(", ")
    k = _lengths(row) if name in ("draft_accept_ratio", "tau_verified", "tau_committed") else ""
    who = f"{_name(row)} " if named else ""
    ends = f"{figure.show(before)} → {figure.show(after)}{f' {unit}' if unit else ''}"
    return f"{who}{head} {ends} {interval}{k}"


def _lengths(row: Compared) -> str:
    one, other = (_k(side or {}) for side in (row.a, row.b))
    return "" if one == other else f" (K {one} → {other})"


def _k(figures: Mapping[str, Any]) -> str:
    low, high = figures.get("num_speculative_tokens_min"), figures.get("num_speculative_tokens_max")
    return fmt.count(low) if low == high else f"{fmt.count(low)}–{fmt.count(high)}"


def _driver(result: Comparison) -> tuple[str, ...]:
    """Whether the mix of traffic moved the totals, or the strata did."""
    told = []
    for name in _FIGURES:
        mix = result.mix_effect.get(name)
        if mix is None or mix.total is None or not (_is_real(result.total, name) or _is_simpson(result, name)):
            continue
        signed = _signed(_FIGURES[name].show)
        why = {"mix": "the mix of traffic moved", "strata": "the classes moved, not the mix", "both": "both moved"}
        parts = f"{signed(mix.mix)} by the mix of traffic, {signed(mix.within)} within the classes"
        told.append(
            f"{_FIGURES[name].head} {signed(mix.total)} = {parts}: {why.get(mix.driver or '', 'nothing moved')}"
        )
    if told:
        return (f"Why the totals moved: {'; '.join(told)}.",)
    if any(mix.total is not None for mix in result.mix_effect.values()):
        return ("No total that can be split into mix and classes moved by more than chance.",)
    return ()


def _is_simpson(result: Comparison, name: str) -> bool:
    return any(w.code == "simpson" and w.evidence.get("figure") == name for w in result.warnings)


def _table(result: Comparison) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    sections = set()
    for row in (*result.strata, result.total):
        sections.add(len(rows))
        rows.append((Cell(_name(row), style="bold"), *(_size(side) for side in (row.a, row.b)), Cell(""), Cell("")))
        k = [_k(side) if side else "" for side in (row.a, row.b)]
        if row.change is not None and any(text != fmt.DASH for text in k):
            rows.append((Cell("K"), Cell(k[0]), Cell(k[1]), Cell("" if k[0] == k[1] else "another K"), Cell("")))
        rows += [_line(row, name) for name in _FIGURES if _is_shown(row, name)]
    used = [name for name in _FIGURES if any(_is_shown(row, name) for row in (*result.strata, result.total))]
    level = _percent(result.level)
    notes = (
        "real? = more than chance after the correction of Holm for all tests, with the corrected p-value",
        f"intervals: {level}, uncorrected, by request",
        *(_FIGURES[name].note for name in used if _FIGURES[name].note),
        *_baselines(result.total),
    )
    heads = (" / ".join(result.by) or "figure", "A", "B", f"change [{level}]", "real?")
    return Grid("What moved", tuple(map(fmt.label, heads)), tuple(rows), 1, frozenset(sections - {0}), notes)


def _is_shown(row: Compared, name: str) -> bool:
    """Whether a side has the figure, and no other row tells the same; an observed speedup is always shown."""
    told_twice = (_change(row, name).because or "").endswith(IN_ITS_PLACE) and name != "speedup_observed"
    return not told_twice and any(fmt.is_number((side or {}).get(name)) for side in (row.a, row.b))


def _line(row: Compared, name: str) -> tuple[Cell, ...]:
    figure, change = _FIGURES[name], _change(row, name)
    signed = _signed(figure.show)
    sides = (Cell(figure.show((side or {}).get(name))) for side in (row.a, row.b))
    moved = Cell(signed(change.value), fmt.interval(change.low, change.high, signed))
    if change.significant is None:
        return (Cell(f"  {figure.head}"), *sides, moved, Cell(fmt.DASH))
    real = Cell("yes", _p(change.p_adjusted), "bold") if change.significant else Cell("no", _p(change.p_adjusted))
    return (Cell(f"  {figure.head}"), *sides, moved, real)


def _mixes(result: Comparison) -> Grid:
    rows = []
    for name in _FIGURES:
        mix = result.mix_effect.get(name)
        if mix is None or mix.total is None:
            continue
        signed = _signed(_FIGURES[name].show)
        parts = (Cell(signed(part)) for part in (mix.total, mix.mix, mix.within))
        rows.append((Cell(_FIGURES[name].head), *parts, Cell(mix.weights)))
    notes = (
        "change = mix + classes: mix is what the shares of the classes did, classes what happened within them "
        "(Kitagawa, symmetric); a class of one side only is mix",
    )
    heads = ("in total", "change", "mix", "classes", "weighted by")
    return Grid("Did the mix of traffic move, or the classes?", heads, tuple(rows), 1, frozenset(), notes)


def _open(result: Comparison) -> tuple[Bullets, ...]:
    """Changes without a test, and why; what coverage tells already is left out."""
    found: dict[str, list[str]] = {}
    for row in (*result.strata, result.total):
        for name, change in (row.change or {}).items():
            if change.because and not change.because.startswith("not to be had") and _is_shown(row, name):
                heads = found.setdefault(change.because, [])
                if _FIGURES[name].head not in heads:
                    heads.append(_FIGURES[name].head)
    items = tuple(fmt.visible(f"{', '.join(heads)}: {why}") for why, heads in found.items())
    return (Bullets("Not tested", items, folded=True),) if items else ()


def _ends(result: Comparison) -> tuple[Bullets, ...]:
    return endnotes(result.warnings, result.coverage)


def _document(result: Comparison) -> Mapping[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "by": list(result.by),
        "a": _side_document(result.a),
        "b": _side_document(result.b),
        "level": result.level,
        "correction": "holm",
        "tested": result.tested,
        "significant": result.real,
        "strata": [_row_document(row) for row in result.strata],
        "total": _row_document(result.total),
        "mix_effect": {name: _mix_document(mix) for name, mix in result.mix_effect.items()},
        "coverage": [{"figure": m.figure, "because": m.because, "switch_on": m.switch_on} for m in result.coverage],
        "warnings": [{"code": w.code, "text": w.text, "evidence": dict(w.evidence)} for w in result.warnings],
    }


def _side_document(side: Side) -> dict[str, Any]:
    return {
        "text": side.text,
        "kind": side.kind,
        "runs": list(side.runs),
        "since": side.since,
        "until": side.until,
        "label": None if side.label is None else {side.label[0]: side.label[1]},
    }


def _row_document(row: Compared) -> dict[str, Any]:
    change = None if row.change is None else {name: _change_document(c) for name, c in row.change.items()}
    return {"key": dict(row.key), "a": row.a and dict(row.a), "b": row.b and dict(row.b), "change": change}


def _change_document(change: Change) -> dict[str, Any]:
    return {name: getattr(change, name) for name in _CHANGE}


def _mix_document(mix: Mix) -> dict[str, Any]:
    names = ("total", "mix", "within", "weights", "driver", "because")
    return {name: getattr(mix, name) for name in names} | {"reversed": mix.is_reversed}


_CHANGE = ("value", "low", "high", "ratio", "p_value", "p_adjusted", "significant", "because")


def _rows(result: Comparison) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    ends = ("", "_low", "_high")
    sides = [f"{side}{end}" for side in "ab" for end in ends]
    names = ["row", *result.by, "figure", *sides, *(f"change{'' if n == 'value' else f'_{n}'}" for n in _CHANGE)]
    rows = [
        [
            "total" if row is result.total else "stratum",
            *(row.key.get(column) for column in result.by),
            name,
            *((side or {}).get(f"{name}{end}") for side in (row.a, row.b) for end in ends),
            *(getattr(_change(row, name), part) for part in _CHANGE),
        ]
        for row in (*result.strata, result.total)
        for name in _FIGURES
    ]
    return names, rows


def _change(row: Compared, name: str) -> Change:
    if row.change is None:
        return Change(because=f"this class of traffic is on {'A' if row.b is None else 'B'} only")
    return row.change.get(name, Change())


def _is_real(row: Compared, name: str) -> bool:
    return bool(_change(row, name).significant)


def _size(side: Mapping[str, Any] | None) -> Cell:
    if side is None:
        return Cell("none")
    if fmt.is_number(side.get("requests")):
        return Cell(f"{fmt.count(side['requests'])} req")
    return Cell(f"{fmt.count(side['rounds'])} rnd" if fmt.is_number(side.get("rounds")) else "")


def _name(row: Compared) -> str:
    return " / ".join(fmt.label(value, 40) for value in row.key.values()) or "all traffic"


def _side(side: Side) -> str:
    name = fmt.label(side.text.split(":", 1)[1] if side.kind in ("build", "label") else side.text)
    several = f" ({len(side.runs)} runs)" if side.kind == "build" and len(side.runs) > 1 else ""
    return f"{'runs' if side.kind == 'run' and len(side.runs) > 1 else side.kind} {name}{several}"


def _baselines(row: Compared) -> tuple[str, ...]:
    """What the figures of both sides are compared with."""
    told = [answer.baselines(side) for side in (row.a, row.b) if side]
    return (
        (told[0],) if len(set(told)) == 1 else tuple(f"{name}: {text}" for name, text in zip("AB", told, strict=False))
    )


def _signed(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """A number with its sign, a real minus among them."""

    def text(value: Any) -> str:
        if not fmt.is_number(value):
            return fmt.DASH
        return f"{'−' if value < 0 else '+'}{show(abs(value))}"

    return text


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0") if value < 1 else "1"


VIEW: View[Comparison] = View(_sheet, _document, _rows)
