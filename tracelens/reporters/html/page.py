"""The page as one file: template, style, script, charts and their data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, TextIO

from tracelens import __version__
from tracelens.analysis.page import Page
from tracelens.reporters import answer
from tracelens.reporters.charts import charts
from tracelens.reporters.charts.drawn import Drawn
from tracelens.reporters.charts.strata import classes
from tracelens.reporters.charts.theme import DARK, LIGHT, config
from tracelens.reporters.html.classes import bounded
from tracelens.reporters.html.hero import headline, hero
from tracelens.reporters.html.markup import Markup, data, join, raw, tag, text
from tracelens.reporters.html.sections import SECTIONS, sections

# What Vega-Lite of the page's own bundle needs and no more; a name of ours is all that a chart brings.
_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def render(page: Page, out: TextIO) -> None:
    """Write the page to `out`."""
    out.write(html(page))


def html(page: Page) -> str:
    """The page as text: one file that needs no network."""
    every, page = page, bounded(page)
    found = charts(page)
    nothing = bool(answer.nothing(page.report))
    drawn = {} if nothing else {name: d for name, d in found.items() if isinstance(d, Drawn)}
    scripts = [_file("page.js")]
    if drawn:
        scripts.insert(0, bundle())
    theme = _file("theme.js")
    return Template(_file("page.html")).substitute(
        policy=text(_policy([theme, *scripts])),
        title=text(f"tracelens: {'nothing to report' if nothing else headline(page.report.total.figures)}"),
        style=_file("page.css"),
        theme=f"<script>{theme}</script>",
        navigation="" if nothing else _navigation(),
        body=join((hero(every, classes(every.report, every.gate)), sections(page, found, every))),
        version=text(__version__),
        data=_data(page, drawn),
        scripts="".join(f"<script>{script}</script>" for script in scripts),
    )


def _data(page: Page, drawn: Mapping[str, Drawn]) -> Markup:
    document: dict[str, Any] = {
        "charts": {
            name: {
                "panels": [specification(panel) for panel in d.panels],
                "choices": None if d.choices is None else list(d.choices.values()),
            }
            for name, d in drawn.items()
        },
        "themes": {"light": config(LIGHT), "dark": config(DARK)},
        "sql": page.statements.pieces(),
    }
    return data(document, "page-data")


def specification(panel: Any) -> dict[str, Any]:
    """The Vega-Lite spec of a panel for a page: as wide as its place, and without the address of a schema."""
    spec: dict[str, Any] = panel.to_dict()
    del spec["$schema"]
    # Altair's own look; the page brings a theme.
    spec.pop("config", None)
    return {**spec, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


@cache
def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from vl-convert."""
    import vl_convert

    script = vl_convert.javascript_bundle(_SNIPPET)
    # Inside a script element these would end it or open a comment; in JavaScript strings they say the same.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: list[str]) -> str:
    """Nothing from anywhere; of scripts only these, by their hash."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _navigation() -> Markup:
    links = (tag("a", name, href=f"#{anchor}") for anchor, name in SECTIONS)
    return tag("nav", *links, aria_label="sections")


def _file(name: str) -> str:
    return raw(files("tracelens.reporters.html").joinpath("assets", name).read_text(encoding="utf-8"))
