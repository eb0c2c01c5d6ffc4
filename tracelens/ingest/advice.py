"""Which figures the surfaces that were found allow, with what their rows hold, and what to switch on for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tracelens.analysis.coverage import NEEDS
from tracelens.analysis.results import Missing
from tracelens.analysis.switches import switch_on
from tracelens.engines.base import Engine, Surface
from tracelens.engines.versions import (
    BEFORE,
    ERA,
    Build,
    Range,
    Switch,
    Versions,
    at_first,
    named,
    newer_era,
    newest,
    upgrade,
)
from tracelens.ingest.holdings import NOTHING_DRAFTED, Held

# What a report wants, each with the names that surfaces use for it.
FIGURES: Mapping[str, tuple[str, ...]] = {
    "draft_accept_ratio": ("draft_accept_ratio",),
    "hazard": ("hazard", "survival"),
    "rollback_len": ("rollback_len",),
    "near_k_request_share": ("near_k_request_share", "replay"),
    "tau_committed": ("tau_committed", "tau_drafted"),
    "rho": ("rho", "rho_verify"),
    "tpot_ms": ("tpot_ms", "tpot", "speedup_tpot"),
    "temperature": ("temperature",),
}
# Needs that no file meets alone, or that a report can do without (a drafter that always drafts has no plain steps).
_ELSEWHERE = frozenset({
    "baseline", "baseline_tpot", "matched", "matched_tpot", "plain_steps", "length", "timed_drafts", "phases_alike",
    "steps_alike", "single_requests",
})  # fmt: skip
# Needs by which rows give a figure that their surface does not promise, for not all of its records or versions can.
# More than a report's own: without `emitted` its tau_committed is tau_verified.
_CERTAIN: Mapping[str, frozenset[str]] = {
    "draft_accept_ratio": frozenset({"counts", "drafted"}),
    "hazard": frozenset({"counts", "draft_lengths"}),
    "rollback_len": frozenset({"counts", "draft_lengths"}),
    "near_k_request_share": frozenset({"counts", "draft_lengths", "requests"}),
    "tau_committed": frozenset({"counts", "drafted", "rounds", "emitted"}),
    "rho": frozenset({"drafted", "draft_time"}),
    "tpot_ms": frozenset({"tpot"}),
    "temperature": frozenset({"temperature"}),
}
_COUNTS = frozenset({"counts", "drafted", "draft_lengths", "rounds", "emitted", "requests"})
_OF_DRAFTS = _COUNTS | {"draft_time"}
_OWN_CODE = "write canonical JSON lines from your own code (README, 'Any other engine'), or compare with --baseline"


def missing(engines: Sequence[Engine], found: Iterable[str], held: Mapping[str, Held] | None = None) -> list[Missing]:
    """Figures that none of the surfaces found can give, by engine of the surfaces found.

    Args:
        engines: the readers.
        found: names of recognised surfaces.
        held: by engine what its rows hold and the versions its runs tell, where that is known; then also the figures
            that a surface can give and these rows do not hold. What that version does not have is not advised.
    """
    names = _seen(found, held)
    out: list[Missing] = []
    present = [(e, seen) for e in engines if (seen := [s for s in e.surfaces if s.name in names])]
    for engine, seen in present:
        rows = None if held is None else held.get(engine.name)
        build = None if rows is None else newest(engine.name, rows.versions)
        for figure, synonyms in FIGURES.items():
            givers = [s for s in seen if _give([s], synonyms)]
            if givers if rows is None else any(_tells(s, rows, figure) for s in seen):
                continue
            able = [s for s in givers if not _miss(s, synonyms, build)]
            if able and rows is not None:
                gap = _unfilled(engine, able[-1], figure, rows, build)
            else:
                gap = _advice(engine, figure, synonyms, build)
            # Several engines: the same figure may be there for one and missing for another.
            where = f"{engine.name}: " if len(present) > 1 else ""
            out.append(Missing(gap.figure, where + gap.because, gap.switch_on))
    return out


def allowed(engines: Sequence[Engine], found: Iterable[str], held: Mapping[str, Held]) -> list[str]:
    """Figures that the surfaces found can give and their rows hold, in the order of `FIGURES`."""
    names = _seen(found, held)
    told = {f for e in engines for s in e.surfaces if s.name in names for f in of_surface(s, held[e.name])[0]}
    return [figure for figure in FIGURES if figure in told]


def _seen(found: Iterable[str], held: Mapping[str, Held] | None) -> set[str]:
    """The surfaces found, and those of the rows: a record may be of two, as MLC's counts have its times by batch size.

    Records are counted by what they were read as, so the second has none.
    """
    return set(found) | {surface for rows in (held or {}).values() for surface in rows.needs}


def of_surface(surface: Surface, held: Held) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Figures that one surface gives by itself with what its rows hold, the others, and those of them it can give.

    All in the order of `FIGURES`.
    """
    can = [f for f, synonyms in FIGURES.items() if _give([surface], synonyms)]
    gives = tuple(f for f in FIGURES if _tells(surface, held, f))
    return gives, tuple(f for f in FIGURES if f not in gives), tuple(f for f in can if f not in gives)


def _tells(surface: Surface, held: Held, figure: str) -> bool:
    """Whether rows of a surface hold a figure: one that it can give, or that they hold beyond doubt."""
    if _give([surface], FIGURES[figure]) and _holds(held.of(surface.name), figure):
        return True
    return _CERTAIN[figure] <= held.own(surface.name)


def _lacking(held: set[str], figure: str) -> str | None:
    """The first need of a figure that is not met; None where one of its synonyms has all it needs."""
    synonyms = [name for name in FIGURES[figure] if name in NEEDS] or [figure]
    gaps = [[n for n in NEEDS.get(name, (name,)) if n not in _ELSEWHERE and n not in held] for name in synonyms]
    return None if not all(gaps) else gaps[0][0]


def _holds(held: set[str], figure: str) -> bool:
    return _lacking(held, figure) is None


def _unfilled(engine: Engine, surface: Surface, figure: str, held: Held, build: Build | None) -> Missing:
    """A figure that a surface can give, of records that do not hold it."""
    need = _lacking(held.of(surface.name), figure) or figure
    if held.plain and need in _OF_DRAFTS and "drafted" not in held.all():
        return Missing(figure, "no step of these records has a draft", switch_on(NOTHING_DRAFTED, [engine.name]))
    known = switch_on(need, [engine.name], builds={} if build is None else {engine.name: build})
    own = _switch(surface, build)
    both = f"{own}; or {known}" if need in _COUNTS else known
    # Where the engine has no switch of its own for it, what makes the surface says how to have it whole.
    switch = own if known == switch_on(need, [""]) else both
    return Missing(figure, f"records of {surface.name} can hold it, these do not", switch)


def _give(surfaces: Iterable[Surface], synonyms: Sequence[str]) -> bool:
    return any(name in synonyms for s in surfaces for name in s.gives)


def _advice(engine: Engine, figure: str, synonyms: Sequence[str], build: Build | None) -> Missing:
    """What would give a figure that is not in these logs, in the version that they are of."""
    givers = [s for s in engine.surfaces if _give([s], synonyms)]
    if not givers:
        return Missing(figure, f"no log of {engine.name} holds it", _OWN_CODE)
    able = [s for s in givers if not _miss(s, synonyms, build)]
    if not able and build is not None:
        return _elsewhere(engine, figure, [(s, r) for s in givers for r in _ranges(s, synonyms)], build)
    # With a version, what is known to be in it stands before what has no version (a script, a hook of one's own). Of
    # these the last one declared, which current releases still write, is the one to switch on.
    best = ((build is not None and [s for s in able if _ranges(s, synonyms)]) or able)[-1]
    return Missing(figure, f"not in these logs; {best.title} would give it ({best.versions})", _switch(best, build))


def _elsewhere(engine: Engine, figure: str, givers: Sequence[tuple[Surface, Range]], build: Build) -> Missing:
    """A figure that no log of this version gives: which version is the nearest that has it."""
    other, later = (of([r for _, r in givers], build) for of in (newer_era, upgrade))
    first: Build | None
    # Of several surfaces the last declared, as above.
    if other is not None:
        best = [s for s, r in givers if r.miss(build) == ERA and r.era == other.era][-1]
        limit, first = f"not by the engine before {other.era.upper()}", replace(build, era=other.era)
        step = f"run {other.era.upper()}, then: "
    elif later is not None:
        best = [s for s, r in givers if r.miss(build) == BEFORE and r.first == later.first][-1]
        limit, first = f"not before {later.first}", at_first(engine.name, later)
        step = f"upgrade to {named(later.first)} or later, then: "
    else:
        best, last = givers[-1]
        gone = f"not after {last.last}" if last.last else "not by this engine"
        return Missing(figure, f"{gone}; here {build.version}: {best.title} gave it ({best.versions})", _OWN_CODE)
    because = f"not in these logs, {limit}; here {build.version}: {best.title} would give it ({best.versions})"
    return Missing(figure, because, step + _switch(best, first))


def _ranges(surface: Surface, synonyms: Sequence[str]) -> tuple[Range, ...]:
    """The versions in which a surface gives a figure; none where it does not say so."""
    known = surface.versions
    return known.ranges(n for n in surface.gives if n in synonyms) if isinstance(known, Versions) else ()


def _miss(surface: Surface, synonyms: Sequence[str], build: Build | None) -> bool:
    ranges = _ranges(surface, synonyms)
    return bool(ranges) and all(r.miss(build) for r in ranges)


def _switch(surface: Surface, build: Build | None) -> str:
    return surface.switch_on.at(build) if isinstance(surface.switch_on, Switch) else surface.switch_on
