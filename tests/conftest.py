"""What holds for all tests: a busy machine makes a property no less true."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import settings

#: Part of its examples that a property tries: all of them, and more, belong to a long run by hand, which draws others
#: each time. Without it every run tries the same: what passed here passes in the gate.
SHARE = float(os.environ.get("TRACELENS_EXAMPLES", "0.25"))

settings.register_profile("calm", deadline=None, derandomize="TRACELENS_EXAMPLES" not in os.environ)
settings.load_profile("calm")


#: All tests, also those that the gate has no time for.
ALL = "TRACELENS_LONG" in os.environ


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long, and cut the examples of every property: the suite ends within the gate's time."""
    is_chosen = config.option.keyword or config.option.markexpr or any("::" in argument for argument in config.args)
    if not ALL and not is_chosen:
        _leave_out(config, items)
    _cut(items)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that are marked `long`, but for the first case of those that have several."""
    seen: set[str] = set()
    kept, left = [], []
    for item in items:
        mark = item.get_closest_marker("long")
        name, _, case = item.nodeid.partition("[")
        is_first = bool(case) and name not in seen and mark is not None and mark.kwargs.get("first", True)
        seen.add(name)
        (kept if mark is None or is_first else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _cut(items: Sequence[pytest.Item]) -> None:
    found = [f for i in items if hasattr(f := getattr(i, "obj", None), "hypothesis")]
    for function in {id(f): f for f in (getattr(f, "__func__", f) for f in found)}.values():
        name = "_hypothesis_internal_use_settings"
        given = getattr(function, name, None) or settings.default
        if given is not None:
            setattr(function, name, settings(given, max_examples=max(5, round(given.max_examples * SHARE))))


# A fault of a reader ends a test, and is not counted as a refused record. Worker and child processes inherit it.
os.environ["TRACELENS_RAISE_FAULTS"] = "1"
