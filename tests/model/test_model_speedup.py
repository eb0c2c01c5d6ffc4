"""Speedup formulas against the tables of the papers.

Rows that do not follow from their own formula are documentation, not tests:

| source | inputs | printed | computed |
|---|---|---|---|
| the source article | rho .2, alpha .6, K 4 | 1.0 | 0.75 (1.0 follows from rho .35) |
| the source article | rho .2, alpha .4, K 4 | 1.5 | 1.125 (1.5 follows from rho .35) |
| Leviathan, lenience, c .015 | alpha .62/.71/.76/.84, g not stated | 2.5/3.1/3.6/5 | best 2.33/2.94/3.45/4.79 |
| no-bonus trap | alpha .8, c .1, k 4 | 1.687 | 2.401 with the target's own token |
"""

from __future__ import annotations

import itertools

import pytest

from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb, expected_tokens
from tracelens.model.speedup import (
    best_length,
    break_even_prob,
    break_even_ratio,
    operations_factor,
    relative_token_time_article,
    speedup_article,
    speedup_iid,
    speedup_with_bonus,
)

LEVIATHAN_1 = [(0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44), (0.8, 5, 1.63, 3.69),
               (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86)]  # fmt: skip
LEVIATHAN_4 = [(0.75, 7, 0.02, 3.2), (0.80, 7, 0.04, 3.3), (0.82, 7, 0.11, 2.5), (0.62, 7, 0.02, 2.3),
               (0.68, 5, 0.04, 2.4), (0.71, 3, 0.11, 2.0), (0.65, 5, 0.02, 2.4), (0.73, 5, 0.04, 2.6),
               (0.74, 3, 0.11, 2.0), (0.53, 5, 0.02, 1.9), (0.55, 3, 0.04, 1.8), (0.56, 3, 0.11, 1.6)]  # fmt: skip


def iid(alpha: float, c: float, k: int) -> float:
    return float(speedup_iid(TokenAcceptProb(alpha), c, k))


@pytest.mark.parametrize(("alpha", "gamma", "ops", "speed"), LEVIATHAN_1)
def test_leviathan_table_1(alpha: float, gamma: int, ops: float, speed: float) -> None:
    assert iid(alpha, 0.0, gamma) == pytest.approx(speed, abs=0.005)
    assert float(operations_factor(TokenAcceptProb(alpha), 0.0, gamma)) == pytest.approx(ops, abs=0.005)


@pytest.mark.parametrize(("alpha", "gamma", "c", "printed"), LEVIATHAN_4)
def test_leviathan_table_4_lies_in_the_box_of_its_rounded_inputs(
    alpha: float, gamma: int, c: float, printed: float
) -> None:
    values = [iid(alpha + x, c + y, gamma) for x, y in itertools.product((-0.005, 0.005), (-0.005, 0.005))]
    assert min(values) - 0.05 <= printed <= max(values) + 0.05


def test_bigram_drafter() -> None:
    assert iid(0.20, 0.0, 3) == pytest.approx(1.2480, abs=5e-5)


@pytest.mark.parametrize(
    ("alpha", "c", "k", "value"),
    [(0.72, 0.25, 2, 1.49), (0.72, 0.25, 3, 1.49), (0.72, 0.25, 5, 1.37), (0.72, 0.25, 8, 1.13),
     (0.82, 0.375, 2, 1.42), (0.82, 0.375, 3, 1.43), (0.82, 0.375, 5, 1.35), (0.82, 0.375, 8, 1.16),
     (0.72, 0.5, 2, 1.12)],
)  # fmt: skip
def test_third_party_arithmetic(alpha: float, c: float, k: int, value: float) -> None:
    assert iid(alpha, c, k) == pytest.approx(value, abs=0.0051)


@pytest.mark.parametrize(("k", "prob"), [(1, 0.250), (2, 0.366), (4, 0.519), (8, 0.677)])
def test_break_even_probability(k: int, prob: float) -> None:
    found = break_even_prob(0.25, k)
    assert found is not None
    assert found.value == pytest.approx(prob, abs=5e-4)


def test_no_break_even_where_even_perfect_drafts_lose() -> None:
    assert break_even_prob(1.2, 3) is None


def test_peak_of_the_third_party_example() -> None:
    assert best_length(TokenAcceptProb(0.77), 0.25) == 3
    assert iid(0.77, 0.25, 3) == pytest.approx(1.61, abs=5e-3)


def test_no_bonus_trap() -> None:
    tokens = float(expected_tokens(TokenAcceptProb(0.8), 4))
    assert tokens - 1 == pytest.approx(2.3616)
    assert (tokens - 1) / 1.4 == pytest.approx(1.687, abs=5e-4)
    assert iid(0.8, 0.1, 4) == pytest.approx(2.401, abs=5e-4)


BEST = {
    0.5: [5, 4, 3, 2, 1, 1],
    0.6: [7, 6, 4, 3, 2, 1],
    0.7: [9, 8, 6, 4, 3, 2],
    0.8: [14, 11, 8, 6, 4, 3],
    0.9: [24, 19, 13, 10, 7, 5],
}


@pytest.mark.parametrize("alpha", sorted(BEST))
def test_best_length(alpha: float) -> None:
    found = [best_length(TokenAcceptProb(alpha), c) for c in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)]
    assert found == BEST[alpha]


@pytest.mark.parametrize(
    ("alpha", "k", "time", "speed"), [(0.6, 1, 2.0, 0.5), (0.6, 4, 0.75, 1.3333333), (0.4, 4, 1.125, 0.8888889)]
)
def test_the_articles_formula(alpha: float, k: int, time: float, speed: float) -> None:
    assert float(relative_token_time_article(DraftAcceptRatio(alpha), 0.2, k)) == pytest.approx(time)
    assert float(speedup_article(DraftAcceptRatio(alpha), 0.2, k)) == pytest.approx(speed)


@pytest.mark.parametrize(("alpha", "printed"), [(0.6, 1.0), (0.4, 1.5)])
def test_the_articles_printed_values_follow_from_another_rho(alpha: float, printed: float) -> None:
    assert float(relative_token_time_article(DraftAcceptRatio(alpha), 0.2, 4)) != pytest.approx(printed)
    assert float(relative_token_time_article(DraftAcceptRatio(alpha), 0.35, 4)) == pytest.approx(printed)


def test_the_articles_planned_speedup() -> None:
    assert float(speedup_article(DraftAcceptRatio(0.72), 0.1, 5)) == pytest.approx(2.4)


def test_edges() -> None:
    alpha = DraftAcceptRatio(0.0)
    assert float(relative_token_time_article(alpha, 0.2, 0)) == 1.0
    assert float(speedup_article(alpha, 0.2, 0)) == 1.0
    assert float(relative_token_time_article(alpha, 0.2, 4)) == float("inf")
    assert float(speedup_article(alpha, 0.2, 4)) == 0.0
    assert float(speedup_with_bonus(DraftAcceptRatio(1.0), 0.0, 4)) == 5.0
    assert iid(1.0, 0.1, 5) == pytest.approx(6 / 1.5)


def test_one_acceptance_cannot_be_fed_for_the_other() -> None:
    with pytest.raises(TypeError, match="DraftAcceptRatio"):
        speedup_article(TokenAcceptProb(0.5), 0.1, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TokenAcceptProb"):
        speedup_iid(DraftAcceptRatio(0.5), 0.1, 5)  # type: ignore[arg-type]


def test_break_even_ratio() -> None:
    assert break_even_ratio(2.5, 5.0) == pytest.approx(0.3)
    assert break_even_ratio(1.0, 0.0) is None


def test_corollary_3_9_one_draft_pays_when_alpha_exceeds_c() -> None:
    assert iid(0.3, 0.25, 1) == pytest.approx(1.3 / 1.25)
