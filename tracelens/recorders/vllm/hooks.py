"""Puts the hooks into vLLM's classes, when and where their modules are imported."""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tracelens.recorders.settings import VARIABLE, new_run_id
from tracelens.recorders.vllm import core, guard, worker

Hook = Callable[[ModuleType], None]

HOOKS: Mapping[str, Hook] = {
    "vllm.v1.core.sched.scheduler": core.hook,
    "vllm.v1.core.scheduler": core.hook,  # to 0.8.2
    "vllm.v1.worker.gpu_model_runner": worker.hook_v1,
    "vllm.v1.worker.gpu.model_runner": worker.hook_v2,
}


def install() -> None:
    """Hook what is imported already now, and the rest when it is: no process imports anything for our sake.

    The name of the run is left in the environment, from where the engine core and the workers have it, too.
    """
    if not os.environ.get(f"{VARIABLE}_RUN"):  # an empty one is none
        os.environ[f"{VARIABLE}_RUN"] = new_run_id("vllm")
    later: dict[str, Hook] = {}
    for name, hook in HOOKS.items():
        module = sys.modules.get(name)
        if module is not None:
            _try(hook, module)
        else:
            later[name] = hook
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(later))


def _try(hook: Hook, module: ModuleType) -> None:
    try:
        hook(module)
    except Exception as error:
        guard.failed(module.__name__, error)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs a hook behind the import of a module, once."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self.hooks = hooks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.hooks:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _AfterImport):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._hook(spec)
                return spec
        return None

    def _hook(self, spec: ModuleSpec) -> None:
        """Whoever only asks for a spec imports nothing: the hook stays until the module has run."""
        loader: Any = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            run(module)
            hook = self.hooks.pop(module.__name__, None)
            if hook is not None:
                _try(hook, module)

        loader.exec_module = exec_module
