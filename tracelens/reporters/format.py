"""How numbers and text are shown: one place for decimals, units, the sign for what is missing, unsafe characters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from tracelens.analysis.results import UNKNOWN

DASH = "–"

# C0 and C1 controls, DEL, line separators, and the marks that reorder or hide text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

_ASCII = {
    "α": "alpha",
    "ρ": "rho",
    "τ": "tau",
    "δ": "delta",
    "Σ": "sum",
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "·": "*",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "→": "->",
    "█": "#",
    "▉": "#",
    "▊": "#",
    "▋": "#",
    "▌": "#",
    "▍": "#",
    "▎": "",
    "▏": "",
}


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number (booleans are not numbers)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def visible(text: object) -> str:
    r"""Text with every control character made visible (`\x1b`), so that no log can drive the reader's terminal."""
    return _UNSAFE.sub(lambda m: _escape(m[0]), str(text))


def _escape(char: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(
        char, f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
    )


def fold(text: str, encoding: str | None) -> str:
    """Spell `text` so that an output of `encoding` can carry it: Greek and blocks by name, the rest by code."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        spelled = "".join(_ASCII.get(c, c) for c in text)
        return spelled.encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")
    except LookupError:
        return fold(text, "ascii")
    return text


def shorten(text: str, limit: int) -> str:
    """Cut `text` at `limit` characters, with a sign that it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def count(value: Any) -> str:
    """A whole number with thousands separators: 12,345."""
    return f"{round(value):,}" if is_number(value) else DASH


def ratio(value: Any) -> str:
    """A ratio with three decimals: 0.720."""
    return f"{value:.3f}" if is_number(value) else DASH


def tokens(value: Any) -> str:
    """A mean number of tokens: 4.12."""
    return f"{value:.2f}" if is_number(value) else DASH


def times(value: Any) -> str:
    """A factor: 1.61x."""
    return f"{value:.2f}x" if is_number(value) else DASH


def percent(value: Any) -> str:
    """A share (0 to 1) in percent: 61.2 %."""
    return f"{100 * value:.1f} %" if is_number(value) else DASH


def points(value: Any) -> str:
    """A difference of two shares in percentage points, with its sign: +3.1."""
    return f"{100 * value:+.1f}" if is_number(value) else DASH


def number_ms(value: Any) -> str:
    """Milliseconds without the unit, for a column whose header has it: 53.0."""
    if not is_number(value):
        return DASH
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}"


def ms(value: Any) -> str:
    """Milliseconds: 53.0 ms."""
    return f"{number_ms(value)} ms" if is_number(value) else DASH


def duration(value: Any) -> str:
    """A long time given in milliseconds, in the unit that reads best: 41.2 s, 3.4 min, 2.1 h."""
    if not is_number(value):
        return DASH
    seconds = value / 1000
    for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if abs(seconds) >= size * (1 if unit == "s" else 2):
            return f"{seconds / size:,.1f} {unit}"
    return ms(value)


def interval(low: Any, high: Any, show: Any = ratio) -> str:
    """An interval: [0.701, 0.739]; empty when a bound is missing."""
    return f"[{show(low)}, {show(high)}]" if is_number(low) and is_number(high) else ""


def bounds(figures: Mapping[str, Any], name: str, show: Any = ratio) -> str:
    """The interval of the figure `name`, or an empty text."""
    return interval(figures.get(f"{name}_low"), figures.get(f"{name}_high"), show)


def label(value: Any, limit: int = 120) -> str:
    """A value of a stratum's key; NULL is said, not left blank."""
    if value is None:
        return UNKNOWN
    return shorten(visible(value), limit) or '""'
