"""The vLLM plug-in: what the entry points name. Without `TRACELENS_RECORD` nothing else is imported.

`register` is called by vLLM in the API server, the engine core and every worker. It wraps, where they are:

- `Scheduler.schedule` and `Scheduler.update_from_output` (engine core): who drafted and got accepted what in a step;
- the model runners' methods (workers): how long drafting, the target's pass and sampling took.

How the two are joined: the engine core numbers every `SchedulerOutput`; the number travels with it to the workers. A
worker puts the times it has, by number, on the `ModelRunnerOutput` that it sends back anyway: its own, or (device
events, asynchronous scheduling) those of earlier steps that were reached meanwhile. The engine core knows its steps by
number, so that it does not matter how many are in flight, which worker answers, or how late. Nothing is matched by
clock or by order, no file is joined to another, and no channel is added.
"""

from __future__ import annotations

import os
import sys

_done: set[str] = set()


def register() -> None:
    """Entry point of `vllm.general_plugins`; never raises."""
    if _done or not os.environ.get("TRACELENS_RECORD"):
        return
    _done.add("register")
    try:
        from tracelens.recorders.vllm.hooks import install

        install()
    except Exception as error:
        print(f"tracelens: not recording ({type(error).__name__}: {error}); serving goes on", file=sys.stderr)
