"""A chart that stands alone: its panels, title and theme in one Altair chart, and as PNG or SVG."""

from __future__ import annotations

import textwrap
from typing import Any

import altair as alt

from tracelens.errors import InputError
from tracelens.reporters.charts.drawn import Drawn
from tracelens.reporters.charts.theme import LIGHT, config

_SCALE = 2.0  # pixels of a PNG over those of the spec: sharp on any screen
_LINE = 104


def whole(drawn: Drawn) -> alt.TopLevelMixin:
    """One Altair chart with title, what it is about, notes and the light theme on white."""
    subtitle = [line for text in (*drawn.about, *drawn.notes) for line in textwrap.wrap(text, _LINE)]
    title = alt.TitleParams(drawn.title, subtitle=subtitle) if subtitle else alt.TitleParams(drawn.title)
    settings = {**config(LIGHT), "background": LIGHT.paper}
    panels = drawn.panels
    if len(panels) == 1:
        return panels[0].properties(title=title, config=settings)
    padding = {"left": 12, "right": 16, "top": 12, "bottom": 10}
    stack = alt.vconcat(*(_without_padding(panel) for panel in panels), spacing=10)
    return stack.properties(title=title, config=settings, padding=padding)


def image(drawn: Drawn, kind: str) -> bytes:
    """The chart as a PNG or SVG file.

    Raises:
        InputError: vl-convert cannot draw it.
    """
    import vl_convert

    spec = _spec(drawn)
    try:
        if kind == "svg":
            return vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]).encode("utf-8")
        return bytes(vl_convert.vegalite_to_png(spec, scale=_SCALE, allowed_base_urls=[]))
    except ValueError as error:
        raise InputError(f"the chart {drawn.name} cannot be drawn as {kind}: {error}") from error


def _spec(drawn: Drawn) -> dict[str, Any]:
    spec: dict[str, Any] = whole(drawn).to_dict()
    if len(drawn.panels) == 1:
        inner = spec.get("padding") or {}
        # White room around the picture, on top of what the chart itself wants.
        spec["padding"] = {side: 14 + inner.get(side, 0) for side in ("left", "right", "top", "bottom")}
    return spec


def _without_padding(panel: Any) -> Any:
    copy = panel.copy(deep=True)
    copy.padding = alt.Undefined
    return copy
