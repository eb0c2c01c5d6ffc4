"""Settings of a recorder, from arguments or from the environment variables `TRACELENS_RECORD…`."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracelens.recorders import patterns

_log = logging.getLogger("tracelens.recorders")
VARIABLE = "TRACELENS_RECORD"
# A file of less than a kilobyte holds a line or two; a thread cannot wait for ever.
_RANGES = {"queue": (1, 1e9), "rotate_mb": (0.001, 1e6), "rotate_s": (0.01, 1e9), "flush_s": (0.001, 3600)}


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how to write.

    Attributes:
        folder: where files go.
        run_id: name of the serving process, the same in all of its files; made up where it is not given.
        sample: share of steps that are written, in (0, 1]; each then stands for 1 / sample of its kind (`weight`).
        queue: steps that may wait for the writer; what comes while it is full is dropped and counted.
        rotate_mb, rotate_s: a file is finished beyond this size or age.
        keep: files of one process that stay on disk, 0 for all.
        flush_s: seconds between two looks of the writing thread: what a kill -9 can lose.
        task: pattern over the first 64 characters of the request's id; its first group is the task type. One that a
            client's id could make slow is refused (see `patterns`).
    """

    folder: Path
    run_id: str = ""
    sample: float = 1.0
    queue: int = 8192
    rotate_mb: float = 64.0
    rotate_s: float = 3600.0
    keep: int = 64
    flush_s: float = 0.25
    task: str | None = None

    def __post_init__(self) -> None:
        if not 0.0001 <= self.sample <= 1:
            raise ValueError(f"sample: {self.sample} is not between 0.0001 and 1")
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name}: {getattr(self, name)} is not between {least:g} and {most:g}")
        if not self.keep >= 0:
            raise ValueError(f"keep: {self.keep} is not 0 or above")
        if self.task is not None:
            patterns.compiled(self.task)


def new_run_id(engine: str) -> str:
    """A name for a serving process that starts now, as `vllm-20261129T234100-3f21`."""
    return f"{engine}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{random.SystemRandom().getrandbits(16):04x}"


def new_prefix() -> str:
    """What tells the numbers of steps of this process from those of others in one run: ranks, forks, restarts."""
    return f"{os.getpid():x}.{random.SystemRandom().getrandbits(24):x}-"


def from_environment(environment: Mapping[str, str] | None = None) -> Settings | None:
    """Settings of `TRACELENS_RECORD` and its companions; None where it is not set.

    A companion that cannot be read is left at its default, with one logged line: a typing error must not keep an engine
    from starting.
    """
    given = os.environ if environment is None else environment
    folder = given.get(VARIABLE, "")
    if not folder:
        return None
    found: dict[str, object] = {}
    for name, kind in (
        ("run_id", str), ("sample", float), ("queue", int), ("rotate_mb", float), ("rotate_s", float), ("keep", int),
        ("task", str),
    ):  # fmt: skip
        variable = f"{VARIABLE}_{'RUN' if name == 'run_id' else name.upper()}"
        if not given.get(variable):
            continue
        try:
            value = kind(given[variable])
            Settings(Path(folder), **{name: value})  # type: ignore[arg-type]
        except ValueError as error:
            _log.warning("tracelens: %s is not used (%s)", variable, error)
        else:
            found[name] = value
    return Settings(Path(folder), **found)  # type: ignore[arg-type]
