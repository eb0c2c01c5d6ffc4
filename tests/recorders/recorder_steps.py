"""Steps to record, what was written, and a device whose clock the test turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tracelens.recorders import Recorder


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(folder) if line["record"] == "round"]


def a_step(recorder: Recorder, requests: int = 2) -> None:
    with recorder.step() as step:
        with step.draft():
            pass
        with step.target():
            pass
        for r in range(requests):
            step.round(f"r{r}", drafted=3, accepted=r % 4, emitted=r % 4 + 1)


class Event:
    """A device event on a clock that the test turns."""

    now = 0.0
    made = 0

    def __init__(self) -> None:
        Event.made += 1
        self.at = 0.0

    def record(self) -> None:
        Event.now += 1.0
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= self.reached

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at

    reached = 0.0
