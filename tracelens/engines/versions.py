"""Which versions of an engine write something: declared once, printed for people and compared with what a log tells.

Ranges count in numbers of releases (`0.8.3`) or, where an engine's declarations do so, in dates (`2026-03-15`). A
number of a release has a date as near as `RELEASED` knows; what cannot be decided counts as written, so that nothing
is called impossible that may be there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Point = tuple[int, ...]

BEFORE, AFTER, ERA = "before", "after", "era"
#: Releases and builds whose date is known, in order. The dates are those by which they were out.
RELEASED: Mapping[str, Sequence[tuple[str, str]]] = {
    "rtp-llm": (("0.1.13", "2024-04-29"), ("0.2.0", "2025-10-31")),
    "tensorrt-llm": (
        ("0.8.0", "2024-04"), ("1.1.0rc4", "2025-09"), ("1.2.0rc2", "2025-11"), ("1.2.0rc5", "2025-12"),
        ("1.3.0rc14", "2026-05"),
    ),
    "llama.cpp": (
        ("b2995", "2024-05"), ("b5857", "2025-07"), ("b7045", "2025-11"), ("b7394", "2025-12"), ("b9235", "2026-05"),
        ("b10507", "2026-08"), ("b11434", "2026-10"),
    ),
}  # fmt: skip
# What of a version is shown again.
_WORD = re.compile(r"[\w.+~-]{1,40}", re.ASCII)
_DATE = re.compile(r"20\d\d(?:-\d\d){0,2}", re.ASCII)
_NUMBER = re.compile(r"[vb]?(\d{1,6}(?:\.\d{1,6}){0,3})(?:[.-]?rc(\d{1,4}))?(?=$|[^\d])", re.ASCII)
# What setuptools-scm calls a build from a source tree without tags; it tells nothing of the code.
_UNTAGGED = re.compile(r"0\.[01](?:\.0)?\.?dev|0\.0\.0(?:$|\D)")
_FINAL, _PARTS = 1 << 20, 4


@dataclass(frozen=True, slots=True)
class Build:
    """The version of an engine as a log tells it, and what follows for comparisons.

    `number` is empty where the version is a date; `earliest` and `latest` bound its date, None where nothing does.
    """

    version: str
    era: str | None
    number: Point
    earliest: Point | None
    latest: Point | None

    @property
    def rank(self) -> tuple[Point, Point]:
        """What newer builds of the same engine have more of."""
        return self.latest or self.earliest or (), self.number


@dataclass(frozen=True, slots=True)
class Range:
    """From `first` to `last`, both included; empty where there is no such end.

    A short `last` has all of its releases (0.9: 0.9.2, too). `seen` is the newest release that was looked at, which is
    no end. `era`: the generation of the engine that alone writes it. `of`: the figures whose own range it is, where
    they have one beside that of the surface. `form` is its text where it is not `first-last`; an empty one says that
    the text has no place for it.
    """

    first: str = ""
    last: str = ""
    seen: str = ""
    form: str = "{first}-{last}"
    of: tuple[str, ...] = ()
    era: str = ""

    def __str__(self) -> str:
        return self.form.format(first=self.first, last=self.last or self.seen)

    def miss(self, build: Build | None) -> str:
        """Why a build does not write it: BEFORE, AFTER, ERA; empty where it does, or where nothing says it does not."""
        if build is None:
            return ""
        if self.first and _is_less(_bounds(self.first, build)[1], point(self.first)):
            return BEFORE
        low = _bounds(self.last, build)[0] if self.last else None
        if low is not None and _is_less(point(self.last), low):
            return AFTER
        return ERA if self.era and build.era and self.era != build.era else ""


@dataclass(frozen=True, slots=True, init=False)
class Versions:
    """Words and ranges: the text, and what a machine reads of it."""

    parts: tuple[str | Range, ...]

    def __init__(self, *parts: str | Range) -> None:
        object.__setattr__(self, "parts", parts)

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    def ranges(self, figures: Iterable[str] = ()) -> tuple[Range, ...]:
        """The ranges of some figures of one surface: their own, or those of all that it writes."""
        wanted = set(figures)
        every = [part for part in self.parts if isinstance(part, Range)]
        return tuple(r for r in every if wanted & set(r.of)) or tuple(r for r in every if not r.of)


@dataclass(frozen=True, slots=True)
class Way:
    """How to switch something on in a range of versions."""

    range: Range
    text: str


@dataclass(frozen=True, slots=True, init=False)
class Switch:
    """What to switch on: `text` where no version is known, else the first way that there is in that version."""

    text: str
    ways: tuple[Way, ...]

    def __init__(self, text: str, *ways: Way) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "ways", ways)

    def __str__(self) -> str:
        return self.text

    def at(self, build: Build | None) -> str:
        """The way of a build; the text where it has none."""
        chosen = self.way(build)
        return self.text if chosen is None else chosen.text

    def way(self, build: Build | None) -> Way | None:
        """The first way that a build has."""
        return None if build is None else next((w for w in self.ways if not w.range.miss(build)), None)


def build_of(engine: str, version: str | None, era: str | None = None) -> Build | None:
    """A version that can be compared; None for a word that is no version."""
    word = _WORD.match(version or "")
    text = "" if word is None else word[0]
    if _DATE.fullmatch(text):
        return Build(text, era, (), point(text), point(text))
    found = _NUMBER.match(text)
    if found is None or _UNTAGGED.match(text):
        return None
    number = tuple(map(int, found[1].split(".")))
    dates = [(_key(known), point(date)) for known, date in RELEASED.get(engine, ())]
    own = _key(text)
    earliest = [date for known, date in dates if known <= own]
    latest = [date for known, date in dates if known >= own]
    return Build(text, era, _padded(number), max(earliest, default=None), min(latest, default=None))


def newest(engine: str, told: Iterable[tuple[str | None, str | None]]) -> Build | None:
    """The newest of the versions (each with its era) that logs tell.

    Who has several wants to know what to switch on from now on: that is in the newest, and older ones were upgraded.
    """
    builds = [b for version, era in told if (b := build_of(engine, version, era)) is not None]
    return max(builds, key=lambda b: b.rank, default=None)


def upgrade(ranges: Iterable[Range], build: Build) -> Range | None:
    """The nearest range that begins after a build."""
    later = [r for r in ranges if r.miss(build) == BEFORE]
    return min(later, key=lambda r: point(r.first), default=None)


def newer_era(ranges: Iterable[Range], build: Build) -> Range | None:
    """What a newer generation of the engine writes in the same version; nobody is sent back to an old one."""
    return next((r for r in ranges if r.miss(build) == ERA and r.era > (build.era or "")), None)


def at_first(engine: str, found: Range) -> Build | None:
    """The build that a range begins with."""
    return build_of(engine, found.first, found.era or None)


def named(first: str) -> str:
    """The first version of a range, in a sentence."""
    return f"a build of {first}" if _DATE.fullmatch(first) else first


def point(text: str) -> Point:
    """A number or a date for comparisons."""
    return tuple(map(int, text.lstrip("vb").replace("-", ".").split(".")))


def _bounds(end: str, build: Build) -> tuple[Point | None, Point | None]:
    """The lowest and the highest that a build can be, on the scale of one end of a range."""
    return (build.earliest, build.latest) if _DATE.fullmatch(end) else (build.number or None, build.number or None)


def _is_less(one: Point | None, other: Point | None) -> bool:
    """Whether one lies before the other, as far as both are told: of 2026-03 and 2026-03-15 nobody knows."""
    if one is None or other is None:
        return False
    both = min(len(one), len(other))
    return one[:both] < other[:both]


def _padded(number: Point) -> Point:
    return (*number, *(0,) * (_PARTS - len(number)))


def _key(version: str) -> Point:
    """Order of releases: candidates come before the release they are of."""
    found = _NUMBER.match(version)
    assert found is not None
    return (*_padded(tuple(map(int, found[1].split(".")))), int(found[2]) if found[2] else _FINAL)
