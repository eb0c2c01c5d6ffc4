"""The recorder: canonical rounds, requests and windows of any Python engine, written beside it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from tracelens.recorders import columns
from tracelens.recorders.clocks import Clock, HostClock, Phases
from tracelens.recorders.files import RotatingFile
from tracelens.recorders.settings import Settings, new_prefix, new_run_id
from tracelens.recorders.writer import Writer

# Steps whose device events are not reached yet: beyond, the oldest is written without times.
_UNREACHED = 32


class Recorder:
    """Writes what a speculating engine does, one JSON line a round, without making it wait.

    Args:
        path: folder for the files; `tracelens ingest` reads it.
        engine: name of the engine, lower case.
        clock: what phases are timed with; the host's clock by default.
        settings: see `Settings`: `run_id`, `sample`, `queue`, `rotate_mb`, `rotate_s`, `keep`, `flush_s`, `task`.
        replica, process: which of the engines, and which of its processes this is.
        seed: of the choice of steps where `sample` is below 1.
        run: columns of `runs`: `model`, `draft_model`, `method`, `num_speculative_tokens`, `engine_version`, `role`, …

    Raises:
        TypeError: an unknown column or setting. ValueError: a setting out of range. Nothing else: when the disk fails,
            records are lost and counted (`lost`), and the engine goes on.

    A recorder may be used in a child process: after a fork it writes a file of its own, and it can be pickled.

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
        if settings is None:
            settings = Settings(Path(path), **chosen)
        self.settings = settings
        self.clock: Clock = clock or HostClock()
        self.run_id = settings.run_id or new_run_id(engine)
        self._given = (os.fspath(path), engine, replica, process, seed, settings, run)
        self._run = {"run_id": self.run_id, "engine": engine, "started_us": time.time_ns() // 1000, **run}
        self._place = {"replica": replica, "process": process}
        self._random = Random(seed)
        self._unreached: deque[Step] = deque()
        self._steps = 0
        self._pid, self._prefix = os.getpid(), new_prefix()
        stem = "-".join(part for part in (engine, process, replica) if part)
        self.files = RotatingFile(
            settings.folder,
            "".join(c if c.isalnum() or c in "._-" else "_" for c in stem),
            partial(columns.line, "run", self._run),
            int(settings.rotate_mb * 1_000_000),
            settings.rotate_s,
            settings.keep,
        )
        self.writer = Writer(self.files, settings.queue, settings.flush_s)

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
        """Lines that could not be written to the disk."""
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
        of_request = {"request_id": request_id, **of_request}
        columns.check("request", of_request)
        self._put("request", {"ts_end_us": time.time_ns() // 1000, **self._place, **of_request})

    def window(self, **of_window: Any) -> None:
        """An interval that ends now; columns of `windows`.

        Raises:
            TypeError: an unknown column.
        """
        columns.check("window", of_window)
        self._put("window", {"ts_end_us": time.time_ns() // 1000, **self._place, **of_window})

    def flush(self) -> None:
        """Write all that waits. Steps whose device events are not reached stay."""
        self._resolve(all_of_them=False)
        self.writer.flush()

    def close(self) -> None:
        """Write all that waits and finish the file. Called at the end of the process where nobody did."""
        self._resolve(all_of_them=True)
        self.writer.close()

    def _put(self, kind: str, record: dict[str, Any]) -> None:
        self.writer.put(partial(columns.line, kind, record))

    def _ended(self, step: Step) -> None:
        if os.getpid() != self._pid:  # a child of a fork: the parent's steps are not ours
            self._pid, self._prefix, self._unreached = os.getpid(), new_prefix(), deque()
        self._unreached.append(step)
        self._resolve(all_of_them=False)

    def _resolve(self, all_of_them: bool) -> None:
        """Hand over the steps whose marks are reached, in order; never waits."""
        while self._unreached:
            step = self._unreached[0]
            ready = step.phases.are_ready()
            if not ready and not all_of_them and len(self._unreached) <= _UNREACHED:
                return
            self._unreached.popleft()
            times = step.phases.durations() if ready else {}
            self.writer.put(partial(step.lines, self._prefix, {f"{name}_us": took for name, took in times.items()}))

    def _next_step(self) -> int:
        self._steps += 1
        return self._steps - 1


class Step:
    """One step: phases, timed, and the rounds of the requests that were in it.

    A step that ends with an exception is not written, and the exception goes on.
    """

    __slots__ = ("_end_us", "_number", "_recorder", "_rounds", "_start", "_took_us", "_weight", "is_written", "phases")

    def __init__(self, recorder: Recorder, is_written: bool) -> None:
        self._recorder = recorder
        self.is_written = is_written
        self.phases = Phases(recorder.clock)
        self._rounds: list[dict[str, Any]] = []
        self._weight = None if recorder.settings.sample >= 1 else 1 / recorder.settings.sample
        self._start = self._took_us = self._end_us = 0
        self._number = recorder._next_step()

    def __enter__(self) -> Step:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or not self.is_written:
            return
        self._took_us = (time.perf_counter_ns() - self._start + 500) // 1000
        self._end_us = time.time_ns() // 1000
        self._recorder._ended(self)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside as `<name>_us`; `name`: draft, target, sample, rollback or repack."""
        if name not in ("draft", "target", "sample", "rollback", "repack"):
            raise ValueError(f"phase {name!r}: expected draft, target, sample, rollback or repack")
        if not self.is_written:
            yield
            return
        start = self.phases.clock.mark()
        yield
        self.phases.add(name, start, self.phases.clock.mark())

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
        if not self.is_written:
            return
        row = {"request_id": request_id, "drafted": drafted, "accepted": accepted, "emitted": emitted, **more}
        columns.check("round", row)
        self._rounds.append(row)

    def lines(self, prefix: str, times: dict[str, int]) -> list[str]:
        """The JSON lines of this step: what its number starts with, its phases in microseconds."""
        if not self._rounds:
            return []
        shared: dict[str, Any] = {
            "ts_us": self._end_us,
            **self._recorder._place,
            "step_id": f"{prefix}{self._number}",
            "step_share": 1 / len(self._rounds),
            "batch_size": len(self._rounds),
            **times,
            "step_us": self._took_us,
            "timing_basis": self._recorder.clock.basis,
            "weight": self._weight,
        }
        return [columns.line("round", {**shared, **row}) for row in self._rounds]


def _again(
    path: str, engine: str, replica: str | None, process: str | None, seed: int | None, settings: Settings,
    run: dict[str, Any], run_id: str,
) -> Recorder:  # fmt: skip
    """A recorder that was pickled: same run, a file of its own; device clocks do not travel."""
    from dataclasses import replace

    settings = replace(settings, run_id=run_id)
    return Recorder(path, engine=engine, replica=replica, process=process, seed=seed, settings=settings, **run)
