"""TensorRT-LLM's iterations and finished requests of one source as canonical rows, in one go or part by part.

Requests are whole by themselves; what iterations have of each other is in `step_windows`. The steps that requests list
wait for the end: a step is told by all requests that were in it, and one of them may finish much later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import polars as pl

from tracelens.engines.base import Context, Tables
from tracelens.engines.parted import Lines
from tracelens.engines.tensorrt_llm import perf, request_steps, step_windows, steps
from tracelens.engines.tensorrt_llm.step_windows import joined

_REQUESTS = (perf.PERF, perf.RESPONSE)
SURFACES: Collection[str] = (steps.STATS, steps.LOG, request_steps.STEPS, *_REQUESTS)


class Log:
    """Takes the records of a source, in order.

    Args:
        resolve: as `Context.resolve`, of a clock that goes on from part to part.
    """

    def __init__(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._lines = Lines(resolve)
        self._stats = step_windows.Stats()
        self._log = step_windows.Log()
        self._listed = request_steps.Listed()

    def part(self, whole: Mapping[str, pl.DataFrame], source_id: str) -> Tables:
        """The next records: their rows, but for the last iteration of each rank and for steps that requests list.

        Args:
            whole: frame by surface, of `SURFACES`.
            source_id: as in `Context`.

        Raises:
            PartsError: the rows are not what they would be if the source came in one go.
        """
        return self._rows(whole, source_id, is_last=False)

    def rest(self, whole: Mapping[str, pl.DataFrame], context: Context) -> Tables:
        """The last records, and all that waited; as `part`."""
        tables = self._rows(whole, context.source_id, is_last=True)
        tables.windows = joined([tables.windows, self._listed.windows()])
        tables.rejects += self._stats.lost()
        return tables

    def _rows(self, whole: Mapping[str, pl.DataFrame], source_id: str, *, is_last: bool) -> Tables:
        frames, self._lines.last = self._lines.take(whole)
        self._listed.see(frames.get(request_steps.STEPS))
        return Tables(
            windows=joined([
                self._stats.windows(frames.get(steps.STATS), is_last=is_last),
                self._log.windows(frames.get(steps.LOG), is_last=is_last),
            ]),
            requests=joined([perf.requests(s, frames[s], source_id) for s in _REQUESTS if s in frames]),
        )  # fmt: skip
