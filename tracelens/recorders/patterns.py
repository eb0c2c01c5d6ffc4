"""Patterns over a client's id that cannot hold up an engine.

Python's `re` tries one way after another, and a client chooses the id: `(a+)+` needs 2^n tries for n letters. So an id
is looked at in its first 64 characters, and a pattern is taken only where the ways to match so many characters from one
place are few. The bound is counted on the parsed pattern: a repeat of one way has as many as it has lengths, one of w
ways w^0 + w^1 + ... , what follows multiplies, alternatives add up.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

# Of the id: what is searched.
LENGTH = 64
# Three open repeats, one behind another: 65^3 is just below. Worst measured search 13 ms.
_MOST_WAYS = 300_000
_ONE_WAY = frozenset({"LITERAL", "NOT_LITERAL", "IN", "ANY", "ANY_ALL", "AT", "RANGE", "CATEGORY", "FAILURE"})


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern that has a group and is quick on any text of `LENGTH` characters.

    Raises:
        ValueError: no pattern, without a group, or slow.
    """
    try:
        made = re.compile(pattern)
        ways = _ways(import_module("re._parser").parse(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"task: not a pattern: {error}") from None
    if made.groups < 1:
        raise ValueError("task: the pattern has no group (…) to take the task type from")
    if ways > _MOST_WAYS:
        raise ValueError(
            "task: a client's id could make this pattern slow: take no repeat inside a repeat, no reference back to a "
            "group, and at most three open repeats (* or +)"
        )
    return made


def task_of(pattern: re.Pattern[str], request_id: str) -> str | None:
    """The first group in the first 64 characters of an id."""
    found = pattern.search(request_id, 0, LENGTH)
    return found.group(1) if found else None


def _ways(parsed: Any) -> int:
    """Bound on the ways to match at one place of `LENGTH` characters; beyond the most where it is not known."""
    ways = 1
    for operator, argument in parsed:
        ways = min(ways * _of(str(operator), argument), _MOST_WAYS + 1)
    return ways


def _of(operator: str, argument: Any) -> int:
    if operator in _ONE_WAY:
        return 1
    if operator == "BRANCH":
        return sum(_ways(alternative) for alternative in argument[1])
    if operator == "SUBPATTERN":
        return _ways(argument[3])
    if operator in ("ASSERT", "ASSERT_NOT"):
        return _ways(argument[1])
    if operator == "ATOMIC_GROUP":
        return _ways(argument)
    if operator in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, body = int(argument[0]), int(argument[1]), _ways(argument[2])
        if body == 1:
            return max(min(most, LENGTH) - least, 0) + 1
        total = 0
        for times in range(min(least, LENGTH), min(most, LENGTH) + 1):
            total += body**times
            if total > _MOST_WAYS:
                break
        return total
    return _MOST_WAYS + 1  # a reference back to a group, or what later versions bring
