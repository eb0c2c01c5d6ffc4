"""The policy that a gate writes: K by class of traffic and by batch size, ready for a router or an engine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens import __version__
from tracelens.analysis.gate import GateResult, GateStratum, gate
from tracelens.analysis.results import Value
from tracelens.analysis.session import Question
from tracelens.analysis.sweep import DEFAULT_KS, SweepStratum, sweep

_BUCKET = re.compile(r"0*(\d+)(?:-0*(\d+))?")


@dataclass(frozen=True, slots=True)
class Choice:
    """K for one class: 0 is off, None where the records cannot tell. `why` says where it comes from."""

    key: dict[str, Value]
    k: int | None
    decision: str | None
    current_k: int | None
    relative_token_time: float | None
    source: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Policy:
    """K by stratum, for all traffic, and by batch size; `schedule` is vLLM's list [[first, last, K], …]."""

    by: tuple[str, ...]
    strata: tuple[Choice, ...]
    total: Choice
    batches: tuple[Choice, ...]
    schedule: tuple[tuple[int, int, int], ...]
    schedule_why: str

    def document(self) -> dict[str, Any]:
        """The policy as JSON."""
        # vLLM takes the largest K at start-up; without a schedule it is the K of all traffic.
        most = max((k for *_, k in self.schedule), default=self.total.k)
        vllm: dict[str, Any] = {
            "num_speculative_tokens": most,
            "num_speculative_tokens_per_batch_size": [list(entry) for entry in self.schedule],
            "note": self.schedule_why,
        }
        return {
            "schema_version": 1,
            "tracelens": __version__,
            "by": list(self.by),
            "strata": [dataclasses.asdict(choice) for choice in self.strata],
            "total": dataclasses.asdict(self.total),
            "batch_size": [dataclasses.asdict(choice) for choice in self.batches],
            "vllm": vllm,
        }


def policy(lake: Path, question: Question, decided: GateResult, ks: Sequence[int] = DEFAULT_KS) -> Policy:
    """Choose K for every stratum of a gate and for every batch bucket.

    A class that is GO or NO_GO gets the K with the least relative token time, off where none is below 1; one that is
    INCONCLUSIVE keeps the K it has. Batch buckets are decided by the same rule; where one is INCONCLUSIVE it takes the
    K of all traffic.

    Raises:
        InputError: as `sweep`.
    """
    swept = sweep(lake, question, ks)
    by_key = {tuple(s.key.values()): s for s in swept.strata}
    margin = decided.options.margin
    strata = tuple(_choice(s, by_key.get(tuple(s.key.values())), margin) for s in decided.strata)
    total = _choice(decided.total, swept.total, margin)
    by_batch = dataclasses.replace(question, by=("batch_bucket",))
    gated = [s for s in gate(lake, by_batch, decided.options).strata if s.key["batch_bucket"] is not None]
    batches = {s.key["batch_bucket"]: s for s in sweep(lake, by_batch, ks).strata} if gated else {}
    chosen = tuple(_by_batch(s, batches.get(s.key["batch_bucket"]), total, margin) for s in gated)
    schedule, why = _schedule(chosen)
    return Policy(decided.by, strata, total, chosen, schedule, why)


def _choice(gated: GateStratum, swept: SweepStratum | None, margin: float) -> Choice:
    current = gated.num_speculative_tokens
    best = None if swept is None else swept.best_k
    source, time = _entry(swept, best)
    if best and (time is None or swept is None or swept.best_k_low is None):
        best = None  # no interval: what one request shows is no reason to change K
    if gated.decision == "INCONCLUSIVE":
        k, source, time = current, None, gated.relative_token_time
        why = "inconclusive: kept as it is" if current is not None else "inconclusive, and its K is not logged"
    elif best is None:
        k = 0 if gated.decision == "NO_GO" else current
        source, time = "observed", gated.relative_token_time
        why = "off: it does not pay, and no other K can be told" if k == 0 else "it pays; no other K can be told"
    elif best == 0:
        k, why = 0, "off: no K has a relative token time below 1"
    elif time is None or time > 1.0 - margin:
        k, source, time = 0, "plain decoding", 1.0
        why = f"off: no K has a relative token time below {1.0 - margin:g} (K {best} comes nearest)"
    else:
        k, why = best, f"least relative token time of the K that were {source}"
        why += "" if source == "observed" or best == current else "; it has not run yet: try it before you trust it"
    return Choice(dict(gated.key), k, gated.decision, current, time, source, why)


def _by_batch(gated: GateStratum, swept: SweepStratum | None, total: Choice, margin: float) -> Choice:
    if gated.decision != "INCONCLUSIVE":
        return _choice(gated, swept, margin)
    why = f"inconclusive ({gated.reasons[0]}): the K of all traffic"
    return Choice(dict(gated.key), total.k, gated.decision, gated.num_speculative_tokens, gated.relative_token_time,
                  None, why)  # fmt: skip


def _entry(swept: SweepStratum | None, k: int | None) -> tuple[str | None, float | None]:
    """Source and relative token time of the entry of a K; observed before replayed."""
    if swept is None or k is None:
        return None, None
    if k == 0:
        return "plain decoding", 1.0
    entries = [
        e
        for e in swept.entries
        if e.k == k
        and e.relative_token_time_low is not None
        and e.relative_token_time_high is not None
        and not e.extrapolated
    ]
    first = min(entries, key=lambda e: e.source != "observed", default=None)
    return (None, None) if first is None else (first.source, first.relative_token_time)


def _schedule(chosen: Sequence[Choice]) -> tuple[tuple[tuple[int, int, int], ...], str]:
    """vLLM's list from 0.24 on (pull request 32374): ranges of batch size, both ends included, in order, from 1.

    Sizes between two ranges that are known take the K of the smaller one, as vLLM itself would.
    """
    known: list[tuple[int, int, int]] = []
    for choice in chosen:
        bucket = choice.key.get("batch_bucket")
        match = None if bucket is None else _BUCKET.fullmatch(str(bucket))
        if match is None or choice.k is None:
            continue
        known.append((int(match[1]), int(match[2] or match[1]), choice.k))
    if not known:
        return (), "no K by batch size: these records hold no batch sizes, or no K could be chosen at any"
    known.sort()
    joined: list[tuple[int, int, int]] = []
    for first, last, k in known:
        start = 1 if not joined else joined[-1][1] + 1
        if joined and joined[-1][2] == k:
            joined[-1] = (joined[-1][0], last, k)
            continue
        if joined and start < first:
            joined[-1] = (joined[-1][0], first - 1, joined[-1][2])
            start = first
        joined.append((start, last, k))
    return tuple(joined), (
        "for --speculative-config of vLLM 0.24 or later; it counts every scheduled request of a step, prefills too; "
        f"batches above {joined[-1][1]} were not seen"
    )
