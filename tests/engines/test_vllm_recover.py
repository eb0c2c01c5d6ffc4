"""Whole numbers behind rounded figures: whatever the truth was, nothing that is called exact is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_lines import API, c_line, ingest

from tracelens.engines.vllm.recover import Recovered, recover


@st.composite
def intervals(draw: st.DrawFn, most: int = 3000) -> tuple[int, int, list[int]]:
    """(rounds, drafted, per-position counts) that can happen."""
    rounds = draw(st.integers(1, most))
    k = draw(st.integers(1, 8))
    per_pos: list[int] = []
    for _ in range(k):
        per_pos.append(draw(st.integers(0, per_pos[-1] if per_pos else rounds)))
    full = rounds * k
    # Rounds may draft fewer than K, but at least one, and no fewer than they accept.
    lowest = max(rounds, sum(per_pos))
    drafted = draw(st.one_of(st.just(full), st.integers(lowest, full)))
    return rounds, drafted, per_pos


def printed(cases: list[tuple[int, int, list[int]]], bonus: bool = True) -> Recovered:
    accepted = np.array([sum(p) for _, _, p in cases], dtype=np.int64)
    drafted = np.array([d for _, d, _ in cases], dtype=np.int64)
    mean = np.array([float(f"{bonus + sum(p) / n:.2f}") - bonus for n, _, p in cases])
    rates = np.array([[float(f"{c / n:.3f}") for c in p] for n, _, p in cases])
    return recover(accepted, drafted, mean, rates)


@settings(max_examples=300, deadline=None)
@given(intervals(), st.booleans())
def test_exact_is_the_truth_and_the_rest_keeps_the_identities(case: tuple[int, int, list[int]], bonus: bool) -> None:
    rounds, drafted, per_pos = case
    found = printed([case], bonus)
    n, counts = int(found.rounds[0]), found.per_pos[0].tolist()
    if found.exact[0]:
        assert (n, counts) == (rounds, per_pos)
    if n < 0:
        return
    k, accepted = len(per_pos), sum(per_pos)
    assert n * k >= drafted >= n
    if sum(counts) == accepted:
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] >= 0
        assert counts[0] <= n
        # Both round to the printed rates, so they lie no further apart than its last digit.
        assert all(abs(c / n - t / rounds) < 0.00101 for c, t in zip(counts, per_pos, strict=True))


@pytest.mark.parametrize(("rounds", "per_pos"), [(3045, [2356, 2125]), (5189, [4357, 3626]), (1619, [660, 329])])
def test_positions_that_could_be_others_are_not_exact(rounds: int, per_pos: list[int]) -> None:
    """One number of rounds fits, but a count may move from a position to the next within the printed digits."""
    found = printed([(rounds, rounds * 2, per_pos)])
    assert (found.rounds[0], found.exact[0]) == (rounds, False)
    assert sum(found.per_pos[0]) == sum(per_pos)


@settings(max_examples=150, deadline=None)
@given(intervals(most=400))
def test_an_interval_of_full_drafts_always_has_a_solution(case: tuple[int, int, list[int]]) -> None:
    rounds, _, per_pos = case
    found = printed([(rounds, rounds * len(per_pos), per_pos)])
    assert found.rounds[0] == rounds  # the full drafts are looked at first
    assert sum(found.per_pos[0]) == sum(per_pos)


@settings(max_examples=60, deadline=None)
@given(st.lists(intervals(), min_size=1, max_size=6))
def test_lines_do_not_know_of_each_other(cases: list[tuple[int, int, list[int]]]) -> None:
    k = len(cases[0][2])
    same = [c for c in cases if len(c[2]) == k]
    together = printed(same)
    for i, case in enumerate(same):
        alone = printed([case])
        assert (together.rounds[i], together.exact[i]) == (alone.rounds[0], alone.exact[0])
        assert together.per_pos[i].tolist() == alone.per_pos[0].tolist()


@settings(max_examples=50, deadline=None)
@given(intervals(most=600))
def test_through_the_reader(case: tuple[int, int, list[int]]) -> None:
    rounds, drafted, per_pos = case
    tables, rejects = ingest(API.format(1) + c_line(sum(per_pos), drafted, per_pos, rounds))  # checks the identities
    assert (rejects, tables.windows is not None) == ([], True)
    assert tables.windows is not None
    row = tables.windows.to_dicts()[0]
    assert (row["accepted"], row["drafted"], row["num_speculative_tokens"]) == (sum(per_pos), drafted, len(per_pos))
    if row["rounds_basis"] == "exact":
        assert (row["rounds"], row["accepted_per_pos"]) == (rounds, per_pos)


def test_the_real_run_of_the_format_notes() -> None:
    """556 drafts of K = 4 with the histogram {0: 471, 1: 52, 2: 7, 3: 0, 4: 26}: found, though 557 would fit too."""
    found = printed([(556, 4 * 556, [85, 33, 26, 26])])
    assert (found.rounds[0], found.per_pos[0].tolist(), found.exact[0]) == (556, [85, 33, 26, 26], False)


@pytest.mark.parametrize(
    ("accepted", "drafted", "mean", "rates"),
    [
        (5, 3, 1.0, [1.0]),
        (0, 10, 3.0, [0.9, 0.9]),
        (10, 10, 0.0, [0.0]),
        (7, 100, 0.07, [0.9, 0.9]),
        (2**53 - 1, 2**53 - 1, 1.0, [1.0, 0.0]),
        (1, 2**53 - 1, 0.01, [0.01]),
    ],
)
def test_figures_that_fit_nothing_give_nothing(accepted: int, drafted: int, mean: float, rates: list[float]) -> None:
    arrays: Any = (np.array([accepted]), np.array([drafted]), np.array([mean]), np.array([rates]))
    found = recover(*arrays)
    if found.exact[0]:
        assert found.per_pos[0].sum() == accepted
    assert found.rounds[0] == -1 or 0 < found.rounds[0] <= drafted
