"""SGLang's text log of one source as canonical rows, in one go or part by part.

What a line says depends on the lines above it (`windows.Decode`), and on what all lines of a server tell together: its
lowest rank, whether it prints its prefills, how often its lines come, how many tokens it drafts. All but the last lines
of a long log tell so; where a later one changes it, the log is put together in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, Tables
from tracelens.engines.parted import Lines, Runs
from tracelens.engines.sglang import lines, requests, runs, windows

_REQUESTS = (requests.LOG, requests.EXPORT, requests.RESPONSE)
SURFACES: Collection[str] = (lines.DECODE, lines.PREFILL, lines.START, lines.ADAPTIVE, lines.SIMULATED, *_REQUESTS)

_Held = Sequence[tuple[str | None, int, int | None, int]]


class Log:
    """Takes the lines of a log, in order.

    Args:
        resolve: as `Context.resolve`, of a clock that goes on from part to part.
    """

    def __init__(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._lines = Lines(resolve)
        self._runs = Runs()
        self._decode = windows.Decode()
        self._prefill = windows.FirstRank()
        # Few lines, which later ones are read by.
        self._waiting: dict[str, list[pl.DataFrame]] = {}

    def part(self, whole: Mapping[str, pl.DataFrame], source_id: str) -> Tables:
        """The next lines.

        Args:
            whole: frame by surface, of `SURFACES`.
            source_id: as in `Context`.

        Returns:
            Their rows, and the runs so far.

        Raises:
            PartsError: the rows are not what they would be if the log came in one go.
        """
        text, self._lines.last = self._lines.take(whole)
        for surface in text.keys() & {lines.START, lines.SIMULATED}:
            self._waiting.setdefault(surface, []).append(text.pop(surface))
        tables = Tables()
        begun, held = self._begun()
        keyed = {surface: runs.with_run(frame, begun) for surface, frame in text.items()}
        prefills = keyed.get(lines.PREFILL)
        made = [self._decode.windows(keyed.get(lines.DECODE), prefills, keyed.get(lines.ADAPTIVE))]
        if prefills is not None:
            made.append(windows.prefill(self._prefill.of(prefills)))
        tables.windows = _joined([rows for rows in made if rows is not None], held)
        asked = [requests.requests(s, keyed[s], source_id) for s in _REQUESTS if s in keyed]
        tables.requests = _joined(asked, held)
        under = pl.col("run_key").is_in([key for *_, key in held])
        told = begun.with_columns(forced_acceptance=pl.when(under).then(pl.lit(True)), config=runs.config())
        tables.runs = self._runs.told(told) if begun.height else None
        return tables

    def rest(self, whole: Mapping[str, pl.DataFrame], context: Context) -> Tables:
        """The last lines; as `part`."""
        return self.part(whole, context.source_id)

    def _begun(self) -> tuple[pl.DataFrame, _Held]:
        """The starts so far, and the lines under simulated acceptance (`runs.spans`)."""
        starts, switches = (self._waiting.get(surface) for surface in (lines.START, lines.SIMULATED))
        begun = pl.DataFrame(schema=runs.SCHEMA)
        if starts is not None:
            whole = pl.concat(starts)
            begun = runs.of(whole, whole["ts"])
        return begun, runs.spans(pl.concat(switches), begun) if switches is not None else []


def _joined(parts: Sequence[pl.DataFrame], held: _Held) -> pl.DataFrame | None:
    if not parts:
        return None
    rows = pl.concat(parts, how="diagonal").sort("source_line", maintain_order=True)
    return rows.with_columns(forced_acceptance=runs.forced(held, "source_line")).drop("stream")
