"""Hooks in a worker: the phases of a step, timed around the model runner's own methods.

V1 runner: `_model_forward` is the target's pass, `_sample` sampling, `propose_draft_token_ids` the whole drafting.
Where `_model_forward` is missing the pass is what lies between the end of `_prepare_inputs` and `_sample`.
Model Runner V2: the pass is what lies between the end of `prepare_inputs` and the end of `execute_model`; `sample`;
`speculator.propose`. What a version has not is not timed, and the first step says so in one line.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from tracelens.recorders.clocks import Clock, DeviceClock, HostClock, Phases
from tracelens.recorders.vllm import guard

# The attribute that a step's number (SchedulerOutput) and the times of steps (ModelRunnerOutput) travel in.
ATTRIBUTE = "_tracelens"
_MOST_UNREACHED = 32
_DRAFTERS = ("propose_draft_token_ids", "generate_draft_token_ids")


class StepTimer:
    """The steps of one model runner: the one that runs, and those whose times are not sent yet."""

    def __init__(self, runner: Any) -> None:
        self.clock = _clock(runner)
        self.phases: Phases | None = None
        self.number: int | None = None
        self.opened: Any = None
        self.waiting: deque[tuple[int, Phases]] = deque()
        self.ready: deque[tuple[int, dict[str, int]]] = deque(maxlen=256)
        # Times of a stage of a pipeline are not those of the target.
        self.is_stage = _is_pipeline(runner)

    def begin(self, number: int | None) -> None:
        """A step with scheduled tokens starts; None: nothing to time."""
        if number is None or self.clock is None:
            self.phases = None
            return
        self.phases, self.number, self.opened = Phases(self.clock), number, None

    def open_target(self) -> None:
        """The target's pass starts behind this."""
        if self.phases is not None:
            self.opened = self.phases.clock.mark()

    def close_target(self) -> None:
        """The target's pass has ended before this."""
        if self.phases is not None and self.opened is not None:
            self.phases.add("target", self.opened, self.phases.clock.mark())
            self.opened = None

    def end(self) -> None:
        """The step has ended; what was reached meanwhile is ready to be sent."""
        if self.phases is not None and self.number is not None:
            self.waiting.append((self.number, self.phases))
        self.phases = None
        while self.waiting:
            # Off first: a step whose events fail must not be met again at every later one.
            number, phases = self.waiting.popleft()
            if phases.are_ready():
                times = phases.durations()
                if self.is_stage:
                    times.pop("target", None)
                self.ready.append((number, times))
            elif len(self.waiting) < _MOST_UNREACHED:
                self.waiting.appendleft((number, phases))
                return

    def sent(self) -> tuple[str, list[tuple[int, dict[str, int]]]] | None:
        """What goes with a reply: the clock's basis and times by step number. Called from the output thread, too."""
        found = []
        while self.ready:
            try:
                found.append(self.ready.popleft())
            except IndexError:
                break
        return (self.clock.basis, found) if found and self.clock is not None else None


def timer_of(runner: Any) -> StepTimer:
    """The runner's timer, made at its first step."""
    timer = runner.__dict__.get(ATTRIBUTE)
    if not isinstance(timer, StepTimer):
        timer = runner.__dict__[ATTRIBUTE] = StepTimer(runner)
    return timer


def hook_v1(module: ModuleType) -> None:
    """The V1 model runner of `vllm.v1.worker.gpu_model_runner`."""
    runner = module.GPUModelRunner
    drafters = [name for name in _DRAFTERS if hasattr(runner, name)]
    for name in drafters:
        _wrap_phase(runner, name, "draft")
    if hasattr(runner, "_sample"):
        _wrap_phase(runner, "_sample", "sample")
    if hasattr(runner, "_model_forward"):
        _wrap_phase(runner, "_model_forward", "target")
    elif hasattr(runner, "_prepare_inputs") and hasattr(runner, "_sample"):
        _wrap_opening(runner, "_prepare_inputs")
    else:
        guard.tell_once(
            f"vLLM {guard.version()}: no known place for the target's time in the V1 runner; it stays empty"
        )
    if not drafters:
        guard.tell_once(f"vLLM {guard.version()}: the V1 runner has no known drafter; its time stays empty")
    _wrap_steps(runner, None)


def hook_v2(module: ModuleType) -> None:
    """Model Runner V2 of `vllm.v1.worker.gpu.model_runner`."""
    runner = module.GPUModelRunner
    if hasattr(runner, "sample"):
        _wrap_phase(runner, "sample", "sample")
    if hasattr(runner, "sample_tokens"):
        if hasattr(runner, "prepare_inputs"):
            _wrap_opening(runner, "prepare_inputs")
    else:
        guard.tell_once(f"vLLM {guard.version()}: Model Runner V2 without sample_tokens; the target's time stays empty")
    _wrap_steps(runner, _wrap_speculator)


def _wrap_steps(runner: type, at_begin: Callable[[Any], None] | None) -> None:
    """A step begins with `execute_model` and ends with whatever returns its output."""
    is_split = hasattr(runner, "sample_tokens")
    execute: Callable[..., Any] = runner.execute_model  # type: ignore[attr-defined]

    @functools.wraps(execute)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            timer_of(self).begin(_number(scheduler_output))
            if at_begin is not None:
                at_begin(self)
        except Exception as error:
            guard.failed("the start of a step", error)
        output = execute(self, scheduler_output, *args, **kwargs)
        try:
            if is_split:
                timer_of(self).close_target()
            if output is not None:
                _ended(self, output)
        except Exception as error:
            guard.failed("the end of a step", error)
        return output

    runner.execute_model = execute_model  # type: ignore[attr-defined]
    if not is_split:
        return
    sample: Callable[..., Any] = runner.sample_tokens  # type: ignore[attr-defined]

    @functools.wraps(sample)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = sample(self, *args, **kwargs)
        try:
            _ended(self, output)
        except Exception as error:
            guard.failed("the end of a step", error)
        return output

    runner.sample_tokens = sample_tokens  # type: ignore[attr-defined]


def _number(scheduler_output: Any) -> int | None:
    if not getattr(scheduler_output, "total_num_scheduled_tokens", 1):
        return None
    stamped = getattr(scheduler_output, ATTRIBUTE, None)
    return None if stamped is None else int(stamped[0])


def _ended(runner: Any, output: Any) -> None:
    timer = timer_of(runner)
    timer.end()
    if hasattr(output, "sampled_token_ids"):
        _attach(timer, output)
    elif hasattr(output, "get_output"):
        get: Callable[[], Any] = output.get_output

        def get_output() -> Any:
            reply = get()
            try:
                _attach(timer, reply)
            except Exception as error:
                guard.failed("the reply of a step", error)
            return reply

        output.get_output = get_output


def _attach(timer: StepTimer, reply: Any) -> None:
    # An empty reply is one object for all of the engine's life: nothing may stick to it.
    if getattr(reply, "req_ids", None):
        times = timer.sent()
        if times is not None:
            setattr(reply, ATTRIBUTE, times)


def _wrap_phase(runner: type, name: str, phase: str) -> None:
    setattr(runner, name, _timed(getattr(runner, name), phase))


def _timed(call: Callable[..., Any], phase: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        phases = start = None
        try:
            timer = timer_of(self)
            if phase == "sample":
                timer.close_target()
            phases = timer.phases
            start = phases.clock.mark() if phases is not None else None
        except Exception as error:
            guard.failed(f"the {phase} time", error)
        result = call(self, *args, **kwargs)
        if phases is not None:
            try:
                phases.add(phase, start, phases.clock.mark())
            except Exception as error:
                guard.failed(f"the {phase} time", error)
        return result

    return timed


def _wrap_opening(runner: type, name: str) -> None:
    call: Callable[..., Any] = getattr(runner, name)

    @functools.wraps(call)
    def opening(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        try:
            timer_of(self).open_target()
        except Exception as error:
            guard.failed("the target time", error)
        return result

    setattr(runner, name, opening)


def _wrap_speculator(runner: Any) -> None:
    """`propose` of the drafter that this runner loaded, once."""
    speculator = getattr(runner, "speculator", None)
    if speculator is None or ATTRIBUTE in getattr(speculator, "__dict__", {ATTRIBUTE: True}):
        return
    setattr(speculator, ATTRIBUTE, True)
    propose: Callable[..., Any] = speculator.propose

    def of_runner(_: Any, *args: Any, **kwargs: Any) -> Any:
        return propose(*args, **kwargs)

    speculator.propose = functools.wraps(propose)(functools.partial(_timed(of_runner, "draft"), runner))


def _clock(runner: Any) -> Clock | None:
    """Device events where the runner's device has them, the host's clock on a CPU, else none."""
    kind = str(getattr(getattr(runner, "device", None), "type", "") or "")
    if kind == "cpu":
        return HostClock()
    try:
        backend = getattr(import_module("torch"), kind)
        new_event = functools.partial(backend.Event, enable_timing=True)
        is_capturing = getattr(backend, "is_current_stream_capturing", None)
        return DeviceClock(new_event, is_capturing)
    except Exception as error:
        guard.failed(f"time on the device {kind or 'unknown'}", error)
        return None


def _is_pipeline(runner: Any) -> bool:
    parallel = getattr(getattr(runner, "vllm_config", None), "parallel_config", None)
    return int(getattr(parallel, "pipeline_parallel_size", 1) or 1) > 1
