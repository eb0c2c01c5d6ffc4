"""What a reader of a comparison must know: why a change need not be what it looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tracelens.analysis.compared import TWO_CONVENTIONS, Compared
from tracelens.analysis.mixing import Mix
from tracelens.analysis.results import Warning, named

_SHOWN = 5
_NEEDS_BASELINE = {"rho", "verify_inflation", "overhead", "round_cost", "relative_token_time", "speedup_observed"}

Told = TypeVar("Told")


def both_sides(
    a: Sequence[Told], b: Sequence[Told], text: Callable[[Told], str], put: Callable[[Told, str], Told]
) -> tuple[Told, ...]:
    """What both sides say is said once; what one says has its name before it."""
    there = [[_rounded(one) for one in side] for side in (a, b)]
    named = [one if _rounded(one) in there[1] else put(one, f"A: {text(one)}") for one in a]
    return (*named, *(put(one, f"B: {text(one)}") for one in b if _rounded(one) not in there[0]))


def _rounded(told: Told) -> object:
    """What is told, with its numbers as far as they do not hang on the order of a sum."""
    if not isinstance(told, Warning):
        return told
    evidence = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in told.evidence.items()}
    return replace(told, evidence=evidence)


def told_apart(a: Mapping[str, frozenset[str]], b: Mapping[str, frozenset[str]], across: int) -> tuple[Warning, ...]:
    """Say what else differs between the sides, or ties them together.

    Args:
        a: what side A is of: sets of names by `run`, `engine`, `model`, `draft_model`, `method`.
        b: the same of side B.
        across: requests of which each side holds a part.
    """
    found = []
    others = [name for name in ("engine", "model", "draft_model", "method") if a[name] != b[name]]
    if others:
        what = "; ".join(f"{name} {_some(a[name])} on A, {_some(b[name])} on B" for name in others)
        found.append(Warning("other_setup", f"the sides differ in more than one may have asked for: {what}"))
    if a["run"] != b["run"] and min(len(a["run"]), len(b["run"])) == 1:
        single = [name for name, side in zip("AB", (a, b), strict=True) if len(side["run"]) == 1]
        text = (
            f"{'each side' if len(single) == 2 else single[0]} is one run: the intervals hold the chance between "
            "requests, not that between runs of one setup (machine, neighbours, warm-up); repeat the run and name both "
            "as run1+run2 to see how large that is"
        )
        found.append(Warning("one_run", text, {"runs_a": len(a["run"]), "runs_b": len(b["run"])}))
    if across:
        text = "requests run across the border of the two sides, each of which holds a part of them"
        found.append(Warning("requests_across", text, {"requests": across}))
    return tuple(found)


def contrasts(
    strata: Sequence[Compared], total: Compared, mix: Mapping[str, Mix], advice: str = ""
) -> tuple[Warning, ...]:
    """Warn of what the changes themselves show: another K, other conventions, classes of one side, Simpson.

    `advice` says how both sides come to one convention; empty where nothing does, or another warning says it.
    """
    rows = [*strata, total]
    return (*_lengths(rows), *_conventions(rows, advice), *_one_sided(strata), *_reversed(mix))


def one_convention(a: Mapping[str, frozenset[str]], b: Mapping[str, frozenset[str]], *, named: bool) -> str:
    """How the sides (as of `told_apart`) come to one baseline; empty where they were given one already."""
    if named:
        return ""
    if any(a[name] != b[name] for name in ("engine", "model")):
        return "each side needs a run without speculation of its own engine and model"
    return "name one baseline for both sides with --baseline"


def paradoxes(strata: Sequence[Compared], total: Compared, mix: Mapping[str, Mix]) -> dict[str, Mix]:
    """Count for every figure whose total moved against its classes how many of them did, and whether that is more.

    Two small differences have opposite signs half of the time: it is a paradox (Simpson's) only where the total or a
    class on the way of most is more than chance.
    """
    return {name: _counted(name, effect, strata, total) for name, effect in mix.items()}


def _counted(name: str, effect: Mix, strata: Sequence[Compared], total: Compared) -> Mix:
    if not effect.is_reversed or effect.within is None or total.change is None:
        return effect
    sign = 1 if effect.within > 0 else -1
    changes = [row.change[name] for row in strata if row.change is not None]
    along = [c for c in changes if c.value is not None and c.value * sign > 0]
    real = sum(c.significant is True for c in along)
    paradox = bool(total.change[name].significant or real)
    return replace(effect, classes=len(changes), along=len(along), along_significant=real, paradox=paradox)


def _lengths(rows: Sequence[Compared]) -> Iterable[Warning]:
    differing = [row for row in rows if row.a and row.b and _length(row.a) != _length(row.b)]
    if differing:
        row = next((row for row in differing if not row.key), differing[0])
        one, other = _length(row.a or {}), _length(row.b or {})
        text = (
            f"K differs between the sides ({_range(one)} on A, {_range(other)} on B{_where(row)}): α falls and τ grows "
            "with K by themselves, so their change is none of the drafter; token_accept_prob is closer to it, "
            "relative_token_time and TPOT say what it is worth"
        )
        yield Warning("k_differs", text)


def _length(figures: Mapping[str, Any]) -> tuple[Any, Any]:
    return figures.get("num_speculative_tokens_min"), figures.get("num_speculative_tokens_max")


def _range(length: tuple[Any, Any]) -> str:
    low, high = length
    return "not logged" if low is None else str(low) if low == high else f"{low} to {high}"


def _conventions(rows: Sequence[Compared], advice: str) -> Iterable[Warning]:
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, change in (row.change or {}).items():
            if change.because and change.because.startswith(TWO_CONVENTIONS):
                told = found.setdefault(change.because.removeprefix(TWO_CONVENTIONS), [])
                if name not in told:
                    told.append(name)
    if found:
        needs = any(_NEEDS_BASELINE & set(names) for names in found.values())
        which = "; ".join(f"{', '.join(names)}{because}" for because, names in found.items())
        hint = f"; {advice}" if advice and needs else ""
        yield Warning("two_conventions", f"not compared, for each side has a convention of its own: {which}{hint}")


def _one_sided(strata: Sequence[Compared]) -> Iterable[Warning]:
    for side, lacking in (("A", [s for s in strata if s.b is None]), ("B", [s for s in strata if s.a is None])):
        if lacking:
            names = "; ".join(_name(row) for row in lacking[:_SHOWN]) + ("; …" if len(lacking) > _SHOWN else "")
            text = f"classes of traffic that are on {side} only have no change: {names}"
            yield Warning(f"only_{side.lower()}", text, {"strata": len(lacking)})


def _reversed(mix: Mapping[str, Mix]) -> Iterable[Warning]:
    """One warning for all figures whose total moved against its classes."""
    found: dict[tuple[bool, str], list[str]] = {}
    told = {name: effect for name, effect in mix.items() if effect.paradox}
    for name, effect in told.items():
        inside = f"within the classes ({effect.along} of {effect.classes})"
        where = "in every class" if effect.along == effect.classes else inside
        found.setdefault(((effect.within or 0.0) > 0, where), []).append(name)
    if not found:
        return
    moves = []
    for (rises, where), names in found.items():
        ending = "s" if len(names) == 1 else ""
        way, other = ("rise", "fall") if rises else ("fall", "rise")
        moves.append(f"{', '.join(names)} {way}{ending} {where} and {other}{ending} in total")
    text = f"{'; '.join(moves)}, because the mix of traffic moved (Simpson's paradox): judge the classes, not the total"
    yield Warning("simpson", text, {"figures": len(told)})


def _where(row: Compared) -> str:
    return f", {_name(row)}" if row.key else ""


def _name(row: Compared) -> str:
    return named(row.key)


def _some(names: Iterable[str]) -> str:
    told = sorted(names)
    return (", ".join(told[:_SHOWN]) or "not logged") + (", …" if len(told) > _SHOWN else "")
