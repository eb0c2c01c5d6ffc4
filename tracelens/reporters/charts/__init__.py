"""Charts of the answers, as Altair specs. They place figures that the analysis made and compute none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError

if TYPE_CHECKING:
    import altair as alt

    from tracelens.analysis.page import Page
    from tracelens.reporters.charts.drawn import Absent, Drawn

#: Names of the charts, in the order of a page.
NAMES = ("waterfall", "token-time", "alpha", "hazard", "survival", "rollback", "over-time", "sweep", "heat-map")


def charts(page: Page) -> dict[str, Drawn | Absent]:
    """Every chart of a page, by name."""
    return {name: make() for name, make in _of_page(page).items()}


def check(name: str | None) -> None:
    """Refuse the name of a chart that does not exist, before any work is done.

    Raises:
        InputError: with the names that do.
    """
    if name is not None and name not in NAMES:
        raise InputError(f"--chart {name} is not known: use one of {', '.join(NAMES)}")


def pick(result: Any, name: str | None = None) -> Drawn:
    """The chart of a page, report, gap, sweep or gate; without a name the first that can be drawn.

    Raises:
        InputError: a name that this result has no chart of, or a figure that cannot be had.
    """
    from tracelens.reporters.charts.drawn import Absent

    check(name)
    makers = _makers(result)
    if not makers:
        raise InputError(f"there is no chart of a {type(result).__name__}")
    if name is not None and name not in makers:
        raise InputError(f"--chart {name} is not a chart of this answer: use one of {', '.join(makers)}")
    reasons = []
    for chosen in [name] if name is not None else list(makers):
        found = makers[chosen]()
        if not isinstance(found, Absent):
            return dataclasses.replace(found, about=_about(result))
        reasons.append(f"{chosen}: {found.because}")
    raise InputError(f"no chart can be drawn: {'; '.join(dict.fromkeys(reasons))}")


def _about(result: Any) -> tuple[str, ...]:
    from tracelens.analysis.page import Page
    from tracelens.reporters import selected

    page = isinstance(result, Page)
    selection = result.report.selection if page else result.selection
    return tuple(filter(None, (selected.covered(result.covered) if page else "", selected.line(selection))))


def chart(result: Any, name: str | None = None) -> alt.TopLevelMixin:
    """The chart of a result as an Altair chart in the light theme, with its title.

    Raises:
        InputError: as `pick`.
    """
    from tracelens.reporters.charts.whole import whole

    return whole(pick(result, name))


def _makers(result: Any) -> Mapping[str, Callable[[], Drawn | Absent]]:
    from tracelens.analysis.gate import GateResult
    from tracelens.analysis.page import Page
    from tracelens.analysis.results import GapResult, Report
    from tracelens.analysis.sweep import SweepResult

    match result:
        case Page():
            return _of_page(result)
        case Report():
            return _of_report(result)
        case GapResult():
            from tracelens.reporters.charts.waterfall import waterfall

            return {"waterfall": lambda: waterfall(result)}
        case SweepResult():
            from tracelens.reporters.charts.sweep import sweep

            return {"sweep": lambda: sweep(result, None)}
        case GateResult():
            from tracelens.reporters.charts import strata

            return {"token-time": lambda: strata.token_time(strata.of_gate(result))}
    return {}


def _of_report(report: Any, gate: Any = None, delta: int = 1) -> dict[str, Callable[[], Drawn | Absent]]:
    from tracelens.reporters.charts import positions, strata

    found = strata.classes(report, gate)
    return {
        "token-time": lambda: strata.token_time(found),
        "alpha": lambda: strata.alpha(found),
        "hazard": lambda: positions.hazard(report),
        "survival": lambda: positions.survival(report),
        "rollback": lambda: positions.rollback(report, delta),
    }


def _of_page(page: Page) -> dict[str, Callable[[], Drawn | Absent]]:
    from tracelens.reporters.charts import load, sweep, waterfall

    makers: dict[str, Callable[[], Drawn | Absent]] = {
        "waterfall": lambda: waterfall.waterfall(page.gap),
        **_of_report(page.report, page.gate, page.question.near_k_delta),
        "over-time": lambda: load.over_time(page.times, cut=page.times_cut),
        "sweep": lambda: sweep.sweep(page.sweep, page.no_sweep),
        "heat-map": lambda: load.heat_map(page.heat),
    }
    return {name: makers[name] for name in NAMES}
