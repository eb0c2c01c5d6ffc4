"""Where in a log a server has no task under way: what stands above such a line needs nothing that stands below it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracelens.engines.base import PartsError
from tracelens.engines.llama_cpp.surfaces import DRAFTING, REQUEST, ROUND, TASK
from tracelens.engines.parted import Frames

#: A process; lines of several may stand between each other.
WRITER = ("stream", "child")
_TOLD = ("line", *WRITER, "slot", "task", "kind")
_NEVER = 2**62


class Idle:
    """Finds these moments, part by part: each is the first line of a task when all others of its process have ended.

    A task ends with the last of its lines, once its slot was released (`stop processing`) or has another task.
    """

    def __init__(self) -> None:
        self._done = pl.DataFrame(schema={"stream": pl.String, "child": pl.String})

    def moments(self, text: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """The moments: `stream`, `child`, `line`, in order.

        Args:
            text: frames by surface: what a process says from its last idle moment on.

        Raises:
            PartsError: a task that no line launched, of a process whose tasks had all ended.
        """
        told = [f.select(_TOLD) for s in (REQUEST, ROUND, DRAFTING, TASK) if (f := text.get(s)) is not None]
        every = pl.concat(told) if told else pl.DataFrame(schema=dict.fromkeys(_TOLD, pl.String) | {"line": pl.Int64})
        every = every.sort("line", maintain_order=True).with_columns(pl.col(WRITER).fill_null(""))
        tasks = _tasks(every.with_columns(_at=_beginning()).filter(pl.col("task").cast(pl.Int64) >= 0))
        if tasks.filter(~pl.col("launched")).join(self._done, on=WRITER, how="semi").height:
            raise PartsError("lines of a task that ended before")
        before = pl.col("ends").cum_max().shift(1).over(WRITER).fill_null(-1)
        free = tasks.filter((pl.col("begins") > before) & pl.col("launched"))
        return free.select(*WRITER, line="begins").sort("line", maintain_order=True)

    def cut(self, moments: pl.DataFrame, text: Mapping[str, pl.DataFrame]) -> tuple[Frames, Frames]:
        """The lines above the last moment of their process, with the number of moments above each (`idle`); and the
        others, which the next part begins with."""
        last = moments.group_by(WRITER, maintain_order=True).agg(_last=pl.col("line").max())
        self._done = pl.concat([self._done, last.select(WRITER)]).unique()
        above: Frames = {}
        below: Frames = {}
        for surface, frame in numbered(moments, text).items():
            keyed = frame.with_columns(_stream=pl.col("stream").fill_null(""), _child=pl.col("child").fill_null(""))
            keyed = keyed.join(last, left_on=("_stream", "_child"), right_on=WRITER, how="left", maintain_order="left")
            goes = (pl.col("line") < pl.col("_last")).fill_null(False)
            above[surface] = keyed.filter(goes).drop("_stream", "_child", "_last")
            below[surface] = keyed.filter(~goes).drop("_stream", "_child", "_last", "idle")
        return above, below


def numbered(moments: pl.DataFrame, text: Mapping[str, pl.DataFrame]) -> Frames:
    """The lines with `idle`: how many moments of their process stand above each, or with it."""
    marks = moments.with_columns(idle=pl.int_range(1, pl.len() + 1).over(WRITER)).rename({"line": "_at"})
    marks = marks.rename({"stream": "_stream", "child": "_child"}).sort("_at")
    found: Frames = {}
    for surface, frame in text.items():
        keyed = frame.with_columns(_stream=pl.col("stream").fill_null(""), _child=pl.col("child").fill_null(""))
        joined = keyed.join_asof(
            marks, left_on="line", right_on="_at", by=["_stream", "_child"], strategy="backward", check_sortedness=False
        )
        found[surface] = joined.with_columns(pl.col("idle").fill_null(0)).drop("_stream", "_child", "_at")
    return found


def _beginning() -> pl.Expr:
    """Where a line's task begins to be told of: the parameters of a task's sampler are printed before its launch."""
    kind = pl.col("kind")
    sampler = pl.when(kind == "sampler").then("line").forward_fill().over(WRITER)
    launched = pl.when(kind == "launch").then("line").shift(1).forward_fill().over(WRITER)
    own = (kind == "launch") & (sampler > launched.fill_null(-1))
    return pl.when(own.fill_null(False)).then(sampler).otherwise("line")


def _tasks(every: pl.DataFrame) -> pl.DataFrame:
    """Tasks in the order of their first lines: `begins`, `ends` (far off while one may go on), `launched`.

    Numbers come again after a restart, and in a log that was copied into itself: each launch is a task.
    """
    launch = pl.col("kind") == "launch"
    counted = every.with_columns(_launch=launch.cast(pl.Int64).cum_sum().over(*WRITER, "task"))
    last = pl.col("line").max()
    tasks = counted.group_by(*WRITER, "task", "_launch", maintain_order=True).agg(
        pl.col("slot").first(),
        begins=pl.col("_at").min(),
        at=pl.when(launch).then("line").min(),
        ends=last,
        released=pl.col("kind").is_in(["release", "stop"]).any(),
        launched=launch.any(),
    )
    # A slot has one task at a time.
    tasks = tasks.sort("begins", maintain_order=True)
    following = pl.when("launched").then("at").shift(-1).backward_fill().over(*WRITER, "slot") - 1
    ends = pl.when("released").then("ends").otherwise(pl.max_horizontal("ends", following.fill_null(_NEVER)))
    return tasks.with_columns(ends=ends)
