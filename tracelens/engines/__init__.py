"""What each engine writes: declarations, and the little code that no declaration can say."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from tracelens.engines.base import Engine
from tracelens.errors import InputError

# One explicit list; an engine of a third party comes through the entry-point group. `generic` stays last: it takes
# canonical records that no engine claimed.
BUILT_IN = (
    "vllm", "rtp_llm", "sglang", "tensorrt_llm", "llama_cpp", "lmdeploy", "mlc", "lightllm", "omlx",
    "aiperf", "guidellm", "spec_bench", "eagle", "generic",
)  # fmt: skip
GROUP = "tracelens.engines"


def load(only: str = "auto") -> list[Engine]:
    """The engine readers, in the order in which JSON records are offered to them.

    Args:
        only: `auto` for all, or the name of one engine (as in the column `engine`).

    Raises:
        InputError: no engine of that name, or a third party's reader that does not load.
    """
    engines: list[Engine] = []
    for point in entry_points(group=GROUP):
        try:
            engines.append(point.load())
        except Exception as error:  # somebody else's code: name it, and go no further
            raise InputError(f"the engine reader {point.name} ({point.value}) does not load: {error}") from error
    engines += [import_module(f"tracelens.engines.{name}").ENGINE for name in BUILT_IN]
    if only == "auto":
        return engines
    chosen = [e for e in engines if e.name == only]
    if not chosen:
        raise InputError(f"--engine {only}: unknown; known are auto, {', '.join(sorted(e.name for e in engines))}")
    return chosen
