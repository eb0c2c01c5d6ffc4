"""How numbers and text are shown: one place for decimals, units, the sign for what is missing, unsafe characters."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from tracelens.analysis import results

DASH = "–"

# What moves, hides or imitates other text, in character classes: controls, surrogates, line separators, the whole
# category Cf (marks of direction, soft hyphen, annotations, tags) and letters that draw nothing (fillers, selectors).
_C0 = "\x00-\x1f"
_HIDDEN = (
    "\x7f-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNSAFE = re.compile(f"[{_C0}{_HIDDEN}]")
# In JSON text: its own line ends stay, and it has spelled the other C0 controls.
_UNSAFE_JSON = re.compile(f"[{_HIDDEN}]")
_JOINERS = "\u200c\u200d"
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_VIRAMA = 9  # canonical combining class
# A class of nothing but blanks, or one with a blank at an end, is not seen as what it is.
_BLANK_END = re.compile(r"\A[\s\u2800]|[\s\u2800]\Z")

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
    r"""Text with every control and hidden character made visible (`\x1b`): no log can drive or mislead its reader.

    What joins letters of scripts that need it, and emoji, stays where it does so.
    """
    return _UNSAFE.sub(_spelled, str(text))


def visible_json(text: str) -> str:
    r"""The same for JSON text, which stays the same JSON (`\u202e` in a string)."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSAFE_JSON.sub(_spelled_json, text)


def _spelled(found: re.Match[str]) -> str:
    char, code = found[0], ord(found[0])
    if _belongs(char, found):
        return char
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _spelled_json(found: re.Match[str]) -> str:
    char, code = found[0], ord(found[0])
    if _belongs(char, found):
        return char
    units = (code,) if code < 0x10000 else (0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF))
    return "".join(f"\\u{unit:04x}" for unit in units)


def _belongs(char: str, found: re.Match[str]) -> bool:
    """Whether a joiner or selector does its work: in emoji, behind a virama, in Arabic script (RFC 5892, A.1, A.2)."""
    selects = bool(_SELECTORS.match(char))
    if not selects and char not in _JOINERS:
        return False
    at = found.start()
    before, after = found.string[at - 1 : at], found.string[at + 1 : at + 2]
    if not before or before.isascii() or before in _JOINERS:
        return False
    kind = unicodedata.category(before)
    if selects:
        return kind in ("So", "Sm", "Sk", "Po", "Lo") and not _UNSAFE.match(before)
    if not after or after.isascii() or _UNSAFE.match(after):
        return False
    emoji = (kind in ("So", "Sk") or before == "\ufe0f") and unicodedata.category(after) == "So"
    arabic = unicodedata.bidirectional(before) in ("AL", "NSM") and unicodedata.bidirectional(after) == "AL"
    return emoji or arabic or unicodedata.combining(before) == _VIRAMA


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


def middle(text: str, limit: int) -> str:
    """Cut `text` to `limit` characters out of its middle: what tells two classes apart is at the end as often."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def listed(words: Sequence[str]) -> str:
    """Words in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


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


def label(value: Any, limit: int = 120, column: str = "") -> str:
    """A value of a stratum's key, of the column named; NULL is said, and blanks that nobody could see are quoted."""
    shown = visible(results.label(value, column))
    return middle(f'"{shown}"' if not shown or _BLANK_END.search(shown) else shown, limit)
