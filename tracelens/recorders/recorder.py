"""The recorder: canonical rounds, requests and windows of any Python engine, written beside it."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from re import Pattern
from types import TracebackType
from typing import Any, NamedTuple

from tracelens.recorders import columns, patterns
from tracelens.recorders.clocks import Clock, HostClock, Phases
from tracelens.recorders.files import RotatingFile
from tracelens.recorders.settings import Settings, new_prefix, new_run_id
from tracelens.recorders.writer import Writer, own

_log = logging.getLogger("tracelens.recorders")
# Steps whose device events are not reached yet: beyond, the oldest is written without times.
_UNREACHED = 32


class Recorder:
    """Writes what a speculating engine does, one JSON line a round, without making it wait.

    Args:
        path: folder for the files; `tracelens ingest` reads it.
        engine: name of the engine, lower case.
        clock: what phases are timed with; the host's clock by default.
        settings: all of `Settings`, with `path` as its folder; else its fields one by one: `run_id`, `sample`, `queue`,
            `rotate_mb`, `rotate_s`, `keep`, `flush_s`, `task`. A row that names its `task_type` keeps it.
        replica, process: which of the engines, and which of its processes this is.
        seed: of the choice of steps where `sample` is below 1.
        run: columns of `runs`: `model`, `draft_model`, `method`, `num_speculative_tokens`, `engine_version`, `role`, …

    Raises:
        TypeError: an unknown column or setting, a setting beside `settings`, or a column of the run that cannot be
            written. ValueError: a setting out of range. Nothing else: when the disk fails, records are lost and counted
            (`lost`), when the clock fails they have no times, and the engine goes on.

    Threads may share a recorder. It may be used in a child process: after a fork it writes a file of its own (steps
    that were begun before are the parent's), and it can be pickled. One that nobody closes is closed when it is dropped
    or the process ends.

    Example:
        >>> with Recorder("records", engine="mine", num_speculative_tokens=4) as recorder:  # doctest: +SKIP
        ...     with recorder.step() as step:
        ...         with step.draft():
        ...             proposal = draft()
        ...         with step.target():
        ...             accepted = verify(proposal)
        ...         step.round("request-1", drafted=4, accepted=accepted, emitted=accepted + 1)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        engine: str = "generic",
        clock: Clock | None = None,
        replica: str | None = None,
        process: str | None = None,
        seed: int | None = None,
        settings: Settings | None = None,
        **run: Any,
    ) -> None:
        chosen = {name: run.pop(name) for name in tuple(run) if name in Settings.__slots__ and name != "folder"}
        columns.check("run", run)
        run = columns.copied(run)
        if settings is None:
            settings = Settings(Path(path), **chosen)
        elif chosen or Path(path) != settings.folder:
            raise TypeError(f"{next(iter(chosen), 'path')}: is given beside `settings`, which has its own")
        self.settings = settings
        self.clock: Clock = clock or HostClock()
        self.run_id = settings.run_id or new_run_id(engine)
        self._given = (os.fspath(path), engine, replica, process, seed, settings, run)
        self._run = {"run_id": self.run_id, "engine": engine, "started_us": time.time_ns() // 1000, **run}
        self._place = {"replica": replica, "process": process}
        columns.check_values("run", self._run)
        columns.check_values("round", self._place)
        self._task = patterns.compiled(settings.task) if settings.task else None
        self._basis = self.clock.basis
        self._random = Random(seed)
        self._unreached: deque[_Ended] = deque()
        self._steps = itertools.count()
        self._has_told_clock = False
        self._lock = threading.RLock()  # entered again by a handler of signals that closes
        self._prefix = new_prefix()
        stem = "-".join(str(part) for part in (engine, process, replica) if part)
        self.files = RotatingFile(
            settings.folder,
            "".join(c if c.isalnum() or c in "._-" else "_" for c in stem),
            partial(columns.line, "run", self._run),
            int(settings.rotate_mb * 1_000_000),
            settings.rotate_s,
            settings.keep,
        )
        self.writer = Writer(self.files, settings.queue, settings.flush_s)
        own(self)
        # Neither what waits nor the writer holds the recorder, so that it goes with its last user.
        weakref.finalize(self, _dropped, self.writer, self._unreached).atexit = False

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (*self._given, self.run_id)

    @property
    def dropped(self) -> int:
        """Steps and requests that were not written because the queue was full."""
        return self.writer.dropped

    @property
    def lost(self) -> int:
        """Lines that could not be made, or not be written to the disk."""
        return self.files.lost

    def is_sampled(self) -> bool:
        """Whether the next step is one of those that are written."""
        return self.settings.sample >= 1 or self._random.random() < self.settings.sample

    def step(self) -> Step:
        """A step of the engine: one draft and one verification of a batch. To be used in a `with`."""
        return Step(self, self.is_sampled())

    def request(self, request_id: str, **of_request: Any) -> None:
        """A finished request; columns of `requests`, stamps as `ts_start_us` and `ts_first_token_us` (epoch).

        Raises:
            TypeError: an unknown column.
        """
        of_request = columns.copied({"request_id": request_id, **of_request})
        columns.check("request", of_request)
        self._put("request", {"ts_end_us": time.time_ns() // 1000, **self._place, **of_request})

    def window(self, **of_window: Any) -> None:
        """An interval that ends now; columns of `windows`.

        Raises:
            TypeError: an unknown column.
        """
        columns.check("window", of_window)
        of_window = columns.copied(of_window)
        self._put("window", {"ts_end_us": time.time_ns() // 1000, **self._place, **of_window})

    def flush(self) -> None:
        """Write all that waits. Steps whose device events are not reached stay."""
        self._resolve(all_of_them=False)
        self.writer.flush()

    def close(self) -> None:
        """Write all that waits and finish the file. Called at the end of the process where nobody did."""
        self._resolve(all_of_them=True)
        self.writer.close()

    def forked(self) -> None:
        """In a child: the steps that wait are the parent's to write, and those that are open, too."""
        self._lock = threading.RLock()
        self._prefix = new_prefix()
        self._unreached.clear()

    def _put(self, kind: str, record: dict[str, Any]) -> None:
        self.writer.put(partial(_line, kind, record, self._task))

    def _ended(self, ended: _Ended) -> None:
        self.writer.begin()
        with self._lock:
            self._unreached.append(ended)
        self._resolve(all_of_them=False)

    def _resolve(self, all_of_them: bool) -> None:
        """Hand over the steps whose marks are reached, in order; never waits for a device."""
        with self._lock:
            while self._unreached:
                ended = self._unreached.popleft()
                try:
                    is_ready = ended.phases.is_broken or ended.phases.are_ready()
                except Exception as error:
                    self._clock_failed(ended.phases, error)
                    is_ready = True
                if not is_ready and not all_of_them and len(self._unreached) < _UNREACHED:
                    self._unreached.appendleft(ended)
                    return
                times: dict[str, int] = {}
                if is_ready and not ended.phases.is_broken:
                    try:
                        times = ended.phases.durations()
                    except Exception as error:
                        self._clock_failed(ended.phases, error)
                self.writer.put(partial(ended.lines, times))

    def _clock_failed(self, phases: Phases, error: Exception) -> None:
        """The step has no times, and the engine no fault."""
        phases.is_broken = True
        if not self._has_told_clock:
            self._has_told_clock = True
            _log.warning(
                "tracelens: the recorder's clock fails (%s: %.200s); such steps are written without times",
                type(error).__name__,
                error,
            )


class _Ended(NamedTuple):
    """A step that waits for its marks, without the recorder."""

    phases: Phases
    shared: dict[str, Any]
    rows: list[dict[str, Any]]
    task: Pattern[str] | None

    def lines(self, times: dict[str, int]) -> list[str | Exception]:
        """The JSON lines, with the phases' microseconds; a fault in place of a row that cannot be encoded."""
        shared = {**self.shared, **{f"{name}_us": took for name, took in times.items()}}
        made: list[str | Exception] = []
        for row in self.rows:
            try:
                made.append(_line("round", {**shared, **row}, self.task))
            except Exception as error:
                made.append(error)
        return made


class Step:
    """One step: phases, timed, and the rounds of the requests that were in it.

    A step that ends with an exception is not written, and the exception goes on.
    """

    __slots__ = ("_number", "_prefix", "_recorder", "_rounds", "_start", "is_written", "phases")

    def __init__(self, recorder: Recorder, is_written: bool) -> None:
        self._recorder = recorder
        self.is_written = is_written
        self.phases = Phases(recorder.clock)
        self._rounds: list[dict[str, Any]] = []
        self._start = 0
        self._prefix, self._number = recorder._prefix, next(recorder._steps)

    def __enter__(self) -> Step:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self._recorder
        if kind is not None or not self.is_written or not self._rounds or self._prefix is not recorder._prefix:
            return
        rows, self._rounds = self._rounds, []  # a row that comes later is not this step's
        sample = recorder.settings.sample
        shared = {
            "ts_us": time.time_ns() // 1000,
            **recorder._place,
            "step_id": f"{self._prefix}{self._number}",
            "step_share": 1 / len(rows),
            "batch_size": len(rows),
            "step_us": (time.perf_counter_ns() - self._start + 500) // 1000,
            "timing_basis": recorder._basis,
            "weight": None if sample >= 1 else 1 / sample,
        }
        recorder._ended(_Ended(self.phases, shared, rows, recorder._task))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside as `<name>_us`; `name`: draft, target, sample, rollback or repack."""
        if name not in ("draft", "target", "sample", "rollback", "repack"):
            raise ValueError(f"phase {name!r}: expected draft, target, sample, rollback or repack")
        if not self.is_written:
            yield
            return
        start = self._mark()
        yield
        self.phases.add(name, start, self._mark())

    def _mark(self) -> Any:
        if not self.phases.is_broken:
            try:
                return self.phases.clock.mark()
            except Exception as error:
                self._recorder._clock_failed(self.phases, error)
        return None

    def draft(self) -> Any:
        """Time the drafting of this step."""
        return self.phase("draft")

    def target(self) -> Any:
        """Time the target model's pass over the drafts."""
        return self.phase("target")

    def sample(self) -> Any:
        """Time accepting and sampling."""
        return self.phase("sample")

    def round(self, request_id: str, *, drafted: int, accepted: int, emitted: int | None = None, **more: Any) -> None:
        """What one request got in this step; columns of `rounds`.

        Args:
            request_id: of the request.
            drafted: tokens that were verified; 0 for a plain decode step.
            accepted: how many of them were accepted.
            emitted: tokens committed: accepted + 1, fewer where the output ends.
            more: `temperature`, `top_p`, `task_type`, `context_len`, `round_index`, `has_prefill`, …

        Raises:
            TypeError: an unknown column.
        """
        if more:
            columns.check("round", more)
        if not self.is_written:
            return
        row = {"request_id": request_id, "drafted": drafted, "accepted": accepted, "emitted": emitted, **more}
        self._rounds.append(columns.copied(row))


def _line(kind: str, record: dict[str, Any], task: Pattern[str] | None) -> str:
    """One JSON line, with the task that its id tells of where the record names none."""
    request_id = record.get("request_id")
    if task is not None and isinstance(request_id, str) and record.get("task_type") is None:
        record = {**record, "task_type": patterns.task_of(task, request_id)}
    return columns.line(kind, record)


def _dropped(writer: Writer, unreached: deque[_Ended]) -> None:
    """A recorder went without `close`: what waits is written, without times that are not there yet."""
    while unreached:
        writer.put(partial(unreached.popleft().lines, {}))
    writer.close()


def _again(
    path: str, engine: str, replica: str | None, process: str | None, seed: int | None, settings: Settings,
    run: dict[str, Any], run_id: str,
) -> Recorder:  # fmt: skip
    """A recorder that was pickled: same run, a file of its own; device clocks do not travel."""
    from dataclasses import replace

    settings = replace(settings, run_id=run_id)
    return Recorder(path, engine=engine, replica=replica, process=process, seed=seed, settings=settings, **run)
