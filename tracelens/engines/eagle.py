"""EAGLE's evaluation scripts: answer files with the rounds and tokens of each turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import bench_answers
from tracelens.engines.base import Context, JsonRecord, Parsed, Surface, Tables

__all__ = ["ENGINE"]

ANSWER = "eagle.answer"
SURFACE = Surface(
    ANSWER,
    "*.jsonl of gen_ea_answer_* (one question, its turns)",
    "2023-12 and later",
    (
        "tau_verified",
        "tau_committed",
        "temperature",
        "draft_accept_ratio",
        "hazard",
        "survival",
        "rollback_len",
        "near_k_request_share",
    ),
    "python -m eagle.evaluation.gen_ea_answer_… writes it; acceptance by position only gen_ea_alpha_answer_… (a chain)",
)


class Eagle:
    """The reader of EAGLE's answer files."""

    name = "eagle"
    surfaces: Sequence[Surface] = (SURFACE,)
    needles: Sequence[bytes] = ()
    json_keys: Sequence[bytes] = (b'"idxs"',)

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """No text lines."""
        return Parsed()

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Answers; see `tracelens.engines.bench_answers`. Those with accepted lengths are Spec-Bench's."""
        return bench_answers.parse(records, ANSWER, ("idxs",), ("accept_lengths", "decoding_steps"))

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Requests, and a run each model id."""
        return bench_answers.assemble(frames, SURFACE, context)


ENGINE = Eagle()
