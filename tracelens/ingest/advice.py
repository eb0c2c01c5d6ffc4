"""Which figures the surfaces that were found allow, and what to switch on for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracelens.analysis.results import Missing
from tracelens.engines.base import Engine, Surface

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


def missing(engines: Sequence[Engine], found: Iterable[str]) -> list[Missing]:
    """Figures that none of the surfaces found can give, by engine of the surfaces found.

    Args:
        engines: the readers.
        found: names of recognised surfaces.
    """
    names = set(found)
    out: list[Missing] = []
    present = [(e, seen) for e in engines if (seen := [s for s in e.surfaces if s.name in names])]
    for engine, seen in present:
        for figure, synonyms in FIGURES.items():
            if not _give(seen, synonyms):
                gap = _advice(engine, figure, synonyms)
                # Several engines: the same figure may be there for one and missing for another.
                where = f"{engine.name}: " if len(present) > 1 else ""
                out.append(Missing(gap.figure, where + gap.because, gap.switch_on))
    return out


def allowed(engines: Sequence[Engine], found: Iterable[str]) -> list[str]:
    """Figures that the surfaces found can give, in the order of `FIGURES`."""
    names = set(found)
    seen = [s for e in engines for s in e.surfaces if s.name in names]
    return [f for f, synonyms in FIGURES.items() if _give(seen, synonyms)]


def of_surface(surface: Surface) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(figures that one surface can give by itself, figures that it cannot), in the order of `FIGURES`."""
    gives = tuple(figure for figure, synonyms in FIGURES.items() if _give([surface], synonyms))
    return gives, tuple(figure for figure in FIGURES if figure not in gives)


def _give(surfaces: Iterable[Surface], synonyms: Sequence[str]) -> bool:
    return any(name in synonyms for s in surfaces for name in s.gives)


def _advice(engine: Engine, figure: str, synonyms: Sequence[str]) -> Missing:
    givers = [s for s in engine.surfaces if any(name in synonyms for name in s.gives)]
    if not givers:
        return Missing(
            figure,
            f"no log of {engine.name} holds it",
            "write canonical JSON lines from your own code (README, 'Any other engine'), or compare with --baseline",
        )
    # The last one declared that is still written by current releases is the one to switch on.
    best = givers[-1]
    return Missing(figure, f"not in these logs; {best.title} would give it ({best.versions})", best.switch_on)
