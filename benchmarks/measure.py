"""CPU seconds and peak memory of whole commands, floor and ours in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one command."""

    cpu: float
    wall: float
    rss_mb: float


def run(command: Sequence[str], env: dict[str, str] | None = None) -> Sample:
    """Run a command to its end; children are counted."""
    begun = time.monotonic()
    # A pipe, not /dev/null: grep stops at the first match when nobody reads.
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    own = {**os.environ, **(env or {})}
    own.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # an installed package has its bytecode; a checkout gets it with the first run
    process = subprocess.Popen(command, env=own, **both)
    assert process.stdout is not None
    message = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {process.returncode}: {message.decode(errors='replace')[-400:]}")
    return Sample(usage.ru_utime + usage.ru_stime, time.monotonic() - begun, usage.ru_maxrss / 1024)


def in_turns(commands: dict[str, Callable[[], Sample]], repeats: int) -> dict[str, Sample]:
    """Medians over `repeats` rounds in which every command ran once: what else the machine does hits all alike."""
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, call in commands.items():
            samples[name].append(call())
    return {
        name: Sample(
            statistics.median(s.cpu for s in taken),
            statistics.median(s.wall for s in taken),
            max(s.rss_mb for s in taken),
        )
        for name, taken in samples.items()
    }
