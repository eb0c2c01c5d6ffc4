"""Our faults stay ours: what fails in a hook is told once and the engine goes on."""

from __future__ import annotations

import logging
import sys

_told: set[str] = set()


def logger() -> logging.Logger:
    """vLLM's own logger shows a child of `vllm`; any other name would be silent there."""
    return logging.getLogger("vllm.tracelens")


def failed(where: str, error: BaseException) -> None:
    """Tell once a place that a hook failed there."""
    if where not in _told:
        _told.add(where)
        logger().warning(
            "tracelens: %s cannot be recorded (%s: %.200s); serving goes on", where, type(error).__name__, error
        )


def tell_once(message: str) -> None:
    """One clear line, once a process."""
    if message not in _told:
        _told.add(message)
        logger().warning("tracelens: %s", message)


def version() -> str | None:
    """vLLM's version, without importing vLLM where it is not."""
    vllm = sys.modules.get("vllm")
    found = getattr(vllm, "__version__", None)
    return found if isinstance(found, str) else None
