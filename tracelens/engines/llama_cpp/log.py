"""llama-server's text log of one source as canonical rows, in one go or part by part.

What a line says depends on the other lines of its task, on tasks that share its steps, on the starts above it, and on
the last counters of its process. So a part ends where no task is under way, and what stands below waits for the next
one; a log of a server that is never idle is put together at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, PartsError, Tables
from tracelens.engines.llama_cpp import blocks, rounds, startup, statistics
from tracelens.engines.llama_cpp.idle import Idle, numbered
from tracelens.engines.llama_cpp.request_rows import basis, process, request_rows
from tracelens.engines.llama_cpp.surfaces import DRAFTING, REQUEST, ROUND, START, STATISTICS, TASK
from tracelens.engines.parted import Frames, Lines, Runs

SURFACES: Collection[str] = (REQUEST, TASK, ROUND, DRAFTING, STATISTICS, START)

_EVENT = ("line", "offset", "clock", "run_key", "idle", "slot", "task", "accepted", "drafted", "n_tokens")


class Log:
    """Takes the lines of a log, in order.

    Args:
        resolve: as `Context.resolve`, of a clock that goes on from part to part.
    """

    def __init__(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._lines = Lines(resolve)
        self._runs = Runs()
        self._starts: list[pl.DataFrame] = []
        self._held: dict[str, list[pl.DataFrame]] = {}
        self._enough = 0  # lines that wait, before they are looked through again
        self._idle = Idle()
        self._windows = statistics.Windows()
        self._spent = statistics.DraftTimes()
        self._slots = 0
        self._counted: dict[str, bool] = {}
        self._given: dict[tuple[int, str], int | None] = {}

    def part(self, whole: Mapping[str, pl.DataFrame], source_id: str) -> Tables:
        """The rows of the lines so far of each process above its last idle moment, and the runs.

        Args:
            whole: frame by surface, of `SURFACES`.
            source_id: as in `Context`.

        Raises:
            PartsError: the rows are not what they would be if the log came in one go.
        """
        self._take(whole)
        # Lines of a task that does not end are looked through when there are twice as many.
        if sum(f.height for parts in self._held.values() for f in parts) < self._enough:
            return Tables(runs=_bare(self._told()[0]))
        text = self._waiting()
        above, below = self._idle.cut(self._idle.moments(text), text)
        self._held = {surface: [frame] for surface, frame in below.items() if frame.height}
        self._enough = 2 * sum(frame.height for frame in below.values())
        return self._rows(above, source_id)

    def rest(self, whole: Mapping[str, pl.DataFrame], context: Context) -> Tables:
        """The rows of all that is left; as `part`."""
        self._take(whole)
        text = self._waiting()
        self._held = {}
        tables = self._rows(numbered(self._idle.moments(text), text), context.source_id)
        tables.rejects += self._windows.rejects()
        return tables

    def _take(self, whole: Mapping[str, pl.DataFrame]) -> None:
        """Put the next lines with their times below those that wait."""
        none = pl.lit(None, pl.String).alias("inner")
        text, self._lines.last = self._lines.take({s: f.with_columns(none) for s, f in whole.items()})
        if START in text:
            self._starts.append(text.pop(START))
        slots = [f["slot"].max() for f in text.values() if "slot" in f.columns]
        self._slots = max([self._slots, *(n + 1 for n in slots if isinstance(n, int))])
        for surface, frame in text.items():
            self._held.setdefault(surface, []).append(frame)

    def _waiting(self) -> Frames:
        """All lines that wait."""
        return {surface: pl.concat(parts, how="diagonal") for surface, parts in self._held.items()}

    def _told(self) -> tuple[pl.DataFrame | None, Mapping[tuple[int, str], int]]:
        """The starts so far, and K by run and drafter."""
        if not self._starts:
            return None, {}
        starts = pl.concat(self._starts)
        found, longest = startup.runs(starts)
        for drafter, k in self._given.items():
            if longest.get(drafter) != k:
                raise PartsError("settings of a drafter below its figures")
        times = starts.select(first_line="line", started="ts").unique("first_line", keep="first", maintain_order=True)
        found = found.join(times, on="first_line", how="left", maintain_order="left")
        self._runs.told(_bare(found))
        return found, longest

    def _rows(self, text: Frames, source_id: str) -> Tables:
        """Canonical rows of lines whose tasks have all ended, or will not, with `idle`."""
        tables = Tables()
        one_slot = self._is_one_slot()
        runs, longest = self._told()
        text = {s: startup.with_run(f, runs) for s, f in text.items() if f.height}
        found = _requests(text, tables)
        if ROUND in text:
            found = self._with_rounds(text, found, 1 if one_slot else self._slots, tables)
        if STATISTICS in text:
            tables.windows = self._statistics(text[STATISTICS], 1 if one_slot else self._slots, longest)
        spent = self._spent.of(tables.windows, found)
        if STATISTICS in text and one_slot:
            found = found.with_columns(spent)
        if found.height:
            tables.requests = request_rows(found, REQUEST, source_id, counted=self._is_counted(REQUEST, found))
        if tables.windows is not None:
            tables.windows = tables.windows.drop("stream", "child")
        tables.runs = _bare(runs)
        return tables

    def _is_one_slot(self) -> bool:
        """Whether there is one slot: no line names another. What was written so must stay so."""
        one = self._slots <= 1
        if self._counted.setdefault("slots", one) != one:
            raise PartsError("slots that are told of late")
        return one

    def _is_counted(self, surface: str, frame: pl.DataFrame) -> bool:
        """Whether some line of a surface has the time since the start of its process."""
        counted = bool(frame["clock"].is_not_null().any())
        if self._counted.setdefault(surface, counted) < counted:
            raise PartsError("times since the start that are told of late")
        return self._counted[surface]

    def _with_rounds(
        self, text: Mapping[str, pl.DataFrame], found: pl.DataFrame, slots: int, tables: Tables
    ) -> pl.DataFrame:
        """Make the rounds; the requests come back with what their round lines add up to, where both agree."""
        used = [s for s in (ROUND, DRAFTING) if s in text]
        parts = [text[s].with_columns(drafting=pl.lit(s == DRAFTING)) for s in used]
        events = pl.concat([_typed((), (), _EVENT), *parts], how="diagonal").sort("line", maintain_order=True)
        each = rounds.of_tasks(events, found, tables.rejects)
        launches = text[TASK].filter(pl.col("kind") == "launch") if TASK in text else events.clear()
        rows = rounds.canonical(each, found, slots, launches).sort("line", maintain_order=True)
        tables.rounds = rows.select(
            pl.exclude("line", "child", "ts_basis"),
            ts_basis=basis(rows["ts_basis"], self._is_counted(ROUND, each)),
            process=process(),
            source_line="line",
            surface=pl.lit(ROUND),
        )
        sums = rounds.by_request(each)
        found = found.with_row_index("request").with_columns(pl.col("request").cast(pl.Int64))
        found = found.join(sums, on="request", how="left", maintain_order="left", suffix="_seen")
        same = (pl.col("drafted") == pl.col("drafted_seen")) & (pl.col("accepted") == pl.col("accepted_seen"))
        return found.with_columns(
            counts_basis=pl.when(same).then(pl.lit("logged")).otherwise("counts_basis"),
            **{c: pl.when(same).then(f"{c}_seen").otherwise(c) for c in ("rounds", "accepted_hist")},
        ).drop("request", *(f"{c}_seen" for c in ("drafted", "accepted", "rounds", "accepted_hist")))

    def _statistics(self, said: pl.DataFrame, slots: int, longest: Mapping[tuple[int, str], int]) -> pl.DataFrame:
        """Windows between statistics lines, each with the K of its own drafter."""
        said = said.with_columns(
            ts_basis=basis(said["ts_basis"], self._is_counted(STATISTICS, said)), began=pl.col("run_key") > 0
        )
        rows = self._windows.of(said, slots)
        drafters = list(rows.select("run_key", "method").iter_rows())
        k = [longest.get(drafter) for drafter in drafters]
        self._given.update(zip(drafters, k, strict=True))
        return rows.with_columns(num_speculative_tokens=pl.Series(k, dtype=pl.Int32), process=process())


def _bare(runs: pl.DataFrame | None) -> pl.DataFrame | None:
    """Runs without what only their lines are told by."""
    return None if runs is None else runs.drop("first_line", "stamp", "stream", "child")


def _typed(texts: Sequence[str], numbers: Sequence[str], counts: Sequence[str]) -> pl.DataFrame:
    """No rows, with columns that some surfaces have and others have not."""
    kinds = ((texts, pl.String()), (numbers, pl.Float64()), (counts, pl.Int64()))
    return pl.DataFrame(schema={column: kind for columns, kind in kinds for column in columns})


def _requests(text: Mapping[str, pl.DataFrame], tables: Tables) -> pl.DataFrame:
    """Requests of the log's blocks."""
    parts = [text[s] for s in (REQUEST, TASK) if s in text]
    if STATISTICS in text:
        marks = text[STATISTICS].select("line", "stream", "child", "run_key", "idle", kind=pl.lit("statistics"))
        parts.append(marks)
    texts, numbers = ("stream", "child", "kind", "rates", "ts_basis"), ("ms", "mean", "temperature", "top_p")
    typed = _typed(texts, numbers, (*_EVENT, "tokens")).with_columns(ts=pl.lit(None, pl.Datetime("us")))
    events = pl.concat([typed, *parts], how="diagonal")
    return blocks.requests(events.sort("line", maintain_order=True), tables.rejects)
