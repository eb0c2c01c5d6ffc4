"""The engine core's book: requests that run, steps that wait for their times, and the lines that they become.

The engine's side (`met`, `step`, `ended`, `gone`, `timed`) only counts and hands over; joining and JSON happen in the
writer's thread.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from tracelens.recorders import columns, patterns
from tracelens.recorders.files import RotatingFile
from tracelens.recorders.settings import Settings, new_prefix
from tracelens.recorders.writer import Writer, own

# A step whose times have not come by then is written without: they may be a device's, or nobody's.
_WAIT_STEPS = 64
_WAIT_S = 2.0

Times = tuple[str, list[tuple[int, dict[str, int]]]]


class Seen(NamedTuple):
    """What was read before the scheduler looked: sampled tokens by place in the batch, and whether any was prefill."""

    lengths: list[int]
    has_prefill: bool


class Request:
    """One request's constants as JSON, and what it has got so far."""

    __slots__ = (
        "accepted", "arrived", "cached", "drafted", "first_ns", "first_us", "hist", "is_clean", "last_ns", "last_step",
        "output_tokens", "preemptions", "prompt_tokens", "request", "request_id", "rounds", "rows", "shown", "task",
        "temperature", "tokens_in_rounds", "top_p",
    )  # fmt: skip

    def __init__(self, request_id: str, request: Any, task: re.Pattern[str] | None) -> None:
        params = getattr(request, "sampling_params", None)
        self.request_id = request_id
        self.temperature = _number(getattr(params, "temperature", None))
        self.top_p = _number(getattr(params, "top_p", None))
        self.prompt_tokens = getattr(request, "num_prompt_tokens", None)
        self.arrived = _number(getattr(request, "arrival_time", None))
        self.task = patterns.task_of(task, request_id) if task is not None else None
        self.request = request
        self.output_tokens = self.rows = self.rounds = self.drafted = self.accepted = self.tokens_in_rounds = 0
        self.hist: list[int] = []
        self.first_ns = self.last_ns = self.first_us = 0
        self.cached: int | None = None
        self.preemptions: int | None = None
        self.last_step = -1
        self.is_clean = False
        shown = [f'"request_id":{columns.quoted(request_id)}']
        if self.temperature is not None:
            shown.append(f'"temperature":{self.temperature!r}')
        if self.top_p is not None:
            shown.append(f'"top_p":{self.top_p!r}')
        if self.task is not None:
            shown.append(f'"task_type":{columns.quoted(self.task)}')
        self.shown = ",".join(shown)

    def line(self, reason: str, end_us: int, replica: str) -> str:
        """The request's own record."""
        start_us = None if self.arrived is None else min(round(self.arrived * 1e6), self.first_us)
        return columns.line(
            "request",
            {
                "ts_end_us": end_us, "ts_start_us": start_us, "ts_first_token_us": self.first_us, "replica": replica,
                "request_id": self.request_id, "temperature": self.temperature, "top_p": self.top_p,
                "task_type": self.task, "prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens,
                "cached_tokens": self.cached, "iterations": self.rows, "rounds": self.rounds, "drafted": self.drafted,
                "accepted": self.accepted, "emitted": self.tokens_in_rounds, "accepted_hist": self.hist or [0],
                "ttft_us": None if start_us is None else self.first_us - start_us,
                "decode_us": (self.last_ns - self.first_ns + 500) // 1000,
                "e2e_us": None if start_us is None else max(end_us - start_us, 0), "preemptions": self.preemptions,
                "finish_reason": reason, "error": reason == "error", "counts_basis": "logged",
            },
        )  # fmt: skip


class OpenStep:
    """A step that the scheduler has just counted."""

    __slots__ = ("book", "continues", "has_prefill", "now", "number", "requests", "rows", "took_us", "wall_us")

    def __init__(self, book: StepBook, number: int, now: int, has_prefill: bool, requests: int) -> None:
        self.book, self.number, self.now, self.has_prefill, self.requests = book, number, now, has_prefill, requests
        self.rows: list[tuple[str, int, int, int, int, int, int]] = []
        self.continues = False
        self.took_us = 0
        self.wall_us = time.time_ns() // 1000

    def add(self, request_id: str, drafted: int, accepted: int, emitted: int, reason: Any) -> None:
        """What one request got."""
        book = self.book
        state = book.states.get(request_id)
        if state is None:
            return
        if emitted or drafted:
            if state.last_step == book.last_step:
                self.continues = True
            if state.output_tokens == 0:
                # The prefill's token is no round.
                state.first_ns, state.first_us = self.now, self.wall_us
            else:
                context = (state.prompt_tokens or 0) + state.output_tokens
                drafted_in = state.last_step if state.is_clean else -1
                self.rows.append((state.shown, state.rows, drafted, accepted, emitted, context, drafted_in))
                state.rows += 1
                state.tokens_in_rounds += emitted
                if drafted:
                    state.rounds += 1
                    state.drafted += drafted
                    state.accepted += accepted
                    hist = state.hist
                    if accepted >= len(hist):
                        hist.extend([0] * (accepted + 1 - len(hist)))
                    hist[accepted] += 1
            state.output_tokens += emitted
            state.last_ns, state.last_step, state.is_clean = self.now, self.number, not self.has_prefill
        if reason is not None:
            book.gone(request_id, str(reason).lower().rpartition(".")[2])


class StepBook:
    """All requests and steps of one engine core.

    Args:
        settings: where and how much to write.
        run: columns of `runs`.
        replica: data-parallel rank.
    """

    def __init__(self, settings: Settings, run: dict[str, Any], replica: str) -> None:
        self.states: dict[str, Request] = {}
        self.last_step = -2
        self.has_times = False
        self._last_ns = 0
        self._numbers = 0
        self._prefix = new_prefix()
        self._replica = replica
        self._keep = settings.sample
        self._random = Random()
        self._task = patterns.compiled(settings.task) if settings.task else None
        self._basis = "host"
        self._times: dict[int, dict[str, int]] = {}
        self._waiting: dict[int, tuple[OpenStep, float]] = {}
        told = {"run_id": settings.run_id, "engine": "vllm", "started_us": time.time_ns() // 1000, **run}
        files = RotatingFile(
            settings.folder,
            f"vllm-engine{replica}",
            partial(columns.line, "run", told),
            int(settings.rotate_mb * 1_000_000),
            settings.rotate_s,
            settings.keep,
        )
        self.writer = Writer(files, settings.queue, settings.flush_s, self._overdue)
        own(self)
        weight = "" if self._keep >= 1 else f',"weight":{1 / self._keep!r}'
        self._place = f'"replica":{columns.quoted(replica)}{weight}'

    def close(self) -> None:
        """Write all, with the times that are there."""
        self.writer.close()

    def __del__(self) -> None:
        # An engine that is dropped while its process goes on.
        with contextlib.suppress(Exception):
            self.close()

    def forked(self) -> None:
        """In a child: what runs and waits is the parent's."""
        self._prefix = new_prefix()
        for of_parent in (self.states, self._times, self._waiting):
            of_parent.clear()

    # ---- the engine's side

    def next_number(self) -> int:
        """Steps are numbered as they are scheduled."""
        self._numbers += 1
        return self._numbers - 1

    def met(self, request_id: str, request: Any) -> Request:
        """A request that is seen for the first time."""
        state = self.states[request_id] = Request(request_id, request, self._task)
        return state

    def timed(self, times: Times) -> None:
        """Times that came with a reply, of this step or of earlier ones."""
        self.has_times = True
        self.writer.put(partial(self._take_times, times), 0)

    def step(self, number: int, began: int, now: int, seen: Seen, requests: int) -> OpenStep:
        """A step to add rows to, and to be `ended`."""
        step = OpenStep(self, number, now, seen.has_prefill, requests)
        step.took_us = (now - began + 500) // 1000
        return step

    def ended(self, step: OpenStep) -> None:
        """Hand a step over.

        Its time is that from the step before to this one where a request was in both (scheduling, transport and output
        between them included: what the request waited), else that since it was scheduled.
        """
        if step.continues:
            step.took_us = (step.now - self._last_ns + 500) // 1000
        self.last_step, self._last_ns = step.number, step.now
        if step.rows and (self._keep >= 1 or self._random.random() < self._keep):
            self.writer.put(partial(self._take_step, step))

    def gone(self, request_id: str, reason: str) -> None:
        """A request that ended, here or by an abort."""
        state = self.states.pop(request_id, None)
        if state is not None and state.output_tokens:
            request = state.request
            state.cached = _whole(getattr(request, "num_cached_tokens", None))
            state.preemptions = _whole(getattr(request, "num_preemptions", None))
            state.request = None
            self.writer.put(partial(state.line, reason, time.time_ns() // 1000, self._replica))

    # ---- the writer's side

    def _take_times(self, times: Times) -> list[str | Exception]:
        self._basis, found = times
        for number, of_step in found:
            self._times[number] = of_step
        while len(self._times) > 4 * _WAIT_STEPS:
            del self._times[next(iter(self._times))]
        return self._due()

    def _take_step(self, step: OpenStep) -> list[str | Exception]:
        self._waiting[step.number] = (step, time.monotonic())
        return self._due()

    def _due(self) -> list[str | Exception]:
        """Lines of the steps whose times are there, and of those that have waited too long."""
        lines: list[str | Exception] = []
        newest = next(reversed(self._waiting), -1)
        for number in list(self._waiting):
            if number not in self._times and newest - number < _WAIT_STEPS:
                break
            lines.extend(self._made(self._waiting.pop(number)[0]))
        return lines

    def _overdue(self, last: bool) -> list[str | Exception]:
        lines: list[str | Exception] = []
        limit = time.monotonic() - _WAIT_S
        for number, (step, since) in list(self._waiting.items()):
            if not last and since > limit:
                break
            del self._waiting[number]
            lines.extend(self._made(step))
        return lines

    def _made(self, step: OpenStep) -> Sequence[str | Exception]:
        """A step that cannot be made takes none of the others along."""
        try:
            return self._lines(step)
        except Exception as error:
            return [error] * len(step.rows)

    def _lines(self, step: OpenStep) -> list[str]:
        times = self._times.get(step.number, {})
        shared = [f'"ts_us":{step.wall_us}', self._place, f'"step_id":"{self._prefix}{step.number}"']
        shared.append(f'"step_share":{1 / len(step.rows)!r},"batch_size":{step.requests},"step_us":{step.took_us}')
        shared.extend(f'"{name}_us":{times[name]}' for name in ("target", "sample") if name in times)
        shared.append(f'"timing_basis":"{self._basis if times else "host"}"')
        if step.has_prefill:
            shared.append('"has_prefill":true')
        head = '{"record":"round",' + ",".join(shared) + ","
        drafts = {number: self._drafted(number) for number in {row[6] for row in step.rows}}
        return [
            f'{head}{shown},"round_index":{at},"drafted":{drafted},"accepted":{accepted},"emitted":{emitted},'
            f'"context_len":{context}{drafts[drafted_in]}}}'
            for shown, at, drafted, accepted, emitted, context, drafted_in in step.rows
        ]

    def _drafted(self, number: int) -> str:
        """The time of the phase that proposed a round's drafts, as JSON: that of the step before the request's."""
        draft = self._times.get(number, {}).get("draft")
        return "" if draft is None else f',"draft_us":{draft}'


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e15 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
