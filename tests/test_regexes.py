"""Every regular expression of the readers takes a time in proportion to what it reads, whatever that is.

Logs hold what users wrote: a line of a megabyte must not keep an expression busy for hours. Expressions that polars
runs are linear by themselves; these are the ones that Python runs.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import tracelens

LENGTH = 10_000
# A linear pass over so much takes a hundredth of it, a quadratic one ten times as long.
SECONDS = 0.05
# Who reads what others wrote; what reads a lake gets what these have made of it.
_READERS = ("tracelens.sources.", "tracelens.engines.", "tracelens.ingest.")
_USES = re.compile(r"\.(search|match|fullmatch|findall|finditer|sub|split|scanner)\b")
_CALL = re.compile(r"""\bre\.(search|match|fullmatch|findall|finditer|sub|split)\(\s*(r?b?"(?:[^"\\]|\\.)+")""")
_COMMON = (" ", "a", "0", '"', "'", "\\", ",", "{", "[", '="', '","', "\n", "{{", "a=", 'a="', "0-", "[0", ": ", '\\"')
# How the methods of an expression are tried.
_TRIED: dict[str, Callable[[re.Pattern[Any], Any], object]] = {
    "search": lambda r, t: r.search(t),
    "match": lambda r, t: r.match(t),
    "fullmatch": lambda r, t: r.fullmatch(t),
    "findall": lambda r, t: r.findall(t),
    "scanner": lambda r, t: list(iter(r.scanner(t).match, None)),  # type: ignore[attr-defined]
}


def expressions() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Name, expression and use of each in the package."""
    for info in pkgutil.walk_packages(tracelens.__path__, "tracelens."):
        if not info.name.startswith(_READERS):
            continue
        module = importlib.import_module(info.name)
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        for name, value in vars(module).items():
            if not isinstance(value, re.Pattern):
                continue
            uses = set(_USES.findall("\n".join(re.findall(rf"\b{name}(\.\w+)", text))))
            for use in sorted({"findall" if u in ("finditer", "sub", "split") else u for u in uses}):
                yield f"{info.name}.{name}.{use}", value, use
        for number, (use, source) in enumerate(_CALL.findall(text)):
            yield f"{info.name}[{number}].{use}", re.compile(eval(source)), use if use in _TRIED else "findall"


def pumps(pattern: str) -> list[tuple[str, str]]:
    """For each repetition without an end: a text that leads to it, and what it repeats."""
    found: list[tuple[str, str]] = []

    def walk(tree: Any, before: str) -> str:
        out = ""
        for op, argument in tree:
            if op is sre.LITERAL:
                out += chr(argument)
            elif op is sre.NOT_LITERAL:
                out += "a" if argument != ord("a") else "b"
            elif op is sre.IN:
                out += member(argument)
            elif op is sre.ANY:
                out += "a"
            elif op is sre.SUBPATTERN:
                out += walk(argument[-1], before + out)
            elif op is sre.ATOMIC_GROUP:
                out += walk(argument, before + out)
            elif op is sre.BRANCH:
                first, *_ = [walk(branch, before + out) for branch in argument[1]]
                out += first
            elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
                low, high, inner = argument
                unit = walk(inner, before + out)
                if high >= 100:
                    found.append((before + out, unit))
                out += unit * max(low, 1)
        return out

    walk(parser.parse(pattern), "")
    return found


def member(items: Any) -> str:
    """A character of a class."""
    kinds = {
        sre.CATEGORY_DIGIT: "0", sre.CATEGORY_SPACE: " ", sre.CATEGORY_WORD: "a", sre.CATEGORY_NOT_SPACE: "a",
        sre.CATEGORY_NOT_WORD: " ", sre.CATEGORY_NOT_DIGIT: "a",
    }  # fmt: skip
    names = [(op, argument) for op, argument in items if op is not sre.NEGATE]
    if len(names) == len(items):
        op, argument = names[0]
        return kinds[argument] if op is sre.CATEGORY else chr(argument if op is sre.LITERAL else argument[0])
    held = {chr(argument) for op, argument in names if op is sre.LITERAL}
    held |= {chr(c) for op, argument in names if op is sre.RANGE for c in range(argument[0], argument[1] + 1)}
    held |= {kinds[argument] for op, argument in names if op is sre.CATEGORY}
    return next(c for c in "a0 =-_;" if c not in held)


def texts(pattern: str) -> Iterator[str]:
    """Texts of `LENGTH` that keep an expression looking."""
    units = {("", common) for common in _COMMON}
    for before, unit in pumps(pattern):
        units |= {(before, unit), ("", before + unit), ("", unit + before)}
    for before, unit in sorted(units):
        body = before + unit * (LENGTH // max(len(unit), 1))
        yield body
        yield f"{body}\0'\"`{{}}[]"  # what one of its classes leaves out


EVERY = list(expressions())


@pytest.mark.parametrize(("name", "pattern", "use"), EVERY, ids=[name for name, _, _ in EVERY])
def test_time_is_in_proportion_to_length(name: str, pattern: re.Pattern[Any], use: str) -> None:
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    for text in texts(source):
        given = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
        assert least(lambda given=given: _TRIED[use](pattern, given)) < SECONDS, f"{text[:60]!r}…"  # type: ignore[misc]


def least(call: Callable[[], object]) -> float:
    """Seconds of a call: the least of up to three where it is long, as other work may come between."""
    times: list[float] = []
    while len(times) < 3 and (not times or SECONDS <= times[-1] < 20 * SECONDS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


@pytest.mark.parametrize(
    ("slow", "use"),
    [
        (r'[\s,]*([^\s=,"]+)\s*=\s*"((?:[^"\\]|\\.)*)"', "findall"),
        (r"""^[^'"`{]*?(?:\[(?P<inner>\d{4})[^\]'"{]*\]\s*)?[^'"`{]*$""", "match"),
        (r"0*\d+b", "match"),
    ],
)
@pytest.mark.long
def test_slow_expressions_are_found(slow: str, use: str) -> None:
    pattern = re.compile(slow)
    assert any(least(lambda text=text: _TRIED[use](pattern, text)) > SECONDS for text in texts(slow))  # type: ignore[misc]
