"""Classes of three generations of vLLM with the names and signatures that the hooks meet, and a model that is a table.

- `old`: 0.9: one `execute_model` that does it all, one `EngineCoreOutputs`, no `_model_forward`;
- `v1`: 0.12 to 0.33: `execute_model` and `sample_tokens`, `_model_forward`, outputs by client, optionally asynchronous;
- `v2`: Model Runner V2 from 0.28: `prepare_inputs`, `sample`, `speculator.propose`, always asynchronous.

The worker and the engine core are joined by pickle, as the executors do it. Work takes turns of a clock that the device
events read.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

K = 3
DRAFT_MS, TARGET_MS, SAMPLE_MS = 6.0, 20.0, 2.0


class Device:
    """Time on the device: work is launched, and has been done once `now` was told to catch up."""

    launched = 0.0
    now = 0.0

    @classmethod
    def work(cls, ms: float) -> None:
        cls.launched += ms

    @classmethod
    def catch_up(cls) -> None:
        cls.now = cls.launched


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = -1.0

    def record(self) -> None:
        self.at = Device.launched

    def query(self) -> bool:
        return self.at <= Device.now

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return other.at - self.at


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[Any]
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    finished_req_ids: set[str]
    num_invalid_spec_tokens: dict[str, int] | None = None


@dataclass
class ModelRunnerOutput:
    req_ids: list[str]
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]] = field(default_factory=list)


class AsyncOutput:
    def __init__(self, output: ModelRunnerOutput) -> None:
        self._output = output

    def get_output(self) -> ModelRunnerOutput:
        return self._output


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    sampling_params: Any
    arrival_time: float = 1.7e9
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    tokens: int = 0
    drafts: list[int] = field(default_factory=list)


def accepted_of(request_id: str, step: int, drafted: int) -> int:
    """What the target accepts: a table, the same for the stub and for the test's own count."""
    return min(drafted, (int(request_id.split("-")[1]) + step) % (K + 1))


def scheduler_class(generation: str) -> type:
    class Scheduler:
        def __init__(self, config: Any) -> None:
            self.vllm_config = config
            self.requests: dict[str, Request] = {}
            self.finished: set[str] = set()
            self.stats = SimpleNamespace(drafts=0, drafted=0, accepted=0)
            self.invalid: dict[str, int] = {}

        def add_request(self, request: Request) -> None:
            self.requests[request.request_id] = request

        def finish_requests(self, request_id: str) -> None:
            del self.requests[request_id]
            self.finished.add(request_id)

        def schedule(self) -> SchedulerOutput:
            tokens, drafts = {}, {}
            for name, request in self.requests.items():
                tokens[name] = request.num_prompt_tokens if not request.tokens else 1 + len(request.drafts)
                if request.drafts:
                    drafts[name] = list(request.drafts)
            finished, self.finished = self.finished, set()
            output = SchedulerOutput([], tokens, sum(tokens.values()), drafts, finished)
            if generation != "old":
                output.num_invalid_spec_tokens = {k: v for k, v in self.invalid.items() if k in drafts}
            return output

        def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
            outputs = []
            for name in scheduler_output.num_scheduled_tokens:
                request = self.requests.get(name)
                if request is None:
                    continue
                new = model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[name]]
                spec = scheduler_output.scheduled_spec_decode_tokens.get(name)
                if spec:
                    self.stats.drafts += 1
                    self.stats.drafted += len(spec) - (scheduler_output.num_invalid_spec_tokens or {}).get(name, 0)
                    self.stats.accepted += len(new) - 1
                del new[request.max_tokens - request.tokens :]  # in place, as vLLM does
                request.tokens += len(new)
                request.drafts = [-1] * K
                reason = None
                if request.tokens >= request.max_tokens:
                    reason = "length"
                    self.finish_requests(name)
                outputs.append(SimpleNamespace(request_id=name, new_token_ids=new, finish_reason=reason))
            batch = SimpleNamespace(outputs=outputs)
            return batch if generation == "old" else {0: batch}

    return Scheduler


def _output(scheduler_output: SchedulerOutput, step: int) -> ModelRunnerOutput:
    names = list(scheduler_output.num_scheduled_tokens)
    sampled = []
    for name in names:
        drafted = len(scheduler_output.scheduled_spec_decode_tokens.get(name, ()))
        sampled.append([7] * (1 + accepted_of(name, step, drafted)))
    return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)


class _Runner:
    def __init__(self, config: Any, device: str, is_async: bool = False) -> None:
        self.vllm_config, self.device, self.is_async = config, SimpleNamespace(type=device), is_async
        self.steps = 0

    def do(self, name: str, ms: float, *args: Any) -> None:
        """Work in a method, or elsewhere in versions that do not have it."""
        method = getattr(self, name, None)
        if method is None:
            Device.work(ms)
        else:
            method(*args)


class OldRunner(_Runner):
    """0.9."""

    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None) -> ModelRunnerOutput:
        self.do("_prepare_inputs", 1.0, scheduler_output)
        Device.work(TARGET_MS)
        self.do("_sample", SAMPLE_MS)
        self.do("propose_draft_token_ids", DRAFT_MS, scheduler_output)
        self.steps += 1
        return _output(scheduler_output, self.steps - 1)

    def _prepare_inputs(self, scheduler_output: SchedulerOutput) -> None:
        Device.work(1.0)

    def _sample(self) -> None:
        Device.work(SAMPLE_MS)

    def propose_draft_token_ids(self, scheduler_output: SchedulerOutput) -> None:
        Device.work(DRAFT_MS)


class V1Runner(_Runner):
    """0.12 to 0.33."""

    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None) -> None:
        self.do("_prepare_inputs", 1.0, scheduler_output)
        self.do("_model_forward", TARGET_MS)
        self._scheduled = scheduler_output

    def _prepare_inputs(self, scheduler_output: SchedulerOutput) -> None:
        Device.work(1.0)

    def _model_forward(self) -> None:
        Device.work(TARGET_MS)

    def sample_tokens(self, grammar_output: Any) -> ModelRunnerOutput | AsyncOutput:
        self.do("_sample", SAMPLE_MS)
        self.do("propose_draft_token_ids", DRAFT_MS, self._scheduled)
        self.steps += 1
        output = _output(self._scheduled, self.steps - 1)
        return AsyncOutput(output) if self.is_async else output

    def _sample(self) -> None:
        Device.work(SAMPLE_MS)

    def propose_draft_token_ids(self, scheduler_output: SchedulerOutput) -> None:
        Device.work(DRAFT_MS)


class V2Runner(_Runner):
    """Model Runner V2."""

    def __init__(self, config: Any, device: str, is_async: bool = True) -> None:
        _Runner.__init__(self, config, device, True)
        self.speculator = SimpleNamespace(propose=lambda *args, **kwargs: Device.work(DRAFT_MS))

    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None) -> None:
        self.do("prepare_inputs", 1.0, scheduler_output)
        Device.work(TARGET_MS)
        self._scheduled = scheduler_output

    def prepare_inputs(self, scheduler_output: SchedulerOutput) -> None:
        Device.work(1.0)

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> None:
        Device.work(SAMPLE_MS)

    def sample_tokens(self, grammar_output: Any) -> AsyncOutput:
        self.do("sample", SAMPLE_MS, None, None, grammar_output)
        self.speculator.propose(None, num_speculative_tokens=K)
        self.steps += 1
        return AsyncOutput(_output(self._scheduled, self.steps - 1))


CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(model="/srv/models/target"),
    speculative_config=SimpleNamespace(method="draft_model", model="/srv/models/draft", num_speculative_tokens=K),
    parallel_config=SimpleNamespace(tensor_parallel_size=2, data_parallel_size=1, pipeline_parallel_size=1),
    scheduler_config=SimpleNamespace(max_num_seqs=16),
)

_RUNNERS: dict[str, tuple[str, type]] = {
    "old": ("vllm.v1.worker.gpu_model_runner", OldRunner),
    "v1": ("vllm.v1.worker.gpu_model_runner", V1Runner),
    "v2": ("vllm.v1.worker.gpu.model_runner", V2Runner),
}


@dataclass
class Engine:
    """An engine core and its workers: the scheduler, two tensor-parallel runners, and pickle between them."""

    scheduler: Any
    runners: list[Any]
    in_flight: int = 1
    queue: list[tuple[Any, Any]] = field(default_factory=list)

    def step(self) -> None:
        """Schedule and launch; take an answer once as many as may be are in flight. The device lags a step behind."""
        scheduled = self.scheduler.schedule()
        if scheduled.total_num_scheduled_tokens:
            sent = pickle.dumps(scheduled)
            replies = [run_on(runner, pickle.loads(sent)) for runner in self.runners]
            self.queue.append((scheduled, replies[0]))
        while self.queue and (len(self.queue) >= self.in_flight or not scheduled.total_num_scheduled_tokens):
            self._take()

    def _take(self) -> None:
        scheduled, reply = self.queue.pop(0)
        if hasattr(reply, "get_output"):
            reply = reply.get_output()
        self.scheduler.update_from_output(scheduled, pickle.loads(pickle.dumps(reply)))
        Device.catch_up()


def run_on(runner: Any, scheduled: SchedulerOutput) -> Any:
    output = runner.execute_model(scheduled)
    return runner.sample_tokens(None) if output is None else output


def modules_of(generation: str, missing: str = "") -> dict[str, types.ModuleType]:
    """The modules of a generation, without one method; classes are made anew, for hooks change them."""
    name, runner = _RUNNERS[generation]
    core, worker = types.ModuleType("vllm.v1.core.sched.scheduler"), types.ModuleType(name)
    core.Scheduler = scheduler_class(generation)  # type: ignore[attr-defined]
    own = {k: v for k, v in vars(runner).items() if k not in ("__dict__", "__weakref__", missing)}
    worker.GPUModelRunner = type("GPUModelRunner", (_Runner,), own)  # type: ignore[attr-defined]
    return {core.__name__: core, name: worker}


def engine(modules: dict[str, types.ModuleType], device: str, in_flight: int = 1, is_async: bool = False) -> Engine:
    core, worker = modules.values()
    runners = [worker.GPUModelRunner(CONFIG, device, is_async) for _ in range(2)]
    return Engine(core.Scheduler(CONFIG), runners, in_flight)


def fake_torch() -> types.ModuleType:
    torch = types.ModuleType("torch")
    torch.cuda = SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: False)  # type: ignore[attr-defined]
    return torch


def request(i: int, tokens: int = 12, temperature: float = 0.0) -> Request:
    params = SimpleNamespace(temperature=temperature, top_p=1.0)
    return Request(f"cmpl-{i}-0-0123abcd", 10 + i, tokens, params)


def installed(
    generation: str, monkeypatch: pytest.MonkeyPatch, missing: str = ""
) -> Iterator[dict[str, types.ModuleType]]:
    """The generation's modules in `sys.modules`, with the hooks in."""
    from tracelens.recorders.vllm import guard, hooks

    modules = modules_of(generation, missing)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    monkeypatch.setattr(guard, "_told", set())
    monkeypatch.setattr(Device, "launched", 0.0)
    monkeypatch.setattr(Device, "now", 0.0)
    found = list(sys.meta_path)
    hooks.install()
    yield modules
    sys.meta_path[:] = found
