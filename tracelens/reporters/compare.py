"""A comparison as a sheet, as JSON and as rows: what moved first, then every figure of every class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.analysis.compared import IN_ITS_PLACE, TWO_CONVENTIONS, Change, Compared, Comparison
from tracelens.analysis.mixing import Mix
from tracelens.analysis.sides import Side
from tracelens.reporters import answer, selected
from tracelens.reporters import format as fmt
from tracelens.reporters.changed import (
    FIGURES,
    change_of,
    class_name,
    k_differs,
    k_text,
    noise,
    percent,
    short,
    signed,
)
from tracelens.reporters.compare_lead import lead, split
from tracelens.reporters.json_ import SCHEMA_VERSION
from tracelens.reporters.sheet import Bullets, Cell, Grid, Sheet, View, endnotes


def _sheet(result: Comparison) -> Sheet:
    grids = tuple(grid for grid in (_table(result), _mixes(result)) if grid.rows)
    sides = f"A is {_side(result.a)}, B is {_side(result.b)}; every change is B − A."
    ends = (*_open(result), *_ends(result))
    return Sheet((*lead(result), sides), grids, ends, selected.line(result.selection))


def _table(result: Comparison) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    sections = set()
    told = (*result.strata, result.total)
    noisy = any(change.within_noise is not None for row in told for change in (row.change or {}).values())
    for row in told:
        sections.add(len(rows))
        spread = noise(row) if row.change is not None else None
        sizes = (_size(side) for side in (row.a, row.b))
        rows.append(
            (Cell(class_name(row), style="bold"), *sizes, *_EMPTY, Cell("" if spread is None else _whole(spread)))
        )
        k = [k_text(side) if side else "" for side in (row.a, row.b)]
        if row.change is not None and any(text != fmt.DASH for text in k):
            another = "another K" if k_differs(row) else ""
            rows.append((Cell("K"), Cell(k[0]), Cell(k[1]), Cell(another), Cell(""), Cell("")))
        rows += [_line(row, name) for name in FIGURES if _is_shown(row, name)]
    used = [name for name in FIGURES if any(_is_shown(row, name) for row in told)]
    level = percent(result.level)
    notes = (
        "moved? = by more than chance between requests after the correction of Holm for all tests, with the corrected "
        "p-value",
        f"intervals: {level}, uncorrected, by request",
        *((_NOISE,) if noisy else ()),
        *(FIGURES[name].note for name in used if FIGURES[name].note),
        *_baselines(result.total),
    )
    heads = (" / ".join(result.by) or "figure", "A", "B", f"change [{level}]", "moved?", "noise")
    kept = len(heads) if noisy else len(heads) - 1
    shown = tuple(row[:kept] for row in rows)
    return Grid("What moved", tuple(map(fmt.label, heads[:kept])), shown, 1, frozenset(sections - {0}), notes)


_EMPTY = (Cell(""), Cell(""))
_NOISE = (
    "noise: how far runs without speculation differ among themselves; within = the change is no larger, so another run "
    "of the same may show it too"
)


def _whole(share: float) -> str:
    """A share in percent, without decimals from 10 % on."""
    return f"{100 * share:.0f} %" if share >= 0.1 else fmt.percent(share)


def _is_shown(row: Compared, name: str) -> bool:
    """Whether a side has the figure, and no other row tells the same; an observed speedup is always shown."""
    told_twice = (change_of(row, name).because or "").endswith(IN_ITS_PLACE) and name != "speedup_observed"
    return not told_twice and any(fmt.is_number((side or {}).get(name)) for side in (row.a, row.b))


def _line(row: Compared, name: str) -> tuple[Cell, ...]:
    figure, change = FIGURES[name], change_of(row, name)
    show = signed(figure.show)
    sides = (Cell(figure.show((side or {}).get(name))) for side in (row.a, row.b))
    interval = Cell(show(change.value), fmt.interval(change.low, change.high, show))
    moved = Cell(fmt.DASH)
    if change.significant is not None:
        yes = change.significant
        moved = Cell("yes" if yes else "no", _p(change.p_adjusted), "bold" if yes else "")
    within = "" if change.within_noise is None else "within" if change.within_noise else "beyond"
    return (Cell(f"  {figure.head}"), *sides, interval, moved, Cell(within))


def _mixes(result: Comparison) -> Grid:
    rows = []
    for name in split(result):
        effect, show = result.mix_effect[name], signed(FIGURES[name].show)
        parts = (Cell(show(part)) for part in (effect.total, effect.mix, effect.within))
        rows.append((Cell(FIGURES[name].head), *parts, Cell(effect.weights)))
    notes = (
        "change = mix + classes: mix is what the shares of the classes did, classes what happened within them "
        "(Kitagawa, symmetric); a class of one side only is mix",
    )
    heads = ("in total", "change", "mix", "classes", "weighted by")
    return Grid("Did the mix of traffic move, or the classes?", heads, tuple(rows), 1, frozenset(), notes)


def _open(result: Comparison) -> tuple[Bullets, ...]:
    """Changes without a test, and why; what coverage or a warning tells already is left out."""
    found: dict[str, list[str]] = {}
    for row in (*result.strata, result.total):
        for name, change in (row.change or {}).items():
            why = change.because or ""
            if not why or why.startswith(("not to be had", TWO_CONVENTIONS)) or not _is_shown(row, name):
                continue
            twin, _, rest = why.partition(" ")
            why = f"{short(twin)} {rest}" if twin in FIGURES else why
            heads = found.setdefault(why, [])
            if FIGURES[name].head not in heads:
                heads.append(FIGURES[name].head)
    items = tuple(fmt.visible(f"{', '.join(heads)}: {why}") for why, heads in found.items())
    return (Bullets("Not tested", items, folded=True),) if items else ()


def _ends(result: Comparison) -> tuple[Bullets, ...]:
    return endnotes(result.warnings, result.coverage)


def _document(result: Comparison) -> Mapping[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "by": list(result.by),
        "selection": dict(result.selection),
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
    return {name: getattr(mix, name) for name in _MIX} | {"reversed": mix.is_reversed}


_MIX = ("total", "mix", "within", "weights", "driver", "because", "shifted", "share_a", "share_b", "classes", "along",
        "along_significant", "paradox")  # fmt: skip
_CHANGE = ("value", "low", "high", "ratio", "p_value", "p_adjusted", "significant", "because", "within_noise")


def _size(side: Mapping[str, Any] | None) -> Cell:
    if side is None:
        return Cell("none")
    if fmt.is_number(side.get("requests")):
        return Cell(f"{fmt.count(side['requests'])} req")
    return Cell(f"{fmt.count(side['rounds'])} rnd" if fmt.is_number(side.get("rounds")) else "")


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


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0") if value < 1 else "1"


VIEW: View[Comparison] = View(_sheet, _document)
