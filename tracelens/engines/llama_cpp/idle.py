"""Where in a log no task is under way: what stands above such a line needs nothing that stands below it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.engines.base import PartsError
from tracelens.engines.llama_cpp.surfaces import DRAFTING, REQUEST, ROUND, TASK

Places = npt.NDArray[np.int64]

_TASK = ("stream", "child", "task")
_NEVER = 2**62


class Idle:
    """Finds these lines, part by part: each is the first that tells of a task when all others have ended.

    A task ends with the last of its lines, once its slot was released (`stop processing`); a log whose builds or level
    do not say so has no idle moment.
    """

    def __init__(self) -> None:
        self._is_later = False

    def lines(self, text: Mapping[str, pl.DataFrame]) -> Places:
        """The lines, in order.

        Args:
            text: frames of a part by surface, from an idle moment on.

        Raises:
            PartsError: a task that none of the lines launched, in a part that has others above it.
        """
        told = [
            f.select("line", *_TASK, "kind") for s in (REQUEST, ROUND, DRAFTING, TASK) if (f := text.get(s)) is not None
        ]
        if not told:
            return np.empty(0, np.int64)
        every = pl.concat(told).sort("line", maintain_order=True)
        tasks = _tasks(every.filter(pl.col("task") >= 0))
        if self._is_later and not tasks["launched"].all():
            raise PartsError("lines of a task that ended before")
        before = tasks["ends"].cum_max().shift(1, fill_value=-1).to_numpy()
        begins = tasks["begins"].to_numpy()
        free = (begins > before) & tasks["launched"].to_numpy()
        # The parameters of a task's sampler are printed before it is launched.
        samplers = every.filter(pl.col("kind") == "sampler")["line"].to_numpy()
        at = np.searchsorted(samplers, before, side="right")
        first = np.append(samplers, _NEVER)[at]
        found: Places = np.minimum(first, begins)[free]
        return found

    def cut(self) -> None:
        """Go on with the lines from an idle moment on."""
        self._is_later = True


def _tasks(every: pl.DataFrame) -> pl.DataFrame:
    """Tasks in the order of their first lines: `begins`, `ends` (far off while it may go on), `launched`.

    Numbers come again after a restart, and in a log that was copied into itself: each launch is a task.
    """
    launch, release = pl.col("kind") == "launch", pl.col("kind") == "release"
    numbered = every.with_columns(_launch=launch.cast(pl.Int64).cum_sum().over(_TASK))
    tasks = numbered.group_by(*_TASK, "_launch", maintain_order=True).agg(
        begins=pl.col("line").min(),
        ends=pl.when(release.any()).then(pl.col("line").max()).otherwise(pl.lit(_NEVER)),
        launched=launch.any(),
    )
    return tasks.sort("begins", maintain_order=True)
