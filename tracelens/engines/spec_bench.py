"""Spec-Bench: answer files with accepted lengths round by round, by category of question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import bench_answers
from tracelens.engines.base import Context, JsonRecord, Parsed, Surface, Tables

__all__ = ["ENGINE"]

ANSWER = "spec_bench.answer"
SURFACE = Surface(
    ANSWER,
    "model_answer/*.jsonl (one question, its turns)",
    "2024-02 and later",
    ("tau_verified", "tau_committed"),  # by position only where the draft length is known, which it never is
    "python -m evaluation.inference_… writes it",
)


class SpecBench:
    """The Spec-Bench reader."""

    name = "spec-bench"
    surfaces: Sequence[Surface] = (SURFACE,)
    needles: Sequence[bytes] = ()
    json_keys: Sequence[bytes] = (b'"accept_lengths"', b'"decoding_steps"')

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """No text lines."""
        return Parsed()

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Answers; see `tracelens.engines.bench_answers`."""
        return bench_answers.parse(records, ANSWER, ("accept_lengths", "decoding_steps"))

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Requests, and a run each model id."""
        return bench_answers.assemble(frames, SURFACE, context)


ENGINE = SpecBench()
