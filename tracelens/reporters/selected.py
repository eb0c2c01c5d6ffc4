"""What an answer was asked about, in a line: run, period, filter, baseline, near-K; only what was given."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tracelens.reporters import format as fmt

if TYPE_CHECKING:
    from tracelens.analysis.page import Covered

_LONGEST = 200  # characters of a filter: a line, not a page
_NEAR_K = 1


def line(selection: Mapping[str, Any]) -> str:
    """The line below a headline; empty where nothing was given."""
    told = parts(selection)
    return f"Selected: {'; '.join(told)}." if told else ""


def of(selection: Mapping[str, Any], contains: Mapping[str, str]) -> str:
    """That line, and what the lake holds of persons where that is not all that was logged."""
    ids = {
        "redacted": "Request ids are redacted.",
        "mixed": "Request ids are redacted in some sources, kept in others.",
    }
    return " ".join(filter(None, [line(selection), ids.get(contains.get("request_ids", ""))]))


def parts(selection: Mapping[str, Any]) -> list[str]:
    """Its pieces, such as `run k5`, `baseline off`."""
    found = []
    runs = [fmt.label(run, 60) for run in selection.get("run") or ()]
    if runs:
        found.append(f"{'run' if len(runs) == 1 else 'runs'} {', '.join(runs)}")
    if selection.get("where"):
        found.append(f"where {fmt.middle(' '.join(fmt.visible(selection['where']).split()), _LONGEST)}")
    for name, word in (("since", "from"), ("until", "before")):
        if selection.get(name):
            found.append(f"{word} {_time(str(selection[name]))}")
    baseline = selection.get("baseline")
    if baseline is not None:
        found.append(f"baseline {f'{baseline:g} ms' if fmt.is_number(baseline) else fmt.label(baseline, 60)}")
    if selection.get("near_k", _NEAR_K) != _NEAR_K:
        found.append(f"near-K: at most {selection['near_k']} kept")
    return found


def covered(found: Covered) -> str:
    """Runs, engines, models and span of the records that an answer is about."""
    more = f" and {found.runs - len(found.run_names)} more" if found.runs > len(found.run_names) else ""
    runs = f"{', '.join(fmt.label(name, 40) for name in found.run_names)}{more}"
    names = (*(fmt.label(e, 40) for e in found.engines), *(fmt.label(m, 60) for m in found.models))
    return " · ".join(filter(None, [runs, *names, _span(found.first, found.last)]))


def _span(first: datetime | None, last: datetime | None) -> str:
    if first is None or last is None:
        return ""
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M}"
    return f"{first:%Y-%m-%d %H:%M} to {end} UTC"


def options(selection: Mapping[str, Any]) -> list[str]:
    """The options that could have left everything out, of those that were given."""
    names = (("where", "--where"), ("since", "--since"), ("until", "--until"), ("run", "--run"))
    return [option for name, option in names if selection.get(name)]


def _time(text: str) -> str:
    return text.removesuffix("Z").removesuffix(":00").replace("T", " ") + " UTC"
