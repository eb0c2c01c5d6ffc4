"""The stat logger: what vLLM counts itself, one window a step, from the API server.

It is a witness of its own: its sums must be those of the engine core's rounds. It sees no request and no phase.
vLLM makes one of these wherever the package is installed; without `TRACELENS_RECORD` it does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracelens.recorders.vllm import guard

if TYPE_CHECKING:
    StatLoggerBase = object
else:
    try:
        from vllm.v1.metrics.loggers import StatLoggerBase
    except Exception:  # a vLLM without it never asks for this class
        StatLoggerBase = object


class StatLogger(StatLoggerBase):
    """Entry point of `vllm.stat_logger_plugins` (from 0.12); never raises."""

    def __init__(self, vllm_config: Any = None, engine_index: Any = 0) -> None:
        self._recorder: Any = None
        self._index = engine_index if isinstance(engine_index, int) else 0
        if not os.environ.get("TRACELENS_RECORD"):
            return
        try:
            from random import Random

            from tracelens.recorders.recorder import Recorder
            from tracelens.recorders.settings import from_environment
            from tracelens.recorders.vllm.core import describe

            settings = from_environment()
            if settings is not None:
                self._keep, self._random = settings.sample, Random()
                self._recorder = Recorder(
                    settings.folder, engine="vllm", process="stats", replica=str(self._index), settings=settings,
                    **describe(vllm_config),
                )  # fmt: skip
        except Exception as error:
            guard.failed("the stat logger", error)

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *args: Any, **kwargs: Any) -> None:
        """One engine step; later versions pass further objects, which are not read."""
        if self._recorder is None:
            return
        try:
            index = kwargs.get("engine_idx", next((a for a in reversed(args) if isinstance(a, int)), self._index))
            window = of_step(scheduler_stats, iteration_stats)
            if window is not None and (self._keep >= 1 or self._random.random() < self._keep):
                weight = None if self._keep >= 1 else 1 / self._keep
                self._recorder.window(**{**window, "replica": str(index), "weight": weight})
        except Exception as error:
            guard.failed("the statistics of a step", error)

    def log(self) -> None:
        """Called at vLLM's own interval: nothing is due."""

    def log_engine_initialized(self) -> None:
        """Nothing to do."""

    def record_sleep_state(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""


def of_step(scheduler: Any, iteration: Any) -> dict[str, Any] | None:
    """Columns of `windows`; None where the call tells of no step (idle, or a request that was only taken off)."""
    if iteration is None:
        return None
    drafts = getattr(scheduler, "spec_decoding_stats", None)
    gaps = getattr(iteration, "inter_token_latencies_iter", None)
    if gaps is None:
        gaps = getattr(iteration, "time_per_output_tokens_iter", None)  # to 0.10.1
    counted: dict[str, Any] = {}
    if drafts is not None:
        counted = {
            "rounds": getattr(drafts, "num_drafts", None),
            "drafted": getattr(drafts, "num_draft_tokens", None),
            "accepted": getattr(drafts, "num_accepted_tokens", None),
            "accepted_per_pos": _counts(getattr(drafts, "num_accepted_tokens_per_pos", None)),
            "num_speculative_tokens": getattr(drafts, "num_spec_tokens", None),
            "counts_basis": "logged",
            "rounds_basis": "logged",
        }
    usage = getattr(scheduler, "kv_cache_usage", getattr(scheduler, "gpu_cache_usage", None))
    return {
        "steps": 1,
        **counted,
        "round_us": round(sum(gaps) * 1e6) if gaps else None,
        "rounds_timed": len(gaps) if gaps else None,
        "generated_tokens": getattr(iteration, "num_generation_tokens", None),
        "prompt_tokens": _prompt(iteration),
        "preemptions": getattr(iteration, "num_preempted_reqs", None),
        "running": getattr(scheduler, "num_running_reqs", None),
        "waiting": getattr(scheduler, "num_waiting_reqs", None),
        "kv_cache_usage": None if usage is None else min(max(float(usage), 0.0), 1.0),
    }


def _counts(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else [int(v) for v in values]


def _prompt(iteration: Any) -> int | None:
    found = getattr(iteration, "num_prompt_tokens", None)
    if found is None:
        found = getattr(getattr(iteration, "prompt_token_stats", None), "total", None)
    return found if isinstance(found, int) else None
