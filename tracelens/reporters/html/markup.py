"""HTML from parts: text and attribute values are escaped here and nowhere else."""

from __future__ import annotations

import html
from typing import Any

from tracelens.reporters import format as fmt
from tracelens.reporters.json_ import dumps

_EMPTY = {"br", "hr", "input", "meta"}


class Markup(str):
    """Text that is HTML already. Only this module makes it from other text."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Any text as HTML that shows it: control characters visible, markup escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(fmt.visible(value), quote=True))


def join(parts: Any, between: str = "") -> Markup:
    """Parts one after the other; None and empty ones are left out."""
    return Markup(html.escape(between).join(text(part) for part in parts if part is not None and part != ""))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is class, `_` in other names is `-`; True is a bare attribute, None and False are none."""
    told = "".join(
        f" {key}" if value is True else f' {key}="{text(value)}"'
        for key, value in ((k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items())
        if value is not None and value is not False
    )
    if name in _EMPTY:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{join(children)}</{name}>")


def data(document: Any, element: str) -> Markup:
    """A document as JSON in a script element that no browser runs; nothing in it can end the element."""
    return Markup(f'<script type="application/json" id="{text(element)}">{json_text(document)}</script>')


def json_text(document: Any) -> str:
    """JSON without the characters that HTML could take for markup."""
    return dumps(document).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def raw(trusted: str) -> Markup:
    """Our own files (style, script, template), which hold no text of a user."""
    return Markup(trusted)
