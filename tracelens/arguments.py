"""Arguments of the Python API: what they may be, and errors in their words where the analyses name options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from operator import index
from typing import SupportsIndex

from tracelens.errors import InputError

# Options that are arguments of a method, under the same name.
_OPTION = re.compile(
    r"--(by|where|since|until|run|baseline|claim|near-k|k|margin|min-requests|max-near-k|chart|lake)(?![\w-])"
)
# A whole command, which is meant for a shell.
_COMMAND = re.compile(r"(`tracelens [^`]*`)")


def in_python(text: str) -> str:
    """A message with the names of arguments (`max_near_k`) in place of options (`--max-near-k`).

    Options that no method has (`--role` of ingest) and whole commands in backticks stay as they are.
    """
    parts = _COMMAND.split(text)
    return "".join(
        part if part.startswith("`tracelens ") else _OPTION.sub(lambda found: found[1].replace("-", "_"), part)
        for part in parts
    )


@contextmanager
def named_in_python() -> Iterator[None]:
    """Let errors of the block name arguments.

    Raises:
        InputError: that of the block, in the words of Python.
    """
    try:
        yield
    except InputError as error:
        raise InputError(in_python(str(error))) from error.__cause__


def text(name: str, value: object, such_as: str) -> str:
    """An argument that must be text.

    Raises:
        InputError: it is something else, or empty; the message names the argument and says what is meant (`such_as`).
    """
    if not isinstance(value, str):
        raise InputError(f"{name} must be {such_as}, not {shown(value)}")
    if not value.strip():
        raise InputError(f"{name} is empty: give {such_as}, or leave it out")
    return value


def names(name: str, value: object) -> list[str]:
    """An argument that is one name, or several in a list, tuple, set or other iterable.

    Raises:
        InputError: anything else, or a part that is no text.
    """
    if isinstance(value, str):
        return [value]
    parts = list(value) if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray) else None
    if value is not None and (parts is None or not all(isinstance(part, str) for part in parts)):
        raise InputError(f"{name} must be a name or a list of names, not {shown(value)}")
    return [part for part in parts or () if isinstance(part, str)]


def whole(name: str, value: object) -> int:
    """An argument that is a whole number: an int, or what stands for one (a NumPy integer), but no truth value.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return index(value)
    raise InputError(f"{name} must be a whole number, not {shown(value)}")


def number(name: str, value: object) -> float:
    """An argument that is a number; neither text nor a truth value is one.

    Raises:
        InputError: it is something else, or too large for a float.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(f"{name} must be a number, not {shown(value)}")
    try:
        return float(value)
    except OverflowError as error:
        raise InputError(f"{name} is too large") from error


def shown(value: object) -> str:
    """A value in a message: by its own words where they are short, else by its kind."""
    try:
        words = repr(value)
    except Exception:  # of somebody else's class
        words = ""
    return words if 0 < len(words) <= 60 else f"a {type(value).__name__}"
