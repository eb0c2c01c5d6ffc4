"""Hooks in the engine core: what each request drafted, got accepted and emitted, step by step.

Counts are the scheduler's own: a draft counts where `update_from_output` counted it, that is for a request that got
tokens in this step and had draft tokens scheduled; drafts that the grammar had struck out do not count (from 0.14).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tracelens.recorders.settings import from_environment
from tracelens.recorders.vllm import guard
from tracelens.recorders.vllm.rounds import Seen, StepBook
from tracelens.recorders.vllm.worker import ATTRIBUTE


class Switch:
    """What a measurement of the recorder's own cost turns off and on between blocks of steps (benchmarks/recorder.py).

    Requests that run across an off block are incomplete.
    """

    is_on = True


# A device may lag a few steps behind; so many without any time are no lag.
_SILENT_STEPS = 256


def hook(module: ModuleType) -> None:
    """The V1 scheduler."""
    scheduler = module.Scheduler
    schedule: Callable[..., Any] = scheduler.schedule
    update: Callable[..., Any] = scheduler.update_from_output

    @functools.wraps(schedule)
    def numbered(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter_ns()
        output = schedule(self, *args, **kwargs)
        if not Switch.is_on:
            return output
        try:
            book = book_of(self)
            if book is not None and output.total_num_scheduled_tokens:
                setattr(output, ATTRIBUTE, (book.next_number(), began))
        except Exception as error:
            guard.failed("the number of a step", error)
        return output

    @functools.wraps(update)
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any, *a: Any, **kw: Any) -> Any:
        if not Switch.is_on:
            return update(self, scheduler_output, model_runner_output, *a, **kw)
        book = seen = None
        try:
            book = book_of(self)
            if book is not None and scheduler_output.num_scheduled_tokens:
                seen = before(book, self, scheduler_output, model_runner_output)
        except Exception as error:
            guard.failed("the counts of a step", error)
        result = update(self, scheduler_output, model_runner_output, *a, **kw)
        if book is not None:
            try:
                after(book, seen, scheduler_output, model_runner_output, result)
            except Exception as error:
                guard.failed("the counts of a step", error)
        return result

    scheduler.schedule = numbered
    scheduler.update_from_output = update_from_output


def book_of(scheduler: Any) -> StepBook | None:
    """The scheduler's book, made at its first step; None where nothing is recorded."""
    own = scheduler.__dict__
    if ATTRIBUTE not in own:
        own[ATTRIBUTE] = None
        settings = from_environment()
        # A diffusion engine has no rounds: its "drafts" are a canvas.
        if settings is not None and getattr(scheduler, "num_sampled_tokens_per_step", 1) != 0:
            run = describe(getattr(scheduler, "vllm_config", None))
            own[ATTRIBUTE] = StepBook(settings, run, replica_of(scheduler))
    book: StepBook | None = own[ATTRIBUTE]
    return book


def before(book: StepBook, scheduler: Any, scheduled: Any, reply: Any) -> Seen:
    """What must be read before the scheduler trims the sampled tokens in place and forgets finished requests."""
    sampled = reply.sampled_token_ids
    drafts = scheduled.scheduled_spec_decode_tokens
    requests = scheduler.requests
    states = book.states
    with_prefill = False
    for request_id, tokens in scheduled.num_scheduled_tokens.items():
        state = states.get(request_id)
        if state is None:
            state = book.met(request_id, requests.get(request_id))
        if state.output_tokens == 0 or tokens > 1 + len(drafts.get(request_id, ())):
            with_prefill = True
    lengths = [len(tokens) for tokens in sampled] if sampled else []
    return Seen(lengths, with_prefill)


def after(book: StepBook, seen: Seen | None, scheduled: Any, reply: Any, result: Any) -> None:
    """Rows of what the scheduler has just counted."""
    now = time.perf_counter_ns()
    times = getattr(reply, ATTRIBUTE, None)
    if times is not None:
        book.timed(times)
    elif not book.has_times and book.last_step > _SILENT_STEPS:
        guard.tell_once("no times come from the workers: rounds are written with counts and step times only")
    if seen is not None:
        number, began = getattr(scheduled, ATTRIBUTE, None) or (book.next_number(), now)
        drafts, invalid = scheduled.scheduled_spec_decode_tokens, getattr(scheduled, "num_invalid_spec_tokens", None)
        index = reply.req_id_to_index
        step = book.step(number, began, now, seen, len(scheduled.num_scheduled_tokens))
        for outputs in result.values() if isinstance(result, dict) else (result,):
            for output in outputs.outputs:
                request_id = output.request_id
                place = index.get(request_id)
                if place is None:
                    continue
                drafted = len(drafts.get(request_id, ()))
                accepted = max(seen.lengths[place] - 1, 0) if drafted and seen.lengths else 0
                if invalid:
                    drafted -= invalid.get(request_id, 0)
                step.add(request_id, drafted, accepted, len(output.new_token_ids), output.finish_reason)
        book.ended(step)
    for request_id in scheduled.finished_req_ids:
        book.gone(request_id, "abort")


def describe(config: Any) -> dict[str, Any]:
    """Columns of `runs` from vLLM's configuration; what a version does not have is left out."""
    from tracelens.recorders.columns import leaf

    model, parallel = getattr(config, "model_config", None), getattr(config, "parallel_config", None)
    speculative, scheduling = getattr(config, "speculative_config", None), getattr(config, "scheduler_config", None)
    method = getattr(speculative, "method", None)
    found = {
        "engine_version": guard.version(),
        "engine_era": "v1",
        "model": leaf(getattr(model, "model", None)),
        "draft_model": leaf(getattr(speculative, "model", None)) if method not in ("ngram", "suffix") else None,
        "method": method,
        "num_speculative_tokens": getattr(speculative, "num_speculative_tokens", None),
        "tensor_parallel": getattr(parallel, "tensor_parallel_size", None),
        "data_parallel": getattr(parallel, "data_parallel_size", None),
        "max_num_seqs": getattr(scheduling, "max_num_seqs", None),
        "forced_acceptance": True if getattr(speculative, "rejection_sample_method", None) == "synthetic" else None,
    }
    return {name: value for name, value in found.items() if isinstance(value, str | int)}


def replica_of(scheduler: Any) -> str:
    """The data-parallel rank."""
    parallel = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    rank = getattr(parallel, "data_parallel_index", None)
    return str(rank if rank is not None else getattr(parallel, "data_parallel_rank", 0) or 0)
