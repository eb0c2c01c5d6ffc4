"""How a number of things is said: one place for what follows a 1 and what follows any other number."""

from __future__ import annotations


def many(number: float, one: str, several: str = "") -> str:
    """A number of things: 1 file, 1,200 files; `several` where that is not the word with an s."""
    return f"{number:,} {noun(number, one, several)}"


def in_a_line(name: object) -> str:
    """A name that somebody else gave, within one line of a message."""
    return "\\n".join(str(name).splitlines())


def noun(number: float, one: str, several: str = "") -> str:
    """The word alone, where its number is written in another way or place."""
    return one if number == 1 else several or f"{one}s"
