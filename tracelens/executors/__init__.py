"""Engines that run parts of a command on other machines. They know nothing of what they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol


class Executor(Protocol):
    """Runs one function on many tasks, on whatever machines there are."""

    def run(self, function: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        """Give `function(common, task)` of every task, in the order of the tasks.

        Function, arguments and results travel by pickle. A task may run twice (a machine that dies, a slow one), and
        then one result counts.

        Raises:
            TracelensError: what a task says is wrong, or that the cluster gave up on it.
        """
        ...

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        ...
