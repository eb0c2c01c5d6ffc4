"""Reading numbers out of decoded JSON without trusting it: whole numbers, finite numbers, durations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

Told = TypeVar("Told")

INT32_MAX = 2**31 - 1
# No engine drafts more tokens in a round; a figure beyond it is no draft, and its positions could not be counted.
LONGEST_DRAFT = 65_536
# Positions of a draft that are counted one by one. Engines draft up to some tens of tokens in a round (chains up to 16,
# trees and n-gram lookups up to 64 by their own defaults and limits); counters of more positions are a mistake, and
# each one is a column.
MOST_POSITIONS = 256
INT64_MAX = 2**63 - 1
#: 31 years in us: no step and no request takes longer, and sums of more, or squares, would not fit their type.
LONGEST_US = 10**15
# From here on a double no longer holds every whole number: a larger float is no count.
_FLOAT_WHOLE = 2.0**53


# Why a request ended, in the words of the engines and of the APIs they serve. Anything else that stands in the place of
# such a word may be what somebody wrote, and is not kept.
FINISH_REASONS = frozenset((
    "stop", "length", "abort", "error", "repetition", "tool_calls", "function_call", "content_filter",
    "aborted", "cancelled", "timeout", "incomplete", "not_finished", "finish", "finished", "preempt", "suffix",
    "end_id", "stop_words", "stop_sequence", "stop_string", "stop_token", "stop_token_id", "eos", "eos_token", "limit",
    "word", "none", "end_turn", "max_tokens", "max_length", "tool_use", "model_length", "insufficient_system_resource",
))  # fmt: skip


class BrokenError(ValueError):
    """A record of ours that cannot be used; the message is the reason of its reject."""


def whole(value: object, name: str, high: int = INT64_MAX) -> int:
    """Read a count: a whole number from 0 to `high`.

    Raises:
        BrokenError: not a number, not whole, negative, or out of range.
    """
    number = finite(value, name)
    if not number.is_integer():
        raise BrokenError(f"{name}: not a whole number")
    if number < 0:
        raise BrokenError(f"{name}: negative")
    count = value if isinstance(value, int) else int(number)
    if count > high or (isinstance(value, float) and number > _FLOAT_WHOLE):
        raise BrokenError(f"{name}: out of range")
    return count


def finite(value: object, name: str) -> float:
    """Read a real number.

    Raises:
        BrokenError: not a number, NaN, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BrokenError(f"{name}: wrong type")
    try:
        number = float(value)
    except OverflowError:
        raise BrokenError(f"{name}: out of range") from None
    if not math.isfinite(number):
        raise BrokenError(f"{name}: not a finite number")
    return number


def real(value: object) -> float | None:
    """A number as a double, or None: no number, or one that no double holds. NaN and the infinities stay."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def integer(value: object, low: int = -INT64_MAX - 1, high: int = INT64_MAX) -> int | None:
    """A whole number that a column of 64 bits (or from `low` to `high`) holds, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None


def nearest(number: float, name: str) -> int:
    """The whole number next to a figure that was computed of others, which may have left all bounds.

    Raises:
        BrokenError: NaN, or not finite.
    """
    if not math.isfinite(number):
        raise BrokenError(f"{name}: out of range")
    return round(number)


def meaning(table: Mapping[str, Told], word: object) -> Told | None:
    """What a word of a record means; None where it is none of the table, or no text (a list has no hash)."""
    return table.get(word) if isinstance(word, str) else None


def finish_reason(value: object) -> str | None:
    """Why a request ended, where it is a word of `FINISH_REASONS` (in any case, which is kept); else None."""
    return value if isinstance(value, str) and value.lower() in FINISH_REASONS else None


def text(value: object, name: str, is_id: bool = False) -> str:
    """Read a text that can be stored as UTF-8; an id may be a number in a log, and is text in the lake.

    Raises:
        BrokenError: no text, or one with a lone surrogate.
    """
    if is_id and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise BrokenError(f"{name}: wrong type")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BrokenError(f"{name}: not text") from None
    return value


def boolean(value: object, name: str) -> bool:
    """Read true or false.

    Raises:
        BrokenError: something else.
    """
    if not isinstance(value, bool):
        raise BrokenError(f"{name}: wrong type")
    return value


def counts(value: object, name: str) -> list[int]:
    """Read a list of counts.

    Raises:
        BrokenError: no list, or an element that is no count.
    """
    if not isinstance(value, list):
        raise BrokenError(f"{name}: wrong type")
    return [whole(item, name) for item in value]


def duration(value: object, name: str, factor: int, as_float: bool = False) -> float:
    """Read a duration in a unit of `factor` us as whole microseconds (or as it is, `as_float`).

    Half a microsecond goes up, not to the even side, because that is what `floor(x * factor + 0.5)` says in SQL too.

    Raises:
        BrokenError: not a finite number, negative, or out of range.
    """
    number = finite(value, name)
    if number < 0:
        raise BrokenError(f"{name}: negative")
    if number * factor >= INT64_MAX:
        raise BrokenError(f"{name}: out of range")
    if as_float:
        return number * factor
    return value * factor if isinstance(value, int) else math.floor(number * factor + 0.5)


def fits(values: Sequence[object], high: int) -> bool:
    """Whether a column of counts needs no reading cell by cell: whole numbers from 0 to `high`, or None."""
    if not set(map(type, values)) <= {int, type(None)}:
        return False
    numbers = [v for v in values if isinstance(v, int)]
    return not numbers or (min(numbers) >= 0 and max(numbers) <= high)
