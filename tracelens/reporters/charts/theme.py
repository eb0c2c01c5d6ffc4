"""Colours and type of all charts, light and dark, as Vega-Lite configs: a spec names styles and never a colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme; `series` starts with the ink of all traffic and the accent."""

    paper: str
    ink: str
    muted: str
    line: str
    accent: str
    soft: str
    pays: str
    loses: str
    unsure: str
    series: tuple[str, ...]
    diverging: tuple[str, ...]


LIGHT = Palette(
    paper="#ffffff", ink="#1d2127", muted="#68707c", line="#e3e5e9", accent="#3454d1", soft="#b9c5f3",
    pays="#0b7a57", loses="#c0362c", unsure="#68707c",
    series=("#1d2127", "#3454d1", "#b4530d", "#0a8484", "#8b48b5", "#8a7000", "#5c7d2a", "#b8326f"),
    diverging=("#8fa6ef", "#c3cff7", "#eef0f4", "#f5cfa8", "#eda968"),
)  # fmt: skip
DARK = Palette(
    paper="#171a1f", ink="#e9ebef", muted="#98a1ad", line="#2c323a", accent="#8fa6ff", soft="#3c4a86",
    pays="#4ec995", loses="#ff8177", unsure="#98a1ad",
    series=("#e9ebef", "#8fa6ff", "#f2a05f", "#4fc4c4", "#c79be8", "#d9bf4a", "#a3c76a", "#f08bb7"),
    diverging=("#4259b8", "#2e3f80", "#262b33", "#6b4a26", "#a06a2c"),
)  # fmt: skip


def config(palette: Palette) -> dict[str, Any]:
    """The Vega-Lite config of a palette."""
    text = {"font": _FONT, "fontSize": 12, "color": palette.ink}
    verdicts = {"pays": palette.pays, "loses": palette.loses, "open": palette.unsure}
    return {
        "background": None,
        "font": _FONT,
        "view": {"stroke": None},
        "padding": {"left": 2, "right": 12, "top": 6, "bottom": 4},
        "axis": {
            "labelColor": palette.ink, "titleColor": palette.muted, "gridColor": palette.line, "domain": False,
            "tickColor": palette.line, "ticks": False, "labelFontSize": 12, "titleFontSize": 11, "titleFontWeight": 400,
            "labelPadding": 6, "titlePadding": 8, "labelFlush": False,
        },
        "axisX": {"labelOverlap": "greedy", "labelSeparation": 6},
        "axisY": {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleY": -10, "titleX": 0},
        "legend": {
            "labelColor": palette.ink, "titleColor": palette.muted, "orient": "bottom", "direction": "horizontal",
            "title": None, "labelFontSize": 12, "symbolType": "circle", "labelLimit": 112, "columnPadding": 14,
            "symbolOpacity": 1, "offset": 10,
        },
        "title": {"color": palette.ink, "subtitleColor": palette.muted, "anchor": "start", "fontSize": 15,
                  "subtitleFontSize": 12, "fontWeight": 600, "offset": 14},
        "range": {"category": list(palette.series), "diverging": list(palette.diverging)},
        "style": {
            "ink": {"color": palette.ink},
            "accent": {"color": palette.accent},
            "soft": {"color": palette.soft},
            "interval": {"color": palette.muted, "strokeWidth": 1.5},
            "reference": {"color": palette.ink, "strokeDash": [3, 3], "strokeWidth": 1},
            "change": {"color": palette.muted, "strokeDash": [2, 3], "strokeWidth": 1},
            "band": {"color": palette.accent, "opacity": 0.09},
            "paper": {"color": palette.paper},
            "label": text,
            "halo": {**text, "color": palette.paper, "stroke": palette.paper, "strokeWidth": 4, "strokeJoin": "round"},
            "quiet": {**text, "color": palette.muted, "fontSize": 11},
            "unsure": {"color": palette.unsure, "strokeWidth": 2},
            **{f"mark-{name}": {"color": color} for name, color in verdicts.items()},
            **{f"text-{name}": {**text, "color": color} for name, color in verdicts.items()},
        },
    }  # fmt: skip
