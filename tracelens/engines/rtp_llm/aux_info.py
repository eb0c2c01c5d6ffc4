"""`aux_info` of a response: what RTP-LLM says of one finished request (rtp-llm.md 2.2, 2.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tracelens.engines.units import INT32_MAX, INT64_MAX, BrokenError, counts, duration, whole

ROUNDS = "speculative_draft_rounds"
PER_POS = "speculative_accepted_tokens_per_pos"

# No drafter proposes this many tokens a round (gen_num_per_cycle is 1 to 10 in the documentation).
LONGEST_DRAFT = 1024

Row = dict[str, Any]


def _count(aux: Mapping[str, Any], key: str, high: int = INT64_MAX) -> int | None:
    value = aux.get(key)
    return None if value is None else whole(value, key, high)


def tokens_of(aux: Mapping[str, Any]) -> Row:
    """Lengths and iterations.

    `iter_count` counts the prefill pass too (in recordings, K = 4 with nothing accepted has iter_count = output_len):
    the passes after it are one less.

    Raises:
        BrokenError: a field is no count.
    """
    passes = _count(aux, "iter_count", INT32_MAX)
    return {
        "prompt_tokens": _count(aux, "input_len", INT32_MAX),
        "output_tokens": _count(aux, "output_len", INT32_MAX),
        "cached_tokens": _count(aux, "reuse_len", INT32_MAX),
        "iterations": passes - 1 if passes else None,
    }


def accepted_of(aux: Mapping[str, Any]) -> Row:
    """Rounds, drafted, accepted and the exact histogram, of a record that has the fields of 4b8d39cd5 (2026-08-20).

    Element i of the per-position list is the rounds whose first i+1 drafts were accepted, so exactly j were accepted in
    A[j-1] - A[j] of them, with A[-1] = rounds and A[K] = 0. Before that commit nothing here is known: K is not in the
    record, and a request with alpha = 0 looks like one without speculation.

    Raises:
        BrokenError: a field is no count, or an identity is broken.
    """
    rounds = _count(aux, ROUNDS, INT32_MAX)
    per_pos = None if aux.get(PER_POS) is None else counts(aux[PER_POS], PER_POS)
    row: Row = {
        "rounds": rounds,
        "drafted": None,
        "accepted": None,
        "accepted_hist": None,
        "num_speculative_tokens": None,
    }
    if per_pos is None:
        return row
    k = len(per_pos)
    if k > LONGEST_DRAFT or max(per_pos, default=0) > INT32_MAX:
        raise BrokenError(f"{PER_POS}: out of range")
    if any(a < b for a, b in pairwise(per_pos)):
        raise BrokenError(f"identity broken: {PER_POS} does not increase")
    row["accepted"] = sum(per_pos)
    row["num_speculative_tokens"] = k or None
    if rounds is None:
        return row
    if per_pos and per_pos[0] > rounds:
        raise BrokenError(f"identity broken: {PER_POS}[0] <= {ROUNDS}")
    if rounds and not per_pos:
        raise BrokenError(f"identity broken: {PER_POS} is empty only when {ROUNDS} is 0")
    row["drafted"] = rounds * k
    if per_pos:
        edges = [rounds, *per_pos, 0]
        row["accepted_hist"] = [a - b for a, b in pairwise(edges)]
    return row


def plain_counts(output_tokens: int | None, iterations: int | None, found: Row) -> Row:
    """`emitted` and how the counts were found.

    The first token comes from the prefill, so the passes after it gave output_len - 1. They cannot have given more than
    one token each and their accepted drafts: what a record says beyond that (several sequences in one count) is cut.
    """
    accepted, rounds = found["accepted"], found["rounds"]
    emitted = None if output_tokens is None else max(output_tokens - 1, 0)
    if emitted is not None and accepted is not None and rounds is not None:
        emitted = min(emitted, accepted + max(rounds, iterations or 0))
    basis = "logged" if accepted is not None else "derived" if emitted is not None else None
    return {"emitted": emitted, "counts_basis": basis}


def _milliseconds(aux: Mapping[str, Any], key: str) -> int | None:
    """A time in ms as us, or None where it is missing, NaN, or wrapped.

    The engine counts microseconds in 32 bits: after 35 minutes a time is negative.

    Raises:
        BrokenError: no number.
    """
    value = aux.get(key)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        return None
    return int(duration(value, key, 1000))


def times_of(aux: Mapping[str, Any], output_tokens: int | None) -> Row:
    """TTFT, end to end, queue, decode time and TPOT.

    Raises:
        BrokenError: a field is no number.
    """
    # No request takes no time: 0 is what was never set.
    total = _milliseconds(aux, "cost_time") or None
    first = _milliseconds(aux, "first_token_cost_time") or None
    if total is not None and first is not None and total < first:
        total = None  # wrapped once more, to a positive value
    decode = total - first if total is not None and first is not None else None
    row: Row = {"ttft_us": first, "e2e_us": total, "queue_us": _milliseconds(aux, "wait_time"), "decode_us": decode}
    row |= {"tpot_us": None, "tpot_basis": None}
    if decode is not None and output_tokens is not None and output_tokens > 1:
        row |= {"tpot_us": decode / (output_tokens - 1), "tpot_basis": "derived"}
    return row
